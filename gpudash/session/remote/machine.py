"""One machine over ssh: linked by a thread of its own, which records what comes, watches its memory, and links anew."""

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
from gpudash.session.live.session import Status, metrics
from gpudash.session.live.session import summary as of_session
from gpudash.session.recordings.folder import session_meta
from gpudash.session.recordings.loading import Progress
from gpudash.session.recordings.replay import Replay
from gpudash.session.remote.readings import Greeting, Readings
from gpudash.sources.ssh.address import SshHost
from gpudash.sources.ssh.asking import Asking, SshQuestion
from gpudash.sources.ssh.connection import Connection, LinkFault, has_askpass
from gpudash.system.settings import Settings
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
"""Readings a second that are sent at most: enough for a forecast, little for a line."""

WAIT_S = 0.1
"""Longest wait for a line, so that commits stay due."""

GAP_S = 3.0
"""Silence after which the readings are gaps."""

SILENT_S = 15.0
"""Silence after which a link counts as lost: a sleeping line reports nothing."""

QUIET_S = 60.0
"""Longest time to link while no question is open: the user may have to confirm it elsewhere."""

UNSEEN_S = 300.0
"""The same where ssh asks the user itself, unseen from here: an sshd gives each login 120 s (LoginGraceTime)."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Seconds before a link is tried again: at first, and at most; each next is twice as long."""

MOST_BEFORE = 1000
"""Lines before the reader's first that are passed over: what a login shell says."""

JOIN_S = 2.5
"""How long closing waits for the thread."""

LinkState = Literal["linking", "linked", "waiting", "given up"]

SSH = "ssh"
"""`SourceFailed.source` of a link."""


class RemoteMachine:
    """A machine. Any thread may read it.

    Args:
        host: where it is.
        settings: memory levels of its warnings, and readings a second (at most `FASTEST_HZ`).
        recording: the file that it is recorded in, numbered where there is one already; left out: a private one, which
            goes with the machine.

    Raises:
        RecordingError, OSError: when that file cannot be written.

    Attributes:
        host: as given.
        store: all that is known of it.
        state: of the link.
        problem: one sentence while it is not linked and has been tried; ``None`` when all is well.
        greeting: what it said of itself; ``None`` before it was linked for the first time.
        settled: set as soon as the first attempt has led to a link, or to none.
        began_wall_s: seconds since the epoch at session time 0.
        rate_hz: readings a second.
        on_record: called with every record as it comes, on the machine's thread; set before `start`.
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
        # Advice about a watched GPU may name programs; on another machine none of them is ours.
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
        # Summaries go by the store, from the first record on.
        self._recorder.summarise(self.store)

    @property
    def name(self) -> str:
        """How it is called: "host", "user@host:2222"."""
        return self.host.name

    @property
    def recording(self) -> Path:
        """The file that it is recorded in."""
        return self._recorder.path

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of its newest report; a lost connection leaves them as they were."""
        return self._readings.gpus

    @property
    def host_capacity_source(self) -> str:
        """Where the size of its memory is known from."""
        if self.greeting is None:
            return "RAM"
        return self.greeting.capacity_source

    @property
    def gpu_problem(self) -> str | None:
        """Why there is none, in one sentence; ``None`` before that is known."""
        why = self._readings.gpu_problem
        if why is None:
            return None
        return f"{self.name}: {why}."

    @property
    def driver_fails(self) -> bool:
        """Whether there is none because its driver is to be mended."""
        return self._readings.driver_fails

    @property
    def left_out(self) -> int:
        """Lines that made no sense, and were left out."""
        return self._readings.left_out

    @property
    def why_not_linked(self) -> str:
        """Why there is no link, in one sentence without a word of what comes next; "" while there is one."""
        return self._fault

    def _meta(self) -> dict[str, Any]:
        return session_meta(self.began_wall_s, self._settings, self.name, self.host_capacity_source)

    def introduction(self) -> Note:
        """What a reader of its records must know beforehand, as `Session.introduction`."""
        return Note(time_s=0.0, topic=Topic.SESSION, text="", details=self._meta())

    def status(self) -> Status:
        """Figures of the link; the cost of reading it here is this whole process's."""
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
        """Session time now."""
        return time.monotonic() - self._origin

    def devices(self) -> list[Device]:
        """Its memory as a device; which of its GPUs torch can use is not known from here."""
        with self.store.lock:
            size = self.store.latest("host", "total_bytes").value
        if self.greeting is None:
            product = self.name
        else:
            product = self.greeting.processor
        return [Device("cpu", product, int(size) if isinstance(size, int | float) else None)]

    def memory_name(self, memory: str) -> str:
        """How a memory (a GPU's UUID or "host") is called at the beginning of a sentence."""
        if memory == HOST:
            return f"{self.name}'s memory"
        number = next((gpu.number for gpu in self.gpus if gpu.uuid == memory), None)
        return f"{self.name} {memory[:12] if number is None else f'GPU {number}'}"

    def forecast(self, memory: str) -> Forecast | None:
        """When a memory is full, if it grows on as it does; ``None`` while nothing comes."""
        if self.state == "linked":
            return self._watch.forecast(memory)
        return None

    def present_warnings(self, memory: str) -> list[Warning]:
        """What there is to look at now of a memory (a GPU's UUID or "host"), and of its GPU."""
        return self._watch.present(memory)

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """A warning with the newest figures; as `MemoryWatch.standing`."""
        return self._watch.standing(warning, ahead)

    def start(self, *, prompt: bool = False, asks: bool = False) -> None:
        """Begin to link.

        Args:
            prompt: ssh may ask in the terminal, the first time.
            asks: ssh may ask by `question`, the first time.
        """
        # For the first attempt only: automatic retries may have no user in front of them.
        self._prompt, self._asks = prompt, asks
        self._thread = threading.Thread(target=self._run, name=f"gpudash ssh {self.name}", daemon=True)
        self._thread.start()

    @property
    def question(self) -> SshQuestion | None:
        """What ssh asks now, to be answered or refused; ``None`` for nothing."""
        with self._lock:
            if self._connection is None:
                return None
            return self._connection.question

    def link_again(self) -> None:
        """Try it now, where there is no link; ssh may ask by `question`. What was told before stays."""
        with self._lock:
            # One that asks already is left to its questions.
            if self.state == "linked" or self._asking:
                return
            # Records stay in the store; the last attempt's sentence goes, since another one begins.
            self._asks, self.problem = True, None
            if self._connection is not None:
                self._connection.stop()  # one that may not ask
        self._awake.set()

    def replay(self, progress: Progress = lambda _part: None) -> RemoteReplay:
        """What has been recorded, followed; it is the caller's to close, who has a `hold` meanwhile."""
        return RemoteReplay(self, progress)

    def save_recording(self, target: Path) -> None:
        """Write a copy of what has been recorded so far.

        Raises:
            RecordingError: when the target cannot be written.
        """
        self._recorder.copy_to(target)

    def hold(self) -> None:
        """Stay linked until one more `release`."""
        self._holders += 1

    def stop(self) -> None:
        """End the link now, without waiting for its thread."""
        self._stop.set()
        self._awake.set()
        with self._lock:
            if self._connection is not None:
                self._connection.stop()

    def release(self) -> bool:
        """Let go of it; the last who does ends ssh and removes the private file. False when that took too long."""
        self._holders -= 1
        if self._holders > 0:
            return True
        # The thread leaves its loop by the flag, and its read by the end of ssh.
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join(JOIN_S)
            if thread.is_alive():
                return False
        else:
            # Without a thread the recorder has not been closed.
            self._recorder.close("closed")
        self._folder.close()
        return True

    @property
    def held(self) -> int:
        """How many have not released it."""
        return self._holders

    def _run(self) -> None:
        try:
            # A link that ends is followed by a pause, and the next attempt; only `stop` ends the thread.
            while not self._stop.is_set():
                try:
                    fault = self._link()
                except Exception as error:  # whatever the other end sends
                    logger.exception("ssh://%s cannot be read any more", self.name)
                    what = f"{type(error).__name__}: {error}"
                    fault = LinkFault(f"{self.name} cannot be read any more ({what})", lasting=True)
                if self._stop.is_set():
                    break
                self._lost(fault)
                self.settled.set()  # whoever waits for it asks why there is no link
                # Doubling up to a minute; a lasting fault waits for `link_again` alone.
                wait_s = min(FIRST_WAIT_S * 2 ** min(self._failures - 1, 10), LONGEST_WAIT_S)
                self._pause(math.inf if fault.lasting else wait_s)
        finally:
            self.settled.set()
            self._recorder.close("closed")

    def _link(self) -> LinkFault:
        """One connection from its beginning to its end; why it ended."""
        with self._lock:
            # Taken and cleared in one go: what is asked for from now on is for the attempt after this one.
            self.state = "linking"
            prompt, self._prompt = self._prompt, False
            self._asking, self._asks = self._asks, False
        asking, own = None, has_askpass(os.environ)
        if self._asking and not own:
            with suppress(OSError):  # then there is nobody to be asked
                asking = Asking()
        try:
            connection = Connection(self.host, 1 / self.rate_hz, prompt=prompt, asking=asking)
        except OSError as error:
            if asking is not None:
                asking.close()
            return LinkFault(f"ssh cannot be started: {error}", lasting=True)
        with self._lock:
            self._connection = connection
        if self._stop.is_set():  # it may have been asked before there was one
            connection.stop()
        silence: str | None = None
        try:
            silence = self._follow(connection, UNSEEN_S if prompt or own else QUIET_S)
        finally:
            with self._lock:
                self._connection, self._asking = None, False
            # Failures are 0 only once this attempt was greeted: what ended is then a link, and no attempt at one.
            fault = connection.end(greeted=self._failures == 0 and self.greeting is not None)
        if silence is None:
            return fault
        return LinkFault(silence)

    def _follow(self, connection: Connection, quiet_s: float) -> str | None:
        """Take in what comes until it ends; a sentence where the other side fell silent.

        Args:
            quiet_s: how long it may take until the reader there begins, apart from questions.
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
            # What a login shell prints comes before the reader's first line and is passed over.
            for line in lines:
                if not greeted:
                    before += 1
                    greeted = line.startswith(b'{"') and self._greet(line, now_s)
                    if before > MOST_BEFORE:
                        return None
                else:
                    self._line(line, now_s)
            # Any whole line is a sign of life; before the greeting only the reader's own counts.
            if lines and greeted:
                heard_s, gap = now_s, False
            elif greeted and now_s - heard_s > GAP_S and not gap:
                gap = True
                self._gap(now_s)
            if greeted and now_s - heard_s > SILENT_S:
                return f"The link to {self.name} was lost (nothing came for {format_duration(SILENT_S)})"
            if not greeted and now_s - heard_s > quiet_s:
                waited = format_duration(quiet_s)
                return f"{self.name} has not told anything within {waited}; see what {self.host.login} says"
            # Within the loop: the recorder commits by the clock, also while nothing comes.
            self._recorder.tick()
        return None

    def _greet(self, line: bytes, now_s: float) -> bool:
        """Whether this is the reader's first line; then the machine is linked."""
        found = self._readings.take(line, now_s)
        if not isinstance(found, Greeting):
            return False
        self.greeting = found
        again, self._failures = self._failures > 0, 0
        # Linked: the next attempt asks no questions unless the user requests it.
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
            # Warnings stand behind the reading that they are of.
            for event in self._watch.observe(found):
                self._take(event)

    def _lost(self, fault: LinkFault) -> None:
        """Tell that there is no link, once; what was read is a gap from now on."""
        now_s = self.clock()
        was_linked = self.state == "linked"
        # An attempt that fails again is no news, and would fill the log.
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
            # From now on, not from the last reading: what came until now was true.
            self._gap(now_s)
        # A machine that was never linked has no readings that could end.
        if self.greeting is not None and (was_linked or fault.lasting):
            self._take(SourceFailed(time_s=now_s, source=SSH, text=self.problem))
        self._recorder.tick()

    def _gap(self, now_s: float) -> None:
        """No reading of anything at ``now_s``."""
        self._readings.arrived(now_s)
        for table, device in _tables(self.gpus):
            with self.store.lock:
                names = (metric.name for metric in METRICS[table])
                # Only what was read before can be a gap now.
                metrics = [name for name in names if self.store.latest(table, name, device) is not NEVER_READ]
            states = dict.fromkeys(metrics, State.LOST)
            self._take(Sample(now_s, table, device, dict.fromkeys(metrics), states))

    def _pause(self, seconds: float) -> None:
        """Wait, or until it is to be tried at once, with the recording brought up to date meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._recorder.tick()
            if self._awake.wait(min(left, WAIT_S)):
                break
        # Left set while stopping, so that every later pause ends at once.
        if not self._stop.is_set():
            self._awake.clear()

    def _take(self, record: Record) -> None:
        log_record(record, f"ssh://{self.name}")
        # The store first: summaries that the recorder writes are taken from it.
        self.store.apply(record)
        self._recorder.add(record)
        if self.on_record is not None:
            self.on_record(record)


def _tables(gpus: tuple[Gpu, ...]) -> Iterator[tuple[Table, str | None]]:
    yield "host", None
    for gpu in gpus:
        yield "gpu", gpu.uuid


class RemoteReplay(Replay):
    """A machine's recording so far, and what still comes, with everything a replay can do; with its forecasts too.

    Args:
        machine: held by the caller.
        progress: as `Replay`'s.

    Raises:
        RecordingError: one sentence, when the recording cannot be read.
    """

    def __init__(self, machine: RemoteMachine, progress: Callable[[float], None]) -> None:
        self.machine = machine
        super().__init__(machine.recording, progress)

    @property
    def notices(self) -> list[str]:
        """What could not be read, why there is no GPU, and that there is no link, a sentence each."""
        machine = self.machine
        bad = machine.left_out
        left_out = []
        if bad:
            left_out = [f"{bad} lines of {machine.name} make no sense and are left out"]
        return [*super().notices, *left_out, *filter(None, (machine.gpu_problem, machine.problem))]

    @property
    def present(self) -> bool:
        """Whether what is shown is what comes, and not the past."""
        return self.at_end and self.machine.state == "linked"

    def forecast(self, device: str) -> Forecast | None:
        """When a memory is full, while the present is shown."""
        if self.present:
            return self.machine.forecast(device)
        return None

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """A warning with the newest figures, while the present is shown."""
        if self.present:
            return self.machine.standing(warning, ahead)
        return None

    def device_text(self, device: str) -> str:
        """How a reading's device is called."""
        return self.machine.memory_name(device)


def summary(machine: RemoteMachine) -> dict[str, Any]:
    """What ``gpudash monitor ssh://host --json`` prints: the same keys as of this machine, and ``machine``.

    ``error`` is there where the link is lost for good.
    """
    seconds = machine.clock()
    found = of_session(machine.store, machine.status(), seconds, machine.gpus, machine.gpu_problem, None)
    product = machine.devices()[0].product
    shared = any(gpu.shared_memory for gpu in machine.gpus)
    listed = [
        ("cpu", product, None, shared),
        *((None, gpu.product, gpu.uuid, gpu.shared_memory) for gpu in machine.gpus),
    ]
    devices = [
        {
            "name": name,
            "product": product,
            "uuid": uuid,
            "shared_memory": shared,
            "metrics": metrics(machine.store, uuid),
        }
        for name, product, uuid, shared in listed
    ]
    why = machine.why_not_linked
    error = None
    status_word = "finished"
    if why:
        error = {"kind": "ConnectionError", "message": why, "remedy": ""}
        status_word = "failed"
    return {**found, "status": status_word, "error": error, "devices": devices, "machine": str(machine.host)}
