"""What is served: gathered from a session, for every metric of the catalogue its rows of label values and a number, and
rendered as text by prometheus-client, at most a few times a second, however many requests come."""

from __future__ import annotations

import gzip
import math
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from gpudash import __version__
from gpudash.devices.names import Gpu
from gpudash.memory.watching.levels import HOST
from gpudash.session.serving import catalogue as names
from gpudash.session.serving.catalogue import CATALOGUE, READINGS, ServedMetric
from gpudash.telemetry.readings import NEVER_READ, Reading
from gpudash.telemetry.records import RunStarted, State, Topic, Warning
from gpudash.telemetry.runs import RunView, Status
from gpudash.telemetry.store import Store

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Estimate
    from gpudash.session.live.session import Session
    from gpudash.session.remote.machine import RemoteMachine

Rows = list[tuple[tuple[str, ...], float]]
"""Label values and number of each sample of a metric."""

FRESH_S = 10.0
"""Age from which a reading is no longer served: a lane that is stuck says so sooner, one that is gone never."""

PROCESSES = 5
"""Processes of each GPU that are served, the largest; each brings series of its own to the server that scrapes."""

MOST_RANKS = 64
"""Ranks with series of their own; of more, the lowest, the median and the highest are served."""

ENVELOPE = ("lowest", "median", "highest")

STATUSES: tuple[Status, ...] = get_args(Status)

RAISED = ("forecast", "warning", "critical")
"""Levels that stand until "passed" takes them back; a note is shown once and does not stand."""

KEPT_S = 0.25
"""Time for which a rendered page is given out again."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

LONGEST_LABEL = 128

COMPRESSION = 5
"""Level of gzip: about as small as the highest, in half the time."""


class Figures:
    """Gathers the figures of a session, or of a machine over ssh. Belongs to one thread, the one that serves.

    Args:
        session: what is served.
        host: the machine's name; left out: this one's.
    """

    def __init__(self, session: Session | RemoteMachine, host: str | None = None) -> None:
        self._session = session
        self._warnings = _StandingWarnings()
        if host is None:
            self._host = socket.gethostname()
        else:
            self._host = host

    def gather(self, predicted: Estimate | None) -> Mapping[ServedMetric, Rows]:
        """Rows of every metric that has any. Holds the store's lock for as long as copying takes.

        Args:
            predicted: of the run that is on.
        """
        session, now_s = self._session, self._session.clock()
        gpus, status = session.gpus, session.status()
        cpu, *others = session.devices()
        memories = {device.name: device.uuid for device in others if device.uuid} | {cpu.name: HOST}
        ahead = {}
        for memory in (HOST, *(gpu.uuid for gpu in gpus)):
            found = session.forecast(memory)
            if found:
                ahead[memory] = found.seconds
        rows: defaultdict[ServedMetric, Rows] = defaultdict(list)
        with session.store.lock:
            store, run = session.store, session.store.run
            self._warnings.follow(store)
            named = {gpu.uuid: _labels(gpu, memories) for gpu in gpus}
            devices = _devices(named, [device.name for device in others], _rank_names(run))
            _readings(store, now_s, devices, 0.0 if run is None else run.began_s, rows)
            for gpu in gpus:
                self._gpu(store, gpu, named[gpu.uuid], now_s, rows)
            _age(rows, HOST, store.latest("host", "used_bytes"), now_s)
            if run is not None:
                left_s = ahead.get(memories.get(run.device, ""))
                _run_rows(run, store, now_s, left_s, predicted, self._host, rows)
        rows[names.GPU_FORECAST] = [(labels, ahead[uuid]) for uuid, labels in named.items() if uuid in ahead]
        if HOST in ahead:
            rows[names.HOST_FORECAST] = [((), ahead[HOST])]
        else:
            rows[names.HOST_FORECAST] = []
        rows[names.BUILD] = [((__version__,), 1.0)]
        rows[names.HOST_INFO] = [((self._host, cpu.product, session.host_capacity_source), 1.0)]
        rows[names.WARNING] = [(standing, 1.0) for standing in self._warnings.standing()]
        rows[names.WARNINGS] = [((level,), float(count)) for level, count in self._warnings.raised.items()]
        rows[names.MISSED] = [((), float(status.missed))]
        rows[names.OWN_CPU] = [((), status.own_cpu_ratio)]
        return rows

    def _gpu(
        self, store: Store, gpu: Gpu, labels: tuple[str, str], now_s: float, rows: defaultdict[ServedMetric, Rows]
    ) -> None:
        facts = (
            str(gpu.nvml_index),
            gpu.product,
            store.torch_name(gpu.uuid) or "",
            _flag(gpu.simulated),
            self._host,
        )
        rows[names.GPU_INFO].append(((*labels, *facts, _flag(gpu.shared_memory)), 1.0))
        used = store.latest("gpu", "used_bytes", gpu.uuid)
        if used is not NEVER_READ:
            if _fresh(used, now_s):
                state = used.state
            else:
                state = State.STALE
            rows[names.GPU_STATE] += [((*labels, each.value), float(each is state)) for each in State]
        _age(rows, gpu.uuid, used, now_s)
        sized = [(size, row) for row in store.processes(gpu.uuid) if isinstance(size := row.get("memory_bytes"), int)]
        for size, row in sorted(sized, key=lambda item: item[0], reverse=True)[:PROCESSES]:
            rows[names.GPU_PROCESS].append(((*labels, str(row.get("pid")), str(row.get("name") or "")), float(size)))


Devices = Mapping[str, Sequence[tuple[str | None, tuple[str, ...]]]]
"""Reading table → its devices, each with its label values."""


def _devices(gpus: Mapping[str, tuple[str, str]], torch_names: Iterable[str], ranks: Iterable[str]) -> Devices:
    return {
        "host": [(None, ())],
        "gpu": list(gpus.items()),
        "allocator": [(name, (name,)) for name in torch_names],
        "rank": [(rank, (rank,)) for rank in ranks],
    }


def _readings(
    store: Store, now_s: float, devices: Devices, run_began_s: float, rows: defaultdict[ServedMetric, Rows]
) -> None:
    for served in READINGS:
        assert served.reading is not None
        table, metric = served.reading
        for device, labels in devices[table]:
            reading = store.latest(table, metric, device)
            # a step may take longer than any reading is fresh; a rank's row holds until the next one
            if table != "rank":
                holds = _fresh(reading, now_s)
            else:
                holds = (reading.time_s or 0.0) >= run_began_s
            if holds and reading.number is not None:
                rows[served].append((labels, float(reading.number)))


def _labels(gpu: Gpu, memories: Mapping[str, str]) -> tuple[str, str]:
    """The identity of a GPU and its short name.

    Args:
        memories: torch's names of devices, a program's simulated card apart from the session's → their identities.
    """
    name = next((name for name, uuid in memories.items() if uuid == gpu.uuid), gpu.number)
    return gpu.uuid, name if gpu.simulated else gpu.number


def _fresh(reading: Reading, now_s: float) -> bool:
    return reading.time_s is not None and now_s - reading.time_s <= FRESH_S


def _age(rows: defaultdict[ServedMetric, Rows], memory: str, reading: Reading, now_s: float) -> None:
    if reading.time_s is not None:
        rows[names.READING_AGE].append(((memory,), max(0.0, now_s - reading.time_s)))


def _flag(value: bool) -> str:
    if value:
        return "true"
    return "false"


def _run_rows(
    run: RunView,
    store: Store,
    now_s: float,
    forecast_s: float | None,
    predicted: Estimate | None,
    host: str,
    rows: defaultdict[ServedMetric, Rows],
) -> None:
    """Put the newest run's figures into ``rows``; the caller holds the store's lock.

    Args:
        forecast_s: seconds until the memory of its device is full, if it grows.
        predicted: its prediction, if there is one.
        host: name of this machine.
    """
    labels = ("" if run.run_id is None else str(run.run_id), run.workload, run.device)
    rows[names.RUN_INFO].append(((*labels, "true" if run.simulated else "false", host), 1.0))
    rows[names.RUN_STATUS] += [((*labels, status), float(status == run.status)) for status in STATUSES]
    if run.seconds is None:
        seconds = now_s - run.began_s
    else:
        seconds = run.seconds
    figures: list[tuple[ServedMetric, float | None]] = [
        (names.RUN_STEP, run.step if run.stepped_s is not None or not run.running else None),
        (names.RUN_STEPS, run.steps or None),
        (names.RUN_DURATION, max(0.0, seconds)),
    ]
    if run.running:
        figures += [
            (names.RUN_STEP_AGE, None if run.stepped_s is None else max(0.0, now_s - run.stepped_s)),
            (names.RUN_LOSS, _newest(store, run, "loss")),
            (names.RUN_ACCURACY, _newest(store, run, "accuracy")),
            (names.RUN_THROUGHPUT, _newest(store, run, "throughput")),
            (names.RUN_FORECAST, forecast_s),
        ]
    for served, value in figures:
        if value is not None:
            rows[served].append((labels, float(value)))
    peaks = [("allocated", run.memory.allocated_bytes), ("reserved", run.memory.reserved_bytes)]
    _by_kind(rows, names.RUN_PEAK, labels, [*peaks, ("used", run.memory.used_bytes)])
    if predicted is not None:
        expected = [("allocated", predicted.peak_allocated_bytes), ("reserved", predicted.peak_reserved_bytes)]
        _by_kind(rows, names.RUN_PREDICTED, labels, expected)
    _ranks(run, store, labels, rows)


def _rank_names(run: RunView | None) -> Sequence[str]:
    """What the ranks of a run that is on are called in the readings; empty for a run on one device."""
    if run is None or not run.running:
        return ()
    size = _world_size(run)
    if size > MOST_RANKS:
        return ENVELOPE
    return list(map(str, range(size)))


def _world_size(run: RunView) -> int:
    ranks = run.note(Topic.RANKS)
    size = None
    if ranks is not None:
        size = ranks.details.get("world_size")
    if isinstance(size, int):
        return size
    return 0


def _ranks(run: RunView, store: Store, labels: tuple[str, ...], rows: defaultdict[ServedMetric, Rows]) -> None:
    size = _world_size(run)
    if not size:
        return
    rows[names.RUN_RANKS].append((labels, float(size)))
    for rank in _rank_names(run):
        step, waiting = store.latest("rank", "step_s", rank), store.latest("rank", "waiting_s", rank)
        if step.time_s is None or step.time_s < run.began_s or step.time_s != waiting.time_s:
            continue
        if step.number is not None and waiting.number is not None and step.number > 0:
            rows[names.RANK_WAITING].append(((rank,), waiting.number / step.number))


def _newest(store: Store, run: RunView, name: str) -> float | None:
    """The metric of the newest step that has it; a loss may be NaN or infinite."""
    if name not in run.metrics:
        return None
    last = store.last("run", name)
    if last is None or last[0] < run.began_s or (math.isnan(last[1]) and name != "loss"):
        return None
    return last[1]


def _by_kind(
    rows: defaultdict[ServedMetric, Rows],
    served: ServedMetric,
    labels: tuple[str, ...],
    values: Sequence[tuple[str, int | None]],
) -> None:
    rows[served] += [((*labels, kind), float(value)) for kind, value in values if value is not None]


class _StandingWarnings:
    """Which warnings stand now, followed from a session's events.

    Attributes:
        raised: how many of each level there were.
    """

    def __init__(self) -> None:
        self.raised: Counter[str] = Counter(dict.fromkeys(RAISED, 0))
        self._standing: dict[tuple[str, str], Warning] = {}
        self._seen = 0

    def follow(self, store: Store) -> None:
        """Take in the events since last time; the caller holds the store's lock."""
        fresh = list(islice(reversed(store.events), min(store.event_count - self._seen, len(store.events))))
        self._seen = store.event_count
        for event in reversed(fresh):
            if isinstance(event, Warning):
                self._take(event)
            elif isinstance(event, RunStarted):
                self._drop_of_the_run_before()

    def standing(self) -> list[tuple[str, str]]:
        """(level, device) of each, in order."""
        return sorted(self._standing)

    def _take(self, warning: Warning) -> None:
        if warning.level == "passed":
            for key in [key for key in self._standing if key[1] == warning.device]:
                del self._standing[key]
        elif warning.level in RAISED:
            self.raised[warning.level] += 1
            self._standing[warning.level, warning.device] = warning

    def _drop_of_the_run_before(self) -> None:
        """Warnings about a run, not a memory's level, are never taken back, such as that the guard ended it."""
        for key, warning in list(self._standing.items()):
            if warning.run_id is not None and warning.ratio is None:
                del self._standing[key]


class ScrapePage(NamedTuple):
    """A rendered scrape."""

    body: bytes
    content_type: str
    compressed: bool


class Exposition(Collector):
    """Renders what ``gather`` finds. Belongs to one thread.

    Args:
        gather: the rows of every metric that has any.
        clock: monotonic seconds.
        catalogue: the metrics, in the order of a scrape.
    """

    def __init__(
        self,
        gather: Callable[[], Mapping[ServedMetric, Rows]],
        clock: Callable[[], float],
        catalogue: Sequence[ServedMetric] = CATALOGUE,
    ) -> None:
        self._gather = gather
        self._catalogue = catalogue
        self._clock = clock
        self._registry = CollectorRegistry()  # not the global one, to which others may add
        self._registry.register(self)
        self._pages: dict[tuple[bool, bool], ScrapePage] = {}
        self._rows: Mapping[ServedMetric, Rows] = {}
        self._gathered_s: float | None = None

    def describe(self) -> Iterable[Metric]:
        """No metric by name, so that registering gathers nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics in the order of the catalogue, without those that have no rows."""
        return (_family(served, rows) for served in self._catalogue if (rows := self._rows.get(served)))

    def page(self, *, as_openmetrics: bool, compressed: bool) -> ScrapePage:
        """The scrape, not older than `KEPT_S`."""
        now_s = self._clock()
        if self._gathered_s is None or now_s - self._gathered_s >= KEPT_S:
            self._rows = self._gather()
            self._gathered_s = now_s
            self._pages.clear()
        page = self._pages.get((as_openmetrics, compressed))
        if page is None:
            page = self._pages[as_openmetrics, compressed] = self._rendered(as_openmetrics, compressed)
        return page

    def _rendered(self, as_openmetrics: bool, compressed: bool) -> ScrapePage:
        if compressed:
            plain = self.page(as_openmetrics=as_openmetrics, compressed=False)
            return ScrapePage(gzip.compress(plain.body, COMPRESSION, mtime=0), plain.content_type, True)
        if as_openmetrics:
            # the library has no types there
            return ScrapePage(openmetrics.generate_latest(self._registry), OPENMETRICS, False)  # type: ignore[no-untyped-call]
        return ScrapePage(generate_latest(self._registry), TEXT, False)


def _family(served: ServedMetric, rows: Rows) -> Metric:
    """A metric with its samples, as prometheus-client knows it."""
    if served.kind == "info":
        info = InfoMetricFamily(served.name.removesuffix("_info"), served.help_text, labels=())
        for labels, _ in rows:
            info.add_metric((), dict(zip(served.labels, map(_text, labels), strict=True)))
        return info
    kind = CounterMetricFamily if served.kind == "counter" else GaugeMetricFamily
    metric = kind(served.name, served.help_text, labels=served.labels)
    for labels, value in rows:
        metric.add_metric(list(map(_text, labels)), value)
    return metric


def _text(label: str) -> str:
    """A label's value as UTF-8 can hold it: names of files and processes may be other bytes."""
    return label.encode("utf-8", "replace").decode()[:LONGEST_LABEL]
