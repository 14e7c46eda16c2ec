"""What has been measured of two sides, as the verdict is made from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudash.devices.names import kind_of
from gpudash.workloads.programs.comparison.ratio import Ratio


@dataclass(frozen=True)
class SideFigures:
    """One side.

    Attributes:
        label: what it is called.
        device: torch's name of the device.
        step_seconds: of a step, the median over the repetitions.
        quartiles: of the repetitions' seconds per step: least, 25 %, 50 %, 75 %, most.
        copied, computed: shares of a step, 0 to 1; what is left is waiting, and Python's own work.
        peak_used_bytes: of this process's memory, between steps.
        peak_allocated_bytes, peak_reserved_bytes, capacity_bytes: of the GPU's memory.
        retries: times the allocator gave its idle memory back to make room.
        lost: share of the time in which other programs had the cores, 0 to 1.
        strays: tensors that are not on the device.
        energy_j: joules a step; ``None`` where not measured.
        energy_words: what the figure is of, or why there is none.
        product: what the device is called by its maker.
    """

    label: str
    device: str
    step_seconds: float
    quartiles: Sequence[float] = ()
    copied: float = 0.0
    computed: float = 1.0
    peak_used_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    retries: int = 0
    lost: float = 0.0
    strays: Sequence[str] = ()
    energy_j: float | None = None
    energy_words: str = ""
    product: str = ""

    @property
    def waiting(self) -> float:
        """Share of a step that no stage accounts for."""
        return max(0.0, 1.0 - self.copied - self.computed)

    @property
    def fullness(self) -> float | None:
        """How full the GPU's memory was at most, 0 to 1; ``None`` where it is not known."""
        if self.peak_reserved_bytes is None or not self.capacity_bytes:
            return None
        return self.peak_reserved_bytes / self.capacity_bytes


@dataclass(frozen=True)
class Point:
    """One size of a sweep: seconds per step on either side."""

    size: int
    seconds: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.seconds[0] / self.seconds[1]


@dataclass(frozen=True)
class Sweep:
    """Both sides over sizes.

    Attributes:
        field: of the workload, that was made larger.
        points: by size, ascending.
        ended: why it did not go on, where it found no size from which the second is faster.
    """

    field: str
    points: Sequence[Point] = ()
    ended: str = ""

    @property
    def crossing(self) -> float | None:
        """The size from which the second is faster, on a straight line between logarithms; ``None``: none found."""
        for before, after in zip(self.points, self.points[1:], strict=False):
            if before.ratio <= 1 < after.ratio:
                share = math.log(1 / before.ratio) / math.log(after.ratio / before.ratio)
                return float(before.size * (after.size / before.size) ** share)
        return None


@dataclass(frozen=True)
class Agreement:
    """Whether both sides found the same.

    Attributes:
        agrees: ``None`` where there was nothing to compare.
        words: a sentence.
    """

    agrees: bool | None
    words: str
    largest: float | None = None
    tolerance: float | None = None
    loss: tuple[float, float] | None = None
    accuracy: tuple[float, float] | None = None


@dataclass(frozen=True)
class Measured:
    """A comparison's figures.

    Attributes:
        ratio: the first side's time per step over the second's.
        compute_only: the same without copies.
        resident: the same with the data kept on the second side's device; ``None`` where that was not measured.
    """

    first: SideFigures
    second: SideFigures
    ratio: Ratio
    compute_only: Ratio
    agreement: Agreement
    resident: Ratio | None = None
    sweep: Sweep | None = None

    def with_energy(self, energies: Sequence[tuple[float | None, str]]) -> Measured:
        """These figures and those of energy: joules a step, or ``None``, and words, for either side."""
        first, second = (
            replace(side, energy_j=joules, energy_words=words)
            for side, (joules, words) in zip((self.first, self.second), energies, strict=True)
        )
        return replace(self, first=first, second=second)

    @property
    def challenger(self) -> SideFigures:
        """The side that has to prove itself: the GPU where just one is a GPU, else the second."""
        kinds = kind_of(self.first.device), kind_of(self.second.device)
        return self.first if kinds[1] == "cpu" and kinds[0] != "cpu" else self.second

    @property
    def gain(self) -> Ratio:
        """How many times as fast the challenger is."""
        return self.of_challenger(self.ratio)

    def of_challenger(self, ratio: Ratio) -> Ratio:
        """A ratio of the first to the second side as one of the other side to the challenger."""
        if self.challenger is self.second:
            return ratio
        return Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low if ratio.low else float("inf"), ratio.values)
