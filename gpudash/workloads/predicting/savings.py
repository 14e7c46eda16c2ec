"""Which of the things that recipes do are worth a dry run of their own, and what they were found to save."""

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
"""Field → what of the memory at the peak setting it can make smaller."""

LEAST_RATIO = 0.02
"""What saves a smaller part of what is needed is not worth a line, nor a dry run."""

MOST_SAVINGS = 5
"""Savings that are told of at most."""


def promising(spec: ModelSpec, found: Estimate) -> list[SpecChange]:
    """The changes that may save something, what can save most first.

    A change saves no more than the memory that it is about has at the peak, which is known before the change is
    followed.
    """
    least = LEAST_RATIO * (found.needed_bytes or 0)
    bounds = [(_bound(change, found), change) for change in recipe_changes(spec)]
    worth = [(bound, change) for bound, change in bounds if bound > least]
    # Stable: of equal bounds the whole recipe comes before its parts.
    return [change for _bound, change in sorted(worth, key=lambda one: -one[0])]


def _bound(change: SpecChange, found: Estimate) -> int:
    categories = {category for name in change.fields for category in SHRINKS[name]}
    return sum(found.by_category.get(category, 0) for category in categories)


def with_savings(found: Estimate, tried: Iterable[Alternative]) -> Estimate:
    """``found`` with what saves most of the changes that were followed."""
    savings = []
    for way in tried:
        if found.needed_bytes is None or way.needed_bytes is None:
            continue
        saved = found.needed_bytes - way.needed_bytes
        if saved > LEAST_RATIO * found.needed_bytes:
            savings.append(replace(way, saved_bytes=saved))
    savings.sort(key=lambda way: -(way.saved_bytes or 0))
    return replace(found, savings=tuple(savings[:MOST_SAVINGS]))
