"""A strip with one sentence about the result of opening a file; what was open stays open below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QWidget

from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics


class Notice(QWidget):
    """Hidden until there is something to report."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._strip = QFrame()
        self._strip.setProperty("role", "banner")
        self._text = PlainLabel(wraps=True, selectable=True)
        self._text.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._act = QPushButton()
        self._act.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._act.clicked.connect(self._do)
        self._act.hide()
        self._run: Callable[[], object] | None = None
        close = QPushButton("×")
        close.setProperty("role", "chip")
        close.setAccessibleName("Dismiss")
        close.setToolTip("Dismiss")
        close.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        close.clicked.connect(self.dismiss)
        FocusGroup(self, (self._act, close))
        in_row((self._text, 1), self._act, close, parent=self._strip, margins=(14, 6, 10, 6))
        in_column(self._strip, parent=self, margins=(12, 4, 12, 4))
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
        """Show ``text`` until it is dismissed or replaced; ``button`` calls ``run`` and dismisses it."""
        self._run = run
        self._act.setText(without_mnemonics(button))
        self._act.setToolTip(plain_tip(f"{button}: {text}"))
        self._act.setVisible(bool(button))
        self._text.setText(text)
        self._strip.setAccessibleName(text)
        if self._strip.property("level") != level:
            self._strip.setProperty("level", level)
            for part in (self._strip, *self._strip.findChildren(QPushButton)):
                part.style().unpolish(part)
                part.style().polish(part)
        self.show()

    def _do(self) -> None:
        self.dismiss()
        if self._run is not None:
            self._run()

    def dismiss(self) -> None:
        """Hide the strip."""
        self.hide()
