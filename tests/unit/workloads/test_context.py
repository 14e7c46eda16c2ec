from __future__ import annotations

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.records import Event, Note, StageFinished, StepFinished, Transfer, event_from_json
from gpudash.workloads.running.context import Context, Traffic
from gpudash.workloads.running.run_errors import Cancelled, GuardRefused
from gpudash.workloads.running.stages import Stages
from tests.unit.workloads.conftest import Reported, context_on


def test_the_first_execution_of_a_stage_is_told_when_the_next_begins(context: Context, told: Reported) -> None:
    with context.stage("one", bytes=36) as stage:
        pass
    stage.describe(torch.arange(12.0).reshape(3, 4))
    assert not told
    with context.stage("two"):
        pass

    (event,) = told
    assert isinstance(event, StageFinished)
    assert (event.name, event.count, event.bytes, event.shape, event.dtype) == ("one", 1, 36, (3, 4), "float32")
    assert event.first_values == tuple(range(9)) and event.is_cuda is False and event.is_leaf is True


@settings(max_examples=50)
@given(times=st.lists(st.floats(0, 0.3), min_size=1, max_size=40))
def test_no_execution_byte_or_second_of_a_stage_is_lost_and_events_keep_their_distance(times: list[float]) -> None:
    now = 0.0
    events: list[StageFinished] = []
    stages = Stages(events.append, lambda: now, 1, torch.device("cpu"))  # type: ignore[arg-type]
    for step in times:
        now += step
        with stages.open("work", {"bytes": 10}):
            pass
        stages.settle()
    stages.flush()

    assert sum(event.count for event in events) == len(times)
    assert sum(event.bytes or 0 for event in events) == 10 * len(times)
    assert all(later.time_s - sooner.time_s >= 0.2 for sooner, later in itertools.pairwise(events[:-1]))


def test_a_stage_left_by_an_error_is_not_told(context: Context, told: Reported) -> None:
    with pytest.raises(ValueError, match="no"), context.stage("broken"):
        raise ValueError("no")
    context.flush()

    assert not told


def test_a_counted_stage_survives_json(context: Context, told: Reported) -> None:
    with context.stage("one"):
        pass
    context.flush()

    assert event_from_json(told[0].to_json()) == told[0]


def test_a_stage_that_copied_between_devices_is_a_transfer_too(context: Context, told: Reported) -> None:
    for copied, target in ((True, "cuda:0"), (False, "cuda:0"), (True, "cpu")):
        with context.stage("move", bytes=8, from_device="cpu", to_device=target, copied=copied):
            pass
    context.flush()

    transfers = [event for event in told if isinstance(event, Transfer)]
    assert [(event.direction, event.bytes) for event in transfers] == [("h2d", 8)]


def test_steps_with_a_metric_are_all_told_and_others_are_thinned(told: Reported) -> None:
    now = 0.0
    context = Context(torch.device("cpu"), run_id=1, emit=told.append, clock=lambda: now)
    for step in range(1, 11):
        now += 0.01
        context.progress(step, 20)
    bare = len(told)
    for step in range(11, 21):
        now += 0.001
        context.step(step, 20, loss=float(step))

    steps = [event for event in told if isinstance(event, StepFinished)]
    assert bare == 2 and [event.loss for event in steps[bare:]] == [float(step) for step in range(11, 21)]
    assert steps[-1].seconds == pytest.approx(0.001) and steps[-1].step == 20


def test_the_last_bare_step_is_told_when_the_run_ends(context: Context, told: Reported) -> None:
    context.progress(1, 3)
    context.progress(2, 3)
    context.flush()

    assert [event.step for event in told if isinstance(event, StepFinished)] == [1, 2]


def test_a_metric_set_on_its_own_belongs_to_the_next_step_only(context: Context, told: Reported) -> None:
    context.metric("loss", 2.5)
    context.progress(1, 2)
    context.progress(2, 2)

    assert [event.loss for event in told if isinstance(event, StepFinished)] == [2.5, None]


def test_copies_of_one_kind_are_added_up_between_two_events() -> None:
    now = 0.0
    events: list[Event] = []
    traffic = Traffic(events.append, lambda: now, 1)
    for _ in range(10):
        now += 0.01
        traffic.add(("cpu", "cuda:0", "pageable", True), 100, 0.001)
    traffic.add(("cuda:0", "cpu", "pageable", True), 7, 0.001)
    traffic.flush()

    up = [event for event in events if isinstance(event, Transfer) and event.direction == "h2d"]
    assert sum(event.bytes for event in up) == 1000 and len(up) == 3
    assert up[0].bytes / up[0].seconds == pytest.approx(up[1].bytes / up[1].seconds)


def test_an_announced_allocation_asks_the_guard_of_the_memory_it_names_or_of_the_runs_own(told: Reported) -> None:
    asked: list[tuple[int, str]] = []

    def refuse(size: int, memory: str) -> str | None:
        asked.append((size, memory))
        return f"no {memory}" if size > 5 else None

    context = context_on("meta", reported=told, refuse=refuse)
    context.about_to_allocate(5, "cpu")

    with pytest.raises(GuardRefused, match="no cpu"):
        context.about_to_allocate(6, "cpu")
    with pytest.raises(GuardRefused, match="no meta") as refusal:
        context.about_to_allocate(7)
    assert asked == [(5, "cpu"), (6, "cpu"), (7, "meta")] and refusal.value.requested_bytes == 7


def test_waiting_ends_when_the_run_is_asked_to_stop(context: Context, told: Reported) -> None:
    timer = threading.Timer(0.01, told.requests.stop.set)
    timer.start()

    with pytest.raises(Cancelled):
        context.wait(3600)
    timer.join()
    with pytest.raises(Cancelled):
        context.check_cancelled()


def test_a_note_carries_its_figures(context: Context, told: Reported) -> None:
    context.note("topic", "words", size=3)

    assert told == [Note(time_s=0.0, run_id=1, topic="topic", text="words", details={"size": 3})]
