"""What is wrong with a field's value, in gpudash's words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpudash.units import format_bytes, parse_size

OWN_SENTENCE = "gpudash"
"""Type of a pydantic error whose message is our own sentence."""

_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}

_KINDS = {
    "int": "give a whole number",
    "float": "give a number",
    "finite": "give a finite number",
    "bool": "give true or false",
    "string": "give text",
}
"""Beginning of a pydantic error type → what the field accepts."""


def flag(name: str) -> str:
    """The command-line option for field ``name``."""
    return f"--{name.replace('_', '-')}"


def did_you_mean(written: str, there: Iterable[str]) -> str:
    """A suggestion after an unknown name: " (did you mean training?)"; "" if no name is similar."""
    names = {name.casefold(): name for name in there}
    begun = [name for name in names if len(written) > 1 and name.startswith(written.casefold())]
    if len(begun) == 1:
        near = begun
    else:
        near = difflib.get_close_matches(written.casefold(), names, n=1)
    if near:
        return f" (did you mean {names[near[0]]}?)"
    return ""


def describe(problem: ErrorDetails, value: object, unit: str | None = None) -> str:
    """What is wrong with ``value``: the value, and its limit or an alternative.

    Args:
        problem: pydantic's error.
        value: the value as given.
        unit: unit of the field; with "bytes", limits are written as sizes.
    """
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if kind in _LIMITS and not _is_nan(value):
        name, relation = _LIMITS[kind]
        return f"{_shown(value, unit)}: {relation} {_limit(context[name], unit)}"
    if kind in _LIMITS:
        return f"{_shown(value, unit)}: {_KINDS['finite']}"
    if kind == "literal_error":
        return f"{value!r}: choose one of {_choices(context)}"
    what = _KINDS.get(kind.partition("_")[0])
    if what is None:
        message = problem["msg"]
        what = f"{message[0].lower()}{message[1:]}"
    elif unit == "bytes":
        what = "write a size, for example 512MiB or 8GiB"
    if value is None:  # an emptied field
        return what
    return f"{_shown(value, unit)}: {what}"


def invalid_fields(error: ValidationError, fields: Iterable[str] = ()) -> dict[str, str]:
    """Field → sentence for each error of pydantic; the field "" means the whole spec.

    Args:
        fields: existing names, to suggest one for an unknown name.
    """
    found: dict[str, str] = {}
    for problem in error.errors():
        name = ""
        if problem["loc"]:
            name = str(problem["loc"][0])
        if problem["type"] == OWN_SENTENCE:
            message = problem["msg"]
        elif name and problem["type"] == "extra_forbidden":
            message = f"there is no such field{did_you_mean(name, fields)}"
        elif name:
            message = describe(problem, problem["input"])
        else:
            message = problem["msg"].removeprefix("Value error, ")
            if ": " in message and message.split(": ")[0].isidentifier():
                name, message = message.split(": ", 1)
        if name:
            found[name] = f"{flag(name)} {message}"
        else:
            found[name] = message
    return found


def _choices(context: Mapping[str, Any]) -> str:
    """The choices in pydantic's "'a', 'b' or 'c'"."""
    return str(context["expected"]).replace(" or ", ", ").replace("'", "")


def _limit(limit: float, unit: str | None) -> str:
    if unit == "bytes":
        number, _, of = format_bytes(limit).partition(" ")
        return f"{float(number):g} {of}"
    if float(limit).is_integer():
        whole = f"{limit:.0f}"
    else:
        whole = f"{limit:g}"
    if unit:
        return f"{whole} {unit}"
    return whole


def _shown(value: object, unit: str | None) -> str:
    """A number or size as written; other text in quotes."""
    if unit == "bytes" and isinstance(value, int) and not isinstance(value, bool):
        return format_bytes(value)
    if not isinstance(value, str):
        return repr(value)
    parsers: tuple[Callable[[str], object], ...] = (float, parse_size)
    for parse in parsers:
        with suppress(ValueError):
            parse(value)
            return value
    return repr(value)


def _is_nan(value: object) -> bool:
    try:
        return math.isnan(float(value))  # type: ignore[arg-type]  # what no number is made of raises
    except (TypeError, ValueError, OverflowError):
        return False
