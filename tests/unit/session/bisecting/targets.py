"""A card that nothing is on."""

from __future__ import annotations

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.estimates import empty_target
from gpudash.units import GIB


def target() -> Target:
    """24 GiB of a simulated card."""
    return empty_target(24 * GIB, AllocatorSettings())
