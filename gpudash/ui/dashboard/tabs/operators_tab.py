"""The tab of profiler results: operators, the stack of the selected one, and when each ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QModelIndex, QPointF, QRectF, QSignalBlocker, QSize, Qt, QUrl, Signal
from PySide6.QtGui import (
    QColor,
    QDesktopServices,
    QGuiApplication,
    QHelpEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractItemView, QPlainTextEdit, QSizePolicy, QStackedLayout, QToolTip, QWidget

from gpudash.session.live.running import trace_of
from gpudash.system.foreign_files import copy_regular
from gpudash.system.foreign_text import tab_separated
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.recording.schema import TRACE_SUFFIX
from gpudash.telemetry.records import Note, Topic
from gpudash.telemetry.runs import RunView
from gpudash.ui.colours import DARK, DARK_TEXT, LIGHT_TEXT, Palette
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.labels import search_field, worded_button, worded_label
from gpudash.ui.widgets.layouts import in_column, in_halves, in_row, scrolled
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.tables import Column, RowsModel, RowsView
from gpudash.ui.widgets.theme import PaintedWidget
from gpudash.units import format_count, format_duration

Row = Mapping[str, Any]

COLUMNS: tuple[tuple[str, Column], ...] = (
    ("name", Column("operator")),
    ("calls", Column("calls", right=True)),
    ("cpu_self_seconds", Column("own CPU", right=True, tip="Time on the CPU without the operators it calls")),
    ("cpu_total_seconds", Column("total CPU", right=True, tip="Time on the CPU with the operators it calls")),
    ("device_self_seconds", Column("own GPU", right=True, tip="Time of the kernels it launches itself")),
    (
        "device_total_seconds",
        Column("total GPU", right=True, tip="Time of its kernels and those of the operators it calls"),
    ),
    (
        "cpu_self_bytes",
        Column("own memory", right=True, tip="Host memory allocated minus freed, without the operators it calls"),
    ),
    (
        "cpu_total_bytes",
        Column("total memory", right=True, tip="Host memory allocated minus freed, with the operators it calls"),
    ),
    (
        "device_self_bytes",
        Column("own GPU memory", right=True, tip="GPU memory allocated minus freed, without the operators it calls"),
    ),
    (
        "device_total_bytes",
        Column("total GPU memory", right=True, tip="GPU memory allocated minus freed, with the operators it calls"),
    ),
    ("shapes", Column("usual shapes", wide=True)),
)
"""Field of a row → its column."""

DEVICE_FIELDS = ("device_self_seconds", "device_total_seconds", "device_self_bytes", "device_total_bytes")

NAME_WIDTH = 260
"""Maximum width of an operator's name, in logical pixels; the whole name is in its tooltip."""


ARROW_PX = 14
"""Width of the sort arrow, in logical pixels."""


class OperatorsModel(RowsModel[Row]):
    """Rows of a profile that match the search, sorted by a column."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__([column for _field, column in COLUMNS], parent)
        self._all: Sequence[Row] = ()
        self._search = ""
        self._field, self._order = COLUMNS[2][0], Qt.SortOrder.DescendingOrder
        self.sorted_column = 2

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show other operators."""
        self._all = rows
        self._arrange()

    def search(self, text: str) -> None:
        """Show only operators whose name, shapes or stack contain ``text``."""
        self._search = text.casefold()
        self._arrange()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.DescendingOrder) -> None:
        self.sorted_column, self._field, self._order = column, COLUMNS[column][0], order
        self._arrange()
        self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(COLUMNS) - 1)

    def _arrange(self) -> None:
        found = [row for row in self._all if self._search in _searched(row)]
        descending = self._order == Qt.SortOrder.DescendingOrder
        self.replace_rows(sorted(found, key=lambda row: row[self._field], reverse=descending))

    def label(self, row: Row, column: int) -> str:
        from gpudash.memory.profiler_trace.operators import figure_text

        field = COLUMNS[column][0]
        return figure_text(field, row[field])

    def tip(self, row: Row, column: int) -> str:
        field = COLUMNS[column][0]
        if field.endswith("bytes"):
            return f"{row[field]} B"
        return str(row[field])


def _searched(row: Row) -> str:
    return " ".join((str(row["name"]), str(row["shapes"]), *map(str, row["stack"]))).casefold()


class OperatorsTable(RowsView):
    """The table of operators.

    Signals:
        chosen: row of the operator that is selected now, or ``None``.
    """

    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__("Operators")
        self.operators = OperatorsModel(self)
        self.setModel(self.operators)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.verticalHeader().setDefaultSectionSize(24)
        header = self.horizontalHeader()
        header.setStretchLastSection(True)
        header.setSortIndicator(2, Qt.SortOrder.DescendingOrder)
        self.setSortingEnabled(True)
        self.selectionModel().currentRowChanged.connect(self._choose)

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show the operators of another profile, sorted by self time: the device's if they used one, else the
        CPU's."""
        on_device = any(row["device_self_seconds"] for row in rows)
        for place, (field, _column) in enumerate(COLUMNS):
            self.setColumnHidden(place, field in DEVICE_FIELDS and not any(row[field] for row in rows))
        self.operators.show_rows(rows)
        self.sortByColumn(4 if on_device else 2, Qt.SortOrder.DescendingOrder)
        self.resizeColumnsToContents()
        for place in range(1, len(COLUMNS) - 1):
            self.setColumnWidth(place, self.columnWidth(place) + ARROW_PX)
        self.setColumnWidth(0, min(self.columnWidth(0), NAME_WIDTH))
        if rows:
            self.selectRow(0)

    def select(self, name: str) -> None:
        """Select the operator called ``name``, if it is shown."""
        for place, row in enumerate(self.operators.rows):
            if row["name"] == name:
                self.selectRow(place)
                return

    def copy(self) -> None:
        """Copy what is shown as tab-separated text with a header, in seconds and bytes."""
        lines = [[column.title for _field, column in COLUMNS]]
        lines += [[str(row[field]) for field, _column in COLUMNS] for row in self.operators.rows]
        QGuiApplication.clipboard().setText(tab_separated(lines))

    def _choose(self, current: QModelIndex) -> None:
        self.chosen.emit(self.operators.rows[current.row()] if current.isValid() else None)


ROW_PX = 16
LANE_GAP_PX = 6
NAMED_PX = 30
"""Minimum width of a span that shows its name."""

ZOOM = 1.25
"""Zoom factor of one notch of the wheel."""

CURVES = ("allocated", "loss", "accuracy", "d2h", "power", "idle")
"""Curves whose colours the operators share; each operator keeps its colour."""

Span = Sequence[int]
"""Lane, depth, name, start and duration in µs."""


class OperatorsTimeline(PaintedWidget):
    """The timeline. The wheel zooms at the pointer, dragging pans, a double click shows everything.

    Signals:
        chosen: name of the operator that was clicked.
    """

    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__(DARK)
        self.setAccessibleName("Timeline of the profiled steps")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMouseTracking(True)
        self._spans: Sequence[Span] = ()
        self._names: Sequence[str] = ()
        self._lanes: Sequence[str] = ()
        self._tops: list[float] = []
        self._whole_us = self._shown_us = 1.0
        self._first_us = 0.0
        self._left_out = ""
        self._selected: str | None = None
        self._pressed: QPointF | None = None
        self._dragged = False

    def show_timeline(self, timeline: Mapping[str, Any]) -> None:
        """Show another profile, in the format of `gpudash.workloads.profiling.timeline`."""
        self._spans, self._names = timeline["spans"], timeline["names"]
        self._lanes = timeline["lanes"]
        depths = [
            max((span[1] for span in self._spans if span[0] == lane), default=-1) for lane in range(len(self._lanes))
        ]
        self._tops, top = [], 0.0
        for depth in depths:
            self._tops.append(top)
            top += (depth + 1) * ROW_PX + LANE_GAP_PX
        left_out = timeline["left_out"]
        if left_out:
            self._left_out = f"{format_count(left_out)} short operators are not drawn."
        else:
            self._left_out = ""
        self._whole_us = max(1.0, timeline["seconds"] * 1e6)
        self.setFixedHeight(max(ROW_PX, round(top)))
        self.show_all()

    def show_all(self) -> None:
        """Show the whole profile."""
        self._first_us, self._shown_us = 0.0, self._whole_us
        self.update()

    def select(self, name: str | None) -> None:
        """Highlight the spans of an operator."""
        self._selected = name
        self.update()

    def zoom(self, factor: float, at: float) -> None:
        """Show ``factor`` times as much time; the time at the x coordinate ``at`` stays there."""
        share = at / max(1, self.width())
        moment = self._first_us + share * self._shown_us
        self._shown_us = min(self._whole_us, max(1.0, self._shown_us * factor))
        self._move_to(moment - share * self._shown_us)

    def _move_to(self, first_us: float) -> None:
        self._first_us = min(max(0.0, first_us), self._whole_us - self._shown_us)
        self.update()

    def span_at(self, point: QPointF) -> Span | None:
        """The span at a position."""
        return next((span for span in reversed(self._spans) if self._place(span).contains(point)), None)

    def _place(self, span: Span) -> QRectF:
        lane, depth, _name, start, duration = span
        scale = self.width() / self._shown_us
        top = self._tops[lane] + depth * ROW_PX
        return QRectF((start - self._first_us) * scale, top, max(1.0, duration * scale), ROW_PX - 1)

    def sizeHint(self) -> QSize:
        return QSize(200, self.height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(self._palette.field))
        for span in self._spans:
            place = self._place(span)
            if place.right() >= 0 and place.left() <= self.width():
                self._draw(painter, place, self._names[span[2]])
        painter.setPen(QColor(self._palette.muted))
        for lane, text in enumerate(self._lanes[1:], 1):
            painter.drawText(QPointF(4, self._tops[lane] + ROW_PX - 4), text)
        painter.end()

    def _draw(self, painter: QPainter, place: QRectF, name: str) -> None:
        palette = self._palette
        chosen = name == self._selected
        ground = QColor(palette.accent if chosen else palette.curves[CURVES[sum(map(ord, name)) % len(CURVES)]])
        if self._selected is not None and not chosen:
            ground.setAlpha(110)
        place.setLeft(max(0.0, place.left()))
        place.setRight(min(float(self.width()), place.right()))
        painter.fillRect(place.adjusted(0, 0, -1 if place.width() > 3 else 0, 0), ground)
        if place.width() >= NAMED_PX:
            colour = LIGHT_TEXT
            if ground.alpha() < 255:
                colour = palette.text
            elif palette.dark:
                colour = DARK_TEXT
            painter.setPen(QColor(colour))
            inside = place.adjusted(4, 0, -4, 0)
            text = painter.fontMetrics().elidedText(
                name.removeprefix("aten::"), Qt.TextElideMode.ElideRight, int(inside.width())
            )
            painter.drawText(inside, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)

    def event(self, event: Any) -> bool:
        if isinstance(event, QHelpEvent):
            span = self.span_at(QPointF(event.pos()))
            if span is None:
                QToolTip.showText(event.globalPos(), plain_tip(self._left_out), self)
            else:
                lasted, began = (format_duration(span[place] / 1e6) for place in (4, 3))
                QToolTip.showText(
                    event.globalPos(), plain_tip(f"{self._names[span[2]]}\n{lasted}, from {began} on"), self
                )
            return True
        return super().event(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        notches = event.angleDelta().y() / 120
        if notches:
            self.zoom(ZOOM**-notches, event.position().x())
        event.accept()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._pressed, self._dragged = event.position(), False

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._pressed is None:
            return
        moved = event.position().x() - self._pressed.x()
        if self._dragged or abs(moved) > 3:
            self._dragged, self._pressed = True, event.position()
            self._move_to(self._first_us - moved * self._shown_us / max(1, self.width()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        span = None
        if not self._dragged:
            span = self.span_at(event.position())
        self._pressed = None
        if span is not None:
            self.chosen.emit(self._names[span[2]])

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.show_all()


EMPTY = (
    "The operators of profiled steps appear here, by time and by memory, with their stacks and a timeline. "
    "During a run, Run > Profile Next Steps… (Shift+F5) profiles some."
)
EMPTY_RECORDING = "No steps were profiled while this was recorded."

PROFILE_TIP = "Profile steps of the current run (Shift+F5)"
EXPORT_TIP = "Write the trace for Perfetto or chrome://tracing"
FOLDER_TIP = "Show the folder of the trace"
GONE = "The trace no longer exists."

TIMELINE_HEIGHT = 118
"""Height in logical pixels: seven rows; scroll for the rest."""


LEAST_TIMELINE_HEIGHT = 70


class OperatorsTab(QWidget):
    """The profiles of a run, newest first.

    Signals:
        profile_requested: profile some steps.
        reported: a passing message for the status line.

    Attributes:
        recording: returns the recording of the shown run; its traces are stored beside it.
    """

    profile_requested = Signal()
    reported = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.recording: Callable[[], Path | None] = lambda: None
        self._profiles: Sequence[Note] = ()
        self._seen: object = None
        self._details: Mapping[str, Any] = {}
        self._build()

    def _build(self) -> None:
        self.choice = ChoiceField("Profile", "Which profiled steps are shown")
        self.choice.currentIndexChanged.connect(self._show_chosen)
        self.search = search_field("Find", "Find an operator", "Words of an operator's name, its shapes or its stack")
        self.search.setMinimumWidth(140)
        self.search.setMaximumWidth(220)
        self.label = worded_label("muted", wraps=False)
        self.label.setMinimumWidth(60)
        self.label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.profile = worded_button("Profile next steps…", PROFILE_TIP, self._profile)
        self.export = worded_button("Export trace…", EXPORT_TIP, self._export)
        self.folder = worded_button("Open folder", FOLDER_TIP, self._open_folder)
        buttons = (self.profile, self.export, self.folder)
        head = in_row(self.choice, self.search, (self.label, 1), *buttons, margins=(8, 3, 8, 3), spacing=8)
        self.table = OperatorsTable()
        self.stack = QPlainTextEdit()
        self.stack.setReadOnly(True)
        self.stack.setAccessibleName("Stack of the selected operator")
        self.stack.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.timeline = OperatorsTimeline()
        scroll = scrolled(self.timeline)
        scroll.setMaximumHeight(TIMELINE_HEIGHT)
        scroll.setMinimumHeight(LEAST_TIMELINE_HEIGHT)
        halves = in_halves((self.table, 3), (self.stack, 1), across=True)
        halves.setSizes([720, 280])
        shown = QWidget()
        in_column(head, scroll, (halves, 1), parent=shown, margins=(0, 0, 0, 0), spacing=2)
        self._layers = QStackedLayout(self)
        self._layers.addWidget(self._empty())
        self._layers.addWidget(shown)
        self.search.textChanged.connect(self.table.operators.search)
        self.table.chosen.connect(self._show_stack)
        self.timeline.chosen.connect(self.table.select)

    def _empty(self) -> QWidget:
        page = QWidget()
        self.empty_label = PlainLabel(EMPTY, role="muted", wraps=True)
        self.empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.first = worded_button("Profile next steps…", PROFILE_TIP, self._profile)
        column = in_column(1, self.empty_label, parent=page)
        column.addWidget(self.first, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(1)
        return page

    def set_commanding(self, commanding: bool) -> None:
        """Set whether steps can be profiled here; a recording is read-only."""
        self.profile.setVisible(commanding)
        self.first.setVisible(commanding)
        self.empty_label.setText(EMPTY if commanding else EMPTY_RECORDING)

    def refuse(self, why: str) -> None:
        """Disable profiling, with the reason ``why``; "" enables it."""
        for button in (self.profile, self.first):
            button.setEnabled(not why)
            button.setToolTip(plain_tip(f"{PROFILE_TIP}{f'. {why}' if why else ''}"))

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.timeline.set_palette(palette)

    def refresh(self, run: RunView | None) -> None:
        """Show the newest profile of ``run`` if there is a new one."""
        profiles = []
        if run:
            profiles = [note for note in run.notes if note.topic == Topic.OPERATORS and note.details.get("operators")]
        seen = (run.run_id if run else None, len(profiles))
        if seen == self._seen:
            return
        self._seen, self._profiles = seen, profiles[::-1]
        with QSignalBlocker(self.choice):
            self.choice.clear()
            self.choice.addItems([_steps_text(note.details) for note in self._profiles])
        self.choice.setVisible(len(profiles) > 1)
        self._show_chosen()

    def _show_chosen(self) -> None:
        place = max(0, self.choice.currentIndex())
        if self._profiles:
            self._details = self._profiles[place].details
        else:
            self._details = {}
        self._layers.setCurrentIndex(1 if self._details else 0)
        if not self._details:
            return
        self.timeline.show_timeline(self._details["timeline"])
        self.table.show_rows(self._details["operators"])
        self.label.setText(_cost_text(self._details))
        self.label.setToolTip(plain_tip(self._profiles[place].text))
        there = trace_of(self._details, self.recording()) is not None
        missing = str(self._details.get("trace_problem") or GONE)
        for button, tip in ((self.export, EXPORT_TIP), (self.folder, FOLDER_TIP)):
            button.setEnabled(there)
            button.setToolTip(plain_tip(tip if there else missing))

    def _show_stack(self, row: Mapping[str, Any] | None) -> None:
        self.timeline.select(None if row is None else str(row["name"]))
        if row is None:
            self.stack.setPlainText("")
            return
        stack = "\n".join(f"{'  ' * depth}{frame}" for depth, frame in enumerate(row["stack"]))
        self.stack.setPlainText(f"{row['name']}\ncalled most often from\n{stack or 'no Python function'}")

    def _profile(self) -> None:
        self.profile_requested.emit()

    def _export(self) -> None:
        trace = trace_of(self._details, self.recording())
        if trace is None:
            self.reported.emit(GONE)
            return
        chosen = FileDialog.ask_to_save(self, "Export Trace", trace.name, f"Traces (*{TRACE_SUFFIX})")
        if chosen:
            self.export_to(trace, Path(chosen))

    def export_to(self, trace: Path, target: Path) -> None:
        """Copy the trace; a failure is reported in a sentence."""
        from gpudash.telemetry.export.writing import atomically

        try:
            if not (target.exists() and target.samefile(trace)):
                with atomically(target, trace, force=True) as part:
                    copy_regular(trace, part)
        except (OSError, RecordingError) as error:
            self.reported.emit(f"{error}.")
        else:
            self.reported.emit(f"The trace is in {target}; open it at ui.perfetto.dev.")

    def _open_folder(self) -> None:
        trace = trace_of(self._details, self.recording())
        if trace is None:
            self.reported.emit(GONE)
        else:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(trace.parent)))


def _steps_text(details: Mapping[str, Any]) -> str:
    first, steps = details["first_step"], details["steps"]
    if steps <= 1:
        return f"Step {first}"
    return f"Steps {first} to {first + steps - 1}"


def _cost_text(details: Mapping[str, Any]) -> str:
    wanted = details.get("wanted_steps", 0)
    parts = [_steps_text(details) + (f" ({wanted} were asked for)" if wanted > details["steps"] else "")]
    step_s, plain_s = details["step_seconds"], details["plain_step_seconds"]
    if step_s is not None:
        parts.append(f"{format_duration(step_s)} each")
    if step_s is not None and plain_s is not None and plain_s < step_s:
        parts.append(f"{format_duration(plain_s)} without the profiler")
    return " · ".join(parts)
