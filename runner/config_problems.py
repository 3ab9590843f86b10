"""Turn pydantic's errors on campaign.toml into lines that name the key, the value and what is allowed."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from runner.config_model import CampaignFile

_NAME_RULE = "a name may hold a-z, 0-9 and _ only: it becomes part of a folder name"
_PATTERN_RULES = {"revision": "must be a full commit hash: 40 characters 0-9, a-f"}


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
    return [_line(detail, raw) for detail in error.errors(include_url=False) if not _follows(detail)]


def _follows(detail: ErrorDetails) -> bool:
    """Whether this is only pydantic's note that no valid item is left in an array with wrong items."""
    return detail["type"] == "too_short" and bool(detail["input"])


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
    return f"{key} = {show(detail['input'])}: {_rule(detail, str(location[-1]))}"


def _rule(detail: ErrorDetails, field: str) -> str:
    kind = detail["type"]
    if kind == "string_pattern_mismatch":
        rule = _PATTERN_RULES.get(field, _NAME_RULE)
        return "must not hold NUL" if "environment" in detail["loc"] else rule
    rules = {
        "string_type": "must be a string, in quotes",
        "int_type": "must be a whole number, without quotes",
        "float_type": "must be a number, without quotes",
        "bool_type": "must be true or false, without quotes",
        "finite_number": "must be a finite number",
        "tuple_type": "must be an array, in [ ]",
        "dict_type": "must be a table",
        "model_type": "must be a table",
        "too_short": "must not be empty",
        "string_too_short": "must not be empty",
    }
    if kind in rules:
        return rules[kind]
    message = detail["msg"].removeprefix("Value error, ")
    return message.replace("Input should be", "must be").replace("String should have", "must have")


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
    """Names of the keys allowed in the table at `location`."""
    kind: Any = CampaignFile
    for step in location:
        kind = _unwrap(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(step)].annotation
        else:
            arguments = get_args(kind)
            kind = arguments[1] if get_origin(kind) is dict else arguments[0]
    kind = _unwrap(kind)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _unwrap(kind: Any) -> Any:
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        kind = next(argument for argument in get_args(kind) if argument is not type(None))
    return kind
