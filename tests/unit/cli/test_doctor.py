"""What ``gpudash doctor`` says of the torch that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpudash.cli import doctor, run


@pytest.fixture
def one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor finds one thing, at once."""
    check = doctor.Check("recordings", "ok", f"{Path.home()}/recordings, 9 GiB free")
    monkeypatch.setattr(doctor, "examine", lambda: iter([check]))


def test_the_report_is_written_for_its_user_alone_and_is_said_to_be_read_before_it_is_sent(
    one_finding: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.txt"
    assert run(["doctor", "--report", str(file)]) == 0
    assert f"Wrote {file}. Read it," in capsys.readouterr().out
    text = file.read_text(encoding="utf-8")
    assert "ok: recordings: <file 1>, 9 GiB free" in text and "gpudash doctor --report: version" in text
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_name_the_report_is_a_new_file_in_this_folder(
    one_finding: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["doctor", "--report", "--json"]) == 0
    (file,) = tmp_path.glob("gpudash-report-*.txt")
    assert f'"report": "{file.name}"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--report", "there.txt"], "there.txt is there already. Name a new file, or remove that one."),
        (["--report", "no/where.txt"], "no/where.txt cannot be written (No such file or directory)."),
        (["there.txt"], "there.txt is given, but no report is asked for. Write: gpudash doctor --report there.txt"),
    ],
)
def test_a_report_that_is_not_written_is_one_sentence(
    one_finding: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.txt").write_text("mine")
    assert run(["doctor", *words]) == 2
    assert told in capsys.readouterr().err
    assert [file.read_text() for file in tmp_path.iterdir() if file.is_file()] == ["mine"]


def test_a_torch_that_predictions_were_not_measured_with_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "predictions" not in {check.name for check in doctor.examine()}
    monkeypatch.setattr(torch, "__version__", "2.16.0+cpu")
    check = next(check for check in doctor.examine() if check.name == "predictions")
    assert check.state == "note"
    assert check.text == "measured with torch 2.11 to 2.15; torch 2.16.0 may allocate differently"


def test_a_platform_that_shows_nothing_is_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    check = next(check for check in doctor.examine() if check.name == "display")
    assert (check.state, check.text) == ("note", "QT_QPA_PLATFORM is offscreen, so no window appears on a screen")
