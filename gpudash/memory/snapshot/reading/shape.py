"""What a value of a file has to be: checks that say, in words, where something is another thing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LARGEST = 2**63 - 1

_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that would steer a terminal or turn the order of a line around, and halves of characters."""


class ShapeError(ValueError):
    """A value is not what it is in a memory snapshot: what, where, and what it is instead, without a full stop."""


def shown(value: object) -> str:
    """A value in a few words, however large or deep it is."""
    if isinstance(value, str):
        return repr(value[:40]) if len(value) <= 40 else f"{value[:40]!r}..."
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length():,} bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def readable(text: str) -> str:
    """A text of a file with the replacement character for what no name has, and what could mislead who reads it."""
    return text if text.isascii() and text.isprintable() else _UNSHOWN.sub("\ufffd", text)


def as_list(value: object, where: str) -> list[Any] | tuple[Any, ...]:
    """The value, a list or a tuple."""
    if not isinstance(value, list | tuple):
        raise ShapeError(f"{where} is {shown(value)}, not a list")
    return value


def as_dict(value: object, where: str) -> dict[str, Any]:
    """The value, a dictionary."""
    if not isinstance(value, dict):
        raise ShapeError(f"{where} is {shown(value)}, not a dictionary")
    return value


def integer(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """An integer of at most 64 bits; the default where it is missing."""
    value = raw.get(key)
    value = default if value is None else value
    if type(value) is not int:
        raise ShapeError(f"`{key}` of {where} is {shown(value)}, not an integer")
    if abs(value) > LARGEST:
        raise ShapeError(f"`{key}` of {where} is {shown(value)}, more than 64 bits hold")
    return value


def count(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """An integer that is not negative: a size, an address, a time."""
    value = integer(raw, key, where, default)
    if value < 0:
        raise ShapeError(f"`{key}` of {where} is negative")
    return value


def text(raw: Mapping[str, Any], key: str, where: str) -> str:
    """A text."""
    value = raw.get(key)
    if not isinstance(value, str):
        raise ShapeError(f"`{key}` of {where} is {shown(value)}, not a text")
    return value


def pool_id(value: object, where: str) -> tuple[int, ...]:
    """The identity of a pool: integers, two in every known file."""
    if not isinstance(value, list | tuple) or not 0 < len(value) <= 8 or {*map(type, value)} != {int}:
        raise ShapeError(f"the pool of {where} is {shown(value)}, not two integers")
    if any(abs(part) > LARGEST for part in value):
        raise ShapeError(f"the pool of {where} holds a number of more than 64 bits")
    return tuple(value)
