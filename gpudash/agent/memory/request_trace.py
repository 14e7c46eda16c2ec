"""This process's requests to its simulated cards, one by one, on cards that are larger than specified.

From these the dashboard computes the need of a whole run that ran out of memory on the specified cards.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from typing import Any

MOST_EVENTS = 3_000_000
"""Most events kept for a card: some minutes of a training."""


class RequestTraces:
    """Records the requests to every simulated card of this process.

    Args:
        folder: folder for the files.
        capacity: bytes that every card gets.
    """

    def __init__(self, folder: str, capacity: int) -> None:
        self._folder = folder
        self._capacity = capacity
        self._traces: list[_CardTrace] = []

    def follow(self, cards: tuple[Any, ...]) -> None:
        """Record the requests to these cards from now on, each with the larger memory."""
        for card in cards:
            if not any(trace.card is card for trace in self._traces):
                card.resize(max(card.capacity, self._capacity))
                self._traces.append(_CardTrace(card))

    def forked(self) -> None:
        """In a forked child: earlier requests are the parent's."""
        for trace in self._traces:
            trace.clear()

    def write(self) -> str | None:
        """Path of a file with the requests so far; ``None`` if there were none.

        Raises:
            OSError: if it cannot be written.
        """
        used = [trace.to_json() for trace in self._traces if trace.events]
        if not used:
            return None
        path = f"{self._folder}/{os.getpid()}.json"
        with open(f"{path}.part", "w", encoding="ascii") as file:
            json.dump(used, file)
        os.replace(f"{path}.part", path)
        return path


class _CardTrace:
    """The requests to one card: ``n`` allocates block n, counted from 1, ``-n`` frees it; and bytes by block."""

    def __init__(self, card: Any) -> None:
        self.card = card
        self.events = array("q")
        self._sizes = array("q")
        self._streams: dict[int, int] = {}
        self._live: dict[int, int] = {}
        self._is_whole = True
        card.observe(self._observe)

    def clear(self) -> None:
        """Start with an empty card."""
        self.events, self._sizes = array("q"), array("q")
        self._streams, self._live = {}, {}
        self._is_whole = True

    def to_json(self) -> dict[str, Any]:
        statistics = self.card.statistics()
        formatter = getattr(sys.modules.get("gpudash.simulator.device.memory_history"), "settings_text", None)
        return {
            "index": self.card.index,
            "events": self.events.tolist(),
            "sizes": self._sizes.tolist(),
            "streams": list(self._streams.items()),
            "is_whole": self._is_whole,
            "context_bytes": self.card.context_bytes,
            "others_bytes": sum(self.card.simulated_others.values()),
            "peak_allocated_bytes": statistics["allocated_bytes.all.peak"],
            "peak_reserved_bytes": statistics["reserved_bytes.all.peak"],
            "fraction": self.card.fraction,
            "settings": "" if formatter is None else formatter(self.card.settings),
        }

    def _observe(self, action: str, address: int, size: int, stream: int) -> None:
        """Called by the card at every event, under its lock."""
        if action == "alloc":
            if len(self.events) >= MOST_EVENTS:
                self._is_whole = False
                return
            self._sizes.append(size)
            number = len(self._sizes)
            self._live[address] = number
            if stream:
                self._streams[number] = stream
            self.events.append(number)
        elif action == "free_completed":
            known = self._live.pop(address, None)
            if known is not None:
                self.events.append(-known)
