"""The memory of a simulated card, of which other processes of the program take as well."""

from __future__ import annotations

from gpudash.memory.allocator.device_memory import DeviceMemory
from gpudash.simulator.device.process_table import Entry, Holding, ProcessTable, call_in_children


class CardMemory(DeviceMemory):
    """What this process takes of a card, and what is free of it when what others hold is counted.

    Only what is asked of the card itself, which is segments and contexts, meets the table: a block from the allocator's
    cache costs nothing.

    Args:
        capacity, used, falls: of `DeviceMemory`.
        index: of the card.
        table: the processes of the program; ``None`` for a card that this process has alone.

    Attributes:
        context: bytes of this process's context, which ``others`` counts too.
        inherited: bytes that a forked child has from its parent, whose they are.
    """

    __slots__ = ("__weakref__", "_entry", "_index", "_table", "context", "inherited")

    def __init__(
        self, capacity: int, used: int = 0, *, falls: bool = False, index: int = 0, table: ProcessTable | None = None
    ) -> None:
        super().__init__(capacity, used, falls=falls)
        self.context = 0
        self.inherited = 0
        self._index = index
        self._table = table
        self._entry: Entry | None = None
        if table is not None:
            call_in_children(self._forked)

    @property
    def is_shared(self) -> bool:
        """Whether other processes are counted."""
        return self._table is not None

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo would call free."""
        return max(0, self._left() - sum(map(sum, self._others(living=True).values())))

    def processes(self) -> dict[int, int]:
        """Bytes that each other process of the program holds, by its number."""
        return {pid: sum(held) for pid, held in self._others(living=True).items()}

    def map(self, size: int) -> bool:
        """Take ``size`` bytes for a reserved range; false when there are not as many."""
        return self._take(0, size)

    def unmap(self, size: int) -> None:
        """Give back ``size`` bytes of a reserved range."""
        super().unmap(size)
        self._publish()

    def open_context(self, size: int) -> bool:
        """Take ``size`` bytes for the context; false when there are not as many."""
        return self._take(size, 0)

    def close_context(self) -> None:
        """Give back what `open_context` took."""
        self.others -= self.context
        self.context = 0
        self._publish()

    def leave(self) -> None:
        """The card is no longer this process's."""
        if self._entry is not None:
            self._entry.clear()
        self._entry = None
        self._table = None

    def _take(self, context: int, reserved: int) -> bool:
        table = self._table
        if table is None:
            return self._take_alone(context, reserved)
        with table.locked() as locked:
            if not self._fits(context + reserved):
                return False
            if locked and self._entry is None:
                self._entry = table.enter(self._index, self.capacity)
            taken = self._take_alone(context, reserved)
            self._publish()
        return taken

    def _take_alone(self, context: int, reserved: int) -> bool:
        if context + reserved > self._left():
            return False
        self.taken += reserved
        self.others += context
        self.context += context
        return True

    def _fits(self, size: int) -> bool:
        """Whether as much is left beside the other processes, of which the dead ones hold nothing."""
        left = self._left() - size
        if left < 0:
            return False
        found = self._others(living=False)
        if sum(map(sum, found.values())) <= left:
            return True
        return sum(map(sum, self._others(living=True).values())) <= left

    def _left(self) -> int:
        """Bytes that this process leaves; negative where others than processes of the program hold too much."""
        return self.capacity - self.others - max(0, self.taken - self.inherited)

    def _others(self, *, living: bool) -> dict[int, Holding]:
        if self._table is None:
            return {}
        return self._table.held_by_others(self._index, self.capacity, living=living)

    def _publish(self) -> None:
        if self._entry is not None:
            self._entry.write(Holding(self.context, max(0, self.taken - self.inherited)))

    def _forked(self) -> None:
        """In a child, which has no context and holds nothing before it takes something itself."""
        self._entry = None
        self.inherited = self.taken
        self.close_context()
