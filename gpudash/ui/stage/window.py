"""The full-screen window of the stage: the show, its keys, a field for guesses, and the editor of lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QColor, QFont, QFontMetricsF, QKeyEvent, QPalette, QResizeEvent
from PySide6.QtWidgets import QLayout, QWidget

from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.scenes import Scene
from gpudash.session.demo.show import OnGuess, Show, ShowPace
from gpudash.ui.stage.canvas import StageCanvas
from gpudash.ui.stage.editor import LinesEditor
from gpudash.ui.stage.guess import GuessEntry
from gpudash.ui.stage.keys import KeyButton
from gpudash.ui.stage.painting import AXIS
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel
from gpudash.ui.window.workspace import Workspace

TICK_MS = 100
"""Milliseconds between checks whether the show can go on."""


class StageWindow(QWidget):
    """One showing of the demo or of a lesson. Leaving it closes the window and restores the main window.

    Args:
        workspace: workspace over a live session.
        auto: advance without waiting for the viewer.
        simulate: prefer the simulated GPU.
        scenes: scenes to play.
        first: number of the first scene.
        count: number of scenes that the label counts to; by default, up to the last of ``scenes``.
        pace: how long each step stays.
        name: name of the show, for the window title.
        on_guess: passed to `Show`.
        show: a show to play in place of one built from the arguments above.

    Signals:
        over: the show was left.
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
        count: int | None = None,
        pace: ShowPace | None = None,
        name: str = "Demo",
        on_guess: OnGuess | None = None,
        show: Show | None = None,
    ) -> None:
        super().__init__(workspace.window(), Qt.WindowType.Window)
        self._workspace = workspace
        session = workspace.session.live
        assert session is not None
        self.play = show or Show(
            session,
            auto=auto,
            simulate=simulate,
            isolate=lambda: session.settings.isolate,
            pace=pace,
            scenes=scenes,
            on_guess=on_guess,
        )
        self._first = first
        self._count = count or first + len(self.play.scenes) - 1
        self._is_over = False
        self._keys_pixels = 0
        self.setWindowTitle(f"{name} – gpudash")
        self.setAccessibleName(name)
        self.canvas = StageCanvas(workspace.colours, self)
        self.editor = LinesEditor()
        self.editor.setParent(self)
        self.editor.accepted.connect(self._run_lines)
        self.editor.rejected.connect(self._close_editor)
        self.step_label = PlainLabel(role="muted")
        self.step_label.setMinimumWidth(1)
        self.choices = [self._key(str(number + 1), "", self._guess(number)) for number in range(3)]
        self.skip = self._key("0", "just show me", self._guess(None))
        self.entry = GuessEntry()
        self.entry.guessed.connect(self._take_guess)
        self.entry.skipped.connect(partial(self._take_guess, None))
        self.entry.field.textChanged.connect(self._typed)
        self.enter = self._key("Enter", "guess", self.entry.accept)
        self.show_me = self._key("Space", "just show me", self._guess(None), "Show it without a guess")
        self.next = self._key("Space", "next step", self.play.forward)
        self.back = self._key("←", "back", self.play.back)
        self.pause = self._key("P", "pause", self._pause, "Let no step follow by itself")
        self.edit = self._key("E", "edit the lines", self._edit)
        self.stop = self._key("S", "stop the lines", self.play.stop_lines)
        self.stop_run = self._key("S", "stop that run", self.play.stop_users_run)
        self.scene = self._key("N", "next scene", self.play.next_scene, "Also Ctrl+PgDn; B or Ctrl+PgUp goes back")
        self.leave_key = self._key("Esc", "leave", self.leave)
        self._lay_out()
        self._hold(True)
        workspace.colours_changed.connect(self._take_colours)
        workspace.closing.connect(self.leave)
        self._take_colours()
        self._timer = QTimer(self, interval=TICK_MS)
        self._timer.timeout.connect(self.refresh)

    @property
    def is_over(self) -> bool:
        """Whether the show was left."""
        return self._is_over

    @property
    def buttons(self) -> list[KeyButton]:
        """All buttons, in layout order."""
        return [
            *self.choices,
            self.skip,
            self.enter,
            self.show_me,
            self.next,
            self.back,
            self.pause,
            self.edit,
            self.stop,
            self.stop_run,
            self.scene,
            self.leave_key,
        ]

    def begin(self, position: int = 0, *, full: bool = True) -> None:
        """Start at a scene, in full screen unless ``full`` is false."""
        self.play.start(position)
        self._timer.start()
        self.refresh()
        if full:
            self.showFullScreen()
        else:
            self.show()
        self.activateWindow()
        if self.entry.isHidden():
            self.setFocus()
        else:
            self.entry.field.setFocus()

    def refresh(self) -> None:
        """Advance the show and update the screen."""
        if self._is_over:
            return
        self.play.tick(time.monotonic())
        self._present()

    def leave(self) -> None:
        """End the show: stop its run and its processes."""
        if self._is_over:
            return
        self._is_over = True
        self._timer.stop()
        self.play.leave()
        self._hold(False)
        self.hide()
        self.over.emit()
        self.deleteLater()

    def _key(self, key: str, label: str, act: Callable[[], None], tip: str = "") -> KeyButton:
        def acted() -> None:
            act()
            self._present()

        return KeyButton(key, label, acted, self._workspace.colours, tip)

    def _lay_out(self) -> None:
        self._row = in_row(self.entry, *self.buttons, 1, self.step_label)
        column = in_column((self.canvas, 1), self._row, parent=self, margins=(0, 0, 0, 0), spacing=0)
        column.setSizeConstraint(QLayout.SizeConstraint.SetNoConstraint)

    def _present(self) -> None:
        """Show the picture, and only the keys that apply now."""
        play = self.play
        if self._is_over:
            return
        if play.ended:
            self.leave()
            return
        picture = play.picture
        if play.asking and self.entry.problem:
            picture = replace(picture, verdict=self.entry.problem)
        self.canvas.show_picture(picture)
        if self.editor.isVisible():
            self._place_editor()
        asking = play.asking
        by_number = asking and not picture.choices
        for button, text in zip(self.choices, picture.choices or ("", "", ""), strict=True):
            button.set_label(text)
            button.setVisible(bool(picture.choices))
        self.skip.setVisible(bool(picture.choices))
        self.enter.setVisible(by_number)
        self.show_me.setVisible(by_number)
        self._show_entry(by_number)
        self.scene.set_key("Ctrl+PgDn" if by_number else "N")  # a letter is typed there
        for button in (self.next, self.back, self.pause):
            button.setVisible(not asking)
        last = play.position + 1 == len(play.scenes)
        # One press too many must not leave: the next would act on the window behind.
        self.next.setVisible(not asking and not self._is_last_step)
        self.next.set_label("next scene" if play.at_end else "next step")
        self.next.setEnabled(play.at_end or play.step < len(play.pictures) - 1)
        self.back.setEnabled(play.step > 0 or play.position > 0)
        self.pause.set_label("go on" if play.paused else "pause")
        self.edit.setVisible(bool(play.source) and not asking)
        self.stop.setVisible(bool(play.source) and play.working)
        self.stop_run.setVisible(play.busy)
        self.scene.setVisible(not last and not play.busy and (asking or not play.at_end))
        editing = not self.editor.isHidden()
        self.leave_key.setVisible(not editing)
        if editing:
            for button in self.buttons:
                button.hide()  # what is typed belongs to the editor, which has keys of its own
        self.step_label.setText(self._place())
        self._fit_keys()
        self.setAccessibleDescription(picture.description)

    @property
    def _is_last_step(self) -> bool:
        """Whether nothing follows but leaving."""
        play = self.play
        return play.at_end and not play.asking and play.position + 1 == len(play.scenes)

    def _place(self) -> str:
        play = self.play
        scene = f"scene {self._first + play.position} of {self._count}"
        if play.asking:
            return scene  # the guesses take the room
        step = f"step {play.step + 1}"
        if play.steps is not None:
            step = f"{step} of {play.steps}"
        return f"{step} · {scene}"

    def _guess(self, choice: int | None) -> Callable[[], None]:
        return lambda: self.play.take_guess(choice)

    def _show_entry(self, shown: bool) -> None:
        """Show the number field when it is needed; hide it and take the focus back once the guess is made."""
        question = self.play.question
        if not shown or question is None:
            if not self.entry.isHidden():
                self.entry.problem = ""
                self.entry.hide()
                self.setFocus()
        elif self.entry.isHidden():
            self.entry.begin(question)

    def _typed(self, text: str) -> None:
        """Name the key that still skips: a space belongs to what is typed."""
        self.show_me.set_key("PgDn" if text else "Space")

    def _take_guess(self, guess: float | None) -> None:
        self.play.take_guess(guess)
        self._present()

    def _go_to_scene(self, position: int) -> None:
        """Go to a scene; beyond the last one there is none."""
        if position < len(self.play.scenes):
            self.play.start(position)
            self._present()

    def _pause(self) -> None:
        if self.play.paused:
            self.play.resume()
        else:
            self.play.pause()

    def _edit(self) -> None:
        if self.play.source:
            self.play.pause()
            # In its place and type, or it would scroll as a smaller one does.
            self._place_editor()
            self.editor.begin(self.play.source, self.play.limit)

    def _run_lines(self, source: str, limit: int) -> None:
        self.play.resume()
        self.play.edit(source, limit)
        self._close_editor()

    def _close_editor(self) -> None:
        self.editor.hide()
        self.setFocus()
        self._present()

    def _place_editor(self) -> None:
        self.editor.setGeometry(self.canvas.code_place.toRect())
        self.editor.set_pixels(self.canvas.code_pixels, self.canvas.px(AXIS))

    def _take_colours(self) -> None:
        colours = self._workspace.colours
        self.canvas.set_palette(colours)
        for button in self.buttons:
            button.set_palette(colours)
        palette = self.palette()
        palette.setColor(QPalette.ColorRole.Window, QColor(colours.field if colours.dark else colours.window))
        self.setPalette(palette)
        self.setAutoFillBackground(True)

    def _hold(self, held: bool) -> None:
        """Tell the main window whether the show is running."""
        self._workspace.playing_demo = held
        self._workspace.dashboard.results_in_front = not held
        self._workspace.changed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Handle the keys printed on the visible buttons. Page Down and Page Up are what a presenter's remote sends."""
        keys = {
            Qt.Key.Key_Space: self.next,
            Qt.Key.Key_Right: self.next,
            Qt.Key.Key_PageDown: self.next,
            Qt.Key.Key_Left: self.back,
            Qt.Key.Key_PageUp: self.back,
            Qt.Key.Key_Backspace: self.back,
            Qt.Key.Key_P: self.pause,
            Qt.Key.Key_E: self.edit,
            Qt.Key.Key_0: self.skip,
            Qt.Key.Key_1: self.choices[0],
            Qt.Key.Key_2: self.choices[1],
            Qt.Key.Key_3: self.choices[2],
            Qt.Key.Key_Escape: self.leave_key,
        }
        key = Qt.Key(event.key())
        button = keys.get(key)
        if key == Qt.Key.Key_S:
            button = self.stop_run if self.play.busy else self.stop
        with_control = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
        if key == Qt.Key.Key_N or (key == Qt.Key.Key_PageDown and with_control):
            self._go_to_scene(self.play.position + 1)
            return
        if key == Qt.Key.Key_B or (key == Qt.Key.Key_PageUp and with_control):
            self._go_to_scene(self.play.position - 1)
            return
        if button is self.next and self.play.asking:
            button = self.show_me if self.skip.isHidden() else self.skip
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._is_last_step:
            button = self.leave_key
        if button is None:
            super().keyPressEvent(event)
        elif button.isEnabled() and not button.isHidden():
            button.click()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.canvas.set_screen(self.width(), self.height())
        self.entry.set_pixels(self.canvas.px(AXIS))
        edge = round(self.canvas.edge)
        self._row.setContentsMargins(edge, 0, edge, max(6, edge // 3))
        self._row.setSpacing(max(8, edge // 2))
        self._keys_pixels = 0
        self._fit_keys()
        self._place_editor()

    def _fit_keys(self) -> None:
        """Give the keys the type of axes, or as much of it as the row has room for."""
        largest = self.canvas.px(AXIS)
        margins, spacing = self._row.contentsMargins(), self._row.spacing()
        shown = [button for button in self.buttons if not button.isHidden()]
        room = self.width() - margins.left() - margins.right() - (len(shown) + 1) * spacing
        if not self.entry.isHidden():
            room -= self.entry.sizeHint().width() + spacing
        size = largest
        while size > self.canvas.smallest_shown and self._keys_width(shown, size) > room:
            size -= 1
        if size == self._keys_pixels:
            return
        self._keys_pixels = size
        for button in self.buttons:
            button.set_pixels(size)
            button.setFixedHeight(max(26, round(largest * 1.9)))  # else the picture would move with the type
        self.step_label.setStyleSheet(f"font-size: {size}px;")
        self.step_label.setFixedHeight(max(26, round(largest * 1.9)))  # likewise, where no key is shown

    def _keys_width(self, shown: Sequence[KeyButton], size: int) -> float:
        """Width of keys and of the place in the show, in type of this size, without what is between them."""
        font = QFont(self.step_label.font())
        font.setPixelSize(size)
        label = QFontMetricsF(font).horizontalAdvance(self.step_label.text()) + 2
        return label + sum(button.width_for(size) for button in shown)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Closing the window leaves the show."""
        event.accept()
        self.leave()
