"""The dialogs for files and folders, where a recording is being written."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from PySide6.QtCore import QFileInfo, QStandardPaths, QTimer
from PySide6.QtWidgets import QApplication, QFileDialog, QFileIconProvider, QTreeView
from pytestqt.qtbot import QtBot

from gpudash.telemetry.recording.recorder import Recorder
from gpudash.ui.widgets.file_dialog import FileDialog, Mode


def is_locked(file: Path) -> bool:
    """Whether this process holds a POSIX lock on ``file``."""
    held = f"POSIX  ADVISORY  WRITE {os.getpid()} "
    return any(
        held in line and f":{file.stat().st_ino} " in line for line in Path("/proc/locks").read_text().splitlines()
    )


def listed(dialog: QFileDialog) -> set[str]:
    """The kinds of the files that the dialog shows; Qt finds them in another thread."""
    tree = dialog.findChild(QTreeView)
    assert tree is not None
    model, root = tree.model(), tree.rootIndex()
    return {str(model.index(row, 2, root).data()) for row in range(model.rowCount(root))}


def test_a_dialog_opens_no_file_that_it_lists(qtbot: QtBot, tmp_path: Path) -> None:
    file = tmp_path / "a.gpudash-shm"
    with file.open("w") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX)
        dialog = FileDialog(None, "Export", str(tmp_path / "a.png"), "Pictures (*)", Mode.AnyFile)
        qtbot.addWidget(dialog)
        dialog.setOption(QFileDialog.Option.DontUseNativeDialog)
        dialog.show()
        qtbot.waitUntil(lambda: listed(dialog) == {"gpudash-shm File"})
        assert dialog.selectedFiles() == [str(tmp_path / "a.png")]
        assert is_locked(file)
        # Qt's own icons do open it.
        QFileIconProvider().type(QFileInfo(str(file)))
        assert not is_locked(file)


def test_a_cancelled_dialog_chooses_nothing(qtbot: QtBot, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gpudash", meta={})

    def cancel() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, FileDialog)
        dialog.reject()

    QTimer.singleShot(0, cancel)
    assert FileDialog.ask_to_save(None, "Export", str(recorder.path), "Pictures (*.png)") == ""
    recorder.close()
    assert recorder.failed is None


def saved(name: str, pattern: str, place: Path | None = None) -> Path:
    """What the dialog answers: what it proposed, or `place` where that is chosen."""

    def accept() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, FileDialog)
        if place is not None:
            dialog.setDirectory(str(place.parent))
            dialog.selectFile(place.name)
        dialog.accept()

    QTimer.singleShot(0, accept)
    return Path(FileDialog.ask_to_save(None, "Export", name, pattern))


NOTEBOOKS, PICTURES = "Notebooks (*.ipynb)", "Pictures (*.png)"


def test_a_file_is_saved_where_one_of_its_kind_was_in_an_earlier_start_too(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("sheets", "pictures", "recordings")}
    for place in places.values():
        place.mkdir()
    documents = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
    usual = Path(documents) if Path(documents).is_dir() else Path.home()
    assert saved(str(places["recordings"] / "a.ipynb"), NOTEBOOKS) == usual / "a.ipynb", "not beside what is exported"
    saved("a.ipynb", NOTEBOOKS, places["sheets"] / "a.ipynb")
    assert saved("b.png", PICTURES) == places["sheets"] / "b.png", "where the last one was, of whatever kind"
    saved("b.png", PICTURES, places["pictures"] / "b.png")
    monkeypatch.setattr(FileDialog, "last_folder", Path())  # as in another start
    assert saved("c.png", PICTURES) == places["pictures"] / "c.png"
    assert saved("c.ipynb", NOTEBOOKS) == places["sheets"] / "c.ipynb"
    places["pictures"].rmdir()
    assert saved("d.png", PICTURES).parent == places["sheets"], "a folder that is gone is not offered"
