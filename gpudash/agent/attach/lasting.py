"""Hooks that Python and torch never remove: registered once, however often one attaches, and inert in between.

Fork hooks, torch's out-of-memory observer, and callbacks for CUDA's initialisation cannot be removed. They therefore
only forward to the present agent. This object also shows that there is one.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Call = Callable[..., Any]

NAME = "_gpudash_lasting"
"""Name of the attribute in `sys`; its value is plain data, since another gpudash's agent may come next."""

OWNER = "owner"


class Lasting:
    """The callbacks of an agent, as long as it is the present one."""

    def __init__(self) -> None:
        found: dict[str, Any] = sys.__dict__.setdefault(NAME, {"given": set(), "now": {}})
        self._given: set[str] = found["given"]
        self._now: dict[str, Call] = found["now"]
        self._owns = False

    def claim(self, is_held: Callable[[], bool]) -> bool:
        """Become the agent of this process; false if there is another one.

        Args:
            is_held: called by the next agent; may release before it answers.
        """
        before = self._now.setdefault(OWNER, is_held)
        if before is not is_held and not before():
            before = self._now.setdefault(OWNER, is_held)
        self._owns = before is is_held
        return self._owns

    def call(self, name: str, callback: Call) -> None:
        """Set the callback of this name, replacing the previous one."""
        if self._owns:
            self._now[name] = callback

    def given(self, name: str, give: Callable[[Call], Any]) -> None:
        """Register a forwarder to the callback of this name, only the first time."""
        if name not in self._given:
            self._given.add(name)
            give(_passing_on(self._now, name))

    def release(self) -> None:
        """Remove all callbacks."""
        if self._owns:
            self._owns = False
            self._now.clear()


def _passing_on(now: dict[str, Call], name: str) -> Call:
    def pass_on(*args: Any) -> None:
        call = now.get(name)
        if call is not None:
            call(*args)

    # It needs no globals; this module's would keep the whole agent alive.
    function: Any = type(pass_on)
    made: Call = function(pass_on.__code__, {"__builtins__": builtins.__dict__}, name, None, pass_on.__closure__)
    return made
