"""One undo stack per window: deleted and renamed recordings, marks, hidden curves, the layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QUndoCommand, QUndoStack

from gpudash.telemetry.recording.recorder import RecordingError

MOST_STEPS = 100
"""Maximum number of steps kept."""

TOGETHER_S = 1.0
"""Steps of one kind that follow within this time are merged, such as the many moves of a drag; seconds."""


class Undoing(QObject):
    """The steps done so far, newest last, each with an undo and a redo function.

    Args:
        clock: monotonic seconds; for tests.

    Signals:
        changed: what can be undone or redone has changed.
        failed: one sentence about a step that could not be undone or redone; the step is removed from the stack.
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

    def push(
        self, text: str, undo: Callable[[], object], redo: Callable[[], object], *, kind: str = "", drag: int = 0
    ) -> None:
        """Record a step that was just done; ignored while another step is being undone or redone.

        Args:
            text: the step, as in "Delete of 3 Recordings".
            undo: reverses the step; an OSError, ValueError, RuntimeError or RecordingError goes to `failed`.
            redo: repeats the step.
            kind: steps of one kind within a second of each other are undone together; "" stands alone.
            drag: number of the drag it is part of; steps of one are undone together, however long it takes,
                and apart from those before and after; 0 for none.
        """
        if not self.replaying:
            self._stack.push(_Step(self, text, (undo, redo), _Together(kind, drag), self._clock()))

    @property
    def undo_text(self) -> str:
        """The step that `undo` would reverse; "" if there is none."""
        if self._stack.canUndo():
            return self._stack.undoText()
        return ""

    @property
    def redo_text(self) -> str:
        """The step that `redo` would repeat; "" if there is none."""
        if self._stack.canRedo():
            return self._stack.redoText()
        return ""

    @property
    def count(self) -> int:
        """Number of steps on the stack."""
        return self._stack.count()

    def undo(self) -> None:
        """Undo the newest step."""
        self._stack.undo()

    def redo(self) -> None:
        """Redo the step that was undone last."""
        self._stack.redo()

    def carry_out(self, act: Callable[[], object]) -> bool:
        """Call ``act`` and report a failure; return whether it succeeded."""
        self.replaying = True
        try:
            act()
        except (OSError, ValueError, RuntimeError, RecordingError) as error:
            self.failed.emit(str(error))
            return False
        finally:
            self.replaying = False
        return True


@dataclass(frozen=True, slots=True)
class _Together:
    """Which steps are undone together: as `Undoing.push`."""

    kind: str
    drag: int


class _Step(QUndoCommand):
    """A step that is already done when it is pushed."""

    def __init__(
        self,
        undoing: Undoing,
        text: str,
        directions: tuple[Callable[[], object], Callable[[], object]],
        together: _Together,
        done_s: float,
    ) -> None:
        super().__init__(text)
        self._undoing = undoing
        self.back, self.forward = directions
        self.together = together
        self.done_s = done_s
        self._done = True

    def id(self) -> int:
        if self.together.kind:
            return hash(self.together.kind) & 0x7FFFFFFF
        return -1

    def mergeWith(self, other: QUndoCommand) -> bool:
        if not isinstance(other, _Step) or other.together != self.together:
            return False
        if not self.together.drag and other.done_s - self.done_s > TOGETHER_S:
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
