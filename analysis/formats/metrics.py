"""The engine's `/metrics` text (Prometheus exposition format), as vLLM 0.23.0 writes it.

Counters start at 0 with the server, so a run's own count is `after.value(name) - before.value(name)`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from analysis.formats.errors import FormatError

# of no use here and most of a scrape: histograms' buckets, when a counter was made, help texts
_UNREAD = re.compile(r"^(?:# HELP |[\w:]+_(?:bucket|created)[ {]).*\n", re.MULTILINE | re.ASCII)
_FAMILY = re.compile(r"^(?=# TYPE )", re.MULTILINE)  # parsed one by one: many are the same in many scrapes


class Sample(NamedTuple):
    """One line: name as written (with `_total`, `_bucket`, ...), labels sorted by name, value."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True)
class Metrics:
    """The samples of one scrape, without the buckets of its histograms."""

    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float | None:
        """Sum of the samples of this name that carry these labels; None if there is none."""
        wanted = labels.items()
        found = [s.value for s in self.samples if s.name == name and wanted <= dict(s.labels).items()]
        return sum(found) if found else None

    @property
    def num_gpu_blocks(self) -> int | None:
        """KV blocks in effect, with the reserved null block; exact, unlike the log's rounded token count."""
        return self._cache_config("num_gpu_blocks")

    @property
    def block_size(self) -> int | None:
        """Tokens a KV block; 0, which no engine has, counts as not told."""
        return self._cache_config("block_size") or None

    def _cache_config(self, label: str) -> int | None:
        texts = [dict(s.labels).get(label, "") for s in self.samples if s.name == "vllm:cache_config_info"]
        return int(texts[0]) if texts and texts[0].isascii() and texts[0].isdigit() else None

    def as_rows(self) -> list[tuple[str, str, float]]:
        """(name, labels as `a=x,b=y`, value) in the order written."""
        return [(s.name, ",".join(f"{k}={v}" for k, v in s.labels), s.value) for s in self.samples]


def parse_metrics(text: str) -> Metrics:
    """Read a scrape. Raises FormatError if it is cut off, malformed or not vLLM's."""
    if not text.endswith("\n"):
        raise FormatError("the metrics text does not end with a line end: it was cut off")
    try:
        samples = tuple(chain.from_iterable(map(_parse, _FAMILY.split(_UNREAD.sub("", text)))))
    except Exception as error:  # the parser raises whatever its string handling meets
        raise FormatError(f"not Prometheus text: {type(error).__name__}: {error}") from None
    if not any(s.name.startswith("vllm:") for s in samples):
        raise FormatError("no metric starts with `vllm:`: this is not the engine's /metrics")
    return Metrics(samples)


@lru_cache(maxsize=2_000)
def _parse(text: str) -> tuple[Sample, ...]:
    return tuple(
        Sample(s.name, tuple(sorted(s.labels.items())), float(s.value))
        for family in text_string_to_metric_families(text)
        for s in family.samples
    )
