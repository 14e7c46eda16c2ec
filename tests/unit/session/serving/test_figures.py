"""What is served of a session: newest readings, never an old one, never a nought for what is not known."""

from __future__ import annotations

import math

import pytest

from gpudash.memory.predicting.estimate import Estimate
from gpudash.session.serving.catalogue import CATALOGUE, READINGS
from gpudash.session.serving.figures import FRESH_S, PROCESSES
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Note, RunEnd, RunStarted, Sample, State, StepFinished, Warning
from tests.unit.session.serving.fake_session import GIB, GPU, SIM, FakeSession, Gathered, forecast

ON_GPU = ("GPU-0", "0")
ON_SIM = (SIM.uuid, "sim:0")
RUN = ("4", "training", "cuda:0")


@pytest.fixture
def fake() -> FakeSession:
    return FakeSession()


@pytest.fixture
def gathered(fake: FakeSession) -> Gathered:
    return Gathered(fake)


def started(fake: FakeSession, device: str = "cuda:0") -> None:
    fake.apply(RunStarted(time_s=fake.now_s, run_id=4, workload="training", device=device, spec={}))


def stepped(fake: FakeSession, step: int, loss: float | None = 0.5) -> None:
    told = StepFinished(time_s=fake.now_s, run_id=4, step=step, steps=50, seconds=0.1, loss=loss, throughput=640.0)
    fake.apply(told)


def test_every_reading_that_is_served_exists_and_every_name_is_used_once() -> None:
    for served in READINGS:
        assert served.reading is not None
        table, metric = served.reading
        assert metric in {known.name for known in METRICS[table]}
    names = [served.name for served in CATALOGUE]
    assert len(set(names)) == len(names)
    for served in CATALOGUE:
        assert served.name.startswith("gpudash_")
        assert served.name.endswith("_total") == (served.kind == "counter")
        assert served.name.endswith("_info") == (served.kind == "info")
        assert served.help_text.endswith(".")


def test_the_newest_reading_of_each_device_is_served(fake: FakeSession, gathered: Gathered) -> None:
    fake.read("gpu", "GPU-0", used_bytes=2 * GIB, temperature_c=41.0)
    fake.read("gpu", SIM.uuid, used_bytes=GIB)
    fake.read("host", None, used_bytes=3 * GIB)
    fake.read("allocator", "cuda:0", reserved_bytes=5)
    assert gathered.rows("gpudash_gpu_memory_used_bytes") == [(ON_GPU, 2.0 * GIB), (ON_SIM, 1.0 * GIB)]
    assert gathered.rows("gpudash_gpu_temperature_celsius") == [(ON_GPU, 41.0)]
    assert gathered.rows("gpudash_host_memory_used_bytes") == [((), 3.0 * GIB)]
    assert gathered.rows("gpudash_allocator_reserved_bytes") == [(("cuda:0",), 5.0)]
    fake.read("gpu", "GPU-0", used_bytes=4 * GIB)
    assert gathered.rows("gpudash_gpu_memory_used_bytes")[0] == (ON_GPU, 4.0 * GIB)


@pytest.mark.parametrize("state", [State.LOST, State.STALE, State.ASLEEP, State.NOT_SUPPORTED, State.NO_PERMISSION])
def test_a_reading_that_could_not_be_taken_is_absent(fake: FakeSession, gathered: Gathered, state: State) -> None:
    fake.read("gpu", "GPU-0", used_bytes=2 * GIB)
    fake.now_s += 0.1
    fake.read("gpu", "GPU-0", {"used_bytes": state}, used_bytes=None)
    assert gathered.rows("gpudash_gpu_memory_used_bytes") == []
    standing = [labels[-1] for labels, value in gathered.rows("gpudash_gpu_state") if value == 1.0]
    assert standing == [state.value]
    assert len(gathered.rows("gpudash_gpu_state")) == len(State)


def test_an_old_reading_is_absent_and_its_age_is_told(fake: FakeSession, gathered: Gathered) -> None:
    fake.read("gpu", "GPU-0", used_bytes=2 * GIB)
    fake.now_s += FRESH_S + 1
    assert gathered.rows("gpudash_gpu_memory_used_bytes") == []
    assert gathered.rows("gpudash_reading_age_seconds") == [(("GPU-0",), FRESH_S + 1)]
    assert [labels[-1] for labels, value in gathered.rows("gpudash_gpu_state") if value == 1.0] == ["stale"]


def test_a_gpu_that_was_never_read_is_listed_without_figures(gathered: Gathered) -> None:
    infos = gathered.rows("gpudash_gpu_info")
    assert [(*labels[:6], labels[-1]) for labels, _ in infos] == [
        ("GPU-0", "0", "0", "NVIDIA H200", "cuda:0", "false", "false"),
        (SIM.uuid, "sim:0", "0", SIM.product, "", "true", "false"),
    ]
    assert gathered.rows("gpudash_gpu_state") == []
    assert gathered.rows("gpudash_reading_age_seconds") == []


def test_only_the_largest_processes_are_served(fake: FakeSession, gathered: Gathered) -> None:
    for pid in range(20):
        values = {"pid": pid, "name": f"python{pid}", "memory_bytes": pid * GIB, "user": "somebody"}
        fake.apply(Sample(fake.now_s, "process", GPU.uuid, values))
    fake.apply(Sample(fake.now_s, "process", GPU.uuid, {"pid": 99, "name": "unknown", "memory_bytes": None}))
    rows = gathered.rows("gpudash_gpu_process_memory_bytes")
    assert len(rows) == PROCESSES
    assert rows[0] == ((*ON_GPU, "19", "python19"), 19.0 * GIB)


def test_a_forecast_is_served_while_there_is_one(fake: FakeSession, gathered: Gathered) -> None:
    assert gathered.rows("gpudash_gpu_memory_forecast_seconds") == []
    fake.forecasts = {"GPU-0": forecast(40.0), "host": forecast(90.0)}
    started(fake)
    assert gathered.rows("gpudash_gpu_memory_forecast_seconds") == [(ON_GPU, 40.0)]
    assert gathered.rows("gpudash_host_memory_forecast_seconds") == [((), 90.0)]
    assert gathered.rows("gpudash_run_forecast_seconds") == [(RUN, 40.0)]
    started(fake, "cpu")
    assert gathered.rows("gpudash_run_forecast_seconds") == [(("4", "training", "cpu"), 90.0)]


def test_a_warning_stands_until_it_has_passed(fake: FakeSession, gathered: Gathered) -> None:
    def warn(level: str) -> None:
        fake.apply(Warning(time_s=fake.now_s, level=level, device="GPU-0", text=""))  # type: ignore[arg-type]

    warn("note")
    assert gathered.rows("gpudash_warning") == []
    warn("forecast")
    warn("critical")
    warn("critical")
    assert gathered.rows("gpudash_warning") == [(("critical", "GPU-0"), 1.0), (("forecast", "GPU-0"), 1.0)]
    warn("passed")
    assert gathered.rows("gpudash_warning") == []
    raised = {labels[0]: value for labels, value in gathered.rows("gpudash_warnings_total")}
    assert raised == {"forecast": 1.0, "warning": 0.0, "critical": 2.0}


def test_what_the_guard_told_of_a_run_stands_until_the_next_one(fake: FakeSession, gathered: Gathered) -> None:
    started(fake)
    fake.apply(Warning(time_s=fake.now_s, run_id=4, level="critical", device="host", text="stopped by the guard"))
    fake.apply(Warning(time_s=fake.now_s, run_id=4, level="warning", device="GPU-0", text="full", ratio=0.9))
    assert gathered.rows("gpudash_warning") == [(("critical", "host"), 1.0), (("warning", "GPU-0"), 1.0)]
    started(fake)
    assert gathered.rows("gpudash_warning") == [(("warning", "GPU-0"), 1.0)]


def test_a_run_is_served_with_what_its_newest_step_told(fake: FakeSession, gathered: Gathered) -> None:
    started(fake)
    assert gathered.rows("gpudash_run_step") == []
    fake.now_s += 1
    stepped(fake, 3)
    fake.now_s += 2
    assert gathered.rows("gpudash_run_step") == [(RUN, 3.0)]
    assert gathered.rows("gpudash_run_steps") == [(RUN, 50.0)]
    assert gathered.rows("gpudash_run_loss") == [(RUN, 0.5)]
    assert gathered.rows("gpudash_run_throughput_items_per_second") == [(RUN, 640.0)]
    assert gathered.rows("gpudash_run_accuracy_ratio") == []
    assert gathered.rows("gpudash_run_step_age_seconds") == [(RUN, 2.0)]
    assert gathered.rows("gpudash_run_duration_seconds") == [(RUN, 3.0)]
    assert [labels[-1] for labels, value in gathered.rows("gpudash_run_status") if value] == ["running"]


def test_a_loss_that_is_no_number_is_served_as_such(fake: FakeSession, gathered: Gathered) -> None:
    started(fake)
    stepped(fake, 1, math.nan)
    ((_, loss),) = gathered.rows("gpudash_run_loss")
    assert math.isnan(loss)


def test_an_ended_run_keeps_its_outcome_and_loses_what_only_a_running_one_has(
    fake: FakeSession, gathered: Gathered
) -> None:
    started(fake)
    fake.read("allocator", "cuda:0", allocated_bytes=5, reserved_bytes=8)
    stepped(fake, 3)
    ending = RunEnd(
        status="out_of_memory", time_s=fake.now_s, run_id=4, error="cuda", message="", remedy="", seconds=9.0, steps=3
    )
    fake.apply(ending)
    assert [labels[-1] for labels, value in gathered.rows("gpudash_run_status") if value] == ["out_of_memory"]
    assert gathered.rows("gpudash_run_duration_seconds") == [(RUN, 9.0)]
    assert gathered.rows("gpudash_run_peak_bytes") == [((*RUN, "allocated"), 5.0), ((*RUN, "reserved"), 8.0)]
    for name in ("loss", "throughput_items_per_second", "step_age_seconds"):
        assert gathered.rows(f"gpudash_run_{name}") == []


def test_the_metrics_of_a_run_before_are_not_those_of_this_one(fake: FakeSession, gathered: Gathered) -> None:
    started(fake)
    stepped(fake, 3)
    fake.now_s += 1
    started(fake)
    assert gathered.rows("gpudash_run_loss") == []


def test_a_prediction_is_served_as_far_as_there_is_one(fake: FakeSession, gathered: Gathered) -> None:
    predicted = Estimate("cuda:0", workload="training", peak_allocated_bytes=6, peak_reserved_bytes=None)
    assert gathered.rows("gpudash_run_predicted_peak_bytes", predicted) == []
    started(fake)
    assert gathered.rows("gpudash_run_predicted_peak_bytes", predicted) == [((*RUN, "allocated"), 6.0)]


def ranked(fake: FakeSession, ranks: int) -> None:
    started(fake)
    fake.apply(Note(time_s=fake.now_s, run_id=4, topic="ranks", text="", details={"world_size": ranks}))


def test_ranks_are_served_with_their_share_of_waiting(fake: FakeSession, gathered: Gathered) -> None:
    ranked(fake, 2)
    fake.read("rank", "0", step=5, step_s=2.0, waiting_s=0.5, loss=0.25)
    fake.read("rank", "1", step=5, step_s=2.0, waiting_s=None)
    assert gathered.rows("gpudash_rank_step_seconds") == [(("0",), 2.0), (("1",), 2.0)]
    assert gathered.rows("gpudash_rank_waiting_ratio") == [(("0",), 0.25)]
    assert gathered.rows("gpudash_rank_loss") == [(("0",), 0.25)]
    assert gathered.rows("gpudash_run_world_size_ranks") == [(RUN, 2.0)]
    fake.now_s += 60  # a step may take a minute
    assert gathered.rows("gpudash_rank_step_seconds") == [(("0",), 2.0), (("1",), 2.0)]
    started(fake)
    assert gathered.rows("gpudash_rank_step_seconds") == []


def test_of_very_many_ranks_only_the_envelope_is_served(fake: FakeSession, gathered: Gathered) -> None:
    ranked(fake, 65)
    for rank in ("0", "lowest", "median", "highest"):
        fake.read("rank", rank, step_s=2.0)
    assert [labels for labels, _ in gathered.rows("gpudash_rank_step_seconds")] == [
        ("lowest",),
        ("median",),
        ("highest",),
    ]
