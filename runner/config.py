"""Read and check campaign.toml.

`load_config` raises one ConfigError that lists every problem found, each with its key, its value and what is
allowed. Shapes and values are checked first; references between sections once these are right.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from runner.config_checks import cross_check
from runner.config_model import (
    INFINITE,
    ArmSection,
    CampaignFile,
    CampaignSection,
    Config,
    EngineSection,
    EstimateSection,
    ModelSection,
    ProbeSection,
    ProfileSection,
    SuiteProduct,
    TimeoutsSection,
)
from runner.config_problems import explain
from runner.errors import ConfigError

__all__ = [
    "INFINITE",
    "ArmSection",
    "CampaignSection",
    "Config",
    "EngineSection",
    "EstimateSection",
    "ModelSection",
    "ProbeSection",
    "ProfileSection",
    "SuiteProduct",
    "TimeoutsSection",
    "changed_keys",
    "config_fingerprint",
    "load_config",
    "parse_config",
]


def load_config(path: Path) -> Config:
    """The checked configuration in `path`. Raises ConfigError naming the file and every problem in it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "give the configuration with --config FILE") from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{path}: cannot be read: {reason}", "check the path and its rights") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        where = f"{path}: line {line} is not UTF-8 (byte {error.start})"
        raise ConfigError(where, "save the file as UTF-8") from None
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """Like load_config, for a text already read; `path` only names it in messages."""
    try:
        raw = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", "correct the line named above") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply", "remove the extra brackets") from None
    try:
        parsed = CampaignFile.model_validate(raw)
    except ValidationError as error:
        raise _refusal(path, explain(error, raw)) from None
    problems = cross_check(parsed)
    if problems:
        raise _refusal(path, problems)
    return Config(
        campaign=parsed.campaign,
        engine=parsed.engine,
        models={model.name: model for model in parsed.model},
        arms=parsed.arm,
        profiles=parsed.profile,
        suites=parsed.suite,
        path=path,
        text=text,
    )


def _refusal(path: Path, problems: list[str]) -> ConfigError:
    count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
    return ConfigError("\n  ".join([f"{path}: {count}:", *problems]), f"correct {path} and start again")


def config_fingerprint(config: Config) -> dict[str, Any]:
    """Everything that decides what a run measures, as a JSON-able dict in a fixed order.

    Left out, so that they may change between sittings: suites, repetitions, estimates, timeouts, retries.
    """
    campaign = {"name": config.campaign.name, "seed": config.campaign.seed}
    engine = config.engine.model_dump(mode="json", exclude={"timeouts", "retries"})
    engine["environment"] = dict(sorted(config.engine.environment.items()))
    return {
        "campaign": campaign,
        "engine": engine,
        "models": _dump(config.models),
        "arms": _dump(config.arms),
        "profiles": _dump(config.profiles),
    }


def _dump(sections: Mapping[str, BaseModel]) -> dict[str, Any]:
    return {name: sections[name].model_dump(mode="json", exclude={"estimate"}) for name in sorted(sections)}


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Dotted keys that differ between two fingerprints. A model, arm or profile only in `new` is none."""
    before, after = _flat(old), _flat(new)
    added = tuple(
        f"{section}.{name}."
        for section in ("models", "arms", "profiles")
        for name in new.get(section, {})
        if name not in old.get(section, {})
    )
    missing = object()
    return [
        key
        for key in sorted(before | after)
        if before.get(key, missing) != after.get(key, missing) and not key.startswith(added)
    ]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: list(value) if isinstance(value, tuple) else value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return flat
