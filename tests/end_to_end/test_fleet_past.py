"""One GPU's past from a real Prometheus server, over samples with times of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from gpudash.session.fleet import FleetView
from gpudash.sources.prometheus.address import read_address
from gpudash.sources.prometheus.client import Client
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.series import Floats
from tests.prometheus_server.server import import_past, prometheus

HOUR, DAY = 3600, 86_400
UUID = "GPU-0000000a-1111-2222-3333-444444444444"
LABELS = {"uuid": UUID, "gpu": "0", "instance": "node1:10950", "job": "gpudash"}
GPU = FleetGpu("a", "node1", 0, UUID, "NVIDIA H200", "gpudash", labels=LABELS)

PEAK_S, LOST = 5001, range(3000, 3100)


class Imported:
    """A server with two hours of a GPU's memory, once a second: a peak of one second, and a hundred seconds missing.

    Attributes:
        began_s: of the hours, in seconds since the epoch; a day before there is an hour of another level.
    """

    def __init__(self, address: str, began_s: int) -> None:
        self.address, self.began_s = address, began_s

    def view(self, began_s: float, ended_s: float, points: int) -> FleetView:
        return FleetView(GPU, Client(read_address(self.address), timeout_s=60.0), began_s, ended_s, points)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    folder = tmp_path_factory.mktemp("prometheus")
    began_s = int(time.time()) - 3 * HOUR
    named = ",".join(f'{name}="{value}"' for name, value in LABELS.items())
    used = [(began_s - DAY + n, 30e9) for n in range(HOUR)]
    used += [(began_s + n, 70e9 if n == PEAK_S else 10e9) for n in range(2 * HOUR) if n not in LOST]
    lines = ["# TYPE gpudash_gpu_memory_used_bytes gauge"]
    lines += [f"gpudash_gpu_memory_used_bytes{{{named}}} {value:.0f} {t}" for t, value in used]
    import_past(folder, "\n".join(lines) + "\n")
    with prometheus(folder, {}) as address:
        yield Imported(address, began_s)


def drawn(view: FleetView, t0: float, t1: float) -> tuple[Floats, Floats]:
    """What is drawn between two session times once all that this asks for has come."""
    for _ in range(2):
        with view.store.lock:
            series = view.store.series("gpu", "used_bytes", UUID)
            assert series is not None, view.notices
            found = series.window(t0, t1, view.points)
        assert view.settle(60.0)
    return found


def test_hours_come_in_no_more_points_than_pixels_with_their_peak_and_their_gap(server: Imported) -> None:
    with closing(server.view(server.began_s, server.began_s + 2 * HOUR, 500)) as view:
        assert view.settle(60.0) and view.notices == []
        times, values = drawn(view, 0.0, 2 * HOUR)
        assert view.requested_points <= 500 and np.count_nonzero(~np.isnan(values)) <= 500
        assert np.nanmax(values) == 70e9 and abs(times[np.nanargmax(values)] - PEAK_S) <= 2 * HOUR / 250
        (gap,) = times[np.isnan(values)]
        assert LOST[0] <= gap <= LOST[-1] + 1


def test_a_part_of_them_comes_sample_by_sample_when_it_is_zoomed_into(server: Imported) -> None:
    with closing(server.view(server.began_s, server.began_s + 2 * HOUR, 500)) as view:
        assert view.settle(60.0)
        times, values = drawn(view, PEAK_S - 50.0, PEAK_S + 50.0)
        assert times[np.nanargmax(values)] == PEAK_S and np.all(np.diff(times) == 1.0)
        times, values = drawn(view, 2950.0, 3150.0)
        assert times[np.isnan(values)].tolist() == [3000.0]
        assert view.requested_points <= 500 and view.began_wall_s == server.began_s


def test_two_days_lie_on_one_axis(server: Imported) -> None:
    today = server.view(server.began_s, server.began_s + HOUR / 2, 2000)
    before = server.view(server.began_s - DAY, server.began_s - DAY + HOUR / 2, 2000)
    with closing(today), closing(before):
        assert today.settle(60.0) and before.settle(60.0)
        level = [drawn(view, 10.0, 20.0) for view in (today, before)]
        assert [set(values) for _times, values in level] == [{10e9}, {30e9}]
        assert level[0][0].tolist() == level[1][0].tolist() == [float(n) for n in range(9, 22)]
