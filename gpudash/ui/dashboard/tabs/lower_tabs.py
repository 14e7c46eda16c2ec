"""The tabs below the plots: a run's steps, ranks, operators, output, the devices, events.

The tab bar is the lowest row; the pages open above it, all with the same height, so that clicking a tab never moves
the tab bar.

Beside the tabs are the breakdown of a step's time and, while the output is hidden, its newest line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPushButton, QSizePolicy, QStackedWidget, QTabBar, QWidget

from gpudash.memory.request_log import RequestLog
from gpudash.session.watching.output.log import OutputLine, OutputLog
from gpudash.telemetry.ranks.rows import places_of
from gpudash.telemetry.readings import MAX_EVENTS
from gpudash.telemetry.records import Event
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK, Palette
from gpudash.ui.dashboard.tabs.operators_tab import OperatorsTab
from gpudash.ui.dashboard.tabs.output_pane import OutputPane
from gpudash.ui.dashboard.tabs.rows import (
    DEVICES,
    EPOCHS,
    EVENTS,
    PROCESSES,
    RESULT,
    STAGES,
    Range,
    epoch_rows,
    event_row,
    process_rows,
    result_rows,
    stage_rows,
)
from gpudash.ui.dashboard.tabs.step_parts_row import StepPartsRow
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.tables import ROW_PX, Table
from gpudash.ui.widgets.text_size import scaled

if TYPE_CHECKING:
    from gpudash.ui.dashboard.tabs.ranks_tab import RanksTab
    from gpudash.ui.dashboard.tabs.source_tab import SourceTab


LEAST_HEIGHT, USUAL_SHARE, MOST_HEIGHT = 120, 0.15, 260
"""Height of a page: minimum in logical pixels, default share, and maximum in logical pixels until it is dragged."""


NEVER_STAGES = "The stages of a run appear here: each with device, shape, time and rate. F5 starts one."

UNLIMITED = 2**24 - 1
"""Qt's QWIDGETSIZE_MAX, which PySide6 does not export."""


class TableChoice(QWidget):
    """Tables on one subject, one shown at a time; a column of chips selects among those that have rows.

    Attributes:
        tables: all tables, in the order of the chips.
        front: the table shown.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__()
        self.tables = list(tables)
        self.front = self.tables[0]
        self._wanted: Table | None = None
        self._pages = QStackedWidget()
        self._chips: list[QPushButton] = []
        column = in_column(margins=(6, 6, 6, 0), spacing=4)
        for table in self.tables:
            self._pages.addWidget(table)
            chip = worded_button(table.name, "", partial(self.choose, table), role="chip", tab_only=True)
            chip.setCheckable(True)
            column.addWidget(chip)
            self._chips.append(chip)
        column.addStretch(1)
        in_row(column, (self._pages, 1), parent=self, margins=(0, 0, 0, 0), spacing=0)
        self.show_filled()

    def choose(self, table: Table) -> None:
        """Show ``table`` whenever it has rows."""
        self._wanted = table
        self.show_filled()

    def show_filled(self) -> None:
        """Offer the tables with rows. Shown is the selected one, else the first with rows, else the first."""
        filled = [table for table in self.tables if table.model.rows]
        self.front = self.tables[0]
        if self._wanted in filled:
            self.front = self._wanted
        elif filled:
            self.front = filled[0]
        self._pages.setCurrentWidget(self.front)
        for chip, table in zip(self._chips, self.tables, strict=True):
            chip.setVisible(table in filled and len(filled) > 1)
            chip.setChecked(table is self.front)


class NewestLine(PlainLabel):
    """One right-aligned line, elided to fit; the tooltip has the whole line."""

    def __init__(self) -> None:
        super().__init__(role="code")
        self._line: OutputLine | None = None
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def show_line(self, line: OutputLine | None) -> None:
        """Show ``line``; ``None`` shows nothing."""
        if line == self._line:
            return
        self._line = line
        text = ""
        if line is not None:
            text = f"The program's newest line, on {line.stream}: {line.text}"
        self.setToolTip(plain_tip(text))
        self.setAccessibleName(text)
        self._fit()

    @property
    def is_empty(self) -> bool:
        """Whether no line is shown."""
        return self._line is None

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        text = ""
        if self._line is not None:
            text = self._line.text.strip()
        room = self.width() - self.contentsMargins().left() - self.contentsMargins().right()
        self.setText(self.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, max(0, room)))


class LowerTabs(QWidget):
    """Tables and a program's output above a tab bar; they can be collapsed to the bar.

    Attributes:
        steps: stages, epochs and results of the run.
        step_parts: breakdown of the run's step time, beside the tabs.
        machine: processes that hold memory, and every reading of every device.

    Signals:
        collapsed_changed: the tabs were collapsed or opened.
    """

    collapsed_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.bar = QTabBar()
        self.bar.setShape(QTabBar.Shape.RoundedSouth)
        self.bar.setExpanding(False)
        self.bar.setDrawBase(False)
        self.bar.setAccessibleName("Tables and output")
        self._pages = QStackedWidget()
        self._events: deque[tuple[float, Sequence[str]]] = deque(maxlen=MAX_EVENTS)
        self.newest = NewestLine()
        self.step_parts = StepPartsRow()
        row = in_row(self.bar, (self.step_parts, 2), (self.newest, 1), margins=(0, 0, 8, 0), spacing=16)
        in_column((self._pages, 1), row, parent=self, margins=(0, 0, 0, 0), spacing=0)
        self.stages = Table("Stages", STAGES, NEVER_STAGES)
        self.result = Table("Result", RESULT, "The results of a run appear here when it has ended.")
        self.epochs = Table("Epochs", EPOCHS, "One row per epoch of a training run appears here.")
        self.steps = TableChoice((self.stages, self.epochs, self.result))
        self._add("Steps", self.steps)
        self.ranks: RanksTab | None = None
        self.source: SourceTab | None = None
        self._palette = DARK
        self.operators = OperatorsTab()
        self._add("Operators", self.operators)
        self.output = OutputPane()
        self._add("Output", self.output)
        self.processes = Table("Processes", PROCESSES, "The processes that hold memory appear here.")
        self.devices = Table("Readings", DEVICES, "Every reading of every device, with its state, appears here.")
        self.machine = TableChoice((self.processes, self.devices))
        self._add("Devices", self.machine)
        self.events = Table("Events", EVENTS, "Warnings, marks and everything else that happens appear here.")
        self._add("Events", self.events)
        self.bar.tabBarClicked.connect(self._clicked)
        self.bar.currentChanged.connect(self._pages.setCurrentIndex)
        self._before_output: int | None = None
        self._shows_newest = True
        self._collapsed = False
        self.set_collapsed(False)

    def _add(self, title: str, page: QWidget) -> None:
        self.bar.addTab(title)
        self._pages.addWidget(page)

    def _insert_after(self, page: QWidget, title: str, new: QWidget) -> None:
        place = self._pages.indexOf(page) + 1
        self._pages.insertWidget(place, new)
        self.bar.insertTab(place, title)
        self.bar.setTabToolTip(place, self.bar.tabToolTip(0))

    @property
    def collapsed(self) -> bool:
        return self._collapsed

    def set_collapsed(self, collapsed: bool) -> None:
        """Show the tab bar alone, or the pages with it."""
        self._collapsed = collapsed
        self._pages.setVisible(not collapsed)
        height = self.bar.sizeHint().height()
        if collapsed:
            self.setFixedHeight(height)
        else:
            self.setMinimumHeight(height + scaled(LEAST_HEIGHT))
            self.setMaximumHeight(UNLIMITED)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        for position in range(self.bar.count()):
            self.bar.setTabToolTip(position, "Click to open" if collapsed else "Click the open tab to collapse")

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self.set_collapsed(self._collapsed)

    def usual_height(self, whole: int) -> int:
        """Height of the open tabs, in logical pixels, if they and the plots share ``whole``."""
        shown = max(scaled(LEAST_HEIGHT), min(round(whole * USUAL_SHARE), scaled(MOST_HEIGHT)))
        header, row = self.stages.view.horizontalHeader().sizeHint().height(), scaled(ROW_PX)
        rows = max(1, round((shown - header) / row))  # whole rows: half a row looks like a bug
        return self.bar.sizeHint().height() + max(scaled(LEAST_HEIGHT), header + rows * row)

    def current(self) -> Table | RanksTab | None:
        """The table in front; ``None`` while the output or a profile is."""
        page = self._pages.currentWidget()
        if isinstance(page, TableChoice):
            return page.front
        if isinstance(page, Table):
            return page
        return self.ranks if page is self.ranks else None

    @property
    def output_in_front(self) -> bool:
        """Whether the output is the open tab."""
        return self._pages.currentWidget() is self.output

    def leave_out_runs(self) -> None:
        """Remove the tabs about runs, for a source without runs; show the processes."""
        for page in (self.steps, self.operators, self.output):
            self.bar.setTabVisible(self._pages.indexOf(page), False)
        self.bar.setCurrentIndex(self._pages.indexOf(self.machine))

    def show_operators(self) -> None:
        """Bring the profiler's results to the front; a collapsed bar stays collapsed."""
        self.bar.setCurrentIndex(self._pages.indexOf(self.operators))

    def show_output(self, *, requested: bool = True) -> None:
        """Bring the output to the front; a collapsed bar stays collapsed.

        Args:
            requested: whether the user asked for it; otherwise a program started, and `leave_output` undoes it.
        """
        self._shows_newest = True
        if not self.output_in_front:
            if requested:
                self._before_output = None
            else:
                self._before_output = self.bar.currentIndex()
            self.bar.setCurrentIndex(self._pages.indexOf(self.output))

    def drop_newest_line(self) -> None:
        """Show no line beside the tabs until a program starts; the output keeps it."""
        self._shows_newest = False

    def leave_output(self) -> None:
        """Handle the start of a run that prints nothing: drop the newest line of the earlier program and, unless the
        user opened the output, return to the tab that was open before."""
        self.drop_newest_line()
        if self.output_in_front and self._before_output is not None:
            self.bar.setCurrentIndex(self._before_output)
        self._before_output = None

    def _offer_ranks(self, count: int) -> None:
        """Show the tab of ranks only while there are ranks."""
        if self.ranks is None:
            if not count:
                return
            from gpudash.ui.dashboard.tabs.ranks_tab import RanksTab  # few runs have ranks

            self.ranks = RanksTab()
            self._insert_after(self.steps, "Ranks", self.ranks)
        place = self._pages.indexOf(self.ranks)
        if self.bar.isTabVisible(place) != bool(count):
            if not count and self.bar.currentIndex() == place:
                self.bar.setCurrentIndex(0)
            self.bar.setTabVisible(place, bool(count))

    def refresh_source(
        self,
        log: RequestLog | None,
        run: RunView | None,
        cursor_s: float | None,
        why_none: str = "",
        *,
        program_ended: bool = False,
    ) -> None:
        """Show the memory that the program's lines hold, if the tab is visible.

        Args:
            log: allocation requests of the device shown.
            run: run in view.
            cursor_s: session time of the cursor; ``None`` without one.
            why_none: why the lines of this run are unknown; without a log, and with "" here, there is no such tab.
            program_ended: whether the program has ended, although its run goes on.
        """
        if log is None and not why_none and self.source is None:
            return
        from gpudash.ui.dashboard.tabs.source_tab import SourceTab, has_own_lines  # few sessions need it

        if log is not None and has_own_lines(log):
            why_none = ""
        else:
            log = None
        known = log is not None or bool(why_none)
        if self.source is None:
            if not known:
                return
            self.source = SourceTab(self._palette)
            self._insert_after(self.output, "Source", self.source)
        place = self._pages.indexOf(self.source)
        if self.bar.isTabVisible(place) != known:
            self.bar.setTabVisible(place, known)
        if not known or self._collapsed or self._pages.currentWidget() is not self.source:
            return
        if log is None:
            self.source.say_why_not(why_none)
        else:
            self.source.refresh(log, run, cursor_s, program_ended=program_ended)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self._palette = palette
        self.step_parts.set_palette(palette)
        self.output.set_palette(palette)
        self.operators.set_palette(palette)
        if self.source is not None:
            self.source.set_palette(palette)

    @property
    def selected_rank(self) -> int | None:
        """The rank selected in the table of ranks."""
        if self.ranks is None:
            return None
        return self.ranks.selected_rank

    def _clicked(self, position: int) -> None:
        if position < 0:
            return
        self._before_output = None
        self.set_collapsed(not self._collapsed and position == self.bar.currentIndex())
        self.collapsed_changed.emit()

    def take(self, events: Iterable[Event], origin_s: float) -> None:
        """Handle new events; each is formatted once."""
        for event in events:
            row = event_row(event, origin_s)
            if row is not None:
                self._events.append((event.time_s, row))

    def forget_events(self) -> None:
        """Clear the list of events, because an earlier moment is shown."""
        self._events.clear()

    def _event_rows(self, selection: Range) -> list[Sequence[str]]:
        """The events within the selection, newest first; marks may have been set in the past."""
        events = sorted(self._events, key=itemgetter(0))
        if selection is None:
            return [row for _time_s, row in reversed(events)]
        return [row for time_s, row in reversed(events) if selection[0] <= time_s <= selection[1]]

    def refresh_output(self, log: OutputLog) -> None:
        """Show new output if the tab is visible; else show the newest line beside the tabs."""
        if not self.isVisible():
            return
        if self.output_in_front and not self._collapsed:
            self.output.refresh(log)
            self.newest.show_line(None)
        else:
            self.newest.show_line(next(iter(log.newest(1)), None) if self._shows_newest else None)

    def refresh(self, store: Store, selection: Range, devices: Sequence[Sequence[str]]) -> None:
        """Fill the table in front; the others are filled when they are opened. The caller holds the store's lock."""
        places = places_of(store.run)
        self._offer_ranks(len(places))
        self.step_parts.show_parts(None if store.run is None else store.run.step_parts)
        # Hide an empty line so that the sentence gets its room, but keep one of the two: else the tab bar would
        # stretch.
        self.newest.setVisible(not self.newest.is_empty or self.step_parts.isHidden())
        if self._collapsed or not self.isVisible():
            return
        page = self._pages.currentWidget()
        if page is self.operators:
            self.operators.refresh(store.run)
        elif self.ranks is not None and page is self.ranks:
            self.ranks.show_run(store, places)
        elif page is self.steps:
            self.stages.show_rows(stage_rows(store.run, selection))
            self.epochs.show_rows(epoch_rows(store.run, selection))
            self.result.show_rows(result_rows(store.run))
            self.steps.show_filled()
        elif page is self.machine:
            self.processes.show_rows(process_rows(store))
            self.devices.show_rows(list(devices))
            self.machine.show_filled()
        elif page is self.events:
            self.events.show_rows(self._event_rows(selection))
