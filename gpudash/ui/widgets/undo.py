"""One stack of what can be undone in a window: deleted and renamed recordings, marks, hidden curves, the layout."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QUndoCommand, QUndoStack

from gpudash.telemetry.recording.recorder import RecordingError

MOST_STEPS = 100
"""Steps that are kept."""

TOGETHER_S = 1.0
"""Steps of one kind that follow each other faster are one: the many movements of a drag."""


class Undoing(QObject):
    """What was done, newest last, each with a way back and a way forth.

    Args:
        clock: monotonic seconds; for tests.

    Signals:
        changed: what can be undone or done again is another thing now.
        failed: one sentence on something that could not be undone or done again; it is taken off the stack.
    """

    changed = Signal()
    failed = Signal(str)

    def __init__(self, parent: QObject | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parent)
        self._stack = QUndoStack(self)
        self._stack.setUndoLimit(MOST_STEPS)
        self._stack.indexChanged.connect(self.changed)
        self._clock = clock
        self.replaying = False

    def push(self, text: str, undo: Callable[[], object], redo: Callable[[], object], *, kind: str = "") -> None:
        """Remember something that has just been done; nothing while something is being undone or done again.

        Args:
            text: what was done, as in "Delete of 3 Recordings".
            undo: takes it back; an OSError, ValueError, RuntimeError or RecordingError goes to `failed`.
            redo: does it again.
            kind: steps of one kind that follow each other within a second are undone together; "" stands alone.
        """
        if not self.replaying:
            self._stack.push(_Step(self, text, (undo, redo), kind, self._clock()))

    @property
    def undo_text(self) -> str:
        """What `undo` takes back; "" where there is nothing."""
        if self._stack.canUndo():
            return self._stack.undoText()
        return ""

    @property
    def redo_text(self) -> str:
        """What `redo` does again; "" where there is nothing."""
        if self._stack.canRedo():
            return self._stack.redoText()
        return ""

    @property
    def count(self) -> int:
        """Steps that are kept."""
        return self._stack.count()

    def undo(self) -> None:
        """Take the newest step back."""
        self._stack.undo()

    def redo(self) -> None:
        """Do the step that was taken back last again."""
        self._stack.redo()

    def carry_out(self, act: Callable[[], object]) -> bool:
        """Call ``act`` and report a failure. Returns whether it was done."""
        self.replaying = True
        try:
            act()
        except (OSError, ValueError, RuntimeError, RecordingError) as error:
            self.failed.emit(str(error))
            return False
        finally:
            self.replaying = False
        return True


class _Step(QUndoCommand):
    """A step that was done before it came here."""

    def __init__(
        self,
        undoing: Undoing,
        text: str,
        directions: tuple[Callable[[], object], Callable[[], object]],
        kind: str,
        done_s: float,
    ) -> None:
        super().__init__(text)
        self._undoing = undoing
        self.back, self.forward = directions
        self.kind = kind
        self.done_s = done_s
        self._done = True

    def id(self) -> int:
        if self.kind:
            return hash(self.kind) & 0x7FFFFFFF
        return -1

    def mergeWith(self, other: QUndoCommand) -> bool:
        if not isinstance(other, _Step) or other.kind != self.kind or other.done_s - self.done_s > TOGETHER_S:
            return False
        self.forward, self.done_s = other.forward, other.done_s
        return True

    def undo(self) -> None:
        self._done = False
        if not self._undoing.carry_out(self.back):
            self.setObsolete(True)

    def redo(self) -> None:
        if not self._done and not self._undoing.carry_out(self.forward):
            self.setObsolete(True)
        self._done = True
