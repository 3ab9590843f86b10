"""Checks of campaign.toml beyond one key: references, lengths, flags and variables that the runner owns."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from itertools import product as product_of

from runner.config_model import CampaignFile, EngineSection
from runner.config_problems import RULES, suggest

SIZE_OF_BLOCK = "--block-size"
BLOCKS_FLAG = "--num-gpu-blocks-override"
SIZES_FLAG = "--cudagraph-capture-sizes"
LARGEST_FLAG = "--max-cudagraph-capture-size"
METRICS_FLAG = "--cudagraph-metrics"  # padding of every step, for the step trace
LENGTH_MARGIN_TOKENS = 16  # a re-encoded random prompt can come out a few tokens longer
REFERENCE = re.compile(r"\{([A-Za-z0-9_-]+)\.([A-Za-z0-9_]+)\}")
PRIME = "prime"  # third part of a prime's folder name, where a run has its profile

RESERVED_FLAGS, RESERVED_VARIABLES = RULES["flags"], RULES["variables"]  # each with the reason


def flag_name(argument: str) -> str:
    """`--max_model_len=4096` -> `--max-model-len`, as the engine's parser reads it."""
    name = argument.split("=", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _flag_groups(flags: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag's name and its arguments, the flag itself first."""
    starts = [place for place, argument in enumerate(flags) if argument.startswith("-")]
    for start, end in pairwise([*starts, len(flags)]):
        yield flag_name(flags[start]), list(flags[start:end])


def flag_values(flags: Sequence[str], name: str) -> list[str] | None:
    """Values given to the last `name` in `flags`, or None where it is absent."""
    given = [[*group[0].split("=", 1)[1:], *group[1:]] for flag, group in _flag_groups(flags) if flag == name]
    return given[-1] if given else None


def without_flag(flags: Sequence[str], name: str) -> tuple[str, ...]:
    """`flags` without every `name` and its values."""
    return tuple(argument for flag, group in _flag_groups(flags) if flag != name for argument in group)


def cross_check(file: CampaignFile) -> list[str]:
    """Every problem between sections of a file whose shape is right; empty when there is none."""
    return [*_engine(file.engine), *_models(file), *_arms(file), *_profiles(file), *_suites(file)]


def _engine(engine: EngineSection) -> Iterator[str]:
    budget, utilization = engine.memory_budget_gib, engine.gpu_memory_utilization
    if (budget is None) == (utilization is None):
        given = "both given" if budget is not None else "neither given"
        yield f"engine.memory_budget_gib, engine.gpu_memory_utilization: {given}; set exactly one of them"
    if engine.launcher == "container" and not engine.image:
        yield 'engine.image: missing; launcher = "container" needs an image, best with its digest'
    probe = engine.probe.input_tokens + engine.probe.output_tokens
    if probe > engine.max_model_len:
        yield f"engine.probe: {probe} tokens in all exceed engine.max_model_len = {engine.max_model_len}"
    yield from _reserved_flags("engine.flags", engine.flags)
    if any(REFERENCE.search(argument) for argument in engine.flags):
        yield "engine.flags: a measured value may stand only in the flags of an arm"
    for variable in engine.environment:
        if variable in RESERVED_VARIABLES or variable.startswith("CAMPAIGN_"):
            reason = RESERVED_VARIABLES.get(variable, "CAMPAIGN_ variables belong to the runner")
            yield f"engine.environment.{variable}: not to be set here; {reason}"


def _models(file: CampaignFile) -> Iterator[str]:
    for name, times in Counter(model.name for model in file.model).items():
        if times > 1:
            yield f'[[model]] name = "{name}": used {times} times; every model needs a name of its own'
    for model in file.model:
        if model.weights == "dummy" and model.tokenizer is None and file.engine.kind == "vllm":
            yield f'model[{model.name}].tokenizer: missing; weights = "dummy" needs a tokenizer folder'
        for profile in model.estimate.window_s:
            if profile not in file.profiles:
                key = f"model[{model.name}].estimate.window_s.{profile}"
                yield f"{key}: no such profile; {suggest(profile, file.profiles)}"


def _arms(file: CampaignFile) -> Iterator[str]:
    for name, arm in file.arms.items():
        key = f"arm.{name}.flags"
        yield from _reserved_flags(key, arm.flags)
        yield from _capture_sizes(key, arm.flags)
        blocks = flag_values(arm.flags, BLOCKS_FLAG)
        if blocks is not None and not (len(blocks) == 1 and re.fullmatch(r"[1-9][0-9]*|\{.*\}", blocks[0])):
            yield f"{key}: {BLOCKS_FLAG} takes one whole number above 0 or {{ARM.num_gpu_blocks}}"
        for argument in arm.flags:
            for source, figure in REFERENCE.findall(argument):
                problem = _reference(file, name, source, figure)
                if problem is None and not any(value in argument for value in blocks or ()):
                    problem = f"a measured block count may stand only in {BLOCKS_FLAG}"
                if problem is not None:
                    yield f"{key}: {{{source}.{figure}}}: {problem}"


def _reference(file: CampaignFile, arm: str, source: str, figure: str) -> str | None:
    if figure != "num_gpu_blocks":
        return f"no such measured value; {suggest(figure, ['num_gpu_blocks'])}"
    if source == arm:
        return "an arm cannot take its own count; name another arm, or set engine.pin_kv_blocks"
    if source not in file.arms:
        return f"no such arm; {suggest(source, file.arms)}"
    if flag_values(file.arms[source].flags, BLOCKS_FLAG) is not None:
        return f"{source} sets {BLOCKS_FLAG} itself; name the arm that its count comes from"
    if flag_values(file.arms[source].flags, SIZE_OF_BLOCK) != flag_values(file.arms[arm].flags, SIZE_OF_BLOCK):
        return f"{source} and {arm} differ in {SIZE_OF_BLOCK}, as many blocks hold other tokens; set it in engine.flags"
    return None


def _capture_sizes(key: str, flags: Sequence[str]) -> Iterator[str]:
    sizes, largest = flag_values(flags, SIZES_FLAG), flag_values(flags, LARGEST_FLAG)
    for name, values in ((SIZES_FLAG, sizes), (LARGEST_FLAG, largest)):
        if values is not None and not (values and all(re.fullmatch("[1-9][0-9]*", v) for v in values)):
            yield f"{key}: {name} takes whole numbers above 0"
            return
    if sizes and largest and max(map(int, sizes)) != int(largest[-1]):
        yield f"{key}: {LARGEST_FLAG} {largest[-1]} is not the largest of {SIZES_FLAG}; drop it"


def _reserved_flags(key: str, flags: Sequence[str]) -> Iterator[str]:
    for argument in flags:
        name = flag_name(argument)
        if not name.startswith("--") or len(name) < 4:
            continue
        # the engine's parser takes abbreviations, so --max-model is --max-model-len
        owner = next((flag for flag in sorted(RESERVED_FLAGS, key=len) if flag.startswith(name)), None)
        if owner:
            yield f"{key}: {argument}: {owner} is not to be given here; {RESERVED_FLAGS[owner]}"


def _profiles(file: CampaignFile) -> Iterator[str]:
    limit = file.engine.max_model_len
    for name, profile in file.profiles.items():
        if name == PRIME:
            yield f"profile.{PRIME}: this name is taken by the first start of an arm; choose another"
        if profile.concurrency > profile.prompts:
            key = f"profile.{name}.concurrency = {profile.concurrency}"
            yield f"{key}: must be at most profile.{name}.prompts = {profile.prompts}"
        longest = profile.longest_tokens
        if longest + LENGTH_MARGIN_TOKENS > limit:
            yield (
                f"profile.{name}: input_tokens + output_tokens reach {longest} (range_ratio {profile.range_ratio:g}); "
                f"with a margin of {LENGTH_MARGIN_TOKENS} they must fit engine.max_model_len = {limit}"
            )


def _suites(file: CampaignFile) -> Iterator[str]:
    orders: dict[tuple[str, str], str] = {}
    known = {"models": [model.name for model in file.model], "arms": [*file.arms], "profiles": [*file.profiles]}
    for name, products in file.suites.items():
        for number, product in enumerate(products, 1):
            for key, allowed in known.items():
                for value in getattr(product, key):
                    if value not in allowed:
                        yield f'suite.{name}[{number}].{key}: no such name "{value}"; {suggest(value, allowed)}'
            for cell in product_of(product.models, product.profiles):
                if orders.setdefault(cell, product.order) != product.order:
                    yield f"suite.{name}[{number}].order: {'.'.join(cell)} has the order {orders[cell]} elsewhere"
