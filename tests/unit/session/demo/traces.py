"""Traces of lines as the process that runs them tells them, made by hand."""

from __future__ import annotations

from gpudash.units import MIB
from gpudash.workloads.lines.trace import LineBlock, LineFailure, LineMoment, LinesTrace


def block(name: str, size: int = 64, *, named: bool = True, fresh: bool = False) -> LineBlock:
    """A block of so many MiB."""
    return LineBlock(name, size * MIB, named, fresh)


def three_lines() -> LinesTrace:
    """a and b, then c = (a + b).relu(), on 320 MiB."""
    a, b, c, passing = block("a"), block("b"), block("c"), block("a + b", named=False)
    return LinesTrace(
        ("a = torch.randn(4096, 4096)", "b = a @ a", "c = (a + b).relu()"),
        320 * MIB,
        (
            LineMoment(1, "", 0, (block("a", fresh=True),), (), 0, 64 * MIB),
            LineMoment(2, "", 0, (a, block("b", fresh=True)), (), 64 * MIB, 128 * MIB),
            LineMoment(3, "a + b", 0, (a, b, block("a + b", named=False, fresh=True)), (), 128 * MIB, 192 * MIB),
            LineMoment(3, "relu", 0, (a, b, passing, block("c", fresh=True)), (), 128 * MIB, 192 * MIB),
            LineMoment(0, "", 0, (a, b, c), (), 192 * MIB, 192 * MIB),
        ),
    )


def leak(turns: int = 3) -> LinesTrace:
    """A loop that keeps 64 MiB of every turn, until a card of 256 MiB is full."""
    kept = [LineMoment(1, "", 0, (block("w", fresh=True),), (), 0, 64 * MIB)]
    for turn in range(1, turns + 1):
        held = (block("w"), block("f(w)", 64 * turn, named=False, fresh=True))
        kept.append(LineMoment(3, "", turn, held, (), turn * 64 * MIB, (turn + 1) * 64 * MIB))
    failure = LineFailure(3, "OutOfMemoryError", "out of memory", True, 64 * MIB, 64 * MIB, 256 * MIB)
    return LinesTrace(("w = 1", "for step in range(9):", "    kept.append(f(w))"), 256 * MIB, tuple(kept), failure)


def failed(message: str = "It broke. Mend it.") -> LinesTrace:
    """A second line with an exception."""
    held = LineMoment(1, "", 0, (block("a", fresh=True),), (), 0, 64 * MIB)
    return LinesTrace(("a = 1", "b = a / 0"), 128 * MIB, (held,), LineFailure(2, "ValueError", message))
