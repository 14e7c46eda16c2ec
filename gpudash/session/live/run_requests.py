"""What a run of this process asks of the simulated cards, request by request, from their allocators' own reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpudash.simulator
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.history.request_log import Request, RequestLogs, Stack

if TYPE_CHECKING:
    from gpudash.simulator.device.simulated_gpu import SimulatedGpu

MOST_WAITING = 200_000
"""Reports that are kept between two looks, of which there are ten a second; older ones go."""

SIMULATOR = str(Path(gpudash.simulator.__file__).parent)

Report = tuple[float, str, int, int, Any]
"""Session time, torch's word for what happened, address, bytes, and who asked."""


class RunRequests:
    """Follows cards from now until `close`. A run's thread reports, another one looks in.

    Args:
        cards: that are followed.
        logs: take what is asked of them.
        clock: session time in seconds.
    """

    def __init__(self, cards: Sequence[SimulatedGpu], logs: RequestLogs, clock: Callable[[], float]) -> None:
        self._logs = logs
        self._clock = clock
        self._stacks: dict[tuple[tuple[int, int], ...], tuple[Any, Stack]] = {}
        self._followed: list[tuple[SimulatedGpu, deque[Report], Callable[[str, int, int, int], None]]] = []
        for card in cards:
            reports: deque[Report] = deque(maxlen=MOST_WAITING)
            observer = partial(self._happened, card, reports)
            self._followed.append((card, reports, observer))
            card.observe(observer)

    def take(self) -> None:
        """Add to the logs what was reported since the last look."""
        for card, reports, _observer in self._followed:
            requests = []
            # no more than are there now: a run may report as fast as they are taken
            for _ in range(len(reports)):
                time_s, action, address, size, tag = reports.popleft()
                if action == "alloc":
                    requests.append(Request(time_s, address, size, self._stack(tag)))
                else:
                    requests.append(Request(time_s, address))
            if requests:
                self._logs.made(f"sim:{card.index}").take(requests)

    def close(self) -> None:
        """Follow the cards no longer."""
        for card, _reports, observer in self._followed:
            card.unobserve(observer)
        self.take()
        self._followed = []

    def _happened(
        self, card: SimulatedGpu, reports: deque[Report], action: str, address: int, size: int, _stream: int
    ) -> None:
        """Called by a card under its lock, at every event: it keeps no one waiting."""
        if action == "alloc":
            reports.append((self._clock(), action, address, size, card.owner))
        elif action in ("free_requested", "free_completed"):
            reports.append((self._clock(), action, address, 0, None))

    def _stack(self, tag: Any) -> Stack:
        if tag is None:
            return ()
        # code is known by its identity, since to hash it is to read all of it; the tag keeps it, so that no other one
        # takes its place
        key = tuple((id(code), place) for code, place in tag.stack)
        found = self._stacks.get(key)
        if found is None:
            frames = [Frame(*frame) for frame in tag.frames()]
            found = self._stacks[key] = tag, tuple(one for one in frames if not one.file.startswith(SIMULATOR))
        return found[1]
