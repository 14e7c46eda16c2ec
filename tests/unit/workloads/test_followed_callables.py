"""Dry runs of users' code answer rightly or in one sentence that names the line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_name("followed_callables.py").read_text(encoding="utf-8").splitlines()
SHOWN = "tests/unit/workloads/followed_callables.py"

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Of every callable, from one process of dry runs."""
    command = [sys.executable, "-W", "error", "-m", "tests.unit.workloads.followed_callables"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: Answers = json.loads(done.stdout.splitlines()[-1])
    found["printed"]["lines"] = done.stdout.splitlines()[:-1]
    return found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("item of a copy", "needs the numbers in a tensor"),
        ("int of a copy", "needs the numbers in a tensor"),
        ("copy to list", "needs the numbers in a tensor"),
        ("copy to numpy", "needs the numbers in a tensor"),
        ("condition on a copy", "needs the numbers in a tensor"),
        ("copy and host tensor", "needs the numbers in a tensor"),
        ("to list", "needs the numbers in a tensor"),
        ("into a host tensor", "copies numbers from the device into a tensor that lies on the CPU"),
        ("item", "reads a number out of a tensor"),
        ("mask", "picks elements by the numbers in a tensor"),
        ("unique", "calls unique, whose result cannot be told without the numbers in a tensor"),
    ],
)
def test_code_that_needs_numbers_is_refused_in_one_sentence_that_names_its_line(
    name: str, said: str, answers: Answers
) -> None:
    told = answers[name]
    assert told["kind"] == "data_dependent"
    assert f"The code {said}" in told["message"] and told["message"].count(". ") == 0
    line = 1 + next(number for number, text in enumerate(SOURCE) if text.strip().startswith(f'"{name}":'))
    assert f" at {SHOWN}:{line}; a dry run has none" in told["message"]


@pytest.mark.parametrize(
    "name",
    ["kept copy", "printed", "on the cpu", "saved on the cpu", "pinned on the cpu", "scaler", "cycle", "after a cycle"],
)
def test_code_that_decides_by_no_number_is_predicted(name: str, answers: Answers) -> None:
    assert answers[name].get("peak", 0) > 0, answers[name]


def test_a_printed_tensor_shows_its_sizes_in_place_of_numbers(answers: Answers) -> None:
    expected = "tensor(..., device='sim:0', size=(4, 8)) tensor(..., device='meta', size=())"
    assert answers["printed"]["lines"] == [expected] * 3


def test_trusted_code_reads_zeros_and_never_what_lay_in_the_hosts_memory(answers: Answers) -> None:
    assert answers["trusted"]["read"] == [0.0]


def test_what_a_run_left_in_a_cycle_is_not_counted_in_the_next(answers: Answers) -> None:
    assert answers["after a cycle"] == answers["again"]


@pytest.mark.parametrize(("name", "said"), [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")])
def test_code_that_ends_the_program_is_told_like_any_error(name: str, said: str, answers: Answers) -> None:
    assert answers[name]["kind"] == "raised"
    assert re.match(rf"At {SHOWN}:\d+ the code raised {said}\b", answers[name]["message"])


def test_code_with_data_parallel_is_told_why_nothing_is_predicted_and_torch_is_left_as_it_was(
    answers: Answers,
) -> None:
    told = answers["data parallel"]
    assert told["kind"] == "data_parallel"
    assert "from one process" in told["message"] and "choose ddp" in told["message"]
    assert answers["data parallel again"] == {"works": 2}


def test_a_module_that_exits_as_it_is_imported_is_told_in_words(answers: Answers) -> None:
    assert answers["module that exits"]["kind"] == "callable"
    assert "cannot be loaded (SystemExit: 3)" in answers["module that exits"]["message"]


def test_only_an_error_that_no_device_can_change_is_said_to_happen_anywhere(answers: Answers) -> None:
    assert answers["unknown name"]["remedy"] == "Mend that first; it happens without a GPU too."
    assert "happens without a GPU" not in answers["division"]["remedy"]
