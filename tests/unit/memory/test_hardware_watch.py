"""Memory errors and heat are told, each once."""

from __future__ import annotations

from gpudash.memory.watching.hardware import HOT_S, HardwareWatch
from gpudash.telemetry.records import Sample, Value

UUID = "GPU-1"


def told(watch: HardwareWatch, time_s: float, **values: Value) -> list[str]:
    return [warning.text for warning in watch.observe(Sample(time_s, "gpu", UUID, values))]


def test_errors_that_ecc_could_not_correct_are_told_when_there_are_more() -> None:
    watch = HardwareWatch()
    watch.describe = lambda uuid: {UUID: "GPU 0"}[uuid]
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
    watch = HardwareWatch()
    assert told(watch, 0.0, slowed_by_heat=1) == []
    assert told(watch, HOT_S / 2, used_bytes=1) == []
    assert told(watch, HOT_S, slowed_by_heat=1) == ["GPU GPU-1 has clocked lower for 60 s because it is too hot."]
    assert told(watch, 2 * HOT_S, slowed_by_heat=1) == []
    assert told(watch, 3 * HOT_S, slowed_by_heat=0) == []
    assert told(watch, 4 * HOT_S, slowed_by_heat=1) == []
    assert len(told(watch, 5 * HOT_S, slowed_by_heat=1)) == 1
