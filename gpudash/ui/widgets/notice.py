"""A strip with one sentence about the result of opening or writing a file, laid over the bottom of the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import QApplication, QFrame, QPushButton, QSizePolicy, QWidget

from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import polish_again, worded_button
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics

SHOWN_MS = {"note": 8_000, "warning": 30_000}
"""Milliseconds until a strip closes by itself, by its level."""


class Notice(QWidget):
    """Hidden until there is something to report.

    Args:
        parent: the widget over whose bottom it is laid: it moves nothing when it appears, and closes after a while.
            Without one it is a row of a layout and stays, since it belongs to what is shown there.
        kept_clear: height at the bottom that it must not cover now, in logical pixels.
    """

    def __init__(self, parent: QWidget | None = None, kept_clear: Callable[[], int] = lambda: 0) -> None:
        super().__init__(parent)
        self._kept_clear = kept_clear
        self._over = parent
        self._closing = QTimer(self, singleShot=True)
        self._closing.timeout.connect(self._close_unless_used)
        if parent is not None:
            self.setProperty("role", "footer")
            self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
            parent.installEventFilter(self)
        self._strip = QFrame()
        self._strip.setProperty("role", "banner")
        self._text = PlainLabel(wraps=True, selectable=True)
        self._text.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._act = worded_button("", "", self._do, tab_only=True)
        self._act.hide()
        self._run: Callable[[], object] | None = None
        close = worded_button("×", "Dismiss", self.dismiss, role="chip", name="Dismiss", tab_only=True)
        FocusGroup(self, (self._act, close))
        air = 6
        apart = 4
        if parent is not None:  # as low as the row at the bottom that it covers
            air = apart = 2
        in_row((self._text, 1), self._act, close, parent=self._strip, margins=(14, air, 10, air))
        in_column(self._strip, parent=self, margins=(12, apart, 12, apart))
        self.hide()

    @property
    def text(self) -> str:
        """The text shown; "" while the strip is hidden."""
        if self.isHidden():
            return ""
        return self._text.text()

    def report(
        self,
        text: str,
        level: Literal["note", "warning"] = "warning",
        *,
        button: str = "",
        run: Callable[[], object] | None = None,
    ) -> None:
        """Show ``text`` until it is dismissed, replaced or old; ``button`` calls ``run`` and dismisses it."""
        self._run = run
        self._act.setText(without_mnemonics(button))
        self._act.setToolTip(plain_tip(f"{button}: {text}"))
        self._act.setVisible(bool(button))
        self._text.setText(text)
        self._strip.setAccessibleName(text)
        if self._strip.property("level") != level:
            self._strip.setProperty("level", level)
            polish_again(self._strip, *self._strip.findChildren(QPushButton))
        self.show()
        if self._over is not None:
            self._closing.start(SHOWN_MS[level])
            self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._over and event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest):
            self._place()
        return super().eventFilter(watched, event)

    def _place(self) -> None:
        over = self._over
        if self.isHidden() or over is None:
            return
        height = self.heightForWidth(over.width())
        self.setGeometry(0, over.height() - self._kept_clear() - height, over.width(), height)
        self.raise_()

    def _close_unless_used(self) -> None:
        """Close, but wait while somebody points at it or has its button in focus."""
        focused = QApplication.focusWidget()
        if self.underMouse() or (focused is not None and self.isAncestorOf(focused)):
            self._closing.start()
        else:
            self.dismiss()

    def _do(self) -> None:
        self.dismiss()
        if self._run is not None:
            self._run()

    def dismiss(self) -> None:
        """Hide the strip."""
        self._closing.stop()
        self.hide()
