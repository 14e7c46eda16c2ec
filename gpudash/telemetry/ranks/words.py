"""The ranks of a run in words, for the window, the terminal and reports alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpudash.units import format_duration, format_percent

LEAST_UNACCOUNTED = 0.05
"""Share of a rank's step from which on it is told that it went into none of the three."""

FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("step", "step_seconds_median", format_duration),
    ("computing", "compute_seconds_median", format_duration),
    ("communicating", "communication_share", format_percent),
    ("waiting", "waiting_share", format_percent),
)
"""Title of each figure of a rank, its key in a run's result, and how it is written."""


def rest_words(shares: Iterable[Sequence[float | None]]) -> str:
    """How much of a step is none of its three parts; "" for next to nothing.

    Args:
        shares: of each rank: computing, communicating and waiting, 0 to 1; ``None`` where nobody knows.
    """
    known = [[share for share in parts if share is not None] for parts in shares]
    rest = max((1.0 - sum(parts) for parts in known if len(parts) == 3), default=0.0)
    if rest < LEAST_UNACCOUNTED:
        return ""
    return f"Up to {format_percent(rest)} of a rank's time is none of the three: it waited for a processor core."


def parameters_words(result: Mapping[str, Any]) -> str:
    """Whether the ranks ended with the same parameters; "" where the result does not tell."""
    equal = result.get("parameters_equal")
    if not isinstance(equal, bool):
        return ""
    return f"The parameters are {'equal' if equal else 'NOT equal'} across the ranks."


def rank_sentences(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands out among the ranks of a result: who is slow, who is full, equal parameters, restarts."""
    for key in ("straggler", "memory_imbalance"):
        if found := result.get(key):
            yield str(found["text"])
    if rest := rest_words(map(_shares, result["ranks"])):
        yield rest
    if parameters := parameters_words(result):
        yield parameters
    if restarts := result.get("restarts"):
        yield f"All ranks were started again {'once' if restarts == 1 else f'{restarts} times'}."


def _shares(row: Mapping[str, Any]) -> list[float | None]:
    found = (row.get(name) for name in ("compute_share", "communication_share", "waiting_share"))
    return [float(share) if isinstance(share, int | float) else None for share in found]
