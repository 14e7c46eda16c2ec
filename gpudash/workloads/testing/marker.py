"""The settings of ``@pytest.mark.gpu_memory``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.names import SimulatedCard, card_name, parse_simulated, size_of
from gpudash.telemetry.comparing.baseline import TOLERANCE
from gpudash.units import parse_share

FORM = 'write gpu_memory("8GiB"), gpu_memory("h100") or gpu_memory(baseline="memory.json", tolerance="2%")'


class MarkerError(ValueError):
    """A marker has invalid arguments: one sentence, with what to write."""


@dataclass(frozen=True)
class MemoryBudget:
    """What a test may use.

    Attributes:
        card: the memory it may use, including a context's; ``None`` without a limit.
        baseline: file with earlier peaks; ``None`` for no comparison.
        tolerance: permitted growth beyond it, as a fraction.
        as_cuda: whether the simulated GPU stands in for CUDA during the test; ``None`` leaves it to pytest's
            configuration.
        is_reported: whether to report the lines that hold the memory in any case.
    """

    card: SimulatedCard | None = None
    baseline: Path | None = None
    tolerance: float = TOLERANCE
    as_cuda: bool | None = None
    is_reported: bool = False

    @property
    def needs_history(self) -> bool:
        """Whether to record what holds the memory at the peak of a test that passes."""
        return self.is_reported or self.baseline is not None

    @property
    def bytes(self) -> int | None:
        """Bytes of the card."""
        if self.card is None:
            return None
        return size_of(self.card)

    def __str__(self) -> str:
        if self.card is None:
            return "no limit"
        if isinstance(self.card, KnownGpu):
            return self.card.key
        return card_name(self.card)

    @classmethod
    def of_marker(cls, args: Sequence[Any], keywords: Mapping[str, Any], root: Path) -> MemoryBudget:
        """Parse the arguments of a marker.

        Args:
            args, keywords: of the marker.
            root: folder that a baseline's name is relative to.

        Raises:
            MarkerError: they are invalid.
        """
        unknown = keywords.keys() - {"as_cuda", "baseline", "tolerance"}
        if unknown:
            raise MarkerError(f"gpu_memory takes no {min(unknown)}=; {FORM}.")
        if len(args) > 1:
            raise MarkerError(f"gpu_memory takes one size, not {len(args)}; {FORM}.")
        baseline, tolerance, as_cuda = map(keywords.get, ("baseline", "tolerance", "as_cuda"))
        if not args and baseline is None:
            raise MarkerError(f"gpu_memory has neither a size nor a baseline; {FORM}.")
        if tolerance is not None and baseline is None:
            raise MarkerError("gpu_memory has a tolerance, which is of a baseline, and no baseline=.")
        if baseline is not None and not (isinstance(baseline, (str, Path)) and str(baseline)):
            raise MarkerError(f"The baseline of gpu_memory is a file, not {baseline!r}; {FORM}.")
        if as_cuda is not None and not isinstance(as_cuda, bool):
            raise MarkerError(f"gpu_memory(as_cuda={as_cuda!r}): write True or False.")
        return cls(
            _card(args[0]) if args else None,
            None if baseline is None else root / baseline,
            TOLERANCE if tolerance is None else _tolerance(tolerance),
            as_cuda,
        )


def _card(given: Any) -> SimulatedCard:
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise MarkerError(f"The size of gpu_memory is a text such as '8GiB' or a count of bytes, not {given!r}.")
    try:
        return parse_simulated(str(given))
    except ValueError as error:
        raise MarkerError(f"gpu_memory({given!r}): {str(error).rstrip('.')}.") from None


def _tolerance(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise MarkerError(f"The tolerance of gpu_memory is a share such as '2%' or 0.02, not {given!r}.")
    try:
        return parse_share(str(given))
    except ValueError as error:
        raise MarkerError(f"gpu_memory(tolerance={given!r}): {error}.") from None
