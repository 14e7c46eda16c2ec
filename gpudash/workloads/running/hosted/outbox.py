"""What a run's own process tells, in order, sent by a thread of its own so that the run does not wait for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from gpudash.agent.wire import Message, WireError, encode
from gpudash.telemetry.records import Event, Note, RunEnded, RunFailed, RunStarted

BATCH_S = 0.01
"""How long events are gathered before they are sent together."""

MOST = 20_000
"""Events and messages that may wait; a run that tells more than can be sent is slowed down."""

PATCH = 256
"""Events of one message."""

TOO_LONG = "The {what} of this run is longer than what can be passed on from its own process, and was left out."


class Outbox:
    """Sends what is put into it.

    Args:
        send: takes bytes until they are sent.
        gone: called when that fails; nothing is sent any more.
    """

    def __init__(self, send: Callable[[bytes], None], gone: Callable[[], None]) -> None:
        self._send = send
        self._gone = gone
        self._changed = threading.Condition()
        self._waiting: deque[Event | Message] = deque()
        self._urgent = False
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="gpudash-outbox", daemon=True)
        self._thread.start()

    @property
    def crowded(self) -> bool:
        """Whether so much waits that readings of now can only come late."""
        return len(self._waiting) > PATCH

    def put(self, what: Event | Message, *, urgent: bool = False) -> None:
        """Tell an event or a message behind all others; at once when it is urgent."""
        with self._changed:
            while len(self._waiting) >= MOST:
                self._changed.wait()
            self._waiting.append(what)
            if urgent or len(self._waiting) == 1:
                self._urgent = self._urgent or urgent
                self._changed.notify_all()

    def end(self, ending: Event) -> None:
        """Tell the last event, and wait until everything is sent."""
        with self._changed:
            self._waiting.append(ending)
            self._urgent = self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._ended:
                        return
                    self._changed.wait()
                if not self._urgent:
                    self._changed.wait(BATCH_S)
                batch, self._urgent = list(self._waiting), False
                self._waiting.clear()
                self._changed.notify_all()
            try:
                for data in _frames(batch):
                    self._send(data)
            except OSError:
                self._gone()
                return


def _frames(batch: list[Event | Message]) -> list[bytes]:
    """``batch`` as frames, events that follow each other together."""
    frames: list[bytes] = []
    events: list[Event] = []
    for what in batch:
        if isinstance(what, Event) and not isinstance(what, RunEnded):
            events.append(what)
            if len(events) < PATCH:
                continue
        frames += _event_frames(events)
        events = []
        if isinstance(what, RunEnded):
            frames.append(_ending_frame(what))
        elif not isinstance(what, Event):
            frames.append(encode(what))
    return frames + _event_frames(events)


def _event_frames(events: list[Event]) -> list[bytes]:
    if not events:
        return []
    try:
        return [encode({"type": "events", "events": [event.to_json() for event in events]})]
    except WireError:
        if len(events) > 1:
            return [frame for event in events for frame in _event_frames([event])]
        return _event_frames([_left_out(events[0])])


def _ending_frame(ending: Event) -> bytes:
    try:
        return encode({"type": "ending", "event": ending.to_json()})
    except WireError:
        cut = RunFailed(
            time_s=ending.time_s,
            run_id=ending.run_id,
            error="result",
            message=TOO_LONG.format(what="result"),
            remedy="Run it with --no-isolate.",
            seconds=getattr(ending, "seconds", 0.0),
            steps=getattr(ending, "steps", 0),
        )
        return encode({"type": "ending", "event": cut.to_json()})


def _left_out(event: Event) -> Event:
    """Told in place of an event that is too long; a run begins all the same."""
    if isinstance(event, RunStarted):
        return RunStarted(
            time_s=event.time_s,
            run_id=event.run_id,
            workload=event.workload,
            device=event.device,
            spec={},
            simulated=event.simulated,
        )
    text = TOO_LONG.format(what=event.kind)
    return Note(time_s=event.time_s, run_id=event.run_id, topic="host", text=text)
