"""The real window: on a virtual screen, with a real session, a real workload and the stand-in driver."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.records import Event, RunEnd, Sample, Warning
from gpudash.units import MIB
from tests.end_to_end.conftest import Play, Stub, start_python
from tests.nvml_stub.build import GIB, Scenario, StubGpu
from tests.programs import program

pytestmark = pytest.mark.timeout(280)  # a scenario has PLAY_S in the window


@pytest.fixture
def managed(display: str) -> Iterator[None]:
    """A window manager on the screen, which gives windows the keyboard."""
    process = subprocess.Popen(
        [program("openbox")],
        env={**os.environ, "DISPLAY": display},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield
    process.terminate()
    process.wait(10)


def recording(home: Path) -> Path:
    (found,) = home.rglob("*.gpudash")
    with sqlite3.connect(found) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    return found


def recorded(home: Path) -> list[Sample | Event]:
    with open_recording(recording(home)) as opened:
        return list(opened.records())


@pytest.mark.usefixtures("managed")
def test_the_wheel_changes_no_field_of_the_form_and_what_is_typed_ends_where_typing_began(play: Play) -> None:
    seen = play("form")
    assert seen["fields"] > 25 and seen["typed"] > 10 and seen["scrolled"]
    assert (seen["changed"], seen["elsewhere"], seen["moved"]) == ([], [], [])


@pytest.mark.usefixtures("managed")
def test_what_does_not_fit_is_changed_by_the_mouse_and_the_run_reaches_what_was_predicted(play: Play) -> None:
    seen = play("film")
    assert seen["status"] == "finished" and seen["frames"] > 40
    (named,) = (name for name in seen["legend"] if name.startswith("predicted"))
    predicted, reached = re.findall(r"[\d.]+ [MG]iB", named)
    assert predicted == reached


@pytest.mark.usefixtures("managed")
@pytest.mark.parametrize("scale", [pytest.param("1", marks=pytest.mark.thorough), "2"])
def test_a_script_is_predicted_and_run_on_a_larger_card_and_a_leak_to_its_end_with_the_change(
    play: Play, tmp_path: Path, scale: str
) -> None:
    seen = play("story", env={"QT_SCALE_FACTOR": scale})
    assert "does not fit" in seen["short"] and "spare" in seen["spare"] and seen["trained"] == "finished"
    assert (seen["ended"], seen["mended"]) == ("out_of_memory", "finished")
    assert "MiB" in seen["change"] and seen["file"]
    assert not seen["torch"] and seen["bytes"] < 350 * MIB, "torch is for the processes that predict and run"
    assert len(list(tmp_path.glob("*-light.png"))) == len(list(tmp_path.glob("*-dark.png"))) == 10


@pytest.mark.usefixtures("managed")
def test_no_tab_and_no_statistics_move_what_is_under_the_pointer_or_hide_the_time_axis(play: Play) -> None:
    seen = play("opening")
    assert len(seen["tabs"]) >= 3 * 5 and seen["ranges"] == 3
    assert (seen["moved"], seen["hidden"]) == ([], [])


def test_a_comparison_ends_in_a_verdict_which_its_recording_has_too(play: Play, home: Path, tmp_path: Path) -> None:
    seen = play("comparison")
    (ended,) = [record for record in recorded(home) if isinstance(record, RunEnd) and not record.ended_badly]
    assert seen["headline"] == ended.result["headline"]
    for theme in ("dark", "light"):
        assert (tmp_path / f"{theme}.png").stat().st_size > 20_000


def test_two_recorded_runs_lie_over_one_another_with_what_differs_in_words(play: Play, tmp_path: Path) -> None:
    seen = play("compared")
    assert "error" not in seen and "precision" in seen["headline"]
    for theme in ("dark", "light"):
        assert (tmp_path / f"{theme}.png").stat().st_size > 20_000


def test_two_ranks_are_chosen_run_and_shown_and_the_slow_one_is_named(play: Play, tmp_path: Path) -> None:
    seen = play("ranks")
    summary = seen["summary"]
    assert summary["status"] == "finished" and summary["steps"] == 400
    assert seen["device"] == "cpu" and "2 ranks" in seen["progress"]
    assert seen["plots"] == ["rank_memory", "rank_step", "loss", "rank_share"]
    assert seen["curves"]["rank_memory"] == seen["curves"]["rank_step"] == ["rank 0", "rank 1"]
    assert {"rank 0", "rank 1", "loss", "accuracy"} <= set(seen["curves"]["loss"])
    assert seen["curves"]["rank_share"] == ["communicating", "computing", "waiting for others"]
    assert seen["states"] == ["ended", "ended"]
    assert summary["result"]["straggler"]["rank"] == 1
    assert seen["remarks"][0] == "" and seen["remarks"][1].startswith("straggler, ")
    assert seen["sentence"].startswith(summary["result"]["straggler"]["text"])
    assert seen["banner"].startswith("note: Rank 1 computes ")
    assert seen["seconds_to_leave"] < 4.0
    for theme in ("dark", "light"):
        assert (tmp_path / f"{theme}.png").stat().st_size > 20_000


def test_after_a_stop_which_is_answered_at_once_and_after_the_guard_the_window_runs_again(play: Play) -> None:
    seen = play("ended_early_and_again")
    assert (seen["button"], seen["stopped"]) == ("Stopping…", "cancelled")
    assert (seen["guarded"]["status"], seen["guarded"]["error"]["kind"]) == ("out_of_memory", "guard")
    assert "guard" in seen["banner"]
    assert seen["last"] == "finished"


@pytest.mark.sample
def test_closing_during_a_run_leaves_a_recording_that_says_cancelled(play: Play, home: Path) -> None:
    seen = play("close_during_a_run")
    # on a busy machine leaving takes longer, and the run that it does not wait for as much
    assert seen["seconds_to_leave"] < max(4.0, seen["would_take_s"] / 2)
    with open_recording(recording(home)) as opened:
        assert [run.status for run in opened.runs] == ["cancelled"]


def test_an_operation_that_blocks_a_minute_does_not_keep_the_window(play: Play, home: Path) -> None:
    seen = play("close_while_blocked")
    assert seen["asked"].startswith("Blocking on cpu has been running for ") and seen["stays"]
    assert seen["seconds_to_leave"] < 4.0
    with open_recording(recording(home)) as opened:
        assert [run.status for run in opened.runs] == ["cancelled"]


def test_ctrl_c_in_the_terminal_ends_a_program_that_the_window_waits_for_more_firmly(play: Play, home: Path) -> None:
    play("left_by_two_ctrl_c")
    with open_recording(recording(home)) as opened:
        (ended,) = [event for event in opened.events() if isinstance(event, RunEnd) and not event.ended_badly]
    said = "Ended by SIGKILL, sent by gpudash after another Ctrl+C in its terminal."
    assert (ended.status, ended.result["stop"]["text"]) == ("cancelled", said)


def test_closing_the_window_waits_for_a_program_that_saves(play: Play, home: Path) -> None:
    seen = play("closed_while_a_program_saves")
    assert seen["button"] == "■  Terminate   F5"
    assert seen["words"].endswith("ago; it may take as long as it needs.\nTerminate sends SIGTERM, then Kill SIGKILL.")
    with open_recording(recording(home)) as opened:
        (ended,) = [event for event in opened.events() if isinstance(event, RunEnd) and not event.ended_badly]
    assert (ended.status, ended.result["exit_code"]) == ("cancelled", 0)
    said = "Ended with exit code 0; gpudash had sent SIGINT after Stop was pressed in the window."
    assert ended.result["stop"]["text"] == said


def test_without_torch_the_window_opens_and_a_run_is_refused_in_a_sentence(play: Play, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    seen = play("run_without_torch", {"PYTHONPATH": str(site)})
    assert seen["summary"]["status"] == "failed"
    assert seen["summary"]["error"]["message"] == "torch is not installed."
    assert seen["summary"]["error"]["remedy"] == "Run: pip install torch"
    assert "failed" in seen["banner"] and "torch is not installed" in seen["why"]


FULLNESS = (70, 84, 86, 85, 86, 94, 96, 60)
STEP_S = 0.8


def test_levels_warn_once_each_also_while_the_window_hangs(play: Play, home: Path, stub: Stub) -> None:
    began = 6.0
    used = [(0.0, 70 * GIB)] + [(began + number * STEP_S, full * GIB) for number, full in enumerate(FULLNESS)]
    gpu = StubGpu(0, total=100 * GIB, reserved=0, used=used)
    seen = play("warnings_while_blocked", stub(Scenario(gpus=[gpu]).begin_now()))
    records = recorded(home)
    told = [record for record in records if isinstance(record, Warning) and record.device == gpu.uuid]
    assert [event.level for event in told if event.level != "forecast"] == ["warning", "critical", "passed"]
    readings = [
        (record.time_s, record.values["used_bytes"])
        for record in records
        if isinstance(record, Sample) and record.device == gpu.uuid and record.values.get("used_bytes") is not None
    ]
    for event, full in zip([e for e in told if e.level != "forecast"], (86, 96, 60), strict=True):
        first = next(time_s for time_s, size in readings if size == full * GIB)
        assert 0 <= event.time_s - first < 0.5
    assert "passed" in seen["banner"]
    passed = next(event.time_s for event in told if event.level == "passed")
    assert seen["banner_s"] - max(passed, seen["gui_back_s"]) < 0.5
    assert {"warning", "critical", "passed"} <= set(seen["marks"])


def test_driver_calls_that_never_return_stop_neither_host_nor_window_nor_exit(
    play: Play, home: Path, stub: Stub
) -> None:
    scenario = Scenario(gpus=[StubGpu(number) for number in range(3)]).begin_now()
    for gpu, function in ((1, "nvmlDeviceGetMemoryInfo_v2"), (2, "nvmlDeviceGetUtilizationRates")):
        scenario.hang(function, gpu, begin=4.0)
    seen = play("look", stub(scenario))
    assert seen["seconds_to_leave"] < 3.0
    times = [
        record.time_s
        for record in recorded(home)
        if isinstance(record, Sample) and record.table == "host" and "used_bytes" in record.values
    ]
    assert max(later - earlier for earlier, later in pairwise(times)) < 0.5


def test_the_strip_speaks_of_what_is_now_after_a_stop_an_out_of_memory_and_an_attach(play: Play) -> None:
    seen = play("strip")
    assert "full" in seen["running"]["text"] and "Stop run" in seen["running"]["buttons"]
    assert "full" not in seen["stopped"]["text"] and set(seen["stopped"]["buttons"]) <= {"×"}, "its memory is free"
    assert "Memory ran out" in seen["ran_out"]["text"] and seen["ran_out"]["buttons"] == ["Open report", "×"]
    assert "ran out of memory" in seen["failed"]["text"]
    assert seen["failed"]["buttons"] == ["Explain", "Open report", "×"]
    assert seen["attached"] == {"text": "", "buttons": []}
    assert seen["goes_on"], "Stop watching ends no program of another's"


def test_a_run_that_does_not_fit_is_foretold_warned_of_explained_and_fixed(play: Play, tmp_path: Path) -> None:
    seen = play("out_of_memory_and_again")
    assert seen["headline"].startswith("✕ does not fit, ")
    assert "The growth comes from training_step.py:" in seen["forecast"]
    explanation = seen["explanation"]
    assert explanation["verdict"] == "leak"
    assert explanation["simulated"] is True
    assert sum(part["bytes"] for part in explanation["parts"]) == explanation["capacity_bytes"]
    assert seen["status"] == "finished"
    for name in ("predicted", "warned", "explained", "finished"):
        for theme in ("dark", "light"):
            assert (tmp_path / f"{name}-{theme}.png").stat().st_size > 20_000


@pytest.mark.usefixtures("managed")
def test_the_first_screen_watches_a_program_asks_about_a_model_and_takes_a_script(play: Play, tmp_path: Path) -> None:
    seen = play("first_screen")
    assert seen["listed"].startswith("Watch waits.py, PID ") and "no GPU memory, seen from " in seen["listed"]
    assert "Program waits.py" in seen["attached"] and seen["alive"], "watching changes nothing in the program"
    assert seen["typo"] == "There is no model gpt-2 here. Did you mean gpt2?"
    assert "fits" in seen["headline"] and seen["path"] == "gpt2"
    assert seen["chips"] and all(verdict.endswith(" spare") for verdict in seen["chips"])
    assert seen["status"] == "finished"
    for theme in ("dark", "light"):
        for width in (1280, 2500):
            assert (tmp_path / f"first-{width}-{theme}.png").stat().st_size > 20_000


@pytest.mark.usefixtures("managed")
def test_a_dropped_model_that_does_not_fit_to_train_fits_with_qlora(play: Play, tmp_path: Path) -> None:
    seen = play("model")
    assert seen["path"] == seen["kept"] == str(tmp_path / "llama-400m")
    assert seen["short"].startswith("✕ does not fit, ") and seen["fits"].startswith("✓ fits, ")
    assert "longest sequence" in seen["figures"]
    assert seen["ghost"] == seen["needed"], "the ghost of a model reaches what it needs"
    enabled, tip = seen["button"]
    assert not enabled and tip.startswith("Weights packed as nf4 can only be predicted here.")
    for name in ("short", "fits"):
        for width in (1280, 2500):
            for theme in ("dark", "light"):
                assert (tmp_path / f"{name}-{width}-{theme}.png").stat().st_size > 20_000


def test_a_script_that_leaks_is_watched_warned_of_explained_and_its_report_opens(
    play: Play, home: Path, tmp_path: Path
) -> None:
    seen = play("watched_until_full")
    assert "leak.py:11" in seen["warning"]
    assert seen["selected"] == "sim:0 (SIMULATED 768 MiB)"
    assert seen["summary"]["status"] == "out_of_memory" and seen["summary"]["workload"] == "watch"
    report = Path(seen["summary"]["result"]["report"])
    assert (report / "snapshot.pickle").is_file() and report.is_relative_to(home)
    assert seen["explanation"]["verdict"] == "leak"
    assert seen["title"] == f"{report.name} – gpudash"
    assert seen["opened"] == seen["explanation"], "the report says what the dashboard said"
    assert sum(part["bytes"] for part in seen["opened"]["parts"]) == seen["opened"]["capacity_bytes"] == 768 * MIB
    assert "leak.py:11" in seen["compared"]
    assert seen["behind"] is True
    assert seen["seconds_to_leave"] < 4.0
    for name in ("watched", "explained", "opened", "compared"):
        for theme in ("dark", "light"):
            assert (tmp_path / f"{name}-{theme}.png").stat().st_size > 20_000


def test_what_a_monitor_writes_into_a_pipe_is_followed_to_its_end(play: Play, home: Path) -> None:
    sender = start_python(home, "-m", "gpudash", "monitor", "--json-lines", "--no-record", stderr=subprocess.DEVNULL)
    try:
        seen = play("piped", {"SENDER_PID": str(sender.pid)}, stdin=sender.stdout)
        assert sender.stdout is not None
        sender.stdout.close()
        sender.wait(30)
    finally:
        sender.kill()
        sender.wait()
    assert seen["live"] is True and seen["title"] == "standard input – gpudash"
    assert seen["notice"] == "The stream has ended; what came is shown."
    assert seen["seconds_to_leave"] < 4.0


def test_a_recording_reopens_in_a_tab_plays_runs_again_and_follows_what_is_still_written(
    play: Play, tmp_path: Path
) -> None:
    seen = play("reopened")
    assert seen["title"] == "training.gpudash – gpudash"
    assert "finished" in seen["words"] and "150 steps" in seen["words"]
    assert len(seen["marked_s"]) == 1 and seen["reopened_s"] == seen["marked_s"], "to the microsecond"
    assert seen["middle_s"] > 0
    assert seen["again"] == [150, "cpu"]
    assert seen["live"] is True and seen["left"] == 0
    assert seen["followed_steps"] == "150"
    assert seen["seconds_to_leave"] < 4.0
    for name in ("reopened", "replayed"):
        for theme in ("dark", "light"):
            assert (tmp_path / f"{name}-{theme}.png").stat().st_size > 20_000
