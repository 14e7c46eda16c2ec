"""The phase of a training step to which a stack belongs, and what it allocates; the phases of steps along a trace,
from annotations and stacks; and the purpose of blocks, by stacks and lifetimes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.trace import CATEGORIES as KINDS
from gpudash.memory.explaining.memory_state import KV_CACHE, OTHER_TENSORS
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.model import ALLOC, NONE, OOM, Annotation, Columns, Frame
from gpudash.telemetry.explanation import NO_STACK as NO_STACK

_OPTIMIZES, _COMPILES = "Optimizer.step", "(dynamo_timed)"
"""Parts of annotation names: those of torch.optim's optimizers, and of torch._dynamo's steps."""

SHORTEST_BAND = 4
"""Shortest band, in events, that counts if its neighbours have the same phase."""

MOST_BANDS = 2000
"""Most bands; with more, the short ones are not phases of a step."""

SHARE_WITH_STACKS = 0.3
"""Part of the allocations that must have a stack before a missing stack means anything."""

PHASES = ("", "forward", "backward", "optimizer", "compilation")
"""Names of phases by their codes."""

NO_PHASE, FORWARD, BACKWARD, OPTIMIZER, COMPILATION = range(5)
_MODULE_FILE = ("torch/nn/modules/module.py", "torch\\nn\\modules\\module.py")

LEAST_OF_PARAMETERS = 0.5
"""Smallest size of what `_apply` moves after the parameters, relative to theirs, to count as their gradients."""

_OPTIM, _BACKWARD, _ENGINE, _CALL, _AUTOGRAD_APPLY, _PYTHON = (1 << bit for bit in range(6))
_ROLE_SHIFT = 8

_BITS = (1 << _ROLE_SHIFT) - 1
"""A frame's role is stored above the bits of its traits."""

_BACKWARD_FILES = re.compile(r"torch/(autograd/(__init__|graph)|_tensor)\.py$")
_BACKWARD_NAMES = frozenset(("backward", "grad", "_engine_run_backward", "_backward"))
_OPTIMIZERS = re.compile(r"(^|/)(torch/optim|bitsandbytes/optim|torchao/optim)/")


class Role(IntEnum):
    """What a stack allocates for, before the block's lifetime is known."""

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
        # Replicas of DataParallel, the parts of a batch for them, and gathered results.
        (r"torch/nn/parallel/(replicate|comm|_functions)\.py$", r"broadcast|replicate", Role.WEIGHTS),
        (r"torch/nn/parallel/comm\.py$", r"reduce_add", Role.GRADIENTS),
        (r"torch/nn/parallel/(comm|scatter_gather)\.py$", r"scatter", Role.INPUTS),
        (r"torch/nn/parallel/(comm|scatter_gather)\.py$", r"gather", Role.ACTIVATIONS),
        # The buckets of DistributedDataParallel hold gradients; they are rebuilt before the second forward pass.
        (r"torch/nn/parallel/distributed\.py$", r"_ddp_init_helper$|_pre_forward$", Role.GRADIENTS),
        (r"torch/distributed/utils\.py$", r"_to_kwargs$|_recursive_to$", Role.INPUTS),
        (r"torch/distributed/(_composable/)?fsdp/", r"reduce|(?<!no_)grad", Role.GRADIENTS),
        (r"torch/distributed/(_composable/)?fsdp/", r"cast_forward_input|_to_kwargs", Role.INPUTS),
        (r"torch/distributed/(_composable/)?fsdp/", r"gather|unshard|shard|param", Role.WEIGHTS),
        (r"", r"(?i)(alloc|init|create|make)\w*kv_?cache(_tensors)?$", Role.KV_CACHE),
        (r"vllm/.*cache_engine\.py$", r"", Role.KV_CACHE),
        (r"sglang/.*memory_pool\.py$", r"", Role.KV_CACHE),
        (r"transformers/cache_utils\.py$", r"", Role.KV_CACHE),
        # Checkpoints loaded onto the device.
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
"""Patterns for lines that show the purpose of an allocation: file, function, role; the first match counts."""


def role_of(stack: Iterable[Frame]) -> tuple[Role, int]:
    """What a stack allocates for, by its innermost informative frame, and the code of its phase.

    A custom autograd function runs forward and backward through the same line: the outermost frame decides, since the
    engine's threads begin with it. An optimizer step with a closure, as in Lightning, surrounds the forward and the
    backward pass: their frames are then the inner ones.
    """
    seen = 0
    role = Role.OTHER
    outermost = 0
    for file, _line, name in stack:
        traits = _traits(file, name)
        # Frames come innermost first: if a pass was seen already, the surrounding step has only called its closure.
        if not (traits & _OPTIM and seen & (_CALL | _BACKWARD | _ENGINE)):
            seen |= traits & _BITS
        if traits & _PYTHON:
            outermost = traits
        # The innermost informative frame counts, since it is nearest to the allocation.
        if role is Role.OTHER:
            role = Role(traits >> _ROLE_SHIFT)
    if outermost & _AUTOGRAD_APPLY:
        seen |= _BACKWARD
        if role is Role.OTHER:
            role = Role.GRADIENTS
    if seen & _OPTIM:
        return role, OPTIMIZER
    # Backward before forward: a checkpointed layer is called again within the backward pass.
    if seen & (_BACKWARD | _ENGINE):
        return role, BACKWARD
    if seen & _CALL:
        return role, FORWARD
    return role, NO_PHASE


def roles(stacks: Sequence[Sequence[Frame]]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Role and phase of each stack, followed by those for blocks without a stack."""
    found = list(map(role_of, stacks))
    role = np.array([*(role for role, _ in found), Role.NO_STACK], np.uint8)
    return role, np.array([*(phase for _, phase in found), NO_PHASE], np.uint8)


def moved_gradients(
    stacks: Sequence[Sequence[Frame]], stack: NDArray[np.int64], requested: NDArray[np.int64]
) -> list[int]:
    """Stacks that move gradients to a device, as ``Module.to`` does with those of its parameters.

    ``Module._apply`` (torch/nn/modules/module.py) calls the same function for parameters, gradients and buffers, in
    this order and each on its own line. Each gradient has the size of its parameter, and all of them have about the
    total size of the parameters; buffers do not.

    Args:
        stacks: stacks of the snapshot.
        stack, requested: for each block, the index of its stack (-1 for none), and its bytes.
    """
    line_of: dict[int, tuple[str, int]] = {}
    of_children = set()
    for number, frames in enumerate(stacks):
        lines = [(file, line) for file, line, name in frames if name == "_apply" and file.endswith(_MODULE_FILE)]
        if lines:
            line_of[number] = lines[0]
            # Further out are the calls for submodules, which move nothing themselves.
            of_children.update(lines[1:])
    sizes: dict[tuple[str, int], Counter[int]] = {line: Counter() for line in line_of.values()}
    moves = np.isin(stack, list(line_of))
    for number, size in zip(stack[moves].tolist(), requested[moves].tolist(), strict=True):
        sizes[line_of[number]][size] += 1
    found = set()
    for file in {file for file, _ in sizes}:
        # The first line of `_apply` that moves anything is the parameters'; the gradients' is below it.
        lines = sorted(line for line in sizes if line[0] == file and line not in of_children)
        if lines:
            parameters = sizes[lines[0]]
        else:
            parameters = Counter()
        for line in lines[1:]:
            whole = sum((sizes[line] & parameters).elements())
            if sizes[line] <= parameters and whole >= LEAST_OF_PARAMETERS * sum(parameters.elements()):
                found.add(line)
    return [number for number, line in line_of.items() if line in found]


@lru_cache(maxsize=65536)
def _traits(file: str, name: str) -> int:
    """The traits of a frame as bits, with its role above them."""
    # A snapshot may come from Windows.
    file = file.replace("\\", "/")
    if not file.endswith(".py"):
        if "Workspace" in name:
            return _bits_of(Role.WORKSPACE)
        if "autograd::Engine" in name or "autograd::Node" in name:
            return _ENGINE | _bits_of(Role.GRADIENTS)
        return 0
    if _OPTIMIZERS.search(file):
        # zero_grad frees gradients, before or after any phase.
        if name == "zero_grad":
            return _PYTHON
        return _PYTHON | _OPTIM | _bits_of(Role.OPTIMIZER_STATE)
    if "torch/autograd/function.py" in file:
        return _PYTHON | _AUTOGRAD_APPLY
    if _BACKWARD_FILES.search(file) and name in _BACKWARD_NAMES:
        return _PYTHON | _BACKWARD | _bits_of(Role.GRADIENTS)
    # Every module call goes through here.
    if name == "_call_impl" and "torch/nn/modules/module.py" in file:
        return _PYTHON | _CALL | _bits_of(Role.ACTIVATIONS)
    # For other lines of the program and libraries, the first matching rule.
    role = next((role for files, names, role in _LINES if files.search(file) and names.search(name)), Role.OTHER)
    return _PYTHON | _bits_of(role)


def _bits_of(role: Role) -> int:
    return int(role) << _ROLE_SHIFT


@dataclass(frozen=True, slots=True)
class Band:
    """A phase from event `begin_event` up to, but not including, `end_event`."""

    name: str
    begin_event: int
    end_event: int


def phases(columns: Columns, phase_of_stack: NDArray[np.uint8], annotations: Sequence[Annotation]) -> NDArray[np.uint8]:
    """Code of the phase of each event, an index into `PHASES`."""
    count = len(columns)
    if not count:
        return np.zeros(0, np.uint8)
    code = phase_of_stack[columns.stack]
    asks = (columns.action == ALLOC) | (columns.action == OOM)
    has_stack = columns.stack != NONE
    reports = has_stack & asks
    # A C++ backward pass has no Python frames: if enough requests have a stack, those without belong to it.
    if (code[reports] == BACKWARD).any() and reports.sum() >= SHARE_WITH_STACKS * asks.sum():
        # The engine's threads have no Python frames.
        code = np.where(asks & ~has_stack, BACKWARD, code)
        reports = asks
    _annotate(code, phase_of_stack[columns.stack], columns.time_us, annotations)
    if not code.any():
        return np.zeros(count, np.uint8)
    return _smoothed(_filled(code, reports))


def _annotate(
    code: NDArray[np.uint8], of_stack: NDArray[np.uint8], time_us: NDArray[np.int64], annotations: Sequence[Annotation]
) -> None:
    """Apply the annotations of the compiler and the optimizer."""
    if not len(time_us) or time_us[0] == NONE:
        return
    for phase, named in ((COMPILATION, _COMPILES), (OPTIMIZER, _OPTIMIZES)):
        for began_us, ended_us in _outermost([annotation for annotation in annotations if named in annotation.name]):
            begin, end = np.searchsorted(time_us, (began_us, ended_us))
            if phase == OPTIMIZER:
                begin += _closure(of_stack[begin:end])
            code[begin:end] = phase


def _outermost(annotations: Sequence[Annotation]) -> Iterator[tuple[int, int]]:
    """Times of the outermost pairs: an optimizer step may contain another one's."""
    depth = began_us = 0
    for annotation in annotations:
        if annotation.stage == "START":
            if depth == 0:
                began_us = annotation.time_us
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                yield began_us, annotation.time_us
    if depth:
        yield began_us, _NEVER_US  # the snapshot was written before its end


_NEVER_US = 2**63 - 1


def _closure(of_stack: NDArray[np.uint8]) -> int:
    """How many events of an optimizer step belong to the closure that it calls: up to its first update."""
    inner = np.flatnonzero((of_stack == FORWARD) | (of_stack == BACKWARD))
    if not len(inner):
        return 0
    updates = np.flatnonzero(of_stack == OPTIMIZER)
    behind = updates[updates > inner[-1]]
    if len(behind):
        return int(behind[0])
    return len(of_stack)


def _filled(code: NDArray[np.uint8], reports: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Events without information get the phase of the previous one with it; the loss belongs to the forward pass."""
    known = np.flatnonzero(reports | (code != NO_PHASE))
    if not len(known):
        return code
    codes = code[known]
    # The program's own allocations: in the forward pass if they are between that and the backward pass.
    place = np.arange(len(known))
    # For each event, the positions of the previous and the next informative one: running maximum and minimum.
    last = np.maximum.accumulate(np.where(codes != NO_PHASE, place, -1))
    following = np.minimum.accumulate(np.where(codes != NO_PHASE, place, len(known))[::-1])[::-1]
    inside = (codes == NO_PHASE) & (last >= 0) & (following < len(known))
    between = np.flatnonzero(inside)
    before = codes[last[between]]
    after = codes[following[between]]
    same = (before == after) | ((before == FORWARD) & (after == BACKWARD))
    codes = codes.copy()
    codes[between[same]] = before[same]
    # Events without information get the phase of the last one with it; the first events that of the first one.
    ahead = np.searchsorted(known, np.arange(len(code)), side="right") - 1
    return np.asarray(np.where(ahead >= 0, codes[np.maximum(ahead, 0)], codes[0]), np.uint8)


def _smoothed(code: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Without runs that are too short for a phase and inside another one."""
    shortest = SHORTEST_BAND
    while True:
        starts = _starts(code)
        if len(starts) <= 3:
            return code
        lengths = np.diff(np.append(starts, len(code)))
        value = code[starts]
        inner = np.flatnonzero((lengths[1:-1] < shortest) & (value[:-2] == value[2:])) + 1
        # Of two short neighbours only the first: the other one's neighbours have changed.
        if len(inner):
            inner = inner[np.append(True, np.diff(inner) > 1)]
        if not len(inner):
            # Nothing left to smooth at this length; if there are too many bands, repeat with twice the length.
            if len(starts) <= MOST_BANDS or shortest > len(code):
                return code
            shortest *= 2
            continue
        value = value.copy()
        # The codes on both sides are the same, so the three become one run in the next iteration.
        value[inner] = value[inner - 1]
        code = np.repeat(value, lengths)


def _starts(code: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1)).astype(np.int64)


def bands(code: NDArray[np.uint8]) -> tuple[Band, ...]:
    """Runs of one phase, without those of no phase."""
    if not len(code):
        return ()
    starts = _starts(code)
    ends = np.append(starts[1:], len(code))
    rows = zip(code[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return tuple(Band(PHASES[phase], begin, end) for phase, begin, end in rows if phase != NO_PHASE)


def steps(found: Sequence[Band], count: int) -> NDArray[np.int64]:
    """First event of each step; empty without a backward pass or an optimizer.

    A step begins at the end of the previous optimizer step. Many optimizers allocate nothing, or only in the first
    step: then it begins at the end of the backward pass.
    """
    # By their ends: a step ends with its last activity.
    of_optimizer = np.array([band.end_event for band in found if band.name == PHASES[OPTIMIZER]], np.int64)
    of_backward = np.array([band.end_event for band in found if band.name == PHASES[BACKWARD]], np.int64)
    # Backward passes before each end of the optimizer (several with gradient accumulation) and after the last one.
    passes = np.diff(np.searchsorted(of_backward, of_optimizer), prepend=0, append=len(of_backward))
    always = len(of_optimizer) and passes[-1] <= passes[:-1].max()
    if always:
        ends = of_optimizer.tolist()
    else:
        ends = of_backward.tolist()
    if not ends:
        return np.zeros(0, np.int64)
    begins = [0, *(end for end in ends if end < count)]
    return np.array(begins, np.int64)


def numbered(columns: Columns, known: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First events and numbers of the steps that began at known times, in microseconds since 1970."""
    if not known or not len(columns) or columns.time_us[0] == NONE:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    times, numbers = np.array(sorted(known), np.int64).T
    return np.searchsorted(columns.time_us, times), numbers


CATEGORIES = (*KINDS, KV_CACHE, OTHER_TENSORS, NO_STACK)
"""Names of categories by their codes."""

_WEIGHTS, _GRADIENTS, _OPTIMIZER_STATE, _ACTIVATIONS, _INPUTS, _TEMPORARY, _WORKSPACE, _KV, _OTHER, _NO_STACK = range(
    10
)

_OF_ROLE = np.zeros(len(Role), np.uint8)
_OF_ROLE[[Role.WEIGHTS, Role.GRADIENTS, Role.OPTIMIZER_STATE, Role.ACTIVATIONS]] = range(4)
_OF_ROLE[[Role.INPUTS, Role.WORKSPACE, Role.KV_CACHE]] = _INPUTS, _WORKSPACE, _KV
_OF_ROLE[[Role.OTHER, Role.NO_STACK]] = _OTHER, _NO_STACK


def category_of_role(role: Role) -> str:
    """Category of a stack's allocations, as long as nothing is known of their lifetime."""
    return CATEGORIES[_OF_ROLE[role]]


def categorise(
    lives: Lives, role_of_stack: NDArray[np.uint8], phase: NDArray[np.uint8], found: tuple[Band, ...]
) -> None:
    """Fill in `Lives.category` and `Lives.phase`.

    A block that is freed in the phase of its allocation was temporary; so, probably, is one that is still alive if its
    stack mostly allocated temporary ones. In a trace without a backward pass, however, allocations of the forward pass
    are always called activations.

    Args:
        lives: blocks; their `stack` is known.
        role_of_stack: result of `roles.roles`.
        phase: phase of each event.
        found: bands of `phase`.
    """
    count = len(phase)
    seen = lives.born >= 0
    born = np.maximum(lives.born, 0)
    if count:
        lives.phase[seen] = phase[born[seen]]
    category = _OF_ROLE[role_of_stack[lives.stack]]
    unknown = (category == _NO_STACK) & (lives.phase == BACKWARD)
    category[unknown] = _GRADIENTS
    if not count:
        lives.category[:] = category
        return
    # For each event, the end of its band; -1 outside of bands, before which nothing is freed.
    end = np.full(count, -1, np.int64)
    for band in found:
        end[band.begin_event : band.end_event] = band.end_event
    trains = bool((phase == BACKWARD).any())
    # What may turn out to be temporary; weights and inputs never do.
    passing = np.isin(category, (_GRADIENTS, _OPTIMIZER_STATE)) | ((category == _ACTIVATIONS) & trains)
    of_compiler = (category == _ACTIVATIONS) & (lives.phase == COMPILATION)
    passing &= seen & np.isin(lives.phase, (FORWARD, BACKWARD, OPTIMIZER))
    passing |= seen & of_compiler
    is_short = passing & (lives.freed < end[born])
    # Its phase has not ended at the end of the trace: whether it would have been freed in it is unknown.
    is_open = passing & (lives.freed == count) & (end[born] == count)
    kinds = len(role_of_stack)
    # So the other blocks of the same stack decide; `%` puts no stack, -1, into the last bin.
    votes = np.bincount(lives.stack[is_short] % kinds, minlength=kinds)
    against = np.bincount(lives.stack[passing & ~is_short & ~is_open] % kinds, minlength=kinds)
    mostly = votes > against
    is_short |= is_open & mostly[lives.stack % kinds]
    category[is_short] = _TEMPORARY
    lives.category[:] = category
