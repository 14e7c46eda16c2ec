"""`MemoryWatch`: one notice per crossing, none in between, and forecasts only of growth that matters."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.levels import Guard
from gpudash.memory.watching.watch import MemoryWatch, run_left
from gpudash.telemetry.records import Event, Note, RunEnd, RunStarted, Sample, State, StepFinished, Topic, Warning
from gpudash.telemetry.runs import RunView
from gpudash.units import GIB, MIB, format_left

GPU = "GPU-1"
TICK_S = 0.05


def gpu(t: float, used: float | None, total: int | None = 24 * GIB, **more: int | None) -> Sample:
    return Sample(t, "gpu", GPU, {"used_bytes": None if used is None else int(used), "total_bytes": total, **more})


def host(t: float, used: float, total: int = 16 * GIB) -> Sample:
    return Sample(t, "host", None, {"used_bytes": int(used), "total_bytes": total})


def told(watch: MemoryWatch, samples: Iterable[Sample]) -> list[Warning]:
    found: list[Event] = [event for sample in samples for event in watch.observe(sample)]
    assert all(isinstance(event, Warning) for event in found)
    return [event for event in found if isinstance(event, Warning)]


def levels(percents: Sequence[float], hold: int) -> list[Sample]:
    """Each level held for ``hold`` ticks."""
    ratios = [percent for percent in percents for _ in range(hold)]
    return [gpu(i * TICK_S, ratio / 100 * 24 * GIB) for i, ratio in enumerate(ratios)]


@pytest.mark.parametrize("hold", [1, 4, 20, 60, 300])
def test_each_crossing_is_told_once(hold: int) -> None:
    found = told(MemoryWatch(), levels([70, 84, 86, 85, 86, 94, 96, 60], hold))
    assert [warning.level for warning in found] == ["warning", "critical", "passed"]
    assert [round(100 * (warning.ratio or 0)) for warning in found] == [86, 96, 60]
    assert [warning.time_s for warning in found] == pytest.approx([n * hold * TICK_S for n in (2, 6, 7)])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 100), max_size=60))
def test_notices_alternate_and_match_the_levels(percents: list[float]) -> None:
    found = told(MemoryWatch(), levels(percents, 1))
    standing = 0
    for warning in found:
        height = {"passed": 0, "warning": 1, "critical": 2}.get(warning.level)
        if height is None:
            continue
        ratio = warning.ratio or 0.0
        if height == 0:
            assert standing > 0
            assert ratio < 0.80 + 1e-6
        else:
            assert ratio >= (0.85, 0.95)[height - 1] - 1e-6
        standing = height
    if percents and percents[-1] >= 85:
        assert standing > 0
    if percents and percents[-1] < 79:
        assert standing == 0


def test_a_memory_that_stays_between_a_level_and_its_hysteresis_is_not_told_again() -> None:
    assert [w.level for w in told(MemoryWatch(), levels([86, 81, 86, 82, 90, 80.5, 85], 5))] == ["warning"]


def test_a_critical_level_reached_again_is_told_again_without_a_passed_between() -> None:
    found = told(MemoryWatch(), levels([86, 96, 88, 96, 70], 5))
    assert [warning.level for warning in found] == ["warning", "critical", "critical", "passed"]


def test_a_gap_neither_passes_nor_warns() -> None:
    watch = MemoryWatch()
    assert len(told(watch, [gpu(0.0, 21 * GIB)])) == 1
    lost = Sample(1.0, "gpu", GPU, {"used_bytes": None}, {"used_bytes": State.LOST})
    assert told(watch, [lost, lost]) == []
    assert told(watch, [gpu(2.0, 21 * GIB)]) == []


def test_a_memory_of_unknown_capacity_cannot_be_judged() -> None:
    assert told(MemoryWatch(), [gpu(0.0, 21 * GIB, None), gpu(1.0, 23 * GIB, 0)]) == []


def test_the_drivers_share_counts_as_used() -> None:
    watch = MemoryWatch()
    assert told(watch, [gpu(0.0, 20.3 * GIB, driver_reserved_bytes=0)]) == []
    found = told(watch, [gpu(0.1, 20.3 * GIB, driver_reserved_bytes=GIB // 2)])
    assert [warning.level for warning in found] == ["warning"]
    assert "20.8 of 24.0 GiB, 0.50 of it the driver's own" in found[0].text


def test_capacity_and_use_may_come_in_different_ticks() -> None:
    watch = MemoryWatch()
    assert told(watch, [Sample(0.0, "gpu", GPU, {"total_bytes": 100})]) == []
    assert len(told(watch, [Sample(0.1, "gpu", GPU, {"used_bytes": 90})])) == 1


def test_each_memory_is_judged_by_itself() -> None:
    watch = MemoryWatch()
    found = told(watch, [host(0.0, 15 * GIB), gpu(0.0, 21 * GIB), gpu(0.1, GIB)])
    assert [(warning.device, warning.level) for warning in found] == [
        ("host", "warning"),
        (GPU, "warning"),
        (GPU, "passed"),
    ]


def test_a_warning_says_what_is_full_how_full_by_whom_and_what_to_do() -> None:
    watch = running("cuda:0")
    for pid, size in ((4711, 9 * GIB), (os.getpid(), 2 * GIB)):
        row = {"pid": pid, "name": "python", "user": "mia", "memory_bytes": size}
        assert watch.observe(Sample(0.0, "process", GPU, row)) == []
    (warning,) = told(watch, [gpu(0.1, 0.86 * 24 * GIB)])
    assert warning.text == (
        "cuda:0 is 86 % full: 20.6 of 24.0 GiB. python (pid 4711, user mia) holds 9.00 GiB. "
        "Stop the run, free the cache, or close what you do not need."
    )
    assert warning.actions == ("stop", "free_cache", "save_recording")
    watch.observe_event(ended(0.15))
    now = watch.standing(warning, None)
    assert now is not None and now.actions == ("free_cache", "save_recording")
    assert now.text.endswith("holds 9.00 GiB. Free the cache or close what you do not need.")
    (passed,) = told(watch, [gpu(0.2, GIB)])
    assert passed.text == "Memory pressure on cuda:0 is over: 1.00 of 24.0 GiB in use."
    assert passed.actions == ()


def running(device: str, workload: str = "training", **spec: object) -> MemoryWatch:
    """A watch that knows of a run on ``device``."""
    watch = MemoryWatch()
    watch.describe = {GPU: "cuda:0", "host": "This computer's memory"}.__getitem__
    watch.memory_of = {"cuda:0": GPU, "cpu": "host"}.get
    watch.observe_event(RunStarted(time_s=0.0, run_id=1, workload=workload, device=device, spec=spec))
    return watch


def ended(time_s: float) -> RunEnd:
    return RunEnd(time_s=time_s, run_id=1, status="finished", seconds=time_s, steps=1, result={})


def test_with_no_run_on_a_warning_says_what_holds_the_memory_and_stops_nothing() -> None:
    watch = running("cuda:0")
    watch.observe(Sample(0.0, "process", GPU, {"pid": os.getpid(), "name": "python", "memory_bytes": 22 * GIB}))
    watch.observe(Sample(0.1, "allocator", "cuda:0", {"allocated_bytes": GIB, "reserved_bytes": 21 * GIB}))
    (warning,) = told(watch, [gpu(0.1, 23 * GIB)])
    assert "The run in gpudash holds 22.0 GiB. Stop the run, free the cache, or close" in warning.text
    watch.observe_event(ended(0.2))
    now = watch.standing(warning, None)
    assert now is not None and now.actions == ("free_cache", "save_recording")
    assert now.text == (
        "cuda:0 is 96 % full: 23.0 of 24.0 GiB. No run is on; gpudash itself holds 22.0 GiB, 20.0 GiB of it idle in "
        "gpudash's cache. Free the cache or close what you do not need."
    )


def test_stop_is_offered_for_the_memory_of_the_run_that_is_on_and_for_no_other() -> None:
    watch = running("cpu")
    (warning,) = told(watch, [gpu(0.1, 23 * GIB)])
    assert (warning.actions, warning.text) == (
        ("save_recording",),
        "cuda:0 is 96 % full: 23.0 of 24.0 GiB. Close what you do not need.",
    )
    (warning,) = told(watch, [host(0.1, 15.9 * GIB)])
    assert warning.actions == ("stop", "free_cache", "save_recording")


def test_a_watched_program_can_be_stopped_and_has_no_cache_of_ours_and_an_attached_one_goes_on() -> None:
    (warning,) = told(running("cuda:0", "watch", command=["python", "train.py"]), [gpu(0.1, 23 * GIB)])
    assert warning.actions == ("stop", "save_recording")
    assert warning.text.endswith("Stop the run or close what you do not need.")
    (warning,) = told(running("cuda:0", "watch", pid=7), [gpu(0.1, 23 * GIB)])
    assert warning.actions == ("save_recording",)


def test_a_process_that_was_listed_long_ago_holds_nothing() -> None:
    watch = running("cuda:0")
    watch.observe(Sample(0.0, "process", GPU, {"pid": 4711, "name": "python", "memory_bytes": 9 * GIB}))
    (warning,) = told(watch, [gpu(60.0, 23 * GIB)])
    assert "4711" not in warning.text


def test_our_own_process_is_not_named_like_a_stranger() -> None:
    watch = running("cpu")
    watch.observe(Sample(0.0, "process", None, {"pid": os.getpid(), "name": "python", "memory_bytes": GIB}))
    watch.observe(Sample(1.0, "process", None, {"pid": os.getpid(), "name": "python", "memory_bytes": 8 * GIB}))
    (warning,) = told(watch, [host(1.1, 15 * GIB)])
    assert "The run in gpudash holds 8.00 GiB." in warning.text


def ramp(start: float, rate: float, seconds: float, begin_s: float = 3.0, step_s: float = 0.25) -> list[Sample]:
    """Host memory that is level until ``begin_s``, then grows in steps, then is level again for 4 s."""
    found = []
    for i in range(int((begin_s + seconds + 4.0) / TICK_S)):
        t = i * TICK_S
        grown = min(max(t - begin_s, 0.0), seconds)
        found.append(host(t, start + rate * step_s * (grown // step_s)))
    return found


def test_a_ramp_that_stays_well_below_the_levels_raises_nothing() -> None:
    assert told(MemoryWatch(), ramp(2 * GIB, 256 * MIB, 40.0)) == []


def test_a_ramp_is_foretold_before_the_warning_and_only_once() -> None:
    found = told(running("cpu"), ramp(4 * GIB, 256 * MIB, 47.0))
    assert [warning.level for warning in found] == ["forecast", "warning", "critical"]
    match = re.fullmatch(
        r"This computer's memory fills in about (\d+) s \((\d+)–(\d+) s\): 1[23]\.\d of 16\.0 GiB, \+0\.25 GiB/s\. "
        r"Stop the run or free the cache\.",
        found[0].text,
    )
    assert match is not None, found[0].text
    truth = 3.0 + 12 * 4 - found[0].time_s
    middle, low, high = map(int, match.groups())
    assert low <= truth <= high
    assert middle == pytest.approx(truth, abs=1.5)


def test_a_growth_that_wavers_is_foretold_as_a_range() -> None:
    samples = [host(t * TICK_S, 8 * GIB) for t in range(round(3 / TICK_S))]
    used, time_s = 8.0 * GIB, 3.0
    while used < 15 * GIB:
        used += (160 + 60 * math.sin(7 * time_s)) * MIB * TICK_S
        time_s += TICK_S
        samples.append(host(time_s, used))
    foretold = next(warning for warning in told(MemoryWatch(), samples) if warning.level == "forecast")
    match = re.search(r"fills in about (\d+) s \((\d+)–(\d+) s\)", foretold.text)
    assert match is not None, foretold.text
    middle, low, high = map(int, match.groups())
    assert low <= middle <= high


def test_a_growth_that_stops_after_its_forecast_has_passed() -> None:
    found = told(MemoryWatch(), ramp(4 * GIB, 256 * MIB, 38.0))
    assert [warning.level for warning in found] == ["forecast", "passed"]
    assert found[1].text == "This computer's memory has stopped filling at 13.5 of 16.0 GiB."


def test_a_jump_is_no_growth() -> None:
    samples = [host(i * TICK_S, (8 if i < 100 else 13.2) * GIB) for i in range(300)]
    watch = MemoryWatch()
    for sample in samples:
        assert watch.observe(sample) == []
        assert watch.forecast("host") is None


def guarded(level: int) -> MemoryWatch:
    watch, guard = MemoryWatch(), Guard()
    guard.arm("host", level, "the guard's level")
    watch.guards = {"host": guard}
    return watch


def test_a_run_towards_its_guard_is_foretold_before_it_gets_there() -> None:
    watch = guarded(5 * GIB)
    found = told(watch, ramp(4 * GIB, 256 * MIB, 3.75))
    assert found[0].level == "forecast"
    assert found[0].text.startswith("This computer's memory reaches the guard in about ")
    assert found[0].time_s < 6.75


def test_a_run_that_stops_short_of_its_guard_is_not_bothered() -> None:
    assert told(guarded(5 * GIB), ramp(4 * GIB, 256 * MIB, 3.0)) == []


def test_a_forecast_counts_to_the_lower_of_guard_and_capacity() -> None:
    free, close = MemoryWatch(), guarded(10 * GIB)
    for sample in ramp(4 * GIB, 256 * MIB, 20.0)[:-85]:
        free.observe(sample)
        close.observe(sample)
    far, near = free.forecast("host"), close.forecast("host")
    assert far is not None and near is not None
    assert (far.limit, far.limit_bytes) == ("capacity", 16 * GIB)
    assert (near.limit, near.limit_bytes) == ("guard", 10 * GIB)
    assert near.seconds == pytest.approx(4.25, abs=0.5)
    assert far.seconds == pytest.approx(28.25, abs=1.5)
    assert far.seconds_low <= far.seconds <= far.seconds_high


def started(device: str = "cpu") -> RunStarted:
    return RunStarted(time_s=0.0, run_id=1, workload="training", device=device, spec={})


def step(t: float, number: int, steps: int = 0) -> StepFinished:
    return StepFinished(time_s=t, run_id=1, step=number, steps=steps, seconds=1.0)


def leaking_steps(watch: MemoryWatch, count: int, per_step: int, total: int = 0) -> list[Warning]:
    """Steps of 1 s, each of which needs 4 GiB more half-way than at its ends, and keeps ``per_step``."""
    found: list[Warning] = []
    for tick in range(count * 10):
        t = tick * 0.1
        number, phase = divmod(tick, 10)
        if phase == 0 and number:
            watch.observe_event(step(t, number, total))
        found += told(watch, [host(t, 6 * GIB + number * per_step + 4 * GIB * (1 - abs(phase - 5) / 5))])
    return found


def test_a_leak_under_steps_is_told_per_step_and_with_its_cause() -> None:
    watch = MemoryWatch()
    watch.observe_event(started())
    watch.set_cause("host", "losses.append at train.py:31")
    found = leaking_steps(watch, 50, 128 * MIB)
    foretold = next(warning for warning in found if warning.level == "forecast")
    assert "+0.12 GiB/s, +0.12 GiB per step. The growth comes from losses.append at train.py:31." in foretold.text
    ahead = watch.forecast("host")
    assert ahead is None or ahead.cause == "losses.append at train.py:31"


def test_at_every_level_the_warning_names_the_line_and_the_time_left_with_the_newest_figures() -> None:
    watch = MemoryWatch()
    watch.observe_event(started())
    notice = Warning(
        time_s=0.0, level="note", device="host", text="train.py:31 grows.", cause="train.py:31, 64 MiB a step"
    )
    watch.observe_event(notice)
    standing = notice
    raised = {"note"}
    for tick in range(600):
        t = tick * 0.1
        if tick % 10 == 0 and tick:
            watch.observe_event(step(t, tick // 10))
        sample = host(t, 2 * GIB + tick * 26 * MIB)
        for found in told(watch, [sample]):
            standing = found
            raised.add(found.level)
            assert "train.py:31" in found.text
        ahead = watch.forecast("host")
        now = watch.standing(standing, ahead)
        words = "" if now is None else now.text
        assert "train.py:31" in words
        used = (2 * GIB + tick * 26 * MIB) / GIB
        assert f"{used:.2f} of 16.0 GiB" in words or f"{used:.1f} of 16.0 GiB" in words
        assert ahead is None or f"in about {format_left(ahead.seconds)}" in words
    assert raised == {"note", "forecast", "warning", "critical"}


def test_steps_that_keep_nothing_raise_no_forecast() -> None:
    watch = MemoryWatch()
    watch.observe_event(started())
    assert leaking_steps(watch, 40, 0) == []
    assert watch.forecast("host") is None


def test_a_run_that_is_over_before_memory_is_full_is_not_bothered() -> None:
    watch = MemoryWatch()
    watch.observe_event(started())
    assert [w.level for w in leaking_steps(watch, 28, 128 * MIB, total=30)] == []


def test_a_new_run_begins_with_no_growth_and_no_cause() -> None:
    watch = MemoryWatch()
    watch.observe_event(started())
    watch.set_cause("host", "x at y.py:1")
    leaking_steps(watch, 40, 128 * MIB)
    assert watch.forecast("host") is not None
    watch.observe_event(RunEnd(time_s=40.0, run_id=1, status="finished", seconds=40.0, steps=40, result={}))
    told(watch, [host(40.1, 15 * GIB)])
    assert watch.forecast("host") is None


def test_idle_memory_inside_torch_is_not_exhausted_memory() -> None:
    watch = MemoryWatch()
    watch.memory_of = {"cuda:0": GPU}.get
    for tick in range(600):
        t, reserved = tick * TICK_S, (4 + 0.03 * tick) * GIB
        values = {"allocated_bytes": 2 * GIB, "peak_allocated_bytes": 3 * GIB, "reserved_bytes": int(reserved)}
        watch.observe(Sample(t, "allocator", "cuda:0", values))
        watch.observe(gpu(t, reserved + GIB))
        assert watch.forecast(GPU) is None


def test_what_the_run_needs_at_its_peaks_is_foretold_while_the_cache_stands_still() -> None:
    watch = MemoryWatch()
    watch.memory_of = {"cuda:0": GPU}.get
    for tick in range(600):
        t, needed = tick * TICK_S, (10 + 0.015 * tick) * GIB
        values = {"allocated_bytes": 8 * GIB, "peak_allocated_bytes": int(needed), "reserved_bytes": 20 * GIB}
        watch.observe(Sample(t, "allocator", "cuda:0", values))
        watch.observe(gpu(t, 21 * GIB))
    ahead = watch.forecast(GPU)
    assert ahead is not None
    assert ahead.seconds == pytest.approx((23 - 10 - 0.015 * 599) / 0.3, rel=0.1)


def test_an_allocator_of_an_unknown_device_changes_nothing() -> None:
    watch = MemoryWatch()
    assert watch.observe(Sample(0.0, "allocator", "cuda:7", {"allocated_bytes": 1, "reserved_bytes": 2})) == []
    assert watch.observe(Sample(0.0, "allocator", "cpu", {"allocated_bytes": None, "reserved_bytes": None})) == []


def test_a_growth_on_top_of_a_standing_warning_is_foretold_and_does_not_take_it_back() -> None:
    samples = [host(i * TICK_S, 14 * GIB) for i in range(200)]
    samples += [host(10 + i * TICK_S, 14 * GIB + i * 1.6 * MIB) for i in range(1000)]
    samples += [host(60 + i * TICK_S, 15.56 * GIB) for i in range(400)]
    levels_told = [warning.level for warning in told(MemoryWatch(), samples)]
    assert levels_told[0] == "warning"
    assert levels_told.count("forecast") == 1
    assert "passed" not in levels_told


def test_an_unknown_memory_has_no_forecast() -> None:
    assert MemoryWatch().forecast("host") is None


def test_a_run_that_turns_out_to_use_a_gpu_is_followed_there_and_begins_anew_when_told_again() -> None:
    watch = MemoryWatch()
    watch.memory_of = lambda device: {"cpu": "host", "cuda:0": GPU}.get(device)
    turned = Note(time_s=0.0, run_id=1, topic=Topic.DEVICE, text="", details={"device": "cuda:0"})
    watch.observe_event(turned)
    assert watch.forecast(GPU) is None, "without a run there is nothing to turn"
    watch.observe_event(started())
    watch.observe_event(turned)
    found: list[Warning] = []
    for tick in range(1200):
        if tick % 10 == 0 and tick:
            watch.observe_event(step(tick * 0.1, tick // 10))
        found += told(watch, [gpu(tick * 0.1, 6 * GIB + tick // 10 * 128 * MIB)])
    assert any("per step" in warning.text for warning in found if warning.device == GPU)
    assert watch.forecast(GPU) is not None
    watch.observe_event(turned)
    told(watch, [gpu(120.0 + tick * 0.1, 0) for tick in range(3)])
    assert watch.forecast(GPU) is None


@pytest.mark.parametrize(
    ("until", "seconds", "told"),
    [
        ("cap", 12.4, "full in 12 s"),
        ("cap", 45.0, "20 s left"),
        ("oom", 45.0, "full in 45 s"),
        ("oom", None, "20 s left"),
    ],
)
def test_a_run_has_as_long_as_its_memory_where_that_ends_it(until: str, seconds: float | None, told: str) -> None:
    run = RunView(1, "pressure", "cpu", {"until": until}, False, 0.0)
    run.step, run.steps, run.pace_s = 10, 50, 0.5
    ahead = None if seconds is None else Forecast(seconds, seconds, seconds, "capacity", 24 * GIB, 1e8, 0.9)
    assert run_left(run, ahead) == told
    run.steps = 0
    assert run_left(run, ahead) == "", "a number of steps that nobody knows foretells nothing"


def test_a_memory_that_is_part_of_another_is_foretold_as_that_and_told_once() -> None:
    watch = MemoryWatch()
    watch.pool_of = lambda memory: "host"
    watch.memory_of = {"cuda:0": GPU}.get
    watch.observe_event(RunStarted(time_s=0.0, run_id=1, workload="training", device="cuda:0", spec={}))
    rising = [
        reading(i * TICK_S, (4 + i * TICK_S * 0.5) * GIB, 16 * GIB) for i in range(440) for reading in (host, gpu)
    ]
    found = told(watch, rising)
    assert [warning.device for warning in found] == ["host"] * len(found) and found
    assert watch.forecast(GPU) is watch.forecast("host") is not None
    watch.observe(Sample(30.0, "process", GPU, {"pid": 7, "name": "python", "memory_bytes": 9 * GIB}))
    assert "python (pid 7) holds 9.00 GiB" in str(watch.standing(found[-1], None)) or found[-1].level == "forecast"
