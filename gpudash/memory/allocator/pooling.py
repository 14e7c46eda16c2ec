"""What is common to all that keep a heap: its private pools and its figures."""

from __future__ import annotations

from collections.abc import Hashable

from gpudash.memory.allocator import layout
from gpudash.memory.allocator.blocks import Pool
from gpudash.memory.allocator.device_memory import DeviceMemory
from gpudash.memory.allocator.heap import Heap, Observer
from gpudash.memory.allocator.layout import Segment
from gpudash.memory.allocator.settings import AllocatorSettings


class Pooled:
    """A heap with private pools that can be looked at.

    Attributes:
        memory: the card.
        settings: torch's settings.
    """

    def __init__(self, memory: DeviceMemory, settings: AllocatorSettings, observer: Observer | None) -> None:
        self.memory = memory
        self.settings = settings
        self._heap = Heap(memory, settings)
        self._heap.observer = observer
        self._recording: list[tuple[Hashable, int | None]] = []

    def set_observer(self, observer: Observer | None) -> None:
        """Call ``observer`` at every event from now on, or nobody."""
        self._heap.observer = observer

    def _private(self, pool: Hashable | None, stream: int, is_small: bool) -> Pool:
        """The pool for a request while private pools are asked for or recorded."""
        heap = self._heap
        if pool is None:
            recording = (identity for identity, only in reversed(self._recording) if only is None or only == stream)
            pool = next(recording, None)
        if pool is None:
            return heap.small if is_small else heap.large
        private = heap.private_pool(pool)
        return private.small if is_small else private.large

    def begin_pool(self, pool_id: Hashable, stream: int | None = None) -> None:
        """Take requests from a private pool, as while a graph is captured, until `end_pool`.

        Args:
            pool_id: names the pool; made at its first use.
            stream: only requests of this stream; ``None``: all.

        Raises:
            ValueError: it is being recorded to already.
        """
        if any(identity == pool_id for identity, _stream in self._recording):
            raise ValueError(f"The private pool {pool_id} is being recorded to already: end that first.")
        heap = self._heap
        if pool_id in heap.private:
            heap.private[pool_id].users += 1
        else:
            heap.private_pool(pool_id)
        self._recording.append((pool_id, stream))

    def end_pool(self, pool_id: Hashable) -> None:
        """Take requests from the shared pools again.

        Raises:
            ValueError: the pool is not being recorded to.
        """
        kept = [entry for entry in self._recording if entry[0] != pool_id]
        if len(kept) == len(self._recording):
            raise ValueError(f"The private pool {pool_id} is not being recorded to.")
        self._recording = kept

    def release_pool(self, pool_id: Hashable) -> None:
        """One user of a private pool is gone; without any, its free segments go when all cached ones do.

        Raises:
            ValueError: there is no such pool, or it has no user left.
        """
        private = self._heap.private.get(pool_id)
        if private is None or private.users == 0:
            raise ValueError(f"There is no private pool {pool_id} in use.")
        private.users -= 1
        if private.users == 0:
            self._heap.freeable.append(private)

    def statistics(self) -> dict[str, int]:
        """The figures of ``torch.cuda.memory_stats`` under the same names."""
        limit = self.settings.max_split_size
        return self._heap.statistics.flat(-1 if limit is None else limit)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of allocated blocks: ``torch.cuda.memory_allocated``."""
        return self._heap.statistics.all.size

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the card: ``torch.cuda.memory_reserved``."""
        return self._heap.reserved

    @property
    def pending_bytes(self) -> int:
        """Bytes freed but still in use by another stream."""
        return self._heap.statistics.all.waiting_size

    @property
    def idle_bytes(self) -> int:
        """Bytes reserved and not in use."""
        return self.reserved_bytes - self.allocated_bytes - self.pending_bytes

    @property
    def largest_free_block(self) -> int:
        """Bytes of the largest free block of any pool and stream."""
        lists = (home.entries for pool in self._heap.pools() for home in pool.lists.values())
        return max((entries[-1][0] for entries in lists if entries), default=0)

    def reset_peak(self) -> None:
        """What ``torch.cuda.reset_peak_memory_stats`` does."""
        self._heap.statistics.reset_peak()

    def reset_accumulated(self) -> None:
        """What ``torch.cuda.reset_accumulated_memory_stats`` does."""
        self._heap.statistics.reset_accumulated()

    def segments(self) -> list[Segment]:
        """Everything held, by address."""
        return layout.segments(self._heap)

    def fingerprint(self) -> list[tuple[int, int, int]]:
        """Address, size and state of every block, by address: what decides where the next requests go."""
        return sorted((block.address, block.size, block.state) for block in self._heap.blocks.values())

    @property
    def retries(self) -> int:
        """Requests that the card served only after what was cached had been released."""
        events = self._heap.statistics.events
        return events["num_alloc_retries"] - events["num_ooms"]
