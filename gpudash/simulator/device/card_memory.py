"""The memory of a simulated card, shared with other processes of the program."""

from __future__ import annotations

from gpudash.memory.allocator.device_memory import DeviceMemory
from gpudash.simulator.device.process_table import Entry, Holding, ProcessTable, call_in_children


class CardMemory(DeviceMemory):
    """What this process holds of a card, and what is free after counting what others hold.

    Only requests to the card itself, for segments and contexts, access the table: a block from the allocator's cache
    costs nothing.

    Args:
        capacity, used, falls: as in `DeviceMemory`.
        index: of the card.
        table: the processes of the program; ``None`` if this process has the card to itself.

    Attributes:
        context: bytes of this process's context, which ``others`` includes.
        inherited: bytes that a forked child got from its parent, which owns them.
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
        """Whether other processes count."""
        return self._table is not None

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo would report as free."""
        return max(0, self._left() - sum(map(sum, self._others(living=True).values())))

    def processes(self) -> dict[int, int]:
        """Bytes that each other process of the program holds, by process ID."""
        return {pid: sum(held) for pid, held in self._others(living=True).items()}

    def map(self, size: int) -> bool:
        """Allocate ``size`` bytes for a reserved range; false if there is too little memory."""
        return self._take(0, size)

    def unmap(self, size: int) -> None:
        """Free ``size`` bytes of a reserved range."""
        super().unmap(size)
        self._publish()

    def open_context(self, size: int) -> bool:
        """Allocate ``size`` bytes for the context; false if there is too little memory."""
        return self._take(size, 0)

    def close_context(self) -> None:
        """Free what `open_context` allocated."""
        self.others -= self.context
        self.context = 0
        self._publish()

    def leave(self) -> None:
        """Give up the card for this process."""
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
        """Whether that many bytes are free beside the other processes; dead processes hold nothing."""
        left = self._left() - size
        if left < 0:
            return False
        found = self._others(living=False)
        if sum(map(sum, found.values())) <= left:
            return True
        return sum(map(sum, self._others(living=True).values())) <= left

    def _left(self) -> int:
        """Bytes available to this process; negative if others than the program's processes hold too much."""
        return self.capacity - self.others - max(0, self.taken - self.inherited)

    def _others(self, *, living: bool) -> dict[int, Holding]:
        if self._table is None:
            return {}
        return self._table.held_by_others(self._index, self.capacity, living=living)

    def _publish(self) -> None:
        if self._entry is not None:
            self._entry.write(Holding(self.context, max(0, self.taken - self.inherited)))

    def _forked(self) -> None:
        """Reset in a forked child, which has no context and holds nothing until it allocates."""
        self._entry = None
        self.inherited = self.taken
        self.close_context()
