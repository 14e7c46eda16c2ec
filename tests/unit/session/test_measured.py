"""What a script took when it ran before, read from recordings and drawn as a ghost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpudash.memory.frames import Frame
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.predicting.estimate import Target
from gpudash.memory.predicting.prediction import HELD_BACK
from gpudash.memory.request_log import NEVER, RequestLogs
from gpudash.session.predicting.measured import ALLOCATED, COLUMNS, MeasuredRun, MeasuredRuns, drawn
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Record, RunEnd, RunStarted, RunStatus, Sample, StepFinished
from gpudash.units import MIB

TRAIN = WatchRequest(("python", "/home/me/train.py", "--lr", "0.1"), folder=Path("/home/me"))


def run(
    began_s: float,
    request: WatchRequest = TRAIN,
    *,
    peak: int = 100 * MIB,
    device: str = "sim:0",
    status: RunStatus = "finished",
    steps: int = 2,
    **more: object,
) -> list[Record]:
    """A run of ten readings and two steps, which holds most in its middle."""
    records: list[Record] = [
        RunStarted(time_s=began_s, run_id=int(began_s), workload="watch", device=device, spec=request.spec() | more)
    ]
    for tick in range(10):
        size = peak * (10 - abs(tick - 5)) // 10
        values = {"allocated_bytes": size // 2, "reserved_bytes": size}
        records.append(Sample(began_s + 0.1 + tick / 10, "allocator", device, values, {}))
    records += [
        StepFinished(time_s=began_s + end, run_id=int(began_s), step=step, steps=2, seconds=0.5)
        for step, end in ((1, 0.55), (1, 0.6), (2, 1.0))  # one is told of twice
        if step <= steps
    ]
    records.append(RunEnd(time_s=began_s + 1.2, run_id=int(began_s), status=status, seconds=1.2, steps=2))
    return records


def recorded(path: Path, *runs: list[Record], origin: str = "2026-11-28T10:00:00+00:00") -> Path:
    recorder = Recorder(path, meta={"wall_clock_origin": origin})
    for records in runs:
        for record in sorted(records, key=lambda one: one.time_s):
            recorder.add(record)
    recorder.close("closed")
    return path


def found(folder: Path, request: WatchRequest = TRAIN) -> MeasuredRun | None:
    runs = MeasuredRuns(lambda: folder, lambda: None)
    runs.request(request)
    assert runs.wait(30)
    try:
        return runs.of(request)
    finally:
        assert runs.close()


def test_the_last_run_of_a_command_is_drawn_with_its_steps_and_its_peak(tmp_path: Path) -> None:
    recorded(tmp_path / "a.gpudash", run(5.0, peak=300 * MIB), run(10.0))
    last = found(tmp_path)
    assert last is not None
    assert (last.peak_bytes, last.device, last.steps, last.devices) == (100 * MIB, "sim:0", 2, 1)
    assert last.began_s == pytest.approx(1795860010.0)
    ghost = last.ghost
    assert ghost.highest == 100 * MIB and ghost.parts[ALLOCATED] == 50 * MIB
    assert ghost.steps == 2


def known_requests() -> RequestLogs:
    """Weights from the beginning of the run at ten seconds, and activations around its middle."""
    logs = RequestLogs()
    logs.made("sim:0").replace(
        (np.array([10.05, 10.45, 10.75]), np.array([0, 20, 30, 20]) * MIB),
        (np.array([0, 1]), np.array([NEVER, 2]), np.array([20, 10]) * MIB, np.array([0, 1]), np.array([0, 1])),
        [(Frame("/home/me/train.py", line, "step"),) for line in (3, 9)],
        ("weights", "activations"),
    )
    return logs


def test_a_run_of_this_session_is_drawn_by_category_and_comes_to_what_was_read(tmp_path: Path) -> None:
    own = recorded(tmp_path / "a.gpudash", run(10.0))
    runs = MeasuredRuns(lambda: tmp_path, lambda: own, known_requests())
    runs.request(TRAIN)
    assert runs.wait(30) and runs.close()
    last = runs.of(TRAIN)
    assert last is not None
    assert last.ghost.parts == {"weights": 20 * MIB, "activations": 10 * MIB, ALLOCATED: 20 * MIB, HELD_BACK: 50 * MIB}
    assert last.ghost.highest == last.peak_bytes == 100 * MIB


def test_of_a_run_of_another_session_what_this_one_knows_says_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "a.gpudash", run(10.0))
    runs = MeasuredRuns(lambda: tmp_path, lambda: tmp_path / "b.gpudash", known_requests())
    runs.request(TRAIN)
    assert runs.wait(30) and runs.close()
    last = runs.of(TRAIN)
    assert last is not None and last.ghost.names == (ALLOCATED, HELD_BACK)


def test_requests_of_more_than_was_read_are_no_more_than_that(tmp_path: Path) -> None:
    own = recorded(tmp_path / "a.gpudash", run(10.0, peak=20 * MIB))
    runs = MeasuredRuns(lambda: tmp_path, lambda: own, known_requests())
    runs.request(TRAIN)
    assert runs.wait(30) and runs.close()
    last = runs.of(TRAIN)
    assert last is not None and last.ghost.highest == 20 * MIB
    assert last.ghost.edges[last.ghost.top].max() == 10 * MIB


def test_other_arguments_another_folder_a_change_and_an_attached_process_are_other_programs(tmp_path: Path) -> None:
    recorded(
        tmp_path / "a.gpudash",
        run(1.0, WatchRequest((*TRAIN.command, "--x"), folder=TRAIN.folder)),
        run(5.0, WatchRequest(TRAIN.command, folder=Path("/other"))),
        run(10.0, edit="--- a"),
        run(15.0, pid=4711),
    )
    assert found(tmp_path) is None


def test_a_run_that_held_nothing_of_a_gpu_says_nothing_and_the_one_before_it_does(tmp_path: Path) -> None:
    recorded(tmp_path / "a.gpudash", run(1.0), run(5.0, device="cpu"), run(9.0, peak=0))
    last = found(tmp_path)
    assert last is not None and last.peak_bytes == 100 * MIB


def test_of_several_devices_the_fullest_is_drawn_and_it_is_known_of_how_many(tmp_path: Path) -> None:
    both = [*run(1.0), *[one for one in run(1.0, peak=200 * MIB, device="sim:1") if isinstance(one, Sample)]]
    recorded(tmp_path / "a.gpudash", both)
    last = found(tmp_path)
    assert last is not None
    assert (last.device, last.devices, last.peak_bytes) == ("sim:1", 2, 200 * MIB)


def test_a_folder_that_is_not_there_and_files_that_are_no_recordings_are_no_answer(tmp_path: Path) -> None:
    assert found(tmp_path / "nowhere") is None
    (tmp_path / "b.gpudash").write_bytes(b"no recording")
    recorded(tmp_path / "a.gpudash", run(1.0))
    assert found(tmp_path) is not None


def test_a_long_run_keeps_its_peak_and_what_lasts_between_two_readings() -> None:
    times = np.linspace(0.0, 1000.0, 50_000)
    allocated = np.full(50_000, 10.0)
    allocated[31_234] = 99.0
    ghost = drawn(times, allocated, allocated + 1, [])
    assert ghost.requests == COLUMNS and ghost.highest == 100.0
    sparse = drawn(np.array([0.0, 1.0, 100.0]), np.array([1.0, 5.0, 2.0]), np.array([1.0, 5.0, 2.0]), [100.0])
    assert sparse.total.tolist() == [5.0, 5.0, 2.0]


@pytest.mark.parametrize(
    ("free", "fits", "spare"), [(200, True, 90), (115, True, 5), (109, None, 49), (61, None, 1), (59, False, -1)]
)
def test_what_was_only_kept_need_not_have_room_elsewhere(
    tmp_path: Path, free: int, fits: bool | None, spare: int
) -> None:
    recorded(tmp_path / "a.gpudash", run(1.0))
    last = found(tmp_path)
    assert last is not None
    there = last.on("card", Target("sim:0", 300 * MIB, free * MIB, 10 * MIB))
    assert (there.fits, there.spare_bytes, there.source) == (fits, spare * MIB, "by its last run")


def test_a_run_that_ran_out_of_memory_fits_nowhere_for_sure(tmp_path: Path) -> None:
    recorded(tmp_path / "a.gpudash", run(1.0, status="out_of_memory"))
    last = found(tmp_path)
    assert last is not None and last.ran_out
    same, larger = (last.on("card", Target("sim:0", size, size)) for size in (100 * MIB, 300 * MIB))
    assert same.fits is False
    assert CardsAnswer({"card": same}, requested=True).of("card").headline == "✕ out of memory"
    assert larger.fits is None and larger.spare_bytes is None and "did not show what it needs" in larger.reason


@pytest.mark.parametrize(("status", "ending"), [("cancelled", "stopped"), ("failed", "failed")])
@pytest.mark.parametrize(("steps", "count"), [(0, "0 steps"), (1, "1 step")])
def test_a_run_that_ended_before_its_second_step_fits_nowhere_for_sure(
    tmp_path: Path, status: RunStatus, ending: str, steps: int, count: str
) -> None:
    recorded(tmp_path / "a.gpudash", run(1.0, status=status, steps=steps))
    last = found(tmp_path)
    assert last is not None and last.cut_short == f"{ending} after {count}"
    smaller, larger = (last.on("card", Target("sim:0", size, size)) for size in (40 * MIB, 300 * MIB))
    assert smaller.fits is False, "its tensors alone were more than that"
    assert larger.fits is None and larger.spare_bytes is None
    assert f"{ending} after {count} and may need more than the 100 MiB it held" in larger.reason


def test_a_run_that_was_stopped_while_its_memory_grew_fits_nowhere_for_sure(tmp_path: Path) -> None:
    growing = run(1.0, status="cancelled", steps=0)
    for number in range(8):
        time_s = 1.15 + number / 10
        growing.append(StepFinished(time_s=time_s, run_id=1, step=number + 1, steps=8, seconds=0.1))
        values = {"allocated_bytes": (100 + number) * MIB, "reserved_bytes": (100 + number) * MIB}
        growing.append(Sample(time_s, "allocator", "sim:0", values, {}))
    recorded(tmp_path / "a.gpudash", growing)
    last = found(tmp_path)
    assert last is not None and last.cut_short == "stopped after 8 steps, still growing"
    there = last.on("card", Target("sim:0", 300 * MIB, 300 * MIB))
    assert there.fits is None and there.spare_bytes is None and "still growing" in there.reason


def test_a_run_that_was_forgotten_is_unknown_until_it_is_looked_for_again(tmp_path: Path) -> None:
    recorded(tmp_path / "a.gpudash", run(1.0))
    runs = MeasuredRuns(lambda: tmp_path, lambda: None)
    runs.request(TRAIN)
    assert runs.wait(30) and runs.of(TRAIN) is not None
    runs.forget(TRAIN)
    assert runs.of(TRAIN) is None
    runs.request(TRAIN)
    assert runs.wait(30) and runs.of(TRAIN) is not None
    assert runs.close()


def test_a_run_that_was_stopped_after_two_steps_is_known_by_its_peak(tmp_path: Path) -> None:
    recorded(tmp_path / "a.gpudash", run(1.0, status="cancelled"))
    last = found(tmp_path)
    assert last is not None and last.cut_short == ""
    assert last.on("card", Target("sim:0", 300 * MIB, 300 * MIB)).fits is True
