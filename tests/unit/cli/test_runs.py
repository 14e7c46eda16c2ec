"""``gpudash runs``: the list of recordings, what one run came to, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.system.files import resource
from gpudash.units import format_bytes

Capture = pytest.CaptureFixture[str]

OUT_OF_MEMORY = resource("samples", "out-of-memory.gpudash")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "recordings"
    made.mkdir()
    shutil.copy(OUT_OF_MEMORY, made / "old.gpudash")
    shutil.copy(resource("samples", "two-runs-bf16.gpudash"), made / "new\x1b[2J.gpudash")
    (made / "damaged.gpudash").write_text("nothing")
    (made / "notes.txt").write_text("")
    for age, name in enumerate(("new\x1b[2J.gpudash", "old.gpudash", "damaged.gpudash")):
        os.utime(made / name, (1_700_000_000 - age, 1_700_000_000 - age))
    monkeypatch.setenv("COLUMNS", "160")
    return made


def test_recordings_are_listed_the_newest_first_with_how_their_runs_ended(folder: Path, capsys: Capture) -> None:
    assert run(["runs", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(r"new\x1b[2J.gpudash#1") and "finished" in lines[1]
    assert lines[2].startswith("old.gpudash#1") and "out of memory" in lines[2]
    assert lines[3].split() == ["damaged.gpudash", "damaged"]
    assert lines[4].endswith("damaged.gpudash is not a recording: it is no SQLite file.")


def test_a_name_from_the_list_names_the_run_in_any_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (home / "recordings").mkdir(parents=True)
    shutil.copy(OUT_OF_MEMORY, home / "recordings" / "mine.gpudash")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["runs"]) == 0
    name = capsys.readouterr().out.splitlines()[1].split()[0]
    assert name == "mine.gpudash#1"
    for given in (name, "mine.gpudash"):
        assert run(["runs", given]) == 0
        assert "watch on sim:0, out of memory" in capsys.readouterr().out
    assert run(["compare", name, "mine.gpudash"]) == 0
    assert run(["export", "mine.gpudash", "--to", "json", "--out", "mine.json"]) == 0
    shutil.copy(resource("samples", "two-runs-bf16.gpudash"), tmp_path / "mine.gpudash")
    capsys.readouterr()
    assert run(["runs", "mine.gpudash"]) == 0
    assert "out of memory" not in capsys.readouterr().out, "the file in the working folder comes first"


def test_into_a_pipe_a_long_name_is_whole_and_an_ending_never_wraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    name = f"{'2026-11-30-114453-watched-' * 4}.gpudash"
    shutil.copy(OUT_OF_MEMORY, tmp_path / name)
    monkeypatch.delenv("COLUMNS", raising=False)  # a width that the user sets is kept to, also into a pipe
    assert run(["runs", "--folder", str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.startswith(f"{name}#1 ") and "  out of memory  " in row
    monkeypatch.setenv("COLUMNS", "70")
    assert run(["runs", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "out of memory" in shown and name not in shown


def test_a_peak_says_what_it_is_a_peak_of(folder: Path, capsys: Capture) -> None:
    assert run(["runs", "--folder", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recordings"][1]["runs"][0]
    assert run(["runs", "--folder", str(folder)]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.rstrip().endswith(f"{format_bytes(found['peak_allocated_bytes'])} allocated")
    assert found["peak_used_bytes"] > found["peak_allocated_bytes"], "the context, and what PyTorch keeps"


def test_older_recordings_than_asked_for_are_counted(folder: Path, capsys: Capture) -> None:
    assert run(["runs", "--folder", str(folder), "--most", "1"]) == 0
    assert "2 older recordings are left out; --most 3 lists them." in capsys.readouterr().out
    assert run(["runs", "--folder", str(folder), "--most", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["more"] == 2 and [one["title"] for one in found["recordings"]] == [""]


def test_a_recording_says_what_its_run_came_to_and_why_memory_ran_out(capsys: Capture) -> None:
    assert run(["runs", str(OUT_OF_MEMORY)]) == 0
    shown = capsys.readouterr().out
    assert "watch on sim:0, out of memory" in shown
    assert "keep 6 MiB alive per step" in shown and "This would have fit" in shown
    assert run(["runs", f"{OUT_OF_MEMORY}#1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "out_of_memory" and found["error"]["explanation"]["remedies"][0]["patch"]


def test_an_empty_folder_says_what_would_be_recorded(capsys: Capture) -> None:
    assert run(["runs"]) == 0
    assert "There is no recording in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.gpudash"], "gone.gpudash does not exist"),
        (["--folder", "gone"], "There is no folder gone."),
        ([str(OUT_OF_MEMORY), "--folder", "x"], "--folder is for the list of recordings"),
        ([f"{OUT_OF_MEMORY}#7"], "there is no run 7"),
        (["--most", "0"], "--most"),
    ],
    ids=["file", "folder", "both", "number", "most"],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments: list[str], said: str, capsys: Capture) -> None:
    assert run(["runs", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""
