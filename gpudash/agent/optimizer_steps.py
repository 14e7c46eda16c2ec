"""Steps of a program that tells none: those its optimizer makes."""

from __future__ import annotations

import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .steps import Steps

PATIENCE = 3
"""Steps that another optimizer makes while the one that is counted makes none, until it is the one that is counted: a
second training has begun. The two of a GAN take turns, one of them perhaps more often."""


class OptimizerSteps:
    """Counts them: those of the program's first optimizer, and when it rests those of another.

    Args:
        steps: are told.
        then: called with the optimizer after each step that counts.
    """

    def __init__(self, steps: Steps, then: Callable[[Any], None] | None = None) -> None:
        self._steps = steps
        self._then = then
        self._counted: Any = None
        self._others: dict[int, int] = {}

    def follow(self) -> None:
        """Be told of every step of any optimizer from now on; nothing where torch cannot tell of them."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(self.stepped)

    def stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called by torch after a step."""
        counted = None if self._counted is None else self._counted()
        made = 1
        if counted is not optimizer:
            if counted is not None:
                made = self._others.get(id(optimizer), 0) + 1
                self._others[id(optimizer)] = made
                if made < PATIENCE:
                    return
            self._counted = weakref.ref(optimizer)
        if self._others:
            self._others.clear()
        self._steps.optimizer_stepped(made)
        if self._then is not None:
            self._then(optimizer)
