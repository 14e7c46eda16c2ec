"""What a Prometheus server answers of samples it holds, for the queries that gpudash asks of the past."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.prometheus_server.fake import Reply, data

Samples = Sequence[tuple[float, float]]


@dataclass
class PastServer:
    """Holds series, and answers for a `fake_server`.

    Attributes:
        series: labels, the name among them, and (time, value) in order of time.
        sent: the most points of one series in each answer about the past, in order.
        fail: answers instead, while it is set.
    """

    series: list[tuple[dict[str, str], Samples]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    fail: Reply | None = None

    def add(self, name: str, samples: Samples, **labels: str) -> None:
        self.series.append(({"__name__": name, **labels}, samples))

    def __call__(self, path: str, asked: Mapping[str, str]) -> Reply:
        if self.fail is not None:
            return self.fail
        query = asked["query"]
        if path == "/api/v1/query_range":
            return self._range(query, float(asked["start"]), float(asked["end"]), float(asked["step"]))
        end_s = float(asked["time"])
        if query.startswith("max(count_over_time("):
            terms = re.findall(r"count_over_time\((\w+)\{(.*?)\}\[(\d+)ms\]\)", query)
            counts = [
                len(inside)
                for name, matchers, window in terms
                for _labels, inside in self._inside(f'__name__=~"{name}",{matchers}', int(window), end_s)
            ]
            return data([{"metric": {}, "value": [end_s, str(max(counts))]}] if counts else [])
        selector, window = re.fullmatch(r"\{(.*)\}\[(\d+)ms\]", query).groups()
        found = self._inside(selector, int(window), end_s)
        self.sent.append(max((len(inside) for _labels, inside in found), default=0))
        return data([_matrix(labels, inside) for labels, inside in found], "matrix")

    def _range(self, query: str, start_s: float, end_s: float, step_s: float) -> Reply:
        result, points = [], {}
        for term in query.split(" or "):
            function, name, matchers, window, mark = re.fullmatch(
                r'label_replace\((\w+)_over_time\((\w+)\{(.*)\}\[(\d+)ms\]\),"gpudash_of","([^"]*)","",""\)', term
            ).groups()
            chosen: Callable[..., float] = {"min": min, "max": max}[function]
            for labels, samples in self._chosen(f'__name__=~"{name}",{matchers}'):
                steps = [start_s + n * step_s for n in range(math.floor((end_s - start_s) / step_s + 1e-9) + 1)]
                times = [at for at, _value in samples]
                values = []
                for t in steps:
                    inside = samples[bisect_right(times, t - int(window) / 1000) : bisect_right(times, t)]
                    values += [(t, chosen(v for _at, v in inside))] if inside else []
                kept = {label: value for label, value in labels.items() if label != "__name__"}
                result.append(_matrix({**kept, "gpudash_of": mark}, values))
                points[name] = points.get(name, 0) + len(steps)
        self.sent.append(max(points.values(), default=0))
        return data(result, "matrix")

    def _inside(self, selector: str, window_ms: int, end_s: float) -> list[tuple[dict[str, str], Samples]]:
        begin_s = end_s - window_ms / 1000
        cut = [
            (labels, [(t, v) for t, v in samples if begin_s < t <= end_s]) for labels, samples in self._chosen(selector)
        ]
        return [(labels, inside) for labels, inside in cut if inside]

    def _chosen(self, selector: str) -> list[tuple[dict[str, str], Samples]]:
        wanted = re.findall(r'(\w+)(=~?)"((?:[^"\\]|\\.)*)"', selector)
        return [
            (labels, samples)
            for labels, samples in self.series
            if all(
                bool(re.fullmatch(text, labels.get(name, ""))) if how == "=~" else labels.get(name) == text
                for name, how, text in wanted
            )
        ]


def _matrix(labels: Mapping[str, str], samples: Samples) -> dict[str, Any]:
    return {"metric": dict(labels), "values": [[t, str(v)] for t, v in samples]}
