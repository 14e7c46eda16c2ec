"""The dialogs for files and folders, where a recording is being written."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from PySide6.QtCore import QFileInfo, QTimer
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


def test_the_next_dialog_starts_where_something_was_chosen(qtbot: QtBot, tmp_path: Path) -> None:
    def accept() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, FileDialog)
        dialog.accept()

    QTimer.singleShot(0, accept)
    out = str(tmp_path / "sheet.ipynb")
    assert FileDialog.ask_to_save(None, "Export", out, "Notebooks (*.ipynb)") == out
    QTimer.singleShot(0, accept)
    assert FileDialog.ask_to_save(None, "Export", "b.ipynb", "Notebooks (*.ipynb)") == str(tmp_path / "b.ipynb")
