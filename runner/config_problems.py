"""Turn pydantic's errors on campaign.toml into lines that name the key, the value and what is allowed."""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from runner.config_model import CampaignFile, Section

_NAME_RULE = "a name may hold a-z, 0-9 and _ only: it becomes part of a folder name"
_FILE = Path(__file__).with_name("config_rules.toml")
RULES: dict[str, dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))


def suggest(wrong: str, allowed: Iterable[str]) -> str:
    """'did you mean X? allowed: …' for a name that is none of `allowed`."""
    choices = list(allowed)
    close = difflib.get_close_matches(wrong, choices, n=1)
    return (f"did you mean {close[0]}? " if close else "") + f"allowed: {', '.join(choices)}"


def show(value: Any) -> str:
    """`value` as TOML would say it, cut to a readable length."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def explain(error: ValidationError, raw: dict[str, Any]) -> list[str]:
    """One line a problem, in the order of the file's sections."""
    # of an array whose items are all wrong, pydantic also says that it is too short
    details = [d for d in error.errors(include_url=False) if d["type"] != "too_short" or not d["input"]]
    return [_line(detail, raw) for detail in details]


def _line(detail: ErrorDetails, raw: dict[str, Any]) -> str:
    location = detail["loc"]
    key, kind = dotted(location, raw), detail["type"]
    if kind == "extra_forbidden":
        return f"{key}: unknown key; {suggest(str(location[-1]), _fields_at(location[:-1]))}"
    if kind == "missing":
        return f"{key}: missing; this key is required"
    if location[-1] == "[key]":
        rule = "not a name of an environment variable" if "environment" in location else _NAME_RULE
        return f"{dotted(location[:-2], raw)}: {show(location[-2])}: {rule}"
    if kind == "string_pattern_mismatch":
        rule = "must not hold NUL" if "environment" in location else _NAME_RULE
        if location[-1] == "revision":
            rule = "must be a full commit hash: 40 characters 0-9, a-f"
    else:
        message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        rule = RULES["kinds"].get(kind, message.replace("String should have", "must have"))
    return f"{key} = {show(detail['input'])}: {rule}"


def dotted(location: tuple[int | str, ...], raw: Any) -> str:
    """The key as a reader finds it; an item of [[model]] by its name, of other arrays by its place from 1."""
    parts: list[str] = []
    value = raw
    for step in location:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
            name = value.get("name") if isinstance(value, dict) else None
            parts[-1] += f"[{name}]" if isinstance(name, str) else f"[{step + 1}]"
        else:
            value = value.get(step) if isinstance(value, dict) else None
            parts.append(step)
    return ".".join(parts) or "(top level)"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """Names of the keys allowed in the table at `location`: the document, a section, or a table within one."""
    section: type[Section] = CampaignFile
    for step in location:  # a place in an array, or a name that the file gives, is no field and stays in its section
        section = _section_in(_fields(section).get(str(step))) or section
    return list(_fields(section))


def _fields(section: type[Section]) -> dict[str, Any]:
    """Types by key as the file spells it."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _section_in(annotation: Any) -> type[Section] | None:
    """The section that a field holds, itself or in an array or a table; None: a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
