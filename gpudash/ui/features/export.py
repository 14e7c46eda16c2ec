"""File > Export: writes what the current dashboard shows for other programs, without blocking the window."""

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
from PySide6.QtWidgets import QProgressDialog

from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.widgets.file_dialog import FileDialog, completed
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
"""Interval in milliseconds of polling running exports."""

PATIENCE_S = 0.5
"""Seconds until a progress dialog appears."""

NEVER_MS = 2**31 - 1
"""Disables the dialog's own delay, which needs to know the total."""

NO_GRAPH = "The current tab has no plots of a session; switch to the dashboard, a recording or a comparison."
NO_RECORDING = "The current tab is not a recording; switch to the dashboard or to a recording."

JOIN_S = 2.0
"""How long closing the window waits for a cancelled export."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of a kind of file: its menu entry, its use, the dialog's filter and suffix, and words to find it by."""

    entry: str
    tip: str
    pattern: str
    suffix: str
    keywords: str = ""


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


PNG = Wording("Graph as PNG…", "Write the plots as a picture", "Pictures (*.png)", ".png", "image screenshot")
SVG = Wording(
    "Graph as SVG…",
    "Write the plots as lines and text that stay sharp",
    "Vector pictures (*.svg)",
    ".svg",
    "image vector",
)
RANGE = Wording("Range as CSV…", "Write the visible curves of the selection as a table", "Tables (*.csv)", ".csv")


def commands(workspace: Workspace) -> list[Command]:
    """File > Export: first the visible part of the current dashboard, then its whole recording."""
    exporting = Exporting(workspace)
    workspace.at_close(exporting.close)

    def command(
        kind: str, wording: Wording, run: Callable[[], object], why_not: Callable[[], str], separated: bool = False
    ) -> Command:
        return Command(
            MENU,
            wording.entry,
            wording.tip,
            run,
            id=f"file.export.{kind}",
            after="file.close_document",
            why_not=why_not,
            separated=separated,
            keywords=wording.keywords,
        )

    return [
        command("png", PNG, partial(exporting.graph, PNG), exporting.why_no_graph),
        command("svg", SVG, partial(exporting.graph, SVG), exporting.why_no_graph),
        command("range", RANGE, exporting.range, exporting.why_no_range),
        *(
            command(
                kind, wording, partial(exporting.recording, kind), exporting.why_no_recording, separated=kind == "csv"
            )
            for kind, wording in WORDING.items()
        ),
    ]


class ExportCancelledError(Exception):
    """The user cancelled an export."""


class ExportJob(threading.Thread):
    """Writes a file in the background.

    Args:
        out: the file to write.
        write: writes it, calls its argument with the number of rows written, and returns what could not be read.

    Attributes:
        began_s: when it was requested, in monotonic seconds.
        written: the rows written so far.
        message: the outcome in a sentence; "" until then and if it was cancelled.
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
        """Whether it was cancelled."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop after the current rows; nothing is left behind."""
        self._cancelled.set()

    def run(self) -> None:
        try:
            notices = self._write(self._on_progress)
        except ExportCancelledError:
            return
        except RecordingError as error:
            self.message, self.problem = f"{error}.", True
        except Exception as error:  # errors caused by the file's content are reported
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
    """Write a recording as data, replacing an existing file; returns what could not be read.

    Raises:
        RecordingError: the recording cannot be read, or ``out`` cannot be written.
    """
    from gpudash.telemetry.export.writing import export

    with open_recording(recording) as opened:
        export(opened, to, out, force=True, on_progress=on_progress)
        return opened.notices


def write_folder(recording: Path, to: TrackerFormat, out: Path, on_progress: OnProgress) -> list[str]:
    """Write a recording into a new folder for a tracker; returns what could not be read, and how to view it.

    Raises:
        RecordingError: the recording cannot be read, ``out`` is not empty or cannot be written, or a package is
            missing.
    """
    from gpudash.telemetry.export.trackers import export_to_tracker

    with open_recording(recording) as opened:
        shown_by = export_to_tracker(opened, to, out, on_progress)
        return [*opened.notices, shown_by.removesuffix(".")]


def write_page(recording: Path, out: Path, on_progress: OnProgress) -> list[str]:
    """Write a recording as a report, replacing an existing file; returns what could not be read.

    Raises:
        RecordingError: the recording cannot be read, or ``out`` cannot be written.
    """
    from gpudash.session.report import write_report

    return write_report(recording, out, True, on_progress)


class Exporting(QObject):
    """Asks for a file name, writes the export, and reports the outcome.

    Args:
        workspace: its current dashboard is exported.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._jobs: dict[ExportJob, QProgressDialog] = {}
        self._timer = QTimer(self, interval=POLL_MS)
        self._timer.timeout.connect(self.refresh)

    def recording(self, kind: Kind) -> None:
        """Write the recording of the current dashboard; for a live session, everything so far."""
        source = self._workspace.target_dashboard.session.recording_path
        if source is None:
            self._report("This session is not recorded, so there is nothing to export.")
            return
        out = self._ask(WORDING[kind], source)
        if out is None:
            return
        if any(job.out == out for job in self._jobs):
            self._report(f"{out} is already being written.")
            return
        if kind == "html":
            self._begin(ExportJob(out, partial(write_page, source, out)))
        elif kind == "tensorboard" or kind == "wandb" or kind == "mlflow":
            self._begin(ExportJob(out, partial(write_folder, source, kind, out)))
        else:
            self._begin(ExportJob(out, partial(write_data, source, kind, out)))

    def why_no_recording(self) -> str:
        """Why there is no recording to write, in a sentence; "" if there may be one."""
        if self._workspace.front_dashboard is None:
            return NO_RECORDING
        return ""

    def why_no_range(self) -> str:
        """Why there are no curves of a session to write."""
        if self._workspace.front_page is None:
            return NO_GRAPH
        return ""

    def why_no_graph(self) -> str:
        """Why there is no graph to write."""
        front = self._workspace.front
        if front is not None and front.save_picture is not None:
            return ""
        return self.why_no_range()

    def graph(self, wording: Wording) -> None:
        """Write the plots of the current dashboard or comparison as a picture."""
        front = self._workspace.front
        if front is None or front.save_picture is None:
            self._view(wording, lambda page, out: page.plots.save_picture(out))
            return
        save = front.save_picture
        out = self._ask(wording, Path.home() / "gpudash-comparison")
        if out is not None and self._workspace.attempt(lambda: save(out)):
            self._report(f"Wrote {out}.", good=True)

    def range(self) -> None:
        """Write the visible curves in the selection, or else in the visible range, as a table."""
        self._view(RANGE, lambda page, out: page.plots.save_csv(out))

    def _view(self, wording: Wording, write: Callable[[PlotsPage, Path], object]) -> None:
        page = self._workspace.target
        source = page.session.recording_path
        out = self._ask(wording, source or Path.home() / "gpudash")
        if out is None:
            return
        if source is not None and source.exists() and out.exists() and out.samefile(source):
            self._report(f"{out} is the recording itself; choose another name.")
        elif self._workspace.attempt(lambda: write(page, out)):
            self._report(f"Wrote {out}.", good=True)

    @property
    def busy(self) -> bool:
        """Whether an export is running."""
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
        """Update the progress of each export, and report those that have ended."""
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
        """Cancel all exports; false if one did not end in time."""
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
        """Ask where to write. Before a file is replaced, the dialog asks or, if a suffix is added here, we do."""
        name = source.stem + (wording.suffix or "-runs")
        title = f"Export {wording.entry.removesuffix('…')}"
        chosen = FileDialog.ask_to_save(self._workspace, title, name, wording.pattern)
        if chosen and not wording.suffix:
            return Path(chosen)  # a folder: one that is not empty is refused, not replaced
        return completed(self._workspace, title, chosen, wording.suffix)


def _dismiss(dialog: QProgressDialog) -> None:
    dialog.blockSignals(True)  # otherwise closing it would emit `canceled`
    dialog.cancel()
    dialog.deleteLater()


def _open(path: Path) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
