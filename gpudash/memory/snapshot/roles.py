"""What a stack was doing: the phase of a training step it belongs to, and what it allocates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.model import Frame

PHASES = ("", "forward", "backward", "optimizer", "compilation")
"""Names of phases by their codes."""

NO_PHASE, FORWARD, BACKWARD, OPTIMIZER, COMPILATION = range(5)


class Role(IntEnum):
    """What a stack allocates for, before it is known how long that lives."""

    OTHER = 0
    WEIGHTS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    INPUTS = 5
    WORKSPACE = 6
    NO_STACK = 7


_OPTIM, _BACKWARD, _ENGINE, _CALL, _APPLY, _INPUTS, _WORKSPACE, _AUTOGRAD_APPLY, _PYTHON, _BUILD = (
    1 << bit for bit in range(10)
)

_BACKWARD_FILES = re.compile(r"torch/(autograd/(__init__|graph)|_tensor)\.py$")
_BACKWARD_NAMES = frozenset(("backward", "grad", "_engine_run_backward", "_backward"))
_ROLE_OF = (
    (_WORKSPACE, Role.WORKSPACE),
    (_OPTIM, Role.OPTIMIZER_STATE),
    (_BACKWARD | _ENGINE, Role.GRADIENTS),
    (_APPLY | _BUILD, Role.WEIGHTS),
    (_CALL, Role.ACTIVATIONS),
    (_INPUTS, Role.INPUTS),
)


@lru_cache(maxsize=65536)
def _traits(file: str, name: str) -> int:
    """What one frame says."""
    file = file.replace("\\", "/")
    if not file.endswith(".py"):
        found = _ENGINE if "autograd::Engine" in name or "autograd::Node" in name else 0
        return found | (_WORKSPACE if "Workspace" in name else 0)
    if "torch/optim/" in file:
        # zero_grad frees gradients, before or after any phase
        return _PYTHON if name == "zero_grad" else _PYTHON | _OPTIM
    if "torch/autograd/function.py" in file:
        return _PYTHON | _AUTOGRAD_APPLY
    if _BACKWARD_FILES.search(file) and name in _BACKWARD_NAMES:
        return _PYTHON | _BACKWARD
    if "torch/nn/modules/module.py" in file:
        return _PYTHON | {"_apply": _APPLY, "to": _APPLY, "_call_impl": _CALL, "load_state_dict": _APPLY}.get(name, 0)
    if "torch/nn/" in file and (name in ("__init__", "reset_parameters") or "torch/nn/init.py" in file):
        return _PYTHON | _BUILD
    if "torch/utils/data/" in file:
        return _PYTHON | _INPUTS
    return _PYTHON


def role_of(stack: Iterable[Frame]) -> tuple[Role, int]:
    """What a stack allocates for, by its innermost frame that tells, and the code of its phase.

    A custom function of autograd runs its forward and its backward through the same line: the outermost frame tells
    which, since the engine's threads begin with it.
    """
    seen, role, outermost = 0, Role.OTHER, 0
    for file, _line, name in stack:
        traits = _traits(file, name)
        seen |= traits
        outermost = traits if traits & _PYTHON else outermost
        if role is Role.OTHER and traits & ~_PYTHON:
            role = next((found for mask, found in _ROLE_OF if traits & mask), role)
    if outermost & _AUTOGRAD_APPLY:
        seen |= _BACKWARD
        role = Role.GRADIENTS if role is Role.OTHER else role
    if seen & _OPTIM:
        return role, OPTIMIZER
    if seen & (_BACKWARD | _ENGINE):
        return role, BACKWARD
    return role, FORWARD if seen & _CALL else NO_PHASE


def roles(stacks: Sequence[Sequence[Frame]]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Role and phase of each stack; one more of each behind them, for what has no stack."""
    found = [role_of(stack) for stack in stacks]
    role = np.array([*(role for role, _ in found), Role.NO_STACK], np.uint8)
    return role, np.array([*(phase for _, phase in found), NO_PHASE], np.uint8)
