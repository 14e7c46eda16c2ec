"""Events a second of CPU of the allocator's model, beside a plain dictionary that takes and gives the same requests."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from gpudash.memory.allocator import CachingAllocator, DeviceMemory
from gpudash.units import GIB

EVENTS = 200_000
LIVE = 400
ROUNDS = 3


def measure() -> dict[str, float]:
    """Allocations and frees a second, and how many times cheaper they are in a dictionary."""
    script = _script()
    model = statistics.median(_rate(script, *_model()) for _round in range(ROUNDS))
    bare = statistics.median(_rate(script, *_dictionary()) for _round in range(ROUNDS))
    return {
        "events_per_second": model,
        "yardstick_events_per_second": bare,
        "over_dictionary": bare / model,
    }


def _script() -> list[tuple[int, int]]:
    """Sizes to allocate, with the place of the block to free first, -1 for none; as in a step, most are small."""
    chance = random.Random(1)
    script = []
    for number in range(EVENTS // 2):
        size = int(2 ** chance.triangular(9, 27, 16))
        script.append((size, chance.randrange(LIVE) if number >= LIVE else -1))
    return script


def _model() -> tuple[Callable[[int], int], Callable[[int], None]]:
    allocator = CachingAllocator(DeviceMemory(512 * GIB))
    return allocator.malloc, allocator.free


def _dictionary() -> tuple[Callable[[int], int], Callable[[int], None]]:
    held: dict[int, int] = {}
    addresses = iter(range(1, EVENTS))

    def malloc(size: int) -> int:
        address = next(addresses)
        held[address] = size
        return address

    def free(address: int) -> None:
        del held[address]

    return malloc, free


def _rate(script: list[tuple[int, int]], malloc: Callable[[int], int], free: Callable[[int], None]) -> float:
    live: list[int] = []
    began = time.process_time()
    for size, place in script:
        if place < 0:
            live.append(malloc(size))
        else:
            free(live[place])
            live[place] = malloc(size)
    return (2 * len(script) - LIVE) / (time.process_time() - began)
