"""A run's own process. It sends its messages in order from a separate thread, so that the run does not wait."""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from gpudash.agent.wire import PROTOCOL, Decoder, Message, WireError, encode
from gpudash.system.folders import log_file
from gpudash.system.log import log_uncaught, start_log
from gpudash.system.processes import die_with
from gpudash.system.threads import started
from gpudash.telemetry.records import Event, Note, RunEnd, RunStarted, Topic
from gpudash.workloads.profiling import ProfileRequest
from gpudash.workloads.running.card_requests import RequestFeed, RequestSender
from gpudash.workloads.running.context import Requests
from gpudash.workloads.running.hosted.request import request_from
from gpudash.workloads.running.installed import torch_report
from gpudash.workloads.running.run_errors import UNHEARD, WorkloadError
from gpudash.workloads.running.sim_backend import card_figures

if TYPE_CHECKING:
    from gpudash.simulator.device.simulated_gpu import SimulatedGpu
    from gpudash.workloads.running.run import Probe

logger = logging.getLogger(__name__)


ANSWER_S = 1.0
"""Longest wait in seconds for an answer; without one the run continues as without a reading."""

LEISURE_S = 0.5
"""How long a ready process waits for its request, in seconds, before it prepares further."""

READING_PERIOD_S = 0.025
"""Seconds between two readings of the allocator: half of the monitor's period, so that each of its readings is new."""

POISONED_REMEDY = "Start the run again: it had a process of its own, which is gone, and the next one is not affected."

NAME = b"gpudash-run"
"""Name of the process, at most 15 bytes."""

_CHUNK = 65_536


def main(arguments: list[str] | None = None) -> None:
    """Run one request; never returns."""
    descriptor, parent, faults = map(int, arguments or sys.argv[1:4])
    die_with(parent, NAME)
    start_log(str(log_file()))
    log_uncaught()
    faulthandler.enable(faults)
    os.dup2(2, 1)  # printed text must not become output of the dashboard
    host = _Host(socket.socket(fileno=descriptor), parent)
    host.report_ready()
    code = 0
    try:
        host.run()
    except BaseException:  # nothing else could report it; it goes to the file of faults
        logger.exception("the run's own process met an error")
        faulthandler.dump_traceback(faults)
        code = 1
    # `os._exit` flushes nothing; torch's threads and CUDA's handlers must not delay the process.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class _Host:
    """This process's side of the connection."""

    def __init__(self, link: socket.socket, parent: int) -> None:
        self._link = link
        self._parent = parent
        self._outbox = Outbox(link.sendall, self._unheard)
        self._run_requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._requests = Requests()
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}
        self._newest_question = 0
        self._readings: list[_Readings] = []
        self._cards: tuple[SimulatedGpu, ...] = ()
        self._card_requests: RequestFeed | None = None
        self._problem: str | None = None

    def report_ready(self) -> None:
        """Import what a run needs, then report ready."""
        report = torch_report()
        if report["version"] is None:
            self._problem = report["problem"]
        else:
            from gpudash.simulator.device import backend  # noqa: F401 - imported ahead of a run on a simulated GPU
        threading.Thread(target=self._listen, name="gpudash-listener", daemon=True).start()
        self._outbox.put({"type": "ready", "protocol": PROTOCOL, "pid": os.getpid(), "torch": report}, urgent=True)

    def run(self) -> None:
        """Wait for the request, run it and report its end."""
        from gpudash.workloads.running.run import Run

        message = self._next_request()
        origin_s = float(message["origin_s"])

        def clock() -> float:
            return time.monotonic() - origin_s

        # The clock of the parent process: CLOCK_MONOTONIC is the same for the whole system.
        try:
            request = request_from(message, self._ask)
        except WorkloadError as error:
            self._refuse(message, error, clock())
            return
        if request.device.startswith("sim"):
            self._cards = request.cards
        else:
            self._cards = ()
        if message["follows_requests"]:
            self._card_requests = RequestFeed(self._cards, RequestSender(self._outbox.put), clock)
        # The end is sent last, after the final readings, which belong to the run.
        ending = Run(request, self._requests, self._emit, clock, self._probed).perform(self._problem)
        for readings in self._readings:
            readings.stop()
        if self._card_requests is not None:
            self._card_requests.close()
        if isinstance(ending, RunEnd) and ending.error == "cuda_error":
            ending = replace(ending, remedy=POISONED_REMEDY)
        self._outbox.end(ending)

    def _next_request(self) -> Message:
        """The run's request; while it waits, it imports what torch imports late."""
        try:
            return self._run_requests.get(timeout=LEISURE_S)
        except queue.Empty:
            pass
        if self._problem is None:
            import torch

            # The first optimizer imports torch's compiler (`_disable_dynamo` in torch/_compile.py), which takes a
            # second of CPU.
            torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        return self._run_requests.get()

    def _refuse(self, message: Message, error: WorkloadError, now_s: float) -> None:
        run_id, device = message["run_id"], message["device"]
        self._emit(
            RunStarted(
                time_s=now_s,
                run_id=run_id,
                workload=message["workload"],
                device=device,
                spec=message["fields"],
                simulated=device.startswith("sim"),
            )
        )
        self._outbox.end(
            RunEnd(
                status="failed",
                time_s=now_s,
                run_id=run_id,
                error=error.kind,
                message=str(error),
                remedy=error.remedy,
                seconds=0.0,
                steps=0,
            )
        )

    def _emit(self, event: Event) -> None:
        self._outbox.put(event)

    def _probed(self, device: str, probe: Probe) -> None:
        if self._readings:  # the first one reports all cards
            self._readings.append(_Readings(device, probe, (), None, self._outbox))
        else:
            self._readings.append(_Readings(device, probe, self._cards, self._card_requests, self._outbox))
        self._readings[-1].start()

    def _ask(self, what: str, **facts: Any) -> Any:
        """The answer of the parent process; ``None`` if it does not arrive soon."""
        self._newest_question += 1
        number, answered = self._newest_question, queue.SimpleQueue[Any]()
        self._answers[number] = answered
        self._outbox.put({"type": "ask", "number": number, "what": what, **facts}, urgent=True)
        try:
            return answered.get(timeout=ANSWER_S)
        except queue.Empty:
            return None
        finally:
            self._answers.pop(number, None)

    def _listen(self) -> None:
        decoder = Decoder()
        while True:
            try:
                data = self._link.recv(_CHUNK)
                messages = decoder.feed(data)
            except (OSError, WireError):
                _leave()
            if not data:
                _leave()
            for message in messages:
                self._handle(message)

    def _unheard(self) -> NoReturn:
        """Exit, because nothing can be sent: the listener has gone, or the workload closed a foreign descriptor."""
        if os.getppid() != self._parent:
            _leave()
        os._exit(UNHEARD)

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        if kind == "request":
            self._run_requests.put(message)
        elif kind == "stop":
            self._requests.because = message.get("because")
            self._requests.stop.set()
        elif kind == "explain":
            self._requests.explain.set()
        elif kind == "profile":
            self._requests.profile = ProfileRequest(message["steps"], message["stem"], message["from_start"])
        elif kind == "free_cache":
            self._requests.free_cache.set()
        elif kind == "answer":
            answered = self._answers.get(message["number"])
            if answered is not None:
                answered.put(message.get("value"))


class _Readings:
    """Pushes readings of a device's allocator and of the cards in this process."""

    def __init__(
        self,
        device: str,
        probe: Probe,
        cards: tuple[SimulatedGpu, ...],
        requests: RequestFeed | None,
        outbox: Outbox,
    ) -> None:
        self._device = device
        self._probe = probe
        self._cards = cards
        self._requests = requests
        self._outbox = outbox
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._push, name="gpudash-readings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Push once more, and end."""
        self._ended.set()
        self._thread.join()

    def _push(self) -> None:
        ended = False
        while not ended:
            # Wait first: the end is noticed at once, and one more reading is pushed then.
            ended = self._ended.wait(READING_PERIOD_S)
            if ended or not self._outbox.crowded:  # reading resets the peak, so every reading must be sent
                with suppress(RuntimeError):  # a broken device, which the run itself reports: readings have a gap
                    reading = self._probe()
                    cards = list(map(card_figures, self._cards))
                    message = {"type": "reading", "device": self._device, "allocator": dict(reading), "cards": cards}
                    self._outbox.put(message, urgent=True)
                if self._requests is not None:
                    self._requests.take()


def _leave() -> NoReturn:
    """Exit with everything that was started here: the listener has gone."""
    if os.getpgrp() == os.getpid():
        with suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()


BATCH_S = 0.01
"""How long events are collected before they are sent together, in seconds."""

MOST = 20_000
"""The most events and messages that may wait; a run that reports faster than they are sent is slowed down."""

PATCH = 256
"""The most events in one message."""

TOO_LONG = "The {what} of this run is longer than what can be passed on from its own process, and was left out."


class Outbox:
    """Sends events and messages.

    Args:
        send: sends bytes, and returns when they are sent.
        gone: called if that fails; nothing more is sent.
    """

    def __init__(self, send: Callable[[bytes], None], gone: Callable[[], None]) -> None:
        self._send = send
        self._gone = gone
        self._changed = threading.Condition()
        self._waiting: deque[Event | Message] = deque()
        self._urgent = False
        self._ended = False
        self._thread = started("gpudash-outbox", self._work)

    @property
    def crowded(self) -> bool:
        """Whether so much is queued that current readings would arrive late."""
        return len(self._waiting) > PATCH

    def put(self, what: Event | Message, *, urgent: bool = False) -> None:
        """Queue an event or a message; an urgent one is sent at once."""
        with self._changed:
            # This blocks the workload rather than using up memory: what it reports faster than can be sent must wait.
            while len(self._waiting) >= MOST:
                self._changed.wait()
            self._waiting.append(what)
            # The sender sleeps while nothing is queued; further events join the batch being collected.
            if urgent or len(self._waiting) == 1:
                self._urgent = self._urgent or urgent
                self._changed.notify_all()

    def end(self, ending: Event) -> None:
        """Queue the last event, and wait until everything is sent."""
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
                # Copied and cleared under the lock, sent outside of it: `put` continues meanwhile.
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
    """``batch`` as frames, with consecutive events together."""
    frames: list[bytes] = []
    events: list[Event] = []
    for what in batch:
        if isinstance(what, Event) and not isinstance(what, RunEnd):
            events.append(what)
            if len(events) < PATCH:
                continue
        frames += _event_frames(events)
        events = []
        if isinstance(what, RunEnd):
            frames.append(_ending_frame(what))
        elif not isinstance(what, Event):
            frames.append(encode(what))
    return frames + _event_frames(events)


def _event_frames(events: list[Event]) -> list[bytes]:
    if not events:
        return []
    try:
        return [encode({"type": "events", "events": [event.to_json() for event in events]})]
    # Too long for one frame: send event by event, so that only the one that is too long is lost.
    except WireError:
        if len(events) > 1:
            return [frame for event in events for frame in _event_frames([event])]
        return _event_frames([_left_out(events[0])])


def _ending_frame(ending: Event) -> bytes:
    try:
        return encode({"type": "ending", "event": ending.to_json()})
    except WireError:
        cut = RunEnd(
            status="failed",
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
    """The replacement for an event that is too long: a start without its spec, or a note that it is missing."""
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
    return Note(time_s=event.time_s, run_id=event.run_id, topic=Topic.HOST, text=text)
