"""Steps that are whole trainings, such as ``trainer.train()`` of a library: calling them again would train again."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks

from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements


class WholeTraining:
    """Counts optimizer steps while it is active.

    A training creates its optimizer and steps it several times. Code for a single step has created its own before,
    even if it creates others for inner steps, as in meta-learning.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._steps: Counter[int] = Counter()
        self._is_a_step = False
        self._replaced = Replacements()

    @property
    def steps(self) -> int:
        """How many steps were taken in a call that was a whole training; 0 if it was not."""
        most = max(self._steps.values(), default=0)
        # An existing optimizer was stepped: the call is one step of the user's own training.
        if self._is_a_step or most < 2:
            return 0
        return most

    def __enter__(self) -> WholeTraining:  # noqa: PYI034 - Python 3.9 has no Self
        self._replaced.wrap(Optimizer, "__init__", self._noting)
        # torch's own hook, called after every optimizer step.
        self._replaced.undo_by(optimizer_hooks.register_optimizer_step_post_hook(self._stepped).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._replaced.undo()

    def _noting(self, make: Callable[..., None]) -> Callable[..., None]:
        @hands_on
        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self._made.add(optimizer)
            make(optimizer, *args, **kwargs)

        return made

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._steps[id(optimizer)] += 1
        if optimizer not in self._made:
            self._is_a_step = True
