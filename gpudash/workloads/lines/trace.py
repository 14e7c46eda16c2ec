"""What a few lines of PyTorch did to memory, as it crosses from the process that ran them. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

ENDED = "ended"
"""The kind of a failure that is no exception: the process died, or was ended."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """A block of memory at one moment, or several of one origin.

    Attributes:
        name: of the variable that has it; of one that no variable has, the expression that made it.
        bytes: as the allocator rounds them.
        named: whether a variable has it, during the line or after it.
        fresh: whether it is being made at this moment.
        count: how many blocks are counted here.
        workspace: whether a kernel of torch's keeps it for itself.
        origin: the expression that made it.
    """

    name: str
    bytes: int
    named: bool = True
    fresh: bool = False
    count: int = 1
    workspace: bool = False
    origin: str = ""


@dataclass(frozen=True, slots=True)
class LineMoment:
    """What the card holds at the highest point of one expression of a line.

    Attributes:
        line: from 1; 0 after the last one.
        title: of the expression, where the line has several that allocate; else "".
        turn: which turn of a loop, from 1; 0 outside of one.
        blocks: on the card, oldest first.
        host: tensors in the computer's own memory after the line.
        before, after: bytes on the card as the line begins, and once it is done.
    """

    line: int
    title: str
    turn: int
    blocks: tuple[LineBlock, ...]
    host: tuple[LineBlock, ...] = ()
    before: int = 0
    after: int = 0

    @property
    def bytes(self) -> int:
        """Of all blocks on the card."""
        return sum(block.bytes for block in self.blocks)


@dataclass(frozen=True, slots=True)
class LineFailure:
    """Why a line ended the program.

    Attributes:
        line: from 1.
        kind: the exception's name, or `ENDED`.
        message: its own, on one line; of what `ENDED`, what the line did, or a whole sentence where it is about none.
        out_of_memory: whether the card had no room.
        requested: bytes of the block that there was no room for.
        segment: bytes that the allocator asked the card for, to have room for it.
        held: bytes that it held then.
    """

    line: int
    kind: str
    message: str
    out_of_memory: bool = False
    requested: int = 0
    segment: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class LinesTrace:
    """A few lines, run to their end or to a failure.

    Attributes:
        source: the lines.
        limit: bytes that the card has.
        moments: in order; the last one, with line 0, is after all lines, unless one failed.
        failure: of the line that ended it; ``None`` where all ran.
    """

    source: tuple[str, ...]
    limit: int
    moments: tuple[LineMoment, ...]
    failure: LineFailure | None = None

    @property
    def peak(self) -> int:
        """Bytes on the card at its highest moment."""
        return max((moment.bytes for moment in self.moments), default=0)

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: Any) -> LinesTrace:
        """The trace that `to_json` wrote.

        Raises:
            ValueError: when it did not.
        """
        return _reader().validate_python(written)


@cache
def _reader() -> TypeAdapter[LinesTrace]:
    return TypeAdapter(LinesTrace)
