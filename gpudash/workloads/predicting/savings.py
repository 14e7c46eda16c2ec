"""Which techniques of recipes are worth a dry run of their own, and what they save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpudash.memory.allocator.trace import ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, TEMPORARY, WEIGHTS
from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.specs.changes import SpecChange, recipe_changes
from gpudash.specs.model import ModelSpec

SHRINKS = {
    "checkpointing": (ACTIVATIONS, TEMPORARY),
    "keeps": (ACTIVATIONS, TEMPORARY),
    "loss": (ACTIVATIONS, TEMPORARY, GRADIENTS),
    "keep_16_bits": (WEIGHTS, ACTIVATIONS, TEMPORARY),
    "optimizer_in_backward": (GRADIENTS, TEMPORARY),
    "optimizer": (OPTIMIZER_STATE, TEMPORARY),
    "offload": (ACTIVATIONS, TEMPORARY),
}
"""Field → categories of peak memory that setting it can reduce."""

LEAST_RATIO = 0.02
"""Savings below this fraction of the need are worth neither a line nor a dry run."""

MOST_SAVINGS = 5
"""The most savings that are reported."""


def promising(spec: ModelSpec, found: Estimate) -> list[SpecChange]:
    """The changes that may save something, those with the largest bound first.

    A change saves at most the peak memory of its categories, which is known before it is followed.
    """
    least = LEAST_RATIO * (found.needed_bytes or 0)
    bounds = [(_bound(change, found), change) for change in recipe_changes(spec)]
    worth = [(bound, change) for bound, change in bounds if bound > least]
    # Stable: with equal bounds the whole recipe comes before its parts.
    return [change for _bound, change in sorted(worth, key=lambda one: -one[0])]


def _bound(change: SpecChange, found: Estimate) -> int:
    categories = {category for name in change.fields for category in SHRINKS[name]}
    return sum(found.by_category.get(category, 0) for category in categories)


def with_savings(found: Estimate, tried: Iterable[Alternative]) -> Estimate:
    """``found`` with the changes followed that save the most."""
    savings = []
    for way in tried:
        if found.needed_bytes is None or way.needed_bytes is None:
            continue
        saved = found.needed_bytes - way.needed_bytes
        if saved > LEAST_RATIO * found.needed_bytes:
            savings.append(replace(way, saved_bytes=saved))
    savings.sort(key=lambda way: -(way.saved_bytes or 0))
    return replace(found, savings=tuple(savings[:MOST_SAVINGS]))
