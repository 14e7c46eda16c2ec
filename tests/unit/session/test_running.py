"""One run after the other: nothing of the one before is taken back while the next is on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpudash.session.live.running import A_RUN_IS_ON, LEAVING_S, Running
from gpudash.telemetry.records import RunFinished


class Program:
    """A watched program that notes what is asked of it."""

    def __init__(self, told: list[Any], name: str, *, closes: bool = True) -> None:
        self.told = told
        self.name = name
        self.closes = closes
        told.append(("begins", name))

    def stop(self) -> None:
        self.told.append(("stops", self.name))

    def save_snapshot(self) -> None:
        """Nothing is saved."""

    def close(self, timeout_s: float) -> bool:
        self.told.append(("closes", self.name, timeout_s))
        return self.closes


def running() -> Running:
    nothing: Any = SimpleNamespace(disarm=lambda: None, close=lambda timeout_s: True, stop=lambda: None)
    return Running(nothing, nothing, nothing, lambda: None, lambda: nothing)


def end(runs: Running) -> None:
    runs.take_end(RunFinished(time_s=1.0, run_id=runs.run_id, status="finished", seconds=1.0, steps=0, result={}))


def test_the_next_program_begins_when_the_one_before_has_taken_back_what_it_showed() -> None:
    runs, told = running(), list[Any]()
    runs.watch(lambda _run_id: Program(told, "first"))
    with pytest.raises(RuntimeError, match=A_RUN_IS_ON):
        runs.watch(lambda _run_id: Program(told, "too early"))
    end(runs)
    assert runs.watched is None and not runs.on
    runs.watch(lambda _run_id: Program(told, "second"))
    assert told == [("begins", "first"), ("closes", "first", LEAVING_S), ("begins", "second")]
    runs.stop()
    assert told[-1] == ("stops", "second")


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_closing_waits_for_the_last_program_also_after_its_end(ended: bool, closes: bool) -> None:
    runs, told = running(), list[Any]()
    runs.watch(lambda _run_id: Program(told, "only", closes=closes))
    if ended:
        end(runs)
    assert runs.close(0.7) is closes
    assert told[-1] == ("closes", "only", 0.7)
