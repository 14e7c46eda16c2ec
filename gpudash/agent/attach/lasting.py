"""What Python and torch never let go of once they have it: given once, however often one attaches, and inert meanwhile.

Hooks of a fork, torch's observer of full memory and calls it keeps for when it initialises CUDA cannot be taken back.
So they only pass on to the agent that is here now. That there is one is known by this place, too.
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
"""Of the attribute of `sys`; what it holds is plain, since the agent of another gpudash may come next."""

OWNER = "owner"


class Lasting:
    """The calls of one agent, as long as it is the one that is here."""

    def __init__(self) -> None:
        found: dict[str, Any] = sys.__dict__.setdefault(NAME, {"given": set(), "now": {}})
        self._given: set[str] = found["given"]
        self._now: dict[str, Call] = found["now"]
        self._owns = False

    def claim(self, is_held: Callable[[], bool]) -> bool:
        """Be the agent of this process; false where another one is.

        Args:
            is_held: asked by the next that comes; it may let go before it answers.
        """
        before = self._now.setdefault(OWNER, is_held)
        if before is not is_held and not before():
            before = self._now.setdefault(OWNER, is_held)
        self._owns = before is is_held
        return self._owns

    def call(self, name: str, callback: Call) -> None:
        """Have ``callback`` called in place of the one before."""
        if self._owns:
            self._now[name] = callback

    def given(self, name: str, give: Callable[[Call], Any]) -> None:
        """Hand out what calls the callback of this name, the first time only."""
        if name not in self._given:
            self._given.add(name)
            give(_passing_on(self._now, name))

    def release(self) -> None:
        """Let nothing be called any more."""
        if self._owns:
            self._owns = False
            self._now.clear()


def _passing_on(now: dict[str, Call], name: str) -> Call:
    def pass_on(*args: Any) -> None:
        call = now.get(name)
        if call is not None:
            call(*args)

    # of its own names it needs none; those of this module would keep all of the agent
    function: Any = type(pass_on)
    made: Call = function(pass_on.__code__, {"__builtins__": builtins.__dict__}, name, None, pass_on.__closure__)
    return made
