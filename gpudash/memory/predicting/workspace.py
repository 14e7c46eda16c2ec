"""The workspace that torch's allocator holds for cuBLAS from the first matrix product of a thread on."""

from __future__ import annotations

import re

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
"""Where torch and cuBLAS read its size."""

USUAL_BYTES = 8_519_680
"""torch's default, ``:4096:2:16:8`` in KiB times count (parseChosenWorkspaceSize, ATen/cuda/CublasHandlePool.cpp)."""

HOPPER_BYTES = 4096 * 8 * 1024
"""torch's default on Hopper, and since torch 2.12 on every capability from 9.0 on; 2.11 and 2.13 were measured."""

_PART = re.compile(":([0-9]+):([0-9]+)")


def workspace_bytes(
    configured: str | None, capability: tuple[int, int] | None = None, torch_version: tuple[int, int] = (2, 13)
) -> int:
    """Size of the workspace, as torch chooses it; text that names no size counts as none.

    Args:
        configured: value of `VARIABLE`, ":KiB:COUNT" once or more often; ``None`` where it is not set.
        capability: compute capability; one below 9.0 where it is not known.
        torch_version: major and minor number.
    """
    parts = _PART.findall(configured or "")
    if parts:
        return sum(int(size) * int(count) * 1024 for size, count in parts)
    if capability is None or capability < (9, 0):
        return USUAL_BYTES
    return HOPPER_BYTES if capability == (9, 0) or torch_version >= (2, 12) else USUAL_BYTES
