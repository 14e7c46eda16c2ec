"""Short transitions between two states, which finish at once if reduced motion is requested."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEasingCurve, QObject, QVariantAnimation
from PySide6.QtWidgets import QApplication, QStyle


class Motion(QVariantAnimation):
    """Animates from 0 to 1 and reports each step.

    Args:
        ms: duration in milliseconds.
        step: called with the progress; the last value is 1.
        parent: the owner.
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
        """Start from 0."""
        self.stop()
        if less_motion():
            self._step(1.0)
        else:
            self.start()

    def settle(self) -> None:
        """Jump to the end."""
        self.stop()
        self._step(1.0)

    @property
    def moving(self) -> bool:
        """Whether the animation is running."""
        return self.state() is QVariantAnimation.State.Running


def less_motion() -> bool:
    """Whether the style, which follows the system's settings, turns off widget animations."""
    return QApplication.style().styleHint(QStyle.StyleHint.SH_Widget_Animation_Duration) == 0
