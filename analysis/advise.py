"""Advice for one server: what `--enforce-eager` costs and buys there, by arithmetic and the scheduling model.

Each input is measured (a database of runs), given (an option) or assumed (a default, said as such); what is computed
from an assumption is marked too. Measured changes and break-evens are the report's: over the blocks both arms ran in.
A load's time = engine steps x decode step + prompt tokens x prefill time: the scheduling model gives steps and prompt
tokens (recomputed ones included) for an arm's KV pool. The prefill time is given, or what the steps leave of a
throughput. No time is predicted from a card's or a model's properties.
"""

import json
import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from math import floor, inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from analysis.errors import LoadError
from analysis.scheduling import Prediction, SchedulerConfig, SchedulingError, default_capture_sizes, predict

ARMS = ("graphs", "graphs_trimmed", "graphs_kv_matched", "eager")
GIB = 2**30
RESOLUTION = 0.025  # the throughput of recorded arms that it was not fitted to is met this well (tests/test_advise.py)
_LOAD = ("concurrency", "requests", "input_tokens", "output_tokens", "range_ratio")
_OPEN = "not resolved"
_AS_RUN = ("output_tok_s.", "steps.", "change.", "calm.", "break_even.")  # measured facts of this server and load alone
_SHAPE = "LAYERS,KV_HEADS,HEAD_DIM,BYTES or the path of the model's config.json"
_KV_ERROR = 0.02  # of the pool: how far the range of the change looks
_CELLS_SQL, _PUBLISHED = (Path(__file__).with_name(name) for name in ("advise.sql", "published.toml"))
Basis = Literal["measured", "fitted", "given", "assumed", "computed", "computed*"]
_MARKS = {"measured": "m", "fitted": "f", "given": "g", "assumed": "a", "computed": "c", "computed*": "c*"}


def _per_arm(value: str) -> dict[str, str]:
    pairs = [part.split("=") for part in value.split(",")]
    if any(len(pair) != 2 for pair in pairs) or len({arm for arm, _ in pairs}) < len(pairs):
        raise ValueError("ARM=NUMBER, several arms with commas and none within numbers, was expected")
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
    except OSError as error:
        raise ValueError(f"{error.strerror}".replace("No such file or directory", "there is no such file")) from error
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{_SHAPE} was expected" + f" (without {error})" * isinstance(error, KeyError)) from error


Number = Annotated[float, Field(ge=0.2)]  # a step of less is rather in seconds
PerArm = Annotated[dict[Literal["graphs", "graphs_trimmed", "eager"], Number], BeforeValidator(_per_arm)]
OneArm = Annotated[dict[Literal["graphs", "eager"], PositiveFloat], Field(max_length=1), BeforeValidator(_per_arm)]
KvBytes = Annotated[PositiveInt, BeforeValidator(_kv_bytes)]


class Server(BaseModel):
    """What is given of a server and its load; the rest is taken from measurements or assumed. The command's options."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    concurrency: PositiveInt | None = Field(None, le=2048, description="Requests at once.")
    requests: PositiveInt | None = Field(None, le=10000, description="Requests in all.  [assumed: 2 to 8 rounds]")
    input_tokens: PositiveInt | None = Field(None, description="Prompt tokens a request.")
    output_tokens: PositiveInt | None = Field(None, description="Output tokens a request.")
    range_ratio: float | None = Field(None, ge=0, lt=1, description="Lengths vary by this share.")
    max_model_len: PositiveInt | None = Field(None, description="Context length.")
    max_num_batched_tokens: PositiveInt | None = Field(None, description="Tokens in a step.  [assumed: by the card]")
    max_num_seqs: PositiveInt | None = Field(None, description="Requests in a step.  [assumed: by the card]")
    block_size: PositiveInt | None = Field(None, description="Tokens a KV block.")
    kv_tokens: PerArm | None = Field(None, description="ARM=N,…: the log's `GPU KV cache size`.")
    graph_gib: PositiveFloat | None = Field(None, description="In a log with graphs, `Estimated CUDA graph memory`.")
    model_shape: KvBytes | None = Field(None, description=f"{_SHAPE}.")
    card_gib: PositiveFloat | None = Field(None, le=1000, description="Memory of the card.")
    utilization: float | None = Field(None, gt=0, le=1, description="--gpu-memory-utilization.")
    weights_gib: PositiveFloat | None = Field(None, le=1000, description="The log's `Model loading took`.")
    overhead_gib: PositiveFloat | None = Field(None, le=100, description="Activations and the rest.")
    step_ms: PerArm | None = Field(None, description="ARM=MS,…: decode step, or TPOT at concurrency 1.")
    prefill_ms: PositiveFloat | None = Field(None, description="Per 1000 prompt tokens.")
    output_tok_s: OneArm | None = Field(None, description="ARM=X: one arm's throughput at this load, for prefill_ms.")
    start_s: PerArm | None = Field(None, description="ARM=S,…: start to /health.")


@dataclass(frozen=True)
class Figure:
    """A number and where it comes from; `how` says it in words. `n`: runs, or passes of blocks, that it rests on."""

    value: float
    basis: Basis
    how: str = ""
    n: int | None = None


Facts = dict[str, Figure]  # by option name, per-arm ones as `step_ms.graphs`
ASSUMED: Facts = {
    "range_ratio": Figure(0, "assumed", "all requests of one length"),
    "max_model_len": Figure(4096, "assumed", "context length"),
    "block_size": Figure(16, "assumed", "tokens a KV block, vLLM's default on a GPU"),
    "utilization": Figure(0.92, "assumed", "vLLM's default"),
    "overhead_gib": Figure(2.45, "assumed", "as measured with 7B and 32B shapes on one H200"),
}
_BY_CARD = {"max_num_batched_tokens": (8192, 2048), "max_num_seqs": (1024, 256)}  # vLLM 0.23.0, `get_batch_defaults`


@dataclass(frozen=True)
class Advice:
    """`rows`: a figure's name and what it is by arm, where there is one: of `arms`, and of others that ran. `words`:
    sign, size and what to set. `assumed`: what they rest on besides what was measured or given. `warnings`: of the
    runs, by arm."""

    title: str
    arms: tuple[str, ...]
    rows: dict[str, dict[str, Figure]]
    words: list[str]
    assumed: list[str]
    warnings: list[str]


CHANGE, TOK_S, BREAK_EVEN = "output tokens/s against eager, %", "output tokens/s", "break-even, requests"
KV, STEPS, GAIN, RUNS = "KV tokens", "engine steps in the window", "least gain a step that pays, %", "runs (n)"
NO_PREFILL, PROMPTS, STEP_MS = "  if prefill took no time, %", "prompt tokens, recomputed ones too", "decode step, ms"
BY_MODEL, REAL_STEPS, START = f"{TOK_S}, by the model", f"{STEPS}, measured", "warm start, s"
LESS_KV, MORE_KV = "  by the model, 2% less KV in both", "  by the model, 2% more KV in both"


def answer(database: Path | None, options: dict[str, Any], cell: str = "*") -> list[Advice]:
    """Advice on each cell of a database whose model.profile matches, or on what the options alone describe.
    Raises LoadError: an option of no use, none that fits, something missing."""
    facts = given(options)
    if database is None:
        return [advise("as given", facts)]
    told = {name.partition(".")[0] for name in facts}
    if "step_ms" in told and not told & {"prefill_ms", "output_tok_s"}:
        raise LoadError("--step-ms alone: prefill is fitted to measured steps", "add --prefill-ms or --output-tok-s")
    found = []
    for title, own, lengths, warnings in measured(database, cell):
        if told - {"start_s"}:  # another server or load: of its throughput only the fit stays
            own |= {name: f for name, f in _Case(own, lengths).facts.items() if name.startswith("prefill_ms")}
            own = {n: f for n, f in own.items() if not n.startswith(_AS_RUN + (*_BY_CARD,) * ("card_gib" in told))}
            title += ", changed as given"
        found.append(advise(title, own | facts, () if told & set(_LOAD) else lengths, warnings))
    return found


def given(options: dict[str, Any]) -> Facts:
    """Options as facts. Raises LoadError for one of no use."""
    try:
        server = Server(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        said = "give one arm" if first["type"] == "too_long" else first["msg"].removeprefix("Value error, ")
        raise LoadError(f"{_option(name)} {options[name]}: {said}", "see `campaign advise --help`") from error
    if server.prefill_ms and server.output_tok_s:
        raise LoadError("--prefill-ms and --output-tok-s both tell the prefill time", "give one of them")
    told = {n: v if isinstance(v, dict) else {"": v} for n, v in server.model_dump(exclude_none=True).items()}
    return {f"{name}.{arm}".rstrip("."): Figure(v, "given") for name, arms in told.items() for arm, v in arms.items()}


def measured(database: Path, cell: str) -> list[tuple[str, Facts, list[tuple[int, int]], list[str]]]:
    """Title, facts, lengths of the requests and warnings of each cell with graphs and eager whose model.profile
    matches."""
    from analysis.db import connect  # here, so that `campaign --help` does without a database

    with connect(database) as con:
        rows = con.execute(_CELLS_SQL.read_text(encoding="utf-8")).fetchall()
    found = [
        (f"{model} {profile}, {setup}", {name: Figure(*figure) for name, *figure in facts}, lengths, warnings)
        for setup, model, profile, facts, lengths, warnings in rows
        if fnmatchcase(f"{model}.{profile}", cell)
    ]
    if not found:
        there = ", ".join(sorted({f"{model}.{profile}" for _, model, profile, *_ in rows})) or "none"
        hint = f"of those with graphs and eager in a block, in KV blocks of one size, name one with --cell: {there}"
        raise LoadError(f"no cell {cell}", hint)
    return found


def advise(title: str, facts: Facts, lengths: Sequence[tuple[int, int]] = (), warnings: Sequence[str] = ()) -> Advice:
    """The advice on a server known by `facts`. `lengths`: (prompt, output) tokens of its requests where each is known.
    Raises LoadError for what is missing or could never run, naming the option."""
    case = _Case(facts, lengths)
    arms = tuple(arm for arm in ARMS if arm != "graphs_trimmed" or not case.untrimmed)
    if unused := [n for n, f in facts.items() if f.basis == "given" and n.partition(".")[2] not in ("", *arms)]:
        raise LoadError(f"{case.untrimmed}, so no {unused[0]}", "leave it out")
    eager = case.figures("eager")
    of = {arm: case.figures(arm, eager) if arm != "eager" else eager for arm in (*arms, *case.ran)}
    rows = {name: row for name in of["graphs"] if (row := {arm: f for arm in of if (f := of[arm].get(name))})}
    pools = [rows[KV][arm] for arm in ("graphs", "eager")]
    if pools[0].value > pools[1].value and any(f.basis == "given" for f in pools):
        raise LoadError("graphs' KV pool is larger than eager's; they take from it", "check --kv-tokens")
    assumed = [f"{name} = {f.value:g}: {f.how}" for name, f in sorted(case.used.items()) if f.basis == "assumed"]
    if min(case.concurrency, case.need("max_num_seqs").value) > case.largest:
        assumed.append(f"steps with more than {case.largest} requests, which no graph holds, take no longer")
    if CHANGE in rows:
        assumed.append("times are the same however many requests run, and prefill in arms where it was not measured")
    return Advice(f"{title}: {case.load}", arms, rows, list(_words(case, rows)), assumed, [*warnings])


def _marked(value: float, *inputs: Figure) -> Figure:
    star = any(f.basis in ("assumed", "computed*") for f in inputs)
    return Figure(value, "computed*" if star else "computed", n=min((f.n for f in inputs if f.n), default=None))


def _computed(formula: Callable[..., float], *inputs: Figure | None) -> Figure | None:
    """What a formula makes of figures; None where one of them is not known."""
    known = [figure for figure in inputs if figure]
    return _marked(formula(*(f.value for f in known)), *known) if len(known) == len(inputs) else None


def _like(arm: str) -> str:
    """Graphs or eager, whose times are taken for an arm named after it; of another name no time is known."""
    return arm.partition("_")[0]


def _option(name: str, *, told: bool = False) -> str:
    """The option that gives a fact, with what its help tells."""
    return f"--{name.replace('_', '-')}" + f" ({Server.model_fields[name].description})".replace(".)", ")") * told


class _Case:
    """A server under a load. `used`: the facts that were looked at. `ran`: the arms whose throughput was measured.
    `untrimmed`: why there is no trimmed arm, if so."""

    def __init__(self, facts: Facts, lengths: Sequence[tuple[int, int]]) -> None:
        self.facts, self.used, card = ASSUMED | facts, Facts(), facts.get("card_gib")
        for name, (large, small) in _BY_CARD.items():
            how = f"`vllm serve`'s default, {large} on a card of 70 GiB or more that is no A100, {small} on others"
            self.assume(name, small if card and card.value < 70 else large, how)
        self.concurrency = at_once = int(self.need("concurrency").value)
        sizes = default_capture_sizes(int(self.need("max_num_seqs").value))
        self.largest, self.trim_to = sizes[-1], next((size for size in sizes[:-1] if size >= at_once), None)
        self.assume("requests", some := max(2 * at_once, min(8 * at_once, 2000)), f"{some / at_once:.2g} rounds")
        study, shape = tomllib.loads(_PUBLISHED.read_text(encoding="utf-8")), self.facts.get("model_shape")
        for model, row in study["kv_bytes_per_token"].items():
            if shape and isinstance(row, dict) and row["all"]["all"] == shape.value:
                how = f"the published study's {model}, which has this KV shape"
                self.assume("graph_gib", study["graph_gib"][model]["all"]["graphs"], how)
        if self.trim_to and (whole := self.facts.get("graph_gib")):
            share = (sizes.index(self.trim_to) + 1) / len(sizes)
            self.assume("graph_gib.graphs_trimmed", share * whole.value, "in proportion to the sizes captured")
        wanted = () if "kv_tokens.graphs_trimmed" in self.facts else ("graph_gib", "model_shape")
        lack = " and ".join(_option(name, told=True) for name in wanted if name not in self.facts)
        pool = lack and f"its KV pool is not known, for want of {lack}"
        self.untrimmed = pool if self.trim_to else "no default size below the largest holds this load"
        self.ran = [n[13:] for n, f in self.facts.items() if n.startswith("output_tok_s.") and f.basis == "measured"]
        for arm in (*ARMS, *self.ran):
            if step := self.facts.get(f"step_ms.{_like(arm)}"):
                self.assume(f"step_ms.{arm}", step.value, f"as with {_like(arm)}")
        self.lengths = tuple(lengths) or self.made_up_lengths()
        self.output_tokens = sum(output for _, output in self.lengths)
        spans = ["-".join(map(str, sorted({min(side), max(side)}))) for side in zip(*self.lengths, strict=True)]
        self.load = f"{len(self.lengths)} requests at {self.concurrency}, {spans[0]} tokens in, {spans[1]} out"
        for arm in ("graphs", "eager"):
            self.fit_prefill(arm)

    def assume(self, name: str, value: float, how: str) -> None:
        self.facts.setdefault(name, Figure(value, "assumed", how))

    def get(self, name: str) -> Figure | None:
        if name in self.facts:
            self.used[name] = self.facts[name]
        return self.facts.get(name)

    def need(self, name: str) -> Figure:
        if found := self.get(name):
            return found
        key, _, arm = name.partition(".")
        option = _option(key, told=True)
        raise LoadError(f"{option.split()[0]}{arm and f' {arm}=…'} is neither measured nor given", f"give {option}")

    def made_up_lengths(self) -> tuple[tuple[int, int], ...]:
        count, prompt, output, ratio = (self.need(name).value for name in _LOAD[1:])
        rng = random.Random(1)
        pairs = [[round(x * rng.uniform(1 - ratio, 1 + ratio)) for x in (prompt, output)] for _ in range(int(count))]
        return tuple((max(a, 1), max(b, 1)) for a, b in pairs)

    def graph_gib(self, arm: str) -> Figure:
        """What vLLM takes out of an arm's KV pool for graphs."""
        if arm in ("eager", "graphs_kv_matched"):
            return Figure(0, "given")
        return self.need("graph_gib" if arm == "graphs" else f"graph_gib.{arm}")

    def kv_tokens(self, arm: str) -> Figure:
        """The first there is: the arm's own as given; by arithmetic on a given card; as measured; another arm's with
        the difference in graph memory."""
        known = {name[10:]: f for name, f in self.facts.items() if name.startswith("kv_tokens.")}
        by_card = "card_gib" in self.facts and all(f.basis == "measured" for f in known.values())
        own = known.get("eager" if arm == "graphs_kv_matched" else arm)
        if own and not by_card:
            return own
        size, graphs = self.need("model_shape"), self.graph_gib(arm)
        if by_card:
            inputs = [self.need(name) for name in ("card_gib", "utilization", "weights_gib", "overhead_gib")]
            card, share, weights, rest = (f.value for f in inputs)
            gib = card * share - weights - rest
        elif other := next((a for a in ("eager", "graphs") if a in known), None):
            inputs = [known[other], self.graph_gib(other)]
            gib = inputs[0].value * size.value / GIB + inputs[1].value
        else:
            raise LoadError("the size of the KV pool is not known", "give --kv-tokens or --card-gib")
        block = self.need("block_size").value
        blocks = (gib - graphs.value) * GIB / size.value // block
        if blocks < 2:
            raise LoadError(f"{arm}: no memory is left for the KV cache", "check --card-gib and --weights-gib")
        return _marked(blocks * block, *inputs, graphs, size)

    def predict(self, kv_tokens: float) -> Prediction:
        size, budget, running, context = (int(self.need(n).value) for n in ("block_size", *_BY_CARD, "max_model_len"))
        try:
            config = SchedulerConfig(floor(kv_tokens / size), size, budget, running, context)
            return predict(config, self.lengths, self.concurrency)
        except SchedulingError as error:
            hint = "give shorter requests, a larger pool or a larger --max-model-len"
            raise LoadError(f"the load cannot run: {error}", hint) from error

    def prompts(self, found: Prediction) -> float:
        """Thousands of prompt tokens run, those recomputed after a preemption included."""
        return (found.scheduled_tokens - self.output_tokens + len(self.lengths)) / 1000

    def fit_prefill(self, arm: str) -> None:
        """The prefill time, unless given: what the decode steps leave of the time that the arm's throughput makes."""
        rate, name = self.facts.get(f"output_tok_s.{arm}"), f"step_ms.{arm}"
        if "prefill_ms" in self.facts or not rate or (rate.basis == "measured" and name not in self.facts):
            return
        kv, step = self.kv_tokens(arm), self.need(name)
        found = self.predict(kv.value)
        left = 1000 * self.output_tokens / rate.value - found.steps * step.value
        fit = _marked(left / self.prompts(found), rate, step, kv)
        if left >= 0:
            run = rate.basis == "measured"
            self.facts[f"prefill_ms.{arm}" if run else "prefill_ms"] = replace(fit, basis="fitted") if run else fit
        elif rate.basis == "given":
            slow = f"{arm}: {found.steps} steps of {step.value:g} ms take longer than {rate.value:g} tokens/s"
            raise LoadError(slow, "check --output-tok-s and --step-ms")

    def prefill_ms(self, arm: str) -> Figure | None:
        """Of 1000 prompt tokens: of all arms, or as fitted to graphs or eager, whichever the arm is like."""
        return self.get("prefill_ms") or self.get(f"prefill_ms.{_like(arm)}")

    def seconds(self, arm: str, pool: float = 1.0) -> Figure | None:
        """The load's time with `pool` times the KV pool; without prefill where its time is not known."""
        kv = self.kv_tokens(arm)
        found = self.predict(kv.value * pool)
        times = kv, self.get(f"step_ms.{arm}"), self.prefill_ms(arm) or Figure(0, "given")
        return _computed(lambda _, step, ms: (found.steps * step + self.prompts(found) * ms) / 1000, *times)

    def figures(self, arm: str, eager: dict[str, Figure | None] | None = None) -> dict[str, Figure | None]:
        """By name, in the order shown, what is known of an arm, and how it compares with `eager`'s."""

        def faster(pool: float) -> Figure | None:
            return _computed(lambda a, b: 100 * (b / a - 1), self.seconds(arm, pool), self.seconds("eager", pool))

        def break_even(change: float, eager: float, start_s: float, eager_start_s: float) -> float:
            saved_s = change / (100 + change) * self.output_tokens / len(self.lengths) / eager
            extra_s = max(start_s - eager_start_s, 0)
            return extra_s / saved_s if saved_s > 0 else inf if extra_s else 0

        kv, prefill, ran = self.kv_tokens(arm), self.prefill_ms(arm), arm in self.ran
        found = self.predict(kv.value)
        by_model = _computed(lambda s, _: self.output_tokens / s, self.seconds(arm), prefill)
        own = {
            RUNS: self.facts.get(f"runs.{arm}"),
            KV: kv,
            "queue overload": _computed(lambda n, kv: self.concurrency * n / kv, self.need("max_model_len"), kv),
            STEPS: _marked(found.steps, kv),
            REAL_STEPS: self.facts.get(f"steps.{arm}"),
            PROMPTS: _marked(1000 * self.prompts(found), kv),
            "running while requests wait": None if found.mean_running is None else _marked(found.mean_running, kv),
            "preemptions": _marked(found.preempted, kv),
            STEP_MS: self.get(f"step_ms.{arm}"),
            "prefill of 1000 tokens, ms": prefill,
            START: self.get(f"start_s.{arm}"),
            TOK_S: self.facts[f"output_tok_s.{arm}"] if ran else by_model,
            BY_MODEL: by_model if ran else None,
        }
        if eager is None:
            return own
        rates = own[TOK_S], eager[TOK_S]
        change = self.facts.get(f"change.{arm}") if ran else _computed(lambda a, b: 100 * (a / b - 1), *rates)
        starts = own[START], eager[START]
        if change and not ran and abs(change.value) <= 100 * RESOLUTION:
            change, starts = replace(change, how=_OPEN), (None, None)
        repaid = None if any(f and f.basis == "given" for f in starts) else self.facts.get(f"break_even.{arm}")
        return own | {
            GAIN: _computed(lambda own, eager: 100 * (1 - eager / own), own[STEPS], eager[STEPS]),
            CHANGE: change,
            NO_PREFILL: None if all(rates) else faster(1),
            LESS_KV: faster(1 - _KV_ERROR),
            MORE_KV: faster(1 + _KV_ERROR),
            BREAK_EVEN: repaid or _computed(break_even, change, eager[TOK_S], *starts),
        }


def _words(case: _Case, rows: dict[str, dict[str, Figure]]) -> Iterator[str]:
    """Sign and size, what pays, what is expected to be best."""

    def change(name: str) -> float:
        return 100 * (rows[name]["graphs"].value / rows[name]["eager"].value - 1)

    own, eager = (rows.get(REAL_STEPS, {}).get(arm) for arm in ("graphs", "eager"))
    real = f" (measured: {own.value:,.0f} for {eager.value:,.0f})" if own and eager else ""
    made = f"{change(STEPS):+.1f}% {STEPS}{real} and {change(PROMPTS):+.1f}% prompt tokens"
    yield f"Graphs' KV pool against eager's: {change(KV):+.1f}%. By the model that makes {made}."
    if case.untrimmed:
        yield f"No column graphs_trimmed: {case.untrimmed}."
    if change(STEPS):
        least = f"where a decode step is more than {rows[GAIN]['graphs'].value:.1f}% shorter than eager's"
        yield f"Prefill aside, graphs gain throughput {least}, and lose it where it is less."
    against = "Graphs as they come against eager:"
    if "graphs" in rows.get(NO_PREFILL, ()):
        first, last = rows[NO_PREFILL]["graphs"].value, -100 * change(PROMPTS) / (100 + change(PROMPTS))
        yield f"{against} {first:+.1f}% output tokens/s if prefill took no time, {last:+.1f}% if it took all."
        if first * last < 0:
            took, eagers = (rows[STEPS][arm].value * rows[STEP_MS][arm].value for arm in ("graphs", "eager"))
            turn = 1000 * (eagers - took) / (rows[PROMPTS]["graphs"].value - rows[PROMPTS]["eager"].value)
            yield f"The sign turns where 1000 prompt tokens take {turn:.0f} ms."
        yield "For size and what to set: --prefill-ms, or --output-tok-s of one arm."
        return
    if "graphs" not in rows.get(CHANGE, ()):
        yield "Sign open: give --step-ms of both arms (TPOT of a request alone is near enough)."
        return
    changes = {arm: rows[CHANGE][arm] for arm in ARMS if arm in rows[CHANGE]}
    gains, every = {arm: figure.value for arm, figure in changes.items()} | {"eager": 0.0}, _noise(*changes.values())
    found = changes["graphs"]
    ran = f"measured in the blocks of both; n = {found.n}, {found.how}" if case.ran else "expected, not measured"
    yield f"{against} {found.value:+.1f}% output tokens/s, {ran}."
    if calm := case.facts.get("calm.graphs"):
        yield f"Provisional: computed without the host's stalls, less than half of it is left, {calm.value:+.1f}%."
    if {"graphs", "eager"} <= rows.get(BY_MODEL, {}).keys():
        tests = [
            f"{arm} {model.value:,.0f} for {real.value:,.0f} measured ({100 * (model.value / real.value - 1):+.1f}%)"
            if (model := rows[BY_MODEL].get(arm))
            else f"{arm} none for {real.value:,.0f} measured (its steps are like neither's)"
            for arm, real in rows[TOK_S].items()
            if real.basis == "measured" and arm not in ("graphs", "eager")
        ]
        yield f"The model is fitted to graphs and eager; what tests it: {', '.join(tests) or 'no other arm was run'}."
    if found.how == _OPEN and {"graphs", "eager"} <= rows.get(START, {}).keys():
        why = f"not (n = {found.n})" if case.ran else f"within the model's error of {RESOLUTION:.1%}"
        yield f"Whether the longer start is repaid is not resolved, as the change is {why}."
    elif repaid := rows.get(BREAK_EVEN, {}).get("graphs"):
        after = f"repaid after {repaid.value:.0f} requests" if repaid.value < inf else "never repaid"
        yield (f"The longer start is {after}" if repaid.value else "Graphs start no later") + f"{_noise(repaid)}."
    chosen = next(arm for arm in ("eager", *ARMS) if gains.get(arm, -inf) >= max(gains.values()) - 100 * RESOLUTION)
    best = {
        "eager": f"--enforce-eager; no arm with graphs is faster by more than the model's error of {RESOLUTION:.1%}",
        "graphs": "graphs as they come",
        "graphs_trimmed": f"--max-cudagraph-capture-size={case.trim_to}, the next default size",
        "graphs_kv_matched": "a greater --gpu-memory-utilization, by what the log's line `CUDA graph memory profiling"
        " is enabled` names, if that memory is free",
    }[chosen]
    if chosen not in (*case.ran, "eager"):
        of = [row[chosen].value for name, row in rows.items() if name in (CHANGE, LESS_KV, MORE_KV) and chosen in row]
        run = "run, though not as given" if chosen in rows.get(RUNS, ()) else "not run"
        best += f" ({min(of):+.1f} to {max(of):+.1f}% against eager within 2% of the KV pools; {run})"
    lead = "No advice on fewer than three blocks; the model expects" if _OPEN in every else "Expected best"
    yield f"{lead}: {best}{every}."


def _noise(*figures: Figure) -> str:
    """On how many runs or blocks these rest at least, as it stands behind them; empty if on none."""
    n = _marked(0, *figures).n
    return "" if n is None else f"; n = {n}, " + (_OPEN if n < 3 else "the report tells what is resolved")


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
        lines += ["", *one.words, *one.warnings, *(f"assumed: {text}" for text in one.assumed), ""]
    legend = "m measured, f fitted to the arm's runs, g given, a assumed; c computed, c* from something assumed too"
    return "\n".join([*lines, legend])


def _number(name: str, value: float) -> str:
    if "%" in name or value == inf:
        return f"{value:+.1f}".replace("+inf", "never")
    return f"{value:,.0f}" if value >= 1000 or value == int(value) or name == BREAK_EVEN else f"{value:.4g}"
