"""`gpudash export`: what it refuses, in one sentence, with nothing lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Sample


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(tmp_path / "run.gpudash", meta={})
    recorder.add(Sample(1.0, "host", None, {"used_bytes": 3}))
    recorder.close()
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "kept").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run.gpudash", "--to", "html", "-o", "mine.txt"), "exists already; choose another name or add --force."),
        (("run.gpudash", "--to", "trace", "-o", "mine.txt"), "exists already; choose another name or add --force."),
        (("run.gpudash", "--to", "html", "-o", "kept", "--force"), "kept is a folder; name a file."),
        (("run.gpudash", "--to", "csv", "-o", "run.gpudash", "--force"), "is the recording itself; choose another"),
        (("run.gpudash", "--to", "html", "-o", "run.gpudash", "--force"), "is the recording itself; choose another"),
        (("gone.gpudash", "--to", "html", "-o", "out.html"), "gone.gpudash does not exist."),
        (("mine.txt", "--to", "parquet", "-o", "out"), "mine.txt is not a recording: it is no SQLite file."),
        (("run.gpudash", "--to", "html", "-o", "no/out.html"), "(the folder no does not exist); choose another place."),
        (("run.gpudash", "--to", "png", "-o", "out", "--size", "9x9"), "'9x9' is outside 320 to 8000 pixels a side."),
        (("run.gpudash", "--to", "svg", "-o", "out", "--size", "big"), "'big' is no size of a picture."),
        (("run.gpudash", "--to", "csv", "-o", "out", "--size", "900x900"), "--size is for pictures, and csv is none."),
        (("run.gpudash", "--to", "html", "-o", "out", "--theme", "dark"), "--theme is for pictures, and html is none."),
        (("run.gpudash", "--to", "png", "-o", "out.svg"), "out.svg ends as svg does, and --to says png."),
        (("run.gpudash#1", "--to", "csv", "-o", "out"), "run.gpudash#1 names one run, and an export has the whole"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_sentence_and_nothing_is_lost(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(["export", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_recording_of_a_newer_major_version_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(folder / "run.gpudash") as database:
        database.execute("update meta set value = '99' where key = 'format_version'")
    assert run(["export", "run.gpudash", "--to", "csv", "-o", "out.csv"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "format 99" in told and "install a newer gpudash" in told
    assert not (folder / "out.csv").exists()


@pytest.mark.parametrize("command", ["run pipeline --device cpu", "monitor --seconds 1"])
def test_a_recording_that_is_there_is_not_written_over(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = (folder / "run.gpudash").read_bytes()
    assert run([*command.split(), "--record", "run.gpudash"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "exists already" in told
    assert (folder / "run.gpudash").read_bytes() == before


@pytest.mark.parametrize("to", ["csv", "parquet", "json", "trace", "html"])
def test_an_export_is_written_and_told_and_replaces_what_is_there_when_forced(
    folder: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    source = (folder / "run.gpudash").read_bytes()
    assert run(["export", "run.gpudash", "--to", to, "-o", "mine.txt", "--force"]) == 0
    assert capsys.readouterr().err == "Wrote mine.txt\n"
    assert (folder / "mine.txt").read_bytes() != b"mine"
    assert (folder / "run.gpudash").read_bytes() == source


def test_what_could_not_be_read_is_told_beside_what_was_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(folder / "long.gpudash", meta={})
    for number in range(4000):
        recorder.add(Sample(number / 10, "host", None, {"used_bytes": number}))
    recorder.close()
    whole = (folder / "long.gpudash").read_bytes()
    (folder / "torn.gpudash").write_bytes(whole[: len(whole) * 2 // 3])
    assert run(["export", "torn.gpudash", "--to", "html", "-o", "torn.html"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "Wrote torn.html"
    assert "torn.gpudash is damaged" in told[0]
    assert "torn.gpudash is damaged" in (folder / "torn.html").read_text(encoding="utf-8")
