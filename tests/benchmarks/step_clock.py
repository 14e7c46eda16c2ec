"""What the agent's clock of the parts of a step costs, of a step of an MLP."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from gpudash.agent.stepping.step_clock import BACKWARD_CALL, SETTINGS, StepClock
from gpudash.specs import TrainingSpec
from tests.benchmarks.instrumentation import bare_step_s

STEPS = 20_000
ROUNDS = 5


class Loader:
    """An iterator whose batches cost nothing."""

    def __init__(self) -> None:
        vars(self).update(dict.fromkeys(SETTINGS, 0))

    def __next__(self) -> None:
        return None


def measure() -> dict[str, float]:
    """Microseconds of a step that does nothing, with the clock less without; and of a real one in per cent."""
    torch.set_num_threads(1)
    clock = StepClock()
    input_module = SimpleNamespace(_BaseDataLoaderIter=Loader)
    autograd = SimpleNamespace(**{BACKWARD_CALL: lambda: None})
    bare = []
    timed = []
    for _round in range(ROUNDS):
        bare.append(_step_s(autograd, ()))
        undo = [clock.follow_input(input_module, lambda _seconds: None), clock.follow_backward(autograd)]
        ended = (clock.optimizer_begins, clock.optimizer_ended, clock.step_ended)
        timed.append(_step_s(autograd, ended))
        for one in undo:
            one()
    more_s = statistics.median(timed) - statistics.median(bare)
    # The clock costs the same of every step: of a larger one it is a smaller part.
    step_s = bare_step_s(TrainingSpec.model_validate({**TrainingSpec.presets["MLP"], "steps": 300, "epochs": 1}))
    return {"us_a_step": more_s * 1e6, "cost_percent": more_s / step_s * 100}


def _step_s(autograd: Any, ended: tuple[Callable[[], None], ...]) -> float:
    """Seconds of a step of a program that computes nothing."""
    loader = Loader()
    began_s = time.perf_counter()
    for _step in range(STEPS):
        next(loader)
        getattr(autograd, BACKWARD_CALL)()
        for call in ended:
            call()
    return (time.perf_counter() - began_s) / STEPS
