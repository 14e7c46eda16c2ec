"""Which GPUs the overview shows, in what order and groups; and when that order may change. Pure.

Figures change every second, places may not: a cell that moves away under the pointer is opened by mistake. So figures
are drawn in place at every answer, while a new order is taken only

* at once, when the user asks for it: another search, sorting, grouping or filter, or "Sort now";
* else at most every `RESORT_S`, only when a GPU has passed another by more than `ENOUGH`, and not while the pointer or
  the keyboard is at work in the grid. Meanwhile new GPUs come last in their group, and the order is said to be old.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from gpudash.ui.fleet.words import Level, short_name
from gpudash.ui.widgets.fuzzy import rank

if TYPE_CHECKING:
    from gpudash.session.fleet import FleetGpu

Sort = Literal["fullness", "host", "utilisation", "temperature", "power"]
Group = Literal["none", "machine", "product", "exporter"]

SORTS: tuple[Sort, ...] = get_args(Sort)
GROUPS: tuple[Group, ...] = get_args(Group)

RESORT_S = 10.0
"""Seconds that an order is kept at least, unless the user asks for another."""

ENOUGH: Mapping[Sort, float] = {"fullness": 0.02, "host": 0.0, "utilisation": 0.1, "temperature": 2.0, "power": 10.0}
"""By how much a GPU must have passed one that stands before it for a new order to be worth the unrest."""

_SortKey = tuple[float, tuple[tuple[int, str], ...], int, str]

_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What the user asked to see.

    Attributes:
        query: words that machine, number, product, UUID or run must hold.
        sort: what comes first.
        group: what stands together.
        only_warnings: leave out GPUs without a warning.
    """

    query: str = ""
    sort: Sort = "fullness"
    group: Group = "none"
    only_warnings: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """GPUs that stand together, under a title ("" without grouping)."""

    title: str
    keys: tuple[str, ...]


def arrange(gpus: Sequence[FleetGpu], wanted: Arrangement, levels: Mapping[str, Level]) -> tuple[Section, ...]:
    """The GPUs that are shown, in order; a group stands where the first of its GPUs would.

    Args:
        gpus: all of the fleet.
        wanted: what the user asked to see.
        levels: GPUs with a warning.
    """
    shown = [gpu for gpu in gpus if not wanted.only_warnings or gpu.key in levels]
    found = found_by(wanted.query, sorted(shown, key=_sorting(wanted.sort)))
    groups: dict[str, list[str]] = {}
    for gpu in found:
        groups.setdefault(group_of(gpu, wanted.group), []).append(gpu.key)
    return tuple(Section(title, tuple(keys)) for title, keys in groups.items())


def group_of(gpu: FleetGpu, group: Group) -> str:
    """The title of the group that ``gpu`` stands in."""
    if group == "none":
        return ""
    named: dict[Group, str] = {"machine": gpu.host, "product": gpu.product, "exporter": gpu.exporter}
    return named[group] or "not reported"


def found_by(query: str, gpus: Sequence[FleetGpu]) -> list[FleetGpu]:
    """The GPUs that hold every word of ``query``, in their order; where none does, those it may abbreviate, best first.

    Nobody who types "node-07" wants what merely holds these letters somewhere, as long as a node-07 is there; and
    nobody abbreviates a UUID.
    """
    words = query.casefold().split()
    if not words:
        return list(gpus)
    entries = [(f"{gpu.host} {short_name(gpu)}", f"{gpu.product} {gpu.run}") for gpu in gpus]
    texts = [f"{name} {place} {gpu.uuid}".casefold() for (name, place), gpu in zip(entries, gpus, strict=True)]
    literal = [gpu for gpu, text in zip(gpus, texts, strict=True) if all(word in text for word in words)]
    return literal or [gpus[place] for place in rank(query, entries)]


def sort_value(gpu: FleetGpu, sort: Sort) -> float:
    """What ``gpu`` is sorted by, the highest first; -inf where it is not known."""
    values = {
        "fullness": gpu.fullness,
        "host": 0.0,
        "utilisation": gpu.utilisation,
        "temperature": gpu.sensors.get("temperature_c"),
        "power": gpu.sensors.get("power_w"),
    }
    value = values[sort]
    return -math.inf if value is None or math.isnan(value) else value


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts node-2 before node-10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(text.casefold()))


def _sorting(sort: Sort) -> Callable[[FleetGpu], _SortKey]:
    def key(gpu: FleetGpu) -> _SortKey:
        return -sort_value(gpu, sort), natural(gpu.host), -1 if gpu.index is None else gpu.index, gpu.uuid

    return key


def passed(keys: Sequence[str], gpus: Mapping[str, FleetGpu], sort: Sort) -> bool:
    """Whether a GPU has passed one that stands before it by enough to be worth another order."""
    lowest = math.inf
    for key in keys:
        value = sort_value(gpus[key], sort)
        if value > lowest and value - lowest > ENOUGH[sort]:
            return True
        lowest = min(lowest, value)
    return False


class Order:
    """Keeps the order that is shown from one answer to the next.

    Attributes:
        sections: what is shown.
        taken_s: when that order was taken.
        old: whether another order is due that is held back.
    """

    def __init__(self) -> None:
        self.sections: tuple[Section, ...] = ()
        self.taken_s = -math.inf
        self.old = False
        self._wanted: Arrangement | None = None

    def forget(self) -> None:
        """Take a new order at the next `update`, whatever is going on."""
        self._wanted = None

    def update(
        self, gpus: Sequence[FleetGpu], wanted: Arrangement, levels: Mapping[str, Level], now_s: float, *, busy: bool
    ) -> bool:
        """Take in a new answer; whether cells have come, gone or moved.

        Args:
            gpus: all of the fleet.
            wanted: what the user asked to see.
            levels: GPUs with a warning.
            now_s: any clock, in seconds.
            busy: whether the pointer or the keyboard is at work in the grid.
        """
        fresh = arrange(gpus, wanted, levels)
        asked = wanted != self._wanted
        self._wanted = wanted
        if asked or not self.sections:
            return self._take(fresh, now_s)
        if fresh == self.sections:
            self.old = False
            return False
        by_key = {gpu.key: gpu for gpu in gpus}
        kept = self._kept(fresh, by_key, wanted)
        due = _members(fresh) != _members(self.sections) or any(
            passed(section.keys, by_key, wanted.sort) for section in kept
        )
        if due and not busy and now_s - self.taken_s >= RESORT_S:
            return self._take(fresh, now_s)
        self.old = due
        changed = kept != self.sections
        self.sections = kept
        return changed

    def _take(self, fresh: tuple[Section, ...], now_s: float) -> bool:
        changed = fresh != self.sections
        self.sections, self.taken_s, self.old = fresh, now_s, False
        return changed

    def _kept(
        self, fresh: tuple[Section, ...], by_key: Mapping[str, FleetGpu], wanted: Arrangement
    ) -> tuple[Section, ...]:
        """The shown order without the GPUs that are gone, those that came last in their groups."""
        shown = {key for section in self.sections for key in section.keys}
        groups = {
            section.title: [
                key for key in section.keys if key in by_key and group_of(by_key[key], wanted.group) == section.title
            ]
            for section in self.sections
        }
        for section in fresh:
            groups.setdefault(section.title, []).extend(key for key in section.keys if key not in shown)
        return tuple(Section(title, tuple(keys)) for title, keys in groups.items() if keys)


def _members(sections: Sequence[Section]) -> set[str]:
    return {key for section in sections for key in section.keys}
