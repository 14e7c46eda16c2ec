"""The history of one GPU of a fleet, in place of a dashboard's recording: a range of time, and parts of it in more
detail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpudash.devices.names import Gpu
from gpudash.sources.prometheus.client import Client, PrometheusError, of_unreadable
from gpudash.sources.prometheus.history import FEWEST_POINTS, MOST_POINTS, RUN, Past, Subject, read_past
from gpudash.system.newest_request import NewestRequest
from gpudash.system.settings import Settings
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.readings import Instant, Key
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import Sample
from gpudash.telemetry.series import Series
from gpudash.telemetry.store import MOST_DETAILS, Store

logger = logging.getLogger(__name__)

JOIN_S = 2.0
"""Longest wait for the thread in `close`."""

MARGIN = 0.1
"""Part of a range that is also fetched on either side of it, so that lines reach its edges."""

COARSE = 1.6
"""How many times coarser than requested known data may be before more detail is fetched."""

SHORTEST_S = 1.0
"""Shortest range that is fetched, in seconds."""


class _Known(NamedTuple):
    """A span of session time, and the distance of the points known in it."""

    began_s: float
    ended_s: float
    step_s: float
    exact: bool


class _Request(NamedTuple):
    """A range to fetch, in seconds since the epoch."""

    began_wall_s: float
    ended_wall_s: float


class FleetView:
    """A range of one GPU's history, as a `PlotSource`; session time 0 is the beginning of the range.

    Args:
        gpu: the GPU.
        client: connection to the server; the view closes it.
        began_wall_s, ended_wall_s: the range, in seconds since the epoch.
        points: largest number of points of a curve.

    Raises:
        ValueError: one sentence, if the range is empty.

    Attributes:
        gpu: the GPU, as it was when the view was created.
        store: the fetched readings, at the position set by `seek`.
        recording_path: the GPU's name, used to name saved files.
        began_wall_s: seconds since the epoch at session time 0.
        points: largest number of points of a curve: the width of the plots in pixels.
        fetched: counter that grows with every answer.
        requested_points: points of one curve in the newest request to the server.
    """

    live = None
    keys: Collection[Key] = ()
    thinned = True
    shift_s, grows = 0.0, False
    """Session time starts with the range, which stays until another one is requested."""

    def __init__(
        self, gpu: FleetGpu, client: Client, began_wall_s: float, ended_wall_s: float, points: int = 1024
    ) -> None:
        self.gpu = gpu
        self.recording_path: Path | None = Path(gpu.name.replace("/", " "))
        self.settings = Settings()
        uuid = gpu.uuid or gpu.key
        total = None if gpu.total_bytes is None else round(gpu.total_bytes)
        self.gpus = (Gpu(gpu.index or 0, uuid, "", gpu.product or "GPU", total, simulated=gpu.simulated),)
        assert gpu.exporter != "ssh"  # which no server monitors
        self._subject = Subject(gpu.exporter, uuid, gpu.labels, gpu.torch_name)
        self._client = client
        self._lock = threading.Lock()
        self._requests: NewestRequest[_Request] = NewestRequest("gpudash-fleet-view", self._answer)
        self._known: list[_Known] = []
        self._problem = ""
        self._reported: tuple[str, ...] = ()
        self.fetched = self.requested_points = 0
        self.points = points
        self.began_wall_s, self._length_s = began_wall_s, ended_wall_s - began_wall_s
        self._samples: list[Sample] = []
        self.store = Store(self)
        self.store.end.newest_s = self._length_s
        if gpu.torch_name:
            self.store.link(gpu.torch_name, uuid)
        self.show_range(began_wall_s, ended_wall_s, points)

    @property
    def loading(self) -> bool:
        """Whether a request is still unanswered."""
        return self._requests.busy

    @property
    def extent_s(self) -> tuple[float, float]:
        """0, and the length of the range."""
        return 0.0, self._length_s

    @property
    def empty(self) -> bool:
        """Whether the server had no data in the range."""
        return self.fetched > 0 and not self._samples

    @property
    def notices(self) -> list[str]:
        """What could not be fetched, one sentence each."""
        if self._problem:
            return [self._problem]
        if self.loading or not self.empty:
            nothing = []
        else:
            nothing = [f"{self.gpu.name} told nothing in this range"]
        return [*nothing, *(f"The server says: {text}" for text in self._reported)]

    def show_range(self, began_wall_s: float, ended_wall_s: float, points: int) -> None:
        """Fetch another range, or part of this one in more detail, on the view's thread; the newest request wins.

        A range within the current one adds detail: session times stay. Any other range starts a new axis at 0 once it
        has been fetched: `began_wall_s` and `extent_s` then change together with the store, whose ``rewound`` grows.

        Raises:
            ValueError: one sentence, if the range is empty.
        """
        if not ended_wall_s - began_wall_s >= SHORTEST_S:
            raise ValueError(f"A range of the past is at least {SHORTEST_S:g} s long; choose a later end.")
        self.points = min(max(points, FEWEST_POINTS), MOST_POINTS)
        self._requests.submit(_Request(began_wall_s, ended_wall_s), retry=True)

    def seek(self, time_s: float | None) -> None:
        """Move the store to ``time_s``; ``None``, or a time past the end, means the end."""
        self.store.seek(None if time_s is None or time_s >= self._length_s else max(time_s, 0.0))

    def settle(self, timeout_s: float) -> bool:
        """Wait until every request is answered; false on timeout."""
        return self._requests.wait(timeout_s)

    def close(self) -> bool:
        """Send no more requests; false if the thread did not end in time."""
        self._requests.close()
        self._client.close()
        ended = self.settle(JOIN_S)
        if ended:
            self._client.drop()
        return ended

    def save_recording(self, target: Path) -> None:
        """Not supported: there is no file to copy.

        Raises:
            RecordingError: always.
        """
        raise RecordingError("This is a server's past, not a recording; export its curves instead")

    def load(self, key: Key) -> Series | None:
        """``None``: the store holds everything that was fetched."""
        return None

    def instant(self, store: Store, time_s: float, *, runs: bool) -> Instant:
        """The newest readings at ``time_s``; of runs, a server knows only curves."""
        found = Instant(time_s)
        found.scan_back(reversed(self._samples))
        found.add_bands({uuid: name for name, uuid in store.links.items()})
        return found

    def request(self, t0: float, t1: float) -> None:
        """Fetch more detail for a part, unless it is known well enough; returns immediately."""
        t0, t1 = max(t0, 0.0), min(t1, self._length_s)
        if t1 - t0 < SHORTEST_S:
            return
        ideal_s = (t1 - t0) / (self.points / 2)
        with self._lock:
            known = next((span for span in self._known if span.began_s <= t0 and t1 <= span.ended_s), None)
            if known is None or known.exact or known.step_s <= COARSE * ideal_s:
                return
            began_wall_s = self.began_wall_s
        self._requests.submit_if_none_waits(_Request(began_wall_s + t0, began_wall_s + t1))

    def _answer(self, request: _Request) -> bool:
        try:
            self._fetch(request)
        except PrometheusError as error:
            if error.kind == "closed":
                self._problem = ""
            else:
                self._problem = str(error)
            return False
        except Exception as error:  # the answer may be anything
            logger.exception("the past of a GPU could not be taken in")
            self._problem = str(of_unreadable(self._client.address, error))
            return False
        self._problem = ""
        return True

    def _fetch(self, request: _Request) -> None:
        began, ended = request
        length_s = ended - began
        end_s = self.began_wall_s + self._length_s
        inside = bool(self._known) and self.began_wall_s <= began and ended <= end_s and length_s < self._length_s
        if not inside:
            past = self._read(began, ended)
            self.began_wall_s, self._length_s = began, length_s
            self._samples = past.samples
            fetched = Store(self)
            self._fill(fetched, past)
            fetched.end.newest_s = length_s
            self.store.replace(fetched)
            self._learn([_Known(0.0, length_s, past.step_s, past.exact)])
            return
        margin_s = length_s * MARGIN
        low, high = max(began - margin_s, self.began_wall_s), min(ended + margin_s, end_s)
        past = self._read(low, high)
        span = low - self.began_wall_s, high - self.began_wall_s
        detail = Store()
        self._fill(detail, past, span[0])
        self.store.sharpen(span, detail)
        parts = self._known[:-1][: MOST_DETAILS - 1]
        self._learn([_Known(*span, past.step_s, past.exact), *parts, self._known[-1]])

    def _read(self, began: float, ended: float) -> Past:
        past = read_past(self._client, self._subject, began, ended, self.points)
        self.requested_points = past.requested_points
        self._reported = past.warnings
        self.fetched += 1
        return past

    def _learn(self, known: list[_Known]) -> None:
        """Replace the list of known spans: the newest first, the whole range last."""
        with self._lock:
            self._known = known

    def _fill(self, store: Store, past: Past, since_s: float = 0.0) -> None:
        """Put the fetched part, which begins at ``since_s``, into a store."""
        for device, uuid in self.store.links.items():
            store.link(device, uuid)
        for sample in past.samples:
            store.apply(replace(sample, time_s=sample.time_s + since_s) if since_s else sample)
        for column, points in past.curves.items():
            for time_s, value in points:
                store.append((RUN, column, None), time_s + since_s, value)
