"""The past of one GPU where a window takes a replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpudash.session.fleet.view import FleetView
from gpudash.sources.prometheus.address import read_address
from gpudash.sources.prometheus.client import Client
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.series import Floats
from tests.prometheus_server.fake import Fake, Reply, fake_server
from tests.prometheus_server.past import PastServer
from tests.unit.session.fleet.told import NOW, fleet_gpu

HOUR = 3600
LABELS = {"uuid": "GPU-a", "gpu": "0", "instance": "n1:10950", "job": "gpudash"}
MACHINE = {"instance": "n1:10950", "job": "gpudash"}
GPU = fleet_gpu("a", 0.5, labels=LABELS, torch_name="cuda:0", product="NVIDIA H200", index=3)
PEAK_S = 1801.25


@pytest.fixture
def past() -> PastServer:
    """Two hours at one scrape a second; one of them is a peak, and ten are missing."""
    server = PastServer()
    times = [NOW + n + 0.25 for n in range(2 * HOUR) if not 3000 <= n < 3010]
    server.add("gpudash_gpu_memory_used_bytes", [(t, 7e10 if t == NOW + PEAK_S else 1e10) for t in times], **LABELS)
    server.add("gpudash_gpu_memory_total_bytes", [(t, 8e10) for t in times], **LABELS)
    server.add("gpudash_host_memory_total_bytes", [(t, 1e11) for t in times], **MACHINE)
    server.add("gpudash_allocator_allocated_bytes", [(t, 4e9) for t in times], device="cuda:0", **MACHINE)
    server.add("gpudash_allocator_reserved_bytes", [(t, 6e9) for t in times], device="cuda:0", **MACHINE)
    server.add("gpudash_run_loss", [(t, 0.5) for t in times[100:200]], device="cuda:0", **MACHINE)
    return server


@pytest.fixture
def server(past: PastServer) -> Iterator[Fake]:
    with fake_server(past) as fake:
        yield fake


@pytest.fixture
def view(server: Fake) -> Iterator[FleetView]:
    """The first hour."""
    found = FleetView(GPU, Client(read_address(server.address), timeout_s=60.0), NOW, NOW + HOUR, 400)
    assert found.settle(60.0)
    yield found
    assert found.close()


def drawn(view: FleetView, t0: float, t1: float, metric: str = "used_bytes") -> tuple[Floats, Floats]:
    """What is drawn of the GPU's memory between two session times, once all that this asks for has come."""
    for _ in range(2):
        with view.store.lock:
            series = view.store.series("gpu", metric, "GPU-a")
            assert series is not None
            found = series.window(t0, t1, view.points)
        assert view.settle(60.0)
    return found


def test_a_range_is_there_whole_with_its_peak(view: FleetView) -> None:
    assert view.notices == [] and not view.loading and view.fetched == 1
    assert view.extent_s == (0.0, HOUR) and view.began_wall_s == NOW and view.store.position_s is None
    times, values = drawn(view, 0.0, HOUR)
    assert len(times) <= view.points + 2 and view.requested_points <= view.points
    assert np.nanmax(values) == 7e10


def test_zooming_in_asks_for_that_part_in_more_detail_until_every_sample_is_there(view: FleetView) -> None:
    times, values = drawn(view, PEAK_S - 50, PEAK_S + 50)
    assert times[np.nanargmax(values)] == PEAK_S
    assert np.count_nonzero(np.diff(times) == 1.0) >= 99
    fetched = view.fetched
    drawn(view, PEAK_S - 20, PEAK_S + 20)
    drawn(view, 0.0, HOUR)
    assert view.fetched == fetched  # both are known well enough


def test_a_middling_zoom_gets_finer_steps_and_never_more_points_than_asked(view: FleetView, past: PastServer) -> None:
    drawn(view, 1000.0, 2000.0)
    drawn(view, 1500.0, 2000.0)
    times, values = drawn(view, 1750.0, 1850.0)
    assert np.nanmax(values) == 7e10 and PEAK_S in times
    assert max(past.sent) <= view.points


def test_a_gap_stays_a_gap_in_detail(view: FleetView) -> None:
    times, values = drawn(view, 2950.0, 3050.0)
    assert times[np.isnan(values)].tolist() == [3000.25]


def test_the_allocators_bands_are_drawn_as_over_a_recording(view: FleetView) -> None:
    for metric, expected in (("allocated_bytes", 4e9), ("idle_bytes", 2e9)):
        assert np.nanmax(drawn(view, 0.0, HOUR, metric)[1]) == expected
        assert np.nanmax(drawn(view, 100.0, 150.0, metric)[1]) == expected


def test_the_curves_of_the_run_are_there(view: FleetView) -> None:
    with view.store.lock:
        loss = view.store.series("run", "loss")
        assert loss is not None and loss.statistics(0, HOUR).max == 0.5  # type: ignore[union-attr]


def test_another_range_begins_a_new_axis(view: FleetView) -> None:
    rewound = view.store.rewound
    view.show_range(NOW + HOUR, NOW + 2 * HOUR, 200)
    assert view.settle(60.0)
    assert view.began_wall_s == NOW + HOUR and view.extent_s == (0.0, HOUR)
    assert view.points == 200 and view.store.rewound == rewound + 1
    assert np.nanmax(drawn(view, 0.0, HOUR)[1]) == 1e10


def test_a_part_of_the_range_keeps_the_axis(view: FleetView) -> None:
    view.show_range(NOW + 1000, NOW + 1100, 400)
    assert view.settle(60.0)
    assert view.began_wall_s == NOW and view.extent_s == (0.0, HOUR) and view.fetched == 2
    assert len(drawn(view, 1000.0, 1100.0)[0]) >= 100


def test_of_several_wishes_the_newest_wins(server: Fake, past: PastServer) -> None:
    hold = threading.Event()
    past.fail = Reply(hold=hold)
    view = FleetView(GPU, Client(read_address(server.address)), NOW, NOW + 100, 100)
    while not server.requested:
        hold.wait(0.01)
    for n in range(1, 20):
        view.show_range(NOW + n, NOW + n + 100, 100)
    past.fail = None
    hold.set()
    assert view.settle(60.0)
    assert view.began_wall_s == NOW + 19 and view.fetched == 1
    assert view.close()


def test_seeking_shows_the_readings_of_that_moment(view: FleetView) -> None:
    view.show_range(NOW + 1790, NOW + 1810, 400)
    assert view.settle(60.0)
    view.seek(PEAK_S)
    assert view.store.newest_s == PEAK_S and view.store.position_s is not None
    assert view.store.latest("gpu", "total_bytes", "GPU-a").value == 8e10
    view.seek(-5.0)
    assert view.store.newest_s == 0.0
    view.seek(None)
    assert view.store.position_s is None and view.store.newest_s == HOUR


def test_a_question_that_fails_is_a_sentence_and_what_is_there_stays(view: FleetView, past: PastServer) -> None:
    past.fail = Reply(503)
    view.show_range(NOW + HOUR, NOW + 2 * HOUR, 100)
    assert view.settle(60.0)
    assert len(view.notices) == 1 and "HTTP 503" in view.notices[0]
    assert view.began_wall_s == NOW and np.nanmax(drawn(view, 0.0, HOUR)[1]) == 7e10
    past.fail = None
    view.show_range(NOW + HOUR, NOW + 2 * HOUR, 100)
    assert view.settle(60.0)
    assert view.notices == []


def test_detail_that_was_refused_is_not_asked_for_again_and_again(view: FleetView, past: PastServer) -> None:
    past.fail = Reply(503)
    fetched, asked = view.fetched, len(past.sent)
    for _ in range(5):
        drawn(view, 100.0, 200.0)
    assert view.fetched == fetched and len(past.sent) == asked
    assert view.notices


def test_an_answer_that_nobody_foresaw_is_a_sentence(view: FleetView, past: PastServer) -> None:
    past.fail = Reply(200, b'{"status":"success","data":{"result":[{"value":["x"]}]}}')
    view.show_range(NOW + HOUR, NOW + 2 * HOUR, 100)
    assert view.settle(60.0)
    assert "cannot be read (IndexError" in view.notices[0]


def test_a_range_without_anything_says_so(server: Fake) -> None:
    view = FleetView(GPU, Client(read_address(server.address)), NOW - 9000, NOW - 8000, 100)
    assert view.settle(60.0)
    assert view.empty and view.notices == ["n1 GPU 3 told nothing in this range"]
    assert view.close()


@pytest.mark.parametrize("length_s", [0.5, 0.0, -5.0, float("nan")])
def test_an_empty_range_is_refused(view: FleetView, length_s: float) -> None:
    with pytest.raises(ValueError, match="at least 1 s"):
        view.show_range(NOW, NOW + length_s, 100)


def test_the_gpu_is_the_device_that_is_shown(view: FleetView) -> None:
    assert [(gpu.nvml_index, gpu.uuid, gpu.product) for gpu in view.gpus] == [(3, "GPU-a", "NVIDIA H200")]


def test_a_simulated_gpu_says_so(server: Fake) -> None:
    simulated = replace(GPU, simulated=True, uuid="SIM-0", index=0)
    view = FleetView(simulated, Client(read_address(server.address)), NOW, NOW + 10, 100)
    assert view.gpus[0].simulated
    assert view.close()


def test_there_is_nothing_to_copy_run_or_mark(view: FleetView) -> None:
    with pytest.raises(RecordingError, match="not a recording"):
        view.save_recording(Path("copy.gpudash"))
    assert view.live is None


def test_a_closed_view_asks_nothing_more(view: FleetView, server: Fake) -> None:
    assert view.close()
    asked = len(server.requested)
    view.show_range(NOW + HOUR, NOW + 2 * HOUR, 100)
    assert view.settle(60.0) and len(server.requested) == asked
