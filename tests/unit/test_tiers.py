"""Tests find their tier by what they name, and what `make test` leaves out is there to be run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpudash
from tests import tiers
from tests.unit.agent.dashboard import Dashboard

COMMAND = [sys.executable, "-c", "pass"]


def runs_a_command() -> None:
    subprocess.run(COMMAND, check=True)


def asks_a_helper() -> None:
    runs_a_command()


def has_a_default(python: str = sys.executable) -> str:
    return python


def uses_a_class(dashboard: Dashboard) -> Dashboard:
    return Dashboard(Path(str(dashboard)))


def run(*, isolate: bool) -> bool:
    return isolate


def asks_for_isolation() -> bool:
    return run(isolate=True)


def asks_by_a_key() -> bool:
    return run(isolate=True)


def computes() -> int:
    return len("no process")


@pytest.mark.parametrize(
    "function", [runs_a_command, asks_a_helper, has_a_default, uses_a_class, asks_for_isolation, asks_by_a_key]
)
def test_a_function_that_starts_a_python_is_told_also_by_what_it_calls(function: object) -> None:
    assert tiers.starts_a_python(function)  # type: ignore[arg-type]


def test_a_function_that_starts_none_is_fast() -> None:
    assert not tiers.starts_a_python(computes)  # type: ignore[arg-type]


def test_a_test_that_reads_the_clock_is_timed_and_one_that_does_not_is_not() -> None:
    def hurries() -> float:
        return time.monotonic()

    assert tiers.is_timed(hurries) and not tiers.is_timed(computes)  # type: ignore[arg-type]


def test_the_files_and_tests_that_are_named_exist() -> None:
    assert [name for name in tiers.LONG if not (tiers.TESTS / name).is_file()] == []
    for sample in tiers.SAMPLES + tiers.STARTING_UNSEEN:
        file, _, name = sample.partition("::")
        assert f"def {name}" in (tiers.TESTS / file).read_text(encoding="utf-8")


def test_what_is_looked_for_in_a_test_is_called_so_in_the_program() -> None:
    package = "".join(path.read_text(encoding="utf-8") for path in Path(gpudash.__file__).parent.rglob("*.py"))
    missing = [
        name
        for name in tiers.STARTING
        if name[0].isupper() and not re.search(rf"^class {name}\b", package, re.MULTILINE)
    ]
    assert missing == []


def test_every_test_has_one_tier(request: pytest.FixtureRequest) -> None:
    found = [[tier for tier in tiers.TIERS if item.get_closest_marker(tier)] for item in request.session.items]
    assert {len(names) for names in found} == {1}
