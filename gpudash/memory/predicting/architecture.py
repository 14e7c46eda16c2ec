"""What of a GPU's design decides how much memory kernels take for themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass

_THREADS = {
    (7, 5): 1024,
    (8, 6): 1536,
    (8, 7): 1536,
    (8, 8): 1536,
    (8, 9): 1536,
    (11, 0): 1536,
    (12, 0): 1536,
    (12, 1): 1536,
}

_MOST_THREADS = 2048

_CORES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}

_MOST_CORES = 128

WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
"""Where torch and cuBLAS read the size of the workspace that torch's allocator holds for cuBLAS from the first matrix
product of a thread on."""

USUAL_WORKSPACE_BYTES = 8_519_680
"""torch's default, ``:4096:2:16:8`` in KiB times count (parseChosenWorkspaceSize, ATen/cuda/CublasHandlePool.cpp)."""

HOPPER_WORKSPACE_BYTES = 4096 * 8 * 1024
"""torch's default on Hopper, and since torch 2.12 on every capability from 9.0 on; 2.11 and 2.13 were measured."""

LT_WORKSPACE_VARIABLE = "CUBLASLT_WORKSPACE_SIZE"
"""Where torch reads the size of cuBLASLt's workspace, in KiB."""

WORKSPACE_CACHE_VARIABLE = "TORCH_CUBLAS_WORKSPACE_CACHE"
"""Where torch 2.15 reads whether it keeps workspaces between matrix products: "1" keeps them."""

USUAL_LT_WORKSPACE_KIB = 1024
"""torch's default (parseCUDABlasLtWorkspaceSize, ATen/cuda/CublasHandlePool.cpp)."""

_WORKSPACE_PART = re.compile(":([0-9]+):([0-9]+)")

_WHOLE_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")


@dataclass(frozen=True)
class Architecture:
    """A GPU's design; an A100's where it is not known.

    Attributes:
        capability: compute capability, (major, minor).
        multiprocessors: how many streaming multiprocessors it has.
        cudnn_converts: whether cuDNN takes room to convert what it convolves, where that is known of the card.
    """

    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    cudnn_converts: bool = True

    @property
    def threads_per_multiprocessor(self) -> int:
        """Threads that a multiprocessor holds at most (CUDA Programming Guide, "Technical Specifications per Compute
        Capability", "Maximum number of resident threads per SM")."""
        return _THREADS.get(self.capability, _MOST_THREADS)

    @property
    def generation(self) -> int:
        """The card's generation by what its kernels take: 0 before Ampere, 1 before Hopper, 2 from Hopper on.

        Within one, runs ask for the same but for scratch that grows with the multiprocessors; from one to the next
        cuBLAS's workspace and the kernels of attention are others.
        """
        return sum(self.capability >= first for first in ((8, 0), (9, 0)))


def multiprocessors_of(cores: int, capability: tuple[int, int]) -> int:
    """Streaming multiprocessors of a GPU with ``cores`` CUDA cores (FP32 lanes; CUDA Programming Guide, "Arithmetic
    Instructions": 64 of each multiprocessor at 7.x and 8.0, 128 of later ones)."""
    return cores // _CORES.get(capability, _MOST_CORES)


def workspace_bytes(
    configured: str | None, capability: tuple[int, int] | None = None, torch_version: tuple[int, int] = (2, 13)
) -> int:
    """Size of the workspace, as torch chooses it; text that names no size counts as none.

    Args:
        configured: value of `WORKSPACE_VARIABLE`, ":KiB:COUNT" once or more often; ``None`` where it is not set.
        capability: compute capability; one below 9.0 where it is not known.
        torch_version: major and minor number.
    """
    parts = _WORKSPACE_PART.findall(configured or "")
    if parts:
        return sum(int(size) * int(count) * 1024 for size, count in parts)
    if capability is None or capability < (9, 0):
        return USUAL_WORKSPACE_BYTES
    if capability == (9, 0) or torch_version >= (2, 12):
        return HOPPER_WORKSPACE_BYTES
    return USUAL_WORKSPACE_BYTES


def keeps_workspaces(configured: str | None, torch_version: tuple[int, int] = (2, 13)) -> bool:
    """Whether torch holds a thread's workspace from its first matrix product on. Since 2.15 each product allocates one
    and frees it, unless it is told to keep them (isCUDABlasWorkspaceCachingEnabled, ATen/cuda/CublasHandlePool.cpp).

    Args:
        configured: value of `WORKSPACE_CACHE_VARIABLE`; ``None`` where it is not set.
        torch_version: major and minor number.
    """
    return torch_version < (2, 15) or configured == "1"


def lt_workspace_bytes(configured: str | None, workspace: int, torch_version: tuple[int, int] = (2, 13)) -> int:
    """Size of the workspace of its own that torch holds for cuBLASLt, from a thread's first product with a bias on;
    0 where cuBLASLt has cuBLAS's, as it has from 2.12 on. 2.11, 2.13 and 2.15 were measured.

    Args:
        configured: value of `LT_WORKSPACE_VARIABLE`, read as C reads a number; ``None`` where it is not set.
        workspace: bytes of cuBLAS's workspace, which it does not exceed.
        torch_version: major and minor number.
    """
    if torch_version >= (2, 12):
        return 0
    return min(passing_lt_workspace_bytes(configured), workspace)


def passing_lt_workspace_bytes(configured: str | None) -> int:
    """Size of the workspace that a product with a bias has of cuBLASLt where none is kept, see `keeps_workspaces`.

    Args:
        configured: value of `LT_WORKSPACE_VARIABLE`, read as C reads a number; ``None`` where it is not set.
    """
    number = _WHOLE_NUMBER.match(configured or "")
    if number is None:
        kib = USUAL_LT_WORKSPACE_KIB
    else:
        kib = int(number[1])
    if not -(2**31) <= kib < 2**31:
        kib = USUAL_LT_WORKSPACE_KIB
    return kib * 1024 % 2**64  # torch counts in an unsigned number: a negative one is a huge one
