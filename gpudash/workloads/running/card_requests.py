"""A run's requests to the simulated cards of its process, one by one, from their allocators' own reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpudash.simulator
from gpudash.memory.frames import Frame
from gpudash.memory.request_log import Request, Stack

if TYPE_CHECKING:
    from gpudash.simulator.device.simulated_gpu import SimulatedGpu

MOST_WAITING = 200_000
"""The most reports kept between two polls, of which there are ten a second; the oldest are dropped."""

MOST_IN_A_MESSAGE = 5_000
"""The most requests in one message to another process."""

SIMULATOR = str(Path(gpudash.simulator.__file__).parent)

Report = tuple[float, str, int, int, Any]
"""Session time, torch's name of the action, address, bytes, and the requester."""


RequestSink = Callable[[str, Sequence[Request]], None]
"""Called with a card's name and the requests to it."""

Message = dict[str, Any]


class RequestFeed:
    """Follows cards from now until `close`. A run's thread reports, another one polls.

    Args:
        cards: the cards to follow.
        sink: called with a card's name and the requests to it, in order.
        clock: session time in seconds.
    """

    def __init__(self, cards: Sequence[SimulatedGpu], sink: RequestSink, clock: Callable[[], float]) -> None:
        self._sink = sink
        self._clock = clock
        self._stacks: dict[tuple[tuple[int, int], ...], tuple[Any, Stack]] = {}
        self._followed: list[tuple[SimulatedGpu, deque[Report], Callable[[str, int, int, int], None]]] = []
        for card in cards:
            reports: deque[Report] = deque(maxlen=MOST_WAITING)
            observer = partial(self._happened, card, reports)
            self._followed.append((card, reports, observer))
            card.observe(observer)

    def take(self) -> None:
        """Pass on what was reported since the last poll."""
        for card, reports, _observer in self._followed:
            requests = []
            # at most what is there now: a run may report as fast as reports are taken
            for _ in range(len(reports)):
                time_s, action, address, size, tag = reports.popleft()
                if action == "alloc":
                    requests.append(Request(time_s, address, size, self._stack(tag)))
                else:
                    requests.append(Request(time_s, address))
            if requests:
                self._sink(f"sim:{card.index}", requests)

    def close(self) -> None:
        """Stop following the cards."""
        for card, _reports, observer in self._followed:
            card.unobserve(observer)
        self.take()
        self._followed = []

    def _happened(
        self, card: SimulatedGpu, reports: deque[Report], action: str, address: int, size: int, _stream: int
    ) -> None:
        """Called by a card under its lock, at every event: must return quickly."""
        if action == "alloc":
            reports.append((self._clock(), action, address, size, card.owner))
        elif action in ("free_requested", "free_completed"):
            reports.append((self._clock(), action, address, 0, None))

    def _stack(self, tag: Any) -> Stack:
        if tag is None:
            return ()
        # code is identified by identity, since hashing it reads all of it; the tag keeps it alive, so that its id is
        # not reused
        key = tuple((id(code), place) for code, place in tag.stack)
        found = self._stacks.get(key)
        if found is None:
            frames = [Frame(*frame) for frame in tag.frames()]
            found = self._stacks[key] = tag, tuple(one for one in frames if not one.file.startswith(SIMULATOR))
        return found[1]


class RequestSender:
    """Packs requests into messages for another process, with each stack once.

    Args:
        send: called with a message.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers: dict[Stack, int] = {}

    def __call__(self, device: str, requests: Sequence[Request]) -> None:
        for first in range(0, len(requests), MOST_IN_A_MESSAGE):
            new: list[Stack] = []
            rows = []
            for request in requests[first : first + MOST_IN_A_MESSAGE]:
                number = self._numbers.get(request.stack)
                if number is None:
                    number = self._numbers[request.stack] = len(self._numbers)
                    new.append(request.stack)
                rows.append((request.time_s, request.owner, request.bytes, number))
            stacks = [[(frame.file, frame.line, frame.name) for frame in stack] for stack in new]
            self._send({"type": "requests", "device": device, "stacks": stacks, "rows": rows})


class RequestReceiver:
    """Unpacks messages of a `RequestSender`.

    Args:
        sink: called with the requests.
    """

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._stacks: list[Stack] = []

    def take(self, message: Message) -> None:
        """Pass on the requests in one message."""
        self._stacks += [tuple(Frame(*frame) for frame in stack) for stack in message["stacks"]]
        requests = [
            Request(time_s, address, size, self._stacks[number]) for time_s, address, size, number in message["rows"]
        ]
        self._sink(str(message["device"]), requests)
