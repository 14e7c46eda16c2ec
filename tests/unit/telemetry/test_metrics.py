"""The table of metrics: what is said of one in one place is whole, and holds together."""

from __future__ import annotations

import pytest

from gpudash.telemetry.metrics import GPU_METRICS, METRICS, SENSORS, Metric
from gpudash.ui.colours import DARK, LIGHT

EVERY = [metric for metrics in METRICS.values() for metric in metrics]


@pytest.mark.parametrize("metric", [metric for metric in EVERY if metric.served], ids=lambda metric: metric.served)
def test_what_is_served_says_what_it_is_in_a_sentence(metric: Metric) -> None:
    assert metric.help[:1].isupper()
    assert metric.help.endswith(".")
    assert metric.served.endswith("_total") == (metric.kind == "counter")


def test_no_name_of_any_exporter_means_two_things() -> None:
    names = [metric.served for metric in EVERY if metric.served]
    names += [told.name for metric in EVERY for told in metric.elsewhere]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", SENSORS, ids=lambda metric: metric.name)
def test_a_sensor_has_a_colour_in_both_themes(metric: Metric) -> None:
    for palette in (LIGHT, DARK):
        assert metric.colour in palette.curves


def test_sensors_of_one_unit_are_told_apart_on_a_card() -> None:
    told = [metric.distinguished(1.0) for metric in SENSORS]
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("name", "value", "words", "brief"),
    [
        ("temperature_c", 41.4, "41 °C", "41 °C"),
        ("power_w", 120.54, "120.5 W", "121 W"),
        ("gpu_utilisation", 0.37, "37 %", "37 %"),
        ("used_bytes", 2.0**31, "2.00 GiB", "2.00 GiB"),
        ("sm_clock_hz", 1.98e9, "1.98 GHz", "1.98 GHz"),
        ("pcie_width", 16, "16", "16"),
    ],
)
def test_a_value_is_written_with_its_unit(name: str, value: float, words: str, brief: str) -> None:
    metric = GPU_METRICS[name]
    assert (metric.label(value), metric.brief(value)) == (words, brief)
