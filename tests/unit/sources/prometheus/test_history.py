"""The past of one GPU: sample by sample where that fits the pixels, else the extremes of every step."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.sources.prometheus.address import read_address
from gpudash.sources.prometheus.client import Client
from gpudash.sources.prometheus.history import FEWEST_POINTS, MOST_POINTS, Past, Subject, read_past
from gpudash.telemetry.records import State
from gpudash.units import MIB
from tests.prometheus_server.fake import NOW
from tests.prometheus_server.past import PastServer

UUID = "GPU-a"
GPU = {"uuid": UUID, "gpu": "0", "instance": "n1:10950", "job": "gpudash"}
MACHINE = {"instance": "n1:10950", "job": "gpudash"}
SUBJECT = Subject("gpudash", UUID, GPU, "cuda:0")


class Direct(Client):
    """A client whose questions reach a fake server without a connection."""

    def __init__(self, server: PastServer) -> None:
        super().__init__(read_address("http://fake"))
        self._server = server

    def _fetch(self, path: str, asked: Mapping[str, str]) -> tuple[int, str, bytes]:
        reply = self._server(path, asked)
        return reply.status, "", reply.body


def past_of(server: PastServer, length_s: float, points: int, subject: Subject = SUBJECT) -> Past:
    return read_past(Direct(server), subject, NOW, NOW + length_s, points)


def used(past: Past) -> list[tuple[float, object]]:
    """Session time and used memory of the GPU's readings."""
    return [(s.time_s, s.values.get("used_bytes")) for s in past.samples if s.table == "gpu"]


def seconds(count: int, value: float = 1.0) -> list[tuple[float, float]]:
    return [(NOW + n + 0.25, value * n) for n in range(count)]


def test_few_samples_come_as_they_were_scraped_with_their_own_times() -> None:
    server = PastServer()
    server.add("gpudash_gpu_memory_used_bytes", seconds(60), **GPU)
    server.add("gpudash_gpu_temperature_celsius", seconds(60), **GPU)
    past = past_of(server, 60, 100)
    assert past.exact and past.step_s == 1.0
    assert used(past) == [(n + 0.25, n) for n in range(60)]
    assert past.samples[7].values == {"temperature_c": 7.0, "used_bytes": 7}


def test_a_scrape_that_is_missing_is_a_gap() -> None:
    server = PastServer()
    there = [sample for sample in seconds(60) if not 20 < sample[0] - NOW < 30]
    server.add("gpudash_gpu_memory_used_bytes", there, **GPU)
    past = past_of(server, 60, 100)
    assert [time_s for time_s, value in used(past) if value is None] == [20.25]
    sample = next(sample for sample in past.samples if sample.values["used_bytes"] is None)
    assert sample.states == {"used_bytes": State.STALE}


def test_a_figure_that_cannot_be_is_a_gap() -> None:
    server = PastServer()
    server.add("gpudash_gpu_memory_used_bytes", [(NOW + 1, 5.0), (NOW + 2, -1.0), (NOW + 3, 90.0)], **GPU)
    server.add("gpudash_gpu_memory_total_bytes", [(NOW + n, 80.0) for n in (1, 2, 3)], **GPU)
    assert used(past_of(server, 10, 100)) == [(1.0, 5), (2.0, None), (3.0, None)]


def test_a_figure_that_one_scrape_lacks_is_a_gap_in_it() -> None:
    server = PastServer()
    server.add("gpudash_gpu_memory_used_bytes", seconds(10), **GPU)
    server.add("gpudash_gpu_power_watts", [s for n, s in enumerate(seconds(10)) if n != 4], **GPU)
    sample = past_of(server, 10, 100).samples[4]
    assert sample.values["power_w"] is None and sample.states == {"power_w": State.STALE}
    assert sample.values["used_bytes"] == 4


def test_many_samples_come_as_extremes_and_no_peak_is_lost() -> None:
    server = PastServer()
    samples = [(NOW + n + 0.25, 1e9) for n in range(3600)]
    samples[1801] = (samples[1801][0], 7e10)
    samples[2500] = (samples[2500][0], 1e3)
    server.add("gpudash_gpu_memory_used_bytes", samples, **GPU)
    past = past_of(server, 3600, 200)
    assert not past.exact
    values = [value for _time, value in used(past)]
    assert max(values) == 7e10 and min(values) == 1e3
    peak = next(time_s for time_s, value in used(past) if value == 7e10)
    assert abs(peak - 1801.25) <= past.step_s


@pytest.mark.parametrize("points", [1, 50, 200, 1000, 1999, 10**6])
@pytest.mark.parametrize("length_s", [37.5, 3000.0])
def test_the_server_is_asked_for_no_more_points_than_pixels(points: int, length_s: float) -> None:
    server = PastServer()
    server.add("gpudash_gpu_memory_used_bytes", seconds(3000), **GPU)
    server.add("gpudash_host_memory_used_bytes", seconds(3000), **MACHINE)
    past = past_of(server, length_s, points)
    allowed = min(max(points, FEWEST_POINTS), MOST_POINTS)
    assert 0 < max(server.sent) <= allowed
    assert past.requested_points == max(server.sent)


def test_where_most_is_used_least_is_free() -> None:
    server = PastServer()
    server.add("gpudash_gpu_memory_used_bytes", [(t, v + 1) for t, v in seconds(1000)], **GPU)
    server.add("gpudash_gpu_memory_free_bytes", [(t, 2000 - v) for t, v in seconds(1000)], **GPU)
    server.add("gpudash_gpu_memory_total_bytes", [(t, 2001) for t, _v in seconds(1000)], **GPU)
    for sample in past_of(server, 1000, 100).samples:
        assert sample.values["used_bytes"] + sample.values["free_bytes"] == sample.values["total_bytes"]


def test_a_break_in_a_long_past_is_a_gap() -> None:
    server = PastServer()
    there = [sample for sample in seconds(3600) if not 1000 < sample[0] - NOW < 2000]
    server.add("gpudash_gpu_memory_used_bytes", there, **GPU)
    gaps = [time_s for time_s, value in used(past_of(server, 3600, 200)) if value is None]
    assert len(gaps) == 1 and 1000 <= gaps[0] <= 1100


def test_dcgm_exporters_past_is_in_bytes_and_has_a_capacity() -> None:
    labels = {"UUID": UUID, "gpu": "0", "instance": "n1:9400", "Hostname": "n1"}
    server = PastServer()
    for name, value in (("DCGM_FI_DEV_FB_USED", 10), ("DCGM_FI_DEV_FB_FREE", 20), ("DCGM_FI_DEV_FB_RESERVED", 2)):
        server.add(name, [(NOW + n, value) for n in range(1, 9)], **labels)
    server.add("DCGM_FI_DEV_GPU_TEMP", [(NOW + n, 9223372036854775794) for n in range(1, 9)], **labels)
    past = past_of(server, 10, 100, Subject("dcgm", UUID, labels))
    assert past.samples[0].values == {
        "driver_reserved_bytes": 2 * MIB,
        "free_bytes": 20 * MIB,
        "temperature_c": None,
        "total_bytes": 32 * MIB,
        "used_bytes": 10 * MIB,
    }


def test_the_machine_the_allocator_and_the_run_come_with_gpudashs_own() -> None:
    server = PastServer()
    server.add("gpudash_gpu_memory_used_bytes", seconds(10), **GPU)
    server.add("gpudash_host_memory_used_bytes", seconds(10, 2.0), **MACHINE)
    server.add("gpudash_allocator_allocated_bytes", seconds(10, 3.0), device="cuda:0", **MACHINE)
    server.add("gpudash_allocator_allocated_bytes", seconds(10, 4.0), device="cuda:1", **MACHINE)
    run = {"run": "1", "workload": "training"}
    server.add("gpudash_run_loss", seconds(10, 0.5), device="cuda:0,cuda:1", **run, **MACHINE)
    server.add("gpudash_run_loss", seconds(10, 9.0), device="cuda:7", **run, **MACHINE)
    past = past_of(server, 10, 100)
    at_four = {(s.table, s.device): dict(s.values) for s in past.samples if s.time_s == 4.25}
    assert at_four == {
        ("gpu", UUID): {"used_bytes": 4},
        ("host", None): {"used_bytes": 8},
        ("allocator", "cuda:0"): {"allocated_bytes": 12},
    }
    assert past.curves["loss"][4] == (4.25, 2.0)
    assert [s.table for s in past.samples if s.time_s == 4.25][-1] == "gpu"  # behind the allocator's: it makes bands


def test_a_range_without_anything_is_empty() -> None:
    past = past_of(PastServer(), 100, 100)
    assert not past.samples and not past.curves and past.exact


def test_simulated_gpus_of_two_machines_are_told_apart_by_their_instance() -> None:
    simulated = Subject("gpudash", "SIM-0", {"uuid": "SIM-0", "gpu": "sim:0", "instance": "n1:10950"})
    assert simulated.matchers == 'uuid="SIM-0",gpu="sim:0",instance="n1:10950"'
    assert SUBJECT.matchers == 'uuid="GPU-a"'  # also after it has got another address


@given(
    st.lists(st.tuples(st.floats(0.01, 599.99), st.floats(0, 1)), min_size=1, max_size=60, unique_by=lambda s: s[0]),
    st.integers(16, 40),
)
def test_the_extremes_of_any_samples_are_kept(samples: list[tuple[float, float]], points: int) -> None:
    server = PastServer()
    server.add("gpudash_gpu_utilisation_ratio", [(NOW + t, v) for t, v in sorted(samples)], **GPU)
    values = [s.values["gpu_utilisation"] for s in past_of(server, 600, points).samples]
    known = [value for value in values if value is not None]
    assert max(known) == max(value for _t, value in samples) and min(known) == min(value for _t, value in samples)
