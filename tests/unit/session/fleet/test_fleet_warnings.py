"""What is to be looked at over a whole fleet."""

from __future__ import annotations

from gpudash.session.fleet.gpu import FleetGpu, FleetWarning
from gpudash.session.fleet.warnings import FleetWarnings, odd_entries, of_server
from gpudash.settings import Settings
from gpudash.sources.prometheus.gpus import Told, ToldGpu
from tests.unit.session.fleet.told import NOW, fleet_gpu, told_gpu


def over(
    *gpus: FleetGpu, told: dict[str, ToldGpu] | None = None, watch: FleetWarnings | None = None
) -> list[FleetWarning]:
    return (watch or FleetWarnings(Settings())).over(gpus, told or {}, {}, NOW)


def test_memory_past_the_levels_of_the_settings_is_told_critical_first() -> None:
    found = over(fleet_gpu("a", 0.9), fleet_gpu("b", 0.97), fleet_gpu("c", 0.84))
    assert [(warning.key, warning.level) for warning in found] == [("b", "critical"), ("a", "warning")]
    assert found[0].text == "n1 GPU 0 is 97 % full: 97.0 of 100.0 GiB"


def test_a_level_stands_until_memory_has_fallen_by_the_hysteresis() -> None:
    watch = FleetWarnings(Settings())
    levels = [over(fleet_gpu("a", full), watch=watch) for full in (0.96, 0.91, 0.89, 0.82, 0.79, 0.82)]
    assert [found[0].level if found else "" for found in levels] == [
        "critical",
        "critical",
        "warning",
        "warning",
        "",
        "",
    ]


def test_a_gpu_that_was_not_read_is_no_memory_warning() -> None:
    assert over(fleet_gpu("a", None)) == []


def test_a_stale_gpu_is_told_as_silent_one_sentence_a_machine() -> None:
    found = over(
        fleet_gpu("a", 0.99, stale=True, seen_s=NOW - 40),
        fleet_gpu("b", 0.5, stale=True, seen_s=NOW - 30, index=1),
        fleet_gpu("c", 0.5, stale=True, seen_s=0.0, host="n2"),
    )
    assert [(warning.text, warning.kind, warning.key) for warning in found] == [
        ("n1: 2 GPUs last heard of 30.0 s ago", "stale", ""),
        ("n2: 1 GPU last heard of at an unknown time", "stale", "c"),
    ]


def test_gpudashs_own_warning_stands_where_the_level_here_was_not_passed() -> None:
    gpu = told_gpu("GPU-a", warnings=("critical",))
    assert [(w.level, w.text) for w in over(fleet_gpu("a", 0.5), told={"a": gpu})] == [
        ("critical", "n1 GPU 0: gpudash there warns of its memory")
    ]
    assert len(over(fleet_gpu("a", 0.9), told={"a": gpu})) == 1


def test_a_forecast_is_told_and_is_critical_when_it_is_near() -> None:
    for seconds, level, words in ((42.0, "critical", "42.0 s"), (300.0, "warning", "5 min")):
        (found,) = over(fleet_gpu("a", 0.5), told={"a": told_gpu("GPU-a", forecast_s=seconds, warnings=("forecast",))})
        assert (found.kind, found.level) == ("forecast", level) and words in found.text


def test_host_memory_the_servers_words_and_odd_entries_are_told() -> None:
    (host,) = FleetWarnings(Settings()).over((), {}, {"n1:10950": ("critical", "forecast")}, NOW)
    assert (host.level, host.text, host.kind) == ("critical", "n1: gpudash there warns of host memory", "host")
    (soon,) = FleetWarnings(Settings()).over((), {}, {"n1:10950": ("forecast",)}, NOW)
    assert soon.text == "n1: gpudash there foretells that host memory runs out"
    assert [warning.text for warning in of_server(["a", "b", "c", "d"])] == [
        f"The server says: {text}" for text in "abc"
    ]
    assert odd_entries(Told()) == [] and "2 entries" in odd_entries(Told(odd=2))[0].text
