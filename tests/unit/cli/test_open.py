"""``gpudash open``: what it refuses, and what it hands to the window."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.ui.features import file


class FakeApp(ModuleType):
    """In place of the window: what it was given is written down."""

    def __init__(self) -> None:
        super().__init__("gpudash.ui.app")
        self.given: list[tuple[str, Any]] = []

    def run(self, opened: Path | None = None, begin: Any = None) -> tuple[int, bool]:
        if opened is not None:
            self.given.append(("file", opened))
        else:
            begin(self)
        return 0, True


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    app = FakeApp()
    monkeypatch.setitem(sys.modules, "gpudash.ui.app", app)
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    return app


def snapshot(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
    return folder / "snapshot.pickle"


def test_a_snapshot_and_the_folder_of_a_report_open_in_the_window(app: FakeApp, tmp_path: Path) -> None:
    path = snapshot(tmp_path / "report")
    assert run(["open", str(path)]) == 0
    assert run(["open", str(path.parent)]) == 0
    assert app.given == [("file", path)] * 2


def test_a_recording_opens_in_the_window_whatever_it_is_called(app: FakeApp, tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    Recorder(path, meta={}).close("closed")
    assert run(["open", str(path)]) == 0
    assert app.given == [("file", path)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.pickle", None, "There is no file"),
        ("empty.pickle", b"", "is empty"),
        ("notes.txt", b"notes", "neither a memory snapshot"),
        ("torn.gpudash", b"SQLite format 3\x00", "is not a recording"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence_and_exit_2(
    app: FakeApp, tmp_path: Path, capsys: Any, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run(["open", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert app.given == []


def test_without_a_display_it_says_where_else_to_look(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run(["open", str(snapshot(tmp_path))]) == 2
    assert "There is no display" in capsys.readouterr().err and app.given == []


@pytest.mark.parametrize("words", [["open"], ["open", "a", "b"]])
def test_anything_but_one_file_is_refused(app: FakeApp, words: list[str], capsys: Any) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.count("\n") == 1 and app.given == []


def test_what_is_piped_in_is_shown_as_it_comes(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", stream)
    monkeypatch.setattr(file, "open_stream", lambda workspace, lines: workspace.given.append(("stream", lines)))
    assert run(["open", "-"]) == 0
    assert app.given == [("stream", stream)]


def test_nothing_piped_in_and_no_display_are_refused(
    app: FakeApp, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert run(["open", "-"]) == 2
    assert "Nothing is piped into gpudash open -." in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run(["open", "-"]) == 2
    assert "There is no display" in capsys.readouterr().err and app.given == []
