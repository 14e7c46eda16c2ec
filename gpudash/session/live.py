"""The application without a screen: it wires monitor, worker, store, memory watch, guard and recorder together.

Records from every thread arrive on one queue. The session's own thread empties it into the store, the memory watch
and the recorder, so neither a flood of records nor a blocked window delays a warning, the guard or the recording.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.devices import CudaOrder, Device, Gpu, cuda_order, default_device, link_bytes_per_second
from gpudash.memory.forecast import Forecast
from gpudash.memory.guard import Guard
from gpudash.memory.watch import MemoryWatch
from gpudash.session.status import Status
from gpudash.settings import Settings, recordings_folder
from gpudash.specs import Spec
from gpudash.telemetry.naming import recording_name
from gpudash.telemetry.recorder import Recorder
from gpudash.telemetry.records import (
    Marker,
    Note,
    OutOfMemory,
    Record,
    RunFailed,
    RunFinished,
    Sample,
    Warning,
)
from gpudash.telemetry.retention import prune
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes

if TYPE_CHECKING:
    from gpudash.workloads.worker import MemoryLevel

CLOSE_TIMEOUT_S = 2.0
"""Longest that closing waits for the run and all threads together."""

SWITCH_INTERVAL_S = 0.0005
"""Interpreter switch interval: halves the window's lateness under pure-Python work and costs nothing measurable."""

_POLL_S = 0.1
"""Longest the session thread sleeps without a record, so that the recorder's commits stay due."""


class Session:
    """One session: from the first reading to the closed recording.

    Args:
        settings: thresholds, rates and limits.
        recording: file to record to; ``None`` records nothing.
        notices: sentences (about settings, say) that become notes of the session.

    Raises:
        RecordingError: from `start`, when the recording cannot be written.
    """

    def __init__(
        self, settings: Settings | None = None, *, recording: Path | None = None, notices: list[str] | None = None
    ) -> None:
        from gpudash.sources.discovery import survey_host
        from gpudash.sources.monitor import Monitor
        from gpudash.workloads.worker import Worker

        self.settings = settings or Settings()
        self.store = Store()
        self.recording = recording
        self.began_wall_s = time.time()
        self._origin = time.monotonic()
        self._queue: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._recorder: Recorder | None = None
        self._recording_failed = False
        self._watch = MemoryWatch(
            self.settings.warn_ratio, self.settings.critical_ratio, self.settings.hysteresis_ratio
        )
        self._watch.describe = self.device_words
        self._guards: dict[str, Guard] = {}
        self._thread: threading.Thread | None = None
        self._run_ended = threading.Event()
        self._run_ended.set()
        self._run_id = 0
        self._torch: Mapping[str, Any] | None = None
        self._ready = threading.Event()
        self._linked: tuple[tuple[Gpu, ...], dict[str, str]] = ((), {})
        self.on_record: Callable[[Record], None] | None = None
        self._notices = list(notices or ())
        self._host = survey_host()
        self._monitor = Monitor(self.emit, self.clock, self.settings.rate_hz)
        self._worker = Worker(self.emit, self.clock, on_probe=self._monitor.probe)

    def clock(self) -> float:
        """Session time: monotonic seconds since the session began."""
        return time.monotonic() - self._origin

    def emit(self, record: Record) -> None:
        """Put a record on the queue; callable from any thread."""
        self._queue.put(record)

    def start(self, *, worker: bool = True) -> None:
        """Open the recording and start every thread; without ``worker`` the session only watches.

        Raises:
            RecordingError: one sentence, when the recording cannot be written.
        """
        if self.recording is not None:
            self._recorder = Recorder(self.recording, meta=self._meta())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._drain, name="gpudash-session", daemon=True)
        self._thread.start()
        self._monitor.start()
        if worker:
            self._worker.start()
        for text in self._notices:
            self.emit(Note(time_s=self.clock(), topic="settings", text=text))

    def load_torch(self) -> None:
        """Import torch in the worker, ahead of the first run."""
        self._worker.warm_up()

    @property
    def host_capacity_source(self) -> str:
        """What limits host memory: "RAM", or the name of a container's limit."""
        return self._monitor.host_capacity_source

    def summary(self) -> dict[str, Any]:
        """What ``gpudash monitor --json`` prints."""
        with self.store.lock:
            events = [event for event in self.store.events if isinstance(event, Warning)]
            readings = {
                key: len(series) if (series := self.store.series(table, "used_bytes", device)) is not None else 0
                for key, table, device in (
                    ("cpu", "host", None),
                    *((gpu.uuid, "gpu", gpu.uuid) for gpu in self.gpus),
                )
            }
        return {
            "status": "finished",
            "seconds": self.clock(),
            "rate_hz": self.settings.rate_hz,
            "readings": readings,
            "missed": self.status().missed,
            "own_cpu_ratio": self.status().own_cpu_ratio,
            "gpu_problem": self.gpu_problem,
            "warnings": [event.text for event in events],
            "error": None,
            "recording": str(self.recording) if self.recording is not None else None,
        }

    def devices(self) -> list[Device]:
        """The devices a run can use: the CPU first, then torch's CUDA devices in torch's order."""
        host = Device("cpu", f"{self._host.product}, {self._host.cores} cores", self._host.total_bytes)
        if self._torch is not None and not self._torch.get("cuda_available"):
            return [host]
        return [
            host,
            *(
                Device(f"cuda:{index}", gpu.product, gpu.total_bytes, gpu.uuid)
                for index, gpu in enumerate(self.cuda_order().gpus)
            ),
        ]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU NVML lists, also those torch does not see."""
        return self._monitor.gpus

    def cuda_order(self) -> CudaOrder:
        """torch's numbering of the GPUs NVML lists."""
        return cuda_order(
            self._monitor.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
        )

    def default_device(self) -> str:
        """The usable CUDA device with most free memory, else the CPU."""
        devices = self.devices()
        free = {d.uuid: self._latest_int("gpu", "free_bytes", d.uuid) or 0 for d in devices if d.uuid}
        return default_device(devices, free)

    @property
    def gpu_problem(self) -> str | None:
        """One line saying why no GPU can be used, or why some are missing; ``None`` when all is well."""
        if self._monitor.problem is not None:
            return self._monitor.problem
        if self._torch is not None and not self._torch.get("cuda_available") and self._monitor.gpus:
            return self._torch.get("problem") or (
                f"torch {self._torch.get('version')} is a CPU build though a GPU is there; "
                "install a CUDA build of torch to run on it"
            )
        return self.cuda_order().reason or None

    def device_words(self, device: str) -> str:
        """How a reading's device (a GPU's UUID or "host") is called in a sentence."""
        if device == "host":
            return "This computer's memory"
        names = {found.uuid: found.name for found in self.devices()}
        return names.get(device) or next((f"GPU {gpu.nvml_index}" for gpu in self.gpus if gpu.uuid == device), device)

    def start_run(self, spec: Spec, device: str, guard_bytes: int | None = None) -> int:
        """Start a run and return its number.

        Args:
            spec: what to run.
            device: "cpu" or "cuda:0".
            guard_bytes: stop the run when memory grows this far above its use now; ``None`` guards host memory at
                the critical level, where the settings ask for a guard.

        Raises:
            ValueError: one sentence, when the device is not there or cannot run this spec.
            RuntimeError: when a run is on.
        """
        from gpudash.workloads.worker import RunRequest

        found = self.find_device(device)
        problems = spec.problems(device)
        if problems:
            raise ValueError("; ".join(problems))
        if self._worker.busy:
            raise RuntimeError("A run is on; stop it before starting another.")
        self._run_id += 1
        key = found.uuid or "host"
        self._arm(key, guard_bytes)
        self._run_ended.clear()
        self._worker.submit(
            RunRequest(
                spec=spec,
                device=device,
                run_id=self._run_id,
                refuse=self._refusal(key),
                memory=lambda: self._memory_level(key),
                warn_ratio=self.settings.warn_ratio,
                expected_uuid=found.uuid,
                link_bytes_per_second=self._link_rate(found.uuid),
            )
        )
        return self._run_id

    def find_device(self, name: str) -> Device:
        """The device called ``name``.

        Raises:
            ValueError: one sentence saying which devices there are and why this one is not.
        """
        devices = {device.name: device for device in self.devices()}
        if name in devices:
            return devices[name]
        there = ", ".join(devices)
        if name.startswith("cuda"):
            reason = self.gpu_problem
            raise ValueError(
                f"There is no device {name!r} ({reason}); there is: {there}."
                if reason
                else f"There is no device {name!r}; there is: {there}."
            )
        raise ValueError(f"{name!r} is not a device; there is: {there}.")

    def stop_run(self) -> None:
        """Ask the run to stop after its current operation."""
        self._worker.stop()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until torch is loaded and the host's memory has been read once."""
        return self._ready.wait(timeout_s) and self._latest_int("host", "used_bytes", None) is not None

    def wait_run(self, timeout_s: float | None = None) -> bool:
        """Wait until the run's end has been stored; false when the time passed first."""
        return self._run_ended.wait(timeout_s)

    @property
    def running(self) -> bool:
        """Whether a run is on: from `start_run` until its end is stored."""
        return not self._run_ended.is_set()

    @property
    def torch_ready(self) -> bool:
        """Whether torch has been imported (or has been found to be missing)."""
        return self._torch is not None

    def forecast(self, device: str) -> Forecast | None:
        """When a memory ("host" or a GPU's UUID) reaches its capacity or the guard, if it goes on growing as it does."""
        return self._watch.forecast(device)

    def free_cache(self) -> None:
        """Give idle memory back: torch's cached segments and the host's freed heap."""
        self._worker.free_cache()

    def mark(self, label: str, time_s: float | None = None) -> None:
        """Mark a moment, now if none is given."""
        self.emit(Marker(time_s=self.clock() if time_s is None else time_s, label=label))

    def save_recording(self, target: Path) -> None:
        """Write a copy of the recording as far as it has come.

        Raises:
            ValueError: when nothing is recorded.
            RecordingError: when the target cannot be written.
        """
        if self._recorder is None:
            raise ValueError("This session is not recorded; nothing can be saved.")
        self._recorder.copy_to(target)

    def status(self) -> Status:
        """Figures for the status line."""
        figures = self._monitor.statistics()
        elapsed = max(self.clock(), 1e-9)
        size = sum(file.stat().st_size for file in self._files() if file.exists())
        return Status(
            recording=self.recording if self._recorder is not None and not self._recording_failed else None,
            recording_bytes=size,
            rate_hz=self.settings.rate_hz,
            missed=sum(lane.missed for lane in figures),
            own_cpu_ratio=sum(lane.cpu_s for lane in figures) / elapsed,
            driver=self._monitor.driver_version,
            torch=self._torch_words(),
        )

    def _files(self) -> list[Path]:
        """The recording and the log SQLite keeps beside it while it is written."""
        return [] if self.recording is None else [self.recording, Path(f"{self.recording}-wal")]

    def close(self) -> bool:
        """Stop the run, join every thread, close the recording; at most `CLOSE_TIMEOUT_S` in all.

        Returns:
            False when a thread could not be joined: the process must then leave without waiting for it.
        """
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        was_running = self.running
        self._worker.stop()
        joined = self._worker.close(max(0.0, deadline - 0.5 - time.monotonic()))
        joined = self._monitor.stop(max(0.1, deadline - 0.2 - time.monotonic())) and joined
        if was_running and self.running and not joined:
            self._end_abandoned_run()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(max(0.2, deadline - time.monotonic()))
            joined = not self._thread.is_alive() and joined
        return joined

    def _end_abandoned_run(self) -> None:
        run = self.store.run
        now = self.clock()
        if run is not None:
            seconds = now - run.began_s
            self.emit(
                RunFinished(
                    time_s=now, run_id=run.run_id, status="cancelled", seconds=seconds, steps=run.step, result={}
                )
            )

    def _drain(self) -> None:
        try:
            if self.recording is not None and self.recording.parent == recordings_folder():
                prune(
                    self.recording.parent,
                    self.settings.recordings_bytes,
                    self.settings.recordings_count,
                    keep=self.recording,
                )
        except OSError as error:
            self._take(Note(time_s=self.clock(), topic="recordings", text=f"Old recordings were not tidied ({error})."))
        while True:
            try:
                record = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                record = None
                closing = False
            else:
                closing = record is None
            if record is not None:
                self._take(record)
            if self._monitor.gpus != self._linked[0]:
                self._link_devices()
            if self._recorder is not None:
                self._recorder.tick()
                self._tell_if_recording_failed(self._recorder)
            if closing:
                break
        if self._recorder is not None:
            self._recorder.close("closed" if self._run_ended.is_set() else "cancelled")

    def _take(self, record: Record) -> None:
        self.store.apply(record)
        if self._recorder is not None:
            self._recorder.add(record)
        if self.on_record is not None:
            self.on_record(record)
        if isinstance(record, Sample):
            for event in self._watch.observe(record):
                self._take(event)
            for guard in tuple(self._guards.values()):
                crossed = guard.observe(record)
                if crossed is not None:
                    self._guard_stops(crossed)
        elif isinstance(record, Note) and record.topic == "torch":
            self._torch = record.details
            self._link_devices()
            self._ready.set()
        elif isinstance(record, (RunFinished, RunFailed, OutOfMemory)):
            self._disarm()
            self._run_ended.set()

    def _tell_if_recording_failed(self, recorder: Recorder) -> None:
        if recorder.failed is None or self._recording_failed:
            return
        self._recording_failed = True
        self._take(
            Warning(
                time_s=self.clock(),
                run_id=self._run_id or None,
                level="warning",
                device="recording",
                text=recorder.failed,
                actions=("save_recording",),
            )
        )

    def _arm(self, key: str, guard_bytes: int | None) -> None:
        self._guards = {}
        if guard_bytes is not None:
            used = self._latest_int("host" if key == "host" else "gpu", "used_bytes", None if key == "host" else key)
            self._guards[key] = Guard()
            self._guards[key].arm(
                key,
                (used or 0) + guard_bytes,
                f"the guard, {format_bytes(guard_bytes)} above the use at the start of the run",
            )
        if self.settings.guard and "host" not in self._guards:
            total = self._latest_int("host", "total_bytes", None)
            if total is not None:
                self._guards["host"] = Guard()
                self._guards["host"].arm("host", int(total * self.settings.critical_ratio), "the guard's level")
        self._watch.guards = self._guards

    def _disarm(self) -> None:
        self._guards = {}
        self._watch.guards = {}

    def _refusal(self, key: str) -> Callable[[int], str | None]:
        guard = self._guards.get(key)

        def refuse(size: int) -> str | None:
            sentence = guard.refuse(size) if guard is not None else None
            if sentence is not None:
                self._warn_of_guard(key, sentence)
            return sentence

        return refuse

    def _guard_stops(self, sentence: str) -> None:
        if self._worker.busy:
            self._warn_of_guard("host", sentence)
            self._worker.stop(because=sentence)
        self._disarm()

    def _warn_of_guard(self, key: str, sentence: str) -> None:
        self.emit(
            Warning(time_s=self.clock(), run_id=self._run_id, level="critical", device=key, text=sentence, actions=())
        )

    def _memory_level(self, key: str) -> MemoryLevel | None:
        from gpudash.workloads.worker import MemoryLevel

        table, device = ("host", None) if key == "host" else ("gpu", key)
        used = self._latest_int(table, "used_bytes", device)
        total = self._latest_int(table, "total_bytes", device)
        free = self._latest_int(table, "available_bytes" if key == "host" else "free_bytes", device)
        if used is None or total is None or free is None:
            return None
        return MemoryLevel(used_bytes=used, free_bytes=free, total_bytes=total)

    def _link_rate(self, uuid: str | None) -> float | None:
        if uuid is None:
            return None
        generation, width = (self._latest_int("gpu", metric, uuid) for metric in ("pcie_generation", "pcie_width"))
        return link_bytes_per_second(generation, width)

    def _latest_int(self, table: str, metric: str, device: str | None) -> int | None:
        with self.store.lock:
            value = self.store.latest(table, metric, device).value
        return int(value) if isinstance(value, (int, float)) else None

    def _link_devices(self) -> None:
        """Tell the store, and so the recording, which GPU is which; again whenever that changes."""
        names = {device.name: device.uuid for device in self.devices() if device.uuid is not None}
        known = (self._monitor.gpus, names)
        if known == self._linked:
            return
        self._linked = known
        for name, uuid in names.items():
            self.store.link(name, uuid)
        gpus = [asdict(gpu) for gpu in self._monitor.gpus]
        words = ", ".join(gpu.product for gpu in self._monitor.gpus) or "no GPU"
        self._take(Note(time_s=self.clock(), topic="gpus", text=words, details={"gpus": gpus, "torch_names": names}))

    def _torch_words(self) -> str | None:
        if self._torch is None:
            return None
        if self._torch.get("version") is None:
            return "no torch"
        return f"torch {self._torch['version']}"

    def _meta(self) -> dict[str, Any]:
        return {
            "wall_clock_origin": datetime.fromtimestamp(self.began_wall_s, UTC).isoformat(),
            "rate_hz": self.settings.rate_hz,
            "host_product": self._host.product,
            "host_capacity_source": self._monitor.host_capacity_source,
        }


def recording_target(settings: Settings, name: str, *, file: Path | None, record: bool) -> Path | None:
    """Where a session is recorded: the named file, a new one in the recordings folder, or nowhere."""
    if file is not None:
        return file
    if not record or not settings.record:
        return None
    return recording_name(recordings_folder(), name)
