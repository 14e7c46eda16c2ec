"""A simulated card: its memory, its allocator, and what else occupies the memory. It does not use torch."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib import metadata
from typing import Any

from gpudash.devices.known_gpus import SIMULATED_PREFIX, KnownGpu
from gpudash.devices.simulated_cards import card_called, simulated_uuid
from gpudash.memory.allocator.caching import CachingAllocator
from gpudash.memory.allocator.device_memory import DeviceMemory, addresses_fall
from gpudash.memory.allocator.refusal import AllocationRefused
from gpudash.memory.allocator.settings import AllocatorSettings
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.device.card_memory import CardMemory
from gpudash.simulator.device.process_table import ProcessTable, call_in_children

MIB = 2**20

CONTEXT_BYTES = 300 * MIB
"""The assumed size of a CUDA context: a few hundred MiB on current cards, more with more kernels loaded."""

A100 = Architecture()
"""The default architecture of a simulated GPU."""

PRODUCT = f"{SIMULATED_PREFIX} GPU"

OTHER_PROCESS = 2**22 + 1
"""Process ID of the simulated other process: above any that Linux uses (PID_MAX_LIMIT, proc(5))."""

Observer = Callable[[str, int, int, int], None]
Tagger = Callable[[], Any]


@functools.cache
def _follows_addresses() -> bool:
    try:
        return addresses_fall(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return False


class ContextRefused(AllocationRefused):
    """There is no memory for the context, which precedes any request to the allocator."""


class SimulatedGpu:
    """One simulated GPU. Methods are thread-safe and may be called from a finalizer during another call.

    Args:
        index: of ``sim:index``.
        capacity: bytes.
        others: bytes that simulated other processes hold, by process ID.
        context: bytes of the context, which the first use creates.
        settings: torch's settings for the allocator.
        computes: whether operations compute numbers; false in a dry run.
        architecture: determines the kernels' workspaces.
        product: the card's product name.
        table: the processes that share it; ``None`` if this process has the card to itself.

    Raises:
        ValueError: in one sentence, if the capacity is not between 1 byte and 2**50 bytes.

    Attributes:
        architecture: as given.
        tagger: called at every allocation; its result is stored with the block as its owner.
        busy_s: seconds spent in operations.
        before_reset: called before the peaks are reset.
        allocating: what the block being allocated is for; ``None`` if unknown.
        owner: owner of that block, from the tagger; ``None`` without one.
        stream: the stream whose pool is used, 0 for the default stream; torch's allocator has one for each.
    """

    def __init__(
        self,
        index: int,
        capacity: int,
        *,
        others: dict[int, int] | None = None,
        context: int = CONTEXT_BYTES,
        settings: AllocatorSettings | None = None,
        computes: bool = True,
        architecture: Architecture = A100,
        product: str = PRODUCT,
        table: ProcessTable | None = None,
    ) -> None:
        self.index = index
        self.product = product
        self.architecture = architecture
        self.capacity = capacity
        self.computes = computes
        self.tagger: Tagger | None = None
        self.busy_s = 0.0
        self.allocating: str | None = None
        self.owner: Any = None
        self.stream = 0
        self.before_reset: list[Callable[[], None]] = []
        self._uuid = simulated_uuid(index, card_called(product, capacity))
        self._context_bytes = context
        self._simulated = dict(others or {})
        used = sum(self._simulated.values())
        self._memory = CardMemory(capacity, used, falls=_follows_addresses(), index=index, table=table)
        self._allocator = CachingAllocator(self._memory, settings, index)
        self._fraction = self._allocator.settings.per_process_memory_fraction
        self._lock = threading.Lock()
        # released addresses; appending to a deque needs no lock, so finalizers may do it
        self._freed: deque[int] = deque()
        self._opened = False
        self._observers: list[Observer] = []
        self.on_emptied: list[Callable[[], object]] = []
        self._labels: dict[int, str] = {}
        if table is not None:
            call_in_children(self._forked)

    @property
    def settings(self) -> AllocatorSettings:
        """torch's settings for the allocator."""
        return self._allocator.settings

    @property
    def fraction(self) -> float:
        """The fraction of the capacity that the allocator may reserve."""
        return self._fraction

    @property
    def uuid(self) -> str:
        """The name it was created with, used where a GPU has its UUID."""
        return self._uuid

    @property
    def opened(self) -> bool:
        """Whether the context exists."""
        return self._opened

    @property
    def context_bytes(self) -> int:
        """Current size of the context."""
        if self._opened:
            return self._context_bytes
        return 0

    def allocate(self, size: int, label: str | None = None) -> int:
        """Allocate ``size`` bytes and return their address.

        Args:
            size: bytes.
            label: as for `label`; given here, it is known to observers of the allocation.

        Raises:
            AllocationRefused: there is no memory for it, even after releasing what is free.
        """
        # outside the lock: the tagger walks the stack and may run the program's code
        tag = None
        if self.tagger is not None:
            tag = self.tagger()
        with self._lock:
            # first, so that a request does not fail while memory is waiting to be freed
            self._settle()
            self.allocating = label
            self.owner = tag
            try:
                self._open()
                address = self._allocator.malloc(size, self.stream, owner=tag)
            except AllocationRefused as refused:
                refused.label = label
                raise
            finally:
                self.allocating = None
                self.owner = None
        if label is not None:
            self.label(address, label)
        # what was released while the lock was held here
        self._settle_if_free()
        return address

    def release(self, address: int) -> None:
        """Free the block at ``address``, now or as soon as the running call returns."""
        self._freed.append(address)
        self._settle_if_free()

    def label(self, address: int, category: str) -> None:
        """Record what the block at ``address`` is for."""
        self._labels[address] = category

    def label_of(self, address: int) -> str | None:
        """The label of the block at ``address``."""
        return self._labels.get(address)

    def empty_cache(self) -> None:
        """Release every unused segment to the card."""
        with self._lock:
            self._settle()
            self._allocator.empty_cache()
            for emptied in self.on_emptied:
                emptied()

    def set_fraction(self, fraction: float) -> None:
        """Limit what the allocator may reserve to a fraction of the capacity.

        Raises:
            ValueError: in one sentence, if ``fraction`` is not above 0 and at most 1.
        """
        with self._lock:
            self._allocator.set_fraction(fraction)
            self._fraction = fraction

    def resize(self, capacity: int) -> None:
        """Change the capacity. Everything held stays; if it exceeds the capacity, nothing is free.

        Raises:
            ValueError: in one sentence, if the capacity is not between 1 byte and 2**50 bytes.
        """
        DeviceMemory(capacity)  # rejects invalid capacities
        with self._lock:
            self.capacity = self._memory.capacity = capacity
            self._allocator.set_fraction(self._fraction)

    @property
    def is_shared(self) -> bool:
        """Whether other processes of the program allocate on the same card."""
        return self._memory.is_shared

    @property
    def simulated_others(self) -> dict[int, int]:
        """Bytes that simulated other processes hold, by process ID."""
        return self._simulated

    @property
    def others(self) -> dict[int, int]:
        """Bytes that other processes hold, both the program's and simulated ones, by process ID."""
        return {**self._memory.processes(), **self._simulated}

    @property
    def held_bytes(self) -> int:
        """Bytes that this process holds: its context, and what the allocator reserved since it was forked."""
        # memory reserved before the fork belongs to the parent
        return self.context_bytes + max(0, self._memory.taken - self._memory.inherited)

    def open(self) -> None:
        """Create the context, as the first use of CUDA does.

        Raises:
            ContextRefused: there is no memory for it.
        """
        with self._lock:
            self._open()

    def leave(self) -> None:
        """Stop sharing the card with other processes, because another card replaces it."""
        self._memory.leave()

    def statistics(self) -> dict[str, int]:
        """torch's ``memory_stats``."""
        with self._lock:
            self._settle()
            return dict(self._allocator.statistics())

    def reset_peaks(self) -> None:
        """Reset every peak to the current level."""
        for callback in self.before_reset:
            callback()
        with self._lock:
            self._settle()
            self._allocator.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset every accumulated statistic to zero."""
        with self._lock:
            self._settle()
            self._allocator.reset_accumulated()

    def close_context(self) -> None:
        """Free the context, as the end of a process does; only when the allocator holds nothing."""
        with self._lock:
            self._settle()
            if self._opened and not self._memory.taken:
                self._opened = False
                self._memory.close_context()

    def segments(self) -> list[Any]:
        """The segments and their blocks, with each block's tag as its owner."""
        with self._lock:
            self._settle()
            return list(self._allocator.segments())

    def free_and_total(self) -> tuple[int, int]:
        """Free bytes on the card, and its capacity, as from cudaMemGetInfo."""
        return self._memory.free_bytes, self.capacity

    def used_bytes(self) -> int:
        """Bytes in use on the card, by any process."""
        return self.capacity - self._memory.free_bytes

    def reserved_bytes(self) -> int:
        """Bytes the allocator has reserved."""
        return self._memory.taken

    def observe(self, observer: Observer) -> None:
        """Call ``observer(action, address, size, stream)`` at every event of the allocator, with torch's action names.

        The card's lock is held during the call, so the observer must not call the card.
        """
        self._observers.append(observer)
        self._allocator.set_observer(self._report)

    def unobserve(self, observer: Observer) -> None:
        """End `observe`."""
        self._observers.remove(observer)
        if not self._observers:
            self._allocator.set_observer(None)

    def timed(self, began: float) -> None:
        """Count the time since ``began`` (from `time.perf_counter`) as busy."""
        self.busy_s += time.perf_counter() - began

    def _report(self, action: str, address: int, size: int, stream: int) -> None:
        for observer in self._observers:
            observer(action, address, size, stream)

    def _open(self) -> None:
        """Create the context, as the first use of CUDA does."""
        if self._opened:
            return
        if not self._memory.open_context(self._context_bytes):
            raise self._refused_context()
        self._opened = True

    def _refused_context(self) -> ContextRefused:
        return ContextRefused(
            requested=self._context_bytes,
            size=self._context_bytes,
            device=self.index,
            capacity=self.capacity,
            device_free=self._memory.free_bytes,
            allowed=None,
            allocated=0,
            reserved=0,
            private_reserved=0,
            private_idle=0,
            pending=0,
            stream=0,
        )

    def _forked(self) -> None:
        """Reset in a forked child: it has no context, and another thread of the parent may have held the lock."""
        self._opened = False
        self._lock = threading.Lock()

    def _settle(self) -> None:
        """Free released blocks; the lock must be held."""
        freed = self._freed
        while freed:
            address = freed.popleft()
            self._allocator.free(address)
            self._labels.pop(address, None)

    def _settle_if_free(self) -> None:
        """Settle unless the lock is held: a finalizer may interrupt its holder, which settles before it returns."""
        # checked again after releasing the lock: another thread may have released a block meanwhile and found the lock
        # held
        while self._freed and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()


def card_of(
    index: int,
    wanted: int | KnownGpu,
    *,
    others: dict[int, int] | None = None,
    settings: AllocatorSettings | None = None,
    table: ProcessTable | None = None,
) -> SimulatedGpu:
    """A card with a capacity in bytes, or one like a known GPU.

    Args:
        index, others, settings, table: as for `SimulatedGpu`.

    Raises:
        ValueError: as for `SimulatedGpu`.
    """
    if not isinstance(wanted, KnownGpu):
        return SimulatedGpu(index, wanted, others=others, settings=settings, table=table)
    return SimulatedGpu(
        index,
        wanted.total_bytes,
        others=others,
        settings=settings,
        architecture=Architecture(wanted.capability, wanted.multiprocessors),
        product=f"{SIMULATED_PREFIX} {wanted.name}",
        table=table,
    )
