"""One machine over ssh. A thread connects to it, records its readings, watches its memory, and reconnects."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

from gpudash.devices.names import Device, Gpu
from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.levels import HOST, pool_of
from gpudash.memory.watching.watch import MemoryWatch
from gpudash.session.live.event_log import log_record
from gpudash.session.live.session import Status, device_summaries
from gpudash.session.live.session import summary as of_session
from gpudash.session.recordings.folder import session_meta
from gpudash.session.recordings.loading import Progress
from gpudash.session.recordings.replay import Replay
from gpudash.session.remote.readings import Greeting, Readings
from gpudash.sources.ssh.address import SshHost
from gpudash.sources.ssh.asking import Asking, SshQuestion
from gpudash.sources.ssh.connection import Connection, LinkFault, has_askpass
from gpudash.system.settings import Settings
from gpudash.system.threads import started
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.readings import NEVER_READ
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import (
    Note,
    Record,
    Sample,
    SourceFailed,
    SourceRecovered,
    State,
    Table,
    Topic,
    Warning,
)
from gpudash.telemetry.store import Store
from gpudash.units import format_duration

logger = logging.getLogger(__name__)

FASTEST_HZ = 5.0
"""Most readings per second that are sent: enough for a forecast, light on the connection."""

WAIT_S = 0.1
"""Longest wait for input, so that the recording is still committed on time."""

GAP_S = 3.0
"""Silence after which readings become gaps."""

SILENT_S = 15.0
"""Silence after which a connection counts as lost: a dead connection gives no error."""

QUIET_S = 60.0
"""Time limit for connecting, unless ssh is waiting for an answer (a second factor takes time)."""

UNSEEN_S = 300.0
"""The same if ssh asks the user directly, invisibly to us: sshd allows 120 s for a login (LoginGraceTime)."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""First and longest wait before a retry, in seconds; doubling each time."""

MOST_BEFORE = 1000
"""How many lines before the reader's first are skipped: the output of a login shell."""

JOIN_S = 2.5
"""Longest wait for the thread in `release`."""

LinkState = Literal["linking", "linked", "waiting", "given up"]

SSH = "ssh"
"""`SourceFailed.source` for the connection."""


class RemoteMachine:
    """A machine over ssh. Any thread may read it.

    Args:
        host: address of the machine.
        settings: memory levels of its warnings, and readings per second (at most `FASTEST_HZ`).
        recording: file to record it in, with a number added if it exists; by default a private file that is deleted
            with the machine.

    Raises:
        RecordingError, OSError: if that file cannot be written.

    Attributes:
        host: as given.
        store: its readings.
        state: state of the connection.
        problem: why it is not connected, in one sentence; ``None`` while connected and before the first attempt ends.
        greeting: the machine's description of itself; ``None`` before the first connection.
        settled: event that is set once the first attempt has succeeded or failed.
        began_wall_s: seconds since the epoch at session time 0.
        rate_hz: readings per second.
        on_record: callback for every record, on the machine's thread; set it before `start`.
    """

    def __init__(self, host: SshHost, settings: Settings, recording: Path | None = None) -> None:
        self.host = host
        self.on_record: Callable[[Record], object] | None = None
        self.store = Store()
        self.state: LinkState = "linking"
        self.problem: str | None = None
        self.greeting: Greeting | None = None
        self.settled = threading.Event()
        self.began_wall_s, self._origin = time.time(), time.monotonic()
        self._readings = Readings()
        self._watch = MemoryWatch(settings.warn_ratio, settings.critical_ratio, settings.hysteresis_ratio)
        # Advice on a watched GPU may suggest to end programs; on another machine none of them is ours.
        self._watch.is_here = False
        self._watch.describe = self.memory_name
        self._watch.pool_of = lambda memory: pool_of(memory, self.gpus)
        self.rate_hz = min(settings.rate_hz, FASTEST_HZ)
        self._failures = 0
        self._fault = ""
        self._prompt = self._asks = self._asking = False
        self._holders = 1
        self._stop, self._awake = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._settings = settings
        self._folder = ExitStack()
        try:
            if recording is None:
                folder = self._folder.enter_context(tempfile.TemporaryDirectory(prefix="gpudash-"))
                recording = Path(folder) / f"{host.host.replace(':', '-')}.gpudash"
            meta = {**self._meta(), "host_name": host.name, "host_cpus": 0}
            self._recorder = Recorder(recording, meta=meta, may_number=True)
        except BaseException:
            self._folder.close()
            raise
        # The recorder computes its summaries from the store, from the first record on.
        self._recorder.summarise(self.store)

    @property
    def name(self) -> str:
        """Its name: "host", "user@host:2222"."""
        return self.host.name

    @property
    def recording(self) -> Path:
        """The file it is recorded in."""
        return self._recorder.path

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of its newest report; a lost connection leaves them as they were."""
        return self._readings.gpus

    @property
    def host_capacity_source(self) -> str:
        """What limits its memory: 'RAM' or a cgroup."""
        if self.greeting is None:
            return "RAM"
        return self.greeting.capacity_source

    @property
    def gpu_problem(self) -> str | None:
        """Why it has no GPU, in one sentence; ``None`` before that is known."""
        why = self._readings.gpu_problem
        if why is None:
            return None
        return f"{self.name}: {why}."

    @property
    def driver_fails(self) -> bool:
        """Whether it has no GPU because its driver is broken."""
        return self._readings.driver_fails

    @property
    def left_out(self) -> int:
        """How many lines were ignored because they were malformed."""
        return self._readings.left_out

    @property
    def why_not_linked(self) -> str:
        """Why there is no connection, in one sentence without saying whether it is retried; "" while connected."""
        return self._fault

    def _meta(self) -> dict[str, Any]:
        return session_meta(self.began_wall_s, self._settings, self.name, self.host_capacity_source)

    def introduction(self) -> Note:
        """The note that readers of its records need first, like `Session.introduction`."""
        return Note(time_s=0.0, topic=Topic.SESSION, text="", details=self._meta())

    def status(self) -> Status:
        """Figures about the connection; the CPU cost is that of this whole process."""
        return Status(
            recording=None,
            recording_bytes=0,
            rate_hz=self.rate_hz,
            missed=0,
            own_cpu_ratio=time.process_time() / max(self.clock(), 1e-9),
            driver=None,
            torch=None,
        )

    def clock(self) -> float:
        """Session time."""
        return time.monotonic() - self._origin

    def devices(self) -> list[Device]:
        """Its memory as a device; which GPUs torch can use there is unknown."""
        with self.store.lock:
            total = self.store.latest("host", "total_bytes")
        if self.greeting is None:
            product = self.name
        else:
            product = self.greeting.processor
        return [Device("cpu", product, total.size)]

    def memory_name(self, memory: str) -> str:
        """The name of a memory (a GPU's UUID or "host") for the beginning of a sentence."""
        if memory == HOST:
            return f"{self.name}'s memory"
        number = next((gpu.number for gpu in self.gpus if gpu.uuid == memory), None)
        return f"{self.name} {memory[:12] if number is None else f'GPU {number}'}"

    def forecast(self, memory: str) -> Forecast | None:
        """When a memory will be full at its present growth; ``None`` while not connected."""
        if self.state == "linked":
            return self._watch.forecast(memory)
        return None

    def present_warnings(self, memory: str) -> list[Warning]:
        """The current warnings about a memory (a GPU's UUID or "host") and its GPU."""
        return self._watch.present(memory)

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """A warning with the newest figures, like `MemoryWatch.standing`."""
        return self._watch.standing(warning, ahead)

    def start(self, *, prompt: bool = False, asks: bool = False) -> None:
        """Start to connect.

        Args:
            prompt: whether ssh may ask in the terminal, for the first attempt.
            asks: whether ssh may ask by `question`, for the first attempt.
        """
        # Only for the first attempt: during automatic retries the user may be away.
        self._prompt, self._asks = prompt, asks
        self._thread = started(f"gpudash ssh {self.name}", self._run)

    @property
    def question(self) -> SshQuestion | None:
        """The question that ssh is asking, to be answered or refused; ``None`` for none."""
        with self._lock:
            if self._connection is None:
                return None
            return self._connection.question

    def link_again(self) -> None:
        """Retry now if there is no connection; ssh may ask by `question`. Existing readings stay."""
        with self._lock:
            # An attempt that is asking already is left alone.
            if self.state == "linked" or self._asking:
                return
            # Records stay in the store. The last attempt's error goes, since a new attempt begins.
            self._asks, self.problem = True, None
            if self._connection is not None:
                self._connection.stop()  # an attempt that may not ask
        self._awake.set()

    def replay(self, progress: Progress = lambda _part: None) -> RemoteReplay:
        """A replay of the recording so far that follows new records; the caller must close it, and `hold` the
        machine."""
        return RemoteReplay(self, progress)

    def save_recording(self, target: Path) -> None:
        """Save a copy of the recording so far.

        Raises:
            RecordingError: if the target cannot be written.
        """
        self._recorder.copy_to(target)

    def hold(self) -> None:
        """Stay connected until one more `release`."""
        self._holders += 1

    def stop(self) -> None:
        """Close the connection now, without waiting for the thread."""
        self._stop.set()
        self._awake.set()
        with self._lock:
            if self._connection is not None:
                self._connection.stop()

    def release(self) -> bool:
        """Undo one `hold`; the last one ends ssh and deletes the private file. False if that took too long."""
        self._holders -= 1
        if self._holders > 0:
            return True
        # The flag ends the thread's loop, and the end of ssh its read.
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join(JOIN_S)
            if thread.is_alive():
                return False
        else:
            # There was no thread to close the recorder.
            self._recorder.close("closed")
        self._folder.close()
        return True

    @property
    def held(self) -> int:
        """Number of holders that have not released it."""
        return self._holders

    def _run(self) -> None:
        try:
            # A closed connection leads to a pause and a retry; only `stop` ends the thread.
            while not self._stop.is_set():
                try:
                    fault = self._link()
                except Exception as error:  # the other side may send anything
                    logger.exception("ssh://%s cannot be read any more", self.name)
                    what = f"{type(error).__name__}: {error}"
                    fault = LinkFault(f"{self.name} cannot be read any more ({what})", lasting=True)
                if self._stop.is_set():
                    break
                self._lost(fault)
                self.settled.set()  # last: waiters then read `problem`
                # Up to a minute; a lasting fault waits for `link_again`.
                wait_s = min(FIRST_WAIT_S * 2 ** min(self._failures - 1, 10), LONGEST_WAIT_S)
                self._pause(math.inf if fault.lasting else wait_s)
        finally:
            self.settled.set()
            self._recorder.close("closed")

    def _link(self) -> LinkFault:
        """Connect and read until the connection ends; returns why it ended."""
        with self._lock:
            # Read and reset in one step: flags set from now on apply to the next attempt.
            self.state = "linking"
            prompt, self._prompt = self._prompt, False
            self._asking, self._asks = self._asks, False
        asking, own = None, has_askpass(os.environ)
        if self._asking and not own:
            with suppress(OSError):  # then ssh cannot ask
                asking = Asking()
        try:
            connection = Connection(self.host, 1 / self.rate_hz, prompt=prompt, asking=asking)
        except OSError as error:
            if asking is not None:
                asking.close()
            return LinkFault(f"ssh cannot be started: {error}", lasting=True)
        with self._lock:
            self._connection = connection
        if self._stop.is_set():  # `stop` may have been called before it existed
            connection.stop()
        silence: str | None = None
        try:
            silence = self._follow(connection, UNSEEN_S if prompt or own else QUIET_S)
        finally:
            with self._lock:
                self._connection, self._asking = None, False
            # Failures are 0 once this attempt was greeted: then a connection was lost, not an attempt.
            fault = connection.end(greeted=self._failures == 0 and self.greeting is not None)
        if silence is None:
            return fault
        return LinkFault(silence)

    def _follow(self, connection: Connection, quiet_s: float) -> str | None:
        """Process input until it ends; returns a sentence if the other side fell silent.

        Args:
            quiet_s: time limit until the reader's greeting, not counting questions.
        """
        greeted, before = False, 0
        heard_s, gap = self.clock(), False
        self._readings.begin()
        while not self._stop.is_set():
            lines = connection.read(WAIT_S)
            if lines is None or connection.cancelled:
                break
            now_s = self.clock()
            # Time that the user takes to answer does not count.
            if not greeted and connection.question is not None:
                heard_s = now_s
            # The output of a login shell precedes the reader's first line and is skipped.
            for line in lines:
                if not greeted:
                    before += 1
                    greeted = line.startswith(b'{"') and self._greet(line, now_s)
                    if before > MOST_BEFORE:
                        return None
                else:
                    self._line(line, now_s)
            # Any complete line is a sign of life; before the greeting only the reader's own is.
            if lines and greeted:
                heard_s, gap = now_s, False
            elif greeted and now_s - heard_s > GAP_S and not gap:
                gap = True
                self._gap(now_s)
            if now_s - heard_s > (SILENT_S if greeted else quiet_s):
                return self._silence(greeted=greeted, quiet_s=quiet_s)
            # Inside the loop: the recorder also commits when nothing arrives.
            self._recorder.tick()
        return None

    def _silence(self, *, greeted: bool, quiet_s: float) -> str:
        if greeted:
            return f"The link to {self.name} was lost (nothing came for {format_duration(SILENT_S)})"
        waited = format_duration(quiet_s)
        return f"{self.name} has not told anything within {waited}; see what {self.host.login} says"

    def _greet(self, line: bytes, now_s: float) -> bool:
        """Whether this is the reader's greeting, with which the connection is up."""
        found = self._readings.take(line, now_s)
        if not isinstance(found, Greeting):
            return False
        self.greeting = found
        again, self._failures = self._failures > 0, 0
        # Connected: the next attempt asks nothing unless the user starts it.
        self._asks = False
        facts = {
            "host_product": found.processor,
            "host_capacity_source": found.capacity_source,
            "host_cpus": found.cores,
        }
        self._recorder.describe(facts)
        self.state, self.problem, self._fault = "linked", None, ""
        self.settled.set()
        logger.info("ssh://%s is linked%s", self.name, " again" if again else "")
        if again:
            self._take(SourceRecovered(time_s=now_s, source=SSH, text=f"{self.name} is linked again."))
        return True

    def _line(self, line: bytes, now_s: float) -> None:
        found = self._readings.take(line, now_s)
        if found is None or isinstance(found, Greeting):
            return
        self._take(found)
        if isinstance(found, Sample):
            # Warnings follow the reading that caused them.
            for event in self._watch.observe(found):
                self._take(event)

    def _lost(self, fault: LinkFault) -> None:
        """Report the loss of the connection, once; readings are gaps from now on."""
        now_s = self.clock()
        was_linked = self.state == "linked"
        # Another failed attempt is no news and would fill the log.
        if was_linked or self._failures == 0 or fault.lasting:
            logger.warning("no link to ssh://%s: %s", self.name, fault.text)
        self._failures += 1
        if fault.lasting:
            self.state = "given up"
        else:
            self.state = "waiting"
        self._fault = f"{fault.text}."
        if fault.lasting:
            self.problem = self._fault
        else:
            self.problem = f"{fault.text}; it is tried again."
        if was_linked:
            # From now on, not from the last reading, which was still valid until now.
            self._gap(now_s)
        # Without a first connection there are no readings to end.
        if self.greeting is not None and (was_linked or fault.lasting):
            self._take(SourceFailed(time_s=now_s, source=SSH, text=self.problem))
        self._recorder.tick()

    def _gap(self, now_s: float) -> None:
        """Record a gap at ``now_s`` in all readings."""
        self._readings.arrived(now_s)
        for table, device in _tables(self.gpus):
            with self.store.lock:
                names = (metric.name for metric in METRICS[table])
                # Only a metric that has been read can have a gap.
                metrics = [name for name in names if self.store.latest(table, name, device) is not NEVER_READ]
            states = dict.fromkeys(metrics, State.LOST)
            self._take(Sample(now_s, table, device, dict.fromkeys(metrics), states))

    def _pause(self, seconds: float) -> None:
        """Wait, or until woken for a retry; keep committing the recording."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._recorder.tick()
            if self._awake.wait(min(left, WAIT_S)):
                break
        # Left set while stopping, so that later pauses end immediately.
        if not self._stop.is_set():
            self._awake.clear()

    def _take(self, record: Record) -> None:
        log_record(record, f"ssh://{self.name}")
        # The store first: the recorder computes summaries from it.
        self.store.apply(record)
        self._recorder.add(record)
        if self.on_record is not None:
            self.on_record(record)


def _tables(gpus: tuple[Gpu, ...]) -> Iterator[tuple[Table, str | None]]:
    yield "host", None
    for gpu in gpus:
        yield "gpu", gpu.uuid


class RemoteReplay(Replay):
    """A replay of a machine's recording that follows new records; with forecasts.

    Args:
        machine: the machine; the caller holds it.
        progress: as in `Replay`.

    Raises:
        RecordingError: one sentence, if the recording cannot be read.
    """

    def __init__(self, machine: RemoteMachine, progress: Callable[[float], None]) -> None:
        self.machine = machine
        super().__init__(machine.recording, progress)

    @property
    def notices(self) -> list[str]:
        """What could not be read, why there is no GPU, and why there is no connection, one sentence each."""
        machine = self.machine
        bad = machine.left_out
        left_out = []
        if bad:
            left_out = [f"{bad} lines of {machine.name} make no sense and are left out"]
        return [*super().notices, *left_out, *filter(None, (machine.gpu_problem, machine.problem))]

    @property
    def present(self) -> bool:
        """Whether it shows the present, not the past."""
        return self.at_end and self.machine.state == "linked"

    def forecast(self, device: str) -> Forecast | None:
        """When a memory will be full; only while it shows the present."""
        if self.present:
            return self.machine.forecast(device)
        return None

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """A warning with the newest figures; only while it shows the present."""
        if self.present:
            return self.machine.standing(warning, ahead)
        return None

    def device_text(self, device: str) -> str:
        """The name of a reading's device."""
        return self.machine.memory_name(device)


def summary(machine: RemoteMachine) -> dict[str, Any]:
    """The JSON of ``gpudash monitor ssh://host --json``: the same keys as for this machine, and ``machine``.

    ``error`` is present if the connection is lost for good.
    """
    seconds = machine.clock()
    found = of_session(machine.store, machine.status(), seconds, machine.gpus, machine.gpu_problem, None)
    devices = device_summaries(machine.store, machine.devices()[0].product, machine.gpus)
    why = machine.why_not_linked
    error = None
    status_word = "finished"
    if why:
        error = {"kind": "ConnectionError", "message": why, "remedy": ""}
        status_word = "failed"
    return {**found, "status": status_word, "error": error, "devices": devices, "machine": str(machine.host)}
