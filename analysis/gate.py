"""What a gate judges and what a gate is. The checks stand in gates_*.py, what follows from a finding in gates.toml."""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any, Literal

from analysis.formats.bench import BenchResult, RequestRow
from analysis.formats.metrics import Metrics
from analysis.formats.run_record import Reason, RunRecord
from analysis.formats.server_log import ServerLog
from analysis.formats.steps import StepRow, StepTrace


@dataclass(frozen=True)
class TelemetryFacts:
    """What the samples of the GPU say: the columns of `telemetry_facts` (telemetry.sql). None: not reported."""

    source: Literal["counter", "integrated"] | None = None
    largest_gap_s: float | None = None
    exec_after_s: float | None = None  # the engine's start, from the first sample
    least_counted_j: float | None = None  # the counter's smallest step from sample to sample
    first_memory_mib: int | None = None  # of the first sample, before the engine's start
    last_memory_mib: int | None = None
    hottest_c: int | None = None  # in the window, as all below
    sm_clock_mhz: float | None = None
    power_capped_pct: float | None = None  # share of samples
    slowed_pct: float | None = None
    counter_still_s: float | None = None  # longest time without a change (whole run)
    start_j: float | None = None
    ready_j: float | None = None
    window_j: float | None = None
    tail_j: float | None = None
    total_j: float | None = None
    window_error_j: float | None = None
    window_integrated_j: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What a finished run or prime left; None: the file is absent or could not be read."""

    record: RunRecord
    log: ServerLog | None = None
    bench: BenchResult | None = None
    before: Metrics | None = None
    after: Metrics | None = None
    steps: StepTrace | None = None
    telemetry: TelemetryFacts | None = None
    client_log: Mapping[str, float] = field(default_factory=dict)  # the client's own table, by label
    sitting: Mapping[str, Any] = field(default_factory=dict)  # its provenance

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts of the GPU."""
        return self.sitting.get("gpu") or {}

    @property
    def measured(self) -> bool:
        """A run has a load; a prime is a start alone."""
        return self.record.kind == "run"

    def counted(self, name: str) -> int | None:
        """By how much a counter grew over the load; None if a scrape lacks it."""
        begin = self.before.value(name) if self.before else None
        end = self.after.value(name) if self.after else None
        if begin is None or end is None or not math.isfinite(end - begin):
            return None
        return round(end - begin)

    def told(self, name: str) -> float | None:
        """A number of the client's summary; None if it is none or not there."""
        value = self.bench.scalars.get(name) if self.bench else None
        return value if isinstance(value, int | float) else None

    @property
    def gpu(self) -> TelemetryFacts:
        """The telemetry's facts; without telemetry, none."""
        return self.telemetry or TelemetryFacts()

    @property
    def window_s(self) -> float | None:
        begin_ns, end_ns = self.record.timeline.window_begin_ns, self.record.timeline.window_end_ns
        return None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / 1e9

    @cached_property
    def served(self) -> tuple[RequestRow, ...]:
        """Requests without an error text."""
        return tuple(r for r in self.bench.requests if not r.error) if self.bench else ()

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """The steps of the trace, none without one."""
        return self.steps.rows if self.steps else ()


Seen = Iterator[str]  # what was seen of a run that a gate's rule does not hold for; the first one is told
Check = Callable[..., Iterator[Any]]  # a gate's own: see judge() in gates.py and gates_campaign.py
Then = Literal["retry", "give_up", "stop"]
_FOLLOWS = tomllib.loads(Path(__file__).with_name("gates.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Gate:
    """One rule. `check`: its docstring says what must hold; it yields what was seen where that does not hold. The rest
    as in gates.toml."""

    code: str
    check: Check
    severity: Literal["invalid", "warning"]
    advice: str
    then: Then = "retry"

    def reason(self, evidence: str) -> Reason:
        return Reason(code=self.code, severity=self.severity, evidence=evidence, advice=self.advice)


def gates_in(names: Mapping[str, Any]) -> tuple[Gate, ...]:
    """The gates of a module's names, in their order: its public generator functions."""
    checks = {name: found for name, found in names.items() if isgeneratorfunction(found) and not name.startswith("_")}
    return tuple(Gate(code, check, **_FOLLOWS[code]) for code, check in checks.items())
