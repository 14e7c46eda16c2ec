"""Which lines of a program allocated the live memory, and which of them leave some behind at every step, or at every
n-th, once that is certain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.memory_state import AllocationGroup
from gpudash.memory.frames import Frame, is_library, site_of
from gpudash.memory.growth_rate import FEWEST_STEPS, GrowthRate, growth_rate
from gpudash.telemetry.explanation import Growth, Owner, StackLine, every_steps, short, site_name
from gpudash.telemetry.records import Warning
from gpudash.units import format_bytes

SourceLine = Callable[[str, int], str]
"""File and line → source of that line with its indentation; "" if it cannot be read."""

MOST_OWNERS = 40
"""Most call sites that are listed; the rest is summed."""

PATIENCE = 2
"""Consecutive checks that must find growing lines before they are reported."""

GROWS_SHARE = 0.01
"""Part of the fastest line's growth below which that of another line is negligible: it only distracts."""

LEAST_KEPT = 2**20
"""Bytes that a line must have kept before it is reported: a number of every step fills no card."""


def no_source(_file: str, _line: int) -> str:
    """A `SourceLine` that reads no files."""
    return ""


def library_of(stack: Sequence[Frame]) -> Frame | None:
    """The innermost library line called by the program's own line; ``None`` if it called torch directly."""
    inner = next((frame for frame in stack if not is_library(frame)), None)
    if inner is None or inner == site_of(stack):
        return None
    return inner


def stack_lines(stack: Iterable[tuple[str, int, str]]) -> tuple[StackLine, ...]:
    """The frames of a stack; each says whether it is a library's."""
    return tuple(StackLine(*frame, is_library(Frame(*frame))) for frame in stack)


_Key = tuple[Frame | None, Frame | None, str, str]
"""The program's line, the line of a library that it called, the module and the category."""


@dataclass(slots=True)
class _SiteTotal:
    bytes: int = 0
    count: int = 0
    first_step: int = 0
    last_step: int = 0
    largest: AllocationGroup | None = None

    def add(self, group: AllocationGroup) -> None:
        # Step 0 is valid too (before the first step), so use the count to detect an empty total.
        if not self.count or group.step < self.first_step:
            self.first_step = group.step
        self.last_step = max(self.last_step, group.step)
        self.bytes += group.bytes
        self.count += group.count
        if self.largest is None or group.bytes > self.largest.bytes:
            self.largest = group


@dataclass(slots=True)
class _Totals:
    """Totals by call site, and by line in any stack: (file, line)."""

    by_key: dict[_Key, _SiteTotal] = field(default_factory=lambda: defaultdict(_SiteTotal))
    totals: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))


def owners(
    groups: Iterable[AllocationGroup], growing: Sequence[Growth] = (), source: SourceLine = no_source
) -> tuple[tuple[Owner, ...], int, int]:
    """Call sites, the largest first; the number of further ones, and their bytes."""
    sites = _Totals()
    for group in groups:
        key = site_of(group.stack), library_of(group.stack), group.module, group.category
        sites.by_key[key].add(group)
        if group.category == WORKSPACE:
            continue  # the line was only the first to need it
        # A set, since a recursive function has its line in a stack several times.
        for place in {(frame.file, frame.line) for frame in group.stack if not is_library(frame)}:
            sites.totals[place] += group.bytes
    ordered = sorted(sites.by_key.items(), key=lambda item: -item[1].bytes)
    rates = _rates(ordered, growing)
    largest = tuple(
        _owner(*key, site_total, sites.totals, rates.get(key), source) for key, site_total in ordered[:MOST_OWNERS]
    )
    rest = ordered[MOST_OWNERS:]
    return largest, len(rest), sum(site_total.bytes for _, site_total in rest)


def growing_lines(
    groups: Iterable[AllocationGroup], step: int, source: SourceLine = no_source, fewest_steps: int = FEWEST_STEPS
) -> tuple[Growth, ...]:
    """Lines that leave about the same amount behind at every step, or at every n-th, the fastest first.

    Memory allocated once, before the steps or in one of them, does not grow, however long it stays.

    Args:
        groups: live memory.
        step: the current step, which may be incomplete and does not count.
        source: reads the source of the `MOST_OWNERS` fastest.
        fewest_steps: number of steps in which a line must leave memory behind.
    """
    by_site: dict[Frame, _Paths] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for group in groups:
        site = None
        # A workspace stays where the first product was, whatever else that line keeps.
        if 0 < group.step < step and group.category != WORKSPACE:
            site = site_of(group.stack)
        if site is not None and not is_library(site):
            by_site[site][group.stack][group.step] += group.bytes
    found: list[Growth] = []
    for site, paths in by_site.items():
        growth = _growth_at(site, paths, step, fewest_steps)
        if growth is not None:
            found.append(growth)
    found.sort(key=lambda growth: -growth.bytes_per_step)
    # Reading source may open files, so do it only for the lines that are shown.
    for place, growth in enumerate(found[:MOST_OWNERS]):
        found[place] = replace(growth, text=source(growth.file, growth.line).strip())
    return tuple(found)


_Paths = dict[tuple[Frame, ...], dict[int, int]]
"""Bytes of each step that are still allocated, by the stack that allocated them."""


def _growth_at(site: Frame, paths: _Paths, step: int, fewest_steps: int) -> Growth | None:
    """What a line leaves behind; ``None`` if it does not grow."""
    steps = _together(paths.values())
    rate = growth_rate(steps, step, fewest_steps)
    if rate is None or rate.stride > 1.0:
        # A training and its evaluation reach the line in different ways: one may grow, or each at its own pace, and
        # what the newest step of the other still holds is no growth.
        own = [(one, at) for one in paths.values() if (at := growth_rate(one, step, fewest_steps)) is not None]
        if own:
            rate = GrowthRate(sum(at.bytes_per_step for _, at in own), min(at.stride for _, at in own))
            steps = _together(one for one, _ in own)
    if rate is None:
        return None
    return Growth(
        file=site.file,
        line=site.line,
        name=site.name,
        text="",
        bytes_per_step=rate.bytes_per_step,
        bytes=sum(steps.values()),
        steps=len(steps),
        first_step=min(steps),
        stride=rate.stride,
    )


def _together(paths: Iterable[Mapping[int, int]]) -> dict[int, int]:
    steps: dict[int, int] = defaultdict(int)
    for path in paths:
        for step, size in path.items():
            steps[step] += size
    return steps


def _rates(by_key: Iterable[tuple[_Key, _SiteTotal]], growing: Sequence[Growth]) -> dict[_Key, GrowthRate]:
    """Each growing line's rate, divided among its modules and categories in proportion to their bytes."""
    known = {(growth.file, growth.line): growth for growth in growing}
    # A line that holds memory of a single step has not grown, and gets no part of the rate.
    found: list[tuple[_Key, tuple[str, int], int]] = []
    whole: dict[tuple[str, int], int] = defaultdict(int)
    for key, site_total in by_key:
        site = key[0]
        if site is not None and site_total.last_step > site_total.first_step:
            place = (site.file, site.line)
            found.append((key, place, site_total.bytes))
            whole[place] += site_total.bytes
    rates = {}
    for key, place, size in found:
        if place in known:
            growth = known[place]
            rates[key] = GrowthRate(growth.bytes_per_step * size / whole[place], growth.stride)
    return rates


def _owner(
    site: Frame | None,
    library: Frame | None,
    module: str,
    category: str,
    site_total: _SiteTotal,
    totals: dict[tuple[str, int], int],
    rate: GrowthRate | None,
    source: SourceLine,
) -> Owner:
    stack: tuple[Frame, ...] = ()
    if site_total.largest is not None:
        stack = site_total.largest.stack
    called = ""
    if library is not None:
        called = site_name(library.file, library.line, library.name)
    file: str | None = None
    line: int | None = None
    name = ""
    text = ""
    line_total = 0
    if site is not None:
        file = site.file
        line = site.line
        name = site.name
        text = source(site.file, site.line).strip()
        # A workspace belongs to no line: this one was only the first to need it.
        if category != WORKSPACE:
            line_total = totals.get((site.file, site.line), 0)
    growth = None
    stride = 1.0
    if rate is not None:
        growth = rate.bytes_per_step
        stride = rate.stride
    return Owner(
        file=file,
        line=line,
        name=name,
        library=called,
        module=module,
        category=category,
        bytes=site_total.bytes,
        count=site_total.count,
        total_bytes=max(site_total.bytes, line_total),
        text=text,
        growth_per_step=growth,
        growth_stride=stride,
        first_step=site_total.first_step,
        last_step=site_total.last_step,
        stack=stack_lines(stack),
    )


def by_stride(growing: Sequence[Growth]) -> Sequence[Sequence[Growth]]:
    """Growing lines, those together that leave memory behind equally often, but for negligible ones; in the order of
    each one's first line.

    Args:
        growing: the lines, the fastest first.
    """
    found: dict[str, list[Growth]] = defaultdict(list)
    for growth in growing:
        found[growth.every].append(growth)
    fastest = max((growth.bytes_per_step for growth in growing), default=0.0)
    return [group for group in found.values() if group[0].bytes_per_step >= GROWS_SHARE * fastest]


def who_keeps(growing: Sequence[Growth], keeper: str) -> tuple[str, str]:
    """Who keeps what some lines allocate, with the verb, and where it is allocated: "train.py:44 (losses.append(loss))
    keeps" and ", allocated at train.py:31 and 1 other line", or "train.py:31 (…) and 1 other line keep" and "".

    Args:
        growing: lines that leave memory behind equally often, the fastest first.
        keeper: as `Growth.kept_by` of the first.
    """
    first = growing[0]
    others = len(growing) - 1
    more = ""
    if others:
        more = f" and {others} other line{'s' if others > 1 else ''}"
    if keeper:
        return f"{keeper} keeps", f", allocated at {short(first.file)}:{first.line}{more}"
    if others:
        return f"{first.place}{more} keep", ""
    return f"{first.place} keeps", ""


class GrowthNotice:
    """Decides at each check whether growing lines should be reported."""

    def __init__(self) -> None:
        self._lookups = 0
        self._reported: tuple[tuple[str, int], ...] = ()

    def is_due(self, growing: Sequence[Growth]) -> bool:
        """Whether to report these lines, the fastest first, now."""
        if growing and growing[0].bytes >= LEAST_KEPT:
            self._lookups += 1
        else:
            self._lookups = 0
        lines = tuple((group[0].file, group[0].line) for group in by_stride(growing))
        if self._lookups < PATIENCE or lines == self._reported:
            return False
        self._reported = lines
        return True


def no_keeper(_growth: Growth) -> str:
    """Knows of no line which statement keeps what it allocates."""
    return ""


def growth_warning(
    growing: Sequence[Growth],
    device: str,
    time_s: float,
    run_id: int,
    source: SourceLine = no_source,
    keeper: Callable[[Growth], str] = no_keeper,
) -> Warning:
    """The warning about growing lines.

    Args:
        growing: the lines, the fastest first.
        device: device with the memory: a GPU's UUID, or "host".
        source: reads the line's source if ``growing`` lacks it.
        keeper: place of the statement that keeps what a line allocates; "" if it is that line, or unknown.
    """
    sentences = []
    causes = []
    for group in by_stride(growing):
        first = group[0]
        if not first.text:
            first = replace(first, text=source(first.file, first.line).strip())
        size = format_bytes(sum(growth.bytes_at_once for growth in group))
        who, allocated = who_keeps([first, *group[1:]], keeper(first))
        sentences.append(f"{who} {size} of {first.every} since step {first.first_step}{allocated}.")
        place = who.rpartition(" ")[0]
        causes.append(f"{place}, {size} {every_steps(first.stride, 'a step')}{allocated}")
    return Warning(
        time_s=time_s,
        run_id=run_id,
        level="note",
        device=device,
        text=" ".join(sentences),
        actions=("stop",),
        cause="; ".join(causes),
    )
