"""The memory of a card, as cudaMalloc and the virtual memory functions hand it out."""

from __future__ import annotations

from collections.abc import Callable, ItemsView
from typing import NamedTuple

FIRST_ADDRESS = 0x7F0000000000
GRANULE = 2 * 2**20
"""cudaMalloc places, and the driver maps, in pages of 2 MiB: so large segments, and what a run needs, are multiples."""

CHUNK = 32 * 2**20
"""The driver takes addresses from the top down in multiples of 32 MiB, and gives what is left of one to smaller
requests, the lowest first: in 13 traces of GPUs 1,300 large segments lie below the one before, and 110 above it."""

MOST_REMAINDERS = 1000
"""How many remainders of chunks are remembered, the lowest ones."""

LARGEST_CAPACITY = 2**50


def addresses_fall(torch_version: str) -> bool:
    """Whether a card's addresses are to fall, as the driver's do, for this version of torch to be followed.

    Of two free blocks of one size torch takes the one at the lower address; from 2.13 on it takes the older one,
    wherever it is (so its CUDA builds 2.11, 2.12 and 2.13 did), for which growing addresses stand.
    """
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) < (2, 13)


class DeviceMemory:
    """What a card has, and what is taken of it. Addresses are never given twice.

    Args:
        falls: whether they fall as `CHUNK` says; otherwise they grow.

    Attributes:
        capacity: bytes of the card.
        others: bytes that are not the allocator's: the context, libraries, other processes. May be changed at any
            time, also above what is free.
        taken: bytes handed out.

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
        # one end grows and one falls: a device uses only one of them, but recorded segments push both out of
        # their way
        self._falls = falls
        # what is left of chunks that a smaller request had opened
        self._remainders: list[tuple[int, int]] = []  # address and size, the lowest last

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
        # fresh addresses stay clear of what was taken by its address, whichever way they grow
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
            # the lowest is last, so the search goes from the back
            for place in range(len(self._remainders) - 1, -1, -1):
                address, left = self._remainders[place]
                if left >= size:
                    self._remainders[place] = address + size, left - size
                    return address
        chunk = -(-size // CHUNK) * CHUNK
        self._lowest -= chunk
        if chunk > size:
            # chunks come from the top down: a new remainder is always the lowest, and appending keeps the
            # order
            self._remainders.append((self._lowest + size, chunk - size))
            del self._remainders[:-MOST_REMAINDERS]
        return self._lowest

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

    def __init__(self, capacity: int, used: int = 0, *, falls: bool = False) -> None:
        super().__init__(capacity, used, falls=falls)
        self.most = 0
        self.lacking: int | None = None

    def map(self, size: int) -> bool:
        if super().map(size):
            self.most = max(self.most, self.taken)
            return True
        # what others hold does not count: the figure is of a card that the run has for itself
        needed = self.taken + size
        if self.lacking is None:
            self.lacking = needed
        else:
            self.lacking = min(self.lacking, needed)
        return False


class Tried(NamedTuple):
    """How a run went with some capacity.

    Attributes:
        fits: whether every request was served.
        least: bytes with which it would have passed in the same way; ``None`` where only the one tried is known.
        below: bytes below which it would have failed in the same way; ``None`` likewise.
    """

    fits: bool
    least: int | None = None
    below: int | None = None


def smallest_capacity(run: Callable[[int], Tried], least: int, most: int) -> int:
    """The fewest bytes, in whole granules, with which a run passes.

    A run passes in the same way with just what it takes, and fails in the same way up to what would have served the
    refused request: so the search leaps. The allocator may release too late for a device that is a little larger to do
    as well as this one, which is rare.

    Args:
        run: with so many bytes.
        least: bytes; with fewer granules than hold them it fails.
        most: bytes; with the granules that hold them it passes.
    """
    # what holds in every round: it fails on all that is below low, and passes on high
    low = granules(least)
    high = granules(most)
    while low < high:
        middle = (low + high) // 2
        tried = run(middle * GRANULE)
        if tried.fits:
            if tried.least is None:
                high = middle
            else:
                # a run that fits tells what it took: everything down to that passes in the same way
                high = min(middle, max(low, granules(tried.least)))
        else:
            if tried.below is None:
                low = middle + 1
            else:
                # a run that fails tells what would have served the refused request: everything up to that
                # fails likewise
                low = max(middle + 1, min(high, granules(tried.below)))
    return high * GRANULE


def granules(size: int) -> int:
    """How many granules hold ``size`` bytes."""
    return -(-size // GRANULE)
