"""``resources/guide/json.md`` as a check of what the commands print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpudash.system.files import resource

ROW = re.compile(r"^\| `(?P<key>\w+)` \|(?P<type>[^|]+)\|[^|]*\|(?P<only>[^|]*)\|$")


class Key(NamedTuple):
    type: str
    optional: bool


def sections() -> Iterator[tuple[str, dict[str, Key]]]:
    for part in resource("guide", "json.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [line for line in lines if line.startswith("| `")]
        found = [match for match in map(ROW.match, rows) if match is not None]
        assert len(found) == len(rows), title
        yield title, {row["key"]: Key(row["type"].strip(), bool(row["only"].strip())) for row in found}


PAGE = dict(sections())
OF_EVERY = PAGE["Every document"]
PLAIN = {"text": str, "truth": bool, "whole": int, "object": dict}


def problems(value: Any, of: str, where: str) -> list[str]:
    """What of a value is not as the page says; ``of``: a type of the page."""
    if of.endswith("null") and value is None:
        return []
    if of == "any":
        return []
    of = of.removesuffix(" or null")
    for many in ("list of ", "map of "):
        if of.startswith(many):
            if not isinstance(value, list if many == "list of " else dict):
                return [f"{where} is no {of}: {value!r}"]
            inside = enumerate(value) if isinstance(value, list) else value.items()
            return [told for key, item in inside for told in problems(item, of.removeprefix(many), f"{where}[{key}]")]
    if of == "number":
        right = (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("nan", "inf", "-inf")
        return [] if right else [f"{where} is no number: {value!r}"]
    if of in PLAIN:
        right = isinstance(value, PLAIN[of]) and not (of == "whole" and isinstance(value, bool))
        return [] if right else [f"{where} is no {of}: {value!r}"]
    return keys_of(value, PAGE[of], where)


def keys_of(value: Any, keys: dict[str, Key], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where} is no object: {value!r}"]
    told = [f"{where}.{key} is not on the page" for key in value if key not in keys]
    told += [f"{where}.{key} is missing" for key, said in keys.items() if key not in value and not said.optional]
    for key, said in keys.items():
        if key in value:
            told += problems(value[key], said.type, f"{where}.{key}")
    return told


def undescribed(arguments: Sequence[str], document: dict[str, Any]) -> list[str]:
    """What of the document that ``gpudash`` printed for these arguments is not as the page says."""
    section = f"gpudash {arguments[0]}"
    if arguments[0] == "open":
        section += " TRACE"
    if "--known" in arguments:
        section += " --known"
    if "machines" in document:
        section += " of several machines"
    if "changes" in document:
        section += " A B"
    if section == "gpudash runs" and "recordings" not in document and "memory" in document:
        section += " FILE"
    if "serve" in arguments and "error" not in document:
        section += " --task serve"
        if "gpu_layers" in document:
            section += " of a GGUF file"
    elif section == "gpudash estimate" and "reason" in document and "error" in document:
        section += ", without an answer"
    elif set(document) <= {"format", "status", "error"}:
        section = "Failure"
    return keys_of(document, OF_EVERY | PAGE[section], section)
