"""What a stack was doing: the phase of a training step it belongs to, and what it allocates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.snapshot.history.model import Frame

PHASES = ("", "forward", "backward", "optimizer", "compilation")
"""Names of phases by their codes."""

NO_PHASE, FORWARD, BACKWARD, OPTIMIZER, COMPILATION = range(5)
_MODULE_FILE = ("torch/nn/modules/module.py", "torch\\nn\\modules\\module.py")

LEAST_OF_PARAMETERS = 0.5
"""Bytes of what `_apply` moves after the parameters, as a part of theirs, to be taken for their gradients."""

_OPTIM, _BACKWARD, _ENGINE, _CALL, _AUTOGRAD_APPLY, _PYTHON = (1 << bit for bit in range(6))
_ROLE_SHIFT = 8

_BITS = (1 << _ROLE_SHIFT) - 1
"""Above the bits of a frame's traits stands its role."""

_BACKWARD_FILES = re.compile(r"torch/(autograd/(__init__|graph)|_tensor)\.py$")
_BACKWARD_NAMES = frozenset(("backward", "grad", "_engine_run_backward", "_backward"))
_OPTIMIZERS = re.compile(r"(^|/)(torch/optim|bitsandbytes/optim|torchao/optim)/")


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
    KV_CACHE = 8


_LINES = tuple(
    (re.compile(rf"(^|/){file}" if file else ""), re.compile(name), role)
    for file, name, role in (
        # replicas of DataParallel, the parts of a batch for them, and what is gathered from them
        (r"torch/nn/parallel/(replicate|comm|_functions)\.py$", r"broadcast|replicate", Role.WEIGHTS),
        (r"torch/nn/parallel/comm\.py$", r"reduce_add", Role.GRADIENTS),
        (r"torch/nn/parallel/(comm|scatter_gather)\.py$", r"scatter", Role.INPUTS),
        (r"torch/nn/parallel/(comm|scatter_gather)\.py$", r"gather", Role.ACTIVATIONS),
        # the buckets of DistributedDataParallel hold gradients; they are made anew before the second forward pass
        (r"torch/nn/parallel/distributed\.py$", r"_ddp_init_helper$|_pre_forward$", Role.GRADIENTS),
        (r"torch/distributed/utils\.py$", r"_to_kwargs$|_recursive_to$", Role.INPUTS),
        (r"torch/distributed/(_composable/)?fsdp/", r"reduce|(?<!no_)grad", Role.GRADIENTS),
        (r"torch/distributed/(_composable/)?fsdp/", r"cast_forward_input|_to_kwargs", Role.INPUTS),
        (r"torch/distributed/(_composable/)?fsdp/", r"gather|unshard|shard|param", Role.WEIGHTS),
        (r"", r"(?i)(alloc|init|create|make)\w*kv_?cache(_tensors)?$", Role.KV_CACHE),
        (r"vllm/.*cache_engine\.py$", r"", Role.KV_CACHE),
        (r"sglang/.*memory_pool\.py$", r"", Role.KV_CACHE),
        (r"transformers/cache_utils\.py$", r"", Role.KV_CACHE),
        # checkpoints that are loaded onto the device
        (r"(transformers/(modeling_utils|core_model_loading)|safetensors/torch)\.py$", r"", Role.WEIGHTS),
        (r"accelerate/utils/modeling\.py$", r"^set_module_tensor_to_device$", Role.WEIGHTS),
        (r"", r"^(create_weights|load_weights|init(_all)?_weights?(_list)?)$", Role.WEIGHTS),
        (r"torch/nn/modules/module\.py$", r"^(_apply|to|load_state_dict)$", Role.WEIGHTS),
        (r"torch/nn/", r"^(__init__|reset_parameters)$", Role.WEIGHTS),
        (r"torch/nn/init\.py$", r"", Role.WEIGHTS),
        (r"torch/utils/data/", r"", Role.INPUTS),
        (r"torch/nn/functional\.py$", r"", Role.ACTIVATIONS),
    )
)
"""Lines that tell what is allocated by them: file, function, role; the first that matches counts."""


def role_of(stack: Iterable[Frame]) -> tuple[Role, int]:
    """What a stack allocates for, by its innermost frame that tells, and the code of its phase.

    A custom function of autograd runs its forward and its backward through the same line: the outermost frame tells
    which, since the engine's threads begin with it.
    """
    seen, role, outermost = 0, Role.OTHER, 0
    for file, _line, name in stack:
        traits = _traits(file, name)
        seen |= traits & _BITS
        outermost = traits if traits & _PYTHON else outermost
        if role is Role.OTHER:
            role = Role(traits >> _ROLE_SHIFT)
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


def moved_gradients(
    stacks: Sequence[Sequence[Frame]], stack: NDArray[np.int64], requested: NDArray[np.int64]
) -> list[int]:
    """Stacks that move gradients to a device, as ``Module.to`` does with those of its parameters.

    ``Module._apply`` (torch/nn/modules/module.py) calls the same function for parameters, for their gradients and for
    buffers, each at a line of its own, in this order. Gradients are as large as the parameters they are of, each, and
    all of them together about as large as all parameters; buffers are not.

    Args:
        stacks: of the snapshot.
        stack, requested: of each block: index of its stack, -1 without one, and bytes.
    """
    line_of: dict[int, tuple[str, int]] = {}
    of_children = set()
    for number, frames in enumerate(stacks):
        lines = [(file, line) for file, line, name in frames if name == "_apply" and file.endswith(_MODULE_FILE)]
        if lines:
            line_of[number] = lines[0]
            of_children.update(lines[1:])
    sizes: dict[tuple[str, int], Counter[int]] = {line: Counter() for line in line_of.values()}
    moves = np.isin(stack, list(line_of))
    for number, size in zip(stack[moves].tolist(), requested[moves].tolist(), strict=True):
        sizes[line_of[number]][size] += 1
    found = set()
    for file in {file for file, _ in sizes}:
        lines = sorted(line for line in sizes if line[0] == file and line not in of_children)
        parameters = sizes[lines[0]] if lines else Counter()
        for line in lines[1:]:
            whole = sum((sizes[line] & parameters).elements())
            if sizes[line] <= parameters and whole >= LEAST_OF_PARAMETERS * sum(parameters.elements()):
                found.add(line)
    return [number for number, line in line_of.items() if line in found]


@lru_cache(maxsize=65536)
def _traits(file: str, name: str) -> int:
    """What one frame says: bits, and above them its role."""
    file = file.replace("\\", "/")
    if not file.endswith(".py"):
        if "Workspace" in name:
            return _told(Role.WORKSPACE)
        return _ENGINE | _told(Role.GRADIENTS) if "autograd::Engine" in name or "autograd::Node" in name else 0
    if _OPTIMIZERS.search(file):
        # zero_grad frees gradients, before or after any phase
        return _PYTHON if name == "zero_grad" else _PYTHON | _OPTIM | _told(Role.OPTIMIZER_STATE)
    if "torch/autograd/function.py" in file:
        return _PYTHON | _AUTOGRAD_APPLY
    if _BACKWARD_FILES.search(file) and name in _BACKWARD_NAMES:
        return _PYTHON | _BACKWARD | _told(Role.GRADIENTS)
    if name == "_call_impl" and "torch/nn/modules/module.py" in file:
        return _PYTHON | _CALL | _told(Role.ACTIVATIONS)
    role = next((role for files, names, role in _LINES if files.search(file) and names.search(name)), Role.OTHER)
    return _PYTHON | _told(role)


def _told(role: Role) -> int:
    return int(role) << _ROLE_SHIFT
