"""The row above the plots: live or paused, the smoothing of the loss, the time range shown."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QButtonGroup, QSlider, QWidget

from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel

WINDOWS = (("10 s", 10.0), ("1 min", 60.0), ("5 min", 300.0), ("30 min", 1800.0))

GAP = 4
"""Logical pixels between controls."""

LONG_STATE = "This run ended 00 min 00 s ago"
"""Room for this is kept beside the buttons: where they are must not depend on what the view shows now."""


class ViewBar(QWidget):
    """Controls of the shared time axis, on a second line where one is too narrow for them.

    Signals:
        show_all: show everything since the start.
        smoothing_changed: the slider's value, 0 (raw) to below 1.
    """

    show_all = Signal()
    smoothing_changed = Signal(float)

    def __init__(self, view: TimeView, smoothing: float, *, live: bool = True) -> None:
        super().__init__()
        self._view = view
        row = self._row = in_row(spacing=GAP)
        self._second_row = in_row()
        in_column(row, self._second_row, parent=self, margins=(0, 0, 0, 0), spacing=GAP)
        self.pause = worded_button("", "", view.toggle, role="chip", tab_only=True)
        self._state = PlainLabel()
        for part in (self.pause, self._state):
            row.addWidget(part)
            part.setVisible(live)
        self._state.setIndent(4)
        row.addStretch(1)
        self._windows = QButtonGroup(self)
        self._windows.setExclusive(False)
        self._spans = QWidget()
        buttons = [
            worded_button(text, f"Show {text}", partial(view.set_window, seconds), role="chip")
            for text, seconds in WINDOWS
        ]
        buttons.append(worded_button("All", "Show everything since the start (0)", self.show_all.emit, role="chip"))
        for button in buttons:
            button.setCheckable(True)
            self._windows.addButton(button)
        in_row(*buttons, parent=self._spans, margins=(0, 0, 0, 0), spacing=GAP)
        FocusGroup(self, [self.pause, *self._windows.buttons()])
        self._smoothing_label = PlainLabel("Smoothing", role="muted")
        row.addWidget(self._smoothing_label)
        self.smoothing = QSlider(Qt.Orientation.Horizontal)
        self.smoothing.setRange(0, 99)
        self.smoothing.setValue(round(smoothing * 100))
        self.smoothing.setFixedWidth(90)
        self.smoothing.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.smoothing.setAccessibleName("Smoothing of loss and accuracy")
        self.smoothing.setToolTip("Smoothing of loss and accuracy; far left shows only the raw values")
        self.smoothing.valueChanged.connect(lambda value: self.smoothing_changed.emit(value / 100))
        self._smoothing_label.setBuddy(self.smoothing)
        row.addWidget(self.smoothing)
        row.addSpacing(12)
        row.addWidget(self._spans)  # the last, for the slider comes and goes with the loss
        view.changed.connect(self.refresh)
        self.refresh()

    def minimumSizeHint(self) -> QSize:
        return QSize(max(self._spans.minimumSizeHint().width(), self._first_px), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        needed = self._first_px + self._spans.sizeHint().width() + 2 * GAP
        needed += self.fontMetrics().horizontalAdvance(LONG_STATE)
        if self.width() >= needed:
            self._row.addWidget(self._spans)
        else:
            self._second_row.addWidget(self._spans, 0, Qt.AlignmentFlag.AlignRight)

    @property
    def _first_px(self) -> int:
        """Width of the first line, without the view's state and the buttons, whether or not a loss is drawn."""
        parts = (self.pause, self._smoothing_label, self.smoothing)
        return sum(part.sizeHint().width() for part in parts) + 6 * GAP

    def offer_smoothing(self, offered: bool) -> None:
        """Show the slider if a loss is drawn."""
        self._smoothing_label.setVisible(offered)
        self.smoothing.setVisible(offered)

    def refresh(self) -> None:
        """Show the view's state."""
        following = self._view.following
        text = "▶  Follow"
        if following:
            text = "❚❚  Pause"
        if self.pause.text() != text:
            self.pause.setText(text)
            self.pause.setAccessibleName("Pause the view" if following else "Follow the newest reading")
            self.pause.setToolTip(
                "Hold the view still; recording goes on (Space)" if following else "Jump to now and follow (End)"
            )
        status = self._view.status()
        self._state.setText(status)
        for button, (_text, seconds) in zip(self._windows.buttons(), WINDOWS, strict=False):
            button.setChecked(abs(self._view.window_s - seconds) < 0.5)
        self._windows.buttons()[-1].setChecked(False)
