"""From exporters' tellings to one entry a GPU."""

from __future__ import annotations

import re

import pytest

from gpudash.session.fleet.overview import (
    FORGET_S,
    MOST_AT_ONCE,
    STALE_S,
    EnergyMeter,
    FleetWatch,
    Overview,
    odd_entries,
    of_server,
    silent_before,
)
from gpudash.sources.prometheus.gpus import ReportedGpus, read_gpus
from gpudash.system.settings import Settings
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.records import Warning
from gpudash.units import GIB
from tests.unit.session.fleet.told import NOW, fleet_gpu, reported, seen, told_gpu


def taken(overview: Overview, *gpus: object, now_s: float = NOW, at: float = NOW) -> tuple[FleetGpu, ...]:
    return overview.take(reported(*gpus), seen(*gpus, at=at), now_s)  # type: ignore[arg-type]


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
    assert found.used_bytes == 40 * GIB and found.fullness == 0.55


def test_parts_of_one_gpu_are_told_apart_by_number_and_size() -> None:
    size = "1g.10gb"
    parts = [told_gpu(f"GPU-a/{part}", exporter="dcgm", index=6, instance=part, profile=size) for part in (7, 8)]
    assert [gpu.name for gpu in taken(Overview(), *parts)] == ["n1 GPU 6:7 1g.10gb", "n1 GPU 6:8 1g.10gb"]


def test_who_holds_a_gpu_is_known_by_the_exporters_own_labels() -> None:
    labels = {"pod": "dcgm-exporter-x", "exported_pod": "train-0", "namespace": "ml", "container": "", "hpc_job": "17"}
    assert fleet_gpu("a", 0.5, labels=labels).holders == ("pod train-0", "namespace ml", "job 17")


def test_a_gpu_that_two_exporters_know_is_shown_once_as_gpudash_tells_it() -> None:
    own, other = told_gpu("GPU-a", 10, port=1), told_gpu("a", 11, exporter="nvidia_gpu_exporter", port=2)
    (found,) = taken(Overview(), own, other)
    assert found.exporter == "gpudash" and found.also == ("nvidia_gpu_exporter",) and found.used_bytes == 10 * GIB


def test_of_two_exporters_the_one_that_is_not_late_is_shown() -> None:
    own, other = told_gpu("GPU-a", 10, port=1), told_gpu("a", 11, exporter="dcgm", port=2)
    times = {**seen(own, at=NOW - 60), **seen(other)}
    (found,) = Overview().take(reported(own, other), times, NOW)
    assert found.exporter == "dcgm" and found.also == ("gpudash",) and not found.stale


def test_a_gpu_that_was_not_scraped_for_a_while_is_stale() -> None:
    gpu = told_gpu("GPU-a")
    assert not taken(Overview(), gpu, at=NOW - STALE_S)[0].stale
    assert taken(Overview(), gpu, at=NOW - STALE_S - 0.1)[0].stale


def test_the_log_says_once_that_a_gpu_is_listed_without_readings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="gpudash")
    listed = {"__name__": "gpudash_gpu_info", "uuid": "GPU-a", "instance": "n1:9000", "index": "0", "host": "n1"}
    overview = Overview()
    for _answer in range(2):
        assert overview.take(read_gpus([{"metric": listed, "value": [NOW, "1"]}]), {}, NOW) == ()
    assert caplog.messages == ["n1 GPU 0 is left out: an exporter lists it without readings"]


def test_the_log_says_once_that_a_gpu_has_become_stale(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="gpudash")
    overview, gpu = Overview(), told_gpu("GPU-a")
    taken(overview, gpu)
    for late_s in (STALE_S + 1, STALE_S + 2):
        taken(overview, gpu, now_s=NOW + late_s)
    overview.marked(NOW + STALE_S + 3)
    assert caplog.messages == [f"n1 GPU-a is marked as stale: last reported {STALE_S + 1:.0f} s ago"]


def test_what_is_scraped_seldom_is_late_only_after_three_intervals() -> None:
    overview, gpu = Overview(), told_gpu("GPU-a")
    overview.intervals = {gpu.where: 60.0}
    assert not taken(overview, gpu, at=NOW - 179)[0].stale
    assert taken(overview, gpu, at=NOW - 181)[0].stale


def test_a_gpu_that_the_server_tells_of_no_more_stays_and_is_stale_until_it_is_forgotten_as_the_log_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    overview, gpu = Overview(), told_gpu("GPU-a")
    taken(overview, gpu, told_gpu("GPU-b"))
    gone = {gpu.key: gpu for gpu in taken(overview, told_gpu("GPU-b"), now_s=NOW + 1, at=NOW + 1)}
    assert gone["a"].stale and not gone["b"].stale and gone["a"].used_bytes == 10 * GIB
    late = NOW + FORGET_S + 1
    assert [gpu.key for gpu in taken(overview, told_gpu("GPU-b"), now_s=late, at=late)] == ["b"]
    assert [words in text for words, text in zip(("stale", "no more"), caplog.messages, strict=True)] == [True, True]


def test_a_gpu_that_is_told_of_without_a_time_stays_when_another_goes() -> None:
    overview, gpu = Overview(), told_gpu("GPU-a")
    taken(overview, gpu, told_gpu("GPU-b"))
    [timeless, gone] = sorted(overview.take(reported(gpu), {}, NOW + 1), key=lambda shown: shown.key)
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
        "n2: 2 GPUs told of a few minutes ago and not now."
    ]


def test_it_is_said_whose_figures_are_shown_and_who_else_knows_the_gpu() -> None:
    assert fleet_gpu("a", 0.5).reported_by == "gpudash"
    assert fleet_gpu("a", 0.5, exporter="dcgm").reported_by == "dcgm-exporter"
    assert fleet_gpu("a", 0.5, also=("dcgm",)).reported_by == "gpudash (dcgm-exporter knows it too)"
    both = fleet_gpu("a", 0.5, also=("dcgm", "nvidia_gpu_exporter"))
    assert both.reported_by == "gpudash (dcgm-exporter and nvidia_gpu_exporter know it too)"


def over(*gpus: FleetGpu, watch: FleetWatch | None = None, now_s: float = NOW) -> list[Warning]:
    """The warnings that stand when an answer tells of these GPUs."""
    overview = Overview()
    overview.take(reported(*gpus), {}, now_s)
    return (watch or FleetWatch(Settings(), overview)).over(gpus, {}, now_s)


def fresh_watch(*keys: str, interval_s: float = 1.0) -> FleetWatch:
    """A watch over these GPUs, before the first reading."""
    overview = Overview()
    gpus = [fleet_gpu(key, None, where=("n1", key)) for key in keys]
    overview.intervals = {gpu.where: interval_s for gpu in gpus}
    overview.take(reported(*gpus), {}, NOW)
    return FleetWatch(Settings(), overview)


def test_memory_past_the_levels_of_the_settings_is_told_critical_first() -> None:
    found = over(fleet_gpu("a", 0.9), fleet_gpu("b", 0.97), fleet_gpu("c", 0.84))
    assert [(warning.device, warning.level) for warning in found] == [("b", "critical"), ("a", "warning")]
    assert found[0].text == "n1 GPU 0 is 97 % full: 97.0 of 100.0 GiB."


def test_a_level_stands_until_memory_has_fallen_by_the_hysteresis() -> None:
    watch = fresh_watch("a")
    levels = []
    for n, full in enumerate((0.96, 0.91, 0.89, 0.82, 0.79, 0.82)):
        levels.append([warning.level for warning in over(fleet_gpu("a", full, seen_s=NOW + n), watch=watch)])
    assert levels == [["critical"], ["critical"], ["warning"], ["warning"], [], []]


def test_a_gpu_that_was_not_read_is_no_memory_warning() -> None:
    assert over(fleet_gpu("a", None)) == []


def test_what_a_gpu_held_before_it_fell_silent_is_forgotten() -> None:
    watch = fresh_watch("a")
    assert over(fleet_gpu("a", 0.9), watch=watch)[0].level == "warning"
    over(fleet_gpu("a", 0.9, stale=True), watch=watch)
    assert over(fleet_gpu("a", 0.82), watch=watch) == []


def test_a_stale_gpu_is_told_as_silent_one_sentence_a_machine() -> None:
    found = over(
        fleet_gpu("a", 0.99, stale=True, seen_s=NOW - 40),
        fleet_gpu("b", 0.5, stale=True, seen_s=NOW - 30, index=1),
        fleet_gpu("c", 0.5, stale=True, seen_s=0.0, host="n2"),
    )
    assert [(warning.text, warning.device) for warning in found] == [
        ("n1: 2 GPUs last heard of 30.0 s ago.", ""),
        ("n2: 1 GPU last heard of at an unknown time.", "c"),
    ]


def test_gpudashs_own_warning_stands_where_the_level_here_was_not_passed() -> None:
    assert [(w.level, w.text) for w in over(fleet_gpu("a", 0.5, warnings=("critical",)))] == [
        ("critical", "n1 GPU 0: gpudash there warns of its memory.")
    ]
    assert len(over(fleet_gpu("a", 0.9, warnings=("critical",)))) == 1


def test_a_forecast_of_gpudashs_is_told_and_is_critical_when_it_is_near() -> None:
    for seconds, level, words in ((42.0, "critical", "42.0 s"), (300.0, "warning", "5 min")):
        (found,) = over(fleet_gpu("a", 0.5, forecast_s=seconds, warnings=("forecast",)))
        assert found.level == level and f"will be full in {words}" in found.text


@pytest.mark.parametrize("interval_s", [1.0, 5.0, 15.0])
def test_a_memory_that_grows_steadily_is_foretold_to_be_full_however_seldom_it_is_scraped(interval_s: float) -> None:
    watch = fresh_watch("a", interval_s=interval_s)
    told = [
        over(fleet_gpu("a", 0.3 + 0.006 * n, seen_s=NOW + n * interval_s, exporter="dcgm"), watch=watch)
        for n in range(91)
    ]
    assert not any(told[:60])
    (found,) = told[90]
    (minutes,) = re.findall(r"fills in about (\S+ \S+)", found.text)
    assert found.text.startswith(f"n1 GPU 0 fills in about {minutes}")


def test_many_full_memories_take_turns_and_none_is_forgotten() -> None:
    keys = [str(n) for n in range(2 * MOST_AT_ONCE)]
    watch = fresh_watch(*keys)
    for n in range(92):
        full = 0.3 + 0.006 * n
        told = over(*(fleet_gpu(key, full, seen_s=NOW + n, exporter="dcgm") for key in keys), watch=watch)
    assert {warning.device for warning in told} == set(keys)


def test_a_memory_that_stands_is_not_foretold() -> None:
    watch = fresh_watch("a")
    assert not any(over(fleet_gpu("a", 0.84, seen_s=NOW + n), watch=watch) for n in range(90))


def test_host_memory_the_servers_words_and_odd_entries_are_told() -> None:
    watch = FleetWatch(Settings(), Overview())
    (host,) = watch.over((), {"n1:10950": ("critical", "forecast")}, NOW)
    assert (host.level, host.text) == ("critical", "n1: gpudash there warns of host memory.")
    (soon,) = watch.over((), {"n1:10950": ("forecast",)}, NOW)
    assert soon.text == "n1: gpudash there foretells that host memory runs out."
    assert [warning.text for warning in of_server(["a", "b", "c", "d"])] == [
        f"The server says: {text}" for text in "abc"
    ]
    assert odd_entries(ReportedGpus()) == [] and "2 entries" in odd_entries(ReportedGpus(odd=2))[0].text


def test_an_xid_error_is_a_warning_as_grave_as_it_is_unless_a_program_caused_it() -> None:
    def warned(**values: int) -> list[tuple[str, str]]:
        return [(warning.level, warning.text) for warning in over(fleet_gpu("a", 0.5, values=values))]

    assert warned(last_xid=0, ecc_uncorrected_errors=0, clocks_event_reasons=4) == []
    assert warned(last_xid=31) == []
    [(level, text)] = warned(last_xid=79)
    assert level == "critical" and "n1 GPU 0 reported XID error 79: it has fallen off the bus;" in text
    assert warned(last_xid=63)[0][0] == "warning"
    assert "2 memory errors that ECC could not correct" in warned(ecc_uncorrected_errors=2)[0][1]


def test_heat_is_a_warning_once_it_has_lasted() -> None:
    watch = fresh_watch("a")

    def warned(seconds: float, reasons: int) -> list[str]:
        gpu = fleet_gpu("a", 0.5, seen_s=NOW + seconds, values={"clocks_event_reasons": reasons})
        return [warning.text for warning in over(gpu, watch=watch)]

    assert warned(0.0, 64) == []
    assert "too hot" in warned(60.0, 64)[0]
    assert warned(61.0, 1) == warned(62.0, 64) == []


def test_energy_counts_from_the_first_reading_and_anew_with_the_driver() -> None:
    meter = EnergyMeter()
    gpus = [fleet_gpu("a", 0.5, values={"energy_j": joules}) for joules in (1000.0, 4600.0, 10.0, 20.0)]
    assert [meter.metered(gpu).drawn_j for gpu in gpus] == [0.0, 3600.0, 0.0, 10.0]
    assert meter.metered(fleet_gpu("a", 0.5)).drawn_j is None
    overview, gpu = Overview(), told_gpu("GPU-a", 10)
    for joules in (500.0, 700.0):
        gpu.values["energy_j"] = joules
        (found,) = taken(overview, gpu)
    assert found.drawn_j == 200.0
