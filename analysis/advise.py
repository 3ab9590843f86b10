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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from math import floor, inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from analysis.errors import LoadError
from analysis.scheduling import Prediction, SchedulerConfig, SchedulingError, default_capture_sizes, predict

ARMS = ("graphs", "graphs_trimmed", "graphs_kv_matched", "eager")
GIB = 2**30
RESOLUTION = 0.02  # the throughput of recorded arms that it was not fitted to is met this well (tests/test_advise.py)
_BLOCK = 16  # tokens
_KV_ERROR = 0.02  # of the pool: how far the range of the change looks
_CELLS_SQL, _PUBLISHED = (Path(__file__).with_name(name) for name in ("advise.sql", "published.toml"))
Basis = Literal["measured", "given", "assumed", "computed", "computed*"]
_MARKS = {"measured": "m", "given": "g", "assumed": "a", "computed": "c", "computed*": "c*"}


def _per_arm(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    pairs = [part.split("=") for part in value.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("ARM=NUMBER, several with commas, was expected")
    return dict(pairs)


def _kv_bytes(shape: Any) -> int:
    """KV-cache bytes a token of `layers,kv_heads,head_dim,bytes` or of a config.json."""
    try:
        if not shape.endswith(".json"):
            layers, heads, size, width = map(int, shape.split(","))
        else:
            c = json.loads(Path(shape).read_text(encoding="utf-8"))
            layers, heads = c["num_hidden_layers"], c.get("num_key_value_heads") or c["num_attention_heads"]
            size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
            width = 4 if (c.get("dtype") or c.get("torch_dtype")) == "float32" else 2
        return int(2 * layers * heads * size * width)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{error}: LAYERS,KV_HEADS,HEAD_DIM,BYTES or a config.json was expected") from error


PerArm = Annotated[dict[Literal["graphs", "graphs_trimmed", "eager"], PositiveFloat], BeforeValidator(_per_arm)]
KvBytes = Annotated[PositiveInt, BeforeValidator(_kv_bytes)]


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
    model_shape: KvBytes | None = Field(
        None, serialization_alias="kv_bytes", description="LAYERS,KV_HEADS,HEAD_DIM,BYTES, or a config.json."
    )
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


CHANGE, TOK_S, BREAK_EVEN = "output tokens/s against eager, %", "output tokens/s", "break-even, requests"
KV, STEPS, GAIN = "KV tokens", "engine steps", "least gain a step that pays, %"
AT_MOST = f"{CHANGE} at most"


def answer(database: Path | None, options: dict[str, Any], cell: str = "*") -> list[Advice]:
    """Advice on each cell of a database whose model.profile matches, or on what the options alone describe.
    Raises LoadError: an option of no use, none that fits, something missing."""
    facts = given(options)
    if database is None:
        return [advise("as given", facts)]
    made_up = {"concurrency", "requests", "input_tokens", "output_tokens", "range_ratio"} & facts.keys()
    found = measured(database, cell)
    return [advise(title, own | facts, () if made_up else lengths) for title, own, lengths in found]


def given(options: dict[str, Any]) -> Facts:
    """Options as facts. Raises LoadError for one of no use."""
    try:
        server = Server(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise LoadError(f"--{option} {first['input']}: {first['msg']}", "see `campaign advise --help`") from error
    facts: Facts = {}
    for name, value in server.model_dump(by_alias=True, exclude_none=True).items():
        for arm, number in value.items() if isinstance(value, dict) else [("", value)]:
            facts[f"{name}.{arm}".rstrip(".")] = Figure(number, "given")
    return facts


def measured(database: Path, cell: str) -> list[tuple[str, Facts, list[tuple[int, int]]]]:
    """Title, facts and lengths of the requests of each cell with graphs and eager whose model.profile matches."""
    from analysis.db import connect  # here, so that `campaign --help` does without a database

    with connect(database) as con:
        rows = con.execute(_CELLS_SQL.read_text(encoding="utf-8")).fetchall()
    found = [
        (f"{model} {profile}, {setup}", {name: Figure(value, "measured", how) for name, value, how in facts}, lengths)
        for setup, model, profile, facts, lengths in rows
        if fnmatchcase(f"{model}.{profile}", cell)
    ]
    if not found:
        raise LoadError(f"{database} has no cell {cell} with runs of graphs and eager", "name another with --cell")
    return found


def advise(title: str, facts: Facts, lengths: Sequence[tuple[int, int]] = ()) -> Advice:
    """The advice on a server known by `facts`. `lengths`: (prompt, output) tokens of its requests where each is known.
    Raises LoadError for what is missing or could never run, naming the option."""
    case = _Case(facts, lengths)
    arms = tuple(arm for arm in ARMS if arm != "graphs_trimmed" or case.trim_to)
    figures = {arm: case.figures(arm) for arm in arms}
    rows = {name: {arm: f for arm in arms if (f := figures[arm][name])} for name in figures["eager"]}
    rows = {name: row for name, row in rows.items() if row}
    assumed = [f"{name} = {f.value:g}: {f.how}" for name, f in sorted(case.used.items()) if f.basis == "assumed"]
    if CHANGE in rows:
        assumed.append("times are the same however many requests run, and prefill in arms where it was not measured")
    return Advice(f"{title}: {case.load}", arms, rows, list(_words(case, rows)), assumed)


def _marked(value: float, *inputs: Figure) -> Figure:
    return Figure(value, "computed*" if any(f.basis in ("assumed", "computed*") for f in inputs) else "computed")


def _computed(formula: Callable[..., float], *inputs: Figure | None) -> Figure | None:
    """What a formula makes of figures; None where one of them is not known."""
    known = [figure for figure in inputs if figure]
    return _marked(formula(*(f.value for f in known)), *known) if len(known) == len(inputs) else None


class _Case:
    """A server under a load. `used`: the facts that were looked at."""

    def __init__(self, facts: Facts, lengths: Sequence[tuple[int, int]]) -> None:
        self.facts, self.used, self.predicted = _ASSUMED | facts, Facts(), dict[float, Prediction]()
        self.concurrency = int(self.need("concurrency").value)
        sizes = default_capture_sizes()
        self.trim_to = next((size for size in sizes[:-1] if size >= self.concurrency), None)
        self.assume("requests", 8 * self.concurrency, "eight rounds")
        study, shape = tomllib.loads(_PUBLISHED.read_text(encoding="utf-8")), self.facts.get("kv_bytes")
        for model, row in study["kv_bytes_per_token"].items():
            if shape and isinstance(row, dict) and row["all"]["all"] == shape.value:
                how = f"the published study's {model}, which has this KV shape"
                self.assume("graph_gib", study["graph_gib"][model]["all"]["graphs"], how)
        if self.trim_to and (whole := self.facts.get("graph_gib")):
            share = (sizes.index(self.trim_to) + 1) / len(sizes)
            self.assume("graph_gib.graphs_trimmed", share * whole.value, "in proportion to the sizes captured")
        for arm in ("graphs_trimmed", "graphs_kv_matched"):
            if step := self.facts.get("step_ms.graphs"):
                self.assume(f"step_ms.{arm}", step.value, "as with graphs as they come")
        self.as_measured, self.lengths = bool(lengths), tuple(lengths) or self.made_up_lengths()
        self.output_tokens = sum(output for _, output in self.lengths)
        spans = [sorted({pair[i] for pair in self.lengths}) for i in (0, 1)]
        told = ["-".join(str(v) for v in dict.fromkeys((span[0], span[-1]))) for span in spans]
        self.load = f"{len(self.lengths)} requests at {self.concurrency}, {told[0]} tokens in, {told[1]} out"
        for arm in ("graphs", "eager"):
            self.infer_prefill(arm)

    def assume(self, name: str, value: float, how: str) -> None:
        self.facts.setdefault(name, Figure(value, "assumed", how))

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
        whole = self.need("graph_gib")
        return self.need("graph_gib.graphs_trimmed") if arm == "graphs_trimmed" else whole

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
            gib = card * share - weights - rest
        elif other := next((a for a in ("eager", "graphs") if a in known), None):
            inputs = [known[other], self.graph_gib(other)]
            gib = inputs[0].value * size.value / GIB + inputs[1].value
        else:
            raise LoadError("the size of the KV pool is not known", "give --kv-tokens or --card-gib")
        blocks = (gib - graphs.value) * GIB / size.value // _BLOCK
        if blocks < 2:
            raise LoadError(
                f"{arm}: no memory is left for the KV cache", "check --card-gib, --utilization, --weights-gib"
            )
        return _marked(blocks * _BLOCK, *inputs, graphs, size)

    def predict(self, kv_tokens: float) -> Prediction:
        if kv_tokens not in self.predicted:
            context, budget = (int(self.need(name).value) for name in ("max_model_len", "max_num_batched_tokens"))
            config = SchedulerConfig(floor(kv_tokens / _BLOCK), _BLOCK, budget, max_model_len=context)
            try:
                self.predicted[kv_tokens] = predict(config, self.lengths, self.concurrency)
            except SchedulingError as error:
                raise LoadError(f"the load cannot run: {error}", "give shorter requests or a larger pool") from error
        return self.predicted[kv_tokens]

    def steps(self, arm: str) -> Figure:
        kv = self.kv_tokens(arm)
        return _marked(self.predict(kv.value).steps, kv)

    def prompts(self, found: Prediction) -> float:
        """Thousands of prompt tokens run, those recomputed after a preemption included."""
        return (found.scheduled_tokens - self.output_tokens + len(self.lengths)) / 1000

    def infer_prefill(self, arm: str) -> None:
        """The prefill time from an arm's given throughput, where it is not known otherwise."""
        rate, step = self.facts.get(f"output_tok_s.{arm}"), self.facts.get(f"step_ms.{arm}")
        if "prefill_ms" in self.facts or not step or not rate or rate.basis != "given":
            return
        kv = self.kv_tokens(arm)
        found = self.predict(kv.value)
        left = 1000 * self.output_tokens / rate.value - found.steps * step.value
        if left < 0:
            raise LoadError(
                f"{arm}: {found.steps} steps of {step.value:g} ms take longer than {rate.value:g} tokens/s",
                "check --output-tok-s and --step-ms",
            )
        self.facts["prefill_ms"] = _marked(left / self.prompts(found), rate, step, kv)

    def prefill_ms(self, arm: str) -> Figure | None:
        """Of 1000 prompt tokens: of all arms, or as measured in the arm or in graphs."""
        return self.get("prefill_ms") or self.get(f"prefill_ms.{'eager' if arm == 'eager' else 'graphs'}")

    def seconds(self, arm: str, pool: float = 1.0) -> Figure | None:
        """The load's time with `pool` times the KV pool; without prefill where its time is not known."""
        kv, factor = self.kv_tokens(arm), self.steps_factor(arm)
        found = self.predict(kv.value * pool)
        steps, prompts = found.steps * factor, self.prompts(found)
        times = kv, self.get(f"step_ms.{arm}"), self.prefill_ms(arm) or Figure(0, "given")
        return _computed(lambda _, step, prefill: (steps * step + prompts * prefill) / 1000, *times)

    def steps_factor(self, arm: str) -> float:
        """Measured over predicted steps, of graphs for the arms with graphs: clients that take longer than a step to
        send the next request make more steps."""
        source = arm if arm == "eager" else "graphs"
        steps, kv = self.facts.get(f"steps.{source}"), self.facts.get(f"kv_tokens.{source}")
        if not (self.as_measured and steps and kv and kv.basis == "measured"):
            return 1.0
        return steps.value / self.predict(kv.value).steps

    def figures(self, arm: str) -> dict[str, Figure | None]:
        """By name, in the order shown, what is known of an arm."""

        def against_eager(formula: Callable[..., float], *of: Callable[[str], Figure | None]) -> Figure | None:
            return _computed(formula, *(figure(a) for figure in of for a in (arm, "eager"))) if arm != "eager" else None

        def change(own_s: float, eager_s: float) -> float:
            return 100 * (eager_s / own_s - 1)

        def break_even(own_s: float, eager_s: float, start_s: float, eager_start_s: float) -> float:
            saved_s = (eager_s - own_s) / len(self.lengths)
            return max(start_s - eager_start_s, 0) / saved_s if saved_s > 0 else inf

        kv, prefill = self.kv_tokens(arm), self.prefill_ms(arm)
        found, faster = self.predict(kv.value), against_eager(change, self.seconds)
        rate, steps = self.facts.get(f"output_tok_s.{arm}"), self.facts.get(f"steps.{arm}")
        return {
            KV: kv,
            "queue overload": _computed(lambda n, kv: self.concurrency * n / kv, self.need("max_model_len"), kv),
            STEPS: self.steps(arm),
            f"{STEPS}, measured": steps if self.as_measured else None,
            "running while requests wait": None if found.mean_running is None else _marked(found.mean_running, kv),
            "preemptions": _marked(found.preempted, kv),
            GAIN: against_eager(lambda own, eager: 100 * (1 - eager / own), self.steps),
            "decode step, ms": self.get(f"step_ms.{arm}"),
            "prefill of 1000 tokens, ms": prefill,
            TOK_S: _computed(lambda s: self.output_tokens / s, self.seconds(arm)) if prefill else None,
            f"{TOK_S}, measured": rate if rate and rate.basis == "measured" else None,
            CHANGE: faster if prefill else None,
            AT_MOST: None if prefill else faster,
            "  with 2% less KV in both": against_eager(change, partial(self.seconds, pool=1 - _KV_ERROR)),
            "  with 2% more KV in both": against_eager(change, partial(self.seconds, pool=1 + _KV_ERROR)),
            "warm start, s": self.start_s(arm),
            BREAK_EVEN: against_eager(break_even, self.seconds, self.start_s) if prefill else None,
        }

    def start_s(self, arm: str) -> Figure | None:
        return self.get(f"start_s.{arm}")


def _words(case: _Case, rows: dict[str, dict[str, Figure]]) -> Iterator[str]:
    """Sign and size, what pays, what to set."""

    def change(name: str) -> float:
        return 100 * (rows[name]["graphs"].value / rows[name]["eager"].value - 1)

    pool = f"Graphs take {-change(KV):.1f}% of the KV pool"
    if change(STEPS) == 0:
        yield f"{pool} and no engine step more: every pool holds this load alike."
    else:
        yield (
            f"{pool}, which makes {change(STEPS):+.1f}% engine steps: they gain throughput where a decode step is more"
            f" than {rows[GAIN]['graphs'].value:.1f}% shorter than eager's, and lose it where it is less, however long"
            " prefill takes."
        )
    name = next((name for name in (CHANGE, AT_MOST) if name in rows), None)
    if name is None:
        yield "Sign open: give --step-ms of both arms (TPOT of a request alone is near enough)."
        return
    gains = {arm: figure.value for arm, figure in rows[name].items()} | {"eager": 0.0}
    size = "expected, not measured" if name == CHANGE else "at most (prefill time not known)"
    if {"graphs", "eager"} <= rows.get(f"{TOK_S}, measured", {}).keys():
        size = f"measured {change(f'{TOK_S}, measured'):+.1f}%"
    yield f"Graphs as they come against eager: {gains['graphs']:+.1f}% output tokens/s, {size}."
    if repaid := rows.get(BREAK_EVEN, {}).get("graphs"):
        after = f"repaid after {repaid.value:.0f} requests" if repaid.value < inf else "never repaid"
        yield f"The longer start is {after}."
    if name == AT_MOST:
        yield "The sign holds at any prefill time. For what to set: --prefill-ms, or --output-tok-s of one arm."
        return
    chosen = next(arm for arm in ("eager", *ARMS) if gains.get(arm, -inf) >= max(gains.values()) - 100 * RESOLUTION)
    yield {
        "eager": f"Set: --enforce-eager; it starts sooner, and no arm with graphs is faster by more than the"
        f" {100 * RESOLUTION:.0f}% that the model resolves.",
        "graphs": "Set: nothing, graphs as they come.",
        "graphs_trimmed": f"Set: --max-cudagraph-capture-size={case.trim_to}, the next default size.",
        "graphs_kv_matched": "Set: a greater --gpu-memory-utilization, by what the log's line `CUDA graph memory"
        " profiling is enabled` names, if that memory is free.",
    }[chosen]


def as_json(advice: Sequence[Advice]) -> str:
    """An infinite break-even is null."""
    plain = [asdict(one) for one in advice]
    for figure in (f for one in plain for row in one["rows"].values() for f in row.values()):
        figure["value"] = figure["value"] if figure["value"] < inf else None
    return json.dumps(plain, indent=1, ensure_ascii=False)


def as_text(advice: Sequence[Advice]) -> str:
    lines = []
    for one in advice:
        table = {"": {arm: arm for arm in one.arms}}
        for name, row in one.rows.items():
            table[name] = {arm: f"{_number(name, f.value)} {_MARKS[f.basis]:2}" for arm, f in row.items()}
        lines += [one.title, ""]
        for name, cells in table.items():
            lines.append((f"{name:38}" + "".join(f"{cells.get(arm, ''):>20}" for arm in one.arms)).rstrip())
        lines += ["", *one.words, *(f"assumed: {text}" for text in one.assumed), ""]
    return "\n".join([*lines, "m measured, g given, a assumed; c computed from these, c* from something assumed too"])


def _number(name: str, value: float) -> str:
    if value == inf:
        return "never"
    if "%" in name:
        return f"{value:+.1f}"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
