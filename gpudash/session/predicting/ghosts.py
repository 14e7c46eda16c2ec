"""A prediction's timeline as the drawing that the memory plot shows before the start."""

from __future__ import annotations

import numpy as np

from gpudash.drawing.ghost import Ghost
from gpudash.memory.allocator.trace import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    TEMPORARY,
    WEIGHTS,
    WORKSPACE,
)
from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.memory_timeline import PHASES, MemoryTimeline
from gpudash.memory.predicting.prediction import CONTEXT, HELD_BACK

OTHERS = "in use already"
"""The ribbon for what others hold of the device, and this process by now."""

BY_LIFE = (WEIGHTS, OPTIMIZER_STATE, GRADIENTS, INPUTS, ACTIVATIONS, WORKSPACE, TEMPORARY)
"""The categories as they lie upon one another: what lives longest is lowest, so that its edge stays level."""


def ghost_of(timeline: MemoryTimeline, estimate: Estimate) -> Ghost:
    """The drawing of what a run holds, of which ``estimate`` was predicted."""
    level = np.ones(len(timeline.changes))
    allocated = timeline.allocated()
    inside = np.sum([*allocated.values(), level * 0], axis=0)
    ribbons = {
        OTHERS: level * timeline.in_use,
        CONTEXT: level * timeline.overhead,
        **{name: allocated[name] * level for name in BY_LIFE if name in allocated},
        HELD_BACK: timeline.reserved - inside,
    }
    limit = None
    if estimate.free_bytes is not None:
        limit = timeline.in_use + estimate.free_bytes
    ghost = Ghost.of(
        ribbons,
        [(at, step, PHASES[phase]) for at, step, phase in timeline.marks.tolist()],
        kept=HELD_BACK,
        capacity=estimate.capacity_bytes,
        limit=limit,
    )
    ghost.prepare()
    return ghost
