"""Adding kernels to torch."""

from __future__ import annotations

from typing import Any

import torch

KEY = "PrivateUse1"
"""torch's dispatch key for the device that a process may add."""


def library(namespace: str) -> Any:
    """Adds kernels to the operations of ``namespace``; ``_`` for all. They last as long as it, so it has to be kept."""
    make: Any = torch.library.Library
    return make(namespace, "IMPL")
