"""A prediction's timeline as the drawing ("ghost") that the memory plot shows before a run starts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gpudash.drawing.ghost import Ghost, RunningGhost
from gpudash.memory.allocator.trace import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    TEMPORARY,
    WEIGHTS,
    WORKSPACE,
)
from gpudash.memory.predicting.estimate import Estimate, Target
from gpudash.memory.predicting.memory_timeline import PHASES, MemoryTimeline
from gpudash.memory.predicting.prediction import CONTEXT, HELD_BACK
from gpudash.memory.serving.on_card import KV_CACHE, ServerOnCard
from gpudash.speed.time_text import about_text
from gpudash.speed.work import StepTime
from gpudash.telemetry.records import STEP_METRICS, Note, Topic
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store
from gpudash.units import format_bytes

OTHERS = "in use already"
"""Name of the ribbon for memory that other processes, and this one so far, hold on the device."""

BY_LIFE = (WEIGHTS, OPTIMIZER_STATE, GRADIENTS, INPUTS, ACTIVATIONS, WORKSPACE, TEMPORARY)
"""The order in which categories are stacked: the longest-lived at the bottom, so that its edge stays level."""


LOADING, TRYING, SERVING = "weights loaded", "largest step tried", "serving"
"""Stages of a server's start, with vLLM's names."""

MOST_STEPS = 4096
"""Limit on the steps in view whose ends are queried: with more, each would be narrower than a pixel."""

RECORDED_COLUMNS = 24
"""Columns for each stage of a step when a prediction is recorded."""


def in_time(ghost: Ghost, run: RunView, store: Store, span: tuple[float, float]) -> RunningGhost | None:
    """The ghost of a run on the session's time axis, for the steps that end within ``span``; ``None`` for a run
    without steps. Call it under the store's lock.
    """
    if run.stepped_s is None or run.pace_s is None:
        return None
    found = (store.series("run", name) for name in STEP_METRICS)
    series = next((series for series in found if series is not None and series.extent() is not None), None)
    if series is None:
        return None
    # Include the newest step even if it ended before the view begins: what follows it is in the view.
    since = min(max(run.began_s, span[0]), run.stepped_s - run.pace_s / 2)
    ended, _ = series.window(since, run.stepped_s + run.pace_s / 2, MOST_STEPS)
    ended = ended[ended > run.began_s]
    if len(ended) > run.step or run.stepped_s > span[1]:
        return None  # no steps to count
    return RunningGhost(ghost, run.began_s, ended, run.step, run.pace_s, run.steps, not run.running)


def prediction_note(ghost: Ghost, time_s: float, run_id: int | None, step: StepTime | None = None) -> Note:
    """The predicted memory of a run and time of its steps, to be recorded with it."""
    text = f"Predicted to hold {format_bytes(ghost.highest)} at its peak"
    details: dict[str, Any] = {"ghost": ghost.thinned(RECORDED_COLUMNS).to_json()}
    if step is not None:
        text = f"{text}, and to take {about_text(step)} a step"
        details["step"] = {**step.to_dict(), "words": about_text(step)}
    return Note(time_s=time_s, run_id=run_id, topic=Topic.PREDICTED, text=f"{text}.", details=details)


def recorded_ghost(run: RunView) -> Ghost | None:
    """The predicted memory that was recorded with a run; ``None`` if there is none, or it cannot be read."""
    for note in reversed(run.notes):
        if note.topic == Topic.PREDICTED:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                return Ghost.from_json(note.details["ghost"])
    return None


def server_ghost(server: ServerOnCard) -> Ghost:
    """A server's start as a drawing: weights loaded, the temporary memory of its trial run, and the KV cache that
    fills the rest of its limit.
    """
    parts = server.parts
    kv_bytes = max(0, server.kv_bytes)
    # All stages get the same width: their durations are not predicted.
    moments = (
        (LOADING, ("context", "weights")),
        (TRYING, ("context", "weights", "activations", "workspace")),
        (SERVING, ("context", "weights", "activations", "workspace", KV_CACHE)),
    )
    sizes = {**parts, KV_CACHE: kv_bytes}
    ribbons = {}
    for name, size in sizes.items():
        ribbons[name] = size * np.array([float(name in there) for _, there in moments])
    marks = [(at, 1, name) for at, (name, _) in enumerate(moments)]
    ghost = Ghost.of(ribbons, marks, capacity=server.capacity_bytes, limit=server.limit_bytes)
    ghost.prepare()
    return ghost


def ghost_of(timeline: MemoryTimeline, estimate: Estimate, target: Target | None = None) -> Ghost:
    """The memory of a run as a drawing, for the run that ``estimate`` predicts.

    Args:
        target: the device, whose predicted times give the widths of the stages; without it, all times are omitted.
    """
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
    ghost = replace(ghost, unknown=float(estimate.convolutions.unknown_bytes), copies=timeline.copies)
    if target is not None:
        from gpudash.session.predicting.step_times import stage_seconds

        ghost = replace(ghost, stage_seconds=stage_seconds(estimate.work, target))
    ghost.prepare()
    return ghost
