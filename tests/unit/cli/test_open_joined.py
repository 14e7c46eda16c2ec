"""``gpudash open A B``: recordings of one run's nodes open as one; anything else is refused before a window opens."""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.telemetry.recording.reading import open_recording
from tests.unit.session.node_recordings import recorded


class FakeApp(ModuleType):
    """In place of the window: what it was given is looked at while it is there."""

    def __init__(self) -> None:
        super().__init__("gpudash.ui.app")
        self.given: list[Path] = []
        self.ranks: set[str | None] = set()

    def run(self, begin: Any) -> tuple[int, bool]:
        begin(SimpleNamespace(open=lambda path, remember: self.given.append(path)))
        with open_recording(self.given[0]) as recording:
            self.ranks = {sample.device for sample in recording.samples("rank")}
        return 0, True


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApp:
    app = FakeApp()
    monkeypatch.setitem(sys.modules, "gpudash.ui.app", app)
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return app


def test_both_nodes_open_as_one_and_nothing_stays_behind(app: FakeApp, tmp_path: Path) -> None:
    paths = [recorded(tmp_path / f"{name}.gpudash", ranks) for name, ranks in (("one", (0, 1)), ("two", (2, 3)))]
    assert run(["open", *map(str, paths)]) == 0
    assert [path.name for path in app.given] == ["one + two.gpudash"]
    assert app.ranks == {"0", "1", "2", "3"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "one.gpudash", "two.gpudash"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["gpudash.log"]


def test_recordings_of_different_runs_are_refused_by_name(
    app: FakeApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    two = recorded(tmp_path / "two.gpudash", (2, 3), run="job8")
    assert run(["open", str(one), str(two)]) == 2
    assert "one.gpudash and two.gpudash are of different runs" in " ".join(capsys.readouterr().err.split())
    assert not app.given


def test_a_snapshot_is_not_opened_together_with_a_recording(
    app: FakeApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": []}))
    assert run(["open", str(one), str(tmp_path / "s.pickle")]) == 2
    assert "s.pickle is a memory snapshot; only recordings can be opened together" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told(app: FakeApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = recorded(tmp_path / "one.gpudash", (0, 1))
    assert run(["open", str(one), str(tmp_path / "none.gpudash")]) == 2
    assert "There is no file" in capsys.readouterr().err


def test_without_a_display_no_joined_recording_is_left(
    app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    paths = [recorded(tmp_path / f"{rank}.gpudash", (rank,)) for rank in range(2)]
    assert run(["open", *map(str, paths)]) == 2
    assert "There is no display" in capsys.readouterr().err
    assert not list(tmp_path.glob("gpudash-*"))
