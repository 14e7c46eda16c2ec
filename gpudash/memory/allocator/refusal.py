"""What is known when an allocation fails, and torch's message for it."""

from __future__ import annotations

LARGEST_REQUEST = 2**60

REFUSED = "refused"
"""Attribute of the simulator's ``torch.OutOfMemoryError`` that holds the `AllocationRefused` of its message."""


class AllocationRefused(Exception):  # noqa: N818 - what happened, not a fault
    """A request failed after everything that could be released was released.

    Attributes:
        requested: bytes requested from the card: the size of the missing segment, as in torch's message.
        size: bytes requested from the allocator.
        device: index of the card.
        capacity, device_free: of the card, in bytes.
        allowed: bytes the process may reserve, ``None`` without a limit.
        allocated, reserved: of the allocator, in bytes, private pools included.
        private_reserved, private_idle: of private pools, in bytes: all they reserve, and their free blocks.
        pending: bytes freed but still in use by another stream.
        stream: the stream of the request.
        label: what it was for, if known.
    """

    def __init__(
        self,
        requested: int,
        size: int,
        device: int,
        capacity: int,
        device_free: int,
        allowed: int | None,
        allocated: int,
        reserved: int,
        private_reserved: int,
        private_idle: int,
        pending: int,
        stream: int,
    ) -> None:
        self.requested = requested
        self.size = size
        self.device = device
        self.capacity = capacity
        self.device_free = device_free
        self.allowed = allowed
        self.allocated = allocated
        self.reserved = reserved
        self.private_reserved = private_reserved
        self.private_idle = private_idle
        self.pending = pending
        self.stream = stream
        self.label: str | None = None
        super().__init__(message(self))


def format_size(size: int) -> str:
    """Bytes as torch writes them: ``512 bytes``, ``1.50 KiB``, ``20.00 MiB``, ``2.00 GiB``."""
    if size <= 2**10:
        return f"{size} bytes"
    if size <= 2**20:
        return f"{size / 2**10:.2f} KiB"
    if size <= 2**30:
        return f"{size / 2**20:.2f} MiB"
    return f"{size / 2**30:.2f} GiB"


def message(refused: AllocationRefused, device_word: str = "CUDA", processes: str = "") -> str:
    """The text of torch 2.13's ``OutOfMemoryError``.

    Args:
        refused: the failed request.
        device_word: what torch calls this type of device.
        processes: torch's sentences about other processes, each followed by a space.
    """
    if refused.size >= LARGEST_REQUEST:
        return f"{device_word} out of memory. Tried to allocate more than 1EB memory."
    if refused.allowed is None:
        allowed = ""
    else:
        allowed = f"{format_size(refused.allowed)} allowed; "
    # torch counts the free blocks of private pools as allocated, and its message calls them so
    allocated = refused.allocated + refused.private_idle
    private = ""
    if refused.private_idle:
        private = f"with {format_size(refused.private_idle)} allocated in private pools (e.g., {device_word} Graphs), "
    return (
        f"{device_word} out of memory. Tried to allocate {format_size(refused.requested)}. GPU {refused.device} has a "
        f"total capacity of {format_size(refused.capacity)} of which {format_size(refused.device_free)} is free. "
        f"{processes}{allowed}Of the allocated memory {format_size(allocated)} is allocated by PyTorch, "
        f"{private}and {format_size(refused.reserved - allocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
