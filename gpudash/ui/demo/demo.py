"""The demo in a window: the tour, its bar at the bottom, the frame around what it speaks of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QToolBar
from shiboken6 import isValid

from gpudash.session.demo import SCENES, Scene, Tour
from gpudash.session.demo.tour import Pace, Playing
from gpudash.ui.demo.bar import DemoBar
from gpudash.ui.demo.pointer import Pointer
from gpudash.ui.demo.showing import Showing
from gpudash.ui.theme import Palette

if TYPE_CHECKING:
    from gpudash.ui.main_window import MainWindow

TICK_MS = 100
"""How often the tour looks whether it can go on."""

ISOLATION: dict[str, bool | None] = {"automatic": None, "always": True, "never": False}
"""Setting → whether a run is hosted in a process of its own; ``None`` leaves it to the session."""


class Demo(QObject):
    """One showing of the demo in one window; it takes itself away when it is left.

    Args:
        window: over a live session.
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
        window: MainWindow,
        *,
        auto: bool = False,
        simulate: bool = False,
        scenes: Sequence[Scene] = SCENES,
        first: int = 1,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(window)
        self._window = window
        session = window.session
        self.tour = Tour(
            cast(Playing, session),
            auto=auto,
            simulate=simulate,
            isolate=lambda: ISOLATION[session.settings.isolate],
            pace=pace,
            scenes=scenes,
        )
        self._showing = Showing(window.dashboard, lambda: window.tools.presentation.on)
        window.first_minute.hold(True)
        window.documents.show_dashboard()
        window.view.follow()
        self.bar = DemoBar(self.tour, first)
        self.pointer = Pointer(window, window.palette_)
        self._holder = QToolBar("Demo", window)
        self._holder.setMovable(False)
        self._holder.setFloatable(False)
        self._holder.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        self._holder.toggleViewAction().setVisible(False)
        self._holder.setStyleSheet("QToolBar { border: 0px; padding: 0px 8px 6px 8px; }")
        self._holder.addWidget(self.bar)
        window.addToolBar(Qt.ToolBarArea.BottomToolBarArea, self._holder)
        self._palette = window.palette_
        self._silenced: list[QShortcut] = []
        self._owns_escape = False
        self._escape = self._key("Esc", self.pause)
        self._keys = [self._escape, self._key("PgDown", self.tour.next), self._key("PgUp", self.tour.back)]
        self.bar.left.connect(self.leave)
        self._over = False
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self.refresh)
        window.installEventFilter(self)

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
        if self.tour.playing_spec is not None and self.tour.act is not None:
            self._showing.play(self.tour.playing_spec, self.tour.playing_device)
        if self._palette is not self._window.palette_:
            self.set_palette(self._window.palette_)
        self.bar.refresh()
        self._point()
        self._own_escape(not self.tour.paused)

    def _point(self) -> None:
        dashboard = self._window.dashboard
        if self._window.documents.front is not None or self.tour.state in ("ready", "asking"):
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
        self._window.tools.presentation.escape_taken = wanted
        if wanted:
            self._silence()
        else:
            self._unsilence()

    def _silence(self) -> None:
        escape = QKeySequence("Esc")
        self._silenced = [
            shortcut
            for shortcut in self._window.findChildren(QShortcut)
            if shortcut is not self._escape and shortcut.key() == escape and shortcut.isEnabled()
        ]
        for shortcut in self._silenced:
            shortcut.setEnabled(False)
        self._window.commands.actions["Clear Selection"].setShortcuts([])

    def _unsilence(self) -> None:
        for shortcut in self._silenced:
            if isValid(shortcut):  # its document may have been closed meanwhile
                shortcut.setEnabled(True)
        self._silenced = []
        self._window.commands.actions["Clear Selection"].setShortcuts([QKeySequence("Esc")])

    def set_palette(self, palette: Palette) -> None:
        """Draw in other colours."""
        self._palette = palette
        self.pointer.set_palette(palette)

    def leave(self) -> None:
        """End the demo: its run is stopped, and the window shows what it showed before."""
        if self._over:
            return
        self._over = True
        self._timer.stop()
        self.tour.leave()
        self._own_escape(False)
        self._window.removeEventFilter(self)
        for shortcut in self._keys:
            shortcut.setEnabled(False)
            shortcut.deleteLater()
        self.pointer.hide()
        self.pointer.deleteLater()
        self._window.removeToolBar(self._holder)
        self._holder.deleteLater()
        self._showing.restore()
        self._window.first_minute.hold(False)
        self.over.emit()
        self.deleteLater()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Play no more once the window closes."""
        if watched is self._window and event.type() == QEvent.Type.Close:
            self._timer.stop()
        return False
