"""Which signals a program is sent that is asked to end, when, and what is said of them."""

from __future__ import annotations

import signal

import pytest

from gpudash.session.watching import program
from gpudash.session.watching.program import SHUTDOWN_S, TERMINATE_S, SentSignal, Stopping, stop_text


class Sent:
    """A program that takes every signal and does not end."""

    def __init__(self) -> None:
        self.numbers: list[signal.Signals] = []
        self.stopping = Stopping("train.py", self.numbers.append)

    def due(self) -> None:
        """The program is attended to again and again, until nothing more is due."""
        for _ in range(5):
            self.stopping.tick()


def test_one_request_is_one_signal_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SHUTDOWN_S", 0.0)
    monkeypatch.setattr(program, "TERMINATE_S", 0.0)
    sent = Sent()
    sent.due()
    assert sent.numbers == [] and sent.stopping.progress is None
    for number, following in ((signal.SIGINT, "SIGTERM"), (signal.SIGTERM, "SIGKILL"), (signal.SIGKILL, "")):
        sent.stopping.request("after a press")
        sent.due()
        assert sent.numbers[-1] == number
        stop = sent.stopping.progress
        assert stop is not None
        assert (stop.program, stop.sent, stop.next, stop.deadline) == ("train.py", number.name, following, "")
    assert len(sent.numbers) == 3
    sent.stopping.request("after a press")
    assert [one.name for one in sent.stopping.sent] == ["SIGINT", "SIGTERM", "SIGKILL"]
    assert sent.numbers[3:] == [signal.SIGKILL], "a driver may have held it up"


def test_the_end_of_gpudash_has_deadlines_that_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent()
    sent.stopping.shut_down("after the window was closed")
    sent.due()
    assert sent.numbers == [signal.SIGINT]
    stop = sent.stopping.progress
    assert stop is not None and stop.deadline == f"SIGTERM follows in {SHUTDOWN_S:.0f} s."
    sent.stopping.shut_down("after its terminal was closed")
    assert sent.numbers == [signal.SIGINT], "kernel, shell and window all say so"
    sent.stopping.request("after your Ctrl+C")
    stop = sent.stopping.progress
    assert stop is not None and stop.deadline == f"SIGKILL follows in {TERMINATE_S:.0f} s."


def test_after_its_deadlines_a_program_is_terminated_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SHUTDOWN_S", 0.0)
    monkeypatch.setattr(program, "TERMINATE_S", 0.0)
    sent = Sent()
    sent.stopping.shut_down("after the window was closed")
    sent.due()
    assert sent.numbers == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    assert [one.when for one in sent.stopping.sent[1:]] == ["0 s after the window was closed"] * 2


def test_a_program_that_is_saving_has_its_time_again_when_gpudash_is_ended() -> None:
    sent = Sent()
    sent.stopping.request("after your Ctrl+C")
    sent.stopping.shut_down("after gpudash was sent SIGTERM")
    assert sent.numbers == [signal.SIGINT]
    stop = sent.stopping.progress
    assert stop is not None and stop.left_s is not None and stop.left_s > SHUTDOWN_S - 1.0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-15, "Ended by SIGTERM, sent by gpudash after your second Ctrl+C."),
        (-2, "Stopped by you (SIGINT)."),
        (
            0,
            "Ended with exit code 0; gpudash had sent SIGINT after your Ctrl+C and SIGTERM after your second Ctrl+C.",
        ),
        (1, "Ended with exit code 1; gpudash had sent SIGINT after your Ctrl+C and SIGTERM after your second Ctrl+C."),
    ],
)
def test_what_ended_a_program_is_told_from_what_was_sent(code: int, said: str) -> None:
    sent = [SentSignal("SIGINT", "after your Ctrl+C", 1.0), SentSignal("SIGTERM", "after your second Ctrl+C", 2.0)]
    assert stop_text(code, sent) == said
