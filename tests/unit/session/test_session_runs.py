"""The runs of a session that is still on, told as a recording's are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from gpudash.session.recordings.session_runs import NOWHERE, SessionRuns
from gpudash.session.source import DashboardSource
from gpudash.telemetry.records import RunStarted, Sample, StepFinished
from gpudash.telemetry.store import Store
from gpudash.units import MIB
from tests.unit.telemetry.run_ends import RAN_OUT


class Begun:
    """A session over a store that is filled by hand."""

    began_wall_s = 1_700_000_000.0

    def __init__(self, recording: Path | None = Path("/r/now.gpudash")) -> None:
        self.store = Store()
        self.recording_path = recording
        self.titles: dict[int, str] = {}

    def run_title(self, number: int) -> str:
        return self.titles.get(number, "")

    def run(self, begin: float, end: float | None, device: str = "sim:0") -> None:
        """A run with a reading and a step a second, of more and more memory; it goes on where it has no end."""
        self.store.apply(
            RunStarted(time_s=begin, run_id=1, workload="training", device=device, spec={}, simulated=True)
        )
        for second in range(int(begin), int(end or begin + 5) + 1):
            values = {"allocated_bytes": (second + 1) * MIB, "reserved_bytes": 100 * MIB}
            self.store.apply(Sample(float(second), "allocator", device, values))
            step = StepFinished(time_s=float(second), run_id=1, step=second, steps=9, seconds=1.0, loss=0.5)
            self.store.apply(step)
        if end is not None:
            self.store.apply(replace(RAN_OUT, time_s=end, seconds=end - begin))


def runs(session: Begun) -> SessionRuns:
    return SessionRuns(cast(DashboardSource, session))


def test_a_run_that_is_on_and_one_that_has_ended_are_told_with_their_outlines() -> None:
    session = Begun()
    session.run(1.0, 9.0)
    session.run(20.0, None)
    entry = runs(session).entry()
    assert entry.path == session.recording_path and entry.written and entry.facts is not None
    first, second = entry.facts.runs
    assert (first.number, first.status, first.device, first.loss) == (1, "out_of_memory", "sim:0", 0.5)
    assert (second.number, second.status, second.began_s) == (2, "running", 20.0)
    for run in (first, second):
        known = [part for part in run.outline if part is not None]
        assert known == sorted(known) and known[-1] == 100


def test_what_has_ended_is_looked_at_once_and_its_name_follows_the_user() -> None:
    session = Begun()
    session.run(1.0, 9.0)
    watched = runs(session)
    first = watched.entry().facts
    session.store.apply(Sample(10.0, "allocator", "sim:0", {"allocated_bytes": MIB, "reserved_bytes": MIB}))
    again = watched.entry().facts
    assert first is not None and again is not None and again.runs[0] is first.runs[0]
    session.titles[1] = "the good one"
    named = watched.entry().facts
    assert named is not None and named.runs[0].label.title == "the good one"


def test_a_run_without_readings_has_no_outline_and_a_session_without_a_recording_no_place() -> None:
    session = Begun(recording=None)
    session.store.apply(RunStarted(time_s=1.0, run_id=1, workload="training", device="cpu", spec={}))
    entry = runs(session).entry()
    assert entry.path == NOWHERE and entry.facts is not None and entry.facts.runs[0].outline == ()
