"""From exporters' tellings to one entry a GPU."""

from __future__ import annotations

from gpudash.session.fleet.gpu import FleetGpu
from gpudash.session.fleet.overview import FORGET_S, STALE_S, Overview
from gpudash.session.fleet.warnings import silent_before
from gpudash.units import GIB
from tests.unit.session.fleet.told import NOW, fleet_gpu, seen, told, told_gpu


def taken(overview: Overview, *gpus: object, now_s: float = NOW, at: float = NOW) -> tuple[FleetGpu, ...]:
    return overview.take(told(*gpus), seen(*gpus, at=at), now_s)  # type: ignore[arg-type]


def test_the_fullest_come_first_and_those_not_known_last() -> None:
    gpus = taken(
        Overview(), told_gpu("GPU-a", 10), told_gpu("GPU-b", None), told_gpu("GPU-c", 70), told_gpu("GPU-d", 0)
    )
    assert [gpu.key for gpu in gpus] == ["c", "a", "d", "b"]
    assert [gpu.fullness for gpu in gpus] == [0.875, 0.125, 0.0, None]


def test_the_drivers_share_counts_as_used() -> None:
    gpu = told_gpu("GPU-a", 40)
    gpu.values["driver_reserved_bytes"] = 4.0 * GIB
    (found,) = taken(Overview(), gpu)
    assert found.used_bytes == 40 * GIB and found.reserved_bytes == 4 * GIB and found.fullness == 0.55


def test_a_capacity_that_is_not_told_is_the_sum_of_its_parts() -> None:
    gpu = told_gpu("GPU-a", 40, exporter="dcgm")
    gpu.values |= {"free_bytes": 30.0 * GIB, "driver_reserved_bytes": 10.0 * GIB}
    del gpu.values["total_bytes"]
    (found,) = taken(Overview(), gpu)
    assert found.total_bytes == 80 * GIB


def test_a_gpu_that_two_exporters_know_is_shown_once_as_gpudash_tells_it() -> None:
    own, other = told_gpu("GPU-a", 10, port=1), told_gpu("a", 11, exporter="nvidia_gpu_exporter", port=2)
    (found,) = taken(Overview(), own, other)
    assert found.exporter == "gpudash" and found.also == ("nvidia_gpu_exporter",) and found.used_bytes == 10 * GIB


def test_of_two_exporters_the_one_that_is_not_late_is_shown() -> None:
    own, other = told_gpu("GPU-a", 10, port=1), told_gpu("a", 11, exporter="dcgm", port=2)
    times = {**seen(own, at=NOW - 60), **seen(other)}
    (found,) = Overview().take(told(own, other), times, NOW)
    assert found.exporter == "dcgm" and found.also == ("gpudash",) and not found.stale


def test_a_gpu_that_was_not_scraped_for_a_while_is_stale() -> None:
    gpu = told_gpu("GPU-a")
    assert not taken(Overview(), gpu, at=NOW - STALE_S)[0].stale
    assert taken(Overview(), gpu, at=NOW - STALE_S - 0.1)[0].stale


def test_what_is_scraped_seldom_is_late_only_after_three_intervals() -> None:
    overview, gpu = Overview(), told_gpu("GPU-a")
    overview.intervals = {gpu.where: 60.0}
    assert not taken(overview, gpu, at=NOW - 179)[0].stale
    assert taken(overview, gpu, at=NOW - 181)[0].stale


def test_a_gpu_that_the_server_tells_of_no_more_stays_and_is_stale_until_it_is_forgotten() -> None:
    overview, gpu = Overview(), told_gpu("GPU-a")
    taken(overview, gpu, told_gpu("GPU-b"))
    gone = {gpu.key: gpu for gpu in taken(overview, told_gpu("GPU-b"), now_s=NOW + 1, at=NOW + 1)}
    assert gone["a"].stale and not gone["b"].stale and gone["a"].used_bytes == 10 * GIB
    late = NOW + FORGET_S + 1
    assert [gpu.key for gpu in taken(overview, told_gpu("GPU-b"), now_s=late, at=late)] == ["b"]
    assert "a" not in overview.told


def test_a_gpu_that_is_told_of_without_a_time_stays_when_another_goes() -> None:
    overview, gpu = Overview(), told_gpu("GPU-a")
    taken(overview, gpu, told_gpu("GPU-b"))
    [timeless, gone] = sorted(overview.take(told(gpu), {}, NOW + 1), key=lambda shown: shown.key)
    assert (timeless.key, timeless.stale, gone.key, gone.stale) == ("a", True, "b", True)


def test_one_that_comes_back_is_not_stale() -> None:
    overview, gpu = Overview(), told_gpu("GPU-a")
    taken(overview, gpu)
    assert taken(overview, now_s=NOW + 1)[0].stale
    assert not taken(overview, gpu, now_s=NOW + 2, at=NOW + 2)[0].stale


def test_without_answers_gpus_become_stale_with_time() -> None:
    overview = Overview()
    taken(overview, told_gpu("GPU-a"))
    assert not overview.marked(NOW + 10)[0].stale
    assert overview.marked(NOW + 20)[0].stale


def test_machines_of_one_name_go_by_the_address_they_are_scraped_at() -> None:
    gpus = taken(
        Overview(), told_gpu("GPU-a", 3, port=1), told_gpu("GPU-b", 2, port=2), told_gpu("GPU-c", 1, host="n2")
    )
    assert [gpu.host for gpu in gpus] == ["n1:1", "n1:2", "n2"]


def test_a_gpu_without_an_index_is_named_by_its_uuid() -> None:
    assert fleet_gpu("abcdefghijkl", 0.5).name == "n1 GPU 0"
    assert fleet_gpu("abcdefghijkl", 0.5, index=None).name == "n1 GPU-abcdefgh"


def test_gpus_that_fell_silent_before_the_fleet_was_opened_are_counted_by_machine() -> None:
    overview = Overview()
    overview.intervals = {("n1:1", "GPU-a"): 1.0, ("n2:1", "GPU-b"): 1.0, ("n2:1", "GPU-c"): 1.0, ("n3:1", "a"): 1.0}
    taken(overview, told_gpu("GPU-a"))
    assert overview.missing() == {"n2:1": 2}
    assert [warning.text for warning in silent_before(overview.missing())] == [
        "n2: 2 GPUs told of a few minutes ago and not now"
    ]


def test_it_is_said_whose_figures_are_shown_and_who_else_knows_the_gpu() -> None:
    assert fleet_gpu("a", 0.5).told_by == "gpudash"
    assert fleet_gpu("a", 0.5, exporter="dcgm").told_by == "dcgm-exporter"
    assert fleet_gpu("a", 0.5, also=("dcgm",)).told_by == "gpudash (dcgm-exporter knows it too)"
    both = fleet_gpu("a", 0.5, also=("dcgm", "nvidia_gpu_exporter"))
    assert both.told_by == "gpudash (dcgm-exporter and nvidia_gpu_exporter know it too)"
