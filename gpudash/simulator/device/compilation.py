"""``torch.compile`` on the simulated device: code is traced and then run as it is; nothing is compiled."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpudash.simulator.device.storage import DEVICE

INDUCTOR = "_TorchCompileInductorWrapper"
OTHERS = "_TorchCompileWrapper"


def install() -> None:
    """Run graphs with tensors of the simulated device uncompiled, with one warning."""
    for name in (INDUCTOR, OTHERS):
        wrapper: Any = getattr(torch, name, None)
        if wrapper is not None:
            wrapper.__init__ = _leaving_the_simulator_out(wrapper.__init__)
    compiler: Any = getattr(torch, INDUCTOR, None)
    if compiler is None:
        return
    original = compiler.__call__

    def compiled(self: Any, model: Any, inputs: Sequence[Any]) -> Any:
        if any(isinstance(value, torch.Tensor) and value.device.type == DEVICE for value in inputs):
            warnings.warn(f"torch.compile compiles nothing for {DEVICE}: the code runs as it is.", stacklevel=2)
            return model.forward
        return original(self, model, inputs)

    compiler.__call__ = compiled


def _leaving_the_simulator_out(make: Callable[..., None]) -> Callable[..., None]:
    """``make``, before which torch's tracer is told to leave the simulator's own code alone.

    Tracing asks the device for its stream; traced itself, the answer asks again, without end.
    """

    def made(*args: Any, **kwargs: Any) -> None:
        _leave_out(__package__)
        make(*args, **kwargs)

    return made


@functools.cache
def _leave_out(package: str) -> None:
    from torch._dynamo import trace_rules  # costs seconds, which only code that compiles should spend

    add: Any = trace_rules.add
    add(package)
