"""How often what is read, besides memory, and how patiently."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between the readings that do not follow the memory rate, and of patience.

    Attributes:
        slow: energy, processes and PCIe throughput of a GPU.
        processes: host processes.
        tend: how often the library is looked after, and a lost GPU is looked for.
        longest_retry: between attempts to open a library that is not there; they begin at `tend` and double.
        reopen: how long all GPUs must be lost before the library is initialised anew.
        patience: silence after which a stuck call is told in words.
    """

    slow: float = 1.0
    processes: float = 1.0
    tend: float = 0.5
    longest_retry: float = 5.0
    reopen: float = 2.0
    patience: float = 1.0

    @property
    def driver_patience(self) -> float:
        """The driver may take longer to begin with a GPU than to answer for it: it starts the card up."""
        return 3 * self.patience
