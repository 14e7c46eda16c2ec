"""The demo in a window: the tour, the presenter's bar at the bottom, the frame around what it speaks of.

The mouse goes through the frame. What the window showed before comes back when the demo is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QKeySequence,
    QPainter,
    QPaintEvent,
    QPen,
    QRegion,
    QResizeEvent,
    QShortcut,
)
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QHBoxLayout,
    QMainWindow,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStackedWidget,
    QToolBar,
    QWidget,
)
from shiboken6 import isValid

from gpudash.session.demo import SCENES, Scene, Tour
from gpudash.session.demo.scenes import Place
from gpudash.session.demo.tour import TourPace
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.dashboard import Dashboard
from gpudash.ui.widgets.layouts import in_column
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.window.workspace import Workspace

LARGE, SMALLEST = 1.7, 1.0
"""The sentence's size in sizes of the window's own type: large, and what it shrinks to where it does not fit."""

PLAIN_WINDOW, LARGEST = QSize(1280, 800), 2.0
"""Up to which size of the window the sentence is just large, and how many times as large it gets in larger ones."""

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
        self.caption = PlainLabel(wraps=True)
        self.caption.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.caption.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.watch_for = PlainLabel(role="muted")
        self.watch_for.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
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

    def _button(self, text: str, tip: str, act: Callable[[], None]) -> QPushButton:
        button = QPushButton(text)
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
        guesses = QWidget()
        row = QHBoxLayout(guesses)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        for button in self.choices:
            row.addWidget(button)
        row.addWidget(self.skip)
        row.addStretch(1)
        self.skip.setProperty("role", "chip")
        self._lower.addWidget(self.watch_for)
        self._lower.addWidget(guesses)
        in_column(upper, self.caption, self._lower, parent=self, margins=(14, 8, 14, 8), spacing=4)
        self._make_room()

    def _make_room(self) -> None:
        """As high as the large sentence's lines and the guesses are."""
        self._size_controls()
        self._lower.setFixedHeight(max(self.skip.sizeHint().height(), self.next.sizeHint().height()))
        self._caption_height = LINES * QFontMetrics(self._sized(LARGE * self._times)).lineSpacing() + 4
        self.caption.setFixedHeight(self._caption_height)

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
        shown = (
            tour.position,
            tour.state,
            tour.paused,
            tour.caption,
            self._hint(),
            tour.question,
            tour.measured,
        )
        if shown == self._shown:
            return
        self._shown = shown
        for position, (button, scene) in enumerate(zip(self.steps, tour.scenes, strict=True)):
            number = button.text().partition("  ")[0]
            button.setChecked(position == tour.position)
            button.setText(f"{number}  {tour.said(scene.title)}" if position == tour.position else number)
        self._show_question()
        self.watch_for.setText(self._hint())
        self.pause.setText("Go on   Esc" if tour.paused else "Pause   Esc")
        self.stop_run.setVisible(tour.state == "busy")
        self.back.setEnabled(tour.position > 0 or tour.state == "told")
        self.next.setText("Finish" if tour.position + 1 == len(tour.scenes) else "Next")
        _set_role(self.next, "primary" if tour.state == "told" else "")
        self._fit()
        self.setAccessibleDescription(tour.caption)

    def _show_question(self) -> None:
        question = None
        if self._tour.state == "asking":
            question = self._tour.question
        self._lower.setCurrentIndex(0 if question is None else 1)
        if question is not None:
            for button, text in zip(self.choices, question.choices, strict=True):
                button.setText(self._tour.said(text))
                button.setAccessibleName(f"Guess: {button.text()}")

    def _hint(self) -> str:
        tour = self._tour
        over, acts = tour.progress
        if tour.paused:
            return "Paused. Nothing new begins until you go on."
        hint = tour.said(tour.scene.watch_for)
        if tour.state == "told":
            return hint
        if tour.run_is_on:
            begun = over + 1
        else:
            begun = max(1, over)
        parts = []
        if tour.state == "playing":
            parts += [f"Run {min(begun, acts)} of {acts}."] if acts > 1 else []
            parts += [f"Changed: {tour.change}."] if tour.change else []
            parts += [tour.step_text]
        return " ".join(part for part in (*parts, hint if tour.caption != hint else "") if part)

    @property
    def _times(self) -> float:
        """How much larger the sentence is than in a plain window: it is read from as far as the plots are."""
        size = self.window().size()
        times = min(size.width() / PLAIN_WINDOW.width(), size.height() / PLAIN_WINDOW.height())
        return min(max(times, 1.0), LARGEST)

    def _size_controls(self) -> None:
        """Let what is under and over the sentence grow half as much as the sentence does."""
        points = self.font().pointSizeF() * (1 + self._times) / 2
        sheet = ""
        if self._times > 1:
            sheet = f"QPushButton, QLabel {{ font-size: {points:.1f}pt; }}"
        if sheet != self.styleSheet():
            self.setStyleSheet(sheet)

    def _sized(self, factor: float) -> QFont:
        font = QFont(self.font())
        font.setPointSizeF(max(6.0, self.font().pointSizeF() * factor))
        font.setWeight(QFont.Weight.DemiBold)
        return font

    def _fit(self) -> None:
        """The sentence as large as there is room for."""
        text, width = self._tour.caption, max(200, self.width() - 28)
        factor = LARGE * self._times
        room = self._caption_height
        while (taken := self._height_of(text, factor, width)) > room and factor > SMALLEST:
            factor = max(SMALLEST, factor - 0.1)
        self.caption.setFixedHeight(max(room, taken))  # torch's own words are told whole, however many they are
        # by a style sheet: the window's own would win over a font that is set
        self.caption.setStyleSheet(f"font-size: {self._sized(factor).pointSizeF():.1f}pt; font-weight: 600;")
        self.caption.setText(text)

    def _height_of(self, text: str, factor: float, width: int) -> int:
        metrics = QFontMetrics(self._sized(factor))
        return metrics.boundingRect(0, 0, width, 10_000, int(Qt.TextFlag.TextWordWrap), text).height()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._make_room()
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


TICK_MS = 100
"""How often the tour looks whether it can go on."""


class Demo(QObject):
    """One showing of the demo in one window; it takes itself away when it is left.

    Args:
        workspace: over a live session.
        auto: go on without being asked.
        simulate: prefer the simulated GPU.
        scenes: what is played.
        first: number of the first of them.
        pace: how long things stay.

    Signals:
        over: the demo has been left, and the window is as it was before.
    """

    over = Signal()

    def __init__(
        self,
        workspace: Workspace,
        *,
        auto: bool = False,
        simulate: bool = False,
        scenes: Sequence[Scene] = SCENES,
        first: int = 1,
        pace: TourPace | None = None,
    ) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        window = workspace.window()
        assert isinstance(window, QMainWindow)
        self._window = window
        session = workspace.session.live
        assert session is not None
        self.tour = Tour(
            session,
            auto=auto,
            simulate=simulate,
            isolate=lambda: session.settings.isolate,
            pace=pace,
            scenes=scenes,
        )
        self._showing = Showing(workspace.dashboard, lambda: workspace.presenting)
        self._hold(True)
        workspace.show_dashboard()
        workspace.dashboard.view.follow()
        self.bar = DemoBar(self.tour, first)
        self.pointer = Pointer(window, workspace.colours)
        self._holder = QToolBar("Demo", window)
        self._holder.setMovable(False)
        self._holder.setFloatable(False)
        self._holder.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        self._holder.toggleViewAction().setVisible(False)
        self._holder.setStyleSheet("QToolBar { border: 0px; padding: 0px 12px 6px 12px; }")
        self._holder.addWidget(self.bar)
        window.addToolBar(Qt.ToolBarArea.BottomToolBarArea, self._holder)
        self._holder.ensurePolished()
        QApplication.sendEvent(self._holder, QEvent(QEvent.Type.StyleChange))  # else it pads from the next theme on
        workspace.colours_changed.connect(self._take_colours)
        self._silenced: list[QShortcut] = []
        self._owns_escape = False
        self._escape = self._key("Esc", self.pause)
        self._keys = [self._escape, self._key("PgDown", self.tour.next), self._key("PgUp", self.tour.back)]
        self.bar.left.connect(self.leave)
        self._over = False
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self.refresh)
        workspace.closing.connect(self._timer.stop)

    @property
    def is_over(self) -> bool:
        """Whether it has been left."""
        return self._over

    def start(self, position: int = 0) -> None:
        """Begin."""
        self.tour.start(position)
        self._timer.start()
        self.refresh()

    def _key(self, key: str, act: Callable[[], None]) -> QShortcut:
        shortcut = QShortcut(QKeySequence(key), self._window)
        shortcut.activated.connect(act)
        return shortcut

    def pause(self) -> None:
        """Begin nothing new until the presenter goes on."""
        self.tour.pause()
        self.refresh()

    def refresh(self) -> None:
        """Let the tour go on, and show how it stands."""
        if self._over:
            return
        self.tour.tick(time.monotonic())
        if self.tour.state == "ended":
            self.leave()
            return
        if self.tour.playing_spec is not None:
            self._showing.play_on(self.tour.playing_device)
        self.bar.refresh()
        self._point()
        self._own_escape(not self.tour.paused)

    def _point(self) -> None:
        dashboard = self._workspace.dashboard
        if self._workspace.front is not None or self.tour.state in ("ready", "asking"):
            self.pointer.point_at(None)
            return
        target = self._showing.look_at(self.tour.place)
        self.pointer.point_at(None if target is dashboard.explanation.page else target)

    def _own_escape(self, wanted: bool) -> None:
        """Esc means one thing at a time: it pauses, and while paused is the window's again."""
        if wanted == self._owns_escape:
            return
        self._owns_escape = wanted
        self._escape.setEnabled(wanted)
        self._workspace.escape_taken = wanted
        if wanted:
            self._silence()
        else:
            self._unsilence()
        self._workspace.changed.emit()

    def _silence(self) -> None:
        escape = QKeySequence("Esc")
        self._silenced = [
            shortcut
            for shortcut in self._window.findChildren(QShortcut)
            if shortcut is not self._escape and shortcut.key() == escape and shortcut.isEnabled()
        ]
        for shortcut in self._silenced:
            shortcut.setEnabled(False)

    def _unsilence(self) -> None:
        for shortcut in self._silenced:
            if isValid(shortcut):  # its document may have been closed meanwhile
                shortcut.setEnabled(True)
        self._silenced = []

    def _take_colours(self) -> None:
        self.pointer.set_palette(self._workspace.colours)

    def _hold(self, held: bool) -> None:
        """Let the window know that the demo is on."""
        self._workspace.playing_demo = held
        self._workspace.dashboard.results_in_front = not held
        self._workspace.changed.emit()

    def leave(self) -> None:
        """End the demo: its run is stopped, and the window shows what it showed before."""
        if self._over:
            return
        self._over = True
        self._timer.stop()
        self.tour.leave()
        self._own_escape(False)
        for shortcut in self._keys:
            shortcut.setEnabled(False)
            shortcut.deleteLater()
        self.pointer.hide()
        self.pointer.deleteLater()
        self._window.removeToolBar(self._holder)
        self._holder.deleteLater()
        self._showing.restore()
        self._hold(False)
        self.over.emit()
        self.deleteLater()


WIDTH_PX = 3
"""Of the frame."""

RADIUS_PX = 7


class Pointer(QWidget):
    """Lies above the window's parts and frames one of them.

    Args:
        window: whose parts are pointed at.
        palette: colours.
    """

    def __init__(self, window: QWidget, palette: Palette) -> None:
        super().__init__(window, Qt.WindowType.Widget)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._colour = QColor(palette.accent)
        self.target: QWidget | None = None
        self.hide()

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._colour = QColor(palette.accent)
        self.update()

    def point_at(self, target: QWidget | None) -> None:
        """Frame ``target``, where it is now; nothing with ``None`` or while it is not to be seen."""
        self.target = target
        window = self.window()
        if target is None or not target.isVisible() or not window.isAncestorOf(target):
            self.hide()
            return
        seen = target.visibleRegion().boundingRect()  # less than all of it where it is scrolled
        if seen.isEmpty():
            self.hide()
            return
        place = QRect(target.mapTo(window, QPoint(0, 0)) + seen.topLeft(), seen.size()).adjusted(-2, -2, 2, 2)
        if place != self.geometry():
            self.setGeometry(place)
            inner = self.rect().adjusted(RADIUS_PX, RADIUS_PX, -RADIUS_PX, -RADIUS_PX)
            self.setMask(QRegion(self.rect()) - QRegion(inner))  # what is framed is not composed anew at every frame
        self.show()
        self.raise_()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(self._colour, WIDTH_PX))
        half = WIDTH_PX / 2
        painter.drawRoundedRect(self.rect().toRectF().adjusted(half, half, -half, -half), RADIUS_PX, RADIUS_PX)
        painter.end()


TABLES_SHARE = 0.55
"""Share of the height that the tables have while one of them is spoken of."""


class Showing:
    """Clears the dashboard for what is played: without the form, what is spoken of large; `restore` takes it back.

    Args:
        dashboard: the live one.
        presenting: whether presentation mode is on, which hides form and tables itself; these are shown while they are
            spoken of.
    """

    def __init__(self, dashboard: Dashboard, presenting: Callable[[], bool] = lambda: False) -> None:
        self._dashboard = dashboard
        self._presenting = presenting
        tabs = dashboard.tabs
        self._device = dashboard.panel.device_name
        self._tab, self._collapsed = tabs.bar.currentIndex(), tabs.collapsed
        self._played_on = ""
        dashboard.show_panel(False)

    def play_on(self, device: str) -> None:
        """Show the device that is played on in the plots."""
        if device != self._played_on:
            self._played_on = device
            self._dashboard.panel.take_device(device)

    def look_at(self, place: Place) -> QWidget | None:
        """Open what ``place`` names, and return it; ``None`` where it is not there."""
        dashboard = self._dashboard
        dashboard.show_panel(False)  # leaving presentation mode shows it
        if place == "explanation":
            if not dashboard.explanation.open:
                dashboard.explanation.show_newest()
            if not dashboard.explanation.open:
                return None
            dashboard.explanation.page.put_curve_forward(True)
            return dashboard.explanation.page
        self._close_explanation()
        tables = place in ("stages", "result")
        dashboard.put_forward("memory" if tables or place == "cards" else place, tables_share=TABLES_SHARE)
        if self._presenting() and dashboard.tabs.isHidden() == tables:
            dashboard.tabs.setVisible(tables)
            dashboard.rebalance()
        if dashboard.tabs.collapsed == tables:
            dashboard.toggle_tables()
        if tables:
            dashboard.tabs.show_steps(result=place == "result")
            return dashboard.tabs
        plot = dashboard.cards if place == "cards" else dashboard.plots.plot(place)
        if plot is not None:
            _scroll_to(plot)
        return plot

    def _close_explanation(self) -> None:
        explanation = self._dashboard.explanation
        if explanation.open:
            explanation.page.put_curve_forward(False)
            explanation.close_page()

    def restore(self) -> None:
        """Show what was shown before."""
        dashboard, tabs = self._dashboard, self._dashboard.tabs
        self._close_explanation()
        if self._played_on:
            dashboard.panel.take_device(self._device)
        dashboard.show_panel(not self._presenting())
        tabs.setVisible(not self._presenting())
        tabs.bar.setCurrentIndex(self._tab)
        if tabs.collapsed != self._collapsed:
            dashboard.toggle_tables()
        dashboard.put_forward(None)
        dashboard.rebalance()


def _scroll_to(target: QWidget) -> None:
    """Bring ``target`` into sight where it lies in something that scrolls."""
    holder = target.parentWidget()
    while holder is not None and not isinstance(holder, QScrollArea):
        holder = holder.parentWidget()
    if holder is not None and target.visibleRegion().boundingRect().height() < target.height():
        holder.ensureWidgetVisible(target, 0, 0)
