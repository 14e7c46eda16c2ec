"""What goes from one look to another in a moment, and at once where less motion is asked for."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEasingCurve, QObject, QVariantAnimation
from PySide6.QtWidgets import QApplication, QStyle


class Motion(QVariantAnimation):
    """Goes from 0 to 1, and tells each step of the way.

    Args:
        ms: how long it takes, in milliseconds.
        step: is given how far it has come, at last 1.
        parent: with which it ends.
    """

    def __init__(self, ms: int, step: Callable[[float], object], parent: QObject) -> None:
        super().__init__(parent)
        self.setStartValue(0.0)
        self.setEndValue(1.0)
        self.setDuration(ms)
        self.setEasingCurve(QEasingCurve.Type.OutCubic)
        self._step = step
        self.valueChanged.connect(step)

    def begin(self) -> None:
        """Go there from 0 on."""
        self.stop()
        if less_motion():
            self._step(1.0)
        else:
            self.start()

    def settle(self) -> None:
        """Be there at once."""
        self.stop()
        self._step(1.0)

    @property
    def moving(self) -> bool:
        """Whether it is on its way."""
        return self.state() is QVariantAnimation.State.Running


def less_motion() -> bool:
    """Whether the style, which follows the system's settings, says that widgets do not move."""
    return QApplication.style().styleHint(QStyle.StyleHint.SH_Widget_Animation_Duration) == 0
