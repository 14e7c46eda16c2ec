"""A torch.profiler trace in a tab: its operators as a table and over time, and the memory of every device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from gpudash.memory.profiler_trace.profile import PROFILE_MEMORY, TraceProfile, peak_sentence
from gpudash.memory.profiler_trace.trace_file import TraceError
from gpudash.session.trackers.trace_opener import OpenedTrace
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.document import FileDocument
from gpudash.ui.dashboard.tabs.operators_tab import LEAST_TIMELINE_HEIGHT, OperatorsTable, OperatorsTimeline
from gpudash.ui.plots.painting.scenes import SceneWidget
from gpudash.ui.snapshot.trace_plot import MARGINS, memory_scene, styles
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.focus_group import shortcut_within
from gpudash.ui.widgets.labels import search_field, worded_label
from gpudash.ui.widgets.layouts import in_column, in_halves, in_row, scrolled
from gpudash.ui.widgets.opening_page import OpeningPage
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes, format_count

REFUSED_ADVICE = (
    'To write a trace, call prof.export_chrome_trace("trace.json.gz") after '
    "torch.profiler.profile(profile_memory=True, record_shapes=True)."
)


class TraceDocument(FileDocument):
    """The document of one trace file.

    Args:
        opened: the file; it is started here unless it already was.
        palette: the window's colours.
    """

    def __init__(self, opened: OpenedTrace, palette: Palette) -> None:
        opening = OpeningPage(opened.path.name, refused_advice=REFUSED_ADVICE)
        super().__init__(opened.path.name, "Trace", opening)
        self._opened = opened
        self._is_settled = False
        self.page = TracePage(palette)
        self._stack.addWidget(self.page)
        self.setFocusProxy(self._stack)
        shortcut_within(self, "Esc", self.leave)
        shortcut_within(self, "Ctrl+C", self.copy_values)
        shortcut_within(self, "/", lambda: self.page.search.setFocus(Qt.FocusReason.ShortcutFocusReason))
        opened.start()

    @property
    def ready(self) -> bool:
        """Whether the trace is shown."""
        return self._stack.currentWidget() is self.page

    def refresh(self) -> None:
        """Continue opening; called by the window's timer."""
        if self._is_settled:
            return
        try:
            profile = self._opened.poll()
        except TraceError as error:
            self._is_settled = True
            self._refuse(str(error))
            return
        if profile is None:
            self.opening.show_progress(*self._opened.progress)
            return
        self._is_settled = True
        self.page.show_profile(profile)
        self._stack.setCurrentWidget(self.page)
        self.page.table.setFocus()
        for text in profile.warnings:
            self.said.emit(text)

    def leave(self) -> None:
        """Clear the search; while the file is opening, cancel."""
        if not self.ready:
            self.closed.emit()
        elif self.page.search.text():
            self.page.search.clear()
        else:
            self.said.emit("Everything is shown. Ctrl+W closes the tab.")

    def copy_values(self) -> None:
        """Copy the operators as tab-separated text."""
        if self.ready:
            self.page.table.copy()
            self.said.emit("Copied the table.")

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.page.set_palette(palette)

    def close_document(self) -> None:
        """Stop the reader process."""
        self._is_settled = True
        self._opened.close()


class TracePage(QWidget):
    """The contents of a trace.

    Attributes:
        table: the operators.
        timeline: when the longest operators ran.
        plot: the memory of the chosen device.
    """

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._profile: TraceProfile | None = None
        self.device = ChoiceField("Device", "Device whose memory is shown")
        self.device.currentIndexChanged.connect(self._show_memory)
        self.peak = worded_label("muted")
        self.plot = SceneWidget(palette, styles, MARGINS)
        self.no_memory = PlainLabel(f"The trace has no memory: {PROFILE_MEMORY}.", role="muted", wraps=True)
        self.search = search_field("Find", "Find an operator", "Part of an operator's name or its shapes")
        self.search.setMaximumWidth(220)
        self.counts = worded_label("muted", wraps=False)
        self.timeline = OperatorsTimeline()
        self.timeline.set_palette(palette)
        self.timeline.setAccessibleName("Timeline of the trace")
        self.table = OperatorsTable()
        self.search.textChanged.connect(self.table.operators.search)
        self.table.chosen.connect(self._select)
        self.timeline.chosen.connect(self.table.select)
        self._arrange()

    def _arrange(self) -> None:
        scroll = scrolled(self.timeline)
        scroll.setMinimumHeight(LEAST_TIMELINE_HEIGHT)
        above, between, below = QWidget(), QWidget(), QWidget()
        # aligned with the plot above, so that the same x is the same time
        left, right = round(scaled(MARGINS.left)), round(scaled(MARGINS.right))
        in_column(scroll, parent=between, margins=(8 + left, 0, 8 + right, 0))
        head = in_row(PlainLabel("MEMORY", role="title"), self.device, (self.peak, 1), spacing=8)
        in_column(head, self.no_memory, (self.plot, 1), parent=above, margins=(8, 6, 8, 4), spacing=4)
        line = in_row(PlainLabel("OPERATORS", role="title"), self.search, (self.counts, 1), spacing=8)
        in_column(line, (self.table, 1), parent=below, margins=(8, 4, 8, 6), spacing=4)
        self._halves = in_halves((above, 2), (between, 0), (below, 3), across=False)
        in_column(self._halves, parent=self, margins=(0, 0, 0, 0))

    def show_profile(self, profile: TraceProfile) -> None:
        """Show a trace that has been read."""
        self._profile = profile
        self.table.show_rows(profile.operators)
        self.timeline.show_timeline(profile.timeline)
        self.counts.setText(_counts_text(profile))
        self.device.clear()
        self.device.addItems([memory.device for memory in profile.memory])
        self.device.setVisible(len(profile.memory) > 1)
        self.plot.setVisible(bool(profile.memory))
        self.no_memory.setVisible(not profile.memory)
        self._show_memory()
        self._share_height()

    def _share_height(self) -> None:
        """Give the timeline the height of its rows, up to a third, and divide the rest."""
        whole = max(1, self.height())
        rows = min(max(LEAST_TIMELINE_HEIGHT, self.timeline.minimumHeight() + 2), whole // 3)
        rest = whole - rows
        self._halves.setSizes([rest * 2 // 5, rows, rest * 3 // 5])

    def set_palette(self, palette: Palette) -> None:
        """Use these colours."""
        self.timeline.set_palette(palette)
        self.plot.set_palette(palette)

    def _show_memory(self) -> None:
        place = max(0, self.device.currentIndex())
        if self._profile is None or place >= len(self._profile.memory):
            return
        memory = self._profile.memory[place]
        self.peak.setText(peak_sentence(memory))
        text = f"peak {format_bytes(memory.peak_bytes)}"
        self.plot.show_scene(f"Memory of {memory.device}", text, partial(memory_scene, memory, self._profile.seconds))

    def _select(self, row: Mapping[str, Any] | None) -> None:
        if row is None:
            self.timeline.select(None)
        else:
            self.timeline.select(str(row["name"]))


def _counts_text(profile: TraceProfile) -> str:
    calls = sum(row["calls"] for row in profile.operators)
    text = f"{format_count(calls)} calls of {format_count(len(profile.operators))} operators"
    if profile.operators_left_out:
        text += f"; {format_count(profile.operators_left_out)} short ones are left out"
    return text
