"""One daemon thread per source, reading on an absolute schedule, whatever the other sources do."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpudash.system.threads import joined
from gpudash.telemetry.records import Record, SourceFailed, SourceRecovered
from gpudash.units import format_duration

logger = logging.getLogger(__name__)

STALE_PERIODS = 3
"""A lane whose call has not returned for so many periods is stale."""

SHORTEST_SILENCE_S = 0.15
"""Silence below this is a busy machine's scheduling, whatever the period."""

SHORT_WAIT_S = 0.1
"""Up to this a lane sleeps, which costs half of a wait that can be cut short; stopping takes at most as long."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between the readings that do not follow the memory rate, and of patience.

    Attributes:
        slow: energy, processes and PCIe throughput of a GPU.
        processes: host processes.
        tend: how often the library is looked after, and a lost GPU is looked for.
        longest_retry: between attempts to open a library that is not there; they begin at `tend` and double.
        reopen: how long all GPUs must be lost before the library is initialised anew.
        patience: silence after which a stuck call is told in words.
    """

    slow: float = 1.0
    processes: float = 1.0
    tend: float = 0.5
    longest_retry: float = 5.0
    reopen: float = 2.0
    patience: float = 1.0

    @property
    def driver_patience(self) -> float:
        """The driver may take longer to begin with a GPU than to answer for it: it starts the card up."""
        return 3 * self.patience


Emit = Callable[[Record], None]
Read = Callable[[float], Iterable[Record]]


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """What a lane has done so far.

    Attributes:
        name: the lane.
        period_s: its present period.
        readings: ticks read.
        missed: ticks that never happened because the one before took too long, or is still taking.
        late: ticks that began more than half a period after their time.
        worst_lateness_s: the latest beginning of a tick.
        busy_s: wall time spent reading.
        cpu_s: CPU time of the lane's thread.
        stuck: whether a call has not returned for three periods.
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
    """Calls ``read`` at once, then at each multiple of its period, and emits what it returns.

    So the lanes of one clock wake together: a processor needs less time for two readings when it is woken once.

    Args:
        name: of the thread and in statistics.
        read: given the session time of the tick, returns its records. An exception becomes one `SourceFailed`,
            and the first good tick after it a `SourceRecovered`.
        emit: takes a record; called from this lane's thread, and from that of whoever calls `check`.
        clock: session time in seconds, monotonic.
        period_s: seconds between ticks; `set_period` changes it while running.
        source: `SourceFailed.source` of this lane.
        title: the subject of its sentences: "GPU 0 (NVIDIA H200)".
        stale: given a time, the records that say this tick has no reading.
        patience_s: silence after which a stuck call is told in words.
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
        self._lock = threading.RLock()  # entered without a line of Python, as the condition would not be
        self._wake = threading.Condition(self._lock)
        self._stopping = False
        self._due_s = 0.0
        self._busy_since: float | None = None
        self._stale_reported_s: float | None = None
        self._failed = False
        self._readings = self._missed = self._late = 0
        self._worst_lateness_s = self._busy_s = self._cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"gpudash {name}", daemon=True)

    def start(self) -> None:
        # The first tick is due at once; `_account` brings the later ones onto the multiples of the period.
        self._due_s = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Asks the lane to end; nothing is emitted after this returns."""
        # With the lock held: a tick that is being emitted is through before this returns, and none begins after it.
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within ``timeout_s``."""
        # A thread that was never started cannot be joined.
        if self._thread.ident is None:
            return True
        return joined(self._thread, max(0.0, timeout_s))

    def set_period(self, period_s: float) -> None:
        """Reads every ``period_s`` from now on."""
        with self._wake:
            self._period_s = period_s
            # A slower period may leave the next tick where it is; a faster one must not wait for it.
            self._due_s = min(self._due_s, self._clock() + period_s)
            self._wake.notify_all()

    @property
    def stuck(self) -> bool:
        """Whether the present call has not returned for three periods."""
        with self._wake:
            return self._silence_s(self._clock()) >= self._silence_limit_s()

    @property
    def failed(self) -> bool:
        """Whether a failure was told and no recovery since."""
        return self._failed

    @property
    def busy(self) -> bool:
        """Whether the lane is inside a call now."""
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
                # Ticks that the present call has cost so far; they are counted for good once it returns.
                missed=self._missed + (int(silence_s / self._period_s) if stuck else 0),
                late=self._late,
                worst_lateness_s=self._worst_lateness_s,
                busy_s=self._busy_s,
                cpu_s=self._cpu_s,
                stuck=stuck,
            )

    def check(self) -> None:
        """Writes the gaps of a lane whose call does not return, at the lane's own pace, and says so once.

        Called by another thread, because the lane's own is inside the call.
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
                    self._emit(record)
            # Later than the first gaps: a busy machine is no failure to tell in words.
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
        """Waits for the next tick; false when the lane is to end."""
        # Read without the lock: a lane wakes up to 50 times a second, and a stop that is missed here is seen after
        # the sleep.
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
                    # Asked again under the lock, since `set_period` may have moved the tick.
                    self._wake.wait(self._due_s - self._clock())
        return False

    def _tick(self) -> None:
        # Set by `_wait` in this thread.
        began_s = self._busy_since or 0.0
        try:
            # All of them before the lock: a generator would read the driver while `stop` waits.
            records: Iterable[Record] = list(self._read(began_s))
            trouble = ""
        except Exception as error:  # a source's failure is a record, never the end of the lane
            # With its traceback once; the lane may fail at every tick from now on.
            if not self._failed:
                logger.warning("%s could not be read", self.source, exc_info=True)
            records = ()
            trouble = f"could not be read ({type(error).__name__}: {error})"
        # One section with `check`, so that no gap is written behind the reading that ends the silence.
        with self._lock:
            self._busy_since = None
            if not self._stopping:
                self._finish(began_s, records, trouble)

    def _finish(self, began_s: float, records: Iterable[Record], trouble: str) -> None:
        now_s = self._clock()
        if trouble:
            self._fail(now_s, trouble)
            # A failed tick has gaps in place of values, so that curves end where the readings do.
            records = self._stale(now_s)
        elif self._failed:
            self._failed = False
            self._emit(SourceRecovered(time_s=now_s, source=self.source, text=f"{self._title} answers again."))
        if self._stale_reported_s is not None:
            # Gaps were written meanwhile: a reading stamped when it was asked for would lie before them.
            records = [dataclasses.replace(record, time_s=now_s) for record in records]
            self._stale_reported_s = None
        for record in records:
            self._emit(record)
        self._account(began_s, now_s)

    def _account(self, began_s: float, now_s: float) -> None:
        lateness_s = began_s - self._due_s
        self._readings += 1
        self._late += lateness_s > self._period_s / 2
        self._worst_lateness_s = max(self._worst_lateness_s, lateness_s)
        self._busy_s += now_s - began_s
        # Of this thread alone, whatever others do meanwhile.
        self._cpu_s = time.thread_time()
        # The next multiple of the period from the tick that was due: the schedule does not drift with the time that
        # reading takes.
        self._due_s = (round(self._due_s / self._period_s) + 1) * self._period_s
        # Ticks that are over are not made up for: readings in a burst would all be of now.
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
