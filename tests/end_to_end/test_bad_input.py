"""What is wrong around a command: one sentence, what to do, the right exit code, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Command


def one_sentence(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


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
    assert doctor.code == 0
    assert "predicts what they need, simulates GPUs" in doctor.stdout
    assert "pip install torch" in doctor.stdout
    estimate = gpudash("estimate", "training", "--device", "sim:0", env=env)
    assert estimate.code == 1
    assert "torch is not installed; with it gpudash" in estimate.stderr
    model = Path(__file__).parents[2] / "resources/models/HuggingFaceTB/SmolLM2-1.7B"
    served = gpudash("estimate", "--model", str(model), "--task", "serve", "--simulate", "h100", env=env)
    assert (served.code, served.stderr) == (0, "")
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


def test_a_loss_that_is_no_number_is_shown_as_such(gpudash: Command) -> None:
    flags = ("--model", "mlp", "--optimizer", "sgd", "--learning-rate", "100", "--steps", "60", "--epochs", "1")
    outcome = gpudash("run", "training", "--device", "cpu", *flags, "--on-nan", "continue", "--json")
    assert (outcome.code, outcome.document["status"]) == (0, "finished")
    assert outcome.document["metrics"]["loss"]["last"] in ("nan", "inf", "-inf")


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
    assert "counting cannot be shown as a program" in shown.stderr.splitlines()[-1]


def test_a_broken_third_party_workload_costs_only_itself_and_is_named(
    gpudash: Command, third_party: dict[str, str]
) -> None:
    told = (
        "The workload broken of the package extra is left out: extra_broken does not import (RuntimeError: not today); "
        "correct or uninstall the package."
    )
    outcome = gpudash("run", "pipeline", "--device", "cpu", "--no-record", env=third_party)
    assert outcome.code == 0
    assert told in outcome.stderr and "The workload empty of the package extra is left out" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    outcome = gpudash("run", "broken", env=third_party)
    assert outcome.code == 2 and told in outcome.stderr
    assert "left out" not in gpudash("devices", env=third_party).stderr
