"""torch's compiler, imported only when something besides an optimizer asks for it.

Every step of an optimizer imports ``torch._dynamo``, to mark where a compiler would break its graph. That takes nearly
as long as importing torch, and a dry run compiles nothing. A module that stands in its place answers those marks, and
makes way for the compiler when it is asked for anything else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"


class _StandIn(ModuleType):
    """What stands in the compiler's place."""

    def graph_break(self, msg: str = "") -> None:
        """Do nothing: there is no graph."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_options: Any) -> Callable[..., Any]:
        """The function itself: nothing compiles it."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


def leave_compiler_out() -> None:
    """Keep torch's compiler from being imported for nothing, unless it has been already."""
    if NAME in sys.modules:
        return
    stand_in = _StandIn(NAME)
    sys.modules[NAME] = stand_in
    setattr(torch, NAME.rpartition(".")[2], stand_in)  # as importing it does
