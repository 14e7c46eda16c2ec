"""The rows of who allocated what: a pure function of an explanation's owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpudash.memory.explanation import Explanation, Owner, short
from gpudash.memory.explanation_text import growth_words, place
from gpudash.memory.wording import innermost
from gpudash.units import format_bytes, format_count

GROUPS = ("call site", "module", "file", "category")
"""What rows may stand for."""


@dataclass(frozen=True)
class OwnerRow:
    """A row: its cells, and the largest of the call sites that it stands for."""

    cells: tuple[str, ...]
    owner: Owner | None


@dataclass(frozen=True)
class Choice:
    """What of the owners is shown.

    Attributes:
        group: one of `GROUPS`.
        category: only of this one; "" for all.
        search: only those with this text in their place, module or category.
        by_total: ordered by what a line and all it called allocated, instead of by its own.
    """

    group: str = GROUPS[0]
    category: str = ""
    search: str = ""
    by_total: bool = False


def owner_rows(explanation: Explanation, choice: Choice) -> list[OwnerRow]:
    """Rows of ``explanation``, the largest first."""
    key = _KEYS[choice.group]
    groups: dict[str, list[Owner]] = defaultdict(list)
    for owner in explanation.owners:
        if _wanted(owner, choice):
            groups[key(owner)].append(owner)
    rows = [(owners, _row(name, owners, choice)) for name, owners in groups.items()]
    rows.sort(key=lambda row: -_size(row[0], choice))
    found = [row for _owners, row in rows]
    if explanation.rest_owners and not choice.category and not choice.search:
        words = f"{format_count(explanation.rest_owners)} more call sites"
        found.append(OwnerRow((format_bytes(explanation.rest_bytes), "", "", "", "", words), None))
    return found


def _wanted(owner: Owner, choice: Choice) -> bool:
    if choice.category and owner.category != choice.category:
        return False
    words = f"{owner.file} {owner.line} {owner.name} {owner.module} {owner.category} {owner.text}".lower()
    return choice.search.lower() in words


def _size(owners: Sequence[Owner], choice: Choice) -> int:
    return _total(owners) if choice.by_total else sum(owner.bytes for owner in owners)


def _total(owners: Sequence[Owner]) -> int:
    """Of one line its total; of several, which may contain one another, no less than any and than their own."""
    return max(sum(owner.bytes for owner in owners), *(owner.total_bytes for owner in owners))


def _row(name: str, owners: Sequence[Owner], choice: Choice) -> OwnerRow:
    largest = max(owners, key=lambda owner: owner.bytes)
    own = sum(owner.bytes for owner in owners)
    growth = sum(owner.growth_per_step or 0.0 for owner in owners)
    what = ", ".join(dict.fromkeys(owner.category for owner in owners))
    modules = {innermost(owner.module) for owner in owners}
    if choice.group == "call site" and len(modules) == 1 and largest.module:
        what = f"{innermost(largest.module)}: {what}"
    cells = (
        format_bytes(own),
        format_bytes(_total(owners)),
        format_count(sum(owner.count for owner in owners)),
        growth_words(growth or None),
        "" if choice.group == "category" else what,
        name,
    )
    return OwnerRow(cells, largest)


def _call_site(owner: Owner) -> str:
    return f"{place(owner)}  {owner.text}" if owner.text else place(owner)


def _file(owner: Owner) -> str:
    return "no stack recorded" if owner.file is None else short(owner.file)


_KEYS: dict[str, Callable[[Owner], str]] = {
    "call site": _call_site,
    "module": lambda owner: owner.module or "outside of modules",
    "file": _file,
    "category": lambda owner: owner.category,
}
