"""The shape of campaign.toml: frozen pydantic models, one a section. No reading, no cross-checks.

A string in `flags` is one flag with its values, as typed in a shell; it is split into arguments here.
"""

import math
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

NAME_PATTERN = r"^[a-z0-9_]+$"
INFINITE = "inf"  # request_rate: every prompt is ready at once, only the concurrency limits


class Section(BaseModel):
    """Strict (no silent conversion), no unknown keys, no NaN or infinity, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _split_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    arguments: list[str] = []
    for flag in flags:
        if not flag.startswith("-"):
            raise ValueError(f"{flag!r} must start with '-': write a flag and its values as one string")
        try:
            parts = shlex.split(flag) if re.search(r"\s", flag) else [flag]
        except ValueError as error:
            raise ValueError(f"{flag!r} cannot be split into arguments: {error}") from None
        if any(part.count("{") != part.count("}") for part in parts):
            raise ValueError(f"{flag!r} has blanks inside braces: quote the value as in a shell")
        arguments += parts
    return tuple(arguments)


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"must not repeat {', '.join(repeated)}")
    return values


def _request_rate(value: Any) -> float | str:
    if value == INFINITE and isinstance(value, str):
        return INFINITE
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError('must be a number of requests per second greater than 0, or "inf" in quotes')


def _relative(value: str) -> str:
    parts = Path(value).parts
    if Path(value).is_absolute() or not parts or ".." in parts or "\x00" in value:
        raise ValueError("must be a path below the models folder; say where that is with --models DIR")
    return value


Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=64)]
Count = Annotated[int, Field(gt=0, le=10_000_000)]
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
Flags = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_split_flags)]
Names = Annotated[tuple[Name, ...], Field(strict=False, min_length=1), AfterValidator(_unique)]
FolderBelowModels = Annotated[str, AfterValidator(_relative)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class CampaignSection(Section):
    name: Name
    seed: int = Field(ge=0, le=1_000_000)
    repetitions: int = Field(gt=0, le=99)


class ProbeSection(Section):
    input_tokens: Count = 1024
    output_tokens: Count = 8


class TimeoutsSection(Section):
    start_s: Seconds = 900.0
    silence_s: Seconds = 300.0  # no new log line during a start
    bench_s: Seconds = 1800.0
    stop_s: Seconds = 60.0


class EngineSection(Section):
    kind: Literal["vllm", "stand-in"] = "vllm"
    version: Literal["0.23.0"]  # log lines and files are read as this version writes them
    launcher: Literal["process", "container"] = "process"
    image: str | None = None
    memory_budget_gib: Annotated[float, Field(gt=0, le=10_000)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    max_model_len: Count
    pin_kv_blocks: bool = False
    flags: Flags = ()
    environment: dict[VariableName, VariableValue] = Field(default_factory=dict)
    probe: ProbeSection = ProbeSection()
    warmup_requests: int = Field(default=2, ge=0, le=1000)
    temperature: float = Field(default=0.0, ge=0, le=2)
    timeouts: TimeoutsSection = TimeoutsSection()
    retries: int = Field(default=2, ge=0, le=20)


class EstimateSection(Section):
    start_s: Seconds = 60.0
    cold_start_s: Seconds = 120.0
    weights_gib: Annotated[float, Field(gt=0, le=10_000)] = 70.0  # to download, for weights = "hub"
    window_s: dict[Name, Seconds] = Field(default_factory=dict)  # the load, by profile
    overhead_s: Seconds = 12.0  # of a run, outside start and load: probe, warm-up requests, stop, files


class ModelSection(Section):
    name: Name
    repository: str = Field(min_length=1)
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    weights: Literal["hub", "dummy"]
    directory: FolderBelowModels
    tokenizer: FolderBelowModels | None = None  # None: the model's own directory
    estimate: EstimateSection = EstimateSection()


class ArmSection(Section):
    flags: Flags
    instruments: bool = True  # False: no step trace, no METRICS_FLAG, no GPU samples, to see what these cost


class ProfileSection(Section):
    prompts: Count
    concurrency: Count
    request_rate: Annotated[float | Literal["inf"], PlainValidator(_request_rate)] = "inf"
    input_tokens: Count
    output_tokens: Count
    range_ratio: float = Field(default=0.0, ge=0, lt=1)

    @property
    def longest_tokens(self) -> int:
        """Input plus output tokens of the longest request that the range ratio allows."""
        return sum(math.ceil(n * (1 + self.range_ratio)) for n in (self.input_tokens, self.output_tokens))


class SuiteProduct(Section):
    models: Names
    arms: Names
    profiles: Names
    repetitions: int | None = Field(default=None, gt=0, le=99)  # None: campaign.repetitions
    order: Literal["shuffled", "abba"] = "shuffled"  # of arms in a block; abba: as listed and in reverse, by turns


Products = Annotated[tuple[SuiteProduct, ...], Field(strict=False, min_length=1)]


class CampaignFile(Section):
    """The TOML document as written."""

    campaign: CampaignSection
    engine: EngineSection
    model: Annotated[tuple[ModelSection, ...], Field(strict=False, min_length=1)]
    arms: dict[Name, ArmSection] = Field(alias="arm", min_length=1)
    profiles: dict[Name, ProfileSection] = Field(alias="profile", min_length=1)
    suites: dict[Name, Products] = Field(alias="suite", min_length=1)
