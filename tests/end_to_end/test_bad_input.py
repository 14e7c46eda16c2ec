"""What is wrong around a command: one sentence, what to do, the right exit code, and nothing lost."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Command, environment

Sentence = Callable[[str], str]


def one_sentence(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


@pytest.fixture
def recording(gpudash: Command, tmp_path: Path) -> Path:
    path = tmp_path / "good.gpudash"
    assert gpudash("monitor", "--seconds", "1.2", "--record", str(path)).code == 0
    return path


def test_a_recording_of_a_newer_major_version_is_refused(gpudash: Command, recording: Path, tmp_path: Path) -> None:
    with sqlite3.connect(recording) as database:
        database.execute("update meta set value = '99' where key = 'format_version'")
    outcome = gpudash("export", str(recording), "--to", "csv", "-o", str(tmp_path / "out.csv"))
    assert outcome.code == 2
    assert "format 99" in one_sentence(outcome.stderr)
    assert "install a newer gpudash" in outcome.stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_truncated_recording_gives_what_it_still_has(gpudash: Command, recording: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.gpudash"
    whole = recording.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    outcome = gpudash("export", str(torn), "--to", "json", "-o", str(tmp_path / "out.json"))
    assert "Traceback" not in outcome.stderr
    assert outcome.code == 0
    assert "is damaged" in outcome.stderr
    assert json.loads((tmp_path / "out.json").read_text())["meta"]
    assert torn.read_bytes() == whole[: len(whole) // 2]


def test_an_empty_file_is_no_recording(gpudash: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.gpudash").touch()
    out = str(tmp_path / "out.csv")
    outcome = gpudash("export", str(tmp_path / "empty.gpudash"), "--to", "csv", "-o", out)
    assert outcome.code == 2
    assert "is not a recording" in one_sentence(outcome.stderr)


@pytest.mark.parametrize(
    "command", [("run", "pipeline", "--device", "cpu"), ("monitor", "--seconds", "1")], ids=" ".join
)
def test_a_recording_that_is_there_is_not_written_over(
    gpudash: Command, recording: Path, command: tuple[str, ...]
) -> None:
    before = recording.read_bytes()
    outcome = gpudash(*command, "--record", str(recording))
    assert outcome.code == 2
    assert "exists already" in one_sentence(outcome.stderr)
    assert recording.read_bytes() == before


def test_broken_settings_are_named_and_left_as_they_are(gpudash: Command, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "settings.toml").write_text("rate_hz = = 3\n")
    outcome = gpudash("run", "pipeline", "--device", "cpu", "--json", "--no-record")
    assert outcome.code == 0
    assert "settings.toml cannot be read" in one_sentence(outcome.stderr)
    assert outcome.document["status"] == "finished"
    assert (home / "settings.toml").read_text() == "rate_hz = = 3\n"


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Variables under which a command does not find these modules."""

    def variables(*modules: str) -> dict[str, str]:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n")
        return {"PYTHONPATH": str(folder)}

    return variables


def test_without_torch_commands_start_and_a_run_is_refused(
    gpudash: Command, without: Callable[..., dict[str, str]]
) -> None:
    env = without("torch")
    devices = gpudash("devices", "--json", env=env)
    assert devices.code == 0
    assert "torch is not installed" in devices.document["torch"]["words"]
    assert gpudash("monitor", "--seconds", "1", "--json", env=env).code == 0
    doctor = gpudash("doctor", env=env)
    assert doctor.code == 1
    assert "pip install torch" in doctor.stdout
    run = gpudash("run", "pipeline", "--json", env=env)
    assert run.code == 1
    assert run.document["status"] == "failed"
    assert run.document["error"]["message"] == "torch is not installed."
    assert run.document["error"]["remedy"] == "Run: pip install torch"
    plain = gpudash("run", "pipeline", env=env)
    assert "torch is not installed. Run: pip install torch" in plain.stdout
    assert "Traceback" not in plain.stderr


def test_without_pyside_the_terminal_works_and_says_what_a_picture_needs(
    gpudash: Command, without: Callable[..., dict[str, str]]
) -> None:
    env = without("PySide6", "shiboken6")
    window = gpudash(env={**env, "DISPLAY": ":0"})
    assert window.code == 2
    assert "pip install PySide6-Essentials" in one_sentence(window.stderr)
    assert gpudash("run", "pipeline", "--device", "cpu", env=env).code == 0


def test_missing_qt_libraries_are_named_with_the_line_that_installs_them(home: Path) -> None:
    script = (
        "import ctypes, sys\n"
        "load = ctypes.CDLL\n"
        "def lacking(name, *rest, **more):\n"
        "    if name and 'xcb-cursor' in str(name):\n"
        "        raise OSError(name)\n"
        "    return load(name, *rest, **more)\n"
        "import gpudash.cli.qt as qt\n"
        "qt.require_qt.__defaults__ = (lacking,)\n"
        "from gpudash.cli import run; sys.exit(run([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(home, {"DISPLAY": ":99", "QT_QPA_PLATFORM": "xcb"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    sentence = one_sentence(done.stderr)
    assert "Run: sudo apt install" in sentence
    assert "libxcb-cursor0" in sentence


@pytest.mark.parametrize(("choice", "status", "code"), [("stop", "failed", 1), ("continue", "finished", 0)])
def test_a_loss_that_is_no_number_is_shown_as_such(gpudash: Command, choice: str, status: str, code: int) -> None:
    flags = ("--model", "mlp", "--optimizer", "sgd", "--learning-rate", "100", "--steps", "60", "--epochs", "1")
    outcome = gpudash("run", "training", "--device", "cpu", *flags, "--on-nan", choice, "--json")
    document = outcome.document
    assert document["status"] == status, document["error"]
    assert outcome.code == code
    if choice == "stop":
        assert "--on-nan continue" in f"{document['error']['message']} {document['error']['remedy']}"
    else:
        assert document["metrics"]["loss"]["last"] in ("nan", "inf", "-inf")


@pytest.fixture
def third_party(tmp_path: Path) -> dict[str, str]:
    """A package with a good workload, one that does not import and one that holds no spec."""
    folder = tmp_path / "third"
    info = folder / "extra-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[gpudash.workloads]\ncounting = extra_counting\nbroken = extra_broken\nempty = extra_empty\n"
    )
    (folder / "extra_counting.py").write_text(
        "from gpudash.specs import Spec, field\n"
        "class CountingSpec(Spec):\n"
        "    name = 'counting'\n"
        "    title = 'Counting'\n"
        "    summary = 'Counts to a number.'\n"
        "    run = 'extra_counting_run:run'\n"
        "    upto: int = field(3, 'Where to stop', ge=1, le=100)\n"
    )
    (folder / "extra_counting_run.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(folder / 'imported')!r}).touch()\n"
        "def run(spec, context):\n"
        "    for step in range(1, spec.upto + 1):\n"
        "        context.check_cancelled()\n"
        "        context.progress(step, spec.upto)\n"
        "    return {'counted': spec.upto}\n"
    )
    (folder / "extra_broken.py").write_text("raise RuntimeError('not today')\n")
    (folder / "extra_empty.py").write_text("")
    return {"PYTHONPATH": str(folder)}


def test_a_third_party_workload_is_offered_and_runs(
    gpudash: Command, third_party: dict[str, str], tmp_path: Path
) -> None:
    assert "Counts to a number." in gpudash("run", "--help", env=third_party).stdout
    assert "--upto" in gpudash("run", "counting", "--help", env=third_party).stdout
    assert not (tmp_path / "third" / "imported").exists()
    outcome = gpudash("run", "counting", "--upto", "5", "--device", "cpu", "--json", env=third_party)
    assert outcome.code == 0, outcome.stderr
    assert outcome.document["result"]["counted"] == 5
    assert outcome.document["steps"] == 5
    shown = gpudash("run", "counting", "--show-code", env=third_party)
    assert shown.code == 2
    assert "counting cannot be shown as a program" in one_sentence(shown.stderr)


def test_a_broken_third_party_workload_costs_only_itself_and_is_named(
    gpudash: Command, third_party: dict[str, str]
) -> None:
    assert gpudash("run", "pipeline", "--device", "cpu", "--no-record", env=third_party).code == 0
    outcome = gpudash("run", "broken", env=third_party)
    assert outcome.code == 2
    sentence = one_sentence(outcome.stderr)
    assert "Workload broken is left out: extra_broken does not import (RuntimeError: not today)" in sentence
    assert "Workload empty is left out" in sentence


def test_a_hidden_gpu_is_refused(gpudash: Command) -> None:
    outcome = gpudash("run", "pipeline", "--device", "cuda:1", env={"CUDA_VISIBLE_DEVICES": "0"})
    if outcome.code == 0:
        pytest.skip("there are two GPUs")
    assert outcome.code == 2
    assert "'cuda:1'" in one_sentence(outcome.stderr)
