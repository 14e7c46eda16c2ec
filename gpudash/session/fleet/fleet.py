"""Every GPU that a Prometheus server knows, polled by a thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from gpudash.session.fleet.overview import AnyFleet, FleetWatch, Overview, odd_entries, of_server, silent_before
from gpudash.session.fleet.view import FleetView
from gpudash.sources.prometheus import gpus as asking
from gpudash.sources.prometheus.address import ServerAddress
from gpudash.sources.prometheus.client import (
    Client,
    HttpAnswer,
    PrometheusError,
    of_unreadable,
    read_token,
)
from gpudash.sources.prometheus.names import EXPORTERS, names
from gpudash.system.settings import Settings, load_settings
from gpudash.system.threads import joined, started
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.metrics import SPOKEN
from gpudash.telemetry.records import Warning

logger = logging.getLogger(__name__)

SHORTEST_PERIOD_S = 1.0
"""Shortest interval between two polls, in seconds."""

LONGEST_WAIT_S = 30.0
"""Longest wait before a server that did not answer is asked again; the first wait is one period, doubling each
time."""

INTERVALS_EVERY = 60
"""How many polls share one measurement of the machines' scrape intervals."""

JOIN_S = 2.0
"""Longest wait for the thread in `close`."""

TRYING = "It is asked again by itself; nothing has to be done here once it answers."


class Fleet(AnyFleet):
    """A fleet. Any thread may read it; only the thread that `start` creates calls `poll`.

    Args:
        address: address of the server.
        period_s: interval between polls in seconds, at least `SHORTEST_PERIOD_S`.
        settings: memory levels of the warnings; ``None`` for the user's settings.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: one sentence, if the token cannot be sent.

    Attributes:
        empty: whether the server answers, but knows no GPU.
        answered: whether it has answered yet.
        server_version: such as "2.42.0"; "" if the server does not report it.
    """

    trying = TRYING

    def __init__(
        self,
        address: ServerAddress,
        *,
        period_s: float = SHORTEST_PERIOD_S,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__()
        self._token = read_token(address, environment)
        self.address = str(address)
        self.asking = f"Asking {self.address} which GPUs it knows…"
        self._problem: str | None = None
        self.empty = self.answered = False
        self.server_version = ""
        self._period_s = max(period_s, SHORTEST_PERIOD_S)
        self._clock = clock
        self._client = Client(address, self._token)
        self._overview = Overview()
        self._watch = FleetWatch(load_settings()[0] if settings is None else settings, self._overview)
        self._machines: Mapping[str, tuple[str, ...]] = {}
        self._server_warnings: list[Warning] = []
        self._at: tuple[float, float] = (0.0, 0.0)
        self._checked = False
        self._polls = self._failures = 0
        self._odd = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to poll."""
        self._thread = started("gpudash-fleet", self._run)

    def close(self) -> bool:
        """Stop polling; false if the thread did not end in time."""
        self._stop.set()
        self._client.close()
        thread = self._thread
        if thread is None:
            self._client.drop()
            return True
        return joined(thread, JOIN_S)

    @property
    def problem(self) -> str | None:
        """What is wrong, in one sentence, while the server does not answer or knows no GPU; else ``None``."""
        return self._problem

    def gpu(self, key: str) -> FleetGpu:
        """The GPU with this key.

        Raises:
            ValueError: one sentence, if there is none.
        """
        found = next((gpu for gpu in self.gpus() if gpu.key == key), None)
        if found is None:
            raise ValueError(f"{self.address} knows no GPU {key} any more.")
        return found

    def view(self, key: str, began_wall_s: float, ended_wall_s: float, points: int) -> FleetView:
        """The history of one GPU between two times in seconds since the epoch, with at most ``points`` points a curve.

        Returns immediately; the view's `loading` is true while its thread is fetching. The caller must close the view.

        Raises:
            ValueError: one sentence, if there is no such GPU or the range is empty.
        """
        client = Client(self._client.address, self._token)
        return FleetView(self.gpu(key), client, began_wall_s, ended_wall_s, points)

    def compare(
        self, key_a: str, range_a: tuple[float, float], key_b: str, range_b: tuple[float, float], points: int
    ) -> tuple[FleetView, FleetView]:
        """Two views on a common time axis: both start at session time 0, whatever their day and GPU.

        Raises:
            ValueError: as in `view`.
        """
        self.gpu(key_b)
        return self.view(key_a, *range_a, points), self.view(key_b, *range_b, points)

    def now_s(self) -> float:
        """The server's time in seconds since the epoch; this machine's before the first answer."""
        server_s, here_s = self._at
        if server_s:
            return server_s + self._clock() - here_s
        return time.time()

    def poll(self) -> float:
        """Poll once and store the answer; returns the seconds until the next poll."""
        try:
            reported, times, answer = self._ask()
        except PrometheusError as error:
            if error.kind != "closed":
                self._fail(str(error))
            return self._wait_s()
        except Exception as error:  # the answer may be anything
            logger.exception("what the Prometheus server answered could not be taken in")
            self._checked = False
            self._fail(str(of_unreadable(self._client.address, error)))
            return self._wait_s()
        self._failures = 0
        self._polls += 1
        self.answered = True
        now_s = max((seen_s for seen_s in (_time_of(answer), *times.values())), default=time.time())
        self._at = now_s, self._clock()
        self._machines = reported.machines
        shown = self._overview.take(reported, times, now_s)
        if reported.odd != self._odd:
            self._odd = reported.odd
            logger.info("%d entries of the server's answer cannot be read and are left out", reported.odd)
        silent = silent_before(self._overview.missing())
        self._server_warnings = [*silent, *of_server(answer.warnings), *odd_entries(reported)]
        self.empty = not shown
        if self.empty:
            self._problem = self._nothing()
        else:
            self._problem = None
        self._take(shown, now_s)
        return self._period_s

    def _ask(self) -> tuple[asking.ReportedGpus, dict[tuple[str, str], float], HttpAnswer]:
        client = self._client
        if not self._checked:
            self.server_version = client.check()
            self._checked = True
        if self._polls % INTERVALS_EVERY == 0 or self._failures:
            self._overview.intervals = asking.read_intervals(client.query(asking.COUNT_QUERY).result)
        answer = client.query(asking.QUERY)
        return asking.read_gpus(answer.result), asking.read_times(client.query(asking.TIMES_QUERY).result), answer

    def _take(self, gpus: tuple[FleetGpu, ...], now_s: float) -> None:
        self._show(gpus, (*self._watch.over(gpus, self._machines, now_s), *self._server_warnings))

    def _fail(self, problem: str) -> None:
        if problem != self.problem:  # log it once: a server may be down for hours
            logger.warning("fleet of %s: %s", self.address, problem)
        self._failures += 1
        self._problem = problem
        if self.answered:
            now_s = self.now_s()
            self._take(self._overview.marked(now_s), now_s)
        self._checked = False  # another server may answer there next

    def _wait_s(self) -> float:
        return float(min(self._period_s * 2.0 ** min(max(self._failures - 1, 0), 10), LONGEST_WAIT_S))

    def _nothing(self) -> str:
        series = (f"{SPOKEN[exporter]}'s {names(exporter, 'gpu')[0]}" for exporter in EXPORTERS)
        text = f"{self.address} knows no GPU: it has none of {', '.join(series)}"
        return f"{text}; have it scrape one of these exporters."

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begun = self._clock()
                wait_s = self.poll()
                self._stop.wait(pause_s(wait_s, self._clock() - begun))
        finally:
            self._client.drop()


def pause_s(wait_s: float, took_s: float) -> float:
    """Pause after a poll in seconds: at least as long as the server took to answer, to spare a slow one."""
    return min(max(wait_s - took_s, took_s), LONGEST_WAIT_S)


def _time_of(answer: HttpAnswer) -> float:
    """The server's time in an answer; 0 without any series."""
    try:
        return float(answer.result[0]["value"][0])
    except (LookupError, TypeError, ValueError):
        return 0.0
