"""What is known of a run that ran out of memory, how long it may be run again, and why that finds nothing."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_S = 20.0
"""A rerun may take so long however soon the run had failed: most of it is the import of torch."""

MOST_TIMES = 2.0
"""And this many times as long as the failed run."""

ASKED_S = 600.0
"""Longest that it may take where it was asked for, if it did not come to its end before."""

STEADY_STEPS = 3
"""Steps after the one that failed with which the peak of training is taken to be known."""


class NeedUnknownError(Exception):
    """What the whole run needs was not found; its text is a sentence."""


class RemedyFailsError(NeedUnknownError):
    """With the remedy that was tried the program runs out of memory, or fails in another way."""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """What is known of a run that ran out of memory.

    Attributes:
        seconds: that it took.
        step: that was going on.
        torch: its torch's version.
    """

    seconds: float
    step: int
    torch: str


def unknown(why: str) -> str:
    """That the need is not known, in a sentence."""
    return f"What the whole run needs is not known: {why.rstrip('.')}."


LEFT = unknown("finding out was left")
