"""A session with a monitor and a worker that do only what the test tells them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.devices.names import Gpu, Simulation, simulated_gpu
from gpudash.session import Session
from gpudash.sources.simulated_gpus import ShownCard
from gpudash.system.settings import Settings
from gpudash.telemetry.recording.reading import Recording, open_recording
from gpudash.telemetry.records import Note, Record, RunEnd, RunStarted, Sample
from gpudash.units import GIB
from tests.unit.session.watched import Watcher

PATIENCE_S = 10.0
HOST_TOTAL = 16 * GIB

CUDA_TORCH = {"version": "2.13.0+cu130", "cuda_version": "13.0", "cuda_available": True, "devices": [], "problem": None}
CPU_TORCH = {"version": "2.13.0+cpu", "cuda_version": None, "cuda_available": False, "devices": [], "problem": None}


def gpu(index: int, total: int = 24 * GIB) -> Gpu:
    bus = f"00000000:{0x41 + index:02X}:00.0"
    return Gpu(index, f"GPU-{index}", bus, "NVIDIA H200", total, (9, 0))


class FakeMonitor:
    """Lists the GPUs it is given and reads nothing; `stop` may hang until `release` is set."""

    host_capacity_source = "RAM"
    driver_version = "580.65.06"
    nvml_text = "Driver Not Loaded"
    looked = 0

    def __init__(self, emit: Callable[[Record], None], clock: Callable[[], float], rate_hz: float) -> None:
        self.emit = emit
        self.clock = clock
        self.gpus: tuple[Gpu, ...] = ()
        self.problem: str | None = "No NVIDIA card was found; everything runs on the CPU."
        self.hangs = False
        self.probe = None
        self.cards: Sequence[ShownCard] = ()
        self.adopted: list[int | None] = []

    def adopt(self, pid: int | None) -> None:
        self.adopted.append(pid)

    def retry_now(self) -> None:
        self.looked += 1

    def watch_cards(self, cards: Sequence[ShownCard]) -> None:
        self.cards = cards
        for card in cards:
            shown = card.now()
            self.card(simulated_gpu(card.index, card.capacity), shown.capacity - shown.free)

    def start(self) -> None:
        """Nothing reads."""

    def stop(self, timeout_s: float = 2.0) -> bool:
        if self.hangs:
            threading.Event().wait(timeout_s)
        return not self.hangs

    def statistics(self) -> tuple[Any, ...]:
        return ()

    def has(self, *gpus: Gpu) -> None:
        self.gpus, self.problem = gpus, None

    def host(self, used: int | None, *, time_s: float | None = None, total: int = HOST_TOTAL) -> None:
        values = {"used_bytes": used, "total_bytes": total}
        if used is not None:
            values |= {"available_bytes": total - used, "process_bytes": GIB}
        self.emit(Sample(self.clock() if time_s is None else time_s, "host", None, values))

    def card(self, found: Gpu, used: int, *, time_s: float | None = None) -> None:
        total = found.total_bytes or 0
        values = {"used_bytes": used, "free_bytes": total - used, "total_bytes": total, "driver_reserved_bytes": 0}
        self.emit(Sample(self.clock() if time_s is None else time_s, "gpu", found.uuid, values))


class FakeWorker:
    """Takes a run and ends it when told; `close` may hang as one blocked in an operation does."""

    def __init__(self, emit: Callable[[Record], None], clock: Callable[[], float], on_probe: Any = None) -> None:
        self.emit = emit
        self.clock = clock
        self.request: Any = None
        self.stopped = threading.Event()
        self.because: str | None = None
        self.hangs = False
        self.closed = False
        self.on_submit: Callable[[Any], None] = lambda _request: None

    def start(self) -> None:
        """Nothing runs."""

    def warm_up(self, isolate: bool = False) -> None:
        self.torch(CPU_TORCH)

    def torch(self, report: dict[str, Any]) -> None:
        self.emit(Note(time_s=self.clock(), topic="torch", text="torch", details=report))

    @property
    def busy(self) -> bool:
        return self.request is not None

    def submit(self, request: Any) -> None:
        if self.closed:
            raise RuntimeError("The worker is closed.")
        self.request = request
        self.stopped.clear()
        self.on_submit(request)

    def begin(self) -> None:
        request = self.request
        self.emit(
            RunStarted(
                time_s=self.clock(),
                run_id=request.run_id,
                workload=request.spec.name,
                device=request.device,
                spec=request.spec.model_dump(mode="json"),
            )
        )

    def finish(self, status: Any = "finished") -> None:
        request, self.request = self.request, None
        self.emit(RunEnd(time_s=self.clock(), run_id=request.run_id, status=status, seconds=1.0, steps=3, result={}))

    def stop(self, because: str | None = None) -> None:
        if self.request is not None and not self.stopped.is_set():
            self.because = because
            self.stopped.set()

    def free_cache(self) -> None:
        """There is none."""

    def close(self, timeout_s: float) -> bool:
        self.closed = True
        self.stop()
        if self.hangs:
            threading.Event().wait(timeout_s)
        elif self.request is not None:
            self.finish("cancelled")
        return not self.hangs


class Observed:
    """Records as the session passes them on, and a way to wait for one."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._came = threading.Condition()

    def __call__(self, record: Record) -> None:
        with self._came:
            self.records.append(record)
            self._came.notify_all()

    def wait_for(self, matches: Callable[[Record], bool]) -> Record:
        def found() -> Record | None:
            return next((record for record in self.records if matches(record)), None)

        with self._came:
            assert self._came.wait_for(lambda: found() is not None, PATIENCE_S), self.records[-5:]
            record = found()
            assert record is not None
            return record

    def wait_event(self, kind: type[Any], **facts: Any) -> Any:
        def matches(record: Record) -> bool:
            return isinstance(record, kind) and all(getattr(record, name) == value for name, value in facts.items())

        return self.wait_for(matches)


@dataclass
class Live:
    """A started session and what stands in for the machine under it."""

    session: Session
    monitor: FakeMonitor
    worker: FakeWorker
    seen: Observed = field(default_factory=Observed)

    def end(self) -> None:
        self.monitor.hangs = self.worker.hangs = False
        self.session.close()

    def settle(self) -> None:
        """Wait until everything emitted so far has been taken in."""
        label = f"settled {self.session.clock()}"
        self.session.mark(label)
        self.seen.wait_for(lambda record: getattr(record, "label", None) == label)


Make = Callable[..., Live]


def reopened(live: Live) -> Recording:
    assert live.session.recording_path is not None
    return open_recording(live.session.recording_path)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Starts sessions and closes them after the test."""
    monkeypatch.setattr("gpudash.sources.monitor.Monitor", FakeMonitor)
    monkeypatch.setattr("gpudash.workloads.running.worker.Worker", FakeWorker)
    with ExitStack() as stack:

        def begin(
            *,
            record: bool = False,
            settings: Settings | None = None,
            start: bool = True,
            simulation: Simulation | None = None,
        ) -> Live:
            recording = tmp_path / "run.gpudash" if record else None
            session = Session(settings, recording=recording, simulation=simulation)
            live = Live(session, session._monitor, session._worker)  # type: ignore[arg-type]
            session.on_record = live.seen
            stack.callback(live.end)
            if start:
                session.start()
            return live

        yield begin


@pytest.fixture
def watcher(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """A session; afterwards it has closed in time, and no socket is left."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    before = set(psutil.Process().children(recursive=True))
    # tests that run in the background ignore it, and so would the programs that they start
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)
    found = Watcher(tmp_path)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, heeded)
    assert found.session.close()
    assert list(runtime.iterdir()) == []
    assert set(psutil.Process().children(recursive=True)) <= before
