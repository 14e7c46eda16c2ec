"""Device memory as cudaMalloc and the virtual memory functions provide it."""

from __future__ import annotations

from collections.abc import Callable, ItemsView
from typing import NamedTuple

FIRST_ADDRESS = 0x7F0000000000
GRANULE = 2 * 2**20
"""cudaMalloc and the driver's mappings use 2 MiB pages, so large segments and a run's need are multiples of it."""

CHUNK = 32 * 2**20
"""The driver allocates addresses from the top down in multiples of 32 MiB, and serves smaller requests from the
remainders, lowest first: in 13 traces of GPUs, 1,300 large segments lie below the one before, and 110 above it."""

MOST_REMAINDERS = 1000
"""How many remainders of chunks are kept, the lowest ones."""

LARGEST_CAPACITY = 2**50


def addresses_fall(torch_version: str) -> bool:
    """Whether a card's addresses should fall, as the driver's do, to model this version of torch.

    Of two free blocks of one size, torch takes the one at the lower address. From 2.13 on it takes the older one
    wherever it is (its CUDA builds 2.11, 2.12 and 2.13 did so), which rising addresses reproduce.
    """
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) < (2, 13)


class DeviceMemory:
    """The memory of a card and what is allocated of it. No address is used twice.

    Args:
        falls: whether addresses fall as described in `CHUNK`; otherwise they rise.

    Attributes:
        capacity: bytes of the card.
        others: bytes that the allocator does not own: the context, libraries, other processes. May be changed at any
            time, even to more than is free.
        taken: bytes allocated.

    Raises:
        ValueError: the capacity is not between 1 byte and 2**50 bytes, or ``used`` is negative.
    """

    __slots__ = ("_falls", "_lowest", "_next", "_remainders", "_sizes", "capacity", "others", "taken")

    def __init__(self, capacity: int, used: int = 0, *, falls: bool = False) -> None:
        if not 0 < capacity <= LARGEST_CAPACITY:
            raise ValueError(f"A memory capacity must be between 1 byte and 1 PiB (2**50 bytes), not {capacity} bytes.")
        if used < 0:
            raise ValueError(f"The memory in use cannot be negative, as in {used} bytes.")
        self.capacity = capacity
        self.others = used
        self.taken = 0
        self._sizes: dict[int, int] = {}
        self._next = self._lowest = FIRST_ADDRESS
        # one end rises and the other falls: a device uses only one of them, but recorded segments move both out of
        # their way
        self._falls = falls
        # what is left of chunks that smaller requests were served from
        self._remainders: list[tuple[int, int]] = []  # address and size, the lowest last

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo would report as free."""
        return max(0, self.capacity - self.others - self.taken)

    def malloc(self, size: int) -> int | None:
        """Allocate ``size`` bytes and return their address, or ``None`` if there is too little memory."""
        if not self.map(size):
            return None
        address = self.reserve(size)
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Free what `malloc` returned.

        Raises:
            KeyError: nothing is allocated at this address.
        """
        self.unmap(self._sizes.pop(address))

    def held(self) -> ItemsView[int, int]:
        """Address and size of everything allocated by `malloc` and `take` and not yet freed."""
        return self._sizes.items()

    def take(self, address: int, size: int) -> bool:
        """Allocate ``size`` bytes at a given address, as if by `malloc`; false if there is too little memory."""
        if not self.map(size):
            return False
        self._sizes[address] = size
        # new addresses avoid ranges that were taken by address, in either direction
        self._next = max(self._next, address + -(-size // GRANULE) * GRANULE)
        self._lowest = min(self._lowest, address // CHUNK * CHUNK)
        return True

    def reserve(self, size: int) -> int:
        """Address of a range of ``size`` bytes that holds no memory yet."""
        size = granules(size) * GRANULE
        if not self._falls:
            self._next += size
            return self._next - size
        if size < CHUNK:
            # the lowest is last, so search from the back
            for place in range(len(self._remainders) - 1, -1, -1):
                address, left = self._remainders[place]
                if left >= size:
                    self._remainders[place] = address + size, left - size
                    return address
        chunk = -(-size // CHUNK) * CHUNK
        self._lowest -= chunk
        if chunk > size:
            # chunks come from the top down: a new remainder is always the lowest, so appending keeps the order
            self._remainders.append((self._lowest + size, chunk - size))
            del self._remainders[:-MOST_REMAINDERS]
        return self._lowest

    def map(self, size: int) -> bool:
        """Allocate ``size`` bytes for a reserved range; false if there is too little memory."""
        if size > self.capacity - self.others - self.taken:
            return False
        self.taken += size
        return True

    def unmap(self, size: int) -> None:
        """Free ``size`` bytes of a reserved range."""
        self.taken -= size


class MeteredMemory(DeviceMemory):
    """Records for which other capacities a run would have gone the same way.

    Attributes:
        most: the most bytes allocated at once.
        lacking: the smallest capacity that would have served a refused request; ``None`` if there was none.
    """

    __slots__ = ("lacking", "most")

    def __init__(self, capacity: int, used: int = 0, *, falls: bool = False) -> None:
        super().__init__(capacity, used, falls=falls)
        self.most = 0
        self.lacking: int | None = None

    def map(self, size: int) -> bool:
        if super().map(size):
            self.most = max(self.most, self.taken)
            return True
        # what others hold does not count: the figure is for a card that the run has to itself
        needed = self.taken + size
        if self.lacking is None:
            self.lacking = needed
        else:
            self.lacking = min(self.lacking, needed)
        return False


class Tried(NamedTuple):
    """The outcome of a run with some capacity.

    Attributes:
        fits: whether every request was served.
        least: the fewest bytes with which it would have passed in the same way; ``None`` if unknown.
        below: bytes below which it would have failed in the same way; ``None`` if unknown.
    """

    fits: bool
    least: int | None = None
    below: int | None = None


def smallest_capacity(run: Callable[[int], Tried], least: int, most: int) -> int:
    """The smallest capacity, in whole granules, with which a run passes.

    A run passes in the same way with exactly what it allocates, and fails in the same way up to the capacity that
    would have served the refused request, so the search can skip ranges. In rare cases the allocator releases too late
    for a slightly larger device to pass as well.

    Args:
        run: runs with a capacity in bytes.
        least: bytes; the run fails with fewer granules than hold them.
        most: bytes; the run passes with the granules that hold them.
    """
    # invariant: the run fails with everything below low, and passes with high
    low = granules(least)
    high = granules(most)
    while low < high:
        middle = (low + high) // 2
        tried = run(middle * GRANULE)
        if tried.fits:
            if tried.least is None:
                high = middle
            else:
                # a run that fits reports what it allocated: any capacity down to that passes in the same way
                high = min(middle, max(low, granules(tried.least)))
        else:
            if tried.below is None:
                low = middle + 1
            else:
                # a run that fails reports what would have served the refused request: any capacity below that fails
                # likewise
                low = max(middle + 1, min(high, granules(tried.below)))
    return high * GRANULE


def granules(size: int) -> int:
    """Number of granules that hold ``size`` bytes."""
    return -(-size // GRANULE)
