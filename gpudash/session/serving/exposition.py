"""The figures as text, by prometheus-client: rendered at most a few times a second, whoever asks and however often."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from gpudash.session.serving.catalogue import CATALOGUE, ServedMetric
from gpudash.session.serving.run_figures import Rows

KEPT_S = 0.25
"""Time for which a rendered page is given out again."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

LONGEST_LABEL = 128

COMPRESSION = 5
"""Level of gzip: about as small as the highest, in half the time."""


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
    """

    def __init__(self, gather: Callable[[], Mapping[ServedMetric, Rows]], clock: Callable[[], float]) -> None:
        self._gather = gather
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
        return (family(served, rows) for served in CATALOGUE if (rows := self._rows.get(served)))

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
            return ScrapePage(openmetrics.generate_latest(self._registry), OPENMETRICS, False)  # type: ignore[no-untyped-call]
        return ScrapePage(generate_latest(self._registry), TEXT, False)


def family(served: ServedMetric, rows: Rows) -> Metric:
    """A metric with its samples, as prometheus-client knows it."""
    if served.kind == "info":
        info = InfoMetricFamily(served.name.removesuffix("_info"), served.words, labels=())
        for labels, _ in rows:
            info.add_metric((), dict(zip(served.labels, map(_text, labels), strict=True)))
        return info
    kind = CounterMetricFamily if served.kind == "counter" else GaugeMetricFamily
    metric = kind(served.name, served.words, labels=served.labels)
    for labels, value in rows:
        metric.add_metric([_text(label) for label in labels], value)
    return metric


def _text(label: str) -> str:
    """A label's value as UTF-8 can hold it: names of files and processes may be other bytes."""
    return label.encode("utf-8", "replace").decode()[:LONGEST_LABEL]
