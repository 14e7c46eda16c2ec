"""Which of the known causes made a request fail: the first that the trace and the source show."""

from __future__ import annotations

from collections.abc import Callable

from gpudash.memory.snapshot.causes.activations import (
    activations_of_a_step,
    graph_of_gradients,
    growing_inputs,
    step_next_to_the_state,
)
from gpudash.memory.snapshot.causes.batches_ahead import batches_on_the_card
from gpudash.memory.snapshot.causes.case import Case, ProgramCause
from gpudash.memory.snapshot.causes.kept_models import kept_models
from gpudash.memory.snapshot.causes.kv_cache import cache_of_keys_and_values
from gpudash.memory.snapshot.causes.needless_graphs.evaluation import evaluation_with_graph
from gpudash.memory.snapshot.causes.needless_graphs.summed_losses import summed_losses
from gpudash.memory.snapshot.causes.needless_graphs.teacher import teacher_with_graph
from gpudash.memory.snapshot.causes.on_the_card import copied_model, joined_results, loaded_checkpoint, moved_data
from gpudash.memory.snapshot.causes.optimizer_state import first_step_of_optimizer
from gpudash.memory.snapshot.causes.retrying import retry_while_handling, retry_with_kept_error
from gpudash.memory.snapshot.causes.scores import scores_of_attention
from gpudash.memory.snapshot.causes.unusable_room import capped_process

KEPT: tuple[Callable[[Case], ProgramCause | None], ...] = (
    kept_models,
    copied_model,
    graph_of_gradients,
    summed_losses,
)
"""Causes that explain what the lines are that keep memory from every step."""

CAUSES: tuple[Callable[[Case], ProgramCause | None], ...] = (
    capped_process,
    retry_while_handling,
    retry_with_kept_error,
    graph_of_gradients,
    summed_losses,
    scores_of_attention,
    cache_of_keys_and_values,
    evaluation_with_graph,
    teacher_with_graph,
    joined_results,
    loaded_checkpoint,
    kept_models,
    copied_model,
    moved_data,
    batches_on_the_card,
    first_step_of_optimizer,
    growing_inputs,
    activations_of_a_step,
    step_next_to_the_state,
)
"""Causes in order: those that explain more come first. A step with large activations is a symptom of many causes."""


def cause_of(case: Case) -> ProgramCause | None:
    """The cause in the program that made its memory run out; ``None`` if unknown."""
    return next((cause for find in CAUSES if (cause := find(case)) is not None), None)


def kept_cause(case: Case) -> ProgramCause | None:
    """What some lines keep from every step, if it is more than a tensor."""
    return next((cause for find in KEPT if (cause := find(case)) is not None), None)
