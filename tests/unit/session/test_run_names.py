"""What a run is called that nobody named."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.recordings.comparing.comparison_loader import load_run
from gpudash.session.recordings.comparing.run_labels import short_labels
from gpudash.session.recordings.replay import Replay
from gpudash.session.recordings.run_names import differences_of, kind_of_run, peak_text, process_text, run_name
from gpudash.specs import TrainingSpec
from gpudash.telemetry.recording.facts import RunFacts, RunText, run_title, set_run_text, set_title
from gpudash.telemetry.runs import RunView
from tests.unit.telemetry.recordings import begin, record


@pytest.mark.parametrize(
    ("workload", "device", "spec", "name"),
    [
        ("training", "sim:0", {"width": 1024}, "training width 1024 on sim:0"),
        ("training", "cpu", {"width": 128}, "training on cpu"),
        ("training", "cpu", dict(TrainingSpec.presets["Inference"]), "training Inference on cpu"),
        ("training", "cpu", {"checkpointing": True, "seed": 3}, "training checkpointing, seed 3 on cpu"),
        (
            "training",
            "cpu",
            {"width": 1, "depth": 2, "batch": 1, "seed": 1},
            "training width 1, depth 2, batch 1 and 1 more on cpu",
        ),
        ("training", "cpu", {"devices": "cpu,cpu"}, "training on 2 × cpu"),
        ("model", "sim:0", {"path": "/models/llama-1b", "steps": 9}, "model llama-1b, steps 9 on sim:0"),
        ("model", "sim:0", {"path": "/models/llama-1b/config.json"}, "model llama-1b on sim:0"),
        ("pressure", "sim:0", {"cap": 2**30}, "pressure cap 1.00 GiB on sim:0"),
        ("pressure", "sim:0", {"until": "oom"}, "pressure until out of memory on sim:0"),
        ("pressure", "cpu", {"rate": 6.0, "hold": 0.25}, "pressure rate 6, hold 0.25 on cpu"),
        (
            "comparison",
            "cpu",
            {
                "workload": "training",
                "devices": "cpu,cpu",
                "half_width": 0.04,
                "fields": {"width": 256, "model": "mlp"},
            },
            "comparison model mlp, width 256, half width 0.04 on 2 × cpu",
        ),
        (
            "comparison",
            "cpu",
            {"workload": "training", "devices": "cpu,cpu", "limit": 20.0, "fields": {"model": "mlp", "batch": 8}},
            "comparison Small, limit 20 on 2 × cpu",
        ),
        ("watch", "cuda:0", {"command": ["python", "-u", "/a/train.py", "--lr", "0.1"]}, "train.py --lr 0.1 on cuda:0"),
        ("watch", "cpu", {"command": "not a list"}, "program on cpu"),
        ("watch", "sim:0", {"command": ["python", "a.py"], "edit": "--- a.py"}, "a.py, with a change on sim:0"),
        ("somebody's own", "", {"width": 3}, "somebody's own"),
    ],
)
def test_a_run_is_called_by_what_differs_from_the_default_and_where_it_was(
    workload: str, device: str, spec: dict[str, Any], name: str
) -> None:
    assert run_name(RunFacts(1, workload, device, spec)) == name


def test_the_users_name_comes_first() -> None:
    assert run_name(RunFacts(1, "training", "cpu", {"width": 9}, label=RunText(title="Baseline"))) == "Baseline"


def test_the_only_run_of_a_session_may_have_the_sessions_name() -> None:
    assert run_title({"title": "Mine"}, 1, 1) == "Mine"
    assert run_title({"title": "Mine"}, 1, 2) == ""
    assert run_title({"title": "Mine", "run 2 title": "wide"}, 2, 2) == "wide"


def test_a_recording_that_is_opened_or_compared_calls_its_run_as_the_library_does(tmp_path: Path) -> None:
    path = record(tmp_path / "one.gpudash")
    set_title(path, "the one to beat")
    replay = Replay(path)
    assert replay.run_title(1) == "the one to beat"
    replay.close()
    assert load_run(path, named=True).label == "the one to beat"
    set_run_text(path, 1, "title", "wide")
    assert load_run(path, named=True).label == "wide"


def test_what_a_run_is_called_while_it_is_recorded_is_known_to_the_recorder(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "on.gpudash")
    naming = threading.Thread(target=set_run_text, args=(recorder.path, 1, "title", "wide"))
    naming.start()
    while naming.is_alive():
        recorder.tick()
        naming.join(0.01)
    assert run_title(recorder.annotations, 1, 1) == "wide"
    recorder.close()


def test_a_long_value_from_anybody_is_cut() -> None:
    assert all(len(words) < 60 for words in differences_of("training", {"optimizer": "x" * 300}))


def test_a_script_is_told_without_its_arguments() -> None:
    assert kind_of_run(RunFacts(1, "watch", "cpu", {"command": ["python", "train.py", "--lr", "1"]})) == "train.py"


def test_what_was_there_before_a_running_program_was_watched_is_not_its_own() -> None:
    run = RunView(1, "watch", "cpu", {"pid": 7, "command": ["python", "loop.py"]}, False, 20.0)
    assert process_text(run, 30.0, 25.0) == "loop.py"
    assert process_text(run, 30.0, 10.0) == "gpudash, then loop.py"


def test_a_peak_is_the_run_s_own_or_says_whose_it_is() -> None:
    own = RunFacts(1, "training", "cuda:0", peak_bytes=3 * 2**30, own_peak_bytes=2**30)
    assert peak_text(own) == "1.00 GiB allocated"
    assert peak_text(replace(own, own_peak_bytes=None)) == "3.00 GiB (GPU)"
    assert peak_text(replace(own, device="cpu", own_peak_bytes=None)) == "3.00 GiB (process)"
    assert peak_text(RunFacts(1, "training")) == ""


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["training width 8 on cpu", "training width 16 on cpu"], ["width 8", "width 16"]),
        (["training on cpu", "training on sim:0"], ["on cpu", "on sim:0"]),
        (["training on cpu, 12:01", "training on cpu, 12:07"], ["12:01", "12:07"]),
        (["training steps 9 on cpu", "training batch 2, steps 9 on cpu"], ["training", "training batch 2"]),
        (["baseline", "my try"], ["baseline", "my try"]),
        (["run", "run twice"], ["run", "run twice"]),
        (["a b a b", "a b"], ["b a b", "b"]),
        (["training on cpu"], ["training on cpu"]),
        ([], []),
    ],
)
def test_labels_of_compared_runs_are_shortened_to_what_differs(labels: list[str], short: list[str]) -> None:
    assert short_labels(labels) == short
    assert len(set(short)) == len(set(labels))
