"""The application without a screen: it wires monitor, worker, store, memory watch, guard and recorder together.

Records from every thread arrive on one queue. The session's own thread empties it into the store, the memory watch
and the recorder, so neither a flood of records nor a blocked window delays a warning, the guard or the recording.
"""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import Device, Gpu, SimulatedCard, Simulation
from gpudash.memory.request_log import Request, RequestLogs
from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.watch import MemoryWatch
from gpudash.session.live.event_log import log_record
from gpudash.session.live.machine import Machine
from gpudash.session.live.running import RunGuards, Running, profile_request
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.session.predicting.cudnn_permission import let_predictions_ask
from gpudash.session.recordings.folder import session_meta, size_on_disk, tidy
from gpudash.session.watching.output.log import OutputLog
from gpudash.session.watching.request import WatchRequest
from gpudash.session.watching.wiring import Wiring
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.system.settings import Settings, recordings_folder
from gpudash.system.threads import started
from gpudash.telemetry.readings import NEVER_READ, Reading
from gpudash.telemetry.recording.facts import run_title
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import (
    REMOVED,
    Level,
    Marker,
    Note,
    Record,
    RemediesFound,
    RunEnd,
    RunStarted,
    Sample,
    SourceFailed,
    Topic,
    Value,
    Warning,
)
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import Store
from gpudash.workloads.running.card_requests import RequestFeed

if TYPE_CHECKING:
    from gpudash.session.live.notifying import Notifier
    from gpudash.session.predicting.estimates import Estimates
    from gpudash.session.predicting.measured import MeasuredRuns
    from gpudash.session.predicting.remedies import Remedies
    from gpudash.session.predicting.script_predictions import ScriptPredictions

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""Longest that closing waits for the run and all threads together."""

RECORDING_SHARE_S = 0.5
"""Part of `CLOSE_TIMEOUT_S` kept for what closes last, the recording."""

LANES_SHARE_S = 0.3
"""Part of it kept for the monitor's lanes when the run does not end; a lane that is not stuck ends within 0.1 s."""

SWITCH_INTERVAL_S = 0.0005
"""Interpreter switch interval: halves the window's lateness under pure-Python work and costs nothing measurable."""

MOST_FAULTS = 100
"""Most kinds of faults of the session's own thread; each is reported once."""

SHOWN_FAULT = 200
"""Characters shown of an exception's message."""

LEFT = {"text": "gpudash was ended before it had stopped.", "signals": []}
"""Outcome of a run that had not ended when gpudash closed, in the form that a watched program's outcome has."""

_POLL_S = 0.1
"""Longest the session thread sleeps without a record, so that the recorder's commits stay due."""


class Session:
    """One session: from the first reading to the closed recording.

    Args:
        settings: thresholds, rates and limits.
        recording: file to record to; ``None`` records nothing.
        may_number: number the name of the recording as the session starts when it is taken.
        notices: sentences (about settings, say) that become notes of the session.
        simulation: GPUs to simulate; without any, one is offered where there is no GPU.
        notify: targets for warnings and ends of runs, beside those in the settings.

    Raises:
        RecordingError: from `start`, when the recording cannot be written.

    Attributes:
        recording_path: the file that is recorded to; its name is settled once the session has started.
        machine: the devices.
        runs: the run that is on, and the program that is watched.
        on_record: called with every record, on the session's thread; it must not wait for anything.
        output: what the program that is watched has printed, the newest lines.
        requests: what programs and runs asked of their allocators, as far as that is recorded.
        undelivered: sentences about whom the settings or ``notify`` name and who could not be told.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        recording: Path | None = None,
        may_number: bool = False,
        notices: list[str] | None = None,
        simulation: Simulation | None = None,
        notify: Sequence[str] = (),
    ) -> None:
        from gpudash.sources.discovery import survey_host
        from gpudash.sources.monitor import Monitor
        from gpudash.workloads.running.worker import Worker

        self.settings = settings or Settings()
        let_predictions_ask(without_driver=self.settings.ask_cudnn)
        self.store = Store()
        self.recording_path = recording
        self._may_number = may_number
        # Both at one moment: with them the recording turns session time into wall time.
        self.began_wall_s, self._origin = time.time(), time.monotonic()
        self.on_record: Callable[[Record], None] | None = None
        self._notices = list(notices or ())
        self._queue: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._own_cpu_s = 0.0
        self._recorder: Recorder | None = None
        self._broken: set[str] = set()
        self._notify = [*notify, *filter(None, [self.settings.notify])]
        self._notifier: Notifier | None = None
        self.undelivered: list[str] = []
        self._ready = threading.Event()
        self._guards = RunGuards(self._warn_of_guard)
        self._monitor = Monitor(self.emit, self.clock, self.settings.rate_hz)
        self._worker = Worker(self.emit, self.clock, on_probe=self._monitor.probe)
        simulated = SimulatedGpus(simulation or Simulation(), self._monitor.watch_cards)
        self.machine = Machine(survey_host(), self._monitor, self.store, simulated)
        self._predicting = threading.Lock()
        self._estimates: Estimates | None = None
        self._remedies: Remedies | None = None
        self._measured: MeasuredRuns | None = None
        self._scripts: ScriptPredictions | None = None
        self._watch = MemoryWatch(
            warn_ratio=self.settings.warn_ratio,
            critical_ratio=self.settings.critical_ratio,
            hysteresis_ratio=self.settings.hysteresis_ratio,
        )
        self._watch.describe, self._watch.memory_of = self.machine.memory_name, self.machine.memory_of
        self._watch.pool_of = self.machine.pool_of
        self.runs = Running(
            self.machine, self._worker, self._guards, self._guarded, lambda: self.settings, self._take_requests
        )
        self.output = OutputLog()
        self.requests = RequestLogs()
        self._card_requests: RequestFeed | None = None

    @property
    def estimates(self) -> Estimates:
        """Predicts what runs would take; made when first needed: watching alone never needs it."""
        with self._predicting:
            if self._estimates is None:
                from gpudash.session.predicting.estimates import Estimates

                self._estimates = Estimates(self.machine, self.store)
            return self._estimates

    @property
    def remedies(self) -> Remedies:
        """Looks for what would have fitted, after an out-of-memory; made like `estimates`."""
        with self._predicting:
            if self._remedies is None:
                from gpudash.session.predicting.remedies import Remedies

                self._remedies = Remedies(self.machine, self.store, self.emit, self.clock)
            return self._remedies

    @property
    def measured(self) -> MeasuredRuns:
        """Finds what a script took when it ran before; made like `estimates`."""
        with self._predicting:
            if self._measured is None:
                from gpudash.session.predicting.measured import MeasuredRuns

                self._measured = MeasuredRuns(recordings_folder, lambda: self.recording_path, self.requests)
            return self._measured

    @property
    def scripts(self) -> ScriptPredictions:
        """Predicts the user's script before it runs; made like `estimates`."""
        estimates = self.estimates
        with self._predicting:
            if self._scripts is None:
                from gpudash.session.predicting.script_predictions import ScriptPredictions

                self._scripts = ScriptPredictions(estimates)
            return self._scripts

    @property
    def live(self) -> Session:
        """This one can be commanded."""
        return self

    @property
    def torch_ready(self) -> bool:
        """Whether torch has been imported (or has been found to be missing)."""
        return self.machine.torch is not None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU NVML lists, also those torch does not see, and behind them the simulated ones."""
        return self.machine.gpus

    @property
    def gpu_problem(self) -> str | None:
        """One line saying why no GPU can be used, or why some are missing; ``None`` when all is well."""
        return self.machine.problem

    @property
    def host_capacity_source(self) -> str:
        """What limits host memory: "RAM", or the name of a container's limit."""
        return self.machine.host_capacity_source

    def devices(self) -> list[Device]:
        """The devices a run can use: the CPU, torch's CUDA devices in torch's order, the simulated ones."""
        return self.machine.devices()

    def default_device(self) -> str:
        """Where a run takes place unless told otherwise, as of `Machine.default_device`."""
        return self.machine.default_device()

    def simulate(self, card: SimulatedCard) -> str:
        """torch's name of a simulated card of this kind, which runs can use from now on; made unless there is one.

        Raises:
            ValueError: one sentence, when there are as many as can be.
        """
        return self.machine.simulated.simulate(card)

    def device_text(self, device: str) -> str:
        """How a reading's device (a GPU's UUID or "host") is called in a sentence."""
        return self.machine.memory_name(device)

    def run_title(self, number: int) -> str:
        """What the user has called the run ``number``, counted from 1, since it is recorded."""
        recorder = self._recorder
        if recorder is None:
            return ""
        return run_title(recorder.annotations, number, len(self.store.runs))

    def clock(self) -> float:
        """Session time: monotonic seconds since the session began."""
        return time.monotonic() - self._origin

    def emit(self, record: Record) -> None:
        """Put a record on the queue; callable from any thread."""
        # Before it is queued: a start that comes now must learn that this end is on its way (`Running._await_end`).
        if isinstance(record, RunEnd):
            self.runs.announce_end(record)
        self._queue.put(record)

    def start(self, *, worker: bool = True) -> None:
        """Open the recording and start every thread; without ``worker`` the session only watches.

        Raises:
            RecordingError: one sentence, when the recording cannot be written.
        """
        # First, since it may raise: nothing has been started yet that would have to be stopped.
        if self.recording_path is not None:
            source, product = self.host_capacity_source, self.machine.host.product
            meta = session_meta(self.began_wall_s, self.settings, product, source)
            self._recorder = Recorder(self.recording_path, meta=meta, may_number=self._may_number)
            self.recording_path = self._recorder.path
            self._recorder.summarise(self.store)
        if self._notify:
            self._notifier = self._make_notifier()
        logger.info("the session began, %s", "recorded" if self._recorder is not None else "not recorded")
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread = started("gpudash-session", self._drain)
        self._monitor.start()
        self.machine.simulated.start()
        self.machine.expects_torch = worker
        if worker:
            self._worker.start()
        for text in self._notices:
            self.emit(Note(time_s=self.clock(), topic=Topic.SETTINGS, text=text))

    def load_torch(self, isolate: bool = False) -> None:
        """Import torch ahead of the first run: in the worker, or with ``isolate`` in a run's own process only."""
        self._worker.warm_up(isolate)

    def start_run(
        self,
        spec: Spec,
        device: str,
        guard_bytes: int | None = None,
        memory_cap: MemoryCap | None = None,
        isolate: bool | None = None,
        profile_steps: int = 0,
    ) -> int:
        """Start a run and return its number.

        Args:
            spec: what to run.
            device: "cpu", "cuda:0" or "sim:0".
            guard_bytes: stop the run when memory grows this far above its use now; ``None`` guards host memory at
                the critical level, where the settings ask for a guard.
            memory_cap: the most that torch may reserve on the device while the run is on.
            isolate: host the run in a process of its own; ``None`` does so on CUDA, and for a comparison.
            profile_steps: so many steps after the first are profiled; a run of one step is profiled from its beginning.

        Raises:
            ValueError: one sentence, when the device is not there or cannot run this spec, or on `profile_steps`.
            RuntimeError: when a run is on, or the session is closed.
        """
        where = self.machine.find(device)
        request = None
        if profile_steps:
            request = profile_request(profile_steps, self.recording_path, spec)
        following = None
        if not self.running and where.name.startswith("sim"):
            # from before its first request on; the session's thread ends it with the run
            following = RequestFeed(self.machine.simulated.cards, self._take_requests, self.clock)
        try:
            number = self.runs.start(
                spec, where, guard_bytes=guard_bytes, memory_cap=memory_cap, isolate=isolate, profile=request
            )
        except (ValueError, RuntimeError):
            if following is not None:
                following.close()
            raise
        self._card_requests = following or self._card_requests
        return number

    def profile(self, steps: int) -> None:
        """Profile the run's next ``steps``; a note of topic "operators" answers.

        Raises:
            ValueError: one sentence, when so many steps are not profiled.
            RuntimeError: one sentence, when no run is on, steps are being profiled, or the program is the user's own.
        """
        self.runs.profile(profile_request(steps, self.recording_path))

    def watch(self, request: WatchRequest) -> int:
        """Start the user's own program and watch it, as a run of the workload "watch"; returns the run's number.

        Raises:
            ValueError: one sentence, when the program cannot be started.
            RuntimeError: when a run is on.
        """
        from gpudash.session.watching.watch import Watching

        return self.runs.watch(lambda run_id: Watching(request, run_id, self._wiring()))

    def attach(self, pid: int, *, by_gdb: bool = False, memory_history: bool = True) -> int:
        """Watch a running process, from inside where there is a way in, as a run of the workload "watch".

        Args:
            pid: of the process.
            by_gdb: go inside by a debugger and no other way.
            memory_history: record who allocates what from now on.

        Returns:
            the run's number.

        Raises:
            ValueError: one sentence, when the process is gone, not ours, or this one.
            RuntimeError: when a run is on.
        """
        from gpudash.session.watching.attaching.attached import Attached, AttachRequest

        request = AttachRequest(pid, by_gdb=by_gdb, memory_history=memory_history)
        return self.runs.watch(lambda run_id: Attached(request, run_id, self._wiring()))

    def save_snapshot(self) -> None:
        """Ask the program that is watched for a memory snapshot; a note of topic "snapshot" answers.

        Raises:
            RuntimeError: one sentence, when no program is watched, or it can give none.
        """
        watched = self.runs.watched
        if watched is None:
            raise RuntimeError("No program is being watched; only one can be asked for a memory snapshot.")
        watched.save_snapshot()

    def stop_run(self, when: str = "on request", *, shutdown: bool = False) -> None:
        """Ask the run to stop after its current operation. A watched program is sent SIGINT, when asked again SIGTERM,
        then SIGKILL.

        Args:
            when: what this comes after, in words that follow "sent by gpudash": "after your second Ctrl+C".
            shutdown: whether gpudash itself is being ended: a watched program that does not end has SIGTERM after
                `SHUTDOWN_S` and SIGKILL after another `TERMINATE_S`.
        """
        self.runs.stop(when, shutdown=shutdown)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it is known what torch is, how full the host is and which GPUs there are."""
        return self._ready.wait(timeout_s)

    @property
    def running(self) -> bool:
        """Whether a run is on: from `start_run` until its end is stored."""
        return self.runs.on

    def set_settings(self, settings: Settings) -> None:
        """Put other settings in force; those about recording wait for the next session."""
        self.settings = settings
        self._monitor.set_rate(settings.rate_hz)
        self._watch.set_levels(settings.warn_ratio, settings.critical_ratio, settings.hysteresis_ratio)

    def forecast(self, device: str) -> Forecast | None:
        """When a memory ("host" or a GPU's UUID) reaches its capacity or the guard, if it grows on as it does."""
        return self._watch.forecast(device)

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """A warning with the newest figures; as `MemoryWatch.standing`."""
        return self._watch.standing(warning, ahead)

    def explain(self) -> None:
        """Ask the run what its GPU's memory holds now; a note of topic "explanation" answers after the step."""
        self._worker.explain()

    def free_cache(self) -> None:
        """Give idle memory back: torch's cached segments and the host's freed heap."""
        self._worker.free_cache()

    def mark(self, label: str, time_s: float | None = None) -> None:
        """Mark a moment, now if none is given."""
        self.emit(Marker(time_s=self.clock() if time_s is None else time_s, label=label))

    def unmark(self, label: str, time_s: float) -> None:
        """Take back the user's mark of this time and label; the recording keeps both, and shows neither."""
        self.emit(Marker(time_s=time_s, label=label, category=REMOVED))

    def introduction(self) -> Note:
        """What a reader of this session's records must know beforehand, as `Incoming` understands it."""
        meta = session_meta(self.began_wall_s, self.settings, self.machine.host.product, self.host_capacity_source)
        return Note(time_s=0.0, topic=Topic.SESSION, text="", details=meta)

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
        lanes, recorder = self._monitor.statistics(), self._recorder
        return Status(
            recording=self.recording_path if recorder is not None and recorder.failed is None else None,
            recording_bytes=size_on_disk(self.recording_path),
            rate_hz=self.settings.rate_hz,
            missed=sum(lane.missed for lane in lanes),
            own_cpu_ratio=(sum(lane.cpu_s for lane in lanes) + self._own_cpu_s) / max(self.clock(), 1e-9),
            driver=self._monitor.driver_version,
            torch=self.machine.torch_text,
        )

    def summary(self) -> dict[str, Any]:
        """What ``gpudash monitor --json`` prints."""
        names = {device.uuid: device.name for device in self.devices() if device.uuid is not None}
        found = summary(self.store, self.status(), self.clock(), self.gpus, self.gpu_problem, self.recording_path)
        return {**found, "devices": device_summaries(self.store, self.machine.host.product, self.gpus, names)}

    def close(self, when: str = "after it was ended") -> bool:
        """Stop the run, join every thread, close the recording; at most `CLOSE_TIMEOUT_S` in all. A program that is
        watched has its deadlines before that, as of `stop_run`, and the last notices have theirs.

        Args:
            when: why, for a program that is watched, in words that follow "sent by gpudash".

        Returns:
            False when a thread could not be joined: the process must then leave without waiting for it.
        """
        if self.runs.watched is not None:
            self.runs.stop(when, shutdown=True)
            self.runs.wait_left()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        lanes_until = deadline - RECORDING_SHARE_S
        with self._predicting:
            predicting = (self._scripts, self._estimates, self._remedies, self._measured)
            made = [one for one in predicting if one is not None]
        ended = [one.close() for one in made]  # the second also behind one that took too long
        predicted = all(ended)
        # Before the run is ended: its process takes the context along, and with nothing reserved none is remembered.
        self.machine.remember_contexts()
        run_ended = self.runs.close(lanes_until - LANES_SHARE_S - time.monotonic())
        lanes_ended = self._monitor.stop(max(0.0, lanes_until - time.monotonic()))
        # Behind every record of the run and of the lanes, so that `_drain` has seen all of them when it leaves.
        self._queue.put(None)
        if self._thread is None:
            return run_ended and lanes_ended and predicted
        self._thread.join(max(0.0, deadline - time.monotonic()))
        # After the session's thread, which hands over the last notices.
        notified = self._notifier is None or self._notifier.close()
        joined = run_ended and lanes_ended and predicted and notified and not self._thread.is_alive()
        logger.info("the session ended, %s", "every thread with it" if joined else "while a thread is stuck")
        return joined

    def _make_notifier(self) -> Notifier:
        from gpudash.session.live.notifying import Notifier, failure, parse_target

        targets = []
        for text in self._notify:
            try:
                targets.append(parse_target(text))
            except ValueError as error:
                self._notices.append(f"Nobody is notified: {error}")

        def report(text: str) -> None:
            self.undelivered.append(text)
            self.emit(failure(text, self.clock()))

        return Notifier(targets, report)

    def _drain(self) -> None:
        """The session's thread: takes records until `close` puts ``None`` behind them."""
        self._try("Old recordings were not tidied", self._tidy)
        while True:
            record: Record | None = None
            try:
                record = self._queue.get(timeout=_POLL_S)
                if record is None:
                    break
                self._take(record)
            except queue.Empty:
                pass  # a commit or a device may be due all the same
            self._after_record()
        self._finish()

    def _take_requests(self, device: str, requests: Sequence[Request]) -> None:
        self.requests.made(device).take(requests)

    def _after_record(self) -> None:
        self._try("The devices could not be named", self._link)
        if self._card_requests is not None:
            self._try("The requests of the run are not kept", self._card_requests.take)
        if self._recorder is not None:
            self._try("The recording failed", self._recorder.tick)
            self._report_if_recording_failed(self._recorder)
        if not self._ready.is_set() and self.machine.knows_enough(self.clock()):
            self._ready.set()
        self._own_cpu_s = time.thread_time()

    def _finish(self) -> None:
        """The last of the session's thread: a run that did not end in time ends here, and so does the recording."""
        run, abandoned, now_s = self.store.run, self.running, self.clock()
        if abandoned and run is not None and run.running:
            ended = partial(RunEnd, status="cancelled", steps=run.step, result={"stop": LEFT})
            self._take(ended(time_s=now_s, run_id=run.run_id, seconds=now_s - run.began_s))
        # Releases waiters: the end will not be stored any more.
        self.runs.abandon()
        if self._recorder is not None:
            self._recorder.close("cancelled" if abandoned else "closed")

    def _tidy(self) -> None:
        trouble = tidy(self.settings, self.recording_path)
        if trouble is not None:
            self._take(Note(time_s=self.clock(), topic=Topic.RECORDINGS, text=trouble))

    def _take(self, record: Record) -> None:
        log_record(record)
        self._try("is not shown", partial(self.store.apply, record), record)
        if self._recorder is not None:
            self._try("is not recorded", partial(self._recorder.add, record), record)
        if self._notifier is not None:
            self._try("notifies nobody", partial(self._notifier.notify, record), record)
        if self.on_record is not None:
            self._try("is not passed on", partial(self.on_record, record), record)
        # After store and recorder: the warnings that follow from a record are stored and recorded behind it.
        self._try("is not held against the warning levels", partial(self._watch_memory, record), record)
        # Last: a waiter for this end, or for torch, must find it stored, recorded and passed on.
        if isinstance(record, Note) and record.topic == Topic.TORCH:
            self.machine.torch = record.details
        elif isinstance(record, RunEnd):
            if self._card_requests is not None:
                self._card_requests.close()
                self._card_requests = None
            # Its processes are gone, or are watched no longer: nothing of it may lie under the next run.
            for device in self.requests.devices:
                self.requests.made(device).end(record.time_s)
            self.runs.take_end(record)

    def _try(self, trouble: str, act: Callable[[], Any], record: Record | None = None) -> None:
        """Call ``act``; an exception becomes a warning, because this thread must go on for all the others: once for
        each trouble, kind of record and kind of exception, so that a later one of another kind is reported as well.

        Args:
            trouble: a sentence without a full stop; of a record what becomes of it, in words that follow it.
            act: called.
            record: what it is about, where it is about one.
        """
        try:
            act()
        except Exception as error:
            sentence = trouble
            if record is not None:
                sentence = f"{_named(record)} {trouble}"
            logger.exception("%s", sentence)
            what = type(error).__name__
            fault = f"{sentence}: {what}"
            if fault not in self._broken and len(self._broken) < MOST_FAULTS:
                # Noted before the warning is taken, which may fail in the same way: that ends the recursion.
                self._broken.add(fault)
                self._take(self._warning(f"{sentence} ({what}: {str(error)[:SHOWN_FAULT]})."))

    def _watch_memory(self, record: Record) -> None:
        if not isinstance(record, Sample):
            self._watch.observe_event(record)
            if self.runs.watched is None and isinstance(record, RunStarted | RunEnd | RemediesFound):
                self.remedies.take(record)
            return
        for event in self._watch.observe(record):
            self._take(replace(event, run_id=self.runs.run_id if self.running else None))
        self.runs.observe(record, self._warn_of_guard)

    def _report_if_recording_failed(self, recorder: Recorder) -> None:
        if recorder.failed is not None and recorder.failed not in self._broken:
            self._broken.add(recorder.failed)
            self._take(self._warning(recorder.failed, device="recording", actions=("save_recording",)))

    def _warning(
        self, text: str, device: str = "session", level: Level = "warning", actions: tuple[str, ...] = ()
    ) -> Warning:
        run_id = None
        if self.running:
            run_id = self.runs.run_id
        return Warning(time_s=self.clock(), run_id=run_id, level=level, device=device, text=text, actions=actions)

    def _warn_of_guard(self, memory: str, sentence: str) -> None:
        self.emit(self._warning(sentence, memory, "critical"))

    def _guarded(self) -> None:
        self._watch.guards = self._guards.armed

    def _wiring(self) -> Wiring:
        return Wiring(
            emit=self.emit,
            clock=self.clock,
            began_wall_s=self.began_wall_s,
            machine=self.machine,
            store=self.store,
            probe=self._monitor.probe,
            follow=self._monitor.follow,
            settings=self.settings,
            output=self.output,
            requests=self.requests,
        )

    def _link(self) -> None:
        note = self.machine.link(self.clock())
        if note is not None:
            self._take(note)


def _named(record: Record) -> str:
    """What a record is called in a sentence."""
    if isinstance(record, Sample):
        return f"A reading of {record.table}"
    return f"The event {record.kind}"


@dataclass(frozen=True, slots=True)
class Status:
    """Figures of a live session, its own cost included.

    Attributes:
        recording: the file being written, ``None`` when nothing is recorded.
        recording_bytes: its size.
        rate_hz: memory readings a second.
        missed: readings that could not be taken in time since the start.
        own_cpu_ratio: share of one core that reading and recording use.
        driver: NVML driver version, or ``None``.
        torch: what torch this is, or that there is none, or ``None`` while it loads.
    """

    recording: Path | None
    recording_bytes: int
    rate_hz: float
    missed: int
    own_cpu_ratio: float
    driver: str | None
    torch: str | None


def summary(
    store: Store, status: Status, seconds: float, gpus: tuple[Gpu, ...], gpu_problem: str | None, recording: Path | None
) -> dict[str, Any]:
    """What ``gpudash monitor --json`` prints."""
    memories = (("cpu", "host", None), *((gpu.uuid, "gpu", gpu.uuid) for gpu in gpus))
    with store.lock:
        texts = [event.text for event in store.events if isinstance(event, Warning)]
        failures = [event.text for event in store.events if isinstance(event, SourceFailed)]
        found = {name: store.series(table, "used_bytes", device) for name, table, device in memories}
        taken = {name: 0 if series is None else len(series) for name, series in found.items()}
        known = {name: store.statistics((table, "used_bytes", device)) for name, table, device in memories}
        readings = {name: 0 if figures is None else figures.count for name, figures in known.items()}
    return {
        "status": "finished",
        "seconds": seconds,
        "rate_hz": status.rate_hz,
        "readings": readings,
        "gaps": {name: taken[name] - had for name, had in readings.items()},
        "missed": status.missed,
        "own_cpu_ratio": status.own_cpu_ratio,
        "gpu_problem": gpu_problem,
        "warnings": texts,
        "failures": failures,
        "error": None,
        "recording": str(recording) if recording is not None else None,
    }


def device_summaries(
    store: Store, product: str, gpus: Sequence[Gpu], names: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The host and each GPU with the figures of its readings, as in JSON.

    Args:
        product: the processor.
        names: torch's names of the GPUs, by UUID.
    """
    shared = any(gpu.shared_memory for gpu in gpus)
    host = {"name": "cpu", "product": product, "uuid": None, "shared_memory": shared, "metrics": metrics(store, None)}
    found = [host]
    for gpu in gpus:
        name = (names or {}).get(gpu.uuid)
        facts = {"name": name, "product": gpu.product, "uuid": gpu.uuid, "shared_memory": gpu.shared_memory}
        found.append({**facts, "metrics": metrics(store, gpu.uuid)})
    return found


def metrics(store: Store, uuid: str | None) -> dict[str, dict[str, Value]]:
    """What a session has read of a GPU by its UUID, or with ``None`` of the host: metric → figures of its readings.

    ``last`` is ``None`` where the newest tick had no reading, and ``state`` says why; the others leave gaps out.
    """
    table = "gpu"
    if uuid is None:
        table = "host"
    with store.lock:
        return {
            metric: _summary(series, store.latest(table, metric, uuid))
            for (of, metric, device), series in store.curves()
            if (of, device) == (table, uuid)
        }


def _summary(series: Series, latest: Reading) -> dict[str, Value]:
    figures = series.statistics(-math.inf, math.inf)
    summary: dict[str, Value] = {"last": None, "min": None, "max": None, "mean": None, "state": None}
    if figures is not None:
        summary |= {"last": figures.end, "min": figures.min, "max": figures.max, "mean": figures.mean}
    if latest is not NEVER_READ:  # what the store makes of other metrics is not read
        summary |= {"last": latest.value, "state": latest.state.value}
    return summary
