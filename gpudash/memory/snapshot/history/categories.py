"""What blocks were for, inferred: from the stacks that allocated them, and from how long they lived."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.allocator.trace import CATEGORIES as KINDS
from gpudash.memory.explaining.memory_state import KV_CACHE, OTHER_TENSORS
from gpudash.memory.snapshot.history.lives import Lives
from gpudash.memory.snapshot.history.phases import Band
from gpudash.memory.snapshot.history.roles import BACKWARD, COMPILATION, FORWARD, OPTIMIZER, Role
from gpudash.telemetry.explanation import NO_STACK as NO_STACK

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
