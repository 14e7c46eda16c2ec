"""The page that explains a full memory: what filled it, who allocated that, when, and what would have fitted."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSplitter, QVBoxLayout, QWidget

from gpudash.devices.names import SIMULATED_PRODUCT, shown_name
from gpudash.memory.explaining.explanation_text import evidence_words, report, total_words
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.plots import CurveSpec, LineSpec, PlotSpec
from gpudash.telemetry.store import Store
from gpudash.ui.colours import Palette
from gpudash.ui.explanation.bar import PartsBar
from gpudash.ui.explanation.header import CauseHeader
from gpudash.ui.explanation.owners import OwnersPanel
from gpudash.ui.explanation.stack import StackPanel
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.labels import title_label, worded_button
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.units import format_clock

BEFORE_RATIO, AFTER_RATIO = 0.03, 0.05
"""Parts of a run's time that are shown before and after it."""

SHORTEST_S = 1.0

SHARES = (3000, 2000)
"""Widths of the table and of the curve, in proportion."""

CURVE_WIDTH = 320
"""Logical pixels below which the curve says nothing."""


class ExplanationPage(QWidget):
    """The whole page.

    Signals:
        applied: the `Remedy` to run again with.
        closed: back to the plots.
    """

    applied = Signal(object)
    closed = Signal()

    def __init__(self, store: Store, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.explanation: Explanation | None = None
        self.header = ExplanationHeader()
        self.bar = PartsBar(palette)
        self.owners = OwnersPanel()
        self.stack = StackPanel()
        self.view = TimeView(parent=self)
        self.plots = PlotStack(store, self.view, palette)
        self.plots.show_readout(False)
        self.plots.strip.hide()
        self._evidence = PlainLabel()
        self._evidence.setProperty("role", "muted")
        self._evidence.setWordWrap(True)
        self._build()
        self._connect()

    def _build(self) -> None:
        self._total = PlainLabel()
        self._total.setProperty("role", "muted")
        filled = QFrame()
        filled.setProperty("role", "panel")
        head = QHBoxLayout()
        head.addWidget(title_label("1  WHAT FILLED IT"))
        head.addWidget(self._total)
        head.addStretch(1)
        rows = QVBoxLayout(filled)
        rows.setContentsMargins(12, 6, 12, 6)
        rows.setSpacing(4)
        rows.addLayout(head)
        rows.addWidget(self.bar)
        self.middle = QSplitter(Qt.Orientation.Horizontal)
        self.middle.setChildrenCollapsible(False)
        self.middle.addWidget(self.owners)
        self.middle.addWidget(self.plots)
        self.middle.setStretchFactor(0, 3)
        self.middle.setStretchFactor(1, 2)
        self.middle.setSizes([SHARES[0], SHARES[1]])
        self.plots.setMinimumWidth(CURVE_WIDTH)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(12, 6, 12, 6)
        outer.setSpacing(6)
        outer.addWidget(self.header)
        outer.addWidget(filled)
        outer.addWidget(self.middle, 3)
        outer.addWidget(self.stack, 2)
        outer.addWidget(self._evidence)

    def _connect(self) -> None:
        self.header.applied.connect(self.applied)
        self.header.closed.connect(self.closed)
        self.header.copy_requested.connect(self.copy_report)
        self.bar.chosen.connect(self.owners.set_category)
        self.owners.category_cleared.connect(self._clear)
        self.owners.owner_changed.connect(self.stack.show_owner)
        panes = (self.bar, self.owners.table.view, self.plots, self.stack.text)
        for number, pane in enumerate(panes, 1):
            self._key(str(number), lambda pane=pane: pane.setFocus(Qt.FocusReason.ShortcutFocusReason))
        self._key("/", lambda: self.owners.search.setFocus(Qt.FocusReason.ShortcutFocusReason))
        self._key("T", self.owners.total.toggle)
        self._key("Esc", self.leave)

    def _key(self, key: str, act: object) -> None:
        shortcut = QShortcut(QKeySequence(key), self)
        shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        shortcut.activated.connect(act)

    def show_explanation(
        self,
        found: Explanation,
        began_s: float,
        uuid: str | None,
        *,
        commanding: bool,
        looking: bool,
        rank: int | None = None,
    ) -> None:
        """Explain.

        Args:
            found: what is to be shown.
            began_s: session time at which the run began.
            uuid: of the GPU it was on.
            commanding: whether a remedy can be applied here.
            looking: whether remedies are still looked for.
            rank: whose memory it is, in a run with ranks.
        """
        same = self.explanation is not None and self.explanation.with_remedies(()) == found.with_remedies(())
        self.explanation = found
        self.header.show_explanation(found, commanding=commanding, looking=looking, rank=rank)
        if same:
            return
        self._total.setText(total_words(found))
        self.bar.show_parts(found)
        self.owners.show_owners(found)
        evidence = evidence_words(found.evidence)
        self._evidence.setText(f"Evidence: {evidence}" if evidence else "")
        self._show_when(found, began_s, uuid)

    def _show_when(self, found: Explanation, began_s: float, uuid: str | None) -> None:
        allocator = found.device
        curves = (
            CurveSpec(("allocator", "reserved_bytes", allocator), "reserved", "bytes", "reserved"),
            CurveSpec(("allocator", "allocated_bytes", allocator), "allocated", "bytes", "allocated"),
            CurveSpec(("gpu", "used_bytes", uuid), "used", "bytes", "reference", style="dot", note="By all processes"),
        )
        capacity = LineSpec("capacity", "capacity", value=float(found.capacity_bytes))
        self.plots.set_plots(
            [
                PlotSpec(
                    id="when",
                    title=f"3  WHEN · {shown_name(allocator)}",
                    curves=curves,
                    unit="bytes",
                    lines=(capacity,),
                )
            ]
        )
        length = max(SHORTEST_S, found.time_s - began_s)
        self.view.show(began_s - BEFORE_RATIO * length, found.time_s + AFTER_RATIO * length)

    def refresh(self) -> None:
        """Draw the curve anew where it has changed; the window's timer calls it."""
        self.plots.refresh()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.bar.set_palette(palette)
        self.plots.set_palette(palette)

    def copy_report(self) -> None:
        """Put the explanation on the clipboard as text."""
        if self.explanation is not None:
            QGuiApplication.clipboard().setText("\n".join(report(self.explanation)))

    def leave(self) -> None:
        """Show everything again; where everything is shown, go back to the plots."""
        if not self._clear():
            self.closed.emit()

    def _clear(self) -> bool:
        self.bar.set_category("")
        return self.owners.clear()


class ExplanationHeader(CauseHeader):
    """The cause, with buttons.

    Signals:
        applied: the `Remedy` to run again with.
        copy_requested: the report shall be copied.
        closed: back to the plots.
    """

    applied = Signal(object)
    copy_requested = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        copy = worded_button("Copy report", "Copy the whole explanation as text", lambda: self.copy_requested.emit())
        close = worded_button("Back to the plots   Esc", "Leave the explanation (Esc)", lambda: self.closed.emit())
        super().__init__((copy, close), parent)
        self.remedies.applied.connect(self.applied)

    def show_explanation(self, found: Explanation, *, commanding: bool, looking: bool, rank: int | None = None) -> None:
        """Show what ``found`` says.

        Args:
            commanding: whether a remedy can be applied here.
            looking: whether remedies are still looked for.
            rank: whose memory it is, in a run with ranks.
        """
        whose = "" if rank is None else f"rank {rank} on "
        what = "MEMORY AT" if found.requested_bytes is None else "OUT OF MEMORY AT"
        product = "" if found.product in ("", SIMULATED_PRODUCT) else f" · {found.product}"
        self.show_cause(found, f"{what} {format_clock(found.time_s)} · {whose}{shown_name(found.device)}{product}")
        self.remedies.show_remedies(found.remedies, found.remedies_note, commanding=commanding, looking=looking)
        self.remedies.setVisible(found.requested_bytes is not None)
