"""Errors, and what slows a GPU down, are told, each once."""

from __future__ import annotations

import pynvml
import pytest

from gpudash.devices import health
from gpudash.devices.health import slowed_by, xid
from gpudash.memory.watching.hardware import AGAIN_S, LASTING_S, HardwareWatch
from gpudash.telemetry.records import Sample, Value

UUID = "GPU-1"


def told(watch: HardwareWatch, time_s: float, **values: Value) -> list[str]:
    return [warning.text for warning in watch.observe(Sample(time_s, "gpu", UUID, values))]


def test_errors_that_ecc_could_not_correct_are_told_when_there_are_more() -> None:
    watch = HardwareWatch(lambda uuid: {UUID: "GPU 0"}[uuid])
    assert told(watch, 1.0, ecc_uncorrected_errors=0) == []
    (first,) = told(watch, 2.0, ecc_uncorrected_errors=1)
    assert first.startswith("GPU 0 has had 1 memory error that ECC could not correct")
    assert told(watch, 3.0, ecc_uncorrected_errors=1) == []
    assert told(watch, 4.0, ecc_uncorrected_errors=None) == []
    (second,) = told(watch, 5.0, ecc_uncorrected_errors=3)
    assert "3 memory errors" in second
    assert told(watch, 6.0, ecc_uncorrected_errors=0) == []  # the driver was loaded anew
    assert len(told(watch, 7.0, ecc_uncorrected_errors=1)) == 1


def test_heat_is_told_once_it_has_lasted_and_again_after_it_has_passed() -> None:
    watch = HardwareWatch("GPU {}".format)
    assert told(watch, 0.0, slowed_by_heat=1) == []
    assert told(watch, LASTING_S / 2, used_bytes=1) == []
    assert told(watch, LASTING_S, slowed_by_heat=1) == ["GPU GPU-1 has clocked lower for 60 s because it is too hot."]
    assert told(watch, 2 * LASTING_S, slowed_by_heat=1) == []
    assert told(watch, 3 * LASTING_S, slowed_by_heat=0) == []
    assert told(watch, 4 * LASTING_S, slowed_by_heat=1) == []
    assert len(told(watch, 5 * LASTING_S, slowed_by_heat=1)) == 1


def test_a_power_brake_that_lasts_is_told_and_a_power_cap_is_not() -> None:
    watch = HardwareWatch("GPU {}".format)
    for step in range(4):
        assert told(watch, step * LASTING_S, clocks_event_reasons=health.POWER_CAP) == []
    assert told(watch, 5 * LASTING_S, clocks_event_reasons=health.POWER_BRAKE) == []
    (sentence,) = told(watch, 6 * LASTING_S, clocks_event_reasons=health.POWER_BRAKE)
    assert sentence == "GPU GPU-1 has clocked lower for 60 s because its power supply asks for it."


def test_an_xid_error_is_told_with_what_it_means_and_what_to_do() -> None:
    watch = HardwareWatch("GPU {}".format)
    assert told(watch, 0.0, xid_errors=0, last_xid=0) == []
    (sentence,) = told(watch, 1.0, xid_errors=1, last_xid=79)
    assert sentence.startswith("GPU GPU-1 reported XID error 79: it has fallen off the bus; restart the machine")
    assert told(watch, 2.0, xid_errors=1, last_xid=79) == []
    (unknown,) = told(watch, 3.0, xid_errors=2, last_xid=4711)
    assert "4711" in unknown and "catalogue" in unknown


def test_the_same_xid_error_is_told_again_only_after_a_while() -> None:
    watch = HardwareWatch("GPU {}".format)
    counts = [len(told(watch, float(second), xid_errors=second, last_xid=31)) for second in range(1, 700)]
    assert sum(counts) == 2 and counts[0] == 1
    assert len(told(watch, 700.0, xid_errors=700, last_xid=13)) == 1, "another one is another matter"
    assert counts[int(AGAIN_S)] == 1


@pytest.mark.parametrize("number", [13, 31, 43, 45, 48, 61, 62, 63, 64, 74, 79, 94, 95, 119])
def test_the_usual_xid_errors_are_known(number: int) -> None:
    meaning = xid(number)
    assert meaning is not xid(4711)
    assert meaning.label[0].islower() and not meaning.advice.endswith(".")


def test_a_link_that_was_lost_is_told_once() -> None:
    watch = HardwareWatch("GPU {}".format)
    assert told(watch, 0.0, nvlink_links=18) == []
    (sentence,) = told(watch, 1.0, nvlink_links=17)
    assert "17 of the 18 NVLinks" in sentence
    assert told(watch, 2.0, nvlink_links=17) == []
    assert told(watch, 3.0, nvlink_links=18) == []


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x0, ""),
        (0x1, ""),
        (0x112, ""),
        (0x4, "power cap"),
        (0x20, "heat"),
        (0x48, "heat"),
        (0x88, "power brake"),
        (0x8, "hardware"),
        (0x64, "power cap, heat"),
    ],
)
def test_reasons_for_lower_clocks_have_words_where_nobody_asked_for_them(reasons: int, words: str) -> None:
    assert slowed_by(reasons) == words


def test_the_bits_are_nvmls() -> None:
    assert (
        pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    ) == health.HEAT
    assert pynvml.nvmlClocksEventReasonHwSlowdown == health.HARDWARE
    assert pynvml.nvmlClocksEventReasonSwPowerCap == health.POWER_CAP
    assert pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown == health.POWER_BRAKE
