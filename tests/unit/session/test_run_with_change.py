"""How the program of a report is run with a change, as it is said beside the source."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.explaining.patches import PATCH_NAME, unified_diff
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.session.recordings.report_folder import SETTINGS_NAME
from gpudash.session.recordings.run_with_change import UNKNOWN, RunWithChange, run_with_change
from gpudash.telemetry.explanation import Remedy, Rewrite
from gpudash.units import GIB

SOURCE = "kept = []\nkept.append(loss)\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with a blank in its name, and the script in it."""
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "train.py").write_text(SOURCE)
    return folder


@pytest.fixture
def snapshot(tmp_path: Path, program: Path) -> Path:
    """That of a report of this program."""
    report = tmp_path / "report"
    report.mkdir()
    settle(report, command=["python", "train.py", "--big"], folder=str(program), simulate=[GIB], as_cuda=True)
    return report / SNAPSHOT_NAME


def settle(report: Path, **settings: Any) -> None:
    (report / SETTINGS_NAME).write_text(json.dumps(settings))


def edit(file: Path, folder: Path) -> Remedy:
    """The change of the script that keeps a number, with its diff, which has no place outside of the folder."""
    rewrite = Rewrite(str(file), 2, 12, 2, 16, "loss", "loss.item()")
    patch = unified_diff([rewrite], str(folder), lambda name: Path(name).read_bytes())
    return Remedy("keep loss.item()", rewrites=(rewrite,), patch=patch)


def said(snapshot: Path, change: Remedy, *, in_report: bool = True) -> RunWithChange:
    if in_report:
        snapshot.with_name(PATCH_NAME).write_text(change.patch)
    return run_with_change(snapshot, change)


def test_the_command_writes_the_change_and_runs_the_program_as_it_was_run(snapshot: Path, program: Path) -> None:
    found = said(snapshot, edit(program / "train.py", program))
    assert found.sentence == f"This writes the change into {program / 'train.py'} and runs the program:"
    patching, running = found.command.split(" && ")
    watch = ["gpudash", "watch", "--folder", str(program), "--simulate", "1GiB", "--as-cuda", "--"]
    assert shlex.split(running) == [*watch, "python", "train.py", "--big"]
    subprocess.run(["sh", "-c", patching], check=True, capture_output=True)
    assert (program / "train.py").read_text() == SOURCE.replace("(loss)", "(loss.item())")


def test_a_script_that_is_gone_is_named(snapshot: Path, program: Path) -> None:
    change = edit(program / "train.py", program)
    (program / "train.py").unlink()
    found = said(snapshot, change)
    assert found.sentence.startswith(f"{program / 'train.py'} is not on this computer. Where the program is")
    assert "patch -d" in found.command and "gpudash watch" in found.command


def test_into_a_script_that_has_changed_since_nothing_is_written(snapshot: Path, program: Path) -> None:
    change = edit(program / "train.py", program)
    (program / "train.py").write_text("kept = deque()\nkept.append(loss)\n")
    found = said(snapshot, change)
    assert found.sentence == f"{program / 'train.py'} has changed since the run. Make the change by hand, then run:"
    assert found.command.startswith("gpudash watch --folder")


def test_in_another_folder_than_the_report_says_the_file_missing_there_is_named(snapshot: Path, program: Path) -> None:
    change = edit(program / "train.py", program)
    settle(snapshot.parent, command=["python", "train.py"], folder="/nowhere/else")
    assert said(snapshot, change).sentence.startswith("/nowhere/else/train.py is not on this computer.")


def test_a_file_outside_the_folder_has_no_diff_and_is_named_as_the_reason(
    snapshot: Path, program: Path, tmp_path: Path
) -> None:
    other = tmp_path / "library.py"
    other.write_text(SOURCE)
    change = edit(other, program)
    assert not change.patch
    found = said(snapshot, change)
    assert found.sentence.startswith(f"{other} is outside {program}, where the program ran, so there is no diff of it.")
    assert found.command.startswith("gpudash watch --folder")


def test_without_the_diff_in_the_report_the_change_is_made_by_hand(snapshot: Path, program: Path) -> None:
    found = said(snapshot, edit(program / "train.py", program), in_report=False)
    assert found.sentence == f"Make the change in {program / 'train.py'}, then run:"
    assert found.command.startswith("gpudash watch")


def test_a_setting_is_in_the_command(snapshot: Path, program: Path) -> None:
    setting = Remedy("expandable segments", flags="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    found = said(snapshot, setting)
    assert found.sentence == f"This runs the program in {program} with the setting:"
    assert found.command.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True gpudash watch")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"command": "rm -rf x", "folder": "/"},
        {"command": ["python", "train.py"], "environment": {"A; reboot": "1"}},
        {"command": ["python", "train.py"], "simulate": 5},
    ],
)
def test_settings_that_say_nothing_usable_give_no_command(snapshot: Path, program: Path, settings: Any) -> None:
    settle(snapshot.parent, **settings)
    assert said(snapshot, edit(program / "train.py", program)) == RunWithChange(UNKNOWN)


def test_a_command_that_cannot_be_seen_whole_is_not_offered(snapshot: Path, program: Path) -> None:
    settle(snapshot.parent, command=["python", "train.py", "a\nreboot"], folder=str(program))
    assert said(snapshot, edit(program / "train.py", program)).command == ""


def test_a_snapshot_in_no_report_says_that_the_command_is_unknown(tmp_path: Path, program: Path) -> None:
    assert said(tmp_path / "own.pickle", edit(program / "train.py", program)) == RunWithChange(UNKNOWN)
