"""The layout before a trace began, found by undoing the trace from the segments at its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import replace

from gpudash.memory.allocator import BlockView, Segment
from gpudash.memory.allocator.blocks import LARGEST_SMALL, SMALL_SEGMENT, Rounding
from gpudash.memory.allocator.settings import LARGE_SEGMENT_SIZE
from gpudash.memory.snapshot.history.model import SnapshotError, TraceEntry

FREE, ALLOCATED, PENDING = "inactive", "active_allocated", "active_pending_free"


class _Piece:
    """A block while the trace is undone: its segment is the address this begins at."""

    __slots__ = ("owner", "requested", "segment", "size", "state")

    def __init__(self, size: int, state: str, segment: int, requested: int = 0, owner: object = None) -> None:
        self.size = size
        self.state = state
        self.segment = segment
        self.requested = requested
        self.owner = owner


class ReverseReplay:
    """Segments that go back in time, one event at a call.

    Raises:
        SnapshotError: from every method, when the event cannot have led to this layout.
    """

    def __init__(self, segments: Iterable[Segment], rounding: Rounding) -> None:
        self._rounding = rounding
        self._slack: dict[int, int] = {}
        self._segments: dict[int, Segment] = {}
        self._pieces: dict[int, _Piece] = {}
        self._begins: list[int] = []
        for segment in segments:
            self._add(segment)

    def _add(self, segment: Segment) -> None:
        self._segments[segment.address] = segment
        for block in segment.blocks:
            self._insert(
                block.address, _Piece(block.size, block.state, segment.address, block.requested_size, block.owner)
            )

    def _insert(self, address: int, piece: _Piece) -> None:
        if address in self._pieces:
            raise SnapshotError(f"Two blocks of the snapshot begin at {address:#x}.")
        self._pieces[address] = piece
        insort(self._begins, address)

    def _remove(self, address: int) -> _Piece:
        del self._begins[bisect_left(self._begins, address)]
        return self._pieces.pop(address)

    def undo(self, entry: TraceEntry) -> None:
        """Go back over one event."""
        if entry.action == "alloc":
            self._unallocate(entry)
        elif entry.action == "free_completed":
            self._revive(entry)
        elif entry.action == "free_requested":
            self._piece(entry, PENDING).state = ALLOCATED
        elif entry.action in ("segment_alloc", "segment_map"):
            self._unreserve(entry)
        elif entry.action in ("segment_free", "segment_unmap"):
            self._reserve(entry)

    def _piece(self, entry: TraceEntry, state: str) -> _Piece:
        piece = self._pieces.get(entry.address)
        if piece is None or piece.state != state:
            raise _disagreement(entry)
        return piece

    def _unallocate(self, entry: TraceEntry) -> None:
        piece = self._piece(entry, ALLOCATED)
        piece.state, piece.requested, piece.owner = FREE, 0, None
        self._slack.pop(entry.address, None)
        self._join(entry.address)

    def _join(self, address: int) -> None:
        """Merge a free piece with its free neighbours in the segment."""
        piece = self._pieces[address]
        after = self._pieces.get(address + piece.size)
        if after is not None and after.state == FREE and after.segment == piece.segment:
            piece.size += self._remove(address + piece.size).size
        place = bisect_left(self._begins, address)
        if place and piece.segment != address:
            begin = self._begins[place - 1]
            before = self._pieces[begin]
            if before.state == FREE and before.segment == piece.segment:
                before.size += self._remove(address).size

    def _revive(self, entry: TraceEntry) -> None:
        """A block that was freed is there again, as large as its request rounded."""
        address, size = entry.address, self._rounding.rounded(entry.size)
        place = bisect_right(self._begins, address) - 1
        begin = self._begins[place] if place >= 0 else 0
        whole = self._pieces.get(begin)
        if whole is None or whole.state != FREE or address + size > begin + whole.size:
            raise _disagreement(entry)
        end = begin + whole.size
        if begin < address:
            whole.size = address - begin
            self._insert(address, _Piece(size, PENDING, whole.segment, entry.size, entry.stack))
        else:
            whole.size, whole.state, whole.requested, whole.owner = size, PENDING, entry.size, entry.stack
        if address + size < end:
            self._insert(address + size, _Piece(end - address - size, FREE, whole.segment))
            self._give_slack(address + size)
        if begin < address:
            self._give_slack(begin)

    def _give_slack(self, begin: int) -> None:
        """No free block of a large pool has 1 MiB or less: what seems one is the slack of the block before it."""
        piece = self._pieces[begin]
        is_small = self._segments[piece.segment].is_small
        if piece.size <= LARGEST_SMALL and not is_small and begin != piece.segment:
            before = self._begins[bisect_left(self._begins, begin) - 1]
            self._pieces[before].size += self._remove(begin).size
            self._slack[before] = piece.size

    def _unreserve(self, entry: TraceEntry) -> None:
        """Take out memory that had just come from the card: free, and whole granules of it where segments grow."""
        place = bisect_right(self._begins, entry.address) - 1
        begin = self._begins[place] if place >= 0 else 0
        piece = self._pieces.get(begin)
        end, piece_end = entry.address + entry.size, begin + (piece.size if piece else 0)
        if piece is None or piece.state != FREE or end > piece_end:
            raise _disagreement(entry)
        segment = self._segments[piece.segment]
        if not segment.is_expandable and (begin, piece_end, piece.segment) != (entry.address, end, entry.address):
            raise _disagreement(entry)
        if begin < entry.address:
            piece.size = entry.address - begin
        else:
            self._remove(begin)
        if end < piece_end:
            self._insert(end, _Piece(piece_end - end, FREE, segment.address))
        if segment.address == entry.address:
            del self._segments[segment.address]
        self._move(end, segment.address, replace(segment, address=end))

    def _move(self, address: int, old: int, segment: Segment) -> None:
        """Let the pieces from ``address`` on that lie one after the other in segment ``old`` be of another one."""
        while (piece := self._pieces.get(address)) is not None and piece.segment == old:
            piece.segment = segment.address
            self._segments[segment.address] = segment
            address += piece.size

    def _reserve(self, entry: TraceEntry) -> None:
        """Put back memory that was given to the card; where segments grow, it closes the gap to what lies beside it."""
        address, end = entry.address, entry.address + entry.size
        grows = entry.action == "segment_unmap"
        before, after = self._range_ending_at(address, entry) if grows else None, self._segments.get(end)
        is_small = entry.size == SMALL_SEGMENT or (grows and entry.size % LARGE_SEGMENT_SIZE != 0)
        known = before or (after if grows else None)
        segment = Segment(
            address=address,
            total_size=entry.size,
            stream=entry.stream,
            is_small=is_small if known is None else known.is_small,
            pool_id=entry.pool_id or (0, 0),
            is_expandable=grows,
            blocks=(BlockView(address, entry.size, 0, FREE),),
        )
        self._add(segment)
        if not grows:
            return
        if after is not None and after.is_expandable and after.stream == entry.stream:
            del self._segments[end]
            self._move(end, end, segment)
        if before is not None:
            del self._segments[address]
            self._move(address, address, before)
        self._join(address)

    def _range_ending_at(self, address: int, entry: TraceEntry) -> Segment | None:
        place = bisect_left(self._begins, address) - 1
        if place < 0 or self._begins[place] + self._pieces[self._begins[place]].size != address:
            return None
        segment = self._segments[self._pieces[self._begins[place]].segment]
        return segment if segment.is_expandable and segment.stream == entry.stream else None

    def unrecorded_slack(self) -> dict[int, int]:
        """By address, what a block freed later has above its rounded request, where only later placements show it.

        Where the block after it is free, the layout alone would leave open whose the bytes are.
        """
        found = {}
        for address, slack in self._slack.items():
            piece = self._pieces[address]
            after = self._pieces.get(address + piece.size)
            if after is not None and after.state == FREE and after.segment == piece.segment:
                found[address] = slack
        return found

    def segments(self) -> list[Segment]:
        """The layout now."""
        blocks: dict[int, list[BlockView]] = {address: [] for address in self._segments}
        for begin in self._begins:
            piece = self._pieces[begin]
            blocks[piece.segment].append(BlockView(begin, piece.size, piece.requested, piece.state, piece.owner))
        return [
            replace(segment, total_size=sum(block.size for block in blocks[address]), blocks=tuple(blocks[address]))
            for address, segment in sorted(self._segments.items())
        ]


def _disagreement(entry: TraceEntry) -> SnapshotError:
    return SnapshotError(
        f"The trace and the segments of the snapshot disagree: its {entry.action} of {entry.size} bytes at "
        f"{entry.address:#x} cannot have led to these segments."
    )
