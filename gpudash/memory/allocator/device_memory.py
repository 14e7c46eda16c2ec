"""The memory of a card, as cudaMalloc and the virtual memory functions hand it out."""

from __future__ import annotations

from collections.abc import ItemsView

FIRST_ADDRESS = 0x7F0000000000
GRANULE = 2 * 2**20
"""cudaMalloc places, and the driver maps, in pages of 2 MiB: so large segments, and what a run needs, are multiples."""

LARGEST_CAPACITY = 2**50


class DeviceMemory:
    """What a card has, and what is taken of it. Addresses grow and are never given twice.

    Attributes:
        capacity: bytes of the card.
        others: bytes that are not the allocator's: the context, libraries, other processes. May be changed at any
            time, also above what is free.
        taken: bytes handed out.

    Raises:
        ValueError: the capacity is not between 1 byte and 2**50 bytes, or ``used`` is negative.
    """

    __slots__ = ("_next", "_sizes", "capacity", "others", "taken")

    def __init__(self, capacity: int, used: int = 0) -> None:
        if not 0 < capacity <= LARGEST_CAPACITY:
            raise ValueError(f"A memory capacity must be between 1 byte and 1 PiB (2**50 bytes), not {capacity} bytes.")
        if used < 0:
            raise ValueError(f"The memory in use cannot be negative, as in {used} bytes.")
        self.capacity = capacity
        self.others = used
        self.taken = 0
        self._sizes: dict[int, int] = {}
        self._next = FIRST_ADDRESS

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo would call free."""
        return max(0, self.capacity - self.others - self.taken)

    def malloc(self, size: int) -> int | None:
        """Address of ``size`` fresh bytes, or ``None`` when there are not as many."""
        if not self.map(size):
            return None
        address = self.reserve(size)
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Give back what `malloc` gave.

        Raises:
            KeyError: nothing was given at this address.
        """
        self.unmap(self._sizes.pop(address))

    def held(self) -> ItemsView[int, int]:
        """Address and size of everything that `malloc` and `take` gave and that was not freed."""
        return self._sizes.items()

    def take(self, address: int, size: int) -> bool:
        """Take ``size`` bytes at a given address, as if `malloc` had given it; false when there are not as many."""
        if not self.map(size):
            return False
        self._sizes[address] = size
        self._next = max(self._next, address + -(-size // GRANULE) * GRANULE)
        return True

    def reserve(self, size: int) -> int:
        """Address of a range of ``size`` bytes that holds no memory yet."""
        address = self._next
        self._next += -(-size // GRANULE) * GRANULE
        return address

    def map(self, size: int) -> bool:
        """Take ``size`` bytes for a reserved range; false when there are not as many."""
        if size > self.capacity - self.others - self.taken:
            return False
        self.taken += size
        return True

    def unmap(self, size: int) -> None:
        """Give back ``size`` bytes of a reserved range."""
        self.taken -= size


class MeteredMemory(DeviceMemory):
    """Remembers what tells of which other capacities a run would have been the same.

    Attributes:
        most: highest number of bytes taken.
        lacking: smallest capacity that would have served a request that was refused; ``None`` without one.
    """

    __slots__ = ("lacking", "most")

    def __init__(self, capacity: int, used: int = 0) -> None:
        super().__init__(capacity, used)
        self.most = 0
        self.lacking: int | None = None

    def map(self, size: int) -> bool:
        if super().map(size):
            self.most = max(self.most, self.taken)
            return True
        needed = self.taken + size
        self.lacking = needed if self.lacking is None else min(self.lacking, needed)
        return False
