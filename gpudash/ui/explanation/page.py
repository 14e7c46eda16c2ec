"""The page that explains an out-of-memory: what filled memory, who allocated it, when, and what would have fitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QFrame, QPushButton, QWidget

from gpudash.devices.names import known_product, shown_name
from gpudash.devices.simulated_cards import card_label, exact_text
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.explanation_text import (
    GROWTH,
    GROWTH_TIP,
    evidence_text,
    growth_text,
    place,
    report,
    total_text,
    workspace_text,
)
from gpudash.memory.explaining.whole_need import room_of
from gpudash.memory.explaining.wording import innermost
from gpudash.telemetry.explanation import Explanation, Owner, Remedy, short
from gpudash.telemetry.plots import CurveSpec, LineSpec, PlotSpec
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.bar import PartsBar
from gpudash.ui.explanation.blocks import BlocksPanel
from gpudash.ui.explanation.call_site_table import COUNT, OWN, TOTAL, WHERE, CallSiteArrangement, CallSiteTable
from gpudash.ui.explanation.comparison import ComparisonPanel, course_of
from gpudash.ui.explanation.header import CauseHeader
from gpudash.ui.explanation.own_program import Offer, OwnProgram
from gpudash.ui.explanation.program import MOST_STACK_PX, ProgramPanel
from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.focus_group import shortcut_within
from gpudash.ui.widgets.labels import search_field, title_label, worded_button
from gpudash.ui.widgets.layouts import in_column, in_halves, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, without_mnemonics
from gpudash.ui.widgets.tables import Column
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes, format_clock, format_count, summed_bytes

BEFORE_RATIO, AFTER_RATIO = 0.03, 0.05
"""Fractions of the run's duration shown before its start and after its end."""

BOTH_PX = 340
"""Minimum height, in logical pixels, at which a fragmented memory shows both the curve and the blocks."""

SHORTEST_S = 1.0

SHARES = (3000, 2000)
"""Stretch factors of the table and the curve, side by side."""

CURVE_WIDTH = 320
"""Logical pixels; a narrower curve is unreadable."""

LEAST_MIDDLE_PX, LEAST_PROGRAM_PX = 104, 140
"""Logical pixels: the least height of the table beside the curve, and of the stack or source. In less, as with large
text in a low window, the page is scrolled.
"""

UNLIMITED_PX = 2**24 - 1
"""Qt's QWIDGETSIZE_MAX: a widget with this maximum height is unlimited."""

STACK_ROWS = (3, 2)
SOURCE_ROWS = (2, 3)
"""Stretch factors of the table and curve, and of the stack or source below them."""

COLUMNS = (
    OWN,
    TOTAL,
    COUNT,
    Column(GROWTH, right=True, tip=GROWTH_TIP),
    Column("what"),
    WHERE,
)

GROUPS = ("call site", "module", "file", "category")
"""What a row can stand for."""

EMPTY = "No live block matches. Esc shows all again."


class ExplanationPage(QWidget):
    """The whole page.

    Signals:
        applied: run again with this `Remedy`.
        closed: return to the plots.
        stop_wanted: stop the run that tries the change.
    """

    applied = Signal(object)
    closed = Signal()
    stop_wanted = Signal()

    def __init__(self, store: Store, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.explanation: Explanation | None = None
        self._store = store
        self.header = ExplanationHeader()
        self.bar = PartsBar(palette)
        self.owners = OwnersPanel()
        self.program = ProgramPanel(palette)
        self.stack = self.program.stack
        self.comparison = ComparisonPanel(palette)
        self.blocks = BlocksPanel(palette)
        self._allocator = ""
        self._own: OwnProgram | None = None
        self._show_header: Callable[..., None] = self.header.show_explanation
        self.view = TimeView(parent=self)
        self.plots = PlotStack(store, self.view, palette)
        self._plot_menu = PlotMenu(self.plots)
        self.plots.show_readout(False)
        self.plots.strip.hide()
        self._evidence = PlainLabel(role="muted", wraps=True)
        self._build()
        self._connect()

    def _build(self) -> None:
        self._total = PlainLabel(role="muted")
        filled = QFrame()
        filled.setProperty("role", "panel")
        head = in_row(title_label("WHAT FILLED IT"), self._total, 1)
        in_column(head, self.bar, parent=filled, margins=(12, 6, 12, 6), spacing=4)
        self.right = in_halves((self.plots, 1), (self.blocks, 1), across=False)
        self.middle = in_halves((self.owners, 3), (self.right, 2), across=True)
        self.middle.setSizes([SHARES[0], SHARES[1]])
        self.plots.setMinimumWidth(CURVE_WIDTH)
        rows = (self.header, filled, self.middle, self.comparison, self.program, self._evidence)
        self._rows = in_column(*rows, parent=self, margins=(12, 6, 12, 6), spacing=6)
        self.comparison.hide()
        self._share_rows(sourced=False)
        self._take_least_heights()

    def _take_least_heights(self) -> None:
        self.middle.setMinimumHeight(scaled(LEAST_MIDDLE_PX))
        self.program.setMinimumHeight(scaled(LEAST_PROGRAM_PX))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._take_least_heights()

    def heightForWidth(self, width: int) -> int:
        """The least height, as which a scroll area takes it: in more, the table, the curve and the source have it."""
        return self._rows.minimumHeightForWidth(width)

    def _connect(self) -> None:
        self.header.applied.connect(self.applied)
        self.header.closed.connect(self.closed)
        self.header.copy_requested.connect(self.copy_report)
        self.bar.chosen.connect(self.owners.set_category)
        self.owners.category_cleared.connect(self._clear)
        self.owners.owner_changed.connect(self.program.show_owner)
        self.program.sourced.connect(lambda sourced: self._share_rows(sourced=sourced))
        self.program.change.run_wanted.connect(self.applied)
        self.program.change.stop_wanted.connect(self.stop_wanted)
        panes = (self.bar, self.owners.table.view, self.plots)
        for number, pane in enumerate(panes, 1):
            shortcut_within(self, str(number), partial(self._focus, pane))
        shortcut_within(self, "4", lambda: self.program.text.setFocus(Qt.FocusReason.ShortcutFocusReason))
        shortcut_within(self, "/", lambda: self.owners.search.setFocus(Qt.FocusReason.ShortcutFocusReason))
        shortcut_within(self, "T", self.owners.total.toggle)
        shortcut_within(self, "Esc", self.leave)

    def _focus(self, pane: QWidget) -> None:
        if pane is self.plots and self.plots.isHidden():
            pane = self.blocks.view
        pane.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def show_explanation(
        self,
        found: Explanation,
        began_s: float,
        uuid: str | None,
        *,
        commanding: bool,
        searching: bool,
        number: int | None = None,
        rank: int | None = None,
        allocator: str = "",
        program: OwnProgram | None = None,
        snapshot: Path | None = None,
    ) -> None:
        """Show an explanation.

        Args:
            found: explanation to show.
            began_s: session time at which the run began.
            uuid: UUID of the GPU the run used.
            commanding: whether a remedy can be applied here.
            searching: whether the search for remedies is still going on.
            number: number of the run in the session, if another run is in view.
            rank: rank whose memory is explained, in a distributed run.
            allocator: device name in the readings, if it differs from the run's name for it.
            program: the user's program; ``None`` for a built-in workload.
            snapshot: memory snapshot of the out-of-memory; ``None`` if none was kept.
        """
        # Remedies arrive one by one after the explanation; if nothing else changed, update only them.
        same = self.explanation is not None and self.explanation.with_remedies(()) == found.with_remedies(())
        self.explanation = found
        self._allocator = allocator or found.device
        self._compare(False)
        self.blocks.show_snapshot(found, snapshot)
        if not same:
            self._show_parts(found, began_s, uuid)
        self._show_header = partial(
            self.header.show_explanation, found, commanding=commanding, searching=searching, number=number, rank=rank
        )
        # After the table: selecting its first row shows the file that holds most; the change may be in another file.
        self._show_program(program)

    def put_forward(self, remedy: Remedy) -> None:
        """Show a different remedy beside the source."""
        program = self._own
        if program is not None and (program.offer is None or program.offer.remedy != remedy):
            self._show_program(replace(program, offer=Offer(remedy, runs=True)))

    def _show_program(self, program: OwnProgram | None) -> None:
        found = self.explanation
        if found is None:
            return
        self._own = program
        sourced = self.program.show_program(found, program)
        shown_remedy = None
        if program is None:
            self._show_header(sourced=False)
            return
        if program.offer is not None and sourced:
            shown_remedy = program.offer.remedy
        self._show_header(sourced=sourced, runnable=program.runnable, shown_remedy=shown_remedy)

    def _show_parts(self, found: Explanation, began_s: float, uuid: str | None) -> None:
        self._total.setText(total_text(found))
        self.bar.show_parts(found)
        self.owners.show_owners(found)
        evidence = evidence_text(found.evidence)
        self._evidence.setText(f"Evidence: {evidence}" if evidence else "")
        self._show_when(found, began_s, uuid, self._allocator)

    def show_trial(self, before: RunView, after: RunView) -> None:
        """Compare a run that tries a change with the run that is explained.

        Args:
            before: the run that is explained.
            after: the run with the change.
        """
        found = self.explanation
        if found is None:
            return
        with self._store.lock:
            # One lock for both, so that the two curves end at the same moment.
            courses = [course_of(self._store, run, self._allocator) for run in (before, after)]
            self.program.change.show_trial(after, before.step)
            self.comparison.show_courses(
                courses[0], courses[1], room_of(found), (before, after), found.peak_without_change
            )
        self._compare(True)

    def _compare(self, shown: bool) -> None:
        """Replace the table and the curve with the comparison, or bring them back."""
        focused = QApplication.focusWidget()
        # Hiding a widget passes its focus to the next widget in the window.
        leaves = shown and focused is not None and self.middle.isAncestorOf(focused)
        self.comparison.setVisible(shown)
        self.middle.setVisible(not shown)
        if leaves:
            self.program.change.run_button.setFocus()

    def _share_rows(self, *, sourced: bool) -> None:
        if sourced:
            above, below = SOURCE_ROWS
        else:
            above, below = STACK_ROWS
        for part, share in ((self.middle, above), (self.comparison, above), (self.program, below)):
            self._rows.setStretchFactor(part, share)
        self.program.setMaximumHeight(UNLIMITED_PX if sourced else MOST_STACK_PX)

    def _show_when(self, found: Explanation, began_s: float, uuid: str | None, allocator: str) -> None:
        curves = (
            CurveSpec(("allocator", "reserved_bytes", allocator), "reserved", "bytes", "reserved", aside=True),
            CurveSpec(("allocator", "allocated_bytes", allocator), "allocated", "bytes", "allocated"),
            CurveSpec(
                ("gpu", "used_bytes", uuid),
                "used",
                "bytes",
                "reference",
                style="dot",
                note="By all processes",
                aside=True,
            ),
        )
        cap = found.allowed_bytes
        capacity = LineSpec("capacity", "capacity", value=float(found.capacity_bytes), scales=cap is None)
        capped = () if cap is None else (LineSpec("memory cap", "warning", value=float(cap)),)
        self.plots.set_plots(
            [
                PlotSpec(
                    id="when",
                    title="WHEN",  # the header names the device, and the curves need the room
                    curves=curves,
                    unit="bytes",
                    lines=(*capped, capacity),
                )
            ]
        )
        length = max(SHORTEST_S, found.time_s - began_s)
        self.view.show(began_s - BEFORE_RATIO * length, found.time_s + AFTER_RATIO * length)

    def _share_right(self) -> None:
        """Show only the blocks when both do not fit: the headline is about them."""
        both = self.right.height() >= scaled(BOTH_PX)
        self.plots.setVisible(both or self.blocks.isHidden())

    def refresh(self) -> None:
        """Redraw the curve if it changed; called by the window's timer."""
        self.plots.refresh()
        self.blocks.refresh()
        self._share_right()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        for part in (self.bar, self.plots, self.blocks, self.comparison, self.program):
            part.set_palette(palette)

    def copy_report(self) -> None:
        """Copy the explanation to the clipboard as text."""
        if self.explanation is not None:
            QGuiApplication.clipboard().setText("\n".join(report(self.explanation)))

    def leave(self) -> None:
        """Clear the filters; if there are none, return to the plots."""
        if not self._clear():
            self.closed.emit()

    def _clear(self) -> bool:
        self.bar.set_category("")
        return self.owners.clear()


class ExplanationHeader(CauseHeader):
    """The cause and the buttons.

    Signals:
        applied: run again with this `Remedy`.
        copy_requested: copy the report.
        closed: return to the plots.
    """

    applied = Signal(object)
    copy_requested = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        copy = worded_button("Copy report", "Copy the whole explanation as text", lambda: self.copy_requested.emit())
        close = worded_button("Back to the plots   Esc", "Leave the explanation (Esc)", lambda: self.closed.emit())
        super().__init__((copy, close), parent)
        self.remedies.applied.connect(self.applied)

    def show_explanation(
        self,
        found: Explanation,
        *,
        commanding: bool,
        searching: bool,
        number: int | None = None,
        rank: int | None = None,
        sourced: bool = False,
        runnable: Sequence[Remedy] = (),
        shown_remedy: Remedy | None = None,
    ) -> None:
        """Show the cause and remedies of ``found``.

        Args:
            commanding: whether a remedy can be applied here.
            searching: whether the search for remedies is still going on.
            number: number of the run in the session, if another run is in view.
            rank: rank whose memory is explained, in a distributed run.
            runnable: remedies that the user's program can be run with from here.
            sourced: whether the source is shown, with the note beside it.
            shown_remedy: remedy already shown beside the source, left out of the header.
        """
        if rank is None:
            whose = ""
        else:
            whose = f"rank {rank} on "
        what = "OUT OF MEMORY AT"
        if found.requested_bytes is None:
            what = "MEMORY AT"
        if number is not None:
            what = f"RUN {number}, {what}"
        self.show_cause(found, f"{what} {format_clock(found.time_s)} · {whose}{_device_text(found)}")
        remedies = found.remedies
        note = found.remedies_note
        if shown_remedy is not None:
            remedies = tuple(remedy for remedy in remedies if remedy != shown_remedy)
        if sourced:
            note = ""
        follow = shown_remedy is not None and shown_remedy in found.remedies[:1]
        self.remedies.show_remedies(
            remedies, note, commanding=commanding, searching=searching, runnable=runnable, follow=follow
        )
        self.remedies.setVisible(found.requested_bytes is not None and bool(remedies or note or searching))


def _device_text(found: Explanation) -> str:
    """The device with its card, which tells several simulated ones apart: "sim:0 (SIMULATED 24 GiB)"."""
    if not found.simulated:
        return " · ".join(filter(None, (shown_name(found.device), found.product)))
    card = known_product(found.product) or card_label(exact_text(found.capacity_bytes))
    return shown_name(found.device, card)


class OwnersPanel(QFrame):
    """The table of owners and its filters.

    Signals:
        owner_changed: the `Owner` of the current row; ``None`` if there is none.
        category_cleared: the category filter was removed here.
    """

    owner_changed = Signal(object)
    category_cleared = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._explanation: Explanation | None = None
        self._choice = Choice()
        self.chip = QPushButton()
        self.chip.setProperty("role", "chip")
        self.chip.setToolTip("Show all categories again (Esc)")
        self.chip.clicked.connect(self.category_cleared)
        self.arrangement = CallSiteArrangement(GROUPS)
        self.arrangement.grouped.connect(self._changed)
        self.arrangement.ordered.connect(self._changed)
        self.group, self.total = self.arrangement.group, self.arrangement.total
        self.search = search_field("Search   /", "Search call sites")
        self.search.setMaximumWidth(150)
        self.search.textChanged.connect(self._changed)
        self.table = CallSiteTable("Who allocated it", COLUMNS, EMPTY)
        self.table.row_changed.connect(self.owner_changed)
        head = in_row(title_label("WHO ALLOCATED IT"), self.chip, 1, self.arrangement, self.search, spacing=6)
        in_column(head, (self.table, 1), parent=self, margins=(10, 6, 8, 6), spacing=4)

    def show_owners(self, explanation: Explanation) -> None:
        """Show who allocated the memory in ``explanation``."""
        self._explanation = explanation
        self.set_category("")

    def set_category(self, category: str) -> None:
        """Show only this category; "" shows all."""
        self._choice = replace(self._choice, category=category)
        self._changed()

    def clear(self) -> bool:
        """Clear the search and the category; return whether there was anything to clear."""
        narrowed = bool(self._choice.category or self._choice.search)
        self.search.clear()
        self.set_category("")
        return narrowed

    def _changed(self) -> None:
        self._choice = replace(
            self._choice,
            group=self.arrangement.grouped_by,
            search=self.search.text(),
            by_total=self.arrangement.by_total,
        )
        self.chip.setText(without_mnemonics(f"{self._choice.category}  ×"))
        self.chip.setVisible(bool(self._choice.category))
        if self._explanation is None:
            return
        rows = owner_rows(self._explanation, self._choice)
        self.table.show_call_sites([row.cells for row in rows], [row.owner for row in rows])


@dataclass(frozen=True)
class OwnerRow:
    """A row: its cells, and the largest call site it stands for."""

    cells: tuple[str, ...]
    owner: Owner | None


@dataclass(frozen=True)
class Choice:
    """Which owners are shown, and how.

    Attributes:
        group: one of `GROUPS`.
        category: show only this category; "" for all.
        search: show only owners with this text in their place, module or category.
        by_total: sort by what a line and everything it called allocated, rather than by the line alone.
    """

    group: str = GROUPS[0]
    category: str = ""
    search: str = ""
    by_total: bool = False


def owner_rows(explanation: Explanation, choice: Choice) -> list[OwnerRow]:
    """Rows of ``explanation``, largest first."""
    key = _KEYS[choice.group]
    groups: dict[tuple[str, str, str], list[Owner]] = defaultdict(list)
    for owner in explanation.owners:
        if not _wanted(owner, choice):
            continue
        if choice.group == GROUPS[0]:
            # As in the report: a line has a row for each kind of memory that it allocated.
            groups[key(owner), owner.category, owner.module].append(owner)
        else:
            groups[key(owner), "", ""].append(owner)
    rows = [(owners, _row(name, owners, choice)) for (name, _category, _module), owners in groups.items()]
    rows.sort(key=lambda row: -_size(row[0], choice))
    found = [row for _owners, row in rows]
    if explanation.rest_owners and not choice.category and not choice.search:
        # Call sites below the listed ones have no category, and no text to search.
        text = f"{format_count(explanation.rest_owners)} more call sites"
        found.append(OwnerRow((format_bytes(explanation.rest_bytes), "", "", "", "", text), None))
    return found


def _wanted(owner: Owner, choice: Choice) -> bool:
    if choice.category and owner.category != choice.category:
        return False
    text = f"{owner.file} {owner.line} {owner.name} {owner.module} {owner.category} {owner.text}".lower()
    return choice.search.lower() in text


def _size(owners: Sequence[Owner], choice: Choice) -> int:
    if choice.by_total:
        return _total(owners)
    return summed_bytes(owners)


def _total(owners: Sequence[Owner]) -> int:
    """The total of a single line. For several lines, a lower bound: their own sum, or the largest total if greater."""
    # Totals of nested lines count the same bytes, so they cannot be added up.
    return max(summed_bytes(owners), *(owner.total_bytes for owner in owners))


def _row(name: str, owners: Sequence[Owner], choice: Choice) -> OwnerRow:
    largest = max(owners, key=lambda owner: owner.bytes)
    own = summed_bytes(owners)
    growth = sum(owner.growth_per_step or 0.0 for owner in owners)
    stride = 1.0
    strides = {owner.growth_stride for owner in owners if owner.growth_per_step}
    if len(strides) == 1:
        stride = strides.pop()
    what = ", ".join(dict.fromkeys(owner.category for owner in owners))
    modules = {innermost(owner.module) for owner in owners}
    if choice.group == "call site" and len(modules) == 1 and largest.module:
        what = f"{innermost(largest.module)}: {what}"
    cells = (
        format_bytes(own),
        format_bytes(_total(owners)),
        format_count(sum(owner.count for owner in owners)),
        growth_text(growth, stride),
        "" if choice.group == "category" else what,
        name,
    )
    return OwnerRow(cells, largest)


def _call_site(owner: Owner) -> str:
    if owner.category == WORKSPACE and owner.file is not None:
        return workspace_text(place(owner))
    if owner.text:
        return f"{place(owner)}  {owner.text}"
    return place(owner)


def _file(owner: Owner) -> str:
    if owner.file is None:
        return "no stack recorded"
    return short(owner.file)


_KEYS: dict[str, Callable[[Owner], str]] = {
    "call site": _call_site,
    "module": lambda owner: owner.module or "outside of modules",
    "file": _file,
    "category": lambda owner: owner.category,
}
