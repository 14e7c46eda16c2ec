"""The settings of torch's allocator in this environment: CUDA's own, and those of simulated GPUs."""

from __future__ import annotations

import os

from gpudash.memory.allocator import AllocatorSettings

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where torch reads its allocator's settings, the first that is set."""


def allocator_text() -> str:
    """torch's settings of its CUDA allocator in this environment; "" when there are none."""
    return next((text for name in VARIABLES if (text := os.environ.get(name))), "")


def allocator_settings() -> tuple[AllocatorSettings, str | None]:
    """The settings, and in one sentence why they are torch's defaults instead of those of the environment."""
    text = allocator_text()
    try:
        return AllocatorSettings.parse(text), None
    except ValueError as error:
        name = next(name for name in VARIABLES if os.environ.get(name))
        return AllocatorSettings(), f"{name} is {text!r}, which torch refuses: {str(error).rstrip('.')}."
