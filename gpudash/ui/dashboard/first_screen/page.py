"""The first screen: three panels to start from, and below the monitor a row of buttons for users without a file."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtWidgets import QScrollArea, QWidget

from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.first_screen.model_panel import ModelPanel
from gpudash.ui.dashboard.first_screen.panels import StartPanel
from gpudash.ui.dashboard.first_screen.program_panel import ProgramsPanel
from gpudash.ui.dashboard.first_screen.script_panel import ScriptPanel
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled

WITHOUT_A_FILE = "Or without a file:"
TRAIN, DEMO, FORM = "Train a small transformer   F5", "Play the demo", "All workloads"
AS_SET = "Start {workload}, as last set   F5"
TRAIN_TIP = "Run the default training on the device that is chosen"
NAME = "First screen"

GAP_PX = 12
"""Logical pixels between the panels."""

MOST_PX = 500
"""Maximum height in logical pixels; the monitor gets the rest."""


class FirstScreen(QScrollArea):
    """Three panels side by side, to be scrolled to in a narrow window.

    Attributes:
        script, model, program: the panels.
        train, demo, form: buttons of `bottom`, which is placed below the monitor; the first does what F5 does.
    """

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.setAccessibleName(NAME)
        self.setMaximumHeight(scaled(MOST_PX))
        self.setWidgetResizable(True)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.script = ScriptPanel(palette)
        self.model = ModelPanel(palette)
        self.program = ProgramsPanel(palette)
        self._panels = _Panels((self.script, self.model, self.program))
        self.setWidget(self._panels)
        self.train = worded_button(TRAIN, TRAIN_TIP, lambda: None)
        self.demo = worded_button(DEMO, "What tensors do to memory, scene by scene", lambda: None)
        self.form = worded_button(FORM, "Choose a workload and its values, and see what it will need", lambda: None)
        self.bottom = QWidget()
        label = PlainLabel(WITHOUT_A_FILE, role="muted")
        in_row(label, self.train, self.demo, self.form, 1, parent=self.bottom, margins=(2, 0, 2, 0), spacing=8)
        FocusGroup(self.bottom, [self.train, self.demo, self.form])

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self.updateGeometry()  # the least height is that of the panels, of which Qt tells a scroll area only
        return super().eventFilter(watched, event)

    def minimumSizeHint(self) -> QSize:
        height = self._panels.heightForWidth(self.viewport().width()) + self.horizontalScrollBar().sizeHint().height()
        return QSize(self.script.minimumSizeHint().width(), height)

    def show_start(self, workload: str, tip: str, *, ready: bool) -> None:
        """Let the first button say what a start would run.

        Args:
            workload: its title; "" for the default training.
            tip: what a start does, or why nothing can be started.
            ready: whether it can.
        """
        text = TRAIN
        if workload:
            text = AS_SET.format(workload=f"{workload[:1].lower()}{workload[1:]}")
        self.train.setText(text)
        self.train.setAccessibleName(text)
        self.train.setToolTip(plain_tip(tip if workload else TRAIN_TIP))
        self.train.setEnabled(ready)

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        for panel in (self.script, self.model, self.program):
            panel.set_palette(palette)


class _Panels(QWidget):
    """The panels in their row, which shrink with the window to their least height before they are cut."""

    def __init__(self, panels: Sequence[StartPanel]) -> None:
        super().__init__()
        self._of = panels
        self.setProperty("role", "scrolled")
        in_row(*((panel, 1) for panel in panels), parent=self, margins=(0, 0, 0, 0), spacing=GAP_PX)

    def heightForWidth(self, width: int) -> int:
        """The least height in which their wrapped sentences are whole."""
        share = (width - GAP_PX * (len(self._of) - 1)) // len(self._of)
        heights = (
            panel.column.minimumHeightForWidth(max(share, panel.minimumSizeHint().width())) for panel in self._of
        )
        return max(self.minimumSizeHint().height(), *heights)
