"""Which tests `make test` runs and which only `make check`: by where a test lies and what it names, not by a marker.

* ``long``: a file of `LONG`.
* ``process``: a test that starts a Python of its own. Its function, its fixtures and what of the tests' code they name
  are looked through for `STARTING`.
* ``window``: everything else under ``tests/ui``.
* ``fast``: everything else. A fast or window test that starts a Python all the same fails and says so.

``--quick`` runs ``fast``, ``window`` in one theme, and `SAMPLES` of the rest.

Where several workers share the machine, a test that measures time runs while no other does.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

TESTS = Path(__file__).parent

PLACES_OF_PROCESSES = ("end_to_end", "cuda_standin", "gpu")
PLACE_OF_WINDOWS = "ui"

LONG = (
    "end_to_end/test_demo.py",
    "end_to_end/test_out_of_memory_table.py",
    "end_to_end/test_soak.py",
    "gpu/test_scaling_on_a_gpu.py",
    "gpu/test_watching_on_a_gpu.py",
    "ui/test_figures_agree.py",
    "unit/memory/snapshot/test_fuzzing.py",
    "unit/simulator/test_allocator_matrix.py",
    "unit/simulator/test_known_peaks.py",
    "unit/simulator/test_largest_batch.py",
    "unit/simulator/test_modules.py",
    "unit/simulator/test_operators.py",
)
"""The soak, the guided tour, kinds of out-of-memory, samples of torch's operators, known peaks, fuzzing, programs on a
GPU, and what two thousand predictions say."""

SAMPLES = (
    "end_to_end/test_window.py::test_closing_during_a_run_leaves_a_recording_that_says_cancelled",
    "end_to_end/test_commands.py::test_the_default_pipeline_gives_the_matrix_and_its_four_stages",
)
"""One real window and one real run from end to end, which every `make test` has."""

STARTING = frozenset(
    {
        "executable",
        "subprocess",
        "isolate",
        "can_hold_back",
        "OpenedSnapshot",
        "ChildProcess",
        "HostedRun",
        "Host",
        "ParallelRun",
    }
)
"""Names in code that starts a Python: ``sys.executable``, ``subprocess``, and what does so for the program."""

STARTING_UNSEEN = (
    "unit/cli/test_snapshot.py",
    "unit/session/test_printed_metrics.py::test_a_pattern_of_one_s_own_may_name_the_loss_of_a_validation",
    "unit/session/test_printed_metrics.py::test_a_pattern_of_ones_own_takes_the_place_of_names",
    "unit/session/test_printed_metrics.py::test_a_pattern_that_would_match_for_ever_is_left_and_said_to_be",
    "unit/session/test_run_requests.py::test_a_recording_has_the_requests_of_a_snapshot_that_lies_where_it_says",
    "ui/test_opening.py::test_a_real_snapshot_is_read_by_a_process_that_ends_with_the_window",
    "unit/cli/test_terminal_text.py::test_a_snapshot_s_names_are_written_out",
    "unit/cli/test_file_names.py::test_a_snapshot_of_any_name_is_reported",
)
"""Files and tests in which the program starts a Python without a word of it in the tests' code."""

CLOCKS = frozenset({"monotonic", "perf_counter", "process_time"})

LEFT_OUT = {
    "light": "in the light theme that passed in the dark one",
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


def assign(items: list[pytest.Item]) -> None:
    """Mark every test with its tier; the slower tiers come first, so that no worker is left with them at the end."""
    tiers = {item: tier_of(item) for item in items}
    for item, tier in tiers.items():
        item.add_marker(getattr(pytest.mark, tier))
    slowest = {item.path: 0 for item in items}
    for item, tier in tiers.items():
        slowest[item.path] = max(slowest[item.path], list(TIERS).index(tier))
    items.sort(key=lambda item: -slowest[item.path])


def quick(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item], Counter[str]]:
    """The tests that ``--quick`` runs, those it leaves out, and how many of each kind in `LEFT_OUT`."""
    names = {item.nodeid for item in items}
    kept, left, why = [], [], Counter[str]()
    for item in items:
        tier = next(tier for tier in TIERS if item.get_closest_marker(tier))
        dark = item.nodeid.replace("light", "dark")
        if tier == "window" and dark != item.nodeid and dark in names:
            tier = "light"
        if tier in LEFT_OUT and not item.nodeid.endswith(SAMPLES):
            left.append(item)
            why[tier] += 1
        else:
            kept.append(item)
    return kept, left, why


@contextmanager
def place(item: pytest.Item) -> Iterator[None]:
    """The machine for one test: shared, or for a test that measures time alone among this checkout's workers."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    door, room = os.open(TESTS / "unit", os.O_RDONLY), os.open(TESTS, os.O_RDONLY)
    try:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits for an empty room lets nobody else in meanwhile
        fcntl.flock(room, fcntl.LOCK_EX if is_timed(getattr(item, "function", place)) else fcntl.LOCK_SH)
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
    path = item.path.relative_to(TESTS)
    if path.as_posix() in LONG:
        return "long"
    unseen = path.as_posix() in STARTING_UNSEEN or item.nodeid.partition("[")[0].endswith(STARTING_UNSEEN)
    if path.parts[0] in PLACES_OF_PROCESSES or unseen or _starts_a_process(item):
        return "process"
    return "window" if path.parts[0] == PLACE_OF_WINDOWS else "fast"


def is_timed(function: FunctionType) -> bool:
    """Whether a test measures time: it, or what it names of its module, reads a clock and names no PATIENCE."""
    waiting, looked_at = [function], set[FunctionType]()
    while waiting:
        one = waiting.pop()
        looked_at.add(one)
        names = _names(one.__code__)
        if not CLOCKS.isdisjoint(names) and not any("PATIENCE" in name for name in names):
            return True
        others = [one.__globals__[name] for name in names & one.__globals__.keys()]
        functions = [other for other in others if isinstance(other, FunctionType) and other not in looked_at]
        waiting += [other for other in functions if other.__module__ == function.__module__]
    return False


def _starts_a_process(item: pytest.Item) -> bool:
    function = getattr(item, "function", None)
    fixtures = getattr(item, "_fixtureinfo", None)
    found = [function] if isinstance(function, FunctionType) else []
    for definitions in fixtures.name2fixturedefs.values() if fixtures is not None else ():
        found += [definition.func for definition in definitions if isinstance(definition.func, FunctionType)]
    return any(starts_a_python(function) for function in found)


def starts_a_python(function: FunctionType) -> bool:
    """Whether a function, or one of the tests' code that it names, starts a Python of its own."""
    if function not in _known:
        _known[function] = _reaches(function, set())
    return _known[function]


_known: dict[FunctionType, bool] = {}


def _reaches(function: FunctionType, seen: set[FunctionType]) -> bool:
    if function in seen:
        return False
    seen.add(function)
    names = _names(function.__code__)
    values = [function.__globals__[name] for name in names & function.__globals__.keys()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return not STARTING.isdisjoint(names) or any(_value_reaches(value, seen) for value in values)


def _value_reaches(value: Any, seen: set[FunctionType]) -> bool:
    if isinstance(value, FunctionType) and value.__module__.startswith("tests."):
        return _reaches(value, seen)
    if isinstance(value, type) and value.__module__.startswith("tests."):
        members = [member for member in vars(value).values() if isinstance(member, FunctionType)]
        return any(_reaches(member, seen) for member in members)
    return (
        value == sys.executable
        if isinstance(value, str)
        else isinstance(value, list | tuple) and sys.executable in value
    )


def _names(code: CodeType) -> set[str]:
    """The names that code uses, those of keywords, of functions inside it and of keys too."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
        elif isinstance(constant, tuple):
            found.update(part for part in constant if isinstance(part, str))
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return found
