"""Steps that are whole trainings, as ``trainer.train()`` of a library is: calling them again would train again."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks

from gpudash.simulator.faults import hands_on


class WholeTraining:
    """Counts the steps of optimizers while it is entered.

    A training makes its optimizer and steps it several times. Code that is one step has made its own before, even where
    it makes others for steps within, as meta-learning does.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._steps: Counter[int] = Counter()
        self._is_a_step = False
        self._end: list[Callable[[], None]] = []

    @property
    def steps(self) -> int:
        """How many steps were taken in a call that was a whole training; 0 when it was not."""
        most = max(self._steps.values(), default=0)
        # An optimizer from before was stepped: the call is one step of a training of the user's own.
        if self._is_a_step or most < 2:
            return 0
        return most

    def __enter__(self) -> WholeTraining:  # noqa: PYI034 - Python 3.9 has no Self
        kind: Any = Optimizer
        make = kind.__init__

        @hands_on
        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self._made.add(optimizer)
            make(optimizer, *args, **kwargs)

        def put_back() -> None:
            kind.__init__ = make

        kind.__init__ = made
        # torch's own hook, which is called behind every optimizer's step.
        self._end = [put_back, optimizer_hooks.register_optimizer_step_post_hook(self._stepped).remove]
        return self

    def __exit__(self, *error: object) -> None:
        for end in self._end:
            end()

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._steps[id(optimizer)] += 1
        if optimizer not in self._made:
            self._is_a_step = True
