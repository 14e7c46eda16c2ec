"""The system's dialogs for files and folders."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QDir, QFileInfo, QStandardPaths
from PySide6.QtGui import QAbstractFileIconProvider, QIcon
from PySide6.QtWidgets import QApplication, QFileDialog, QMessageBox, QStyle, QWidget

from gpudash.ui.widgets.plain_text import message_box
from gpudash.ui.widgets.remembered import recall, remember

Mode = QFileDialog.FileMode

_SAVED_IN = "saved_in"
"""Name under which the folders are remembered that files were written to: by the filter of their names, and the newest
of all as ""."""


class _IconsByName(QAbstractFileIconProvider):
    """Icons and kinds of files by their names. Qt's own provider opens each file to find its kind; that costs time in
    a folder of large files, and drops the locks of a recording that this process has open
    (`gpudash.telemetry.recording.lasting_locks`).
    """

    def __init__(self) -> None:
        super().__init__()
        style = QApplication.style()
        # Made here: the dialog asks from another thread.
        self._folder = style.standardIcon(QStyle.StandardPixmap.SP_DirIcon)
        self._file = style.standardIcon(QStyle.StandardPixmap.SP_FileIcon)

    def icon(self, of: QAbstractFileIconProvider.IconType | QFileInfo) -> QIcon:
        if isinstance(of, QFileInfo):
            is_folder = of.isDir()
        else:
            is_folder = of != QAbstractFileIconProvider.IconType.File
        if is_folder:
            return self._folder
        return self._file

    def type(self, info: QFileInfo) -> str:
        if info.isDir():
            return "Folder"
        return f"{info.suffix()} File".lstrip()


class FileDialog(QFileDialog):
    """A dialog that opens none of the files it lists. Use its static methods.

    Args:
        parent: the window that it belongs to.
        title: its title.
        start: the folder, or the proposed file; "" is the folder of the last dialog.
        pattern: filters of names, as Qt has them.
        mode: what can be chosen.
    """

    last_folder = Path()
    """The folder in which something was chosen last."""

    def __init__(self, parent: QWidget | None, title: str, start: str, pattern: str, mode: Mode) -> None:
        # The root: the folder given here would be read before the icons are set.
        super().__init__(parent, title, QDir.rootPath(), pattern)
        self._icons = _IconsByName()
        self.setIconProvider(self._icons)
        self.setFileMode(mode)
        if mode == Mode.AnyFile:
            self.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        elif mode == Mode.Directory:
            self.setOption(QFileDialog.Option.ShowDirsOnly)
        place = Path(FileDialog.last_folder, start).absolute()
        if place.is_dir():
            self.setDirectory(str(place))
        else:
            self.setDirectory(str(place.parent))
            self.selectFile(place.name)

    def chosen(self) -> list[str]:
        """Ask, and return the chosen paths; empty if cancelled."""
        self.finished.connect(self.deleteLater)
        if not self.exec():
            return []
        FileDialog.last_folder = Path(self.directory().absolutePath())
        return self.selectedFiles()

    @staticmethod
    def ask_to_save(parent: QWidget | None, title: str, name: str, pattern: str) -> str:
        """The path to write to, or "". The dialog asks before a file is replaced.

        It starts where a file of this kind was written last, whenever that was; else where any was, or among the
        user's documents. What is exported need not be there.

        Args:
            parent, title: as of the class.
            name: the proposed name of the file.
            pattern: the kind of the file: a filter of names, as Qt has them.
        """
        start = str(_folder_to_save(pattern) / Path(name).name)
        path = next(iter(FileDialog(parent, title, start, pattern, Mode.AnyFile).chosen()), "")
        if path:
            folder = str(Path(path).parent)
            remember(_SAVED_IN, {**_saved_in(), pattern: folder, "": folder})
        return path

    @staticmethod
    def ask_to_open(parent: QWidget | None, title: str, start: str, pattern: str = "") -> str:
        """An existing file, or ""."""
        return next(iter(FileDialog(parent, title, start, pattern, Mode.ExistingFile).chosen()), "")

    @staticmethod
    def ask_to_open_several(parent: QWidget | None, title: str, start: str, pattern: str) -> list[str]:
        """Existing files."""
        return FileDialog(parent, title, start, pattern, Mode.ExistingFiles).chosen()

    @staticmethod
    def ask_for_folder(parent: QWidget | None, title: str, start: str) -> str:
        """An existing folder, or ""."""
        return next(iter(FileDialog(parent, title, start, "", Mode.Directory).chosen()), "")


def _saved_in() -> dict[str, str]:
    kept = recall(_SAVED_IN)
    if not isinstance(kept, dict):
        return {}
    return {kind: folder for kind, folder in kept.items() if isinstance(folder, str)}


def _folder_to_save(pattern: str) -> Path:
    """Where a dialog for files of this kind starts."""
    kept = _saved_in()
    documents = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
    folders = (Path(folder) for folder in (kept.get(pattern), kept.get(""), documents) if folder)
    return next((folder for folder in folders if folder.is_dir()), Path.home())


def completed(parent: QWidget, title: str, chosen: str, suffix: str) -> Path | None:
    """The path that a dialog returned, with ``suffix`` added if it has none; ``None`` if nothing should be written.

    The dialog has already asked before replacing a file with the typed name. This asks for the completed name.
    """
    if not chosen:
        return None
    path = Path(chosen)
    if path.suffix:
        return path
    path = path.with_name(path.name + suffix)
    if path.exists():
        question = f"{path} already exists. Replace it?"
        yes, no = QMessageBox.StandardButton.Yes, QMessageBox.StandardButton.No
        box = message_box(parent, QMessageBox.Icon.Question, title, question)
        box.setStandardButtons(yes | no)
        box.setDefaultButton(no)
        if box.exec() != yes:
            return None
    return path
