"""One daemon thread ("lane") for each source, reading on an absolute schedule, independently of the other sources."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpudash.system.threads import joined
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered
from gpudash.units import format_duration

logger = logging.getLogger(__name__)

STALE_PERIODS = 3
"""How many periods a call may take before its lane is stale."""

SHORTEST_SILENCE_S = 0.15
"""Shortest silence that counts: below it the scheduler of a busy machine may be the cause, whatever the period."""

SHORT_WAIT_S = 0.1
"""Up to this a lane uses `sleep`, at half the cost of a wait that can be interrupted; it delays stopping by no
more."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals of the readings that do not follow the memory rate, and time limits, all in seconds.

    Attributes:
        slow: interval for energy, processes and PCIe throughput of a GPU.
        processes: interval for host processes.
        tend: interval of the checks on the library and for lost GPUs.
        longest_retry: longest interval between attempts to open a missing library; it starts at `tend` and doubles.
        reopen: how long all GPUs must be lost before the library is initialised again.
        patience: silence after which a stuck call is reported.
    """

    slow: float = 1.0
    processes: float = 1.0
    tend: float = 0.5
    longest_retry: float = 5.0
    reopen: float = 2.0
    patience: float = 1.0

    @property
    def driver_patience(self) -> float:
        """Time limit for the driver's first call for a GPU, which starts the card up and so takes longer than
        others."""
        return 3 * self.patience


Emit = Callable[[Record], None]
Read = Callable[[float], Iterable[Record]]


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """What a lane has done so far.

    Attributes:
        name: name of the lane.
        period_s: current period.
        readings: number of completed ticks.
        missed: ticks that were skipped because the one before took, or is taking, too long.
        late: ticks that began more than half a period after their time.
        worst_lateness_s: largest delay of a tick.
        busy_s: wall time spent reading.
        cpu_s: CPU time of the lane's thread.
        stuck: whether a call has been running for three periods.
    """

    name: str
    period_s: float
    readings: int
    missed: int
    late: int
    worst_lateness_s: float
    busy_s: float
    cpu_s: float
    stuck: bool


class Lane:
    """Calls ``read`` immediately, then at each multiple of its period, and emits the records.

    Lanes on the same clock thus wake together: a processor needs less time for two readings when woken once.

    Args:
        name: name of the thread, also in statistics.
        read: callback that gets the tick's session time and returns its records. An exception becomes one
            `SourceFailed`, the first good tick after it a `SourceRecovered`.
        emit: callback for each record; called from this lane's thread and from the thread that calls `check`.
        clock: session time in seconds, monotonic.
        period_s: seconds between ticks; `set_period` changes it while running.
        source: `SourceFailed.source` of this lane.
        title: the subject of its sentences: "GPU 0 (NVIDIA H200)".
        stale: callback that gets a time and returns the records for a tick without a reading.
        patience_s: silence after which a stuck call is reported.
    """

    def __init__(
        self,
        name: str,
        read: Read,
        emit: Emit,
        clock: Callable[[], float],
        period_s: float,
        *,
        source: str = "",
        title: str = "",
        stale: Read | None = None,
        patience_s: float = 1.0,
    ) -> None:
        self.name = name
        self.source = source or name
        self._title = title or name
        self._read = read
        self._emit = emit
        self._clock = clock
        self._period_s = period_s
        self._stale = stale or _nothing
        self._patience_s = patience_s
        self._lock = threading.RLock()  # faster than a Condition's, which is Python code
        self._wake = threading.Condition(self._lock)
        self._stopping = False
        self._due_s = 0.0
        self._busy_since: float | None = None
        self._stale_reported_s: float | None = None
        self._gaps: set[tuple[str, str | None]] = set()
        self._failed = False
        self._readings = self._missed = self._late = 0
        self._worst_lateness_s = self._busy_s = self._cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"gpudash {name}", daemon=True)

    def start(self) -> None:
        # The first tick is due now; `_account` moves the later ones to multiples of the period.
        self._due_s = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Ask the lane to end; nothing is emitted after this returns."""
        # Under the lock: a tick that is being emitted completes before this returns, and none begins after it.
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; whether it ended within ``timeout_s``."""
        # A thread that was never started cannot be joined.
        if self._thread.ident is None:
            return True
        return joined(self._thread, max(0.0, timeout_s))

    def set_period(self, period_s: float) -> None:
        """Read every ``period_s`` from now on."""
        with self._wake:
            self._period_s = period_s
            # With a slower period the next tick may stay where it is; a faster one must not wait for it.
            self._due_s = min(self._due_s, self._clock() + period_s)
            self._wake.notify_all()

    @property
    def stuck(self) -> bool:
        """Whether the current call has been running for three periods."""
        with self._wake:
            return self._silence_s(self._clock()) >= self._silence_limit_s()

    @property
    def failed(self) -> bool:
        """Whether a failure was reported, and no recovery since."""
        return self._failed

    @property
    def busy(self) -> bool:
        """Whether the lane is inside a call."""
        return self._busy_since is not None

    @property
    def statistics(self) -> LaneStatistics:
        with self._wake:
            silence_s = self._silence_s(self._clock())
            stuck = silence_s >= self._silence_limit_s()
            return LaneStatistics(
                name=self.name,
                period_s=self._period_s,
                readings=self._readings,
                # Include the ticks that the current call has cost so far; they become final when it returns.
                missed=self._missed + (int(silence_s / self._period_s) if stuck else 0),
                late=self._late,
                worst_lateness_s=self._worst_lateness_s,
                busy_s=self._busy_s,
                cpu_s=self._cpu_s,
                stuck=stuck,
            )

    def check(self) -> None:
        """Emit gaps for a lane whose call does not return, at the lane's own pace, and report it once.

        Another thread calls this, because the lane's own is inside the call.
        """
        with self._wake:
            now_s = self._clock()
            silence_s = self._silence_s(now_s)
            if self._stopping or silence_s < self._silence_limit_s():
                return
            # At the lane's own pace: `check` is called as often as the host is read.
            if self._stale_reported_s is None or now_s - self._stale_reported_s >= self._period_s:
                self._stale_reported_s = now_s
                for record in self._stale(now_s):
                    self._gaps.add(_of(record))
                    self._emit(record)
            # Later than the first gaps: a busy machine is not a failure to report.
            if silence_s >= self._patience_s:
                self._fail(now_s, f"has not answered for {format_duration(silence_s)}")

    def _silence_s(self, now_s: float) -> float:
        if self._busy_since is None:
            return 0.0
        return now_s - self._busy_since

    def _silence_limit_s(self) -> float:
        return max(STALE_PERIODS * self._period_s, SHORTEST_SILENCE_S)

    def _run(self) -> None:
        while self._wait():
            self._tick()

    def _wait(self) -> bool:
        """Wait for the next tick; false if the lane should end."""
        # Read without the lock: a lane wakes up to 50 times a second, and a stop missed here is seen after the sleep.
        while not self._stopping:
            now_s = self._clock()
            remaining_s = self._due_s - now_s
            if remaining_s <= 0.0:
                self._busy_since = now_s
                return True
            if remaining_s <= SHORT_WAIT_S:
                time.sleep(remaining_s)
                continue
            with self._wake:
                if not self._stopping:
                    # Computed again under the lock, since `set_period` may have moved the tick.
                    self._wake.wait(self._due_s - self._clock())
        return False

    def _tick(self) -> None:
        # Set by `_wait` on this thread.
        began_s = self._busy_since or 0.0
        try:
            # Read everything before taking the lock: a generator would call the driver while `stop` waits.
            records: Iterable[Record] = list(self._read(began_s))
            trouble = ""
        except Exception as error:  # a source's failure is a record, never the end of the lane
            # Log the traceback once; the lane may fail at every tick from now on.
            if not self._failed:
                logger.warning("%s could not be read", self.source, exc_info=True)
            records = ()
            trouble = f"could not be read ({type(error).__name__}: {error})"
        # One critical section with `check`, so that no gap is emitted after the reading that ends the silence.
        with self._lock:
            self._busy_since = None
            if not self._stopping:
                self._finish(began_s, records, trouble)

    def _finish(self, began_s: float, records: Iterable[Record], trouble: str) -> None:
        now_s = self._clock()
        if trouble:
            self._fail(now_s, trouble)
            # A failed tick emits gaps, so that curves end with the readings.
            records = self._stale(now_s)
        elif self._failed:
            self._failed = False
            self._emit(SourceRecovered(time_s=now_s, source=self.source, text=f"{self._title} answers again."))
        if self._stale_reported_s is not None:
            # Gaps were emitted meanwhile; with its own time stamp the reading would precede them.
            records = [
                dataclasses.replace(record, time_s=now_s) if _of(record) in self._gaps else record for record in records
            ]
            self._stale_reported_s = None
            self._gaps.clear()
        for record in records:
            self._emit(record)
        self._account(began_s, now_s)

    def _account(self, began_s: float, now_s: float) -> None:
        lateness_s = began_s - self._due_s
        self._readings += 1
        self._late += lateness_s > self._period_s / 2
        self._worst_lateness_s = max(self._worst_lateness_s, lateness_s)
        self._busy_s += now_s - began_s
        # CPU time of this thread alone.
        self._cpu_s = time.thread_time()
        # The multiple of the period that follows the tick that was due: the schedule does not drift by the reading
        # time.
        self._due_s = (round(self._due_s / self._period_s) + 1) * self._period_s
        # Missed ticks are skipped: a burst of readings would all be of the same moment.
        if now_s > self._due_s:
            skipped = int((now_s - self._due_s) / self._period_s)
            self._missed += skipped
            self._due_s += skipped * self._period_s

    def _fail(self, now_s: float, trouble: str) -> None:
        if not self._failed:
            self._failed = True
            text = f"{self._title} {trouble}; its readings are gaps until it answers again."
            self._emit(SourceFailed(time_s=now_s, source=self.source, text=text))


def _nothing(_now_s: float) -> Iterable[Record]:
    return ()


def _of(record: Record) -> tuple[str, str | None]:
    """What a record is a reading of: its table and device."""
    if isinstance(record, Sample):
        return record.table, record.device
    return "", None
