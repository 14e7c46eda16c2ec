"""Phases of training steps along a trace, from annotations and stacks; and what its blocks were for, inferred from the
stacks that allocated them, and from how long they lived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.trace import CATEGORIES as KINDS
from gpudash.memory.explaining.memory_state import KV_CACHE, OTHER_TENSORS
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.model import ALLOC, NONE, OOM, Annotation, Columns
from gpudash.memory.snapshot.history.roles import BACKWARD, COMPILATION, FORWARD, NO_PHASE, OPTIMIZER, PHASES, Role
from gpudash.telemetry.explanation import NO_STACK as NO_STACK

_OPTIMIZES, _COMPILES = "Optimizer.step", "(dynamo_timed)"
"""Parts of the names of annotations: those of torch.optim's optimizers, and of torch._dynamo's steps."""

SHORTEST_BAND = 4
"""Events of a band that counts where its neighbours are of one phase."""

MOST_BANDS = 2000
"""Bands there may be; beyond them the short ones are no phases of a step."""

SHARE_WITH_STACKS = 0.3
"""Part of the allocations that must have a stack for the others to be told apart by having none."""


@dataclass(frozen=True, slots=True)
class Band:
    """A phase from event `begin_event` to before `end_event`."""

    name: str
    begin_event: int
    end_event: int


def phases(columns: Columns, phase_of_stack: NDArray[np.uint8], annotations: Sequence[Annotation]) -> NDArray[np.uint8]:
    """Code of the phase of each event, an index into `roles.PHASES`."""
    count = len(columns)
    if not count:
        return np.zeros(0, np.uint8)
    code = phase_of_stack[columns.stack]
    asks = (columns.action == ALLOC) | (columns.action == OOM)
    has_stack = columns.stack != NONE
    tells = has_stack & asks
    if (code[tells] == BACKWARD).any() and tells.sum() >= SHARE_WITH_STACKS * asks.sum():
        # the engine's threads have no line of Python
        code = np.where(asks & ~has_stack, BACKWARD, code)
        tells = asks
    _annotate(code, columns.time_us, annotations)
    if not code.any():
        return np.zeros(count, np.uint8)
    return _smoothed(_filled(code, tells))


def _annotate(code: NDArray[np.uint8], time_us: NDArray[np.int64], annotations: Sequence[Annotation]) -> None:
    """What the compiler and the optimizer say of themselves."""
    if not len(time_us) or time_us[0] == NONE:
        return
    for phase, named in ((COMPILATION, _COMPILES), (OPTIMIZER, _OPTIMIZES)):
        depth, began = 0, 0
        for annotation in annotations:
            if named not in annotation.name:
                continue
            if annotation.stage == "START":
                began = annotation.time_us if depth == 0 else began
                depth += 1
            elif depth:
                depth -= 1
                if depth == 0:
                    begin, end = np.searchsorted(time_us, (began, annotation.time_us))
                    code[begin:end] = phase
        if depth:
            # the snapshot was written before the end of it
            code[np.searchsorted(time_us, began) :] = phase


def _filled(code: NDArray[np.uint8], tells: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Events that do not tell are of the phase that the last one told; the loss belongs to the forward pass."""
    known = np.flatnonzero(tells | (code != NO_PHASE))
    if not len(known):
        return code
    told = code[known]
    # what the program allocates itself: of the forward pass where it comes between that and the backward pass
    place = np.arange(len(known))
    last = np.maximum.accumulate(np.where(told != NO_PHASE, place, -1))
    following = np.minimum.accumulate(np.where(told != NO_PHASE, place, len(known))[::-1])[::-1]
    inside = (told == NO_PHASE) & (last >= 0) & (following < len(known))
    between = np.flatnonzero(inside)
    before, after = told[last[between]], told[following[between]]
    same = (before == after) | ((before == FORWARD) & (after == BACKWARD))
    told = told.copy()
    told[between[same]] = before[same]
    ahead = np.searchsorted(known, np.arange(len(code)), side="right") - 1
    return np.asarray(np.where(ahead >= 0, told[np.maximum(ahead, 0)], told[0]), np.uint8)


def _smoothed(code: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Without runs that are too short for a phase and lie within another one."""
    shortest = SHORTEST_BAND
    while True:
        starts = _starts(code)
        if len(starts) <= 3:
            return code
        lengths = np.diff(np.append(starts, len(code)))
        value = code[starts]
        inner = np.flatnonzero((lengths[1:-1] < shortest) & (value[:-2] == value[2:])) + 1
        # of two short neighbours only the first: the other one's neighbours have changed
        inner = inner[np.append(True, np.diff(inner) > 1)] if len(inner) else inner
        if not len(inner):
            if len(starts) <= MOST_BANDS or shortest > len(code):
                return code
            shortest *= 2
            continue
        value = value.copy()
        value[inner] = value[inner - 1]
        code = np.repeat(value, lengths)


def _starts(code: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1)).astype(np.int64)


def bands(code: NDArray[np.uint8]) -> tuple[Band, ...]:
    """Runs of one phase, those without a phase left out."""
    if not len(code):
        return ()
    starts = _starts(code)
    ends = np.append(starts[1:], len(code))
    rows = zip(code[starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return tuple(Band(PHASES[phase], begin, end) for phase, begin, end in rows if phase != NO_PHASE)


def steps(found: Sequence[Band], count: int) -> NDArray[np.int64]:
    """First event of each step; none without a backward pass or an optimizer.

    A step begins where the optimizer of the one before has ended; many optimizers allocate nothing, or only in the
    first step: then where the backward pass has.
    """
    of_optimizer, of_backward = (
        np.array([band.end_event for band in found if band.name == PHASES[phase]], np.int64)
        for phase in (OPTIMIZER, BACKWARD)
    )
    # backward passes before each end of the optimizer, several where gradients are accumulated, and after the last one
    passes = np.diff(np.searchsorted(of_backward, of_optimizer), prepend=0, append=len(of_backward))
    always = len(of_optimizer) and passes[-1] <= passes[:-1].max()
    ends = (of_optimizer if always else of_backward).tolist()
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
    """Name of the category of what a stack allocates, as long as nothing is known of its life."""
    return CATEGORIES[_OF_ROLE[role]]


def categorise(
    lives: Lives, role_of_stack: NDArray[np.uint8], phase: NDArray[np.uint8], found: tuple[Band, ...]
) -> None:
    """Fill in `Lives.category` and `Lives.phase`.

    A block that ends within the phase it was allocated in was temporary there, as was probably one that has not ended
    yet and whose stack allocated mostly such ones; but in a trace without a backward pass, what the forward pass
    allocates is called activations all the same.

    Args:
        lives: whose `stack` is known.
        role_of_stack: as `roles.roles` gives them.
        phase: of each event.
        found: the bands of `phase`.
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
    end = np.full(count, -1, np.int64)
    for band in found:
        end[band.begin_event : band.end_event] = band.end_event
    trains = bool((phase == BACKWARD).any())
    passing = np.isin(category, (_GRADIENTS, _OPTIMIZER_STATE)) | ((category == _ACTIVATIONS) & trains)
    of_compiler = (category == _ACTIVATIONS) & (lives.phase == COMPILATION)
    passing &= seen & np.isin(lives.phase, (FORWARD, BACKWARD, OPTIMIZER))
    passing |= seen & of_compiler
    is_short = passing & (lives.freed < end[born])
    is_open = passing & (lives.freed == count) & (end[born] == count)
    kinds = len(role_of_stack)
    votes = np.bincount(lives.stack[is_short] % kinds, minlength=kinds)
    against = np.bincount(lives.stack[passing & ~is_short & ~is_open] % kinds, minlength=kinds)
    mostly = votes > against
    is_short |= is_open & mostly[lives.stack % kinds]
    category[is_short] = _TEMPORARY
    lives.category[:] = category
