"""What a few lines of PyTorch did to memory, in the form in which it leaves their process. Does not use torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

ENDED = "ended"
"""The kind of a failure without an exception: the process died, or was ended."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """A block of memory at one moment, or several with one origin.

    Attributes:
        name: of its variable; for a block without one, the expression that created it.
        bytes: its size as the allocator rounds it.
        named: whether a variable refers to it, during the line or after it.
        fresh: whether it is allocated at this moment.
        count: how many blocks it stands for.
        workspace: whether a kernel of torch keeps it for itself.
        origin: the expression that created it.
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
    """What the card holds at the peak of one expression of a line.

    Attributes:
        line: from 1; 0 after the last one.
        title: of the expression if the line has several that allocate, otherwise "".
        turn: the iteration of a loop, from 1; 0 outside of one.
        blocks: on the card, oldest first.
        host: tensors in host memory; while the line allocates, also those that it gives up at its end.
        before, after: bytes on the card when the line starts, and when it is done.
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
        """Bytes of all blocks on the card."""
        return sum(block.bytes for block in self.blocks)


@dataclass(frozen=True, slots=True)
class LineFailure:
    """Why a line ended the program.

    Attributes:
        line: from 1.
        kind: the exception's name, or `ENDED`.
        message: the exception's own, on one line; for `ENDED`, what the line did, or a whole sentence if no line is
            known.
        out_of_memory: whether the card had no room.
        requested: bytes of the block that did not fit.
        segment: bytes that the allocator requested from the card for it.
        held: bytes that it had reserved then.
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
        limit: bytes of the card.
        moments: in order; the last one, with line 0, follows all lines, unless one failed.
        failure: of the line that ended the program; ``None`` if all ran.
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
        """The trace in the form that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: Any) -> LinesTrace:
        """Parse what `to_json` wrote.

        Raises:
            ValueError: ``written`` does not come from `to_json`.
        """
        return _reader().validate_python(written)


@cache
def _reader() -> TypeAdapter[LinesTrace]:
    return TypeAdapter(LinesTrace)
