"""What a program is told: once, that something does nothing or runs otherwise on a simulated GPU; why it is refused."""

from __future__ import annotations

told: list[str] = []
"""Sentences, in order."""


def tell(sentence: str) -> None:
    """Let it be known, once."""
    if sentence not in told:
        told.append(sentence)


def refusal(what: str) -> str:
    """Why something cannot be had, in a sentence."""
    return f"{what} needs a real GPU: this one is simulated, and its numbers are computed by the CPU."
