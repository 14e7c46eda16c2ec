"""What a program is told once: that something it asks for does nothing, or runs otherwise, on a simulated GPU."""

from __future__ import annotations

told: list[str] = []
"""Sentences, in order."""


def tell(sentence: str) -> None:
    """Let it be known, once."""
    if sentence not in told:
        told.append(sentence)
