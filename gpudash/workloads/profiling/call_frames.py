"""Which Python functions were on at a moment: what called the operators that a profile shows.

torch's own recorder of stacks follows every thread of the process, the window's too; this one follows its own alone.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

Frame = tuple[CodeType, int]
"""A function, and the line in it from which the newest call was made."""

_CALL_OF_C = None
"""In place of a function's code: a call of something that is not written in Python."""


class CallFrames:
    """Records calls and returns of the thread that starts it, until `stop`."""

    def __init__(self) -> None:
        self._times = array("q")
        self._codes: list[CodeType | bool | None] = []
        self._lines = array("l")
        self._first: list[Frame] = []
        self._before: Any = None

    def __len__(self) -> int:
        return len(self._codes)

    def start(self) -> None:
        """Begin to record on this thread, from the functions on that are on now."""
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - there is no public name for it
        while frame is not None:
            self._first.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._first.reverse()
        self._before = sys.getprofile()
        sys.setprofile(self._recorder())

    def stop(self) -> None:
        """Record no more; whoever profiled this thread before does so again."""
        sys.setprofile(self._before)

    def _recorder(self) -> Callable[[FrameType, str, Any], None]:
        now, put_time = time.time_ns, self._times.append
        put_code, put_line = self._codes.append, self._lines.append

        def record(frame: FrameType, kind: str, _arg: Any) -> None:
            if kind == "call":
                caller = frame.f_back
                put_time(now())
                put_code(frame.f_code)
                put_line(caller.f_lineno if caller is not None else 0)
            elif kind == "return":
                put_time(now())
                put_code(True)
                put_line(0)
            elif kind == "c_call":
                put_time(now())
                put_code(_CALL_OF_C)
                put_line(frame.f_lineno)

        return record

    def at(self, moments_ns: Iterable[int]) -> Iterator[tuple[Frame, ...]]:
        """The functions on at each of the ascending moments (Unix time in ns), the innermost last."""
        stack = list(self._first)
        found: tuple[Frame, ...] | None = None
        place, count = 0, len(self._codes)
        for moment in moments_ns:
            while place < count and self._times[place] <= moment:
                self._follow(stack, self._codes[place], self._lines[place])
                place += 1
                found = None
            if found is None:
                found = tuple(stack)
            yield found

    @staticmethod
    def _follow(stack: list[Frame], code: CodeType | bool | None, line: int) -> None:
        if code is True:
            if stack:
                stack.pop()
            return
        if stack:
            stack[-1] = (stack[-1][0], line)
        if isinstance(code, CodeType):
            stack.append((code, code.co_firstlineno))
