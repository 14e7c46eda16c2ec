"""The page of a loaded snapshot: the cause, then four linked panes and the tabs beside them. One of the tabs shows what
grew between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QMenu, QPushButton, QTabWidget, QWidget

from gpudash.devices.names import SIMULATED
from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.explaining.explanation_text import GROWTH, GROWTH_TIP, evidence_text, growth_text
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.telemetry.explanation import Explanation, Growth
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.header import CauseHeader
from gpudash.ui.explanation.source_view.editor import open_in_editor
from gpudash.ui.explanation.stack import StackPanel
from gpudash.ui.snapshot.call_sites import ComparePane, WhoPane
from gpudash.ui.snapshot.drawing.views import BlocksPane, icicle_pane, treemap_pane
from gpudash.ui.snapshot.events_pane import EventsPane
from gpudash.ui.snapshot.lines_pane import LinesPane
from gpudash.ui.snapshot.panels import FilledPanel, Panel, WhenPanel
from gpudash.ui.snapshot.rows import ChangeRow, Holder, signed
from gpudash.ui.snapshot.selection import Path as CallPath
from gpudash.ui.snapshot.selection import Selection, Selector
from gpudash.ui.snapshot.study import Step, Study, device_names
from gpudash.ui.snapshot.what_if_pane import WhatIfPane
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_halves
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.tables import Column, Table
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes, format_count

GROWTH_COLUMNS = (
    Column(GROWTH, right=True, tip=GROWTH_TIP),
    Column("so far", right=True, tip="Bytes kept so far"),
    Column("steps", right=True, tip="Steps that left something behind"),
    Column("where", wide=True),
)

STEP_COLUMNS = (
    Column("step", right=True),
    Column("peak", right=True, tip="Most memory allocated during the step"),
    Column("at its end", right=True, tip="Allocated at its end"),
    Column("kept", right=True, tip="Allocated at its end minus that at its beginning"),
    Column("events", wide=True),
)

NO_GROWTH = "No line keeps memory from every step."
NO_STEPS = "No steps were found: neither annotations nor stacks of an optimizer show where one ends."


class StepsPane(QWidget):
    """Two tables: the program's steps, and the lines that grow.

    Signals:
        compared: the moments (later, earlier) of the selected step.
    """

    compared = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._steps: Sequence[Step] = ()
        self.label = PlainLabel(role="muted", wraps=True)
        self.growth = Table("What every step keeps", GROWTH_COLUMNS, NO_GROWTH)
        self.steps = Table("Steps", STEP_COLUMNS, NO_STEPS)
        self.steps.view.setToolTip("Click a step to compare its end with its beginning")
        self.steps.view.clicked.connect(lambda index: self._compare(index.row()))
        self.steps.view.activated.connect(lambda index: self._compare(index.row()))
        halves = in_halves((self.growth, 0), (self.steps, 0), across=False)
        in_column(self.label, (halves, 1), parent=self, margins=(4, 6, 4, 2), spacing=4)

    def show_study(self, study: Study) -> None:
        """Show the steps of a device."""
        self._steps = study.steps()
        self.label.setText(steps_text(self._steps, study.growth))
        self.growth.show_rows(list(map(_growth_cells, study.growth)))
        self.growth.setMaximumHeight(self.growth.height_of_all + self.growth.fontMetrics().lineSpacing())
        self.steps.show_rows(list(map(_step_cells, self._steps)))

    @property
    def front(self) -> Table:
        """The table to copy from."""
        if self.growth.view.hasFocus():
            return self.growth
        return self.steps

    def _compare(self, row: int) -> None:
        if 0 <= row < len(self._steps):
            self.compared.emit((self._steps[row].end, self._steps[row].begin))


def steps_text(steps: Sequence[Step], growth: Sequence[Growth]) -> str:
    """What the tables show, in a sentence."""
    if growth:
        first = growth[0]
        others = len(growth) - 1
        more = ""
        if others:
            more = f", and {others} more line{' grows' if others == 1 else 's grow'}"
        return f"{first.place} keeps {format_bytes(first.bytes_at_once)} of {first.every}{more}."
    if not steps:
        return ""
    kept = sum(step.kept for step in steps[1:-1])
    if len(steps) > 2 and kept == 0:
        return f"{format_count(len(steps))} steps; complete ones end with as much as they began with."
    if len(steps) == 1:
        return "One step; click it to see what it left behind."
    return f"{format_count(len(steps))} steps; click one to see what it left behind."


def _growth_cells(line: Growth) -> tuple[str, ...]:
    return (
        growth_text(line.bytes_per_step, line.stride),
        format_bytes(line.bytes),
        format_count(line.steps),
        line.place,
    )


def _step_cells(step: Step) -> tuple[str, ...]:
    return (
        format_count(step.number),
        format_bytes(step.peak),
        format_bytes(step.allocated),
        signed(step.kept),
        f"{format_count(step.begin + 1)} to {format_count(step.end)}",
    )


SETTINGS_COLUMNS = (Column("setting"), Column("value", wide=True))
NO_SETTINGS = "The snapshot does not contain the allocator's settings."

EXPORTS = (
    ("csv", "Visible table as CSV…", "Save the rows of the visible table"),
    ("png", "Page as picture…", "Save the visible page as a PNG"),
    ("html", "Report as HTML…", "Save the whole explanation as one file that opens in a browser"),
)


LEAST_MIDDLE_PX, LEAST_STACK_PX = 230, 90
"""Logical pixels: the least heights of the panes and of the stack. In less, the page is scrolled."""


class SnapshotPage(QWidget):
    """All panes, linked by one `Selector`.

    Args:
        opened: answers what-if questions.
        opener: opens a second file.

    Signals:
        said: a sentence for the status line.
        device_chosen: another device in the file was chosen.
    """

    said = Signal(str)
    device_chosen = Signal(int)

    def __init__(
        self,
        opened: OpenedSnapshot,
        opener: Callable[[Path], OpenedSnapshot],
        source: SourceLine,
        palette: Palette,
    ) -> None:
        super().__init__()
        self._palette = palette
        self._name = opened.path.name
        self.study: Study | None = None
        self.selector = Selector()
        self._stale: set[QWidget] = set()
        self._unseen: set[QWidget] = set()
        self._building = self._parts(opened, opener, source, palette)

    def build(self) -> bool:
        """Build another part in about ten milliseconds; true once the page is complete."""
        return next(self._building, True)

    def _parts(
        self,
        opened: OpenedSnapshot,
        opener: Callable[[Path], OpenedSnapshot],
        source: SourceLine,
        palette: Palette,
    ) -> Iterator[bool]:
        """Create each part inside its final parent: reparenting would compute its style again."""
        self._frame()
        self.header = SnapshotHeader()
        self.filled = FilledPanel(palette)
        self.bar, self.chips = self.filled.bar, self.filled.chips
        self._outer.insertWidget(0, self.header)
        self._outer.insertWidget(1, self.filled)
        yield False
        self.who = WhoPane()
        self._add_tab(self.who, "Who", "Who allocated what is alive (2)")
        yield False
        self.treemap = treemap_pane(palette)
        self._add_tab(self.treemap, "Treemap", "What is alive by call stack, as areas")
        self.icicle = icicle_pane(palette)
        self._add_tab(self.icicle, "Icicle", "What is alive by call stack, from the outermost call (I)")
        self.blocks = BlocksPane(palette)
        self._add_tab(self.blocks, "Blocks", "The memory map: segments and the blocks in them")
        yield False
        self.events = EventsPane()
        self._add_tab(self.events, "Events", "Every event of the trace")
        yield False
        self.lines = LinesPane(opened.path, palette)
        self._add_tab(self.lines, "Source", "The program, with the bytes of each line in the margin")
        yield False
        self.steps = StepsPane()
        self._add_tab(self.steps, "Steps", "What grew between steps")
        yield False
        self.what_if = WhatIfPane(opened)
        self._add_tab(self.what_if, "What if", "Other cards and other settings of the allocator")
        yield False
        self.settings = SettingsPane()
        self._add_tab(self.settings, "Settings", "Settings of the allocator, and of the file")
        self.compare = ComparePane(opener, source)
        self._add_tab(self.compare, "Compare", "What differs from another snapshot")
        yield False
        self.when = WhenPanel(palette)
        self.timeline = self.when.timeline
        self.stack = StackPanel(source=source)
        self._extend_stack()
        self._share_room()
        self._connect()

    def _frame(self) -> None:
        """Create the containers, from the outside in."""
        left = Panel(6, 2)
        self.middle = in_halves((left, 3), across=True)
        self.halves = in_halves((self.middle, 4), across=False)
        self.evidence = PlainLabel(role="muted", wraps=True, selectable=True)
        self._outer = in_column((self.halves, 1), self.evidence, parent=self, margins=(12, 6, 12, 6), spacing=6)
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setExpanding(False)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setUsesScrollButtons(True)
        self.tabs.setAccessibleName("Views of what is alive")
        left.column.addWidget(self.tabs)

    def _add_tab(self, pane: QWidget, text: str, tip: str) -> None:
        self.tabs.setTabToolTip(self.tabs.addTab(pane, text), plain_tip(tip))

    def _share_room(self) -> None:
        self.middle.addWidget(self.when)
        self.halves.addWidget(self.stack)
        self.middle.setStretchFactor(1, 2)
        self.halves.setStretchFactor(1, 1)
        self.middle.setSizes([3000, 2000])
        self.halves.setSizes([4000, 1300])
        self._take_least_heights()

    def _take_least_heights(self) -> None:
        self.middle.setMinimumHeight(scaled(LEAST_MIDDLE_PX))
        self.stack.setMinimumHeight(scaled(LEAST_STACK_PX))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange and self.study is not None:
            self._take_least_heights()

    def heightForWidth(self, width: int) -> int:
        """The least height, as which a scroll area takes it."""
        return self._outer.minimumHeightForWidth(width)

    def _extend_stack(self) -> None:
        self.editor = worded_button(
            "Open in editor",
            "Open the line in front with the editor named by VISUAL, else with the desktop's",
            self._edit,
        )
        self.show_blocks = worded_button(
            "Show blocks", "Narrow every pane to this line and show its blocks in the memory map", self._show_blocks
        )
        self.stack.head.addWidget(self.editor)
        self.stack.head.addWidget(self.show_blocks)

    def _connect(self) -> None:
        self.selector.listen(self._selected)
        self.chips.removed.connect(self._remove)
        self.chips.searched.connect(lambda text: self.selector.change(search=text))
        self.bar.chosen.connect(lambda name: self.selector.change(category=name))
        self.timeline.picked.connect(self._pick)
        self.events.picked.connect(self._pick_event)
        self.steps.compared.connect(self._pick)
        self.who.group_changed.connect(lambda: self._fill(self.who))
        self.who.row_changed.connect(self._show_row)
        self.blocks.chosen.connect(self._show_life)
        for pane in (self.treemap, self.icicle):
            pane.library_toggled.connect(lambda _on, pane=pane: self._fill(pane))
            pane.narrowed.connect(lambda path: self.selector.change(path=path))
            pane.view.zoomed.connect(self._show_path)
        self.tabs.currentChanged.connect(lambda _index: self._fill_front())
        self.when.jumped.connect(self.go)
        self.header.device_chosen.connect(self.device_chosen)
        self.compare.said.connect(self.said)

    def show_study(self, number: int, study: Study) -> None:
        """Show one device."""
        self.study = study
        self.selector.clear()
        found = study.explanation
        self.header.show_devices(device_names(study.snapshot), number)
        self.header.show_explanation(found, self._title(study))
        evidence = evidence_text(found.evidence)
        sentences = [f"Evidence: {evidence}" if evidence else "Evidence: nothing was recorded and nothing is live."]
        self.evidence.setText(" ".join([*sentences, *study.snapshot.warnings]))
        self.when.show_study(study)
        self._unseen = {self.events, self.steps, self.what_if}
        self.what_if.show_device(study.device.index, study.has_history)
        self.settings.show_snapshot(study.snapshot)
        self.compare.show_study(study, self._name)
        self._selected(self.selector.now)

    def _title(self, study: Study) -> str:
        what = "PEAK"
        if study.explanation.requested_bytes is not None:
            what = "OUT OF MEMORY"
        gpu = f"GPU {study.device.index}" + (f" ({SIMULATED})" if study.explanation.simulated else "")
        if not study.has_history:
            what = "STATE AT THE SNAPSHOT"
            return f"{what} · {gpu} · {self._name}"
        return f"{what} · {study.label(study.home)} · {gpu} · {self._name}"

    def _selected(self, selection: Selection) -> None:
        study = self.study
        if study is None:
            return
        moment = study.moment_of(selection)
        self.timeline.show_moments(moment, selection.compared)
        self.filled.show_selection(study, selection)
        self._stale = {self.who, self.treemap, self.icicle, self.blocks, self.lines}
        self._fill_front()
        if not self.events.view.hasFocus():
            self.events.show_moment(moment)

    def _fill_front(self) -> None:
        front = self.tabs.currentWidget()
        if front in self._unseen:
            self._fill_once(front)
        elif front in self._stale:
            self._fill(front)

    def _fill_once(self, pane: QWidget) -> None:
        """Fill a pane that does not depend on the selection, when it is first shown."""
        study = self.study
        if study is None:
            return
        self._unseen.discard(pane)
        if pane is self.steps:
            self.steps.show_study(study)
        elif pane is self.what_if:
            self.what_if.ask_smallest()
        else:
            self.events.show_events(study.history.columns, study.places)
            self.events.show_moment(study.moment_of(self.selector.now))

    def _fill(self, pane: QWidget) -> None:
        study, selection = self.study, self.selector.now
        if study is None:
            return
        self._stale.discard(pane)
        if pane is self.who:
            group = self.who.grouped_by
            if selection.compared is None:
                self.who.show_holders(study.holders(study.alive(selection), group))
            else:
                self.who.show_changes(*study.changed(selection, group))
        elif pane is self.lines:
            self.lines.show_moment(study, study.moment_of(selection))
        elif pane in (self.treemap, self.icicle, self.blocks):
            pane.show_selection(study, selection)

    def _show_row(self, row: Holder | ChangeRow | None) -> None:
        if row is None:
            self.stack.show_stack((), "")
            self._allow_stack(False)
        else:
            self._show_stack(row.stack, row.name)

    def _show_stack(self, stack: int, name: str) -> None:
        assert self.study is not None
        lines = self.study.stack_lines(stack)
        self.stack.show_stack(lines, f"of {name}" if lines else "")
        self._allow_stack(bool(lines))

    def _allow_stack(self, there: bool) -> None:
        self.editor.setEnabled(there)
        self.show_blocks.setEnabled(there)

    def _show_life(self, life: int) -> None:
        if self.study is not None:
            lives = self.study.history.lives
            self._show_stack(int(lives.stack[life]), f"the block at {int(lives.address[life]):#x}")

    def _show_path(self, path: CallPath) -> None:
        if self.study is not None and path:
            self.stack.show_stack(self.study.lines_of(path), "of the current frame")
            self._allow_stack(True)

    def _pick(self, moments: tuple[int, int | None]) -> None:
        assert self.study is not None
        moment, compared = moments
        home = moment == self.study.home and compared is None
        self.selector.change(moment=None if home else moment, compared=compared)

    def _pick_event(self, moment: int) -> None:
        assert self.study is not None
        self._pick((moment, None))
        self._show_stack(int(self.study.history.columns.stack[moment]), f"event {format_count(moment)}")

    def _remove(self, name: str) -> None:
        if name == "compared":
            self.selector.change(compared=None, moment=None)
        else:
            self.selector.change(**{name: getattr(Selection(), name)})

    def go(self, where: str) -> None:
        """Jump to the "peak" or the last "oom"."""
        if self.study is None or not self.study.has_history:
            return
        if where == "peak":
            self._pick((self.study.levels.peak, None))
        elif self.study.levels.ooms:
            self._pick((self.study.levels.ooms[-1], None))
        else:
            self.said.emit("No request was refused in this snapshot.")

    def focus_pane(self, number: int) -> None:
        """Move the keyboard focus to pane 1, 2, 3 or 4."""
        if number == 2:
            self.tabs.setCurrentWidget(self.who)
        panes = (self.bar, self.who.front.view, self.timeline, self.stack.text)
        panes[number - 1].setFocus(Qt.FocusReason.ShortcutFocusReason)

    def show_icicle(self) -> None:
        """Switch to the icicle."""
        self.tabs.setCurrentWidget(self.icicle)
        self.icicle.view.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def _edit(self) -> None:
        line = self.stack.line_in_front()
        if line is not None:
            self.said.emit(open_in_editor(line.file, line.line))

    def _show_blocks(self) -> None:
        line = self.stack.line_in_front()
        if line is not None:
            self.selector.change(path=((line.file, line.line, line.name),))
            self.tabs.setCurrentWidget(self.blocks)

    def refresh(self) -> None:
        """Continue pending work: answers, and a second file."""
        self.what_if.refresh()
        self.compare.refresh()

    def table_text(self) -> str:
        """The visible table as tab-separated text with a header; without a visible table, the one of call sites."""
        front = self.tabs.currentWidget()
        if front is self.events:
            return self.events.text_of()
        tables: dict[QWidget, Table] = {
            self.steps: self.steps.front,
            self.what_if: self.what_if.table,
            self.settings: self.settings.table,
            self.compare: self.compare.table,
        }
        if front in tables:
            return tables[front].text()
        if front is not self.who:
            self._fill(self.who)
        return self.who.front.text()

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self._palette = palette
        for part in (self.bar, self.timeline, self.blocks, self.treemap, self.icicle, self.lines):
            part.set_palette(palette)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._fill_front()


class SettingsPane(QWidget):
    """A table with the allocator's settings, then those of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table("Allocator settings", SETTINGS_COLUMNS, NO_SETTINGS)
        in_column(self.table, parent=self, margins=(4, 6, 4, 2))

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the settings that the file contains."""
        rows = [(name, text_of(value)) for name, value in sorted(snapshot.settings.items())]
        if not rows:
            rows = [("allocator settings", "not in this file")]
        rows.append(("file", snapshot.kind or "not reported"))
        rows.append(("events in the file", format_count(snapshot.events_in_file)))
        rows += [("warning", text) for text in snapshot.warnings]
        self.table.show_rows(list(rows))


def text_of(value: object) -> str:
    """The value of a setting as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {text_of(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return format_count(value)
    if value not in (None, ""):
        return str(value)
    return "not set"


class SnapshotHeader(CauseHeader):
    """The cause, the choice of a device, and the export buttons.

    Signals:
        copy_requested: the report should be copied.
        export_requested: an export as "csv", "png" or "html" was requested.
        device_chosen: the index of the chosen device.
    """

    copy_requested = Signal()
    export_requested = Signal(str)
    device_chosen = Signal(int)

    def __init__(self) -> None:
        device = ChoiceField("Device of the snapshot", "The snapshot holds the memory of several devices")
        export = QPushButton("Export")
        copy = worded_button("Copy report", "Copy the whole explanation as text", lambda: self.copy_requested.emit())
        super().__init__((device, copy, export))
        self.device, self.copy, self.export = device, copy, export
        self.device.activated.connect(self.device_chosen)
        self.export.setToolTip("Save the table, the picture or a report")
        menu = QMenu(self.export)
        menu.setToolTipsVisible(True)
        for kind, text, tip in EXPORTS:
            action = menu.addAction(text)
            action.setToolTip(plain_tip(tip))
            action.triggered.connect(lambda _checked=False, kind=kind: self.export_requested.emit(kind))
        self.export.setMenu(menu)

    def show_devices(self, names: Sequence[str], chosen: int) -> None:
        """List the devices; the choice is hidden if there is only one."""
        self.device.clear()
        self.device.addItems(list(names))
        self.device.setCurrentIndex(chosen)
        self.device.setVisible(len(names) > 1)

    def show_explanation(self, found: Explanation, title: str) -> None:
        """Show the explanation ``found`` under ``title``."""
        self.show_cause(found, title)
        remedies = found.remedies if found.requested_bytes is not None else ()
        self.remedies.show_remedies(remedies, found.remedies_note)
