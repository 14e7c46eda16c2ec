"""The settings of torch's allocator in this environment: CUDA's own, and those of simulated GPUs."""

from __future__ import annotations

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.environment import allocator_text, variable


def allocator_settings() -> tuple[AllocatorSettings, str | None]:
    """The settings, and in one sentence why they are torch's defaults instead of those of the environment."""
    text = allocator_text()
    try:
        return AllocatorSettings.parse(text), None
    except ValueError as error:
        return AllocatorSettings(), f"{variable()} is {text!r}, which torch refuses: {str(error).rstrip('.')}."
