"""The presenter's bar at the bottom of the window: which scene it is, what to look at, what may be guessed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QFont, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from gpudash.session.demo import Scene, Tour
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip

LARGE, SMALLEST = 1.7, 1.0
"""The sentence's size in sizes of the window's own type: large, and what it shrinks to where it does not fit."""

LINES = 2
"""Lines of the large sentence that there is room for."""


class DemoBar(QFrame):
    """Shows a tour and passes the presenter's wishes on; `refresh` is called as time goes by.

    Args:
        tour: what is shown.
        numbers: of the scenes, from the first one's; a scene that is played alone keeps its own.

    Signals:
        left: the presenter leaves the demo.
    """

    left = Signal()

    def __init__(self, tour: Tour, numbers: int = 1, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tour = tour
        self._laid_out = False
        self.setProperty("role", "panel")
        self.setAccessibleName("Demo")
        self.steps = [self._step(position, numbers + position, scene) for position, scene in enumerate(tour.scenes)]
        self.caption = PlainLabel()
        self.caption.setWordWrap(True)
        self.caption.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.caption.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.look = PlainLabel()
        self.look.setProperty("role", "muted")
        self.look.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.pause = self._button(
            "Pause   Esc", "Begin nothing new; a run in progress continues to its end (Esc)", self._pause
        )
        self.back = self._button("Back", "The scene before (Page Up)", tour.back)
        self.next = self._button("Next", "The next scene (Page Down)", tour.next)
        self.leave = self._button("Leave", "End the demo; the window is as it was before", self.left.emit)
        self.stop_run = self._button("Stop that run", "Stop the run that is in the way", tour.stop_users_run)
        self.choices = [self._button("", "", partial(tour.take_guess, number)) for number in range(3)]
        self.skip = self._button("Just show me", "Measure without a guess", lambda: tour.take_guess(None))
        self._lower = QStackedWidget()
        self._lay_out()
        self._laid_out = True
        self._shown: object = None
        self.refresh()

    def _step(self, position: int, number: int, scene: Scene) -> QPushButton:
        button = QPushButton(str(number))
        button.setProperty("role", "chip")
        button.setCheckable(True)
        button.setToolTip(plain_tip(scene.title))
        button.setAccessibleName(f"Scene {number}: {scene.title}")
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.clicked.connect(lambda: self._go(position))
        return button

    def _button(self, words: str, tip: str, act: Callable[[], None]) -> QPushButton:
        button = QPushButton(words)
        button.setToolTip(plain_tip(tip))
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.clicked.connect(lambda: self._do(act))
        return button

    def _lay_out(self) -> None:
        upper = QHBoxLayout()
        upper.setSpacing(6)
        for button in self.steps:
            upper.addWidget(button)
        upper.addStretch(1)
        for button in (self.stop_run, self.pause, self.back, self.next, self.leave):
            upper.addWidget(button)
        asked = QWidget()
        row = QHBoxLayout(asked)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        for button in self.choices:
            row.addWidget(button)
        row.addWidget(self.skip)
        row.addStretch(1)
        self.skip.setProperty("role", "chip")
        self._lower.addWidget(self.look)
        self._lower.addWidget(asked)
        rows = QVBoxLayout(self)
        rows.setContentsMargins(14, 8, 14, 8)
        rows.setSpacing(4)
        rows.addLayout(upper)
        rows.addWidget(self.caption)
        rows.addWidget(self._lower)
        self._make_room()

    def _make_room(self) -> None:
        """As high as the large sentence's lines and the guesses are."""
        self._lower.setFixedHeight(max(self.skip.sizeHint().height(), self.next.sizeHint().height()))
        self.caption.setFixedHeight(LINES * QFontMetrics(self._sized(LARGE)).lineSpacing() + 4)

    def _do(self, act: Callable[[], None]) -> None:
        act()
        self.refresh()

    def _go(self, position: int) -> None:
        self._do(lambda: self._tour.go(position))

    def _pause(self) -> None:
        (self._tour.resume if self._tour.paused else self._tour.pause)()

    def refresh(self) -> None:
        """Show how the tour stands."""
        tour = self._tour
        shown = (tour.position, tour.state, tour.paused, tour.caption, tour.progress, tour.question, tour.measured)
        if shown == self._shown:
            return
        self._shown = shown
        for position, (button, scene) in enumerate(zip(self.steps, tour.scenes, strict=True)):
            number = button.text().partition("  ")[0]
            button.setChecked(position == tour.position)
            button.setText(f"{number}  {scene.title}" if position == tour.position else number)
        self._show_question()
        self.look.setText(self._look_words())
        self.pause.setText("Go on   Esc" if tour.paused else "Pause   Esc")
        self.stop_run.setVisible(tour.state == "busy")
        self.back.setEnabled(tour.position > 0 or tour.state == "told")
        self.next.setText("Finish" if tour.position + 1 == len(tour.scenes) else "Next")
        _set_role(self.next, "primary" if tour.state == "told" else "")
        self._fit()
        self.setAccessibleDescription(tour.caption)

    def _show_question(self) -> None:
        question = self._tour.question if self._tour.state == "asking" else None
        self._lower.setCurrentIndex(0 if question is None else 1)
        if question is not None:
            for button, words in zip(self.choices, question.choices, strict=True):
                button.setText(words)
                button.setAccessibleName(f"Guess: {words}")

    def _look_words(self) -> str:
        tour = self._tour
        over, acts = tour.progress
        if tour.paused:
            return "Paused. Nothing new begins until you go on."
        if tour.state == "told":
            return tour.scene.look
        begun = over + 1 if tour.run_is_on else max(1, over)
        part = f"Run {min(begun, acts)} of {acts}. " if acts > 1 and tour.state == "playing" else ""
        return f"{part}{tour.scene.look}" if tour.caption != tour.scene.look else part

    def _sized(self, factor: float) -> QFont:
        font = QFont(self.font())
        font.setPointSizeF(max(6.0, self.font().pointSizeF() * factor))
        font.setWeight(QFont.Weight.DemiBold)
        return font

    def _fit(self) -> None:
        """The sentence as large as there is room for."""
        words, width = self._tour.caption, max(200, self.width() - 28)
        factor = LARGE
        while factor > SMALLEST:
            metrics = QFontMetrics(self._sized(factor))
            taken = metrics.boundingRect(0, 0, width, 10_000, int(Qt.TextFlag.TextWordWrap), words)
            if taken.height() <= self.caption.height():
                break
            factor -= 0.1
        # by a style sheet: the window's own would win over a font that is set
        self.caption.setStyleSheet(f"font-size: {self._sized(factor).pointSizeF():.1f}pt; font-weight: 600;")
        self.caption.setText(words)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Larger or smaller words, as presentation mode has them, need other room."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange and self._laid_out:
            self._make_room()
            self._fit()


def _set_role(button: QPushButton, role: str) -> None:
    if button.property("role") != role:
        button.setProperty("role", role)
        button.style().unpolish(button)
        button.style().polish(button)
