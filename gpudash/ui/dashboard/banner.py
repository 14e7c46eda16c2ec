"""The strip that shows what needs attention: a warning, and buttons that act on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy

from gpudash.telemetry.records import Event, Note, RunEnd, RunStarted, Topic, Warning
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.labels import polish_again, worded_button
from gpudash.ui.widgets.layouts import in_row
from gpudash.ui.widgets.plain_text import PlainLabel

ACTION_TEXT: Mapping[str, tuple[str, str]] = {
    "explain": ("Explain", "Show what filled the memory, who allocated it, and what would have fitted (Ctrl+E)"),
    "use_python": ("Run with it", "Run the script again with the Python that has PyTorch"),
    "simulate": ("Simulate a GPU", "Run the script again on a simulated GPU that answers as cuda"),
    "open_report": ("Open report", "Open the snapshot taken when memory ran out, in its own tab"),
    "stop": ("Stop run", "Stop the run after its current operation"),
    "free_cache": ("Free cache", "Give memory that is held but not used back"),
    "save_recording": ("Save recording", "Save a copy of the recording elsewhere"),
}

COMMANDS = frozenset({"stop", "free_cache", "use_python", "simulate"})
"""Actions that only a live session can perform."""

_GRAVITY = {"note": 0, "passed": 0, "forecast": 1, "warning": 2, "critical": 3}

PASSED_SHOWN_S = 8.0
"""Seconds of session time for which "passed" stays before the strip closes."""


REPORT_TEXT = "Memory ran out; the report says what filled it and what would have fitted."

Attention = Warning | RunEnd | Note


class Banner(QFrame):
    """Shows the most severe open warning; hidden if there is none.

    Attributes:
        commanding: whether `COMMANDS` are offered.

    Signals:
        action: an action of the warning was chosen, a key of `ACTION_TEXT`.
    """

    action = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("role", "banner")
        self.commanding = True
        self._open: dict[str, Attention] = {}
        self._shown: Event | None = None
        self._brief = ""
        self._text = PlainLabel(wraps=True)
        self._text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        row = in_row((self._text, 1), parent=self, margins=(14, 2, 10, 2), spacing=6)
        self._buttons: dict[str, QPushButton] = {}
        for name, (text, tip) in ACTION_TEXT.items():
            button = worded_button(text, tip, partial(self.action.emit, name), tab_only=True)
            row.addWidget(button)
            self._buttons[name] = button
        self._close = worded_button(
            "×", "Dismiss; it stays in the events table", self._dismiss, role="chip", name="Dismiss", tab_only=True
        )
        row.addWidget(self._close)
        FocusGroup(self, [*self._buttons.values(), self._close])
        self.hide()

    @property
    def shown(self) -> Event | None:
        """The event that the strip shows."""
        return self._shown

    @property
    def warns(self) -> bool:
        """Whether there is a memory warning, or the last run ran out of memory."""
        return any(
            _ran_out(event) or (isinstance(event, Warning) and _GRAVITY[event.level] > 0)
            for event in self._open.values()
        )

    def take(self, event: Event) -> None:
        """Handle an event; events that need no attention are ignored."""
        if isinstance(event, RunEnd):
            self._open = {key: other for key, other in self._open.items() if not _grows(other)}
            self._settle_straggler(event)
        if isinstance(event, Warning):
            if event.level == "passed":
                self._open.pop(event.device, None)
                self._open["passed"] = event
            else:
                self._open.pop("passed", None)
                standing = self._open.get(event.device)
                if not isinstance(standing, Warning) or _GRAVITY[event.level] >= _GRAVITY[standing.level]:
                    self._open[event.device] = event
        elif isinstance(event, RunEnd):
            if event.ended_badly:
                self._open["run"] = event
        elif isinstance(event, Note) and report_of(event) is not None:
            self._open["run"] = event
        elif isinstance(event, Note) and event.topic == Topic.STRAGGLER:
            self._open[Topic.STRAGGLER] = event
        elif isinstance(event, RunStarted):
            self.leave_run()
        else:
            return
        self._update()

    def _settle_straggler(self, ending: RunEnd) -> None:
        """Take over the final result's text on a slow rank, so that it agrees with the table of ranks."""
        note = self._open.get(Topic.STRAGGLER)
        if not isinstance(note, Note) or Topic.STRAGGLER not in ending.result:
            return
        found = ending.result[Topic.STRAGGLER]
        text = None
        if isinstance(found, Mapping):
            text = found.get("text")
        if text:
            self._open[Topic.STRAGGLER] = replace(note, text=str(text))
        else:
            del self._open[Topic.STRAGGLER]

    @property
    def standing(self) -> list[Warning]:
        """The open warnings, whose figures may have changed."""
        return [event for event in self._open.values() if isinstance(event, Warning) and event.level != "passed"]

    def say_now(self, warning: Warning, now: Warning) -> None:
        """Update the text and buttons of a warning if it is the one shown."""
        if warning is not self._shown:
            return
        if now.text != self._text.text():
            self._say(warning, now.text)
        self._offer(now.actions)

    def set_brief(self, text: str) -> None:
        """Show only ``text`` for a bad ending while its reason is shown beside the plots; "" shows the reason here."""
        if text != self._brief:
            self._brief = text
            self._update()

    def leave_run(self) -> None:
        """Drop how the last run ended: the user asks for another."""
        for key in ("run", "passed", Topic.STRAGGLER):
            self._open.pop(key, None)
        self._update()

    def forget(self) -> None:
        """Drop all events: they are later than the moment shown now."""
        self._open.clear()
        self._update()

    def tick(self, now_s: float) -> None:
        """Close "passed" after a while; called at every refresh with session time."""
        passed = self._open.get("passed")
        if passed is not None and now_s - passed.time_s > PASSED_SHOWN_S:
            del self._open["passed"]
            self._update()

    def set_running(self, running: bool) -> None:
        """Enable Stop only while there is something to stop."""
        self._buttons["stop"].setEnabled(running)

    def _dismiss(self) -> None:
        for key, event in list(self._open.items()):
            if event is self._shown:
                del self._open[key]
        self._update()

    def _update(self) -> None:
        gravest = max(self._open.values(), key=lambda event: (_gravity(event), event.time_s), default=None)
        self._shown = gravest
        self.setVisible(gravest is not None)
        if gravest is None:
            return
        level = _level(gravest)
        ended = isinstance(gravest, RunEnd)
        self._say(gravest, self._brief if ended and self._brief else _text(gravest))
        self._offer(_actions(gravest))
        ground = {"critical": "critical", "warning": "warning", "forecast": "warning"}.get(level, "note")
        if self.property("level") != ground:
            self.setProperty("level", ground)
            polish_again(self, *self._buttons.values(), self._close)

    def _offer(self, actions: Sequence[str]) -> None:
        """Show the buttons for ``actions`` that can be performed here."""
        for name, button in self._buttons.items():
            button.setVisible(name in actions and (self.commanding or name not in COMMANDS))

    def _say(self, event: Attention, text: str) -> None:
        self._text.setText(text)
        self.setAccessibleName(f"{_level(event)}: {text}")


def _grows(event: Event) -> bool:
    """Whether an event names what grows during a run; such a warning ends with the run."""
    return isinstance(event, Warning) and event.cause is not None


def _ran_out(event: Event) -> bool:
    return isinstance(event, RunEnd) and event.status == "out_of_memory"


def report_of(event: Event | None) -> Path | None:
    """The report folder of an out-of-memory in the user's own program."""
    if isinstance(event, RunEnd):
        folder = event.result.get("report")
    else:
        folder = None
        if isinstance(event, Note) and event.topic == Topic.REPORT:
            folder = event.details.get("folder")
    if isinstance(folder, str) and folder:
        return Path(folder)
    return None


def python_of(event: Event | None) -> str | None:
    """An interpreter that has the packages the user's own program was missing."""
    python = None
    if isinstance(event, RunEnd):
        python = event.result.get("python_with_torch")
    if isinstance(python, str) and python:
        return python
    return None


def misses_cuda(result: Mapping[str, Any]) -> bool:
    """Whether the user's own program failed because there is no CUDA device, which a simulated GPU can provide."""
    return result.get("misses_cuda") is True


def _level(event: Attention) -> str:
    if isinstance(event, Warning):
        return event.level
    if isinstance(event, Note):
        if event.topic == Topic.STRAGGLER:
            return "note"
        return "warning"
    return "critical"


def _actions(event: Attention) -> Sequence[str]:
    if isinstance(event, Warning):
        return event.actions
    offered = {
        "explain": _is_explained(event),
        "use_python": python_of(event) is not None,
        "simulate": isinstance(event, RunEnd) and misses_cuda(event.result),
        "open_report": report_of(event) is not None,
    }
    return tuple(action for action, useful in offered.items() if useful)


def _is_explained(ending: Attention) -> bool:
    return isinstance(ending, RunEnd) and ending.explanation is not None


def _text(ending: Attention) -> str:
    """The text of a warning, or how a run ended badly, with the cause if it is known."""
    if isinstance(ending, Warning):
        return ending.text
    if isinstance(ending, Note):
        if ending.topic == Topic.STRAGGLER:
            return ending.text
        return REPORT_TEXT
    if ending.explanation is not None:
        return f"{ending.explanation.headline} {ending.explanation.request_words}"
    return f"{ending.message} {ending.remedy}".strip()


def _gravity(event: Attention) -> int:
    """Severity. An out-of-memory outranks every warning: it is what they predicted, and comes with its cause. Of a
    failure and a critical warning the newer one is shown.
    """
    if isinstance(event, Warning):
        return _GRAVITY[event.level]
    if isinstance(event, Note) and event.topic == Topic.STRAGGLER:
        return _GRAVITY["note"]
    if _ran_out(event) or isinstance(event, Note):  # the note on a report comes before its program's end is known
        return _GRAVITY["critical"] + 1
    return _GRAVITY["critical"]
