"""What of a GPU's design decides how much memory kernels take for themselves."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Architecture:
    """A GPU's design; an A100's where it is not known.

    Attributes:
        capability: compute capability, (major, minor).
        multiprocessors: how many streaming multiprocessors it has.
    """

    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108

    @property
    def threads_per_multiprocessor(self) -> int:
        """Threads that a multiprocessor holds at most (CUDA Programming Guide, "Technical Specifications per Compute
        Capability", "Maximum number of resident threads per SM")."""
        return _THREADS.get(self.capability, _MOST_THREADS)


def multiprocessors_of(cores: int, capability: tuple[int, int]) -> int:
    """Streaming multiprocessors of a GPU with ``cores`` CUDA cores (FP32 lanes; CUDA Programming Guide, "Arithmetic
    Instructions": 64 of each multiprocessor at 7.x and 8.0, 128 of later ones)."""
    return cores // _CORES.get(capability, _MOST_CORES)
