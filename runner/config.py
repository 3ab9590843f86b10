"""Read and check campaign.toml.

`load_config` raises one ConfigError that lists every problem found, each with its key, its value and what is
allowed. Shapes and values are checked first; references between sections once these are right.
"""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from runner.config_checks import cross_check
from runner.config_model import CampaignFile, ModelSection
from runner.config_problems import explain
from runner.errors import ConfigError


class Config(CampaignFile):
    """A checked campaign, its sections by name. `path` and `text` are the file it was read from."""

    path: Path = Field(exclude=True)
    text: str = Field(exclude=True)

    @property
    def models(self) -> dict[str, ModelSection]:
        return {model.name: model for model in self.model}


def load_config(path: Path) -> Config:
    """The checked configuration in `path`. Raises ConfigError naming the file and every problem in it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", "name another with --config FILE") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line} is not UTF-8 (byte {error.start})", "save the file as UTF-8") from None
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """Like load_config, for a text already read; `path` only names it in messages."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", f"correct {path} and start again") from None
    try:
        parsed = CampaignFile.model_validate(raw)
        problems = cross_check(parsed)
    except ValidationError as error:
        problems = explain(error, raw)
    if problems:
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        raise ConfigError("\n  ".join([f"{path}: {count}:", *problems]), f"correct {path} and start again")
    return Config.model_construct(**dict(parsed), path=path, text=text)


def config_fingerprint(config: Config) -> dict[str, Any]:
    """Everything that decides what a run measures, as a JSON-able dict.

    Left out, so that they may change between sittings: suites, repetitions, estimates, timeouts, retries. A key that
    came with a later version is in it only where it is not what earlier versions did.
    """
    free: dict[str, Any] = {
        "campaign": {"repetitions"},
        "engine": {"timeouts", "retries"},
        "model": {"__all__": {"estimate"}},
        "suites": True,
    }
    fingerprint = config.model_dump(mode="json", exclude=free)
    fingerprint["models"] = {model["name"]: model for model in fingerprint.pop("model")}
    for arm in fingerprint["arms"].values():
        if arm["instruments"]:
            del arm["instruments"]
    return fingerprint


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Dotted keys that differ between two fingerprints. A model, arm or profile only in `new` is none."""
    before, after, missing = _flat(old), _flat(new), object()
    added = tuple(
        f"{section}.{name}."
        for section in ("models", "arms", "profiles")
        for name in new[section].keys() - old.get(section, {}).keys()
    )
    different = [key for key in before | after if before.get(key, missing) != after.get(key, missing)]
    return sorted(key for key in different if not key.startswith(added))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return flat
