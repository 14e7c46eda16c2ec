"""The process that predicts: started when asked, kept warm, left, ended, and never left behind."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.predicting import estimator as module
from gpudash.session.predicting.estimator import Answer, Estimator

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("fake_predictor.py")
LONG_S = 30.0

Make = Callable[..., Estimator]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Estimator] = []

    def one(*arguments: str, **options: Any) -> Estimator:
        made.append(Estimator((sys.executable, "-I", str(SCRIPT), *arguments), **options))
        return made[-1]

    yield one
    for estimator in made:
        assert estimator.close(LONG_S)


def whole(estimator: Estimator, workload: str = "answer", **options: Any) -> Answer:
    number = estimator.ask({"workload": workload}, **options)
    answer = estimator.wait(LONG_S)
    assert answer is not None and answer.final and answer.id == number
    return answer


def process_of(answer: Answer) -> int:
    assert answer.estimate is not None
    return int(json.loads(answer.estimate.method)["pid"])


def begun(estimator: Estimator, workload: str = "half") -> int:
    """Ask for what is answered in part and then goes on for ever; the process that is stuck in it."""
    estimator.ask({"workload": workload})
    while (answer := estimator.wait(0.01)) is None:
        pass
    return process_of(answer)


def ends(process: int) -> bool:
    """Whether a process has ended, or does so soon."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], LONG_S)[0])
    finally:
        os.close(handle)


def test_nothing_is_started_before_the_first_request(make: Make) -> None:
    estimator = make()
    assert estimator.newest() is None
    assert estimator._thread is None


def test_an_answer_has_what_the_last_line_says_and_the_process_stays_for_the_next(make: Make) -> None:
    estimator = make()
    first, second = whole(estimator), whole(estimator)
    assert first.problem is None
    assert first.estimate is not None and first.estimate.peak_allocated_bytes == 2
    assert process_of(first) == process_of(second)
    assert estimator.newest() is second


def test_an_answer_names_the_torch_that_made_it(make: Make) -> None:
    answer = whole(make())
    assert answer.estimate is not None and answer.estimate.torch == "2.13.0"


def test_what_is_no_line_of_json_is_passed_over(make: Make) -> None:
    answer = whole(make(), "chatter")
    assert answer.estimate is not None and answer.estimate.peak_allocated_bytes == 2


def test_a_newer_request_wins_over_one_the_process_is_stuck_in(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    estimator = make()
    stuck_in = begun(estimator)
    newer = whole(estimator)
    assert newer.problem is None
    assert process_of(newer) != stuck_in
    assert ends(stuck_in)


def test_a_request_that_is_left_frees_the_process_for_the_next_and_keeps_its_answer(make: Make) -> None:
    estimator = make()
    searching = begun(estimator, "search")
    known = estimator.newest()
    estimator.leave()
    assert estimator.newest() is known
    # A process that had not left would be stuck, and another would answer in its place.
    assert process_of(whole(estimator)) == searching


@pytest.mark.parametrize("older", ["starved", "left"])
def test_a_process_that_had_no_processor_to_leave_with_or_has_left_is_not_started_anew(
    make: Make, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """Else each newer question on a busy machine would wait for another import of torch."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(module, "LONGEST_PATIENCE_RATIO", 1e6)
    estimator = make()
    process = begun(estimator, older)
    assert process_of(whole(estimator)) == process


def test_leaving_before_anything_was_asked_starts_nothing(make: Make) -> None:
    estimator = make()
    estimator.leave()
    assert estimator._thread is None


def test_of_many_requests_at_once_only_the_last_is_answered(make: Make) -> None:
    estimator = make()
    numbers = [estimator.ask({"workload": "answer"}) for _ in range(20)]
    answer = estimator.wait(LONG_S)
    assert answer is not None
    assert answer.id == numbers[-1]


def test_a_crash_is_told_with_the_process_s_last_words_and_the_next_request_starts_another(make: Make) -> None:
    estimator = make()
    crashed = whole(estimator, "crash")
    assert crashed.problem is not None
    assert crashed.problem.kind == "crashed"
    assert "MemoryError: out of it" in crashed.problem.message
    assert whole(estimator).problem is None


def test_a_time_limit_ends_the_request_and_keeps_what_was_known(make: Make) -> None:
    estimator = make()
    answer = whole(estimator, "half", time_limit_s=0.5)
    assert answer.problem is not None
    assert answer.problem.kind == "time_limit"
    assert "0.5 s" in answer.problem.message
    assert answer.estimate is not None and answer.estimate.peak_allocated_bytes == 1
    assert whole(estimator).problem is None


@pytest.mark.parametrize(
    ("flags", "workload", "kind", "message"),
    [
        ((), "killed", "crashed", "memory was full"),
        ((), "refuse", "data_dependent", "It needs numbers."),
        ((), "nonsense", "crashed", "could not be read"),
        (("--unready",), "answer", "unavailable", "torch is missing."),
        (("--slow",), "answer", "time_limit", "PyTorch did not load within"),
    ],
    ids=["killed by the system", "refused", "no estimate", "cannot predict", "never ready"],
)
def test_why_there_is_no_prediction_is_told(
    make: Make, flags: Sequence[str], workload: str, kind: str, message: str
) -> None:
    problem = whole(make(*flags, start_limit_s=0.2 if "--slow" in flags else LONG_S), workload).problem
    assert problem is not None and problem.kind == kind and message in problem.message
    assert (problem.remedy == "Move it.") == (workload == "refuse")


def test_a_program_that_is_not_there_is_told() -> None:
    estimator = Estimator(("/nowhere/at/all",))
    try:
        problem = whole(estimator).problem
        assert problem is not None and problem.kind == "unavailable"
    finally:
        assert estimator.close(LONG_S)


def test_closing_in_the_midst_of_a_request_leaves_no_process(make: Make) -> None:
    estimator = make()
    process = begun(estimator)
    assert estimator.close(LONG_S)
    assert ends(process)


def test_what_the_process_has_started_ends_with_it(make: Make) -> None:
    estimator = make()
    answer = whole(estimator, "parent")
    assert answer.estimate is not None
    started = int(json.loads(answer.estimate.method)["child"])
    assert Path(f"/proc/{started}").exists()
    assert estimator.close(LONG_S)
    assert ends(started)


def test_a_closed_estimator_refuses(make: Make) -> None:
    estimator = make()
    assert estimator.close()
    with pytest.raises(RuntimeError, match="closed"):
        estimator.ask({"workload": "answer"})
