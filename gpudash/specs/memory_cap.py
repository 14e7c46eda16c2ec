"""The limit on memory that torch may reserve on a device during a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpudash.units import format_bytes, format_percent, parse_size

_DECIMAL = re.compile(r"\s*\d*\.\d*\s*")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class MemoryCap:
    """A run's own limit, below the device's capacity: exceeding it ends the run, and harms no other program.

    Attributes:
        size: limit in bytes, or
        share: fraction of the device's memory, above 0 and at most 1; exactly one of the two is given.
    """

    size: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> MemoryCap:
        """Parse a size such as ``2GiB`` or a share such as ``50%``.

        Raises:
            ValueError: one sentence, if it is neither, or zero.
        """
        percent = _PERCENT.fullmatch(text)
        if percent is not None:
            share = float(percent[1]) / 100
            if not 0 < share <= 1:
                raise ValueError(f"{text!r} is no share of a memory; write for example 50%")
            return cls(share=share)
        if _DECIMAL.fullmatch(text):  # not bytes, which have no decimals: a fraction, or 2.0 GiB, was meant
            raise ValueError(f"{text!r} is a number without a unit; write for example 2GiB or 50%")
        try:
            size = parse_size(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither a size nor a share; write for example 2GiB or 50%") from None
        if size == 0:
            raise ValueError("a memory cap of 0 leaves nothing to run in; write for example 2GiB or 50%")
        return cls(size=size)

    def fraction(self, total_bytes: int) -> float:
        """The cap as a fraction of ``total_bytes``, at most 1.

        torch multiplies it and truncates (2.11) or rounds (2.13) to whole bytes; an extra quarter of a byte makes both
        arrive at the cap.
        """
        if self.share is not None:
            return self.share
        return min(1.0, ((self.size or 0) + 0.25) / total_bytes)

    def allowed_bytes(self, total_bytes: int | None) -> int | None:
        """The most that may be reserved of ``total_bytes``; ``None`` for a share if the total is unknown."""
        if self.share is None:
            return self.size
        if total_bytes is None:
            return None
        return int(self.share * total_bytes)

    def problems(self, device: str, total_bytes: int | None) -> list[str]:
        """Sentences saying why ``device`` of ``total_bytes`` cannot have this cap; empty if it can."""
        if device == "cpu":
            return ["--memory-cap: torch limits what it reserves on a GPU only; on the CPU use --guard"]
        if device == "mps":
            return ["--memory-cap: torch does not limit mps by device; use --guard"]
        if self.size is not None and total_bytes is not None and self.size > total_bytes:
            return [f"--memory-cap {self}: {device} has {format_bytes(total_bytes)}"]
        return []

    def __str__(self) -> str:
        if self.share is None:
            return format_bytes(self.size)
        return format_percent(self.share)
