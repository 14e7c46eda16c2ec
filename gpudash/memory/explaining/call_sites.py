"""Which lines of a program allocated what is live, and which of them leave something behind at every step."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpudash.memory.explaining.memory_state import Frame, Holding, is_library, site_of
from gpudash.telemetry.explanation import Growth, Owner, StackLine, site_name

SourceLine = Callable[[str, int], str]
"""File and line → the text of that line, "" when it cannot be read."""

MOST_OWNERS = 40
"""Call sites that are told one by one; what the others hold is added up."""

FEWEST_STEPS = 4
"""Steps in which a line must have left something behind before it is said to grow: two may be a double buffer, and
three a pipeline."""

SHARE_OF_STEPS = 0.5
"""Part of the steps since the first that must have left something behind."""

SHARE_OF_RUN = 2 / 3
"""Part of the run's steps that must have passed since the first: of what is let go now and then, such as at the end of
each epoch, as much as a half of all steps is live."""

LIKE_THE_MEDIAN = 0.5
"""How far from the median the bytes of a step may lie, as a part of it, to count as similar."""

SHARE_ALIKE = 0.75
"""Part of the steps whose bytes must be similar."""


def no_source(_file: str, _line: int) -> str:
    """A `SourceLine` where no files are read."""
    return ""


def library_of(stack: Sequence[Frame]) -> Frame | None:
    """The innermost line of a library that the program's own line called; ``None`` when it called torch itself."""
    inner = next((frame for frame in stack if not is_library(frame)), None)
    return None if inner is None or inner == site_of(stack) else inner


_Key = tuple[Frame | None, Frame | None, str, str]
"""The program's line, that of a library it called, the module and the category."""


@dataclass(slots=True)
class _Group:
    bytes: int = 0
    count: int = 0
    first_step: int = 0
    last_step: int = 0
    largest: Holding | None = None

    def add(self, holding: Holding) -> None:
        steps = (holding.step,) if not self.count else (holding.step, self.first_step)
        self.first_step, self.last_step = min(steps), max(self.last_step, holding.step)
        self.bytes += holding.bytes
        self.count += holding.count
        if self.largest is None or holding.bytes > self.largest.bytes:
            self.largest = holding


@dataclass(slots=True)
class _Sites:
    """What `of` found; frames as (file, line)."""

    groups: dict[_Key, _Group] = field(default_factory=lambda: defaultdict(_Group))
    totals: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))


def owners(
    holdings: Iterable[Holding], growing: Sequence[Growth] = (), source: SourceLine = no_source
) -> tuple[tuple[Owner, ...], int, int]:
    """Call sites, the largest first; how many more there are, and their bytes."""
    sites = _Sites()
    for holding in holdings:
        key = site_of(holding.stack), library_of(holding.stack), holding.module, holding.category
        sites.groups[key].add(holding)
        for place in {(frame.file, frame.line) for frame in holding.stack if not is_library(frame)}:
            sites.totals[place] += holding.bytes
    ordered = sorted(sites.groups.items(), key=lambda item: -item[1].bytes)
    rates = _rates(ordered, growing)
    told = tuple(_owner(*key, group, sites.totals, rates.get(key), source) for key, group in ordered[:MOST_OWNERS])
    rest = ordered[MOST_OWNERS:]
    return told, len(rest), sum(group.bytes for _, group in rest)


def growing_lines(holdings: Iterable[Holding], step: int, source: SourceLine = no_source) -> tuple[Growth, ...]:
    """Lines of which every step leaves about as much behind, the fastest first.

    What was allocated once, before the steps or in one of them, does not grow, however long it stays.

    Args:
        holdings: what is live.
        step: the present one, which may be incomplete and does not count.
        source: reads the lines' text.
    """
    by_site: dict[Frame, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for holding in holdings:
        site = site_of(holding.stack) if 0 < holding.step < step else None
        if site is not None and not is_library(site):
            by_site[site][holding.step] += holding.bytes
    found = [
        Growth(
            file=site.file,
            line=site.line,
            name=site.name,
            text=source(site.file, site.line),
            bytes_per_step=rate,
            bytes=sum(steps.values()),
            steps=len(steps),
            first_step=min(steps),
        )
        for site, steps in by_site.items()
        if (rate := _growth(steps, step)) is not None
    ]
    return tuple(sorted(found, key=lambda growth: -growth.bytes_per_step))


def _growth(steps: dict[int, int], now: int) -> float | None:
    """Bytes a step leaves behind, ``None`` when it does not: few steps, long ago, or of very different sizes."""
    if len(steps) < FEWEST_STEPS:
        return None
    first, last = min(steps), max(steps)
    span = last - first + 1
    if span + now - last - 1 < SHARE_OF_RUN * (now - 1):
        return None
    if len(steps) < SHARE_OF_STEPS * span or now - last > math.ceil(span / len(steps)) + 1:
        return None
    median = statistics.median(steps.values())
    alike = sum(abs(size - median) <= LIKE_THE_MEDIAN * median for size in steps.values())
    return sum(steps.values()) / span if alike >= SHARE_ALIKE * len(steps) else None


def _rates(groups: Iterable[tuple[_Key, _Group]], growing: Sequence[Growth]) -> dict[_Key, float]:
    """Each growing line's rate, shared among its modules and categories as its bytes are."""
    known = {(growth.file, growth.line): growth for growth in growing}
    found = {key: group for key, group in groups if key[0] is not None and group.last_step > group.first_step}
    whole: dict[tuple[str, int], int] = defaultdict(int)
    for (site, *_), group in found.items():
        if site is not None:
            whole[site.file, site.line] += group.bytes
    rates = {}
    for key, group in found.items():
        place = (key[0].file, key[0].line) if key[0] is not None else None
        if place is not None and place in known:
            rates[key] = known[place].bytes_per_step * group.bytes / whole[place]
    return rates


def _owner(
    site: Frame | None,
    library: Frame | None,
    module: str,
    category: str,
    group: _Group,
    totals: dict[tuple[str, int], int],
    rate: float | None,
    source: SourceLine,
) -> Owner:
    stack = () if group.largest is None else group.largest.stack
    return Owner(
        file=None if site is None else site.file,
        line=None if site is None else site.line,
        name="" if site is None else site.name,
        library="" if library is None else site_name(library.file, library.line, library.name),
        module=module,
        category=category,
        bytes=group.bytes,
        count=group.count,
        total_bytes=group.bytes if site is None else max(group.bytes, totals.get((site.file, site.line), 0)),
        text="" if site is None else source(site.file, site.line),
        growth_per_step=rate,
        first_step=group.first_step,
        last_step=group.last_step,
        stack=tuple(StackLine(frame.file, frame.line, frame.name, is_library(frame)) for frame in stack),
    )
