"""A store can be asked at any moment, and answers alike whatever its backend is: memory, a recording or a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpudash.session import Replay
from gpudash.session.fleet.view import FleetView
from gpudash.session.recordings import loading
from gpudash.sources.prometheus.address import read_address
from gpudash.sources.prometheus.client import Client
from gpudash.telemetry.readings import NEVER_READ
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Note, Record, Sample, State, Table
from gpudash.telemetry.store import Store
from tests.prometheus_server.fake import NOW, fake_server
from tests.prometheus_server.past import PastServer
from tests.unit.session.fleet.told import fleet_gpu

PATIENCE_S = 60.0
TICKS = 100
SHIFT_S = 0.25
"""Readings are at 0.25, 1.25 …, and not at the edge of what a server is asked for."""

MISSING = range(40, 46)
UUID = "GPU-a"
USED = ("gpu", "used_bytes", UUID)
LABELS = {"uuid": UUID, "gpu": "0", "instance": "n1:10950", "job": "gpudash"}


def used(tick: int) -> int:
    return 10_000 + tick * 37 % 101 * 10


def time_of(tick: int) -> float:
    return tick + SHIFT_S


def records() -> Iterator[Record]:
    gpu = {"nvml_index": 0, "uuid": UUID, "pci_bus_id": "", "product": "GPU", "total_bytes": 20_000}
    yield Note(time_s=0.0, topic="gpus", text="", details={"gpus": [gpu], "torch_names": {"cuda:0": UUID}})
    for tick in range(TICKS):
        allocator = {"allocated_bytes": 4000 + tick, "reserved_bytes": 6000}
        yield sample(time_of(tick) - 0.01, "allocator", "cuda:0", allocator, there=tick not in MISSING)
        memory = {"used_bytes": used(tick), "total_bytes": 20_000}
        yield sample(time_of(tick), "gpu", UUID, memory, there=tick not in MISSING)


def sample(time_s: float, table: Table, device: str, values: dict[str, int], *, there: bool) -> Sample:
    """A reading; or the news that nothing could be read."""
    if there:
        return Sample(time_s, table, device, values)
    return Sample(time_s, table, device, dict.fromkeys(values), dict.fromkeys(values, State.STALE))


@dataclass
class Asked:
    """A store, and how to wait for what its questions had read."""

    store: Store
    settle: Callable[[float], bool]

    def drawn(self, t0: float, t1: float, at: float | None = None) -> tuple[list[float], list[float]]:
        """What is drawn once all that this asks for is there."""
        for _ in range(2):
            with self.store.lock:
                found = self.store.window(USED, t0, t1, 1000, at)
            assert self.settle(PATIENCE_S)
        assert found is not None
        return found[0].tolist(), found[1].tolist()


@contextmanager
def in_memory(_folder: Path) -> Iterator[Asked]:
    store = Store()
    store.link("cuda:0", UUID)
    store.apply_all(list(records()))
    yield Asked(store, lambda _timeout_s: True)


@contextmanager
def in_a_recording(folder: Path) -> Iterator[Asked]:
    path = folder / "a.gpudash"
    store = Store()
    recorder = Recorder(path, meta={})
    recorder.summarise(store)
    store.link("cuda:0", UUID)
    for record in records():
        store.apply(record)
        recorder.add(record)
        recorder.commit()
    recorder.close()
    replay = Replay(path)
    yield Asked(replay.store, replay.settle)
    assert replay.close()


@contextmanager
def in_a_long_recording(folder: Path) -> Iterator[Asked]:
    """Of which the older part is known by its summaries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 64)
        patch.setattr(loading, "WHOLE_ROWS", 100)
        patch.setattr(loading, "TAIL_ROWS", 40)
        with in_a_recording(folder) as asked:
            yield asked


@contextmanager
def on_a_server(_folder: Path) -> Iterator[Asked]:
    past = PastServer()
    times = {tick: NOW + time_of(tick) for tick in range(TICKS) if tick not in MISSING}
    machine = {"instance": LABELS["instance"], "job": LABELS["job"], "device": "cuda:0"}
    past.add("gpudash_gpu_memory_used_bytes", [(at, used(tick)) for tick, at in times.items()], **LABELS)
    past.add("gpudash_gpu_memory_total_bytes", [(at, 20_000) for at in times.values()], **LABELS)
    past.add("gpudash_allocator_allocated_bytes", [(at - 0.01, 4000 + tick) for tick, at in times.items()], **machine)
    past.add("gpudash_allocator_reserved_bytes", [(at - 0.01, 6000) for at in times.values()], **machine)
    gpu = fleet_gpu("a", 0.5, labels=LABELS, torch_name="cuda:0")
    with fake_server(past) as server:
        client = Client(read_address(server.address), timeout_s=PATIENCE_S)
        view = FleetView(gpu, client, NOW, NOW + TICKS, 400)
        assert view.settle(PATIENCE_S)
        yield Asked(view.store, view.settle)
        assert view.close()


@pytest.fixture(params=[in_memory, in_a_recording, in_a_long_recording, on_a_server], scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with request.param(tmp_path_factory.mktemp("store")) as asked:
        yield asked


@pytest.fixture
def asked(opened: Asked) -> Asked:
    """At its end."""
    opened.store.seek(None)
    return opened


@pytest.mark.parametrize("tick", [0, 7, 39, 60, 98])
def test_the_newest_reading_of_a_moment_is_the_one_before_it(asked: Asked, tick: int) -> None:
    moment = time_of(tick) + 0.5
    reading = asked.store.latest(*USED, at=moment)
    assert (reading.value, reading.time_s) == (used(tick), time_of(tick))


def test_a_moment_that_is_asked_about_moves_no_position(asked: Asked) -> None:
    before = asked.store.newest_s, asked.store.version, asked.store.latest(*USED)
    asked.store.latest(*USED, at=20.0)
    asked.drawn(0.0, 50.0, at=20.0)
    assert asked.store.position_s is None
    assert (asked.store.newest_s, asked.store.latest(*USED)) == (before[0], before[2])


def test_behind_the_end_is_the_end_and_before_the_beginning_is_nothing(asked: Asked) -> None:
    assert asked.store.latest(*USED, at=1e9) == asked.store.latest(*USED)
    assert asked.store.latest(*USED).value == used(TICKS - 1)
    assert asked.store.latest(*USED, at=0.1) == NEVER_READ


def test_what_was_never_asked_for_has_neither_reading_nor_window(asked: Asked) -> None:
    assert asked.store.latest("gpu", "nonsense", UUID, at=20.0) == NEVER_READ
    assert asked.store.series("gpu", "nonsense", UUID, at=20.0) is None
    assert asked.store.window(("gpu", "nonsense", UUID), 0.0, 10.0, 100, at=20.0) is None


def test_a_window_at_a_moment_is_what_was_known_then_of_the_whole(asked: Asked) -> None:
    times, values = asked.drawn(10.0, 35.0)
    assert dict(zip(times, values, strict=True)).items() >= {time_of(i): used(i) for i in range(10, 35)}.items()
    moment = time_of(20) + 0.5
    known = [t for t in times if t <= moment]
    assert asked.drawn(10.0, 35.0, at=moment) == (known, values[: len(known)])


def test_what_is_missing_is_a_gap_at_every_moment(asked: Asked) -> None:
    missing = time_of(MISSING[0]), time_of(MISSING[-1])
    for at in (None, 70.0):
        times, values = (np.array(found) for found in asked.drawn(36.0, 50.0, at=at))
        inside = (times >= missing[0]) & (times <= missing[1])
        assert inside.any() and np.isnan(values[inside]).all()
        assert not np.isnan(values[~inside]).any()
    assert asked.store.latest(*USED, at=missing[0] + 0.5).value is None


def test_figures_of_a_range_leave_out_what_came_later(asked: Asked) -> None:
    asked.drawn(10.0, 30.0)
    series = asked.store.series(*USED, at=time_of(20))
    assert series is not None
    found = series.statistics(10.0, 30.0)
    assert found is not None
    known = [used(i) for i in range(10, 21)]
    assert (found.count, found.min, found.max, found.end) == (len(known), min(known), max(known), known[-1])


def test_bands_of_a_moment_are_made_of_its_readings(asked: Asked) -> None:
    store = asked.store
    store.seek(time_of(20) + 0.5)
    for band, size in (("allocated", 4020), ("idle", 6000 - 4020)):
        series = store.series("gpu", f"{band}_bytes", UUID)
        assert series is not None
        assert series.last() == (time_of(20), size)


def test_a_position_is_what_answers_are_of_until_another_is_shown(asked: Asked) -> None:
    store = asked.store
    store.seek(time_of(20) + 0.5)
    assert (store.position_s, store.newest_s) == (time_of(20) + 0.5, time_of(20) + 0.5)
    assert store.latest(*USED).value == used(20)
    assert asked.drawn(10.0, 35.0)[0][-1] == time_of(20)
    assert store.latest(*USED, at=math.inf).value == used(TICKS - 1)
    assert asked.drawn(10.0, 35.0, at=time_of(30))[0][-1] == time_of(30)
    store.seek(None)
    assert store.latest(*USED).value == used(TICKS - 1)
    assert store.newest_s >= time_of(TICKS - 1)


def test_going_from_moment_to_moment_shows_the_same_as_going_there_at_once(asked: Asked) -> None:
    at_once = {tick: asked.drawn(0.0, 100.0, at=time_of(tick)) for tick in (80, 20, 50, 51)}
    for tick, expected in at_once.items():
        asked.store.seek(time_of(tick))
        assert str(asked.drawn(0.0, 100.0)) == str(expected)


def test_whoever_follows_is_told_of_another_moment_and_of_going_back(asked: Asked) -> None:
    store = asked.store
    seen = store.version, store.sharpened, store.rewound
    store.seek(60.0)
    assert store.version > seen[0] and store.sharpened > seen[1] and store.rewound == seen[2] + 1
    store.seek(70.0)
    store.seek(None)
    assert store.rewound == seen[2] + 1
