"""Requests of which only the newest matters."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpudash.system.newest_request import NewestRequest

PATIENCE_S = 30.0


class Answers:
    """Answers when it is let, and keeps what it has answered."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        self.accepts = True
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.requests: NewestRequest[int] = NewestRequest("gpudash-test", self.answer)

    def answer(self, request: int) -> bool:
        self.answered.append(request)
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        return self.accepts


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    yield made
    made.may_end.set()
    assert made.requests.wait(PATIENCE_S)


def test_the_newest_of_those_that_wait_is_answered_and_the_thread_ends(answers: Answers) -> None:
    answers.requests.submit(1)
    assert answers.began.wait(PATIENCE_S) and answers.requests.busy
    answers.requests.submit(2)
    answers.requests.submit(3)
    answers.requests.submit_if_none_waits(4)
    answers.may_end.set()
    assert answers.requests.wait(PATIENCE_S)
    assert answers.answered == [1, 3]
    assert not answers.requests.busy


def test_what_was_refused_is_answered_again_only_as_a_retry(answers: Answers) -> None:
    answers.accepts = False
    answers.may_end.set()
    for _ in range(2):
        answers.requests.submit(1)
        answers.requests.submit_if_none_waits(1)
        assert answers.requests.wait(PATIENCE_S)
    assert answers.answered == [1]
    answers.requests.submit(1, retry=True)
    assert answers.requests.wait(PATIENCE_S)
    assert answers.answered == [1, 1]


@pytest.mark.parametrize(("retry", "answered"), [(False, [1]), (True, [1, 1])])
def test_what_came_while_the_same_was_refused_is_answered_only_as_a_retry(
    answers: Answers, retry: bool, answered: list[int]
) -> None:
    answers.accepts = False
    answers.requests.submit(1)
    assert answers.began.wait(PATIENCE_S)
    answers.requests.submit(1, retry=retry)
    answers.may_end.set()
    assert answers.requests.wait(PATIENCE_S)
    assert answers.answered == answered


def test_once_closed_it_answers_nothing_more(answers: Answers) -> None:
    answers.requests.submit(1)
    assert answers.began.wait(PATIENCE_S)
    answers.requests.submit(2)
    answers.requests.close()
    answers.requests.submit(3)
    answers.may_end.set()
    assert answers.requests.wait(PATIENCE_S)
    assert answers.answered == [1]
