"""File > Export: what the dashboard in front shows, written for other programs without holding up the window."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QObject, Qt, QTimer, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QProgressDialog

from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.plots.export import completed
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace
from gpudash.units import format_count

if TYPE_CHECKING:
    from gpudash.telemetry.export.trackers import TrackerFormat
    from gpudash.telemetry.export.writing import DataFormat, OnProgress
    from gpudash.ui.dashboard.plots_page import PlotsPage

logger = logging.getLogger(__name__)

MENU = "File/Export"

Kind = Literal["csv", "parquet", "json", "trace", "html", "tensorboard", "wandb", "mlflow"]

POLL_MS = 100
"""Milliseconds between looks at what is being written, while something is."""

PATIENCE_S = 0.5
"""Seconds after which a progress dialog appears."""

NEVER_MS = 2**31 - 1
"""For the dialog's own patience, which does not count while the end is not known."""

NO_RECORDING = "The document in front is no recording; bring the dashboard or a recording to the front."

JOIN_S = 2.0
"""Longest that closing the window waits for an export that has been told to stop."""


@dataclass(frozen=True, slots=True)
class Wording:
    """Of a kind of file: its entry in the menu, what it is good for, and the file dialog's pattern and suffix."""

    entry: str
    tip: str
    pattern: str
    suffix: str


WORDING: dict[Kind, Wording] = {
    "csv": Wording("Recording as CSV…", "Write every reading as a table", "Tables (*.csv)", ".csv"),
    "parquet": Wording(
        "Recording as Parquet…", "Write readings and events for pandas or Polars", "Parquet (*.parquet)", ".parquet"
    ),
    "json": Wording("Recording as JSON…", "Write runs, events and readings as one document", "JSON (*.json)", ".json"),
    "trace": Wording(
        "Trace for Perfetto…",
        "Write stages, steps and copies for ui.perfetto.dev or chrome://tracing",
        "Traces (*.json)",
        ".trace.json",
    ),
    "html": Wording(
        "HTML Report…", "Write one page with figures, plots and warnings that opens anywhere", "Pages (*.html)", ".html"
    ),
    "tensorboard": Wording(
        "Folder for TensorBoard…", "Write losses and memory as event files into a new folder", "New folder (*)", ""
    ),
    "wandb": Wording(
        "Folder for Weights and Biases…",
        "Write losses and memory as offline runs into a new folder; nothing is sent",
        "New folder (*)",
        "",
    ),
    "mlflow": Wording(
        "Folder for MLflow…", "Write losses and memory as runs of MLflow into a new folder", "New folder (*)", ""
    ),
}


PNG = Wording("Graph as PNG…", "Write the plots as a picture", "Pictures (*.png)", ".png")
SVG = Wording("Graph as SVG…", "Write the plots as lines and text that stay sharp", "Vector pictures (*.svg)", ".svg")
RANGE = Wording("Range as CSV…", "Write the visible curves of the selection as a table", "Tables (*.csv)", ".csv")


def commands(workspace: Workspace) -> list[Command]:
    """File > Export: first what is seen of the dashboard in front, then its whole recording."""
    exporting = Exporting(workspace)
    workspace.at_close(exporting.close)

    def command(kind: str, wording: Wording, run: Callable[[], object], separated: bool = False) -> Command:
        return Command(
            MENU,
            wording.entry,
            wording.tip,
            run,
            id=f"file.export.{kind}",
            after="file.close_document",
            separated=separated,
        )

    return [
        command("png", PNG, partial(exporting.graph, PNG)),
        command("svg", SVG, partial(exporting.graph, SVG)),
        command("range", RANGE, exporting.range),
        *(
            command(kind, wording, partial(exporting.recording, kind), separated=kind == "csv")
            for kind, wording in WORDING.items()
        ),
    ]


class ExportCancelledError(Exception):
    """The user has stopped an export."""


class ExportJob(threading.Thread):
    """Writes a file in the background.

    Args:
        out: what is written.
        write: writes it, and tells its argument how many rows it has; returns what could not be read.

    Attributes:
        began_s: when it was asked for, by the monotonic clock.
        written: rows so far.
        message: what came of it, in a sentence; "" until then, and when it was cancelled.
        problem: whether `message` says why there is no file.
    """

    def __init__(self, out: Path, write: Callable[[OnProgress], list[str]]) -> None:
        super().__init__(name="gpudash-export", daemon=True)
        self.out = out
        self.began_s = time.monotonic()
        self.written = 0
        self.message = ""
        self.problem = False
        self._write = write
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether it has been told to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop after the rows that are being written; nothing is left behind."""
        self._cancelled.set()

    def run(self) -> None:
        try:
            notices = self._write(self._on_progress)
        except ExportCancelledError:
            return
        except RecordingError as error:
            self.message, self.problem = f"{error}.", True
        except Exception as error:  # whatever a file's content leads to is told
            logger.exception("an export was not written")
            self.message = f"{self.out.name} was not written ({type(error).__name__}: {error})."
            self.problem = True
        else:
            self.message = " ".join([f"Wrote {self.out}.", *(f"{text}." for text in notices)])

    def _on_progress(self, written: int) -> None:
        self.written = written
        if self._cancelled.is_set():
            raise ExportCancelledError


def write_data(recording: Path, to: DataFormat, out: Path, on_progress: OnProgress) -> list[str]:
    """Write a recording as data over what is there; returns what could not be read of it.

    Raises:
        RecordingError: when it cannot be read, or ``out`` cannot be written.
    """
    from gpudash.telemetry.export.writing import export

    with open_recording(recording) as opened:
        export(opened, to, out, force=True, on_progress=on_progress)
        return opened.notices


def write_folder(recording: Path, to: TrackerFormat, out: Path, on_progress: OnProgress) -> list[str]:
    """Write a recording into a new folder for a tracker; returns what could not be read of it, and what shows it.

    Raises:
        RecordingError: when it cannot be read, ``out`` holds something or cannot be written, or a package is missing.
    """
    from gpudash.telemetry.export.trackers import export_to_tracker

    with open_recording(recording) as opened:
        shown_by = export_to_tracker(opened, to, out, on_progress)
        return [*opened.notices, shown_by.removesuffix(".")]


def write_page(recording: Path, out: Path, on_progress: OnProgress) -> list[str]:
    """Write a recording as a report over what is there; returns what could not be read of it.

    Raises:
        RecordingError: when it cannot be read, or ``out`` cannot be written.
    """
    from gpudash.session.report import write_report

    return write_report(recording, out, True, on_progress)


class Exporting(QObject):
    """Asks where, writes, and tells what came of it.

    Args:
        workspace: whose dashboard in front is meant.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._jobs: dict[ExportJob, QProgressDialog] = {}
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self.refresh)

    def recording(self, kind: Kind) -> None:
        """Write the recording of the dashboard in front; of a session that goes on, as far as it has come."""
        dashboard = self._workspace.front_dashboard
        if dashboard is None:
            self._report(NO_RECORDING)
            return
        source = dashboard.session.recording
        if source is None:
            self._report("This session is not recorded, so there is nothing to export.")
            return
        out = self._ask(WORDING[kind], source)
        if out is None:
            return
        if any(job.out == out for job in self._jobs):
            self._report(f"{out} is being written already.")
            return
        if kind == "html":
            self._begin(ExportJob(out, partial(write_page, source, out)))
        elif kind == "tensorboard" or kind == "wandb" or kind == "mlflow":
            self._begin(ExportJob(out, partial(write_folder, source, kind, out)))
        else:
            self._begin(ExportJob(out, partial(write_data, source, kind, out)))

    def graph(self, wording: Wording) -> None:
        """Write the plots of the dashboard in front as a picture."""
        self._view(wording, lambda page, out: page.plots.save_picture(out))

    def range(self) -> None:
        """Write the visible curves of the selection, else of what is in sight, as a table."""
        self._view(RANGE, lambda page, out: page.plots.save_csv(out))

    def _view(self, wording: Wording, write: Callable[[PlotsPage, Path], object]) -> None:
        page = self._workspace.front_page
        if page is None:
            self._report(NO_RECORDING)
            return
        source = page.session.recording
        out = self._ask(wording, source or Path.home() / "gpudash")
        if out is None:
            return
        if source is not None and source.exists() and out.exists() and out.samefile(source):
            self._report(f"{out} is the recording itself; choose another name.")
        elif self._workspace.attempt(lambda: write(page, out)):
            self._report(f"Wrote {out}.", good=True)

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return bool(self._jobs)

    def _begin(self, job: ExportJob) -> None:
        dialog = QProgressDialog("", "Cancel", 0, 0, self._workspace)
        dialog.setLabel(PlainLabel(f"Writing {job.out.name}"))
        dialog.setWindowTitle("Export")
        dialog.setWindowModality(Qt.WindowModality.NonModal)
        dialog.setMinimumDuration(NEVER_MS)
        dialog.setAutoClose(False)
        dialog.setAutoReset(False)
        dialog.canceled.connect(job.cancel)
        self._jobs[job] = dialog
        job.start()
        self._timer.start()

    def refresh(self) -> None:
        """Show how far each export is, and tell of those that have ended."""
        for job, dialog in list(self._jobs.items()):
            if job.is_alive():
                rows = ""
                if job.written:
                    rows = f": {format_count(job.written)} rows"
                dialog.setLabelText(f"Writing {job.out.name}{rows}")
                if not job.cancelled and time.monotonic() - job.began_s >= PATIENCE_S:
                    dialog.show()
                continue
            del self._jobs[job]
            _dismiss(dialog)
            if job.message:
                self._report(job.message, good=not job.problem, out=job.out)
            else:
                self._workspace.target.status_line.report(f"{job.out.name} was not written: cancelled.")
        if not self._jobs:
            self._timer.stop()

    def close(self) -> bool:
        """Stop what is being written; false when it did not end in time."""
        self._timer.stop()
        for job, dialog in self._jobs.items():
            job.cancel()
            _dismiss(dialog)
        for job in self._jobs:
            job.join(JOIN_S)
        ended = not any(job.is_alive() for job in self._jobs)
        self._jobs.clear()
        return ended

    def _report(self, text: str, *, good: bool = False, out: Path | None = None) -> None:
        notice = self._workspace.notice
        if not good:
            notice.report(text)
        elif out is None:
            notice.report(text, "note")
        else:
            if out.suffix == ".html":
                shown = out
            else:
                shown = out.parent
            button = "Open Folder"
            if shown is out:
                button = "Open"
            notice.report(text, "note", button=button, run=partial(_open, shown))

    def _ask(self, wording: Wording, source: Path) -> Path | None:
        """Where to write; a file that is there is asked for, by the dialog or, for a suffix added here, by us."""
        start = source.with_name(source.stem + (wording.suffix or "-runs"))
        title = f"Export {wording.entry.removesuffix('…')}"
        chosen, _pattern = QFileDialog.getSaveFileName(self._workspace, title, str(start), wording.pattern)
        if chosen and not wording.suffix:
            return Path(chosen)  # a folder: one that holds something is refused, and not replaced
        return completed(self._workspace, title, chosen, wording.suffix)


def _dismiss(dialog: QProgressDialog) -> None:
    dialog.blockSignals(True)  # else its end would count as a cancel
    dialog.cancel()
    dialog.deleteLater()


def _open(path: Path) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
