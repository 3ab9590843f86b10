"""Advice for one server: what `--enforce-eager` costs and buys there, by arithmetic and the scheduling model.

Each input is measured (a database of runs), given (an option) or assumed (a default, said as such); what is computed
from an assumption is marked too. A load's time = engine steps x decode step + prompt tokens x prefill time: the
scheduling model gives steps and prompt tokens (recomputed ones included) for an arm's KV pool, the rest are inputs. No
time is predicted from a card's or a model's properties.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from math import floor, inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from analysis.errors import LoadError
from analysis.scheduling import Prediction, SchedulerConfig, SchedulingError, default_capture_sizes, predict

if TYPE_CHECKING:
    import duckdb

ARMS = ("graphs", "graphs_trimmed", "graphs_kv_matched", "eager")
GIB = 2**30
RESOLUTION = 0.02  # the throughput of recorded arms that it was not fitted to is met this well (tests/test_advise.py)
_BLOCK = 16  # tokens
_KV_ERROR = 0.02  # of the pool: how far the range of the change looks
_PUBLISHED = Path(__file__).parent / "published.toml"
Basis = Literal["measured", "given", "assumed", "computed", "computed*"]
_MARKS = {"measured": "m", "given": "g", "assumed": "a", "computed": "c", "computed*": "c*"}


def _per_arm(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    pairs = [part.split("=") for part in value.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("ARM=NUMBER, several with commas, was expected")
    return dict(pairs)


PerArm = Annotated[dict[Literal["graphs", "graphs_trimmed", "eager"], PositiveFloat], BeforeValidator(_per_arm)]


class Server(BaseModel):
    """What is given of a server and its load; the rest is taken from measurements or assumed. The command's options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: PositiveInt | None = Field(None, description="Requests at once.")
    requests: PositiveInt | None = Field(None, description="Requests in all.  [assumed: 8 rounds of them]")
    input_tokens: PositiveInt | None = Field(None, description="Prompt tokens a request.")
    output_tokens: PositiveInt | None = Field(None, description="Output tokens a request.")
    range_ratio: float | None = Field(None, ge=0, lt=1, description="Lengths vary by this share.  [assumed: 0]")
    max_model_len: PositiveInt | None = Field(None, description="Context length.  [assumed: 4096]")
    max_num_batched_tokens: PositiveInt | None = Field(None, description="Token budget of a step.  [assumed: 8192]")
    kv_tokens: PerArm | None = Field(None, description="ARM=N,…: the log's `GPU KV cache size`.")
    graph_gib: PositiveFloat | None = Field(None, description="The log's `Estimated CUDA graph memory`.")
    model_shape: str | None = Field(None, description="LAYERS,KV_HEADS,HEAD_DIM,BYTES, or a config.json.")
    card_gib: PositiveFloat | None = Field(None, description="Memory of the card.")
    utilization: float | None = Field(None, gt=0, le=1, description="--gpu-memory-utilization.  [assumed: 0.92]")
    weights_gib: PositiveFloat | None = Field(None, description="The log's `Model loading took`.")
    overhead_gib: PositiveFloat | None = Field(None, description="Activations and the rest.  [assumed: 2.45]")
    step_ms: PerArm | None = Field(None, description="ARM=MS,…: decode step, or TPOT at concurrency 1.")
    prefill_ms: PositiveFloat | None = Field(None, description="Per 1000 prompt tokens.")
    output_tok_s: PerArm | None = Field(None, description="ARM=X: one arm's throughput at this load, for prefill_ms.")
    start_s: PerArm | None = Field(None, description="ARM=S,…: start to /health.")


@dataclass(frozen=True)
class Figure:
    """A number and where it comes from; `how` says it in words."""

    value: float
    basis: Basis
    how: str = ""


Facts = dict[str, Figure]  # by option name, per-arm ones as `step_ms.graphs`
_ASSUMED: Facts = {
    "range_ratio": Figure(0, "assumed", "all requests of one length"),
    "max_model_len": Figure(4096, "assumed", "context length"),
    "max_num_batched_tokens": Figure(8192, "assumed", "vLLM's default on a card of 70 GiB or more"),
    "utilization": Figure(0.92, "assumed", "vLLM's default"),
    "overhead_gib": Figure(2.45, "assumed", "as measured with 7B and 32B shapes on one H200"),
}


@dataclass(frozen=True)
class Advice:
    """`rows`: a figure's name and what it is by arm, where there is one. `words`: sign, size and what to set.
    `assumed`: what they rest on besides what was measured or given."""

    title: str
    arms: tuple[str, ...]
    rows: dict[str, dict[str, Figure]]
    words: list[str]
    assumed: list[str]


def given(server: Server) -> Facts:
    """Options as facts. Raises LoadError for a model shape that is none."""
    facts: Facts = {}
    for name, value in server.model_dump(exclude_none=True, exclude={"model_shape"}).items():
        for arm, number in value.items() if isinstance(value, dict) else [("", value)]:
            facts[f"{name}.{arm}".rstrip(".")] = Figure(number, "given")
    if server.model_shape:
        facts["kv_bytes"] = Figure(_kv_bytes(server.model_shape), "given", "2 x layers x KV heads x head size x bytes")
    return facts


def _kv_bytes(shape: str) -> int:
    """KV-cache bytes a token of `layers,kv_heads,head_dim,bytes` or of a config.json."""
    try:
        if not shape.endswith(".json"):
            layers, heads, size, width = map(int, shape.split(","))
        else:
            c = json.loads(Path(shape).read_text(encoding="utf-8"))
            layers, heads = c["num_hidden_layers"], c.get("num_key_value_heads") or c["num_attention_heads"]
            size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
            width = 4 if (c.get("dtype") or c.get("torch_dtype")) == "float32" else 2
        return 2 * layers * heads * size * width
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(
            f"--model-shape {shape}: {error}", "give LAYERS,KV_HEADS,HEAD_DIM,BYTES or a config.json"
        ) from error


_CELL = """
WITH times AS (
    SELECT *, (t_ns - lag(t_ns) OVER (PARTITION BY folder ORDER BY step)) / 1e6 AS ms FROM window_steps
), steps AS (
    SELECT folder, avg(ms) FILTER (unpadded_tokens = generated_tokens) AS step_ms, count(unpadded_tokens) AS steps,
           sum(unpadded_tokens - generated_tokens) / 1000 AS prompts FROM times GROUP BY folder
)
SELECT arm, avg(num_gpu_blocks) * 16 AS kv_tokens, avg(step_ms) AS step_ms, avg(s.steps) AS steps,
       avg(output_tok_s) AS output_tok_s, avg(f.start_s) AS start_s, avg(estimated_graph_gib) AS graph_gib,
       avg(available_kv_gib * 2 ** 30 / r.kv_tokens) FILTER (num_gpu_blocks = num_gpu_blocks_natural) AS kv_bytes,
       avg((duration_s * 1000 - s.steps * step_ms) / prompts) AS prefill_ms, any_value(concurrency) AS concurrency,
       any_value(r.max_model_len) AS max_model_len, any_value(max_num_batched_tokens) AS max_num_batched_tokens,
       avg(model_load_gib) AS weights_gib, count(*) AS n
FROM runs r JOIN run_figures f USING (folder) LEFT JOIN steps s USING (folder)
WHERE (setup, model, profile) = (?, ?, ?) GROUP BY arm ORDER BY arm
"""
_PER_ARM = ("kv_tokens", "output_tok_s", "start_s", "step_ms", "steps", "prefill_ms")


def cells(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str, str]]:
    """(setup, model, profile) of which both graphs and eager were measured."""
    return con.execute(
        "SELECT setup, model, profile FROM runs WHERE counted AND kind = 'run' AND arm IN ('graphs', 'eager')"
        " GROUP BY ALL HAVING count(DISTINCT arm) = 2 ORDER BY ALL"
    ).fetchall()


def measured(con: duckdb.DuckDBPyConnection, cell: tuple[str, str, str]) -> tuple[Facts, list[tuple[int, int]]]:
    """A cell's facts, and the lengths of the requests of its first run. Step and prefill times come from graphs and
    eager alone; other arms' throughput is there to compare with."""
    cursor = con.execute(_CELL, cell)
    names = [column[0] for column in cursor.description or ()]
    arms = {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
    facts: Facts = {}
    for arm, row in arms.items():
        how = f"mean of {row['n']} runs" if row["n"] > 1 else "one run"
        known = {name: value for name, value in row.items() if value is not None and name not in ("arm", "n")}
        for name in _PER_ARM if arm in ARMS else ():
            if name in known and (name in _PER_ARM[:3] or arm in ("graphs", "eager")):
                facts[f"{name}.{arm}"] = Figure(known[name], "measured", how)
        if arm in ("graphs", "eager"):
            facts |= {k: Figure(v, "measured", f"{arm}, {how}") for k, v in known.items() if k not in _PER_ARM}
    lengths = con.execute(
        "SELECT input_tokens, output_tokens FROM requests WHERE folder = (SELECT min(folder) FROM runs"
        " WHERE counted AND (setup, model, profile) = (?, ?, ?)) ORDER BY request",
        cell,
    ).fetchall()
    return facts, [(int(prompt), int(output)) for prompt, output in lengths]


def advise(title: str, facts: Facts, lengths: Sequence[tuple[int, int]] = ()) -> Advice:
    """The advice on a server known by `facts`. `lengths`: (prompt, output) tokens of its requests where each is known.
    Raises LoadError for what is missing or could never run, naming the option."""
    case = _Case(facts, lengths)
    arms = tuple(arm for arm in ARMS if arm != "graphs_trimmed" or case.trim_to)
    rows: dict[str, dict[str, Figure]] = {}
    for arm in arms:
        for name, figure in case.figures(arm):
            rows.setdefault(name, {})[arm] = figure
    assumed = [f"{name} = {f.value:g}: {f.how}" for name, f in sorted(case.used.items()) if f.basis == "assumed"]
    if CHANGE in rows:
        assumed.append("times are the same however many requests run, and prefill in arms where it was not measured")
    return Advice(f"{title}: {case.load}", arms, rows, list(_words(case, rows)), assumed)


CHANGE, TOK_S, BREAK_EVEN = "output tokens/s against eager, %", "output tokens/s", "break-even, requests"
STEPS, GAIN, START = "engine steps", "least gain a step that pays, %", "warm start, s"


class _Case:
    """A server under a load. `used`: the facts that were looked at."""

    def __init__(self, facts: Facts, lengths: Sequence[tuple[int, int]]) -> None:
        self.facts, self.used = _ASSUMED | facts, Facts()
        self.concurrency = int(self.need("concurrency").value)
        self.facts.setdefault("requests", Figure(8 * self.concurrency, "assumed", "eight rounds"))
        self.as_measured = bool(lengths)
        self.lengths = tuple(lengths) or self.made_up_lengths()
        self.output_tokens = sum(output for _, output in self.lengths)
        spans = [sorted({pair[i] for pair in self.lengths}) for i in (0, 1)]
        told = ["-".join(str(v) for v in dict.fromkeys((span[0], span[-1]))) for span in spans]
        self.load = f"{len(self.lengths)} requests at {self.concurrency}, {told[0]} tokens in, {told[1]} out"
        sizes = default_capture_sizes()
        self.trim_to = next((size for size in sizes[:-1] if size >= self.concurrency), None)
        self.steps: dict[float, Prediction] = {}

    def get(self, name: str) -> Figure | None:
        if name in self.facts:
            self.used[name] = self.facts[name]
        return self.facts.get(name)

    def need(self, name: str) -> Figure:
        if found := self.get(name):
            return found
        option = "model-shape" if name == "kv_bytes" else name.split(".")[0].replace("_", "-")
        raise LoadError(f"{name} is neither measured nor given", f"give --{option}")

    def made_up_lengths(self) -> tuple[tuple[int, int], ...]:
        names = ("requests", "input_tokens", "output_tokens", "range_ratio")
        count, prompt, output, ratio = (self.need(name).value for name in names)
        rng = random.Random(1)
        pairs = [[round(x * rng.uniform(1 - ratio, 1 + ratio)) for x in (prompt, output)] for _ in range(int(count))]
        return tuple((max(a, 1), max(b, 1)) for a, b in pairs)

    def graph_gib(self, arm: str) -> Figure:
        """What vLLM takes out of an arm's KV pool for graphs."""
        if arm in ("eager", "graphs_kv_matched"):
            return Figure(0, "given")
        if "graph_gib" not in self.facts and (size := self.facts.get("kv_bytes")):
            study = tomllib.loads(_PUBLISHED.read_text(encoding="utf-8"))
            for model, row in study["graph_gib"].items():
                if isinstance(row, dict) and study["kv_bytes_per_token"][model]["all"]["all"] == size.value:
                    how = f"the published study's {model}, which has this KV shape"
                    self.facts["graph_gib"] = Figure(row["all"]["graphs"], "assumed", how)
        whole = self.need("graph_gib")
        if arm == "graphs" or self.trim_to is None:
            return whole
        share = len(default_capture_sizes(max_capture=self.trim_to)) / len(default_capture_sizes())
        trimmed = Figure(share * whole.value, "assumed", "in proportion to the sizes captured")
        self.used["graph_gib.graphs_trimmed"] = trimmed
        return trimmed

    def kv_tokens(self, arm: str) -> Figure:
        """The first there is: the arm's own as given; by arithmetic on a given card; as measured; another arm's with
        the difference in graph memory."""
        known = {a: f for a in ARMS if (f := self.facts.get(f"kv_tokens.{a}"))}
        by_card = "card_gib" in self.facts and all(f.basis == "measured" for f in known.values())
        own = known.get("eager" if arm == "graphs_kv_matched" else arm)
        if own and not by_card:
            return own
        size, graphs = self.need("kv_bytes"), self.graph_gib(arm)
        if by_card:
            inputs = [self.need(name) for name in ("card_gib", "utilization", "weights_gib", "overhead_gib")]
            card, share, weights, rest = (f.value for f in inputs)
            tokens = (card * share - weights - rest - graphs.value) * GIB / size.value
        else:
            other = next((a for a in ("eager", "graphs") if a in known), None)
            if other is None:
                raise LoadError("the size of the KV pool is not known", "give --kv-tokens or --card-gib")
            inputs = [known[other], self.graph_gib(other)]
            tokens = known[other].value + (inputs[1].value - graphs.value) * GIB / size.value
        if tokens < 2 * _BLOCK:
            raise LoadError(
                f"{arm}: no memory is left for the KV cache", "check --card-gib, --utilization, --weights-gib"
            )
        return _computed(tokens // _BLOCK * _BLOCK, *inputs, graphs, size)

    def predict(self, kv_tokens: float) -> Prediction:
        if kv_tokens not in self.steps:
            context, budget = (int(self.need(name).value) for name in ("max_model_len", "max_num_batched_tokens"))
            config = SchedulerConfig(floor(kv_tokens / _BLOCK), _BLOCK, budget, max_model_len=context)
            try:
                self.steps[kv_tokens] = predict(config, self.lengths, self.concurrency)
            except SchedulingError as error:
                raise LoadError(f"the load cannot run: {error}", "give shorter requests or a larger pool") from error
        return self.steps[kv_tokens]

    def step_ms(self, arm: str) -> Figure | None:
        own, graphs = self.get(f"step_ms.{arm}"), self.facts.get("step_ms.graphs")
        if own is None and arm != "eager" and graphs:
            own = self.used[f"step_ms.{arm}"] = Figure(graphs.value, "assumed", "as with graphs as they come")
        return own

    def prefill_ms(self, arm: str) -> Figure | None:
        """Of 1000 prompt tokens: as given; from one arm's given throughput; as measured in the arm, or in graphs."""
        for other in ("graphs", "eager"):
            rate, step = self.facts.get(f"output_tok_s.{other}"), self.step_ms(other)
            if rate and rate.basis == "given" and step and "prefill_ms" not in self.facts:
                kv = self.kv_tokens(other)
                found = self.predict(kv.value)
                left = 1000 * self.output_tokens / rate.value - found.steps * step.value
                if left < 0:
                    raise LoadError(
                        f"{other}: {found.steps} steps of {step.value:g} ms take longer than {rate.value:g} tokens/s",
                        "check --output-tok-s and --step-ms",
                    )
                return _computed(left / self.prompts(found), rate, step, kv)
        return self.get("prefill_ms") or self.get(f"prefill_ms.{'eager' if arm == 'eager' else 'graphs'}")

    def prompts(self, found: Prediction) -> float:
        """Thousands of prompt tokens run, those recomputed after a preemption included."""
        return (found.scheduled_tokens - self.output_tokens + len(self.lengths)) / 1000

    def seconds(self, arm: str, pool: float = 1.0) -> Figure | None:
        """The load's time with `pool` times the KV pool; without prefill where its time is not known."""
        kv, step, prefill = self.kv_tokens(arm), self.step_ms(arm), self.prefill_ms(arm)
        if step is None:
            return None
        found = self.predict(kv.value * pool)
        ms = found.steps * self.steps_factor(arm) * step.value + (self.prompts(found) * prefill.value if prefill else 0)
        return _computed(ms / 1000, kv, step, *([prefill] if prefill else []))

    def steps_factor(self, arm: str) -> float:
        """Measured over predicted steps, of graphs for the arms with graphs: clients that take longer than a step to
        send the next request make more steps."""
        source = arm if arm == "eager" else "graphs"
        steps, kv = self.facts.get(f"steps.{source}"), self.facts.get(f"kv_tokens.{source}")
        if not (self.as_measured and steps and kv and kv.basis == "measured"):
            return 1.0
        return steps.value / self.predict(kv.value).steps

    def figures(self, arm: str) -> Iterator[tuple[str, Figure]]:
        kv, context, eager_kv = self.kv_tokens(arm), self.need("max_model_len"), self.kv_tokens("eager")
        found, eager_found = self.predict(kv.value), self.predict(eager_kv.value)
        yield "KV tokens", kv
        yield "queue overload", _computed(self.concurrency * context.value / kv.value, kv, context)
        yield STEPS, _computed(found.steps, kv)
        if self.as_measured and f"steps.{arm}" in self.facts:
            yield f"{STEPS}, measured", self.facts[f"steps.{arm}"]
        if found.mean_running is not None:
            yield "running while requests wait", _computed(found.mean_running, kv)
        yield "preemptions", _computed(found.preempted, kv)
        if arm != "eager":
            yield GAIN, _computed(100 * (1 - eager_found.steps / found.steps), kv, eager_kv)
        if step := self.step_ms(arm):
            yield "decode step, ms", step
        prefill, own, eager = self.prefill_ms(arm), self.seconds(arm), self.seconds("eager")
        if prefill:
            yield "prefill of 1000 tokens, ms", prefill
        if own and prefill:
            yield TOK_S, _computed(self.output_tokens / own.value, own)
        rate = self.facts.get(f"output_tok_s.{arm}")
        if rate and rate.basis == "measured":
            yield f"{TOK_S}, measured", rate
        if own and eager and arm != "eager":
            limit = "" if prefill else " at most"
            yield CHANGE + limit, _computed(100 * (eager.value / own.value - 1), own, eager)
            for words, pool in (("2% less", 1 - _KV_ERROR), ("2% more", 1 + _KV_ERROR)):
                mine, other = self.seconds(arm, pool), self.seconds("eager", pool)
                if mine and other:
                    yield f"  with {words} KV in both", _computed(100 * (other.value / mine.value - 1), mine, other)
        start, eager_start = self.get(f"start_s.{arm}"), self.get("start_s.eager")
        if start:
            yield START, start
        if start and eager_start and own and eager and prefill and arm != "eager":
            saved = (eager.value - own.value) / len(self.lengths)
            requests = max(start.value - eager_start.value, 0) / saved if saved > 0 else inf
            yield BREAK_EVEN, _computed(requests, start, eager_start, own, eager)


def _computed(value: float, *inputs: Figure) -> Figure:
    return Figure(value, "computed*" if any(f.basis in ("assumed", "computed*") for f in inputs) else "computed")


def _words(case: _Case, rows: dict[str, dict[str, Figure]]) -> Iterator[str]:
    """Sign and size, what pays, what to set."""
    kv, steps = rows["KV tokens"], rows[STEPS]
    less, more = (100 * (row["graphs"].value / row["eager"].value - 1) for row in (kv, steps))
    gain = rows[GAIN]["graphs"].value
    if steps["graphs"].value == steps["eager"].value:
        yield f"Graphs take {-less:.1f}% of the KV pool and no engine step more: every pool holds this load alike."
    else:
        yield (
            f"Graphs take {-less:.1f}% of the KV pool, which makes {more:+.1f}% engine steps: they gain throughput"
            f" where a decode step is more than {gain:.1f}% shorter than eager's, and lose it where it is less,"
            " however long prefill takes."
        )
    name = next((name for name in rows if name.startswith(CHANGE)), None)
    if name is None:
        yield "Sign open: give --step-ms of both arms (TPOT of a request alone is near enough)."
        return
    change = {arm: figure.value for arm, figure in rows[name].items()} | {"eager": 0.0}
    size = "at most (prefill time not known)" if name != CHANGE else "expected, not measured"
    rates = rows.get(f"{TOK_S}, measured", {})
    if {"graphs", "eager"} <= rates.keys():
        size = f"measured {100 * (rates['graphs'].value / rates['eager'].value - 1):+.1f}%"
    yield f"Graphs as they come against eager: {change['graphs']:+.1f}% output tokens/s, {size}."
    if BREAK_EVEN in rows and "graphs" in rows[BREAK_EVEN]:
        requests = rows[BREAK_EVEN]["graphs"].value
        yield (
            f"The longer start is repaid after {requests:.0f} requests."
            if requests < inf
            else "The longer start is never repaid."
        )
    if name != CHANGE:
        yield "The sign holds at any prefill time. For what to set: --prefill-ms, or --output-tok-s of one arm."
        return
    chosen = next(arm for arm in ("eager", *ARMS) if change.get(arm, -inf) >= max(change.values()) - 100 * RESOLUTION)
    yield {
        "eager": f"Set: --enforce-eager; it starts sooner, and no arm with graphs is faster by more than the"
        f" {100 * RESOLUTION:.0f}% that the model resolves.",
        "graphs": "Set: nothing, graphs as they come.",
        "graphs_trimmed": f"Set: --max-cudagraph-capture-size={case.trim_to}, the next default size.",
        "graphs_kv_matched": "Set: a greater --gpu-memory-utilization, by what the log's line `CUDA graph memory"
        " profiling is enabled` names, if that memory is free.",
    }[chosen]


def answer(database: Path | None, options: dict[str, Any], cell: str = "*") -> list[Advice]:
    """Advice on each cell of a database whose model.profile matches, or on what the options alone describe.
    Raises LoadError: an option of no use, none that fits, something missing."""
    try:
        facts = given(Server(**{name: value for name, value in options.items() if value is not None}))
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise LoadError(f"--{option} {first['input']}: {first['msg']}", "see `campaign advise --help`") from error
    from analysis.db import connect  # here, so that `campaign --help` does without a database

    if database is None:
        return [advise("as given", facts)]
    made_up = {"concurrency", "requests", "input_tokens", "output_tokens", "range_ratio"} & facts.keys()
    with connect(database) as con:
        found = [c for c in cells(con) if fnmatchcase(f"{c[1]}.{c[2]}", cell)]
        if not found:
            raise LoadError(f"{database} has no cell {cell} with runs of graphs and eager", "name another with --cell")
        known = [
            (f"{model} {profile}, {setup}", *measured(con, (setup, model, profile))) for setup, model, profile in found
        ]
    return [advise(title, own | facts, () if made_up else lengths) for title, own, lengths in known]


def as_json(advice: Sequence[Advice]) -> str:
    """An infinite break-even is null."""
    plain = [asdict(one) for one in advice]
    for figure in (f for one in plain for row in one["rows"].values() for f in row.values()):
        figure["value"] = figure["value"] if figure["value"] < inf else None
    return json.dumps(plain, indent=1, ensure_ascii=False)


def as_text(advice: Sequence[Advice]) -> str:
    lines = []
    for one in advice:
        lines += [one.title, "", f"{'':38}" + "".join(f"{arm:>20}" for arm in one.arms)]
        for name, row in one.rows.items():
            cells = [
                f"{_number(name, row[arm].value)} {_MARKS[row[arm].basis]:2}" if arm in row else "" for arm in one.arms
            ]
            lines.append((f"{name:38}" + "".join(f"{cell:>20}" for cell in cells)).rstrip())
        lines += ["", *one.words, *(f"assumed: {text}" for text in one.assumed), ""]
    return "\n".join([*lines, "m measured, g given, a assumed; c computed from these, c* from something assumed too"])


def _number(name: str, value: float) -> str:
    if value == inf:
        return "never"
    if "%" in name:
        return f"{value:+.1f}"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
