"""Every request of a run of ours on a simulated card, and those of a recorded program from its snapshot."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

from gpudash.devices.names import Simulation
from gpudash.memory.request_log import Request, RequestLogs
from gpudash.session import Session
from gpudash.session.recordings.snapshot_requests import SnapshotRequests
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import PipelineSpec
from gpudash.system.settings import Settings
from gpudash.telemetry.records import Note, Topic
from gpudash.units import GIB, KIB, MIB
from gpudash.workloads.running.card_requests import (
    MOST_IN_A_MESSAGE,
    SIMULATOR,
    RequestFeed,
    RequestReceiver,
    RequestSender,
    RequestSink,
)
from tests.unit.memory.snapshot.made import WEIGHTS, Made

PATIENCE_S = 120.0


class Line(NamedTuple):
    file: str
    line: int
    name: str


class Asking:
    """What a tagger says of whoever asks, in the form of the tracker's tags."""

    def __init__(self, line: int) -> None:
        code: CodeType = compile("pass", "/home/me/train.py", "exec")
        self.stack = ((code, line),)
        self._line = line

    def frames(self) -> list[Line]:
        return [Line(f"{SIMULATOR}/device/storage.py", 1, "make"), Line("/home/me/train.py", self._line, "step")]


def taking(logs: RequestLogs) -> RequestSink:
    return lambda device, requests: logs.made(device).take(requests)


@pytest.fixture
def card() -> Iterator[SimulatedGpu]:
    card = SimulatedGpu(0, GIB)
    yield card
    card.empty_cache()


def test_requests_of_a_run_are_kept_with_the_line_that_asked(card: SimulatedGpu) -> None:
    logs = RequestLogs()
    now = [5.0]
    following = RequestFeed([card], taking(logs), lambda: now[0])
    card.tagger = lambda: Asking(12)
    first = card.allocate(MIB)
    now[0] = 6.0
    card.tagger = lambda: Asking(40)
    card.allocate(2 * MIB)
    now[0] = 7.0
    card.release(first)
    following.take()
    log = logs.of("sim:0")
    assert log is not None
    found = log.allocations()
    assert (found.place.tolist(), found.level.tolist()) == ([5.0, 6.0, 7.0], [0, MIB, 3 * MIB, 2 * MIB])
    assert [line.text for line in log.lines] == ["train.py:12 step", "train.py:40 step"]
    assert [frame.file for frame in log.stack_of(0)] == ["/home/me/train.py"], "nothing of the simulator's own"


def test_requests_are_the_same_after_a_way_through_messages(card: SimulatedGpu) -> None:
    here, there = RequestLogs(), RequestLogs()
    receiver = RequestReceiver(taking(there))
    sender = RequestSender(lambda message: receiver.take(json.loads(json.dumps(message))))

    def both(device: str, requests: Sequence[Request]) -> None:
        here.made(device).take(requests)
        sender(device, requests)

    following = RequestFeed([card], both, lambda: 1.0)
    card.tagger = lambda: Asking(12)
    blocks = [card.allocate(KIB) for _ in range(MOST_IN_A_MESSAGE + 3)]
    card.tagger = lambda: Asking(40)
    card.allocate(2 * MIB)
    for block in blocks:
        card.release(block)
    following.close()
    sent, kept = there.made("sim:0"), here.made("sim:0")
    assert [line.text for line in sent.lines] == [line.text for line in kept.lines]
    assert sent.allocations().level.tolist() == kept.allocations().level.tolist()


def test_a_run_that_is_over_is_followed_no_longer(card: SimulatedGpu) -> None:
    logs = RequestLogs()
    following = RequestFeed([card], taking(logs), lambda: 1.0)
    card.allocate(MIB)
    following.close()
    card.allocate(MIB)
    following.take()
    log = logs.of("sim:0")
    assert log is not None and len(log.allocations()) == 1


def test_what_is_not_asked_by_anybody_known_has_no_line(card: SimulatedGpu) -> None:
    logs = RequestLogs()
    following = RequestFeed([card], taking(logs), lambda: 1.0)
    card.allocate(MIB)
    following.close()
    assert [line.text for line in logs.made("sim:0").lines] == ["no stack recorded"]


def test_a_recording_whose_snapshot_is_gone_has_no_requests(tmp_path: Path) -> None:
    found = SnapshotRequests(0.0, lambda _run: "sim:0")
    for topic, details in ((Topic.REPORT, {"folder": str(tmp_path)}), (Topic.SNAPSHOT, {"path": None})):
        found.take(Note(time_s=1.0, run_id=1, topic=topic, text="", details=details))
    assert found.logs.devices == ()
    found.close()
    assert found.logs.devices == ()
    assert (
        found.logs.why_none == f"What each line held is in {tmp_path / 'snapshot.pickle'}, which is not there any more."
    )


def test_a_recording_without_a_snapshot_says_that_none_was_kept() -> None:
    assert SnapshotRequests(0.0, lambda _run: "sim:0").logs.why_none.startswith("No memory snapshot of this program")


@pytest.mark.process
def test_a_recording_has_the_requests_of_a_snapshot_that_lies_where_it_says(tmp_path: Path) -> None:
    made = Made()
    made.malloc(20 * MIB, WEIGHTS)
    made.step(8 * MIB)
    path = made.written(tmp_path / "snapshot.pickle")
    snapshot = made.snapshot()
    began_s = int(snapshot.devices[0].trace.columns.time_us[0]) / 1e6 - 3.0
    found = SnapshotRequests(began_s, lambda run: "cuda:0" if run == 1 else None)
    found.take(Note(time_s=9.0, run_id=1, topic=Topic.SNAPSHOT, text="", details={"path": str(path)}))
    assert found.logs.of("cuda:0") is None, "it is read on a thread of its own"
    reading = found._thread
    assert reading is not None
    reading.join(60.0)
    log = found.logs.of("cuda:0")
    assert log is not None and log.extent is not None
    assert log.extent[0] == pytest.approx(3.0)
    assert int(log.allocations().level.max()) >= 20 * MIB
    found.close()


@pytest.mark.process
def test_a_run_in_a_process_of_its_own_tells_its_requests_and_they_end_with_it() -> None:
    session = Session(Settings(record=False), simulation=Simulation((GIB,)))
    session.start()
    try:
        session.start_run(PipelineSpec(), "sim:0", isolate=True)
        assert session.runs.wait(PATIENCE_S)
        log = session.requests.of("sim:0")
        assert log is not None and log.live() == []
        assert log.allocations().level.max() > 0 and any(line.file.endswith("pipeline.py") for line in log.lines)
    finally:
        session.close()
