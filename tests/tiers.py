"""Which tests `make test` runs and which only `make check`: by where a test lies, and by its marks.

* ``long``: marked so.
* ``process``: marked so, for it starts a Python of its own; and all of the folders `PLACES_OF_PROCESSES`.
* ``window``: everything else under ``tests/ui``.
* ``fast``: everything else. A fast or window test that starts a Python all the same fails and says so.

``--quick`` runs of ``fast`` every test function, of ``window`` one function in `WINDOWS`, each with its first row
alone, and what is marked ``sample`` of the rest: five minutes on two cores, for everybody who tries whether it works.

``--table-sample N`` runs every N-th row of what is marked ``table``: many programs of one kind, each started several
times, whose rows seldom fail alone.

``--share K/N`` runs of what starts processes or takes long one of N shares of about the same length: whole files, for
what the tests of a file have in common is made for one share only. The shares together are all of it. ``make check``
takes the next share with each commit.

Where several workers share the machine, a test that is marked ``timed`` runs while no other does.
"""

from __future__ import annotations

import fcntl
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

TESTS = Path(__file__).parent

PLACES_OF_PROCESSES = ("end_to_end", "cuda_standin", "gpu")
PLACE_OF_WINDOWS = "ui"

WINDOWS = 3
"""``--quick`` runs one window test in so many."""

USUAL_S = {"end_to_end/test_window.py": 20, "end_to_end/": 8, "cuda_standin/": 0, "tests/gpu/": 0}
"""Seconds that a slow test takes about, by where it lies: elsewhere 1, and none where it needs a CUDA device."""

LEFT_OUT = {
    "row": "whose function ran with another row of its parameters",
    "window": "of the window, two in three of them",
    "process": "that start a process of their own",
    "long": "that take long (soak, operator samples, known peaks, fuzzing)",
}
"""What ``--quick`` leaves out, in words."""

TIERS = {
    "fast": "needs neither a window nor a process of its own",
    "window": "draws offscreen",
    "process": "starts a Python of its own",
    "long": "takes long",
}

MARKS = {
    **TIERS,
    "timed": "measures time, and runs alone",
    "sample": "starts a process, and is run by `make test` all the same",
    "thorough": "takes a minute for what shorter tests hold nearly as well: left to `make test-all`",
    "table": "one of many rows that start whole programs: `make check` runs a sample of them",
}


def assign(items: list[pytest.Item]) -> None:
    """Mark every test with its tier; the slower tiers come first, so that no worker is left with them at the end."""
    slowest = {item.path: 0 for item in items}
    for item in items:
        tier = tier_of(item)
        if item.get_closest_marker(tier) is None:
            item.add_marker(getattr(pytest.mark, tier))
        slowest[item.path] = max(slowest[item.path], list(TIERS).index(tier))
    items.sort(key=lambda item: -slowest[item.path])


class HasMarks(Protocol):
    """As much of a test as a choice among its rows asks for."""

    @property
    def nodeid(self) -> str: ...

    def get_closest_marker(self, name: str, /) -> object | None: ...


Row = TypeVar("Row", bound=HasMarks)


def quick(items: Sequence[Row]) -> tuple[list[Row], list[Row], Counter[str]]:
    """The tests that ``--quick`` runs, those it leaves out, and how many of each kind in `LEFT_OUT`."""
    seen = set[str]()
    kept, left, why = [], [], Counter[str]()
    for item in items:
        reason = _reason_to_leave_out(item, seen)
        seen.add(_function(item))
        if reason is None:
            kept.append(item)
        else:
            left.append(item)
            why[reason] += 1
    return kept, left, why


def _reason_to_leave_out(item: HasMarks, seen: set[str]) -> str | None:
    """Why `quick` leaves the test out, a key of `LEFT_OUT`; None where it runs. `seen`: functions met before."""
    if item.get_closest_marker("sample"):
        return None
    for tier in ("process", "long"):
        if item.get_closest_marker(tier):
            return tier
    function = _function(item)
    if item.get_closest_marker("window") and zlib.crc32(function.encode()) % WINDOWS:
        return "window"
    return "row" if function in seen else None


def _function(item: HasMarks) -> str:
    """The test's name without its row of parameters."""
    return item.nodeid.partition("[")[0]


def sampled(items: Sequence[Row], every: int) -> tuple[list[Row], list[Row]]:
    """The tests that run where every so many-th row of a table does, and those that do not."""
    kept, left = [], []
    rows = Counter[str]()
    for item in items:
        if item.get_closest_marker("table") is None:
            kept.append(item)
            continue
        function = _function(item)
        if rows[function] % every == 0:
            kept.append(item)
        else:
            left.append(item)
        rows[function] += 1
    return kept, left


def in_share(items: Sequence[Row], share: int, shares: int) -> tuple[list[Row], list[Row]]:
    """The tests of one share of what starts processes or takes long, with all that does not; and the others."""
    share_of = _share_of_files(items, shares)
    kept, left = [], []
    for item in items:
        if _is_slow(item) and share_of[_file(item)] != share % shares:
            left.append(item)
        else:
            kept.append(item)
    return kept, left


def _share_of_files(items: Sequence[Row], shares: int) -> dict[str, int]:
    """The share of each file with slow tests: the longest first, each to the share that is the shortest so far."""
    seconds = Counter[str]()
    for item in items:
        if _is_slow(item):
            seconds[_file(item)] += _usual_s(item)
    taken = [0] * shares
    found = {}
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        found[file] = taken.index(min(taken))
        taken[found[file]] += seconds[file]
    return found


def _usual_s(item: HasMarks) -> int:
    """How long a slow test takes, about; nothing where the runs that have shares leave it out."""
    if item.get_closest_marker("thorough"):
        return 0
    return next((seconds for place, seconds in USUAL_S.items() if place in _file(item)), 1)


def _is_slow(item: HasMarks) -> bool:
    return bool(item.get_closest_marker("process") or item.get_closest_marker("long"))


def _file(item: HasMarks) -> str:
    """The path of the test's file, as it is collected."""
    return item.nodeid.partition("::")[0]


@contextmanager
def place(item: pytest.Item) -> Iterator[None]:
    """The machine for one test: shared, or for a test that measures time alone among this checkout's workers."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    door, room = os.open(TESTS / "unit", os.O_RDONLY), os.open(TESTS, os.O_RDONLY)
    try:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits for an empty room lets nobody else in meanwhile
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("timed") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
    finally:
        for descriptor in (door, room):  # a forked child that is left over holds nothing
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class PythonsStarted:
    """Hears of every Python that this process starts, from the interpreter's own audit events.

    Attributes:
        commands: the command lines since it was last emptied.
    """

    def __init__(self) -> None:
        self.commands: list[str] = []
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name.startswith("python"):
            self.commands.append(str(arguments[1]))


def tier_of(item: pytest.Item) -> str:
    """The tier of a test."""
    place = item.path.relative_to(TESTS).parts[0]
    if item.get_closest_marker("long"):
        return "long"
    if item.get_closest_marker("process") or place in PLACES_OF_PROCESSES:
        return "process"
    return "window" if place == PLACE_OF_WINDOWS else "fast"
