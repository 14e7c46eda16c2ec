"""Predictions by a child process that stays alive: importing torch takes seconds, a prediction a fraction of one."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from gpudash.memory.predicting.estimate import CardEstimate, Estimate, Target
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.speed.work import StepWork
from gpudash.system.child_process import ChildProcess, Waker
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.system.threads import joined, started

if TYPE_CHECKING:
    from gpudash.drawing.ghost import Ghost
    from gpudash.speed.work import StepTime

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "gpudash.workloads.predicting.estimate_process")

OWN_CODE_COMMAND = (sys.executable, "-m", "gpudash.workloads.predicting.own_code_process")
"""Command of the process that predicts a user's code; takes the user's Python as its argument."""

TIME_LIMIT_S = 60.0
"""Default limit on the processor time of one prediction, in seconds."""

LONGEST_RATIO = 3.0
"""Limit on the time by the clock, as a multiple of the processor time: beyond it the machine is too busy."""

OTHER_PYTHON = "Begin the command with a Python that has torch 2.9 or newer, such as .venv/bin/python."
"""What to do about a program whose Python has no torch."""

TOOK_TOO_LONG = "time_limit"
"""Kind of `Problem`: the prediction took too long."""

PATIENCE_S = 1.0
"""Processor time that the process may take to leave an older request for a newer one before it is restarted."""

FIRST_PATIENCE_S = 5.0
"""The same while the older request is its first, which also imports the libraries."""

LONGEST_PATIENCE_RATIO = 15.0
"""Limit of both by the clock, as a multiple: on a busy machine a restart would take longer than waiting."""

LEAST_MORE_S = 0.05
"""Shortest extension of a prediction that has not used up its processor time."""

CLOSE_TIMEOUT_S = 0.5


@functools.cache
def _reader() -> TypeAdapter[Estimate]:
    """Reads an estimate from a line of JSON; built on first use, because building takes a while."""
    return TypeAdapter(Estimate)


@functools.cache
def _card_reader() -> TypeAdapter[list[CardEstimate]]:
    """The same for the other cards."""
    return TypeAdapter(list[CardEstimate])


@functools.cache
def _server_reader() -> TypeAdapter[list[ServerOnCard]]:
    """The same for servers."""
    return TypeAdapter(list[ServerOnCard])


def _cards(message: Mapping[str, Any]) -> Mapping[str, CardEstimate]:
    """Answers for the other cards, by their keys."""
    if not message.get("cards"):
        return {}
    return {card.key: card for card in _card_reader().validate_python(message["cards"])}


def _targets(request: Mapping[str, Any]) -> dict[str, Target]:
    """The devices of a request, by the keys that `Answer.times` has."""
    target = Target.from_json(request["target"])
    requested = {str(card["key"]): Target.from_json(card["target"]) for card in request.get("cards", ())}
    return {**requested, target.device: target}


def _work(message: Mapping[str, Any]) -> StepWork | None:
    """The work of one step, which comes with one of a request's estimates."""
    if not message.get("work"):
        return None
    return StepWork.from_dict(message["work"])


def _ghost(message: Mapping[str, Any], estimate: Estimate, request: Mapping[str, Any]) -> Ghost | None:
    """The run's memory as a drawing, built here to keep that off the window's thread."""
    if not message.get("timeline"):
        return None
    # Imported late: only windows ask for it.
    from gpudash.memory.predicting.memory_timeline import MemoryTimeline
    from gpudash.session.predicting.ghosts import ghost_of

    return ghost_of(MemoryTimeline.from_json(message["timeline"]), estimate, Target.from_json(request["target"]))


@dataclass(frozen=True)
class Problem:
    """Why there is no prediction.

    Attributes:
        kind: `TOOK_TOO_LONG`, "crashed", "unavailable", or a kind of the child process.
        message: one sentence saying what was wrong.
        remedy: what to do about it; may be "".
    """

    kind: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Answer:
    """The state of one request.

    Attributes:
        id: number of the request; 0 for one that was not numbered.
        estimate: the estimate so far.
        problem: why it stopped, if it did.
        final: whether the answer is complete.
        ghost: the run's memory as a drawing, if requested and available.
        remedies: the same for changed runs, by the change's index among the estimate's alternatives.
        cards: results for the other cards, by their keys.
        times: predicted time of a step, by the device's name and the cards' keys, where it can be predicted.
        servers: for a model to be served, the result by the device's name and the cards' keys; there is no estimate
            then.
    """

    id: int = 0
    estimate: Estimate | None = None
    problem: Problem | None = None
    final: bool = False
    ghost: Ghost | None = None
    remedies: Mapping[int, Ghost] = field(default_factory=dict)
    cards: Mapping[str, CardEstimate] = field(default_factory=dict)
    times: Mapping[str, StepTime] = field(default_factory=dict)
    servers: Mapping[str, ServerOnCard] = field(default_factory=dict)


@dataclass
class _Request:
    id: int
    message: dict[str, Any]
    limit_s: float
    longest_s: float
    command: tuple[str, ...]


class _Deadline:
    """A limit on a process's processor time from now on, with a later limit by the clock for busy machines.

    Args:
        process: the process.
        limit_s: processor time in seconds.
        longest_s: limit by the clock, in seconds.

    Attributes:
        at: when to check it next, of `time.monotonic`.
    """

    def __init__(self, process: ChildProcess, limit_s: float, longest_s: float) -> None:
        now = time.monotonic()
        self._process = process
        self._processor_until_s = process.processor_s + limit_s
        self._at_most = now + longest_s
        self.at = now + min(limit_s, longest_s)

    @property
    def passed(self) -> bool:
        """Whether the process has used up its time; if not, `at` moves on."""
        now = time.monotonic()
        if now < self.at:
            return False
        lacking_s = self._processor_until_s - self._process.processor_s
        if lacking_s <= 0 or now >= self._at_most:
            return True
        self.at = min(self._at_most, now + max(lacking_s, LEAST_MORE_S))
        return False


@dataclass
class _Child:
    """The process and the deadlines of its next answers.

    Attributes:
        start_until: when it must be ready, of `time.monotonic`.
        request: the newest request that it was sent.
        limit: deadline of that request.
        leaving: deadline for leaving the request before; ``None`` once it has.
        answer: what is known of that request.
        rooms, work: what the times of its step were computed from.
    """

    process: ChildProcess
    command: tuple[str, ...]
    start_until: float
    ready: bool = False
    has_answered: bool = False
    torch: str = ""
    request: _Request | None = None
    limit: _Deadline | None = None
    leaving: _Deadline | None = None
    answer: Answer = field(default_factory=Answer)
    rooms: Mapping[str, float | None] = field(default_factory=dict)
    work: StepWork | None = None

    def take_times(self, request: Mapping[str, Any], estimate: Estimate) -> None:
        """Compute the times of a step: once, and again only where a larger batch turns out to fit or not."""
        if estimate.work is None:
            return
        from gpudash.session.predicting.step_times import times_on

        known = self.answer.times
        rooms = estimate.batch_rooms(self.answer.cards)
        targets = _targets(request)
        if known:
            # Everything else about a time is the same in every answer to a request.
            waiting = {key for key, time in known.items() if time.bound == "launches"}
            changed = {key for key in waiting if rooms.get(key) != self.rooms.get(key)}
            targets = {key: target for key, target in targets.items() if key in changed}
        self.answer = replace(self.answer, times={**known, **times_on(estimate.work, targets, rooms)})
        self.rooms = rooms

    def take_drawing(self, drawn: Ghost | None, estimate: Estimate) -> None:
        """Store the drawing that came with an estimate: of the run itself, or of the last change tried."""
        tried = len(estimate.alternatives)
        if drawn is not None and tried:
            self.answer = replace(self.answer, remedies={**self.answer.remedies, tried - 1: drawn})
        elif drawn is not None:
            self.answer = replace(self.answer, ghost=drawn)


class Estimator:
    """Sends requests to a child process; only the newest one counts. Any thread may call any method.

    Nothing is started before the first request. One thread owns the process; it ends with `close`.

    Args:
        command: the process, `COMMAND` by default. It writes ``{"ready": true}``, or ``{"ready": false, "problem"}``
            and ends. Then it reads requests, one a line, and writes answers with the request's ``id``, an ``estimate``
            or an ``error``, and ``final``. It should leave a request when a newer one arrives.
        start_limit_s: time limit for it to become ready, in seconds.

    Attributes:
        on_answer: called after each answer to the newest request, on the predicting thread; it must not wait.
    """

    def __init__(self, command: Sequence[str] | None = None, start_limit_s: float = TORCH_IMPORT_S) -> None:
        self._command = tuple(command or COMMAND)
        self._start_limit_s = start_limit_s
        # Not under the lock (the GIL is enough): answers are frozen, so that readers only see whole ones.
        self._changed = threading.Condition()
        self._newest_id = 0
        self._left_id = 0
        self._wanted: _Request | None = None
        self._answer: Answer | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        self._child: _Child | None = None
        self.on_answer: Callable[[], object] = lambda: None

    def ask(
        self,
        message: Mapping[str, Any],
        time_limit_s: float = TIME_LIMIT_S,
        command: Sequence[str] | None = None,
        *,
        longest_s: float | None = None,
    ) -> int:
        """Ask for a prediction, cancelling the one in progress; returns the request's number.

        Args:
            message: the request.
            time_limit_s: limit on processor time, in seconds.
            command: the process to use, if not the default one.
            longest_s: limit on time by the clock, in seconds; by default `LONGEST_RATIO` times the other.

        Raises:
            RuntimeError: if the estimator is closed.
        """
        with self._changed:
            if self._closing:
                raise RuntimeError("The estimator is closed.")
            self._newest_id += 1
            by = tuple(command or self._command)
            if longest_s is None:
                longest = LONGEST_RATIO * time_limit_s
            else:
                longest = longest_s
            self._wanted = _Request(self._newest_id, {**message, "id": self._newest_id}, time_limit_s, longest, by)
            self._answer = None
            if self._thread is None:
                self._waker = Waker()
                # Started with the first request: a session that only watches needs neither thread nor process.
                self._thread = started("gpudash-estimator", self._work)
            self._rouse()
            return self._newest_id

    def leave(self) -> None:
        """Cancel the prediction in progress, as soon as the process can leave it; its answer so far stays.

        The process is then free for the next request, which would otherwise wait for the operation in progress.
        """
        with self._changed:
            self._left_id = self._newest_id
            self._rouse()

    def newest(self) -> Answer | None:
        """The latest answer to the newest request; ``None`` before the first."""
        return self._answer

    def wait(self, timeout_s: float) -> Answer | None:
        """Wait for the final answer to the newest request; returns the latest one, like `newest`."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None and self._answer.final, timeout_s)
            return self._answer

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the process and the thread.

        Returns:
            Whether the thread has ended; if not, it is a daemon and does not keep this process alive.
        """
        with self._changed:
            self._closing = True
            self._rouse()
        return joined(self._thread, timeout_s)

    def _rouse(self) -> None:
        if self._waker is not None:
            self._waker.rouse()

    def _work(self) -> None:
        """The thread that owns the process."""
        assert self._waker is not None
        try:
            while not self._closing:
                self._try_turn(self._waker)
        finally:
            self._end_child()
            self._waker.close()

    def _try_turn(self, waker: Waker) -> None:
        """Send requests, wait and read answers once. An error becomes the answer, so that the next request has a
        chance."""
        try:
            self._send_newest()
            due = self._due()
            # `ask` and `close` wake it too, and so does any output of the process.
            waker.wait(
                None if self._child is None else self._child.process,
                None if due is None else max(0.0, due - time.monotonic()),
            )
            self._listen()
            self._check_time()
        except Exception as error:
            logger.exception("a prediction failed")
            self._end_child()
            with self._changed:
                self._wanted, newest_id = None, self._newest_id
            problem = Problem("crashed", f"The prediction met an error ({type(error).__name__}: {error}).")
            self._report(Answer(newest_id, None, problem, final=True))

    def _send_newest(self) -> None:
        """Send the newest request to the process, if it is ready for it."""
        with self._changed:
            # Not removed yet: the request stays pending until a process is ready for it.
            request = self._wanted
            left = self._left_id
            self._left_id = 0
        self._send_leave(left)
        if request is None:
            return
        if self._child is not None and self._child.command != request.command:
            self._end_child()
        if self._child is None and not self._start_child(request):
            return
        child = self._child
        if child is None or not child.ready:
            return
        with self._changed:
            # A newer request has arrived: the next turn sends that.
            if self._wanted is not request:
                return
            self._wanted = None
        patience_s = FIRST_PATIENCE_S
        # A process's first answer takes longer, because of the imports.
        if child.has_answered:
            patience_s = PATIENCE_S
        # The process is still at an older request, which it leaves at its next chance; if it does not, it is
        # restarted.
        child.leaving = None
        if child.request is not None:
            child.leaving = _Deadline(child.process, patience_s, LONGEST_PATIENCE_RATIO * patience_s)
        child.answer = Answer(request.id)
        child.rooms = {}
        child.work = None
        child.request = request
        child.limit = _Deadline(child.process, request.limit_s, request.longest_s)
        child.process.send(request.message)

    def _send_leave(self, left: int) -> None:
        """Ask the process to leave a cancelled request; it confirms when it has."""
        child = self._child
        if child is not None and child.request is not None and child.request.id == left:
            child.process.send({"id": left, "leave": True})

    def _start_child(self, request: _Request | None = None) -> bool:
        if request is None:
            command = self._command
        else:
            command = request.command
        try:
            self._child = _Child(ChildProcess(command), command, time.monotonic() + self._start_limit_s)
        except OSError as error:
            self._child = None
            if request is not None:
                self._fail(request, Problem("unavailable", f"The process that predicts could not be started: {error}."))
            return False
        return True

    def _end_child(self) -> str:
        """End the process; returns how it ended, in words."""
        child, self._child = self._child, None
        if child is not None:
            return child.process.end()
        return ""

    def _due(self) -> float | None:
        child = self._child
        if child is None:
            return None
        if not child.ready:
            return child.start_until
        if child.request is None or child.limit is None:
            return None
        if child.leaving is None:
            return child.limit.at
        return min(child.limit.at, child.leaving.at)

    def _listen(self) -> None:
        """Read the process's messages."""
        child = self._child
        if child is None:
            return
        for message in child.process.read():
            if not child.ready:
                self._take_greeting(child, message)
            elif child.request is not None and message.get("id") == child.request.id:
                self._take_answer(child, child.request, message)
            # Answers to a cancelled request may still be in the pipe, and are dropped.
            elif message.get("final"):
                child.leaving = None
        # `_take_greeting` may have replaced this child by another one.
        if child is self._child and child.process.gone:
            self._lost(child)

    def _take_greeting(self, child: _Child, message: Mapping[str, Any]) -> None:
        child.ready = bool(message.get("ready"))
        child.torch = str(message.get("torch") or "")
        if child.ready:
            return
        self._end_child()
        request = self._take_wanted()
        if request is not None:
            problem = str(message.get("problem") or "Nothing can be predicted here.")
            self._fail(request, Problem("unavailable", problem, str(message.get("remedy") or "")))

    def _take_answer(self, child: _Child, request: _Request, message: Mapping[str, Any]) -> None:
        child.leaving = None
        child.has_answered = True
        final = bool(message.get("final"))
        if final:
            child.request = None
        if message.get("left"):
            return
        try:
            error = message.get("error")
            problem = None
            if error:
                problem = Problem(**error)
            if "servers" in message:
                servers = _server_reader().validate_python(message["servers"])
                self._report(Answer(request.id, final=final, servers={server.key: server for server in servers}))
                return
            if not error:
                # The estimate names the torch version it was made with: another Python may have another one.
                child.work = _work(message) or child.work
                read = _reader().validate_python(message.get("estimate"))
                estimate = replace(read, torch=child.torch, work=child.work)
                drawn = _ghost(message, estimate, request.message)
                child.answer = replace(child.answer, estimate=estimate, cards=_cards(message) or child.answer.cards)
                child.take_drawing(drawn, estimate)
                # A drawing does not wait for the times of a step on twenty cards.
                if drawn is not None:
                    self._report(child.answer)
                child.take_times(request.message, estimate)
        except (ValidationError, TypeError, KeyError, ValueError) as wrong:
            problem = Problem("crashed", f"The prediction could not be read ({type(wrong).__name__}).")
        if problem is not None:
            self._fail(request, problem)
        else:
            self._report(replace(child.answer, final=final))

    def _lost(self, child: _Child) -> None:
        """Handle the unexpected end of the process."""
        ending = self._end_child().rstrip(".")
        request = child.request or (None if child.ready else self._take_wanted())
        if request is not None:
            message = f"The process that predicts ended unexpectedly ({ending})."
            self._fail(request, Problem("crashed", message, "Ask again; it is restarted."))

    def _check_time(self) -> None:
        child = self._child
        if child is None:
            return
        if not child.ready:
            self._check_start(child)
            return
        request = child.request
        if request is None or child.limit is None:
            return
        # Past its own limit a request fails; past the time to leave another one it is sent again, to a new process.
        if child.limit.passed:
            message = f"Predicting took longer than {request.limit_s:g} s and was stopped."
            self._fail(request, Problem(TOOK_TOO_LONG, message, "Ask for a smaller run, or allow more time."))
        elif child.leaving is not None and child.leaving.passed:
            logger.info("process %s did not leave an older request, and is restarted", child.command[-1])
            with self._changed:
                # Unless there is a newer request by now.
                self._wanted = self._wanted or request
        else:
            return
        # It may be inside an operation that cannot be interrupted. Start another one now, so that the imports are done
        # before the next request.
        self._end_child()
        self._start_child()

    def _check_start(self, child: _Child) -> None:
        if time.monotonic() < child.start_until:
            return
        self._end_child()
        request = self._take_wanted()
        if request is not None:
            message = f"PyTorch did not load within {self._start_limit_s:.0f} s."
            self._fail(request, Problem(TOOK_TOO_LONG, message, "Try: python -c 'import torch'"))

    def _take_wanted(self) -> _Request | None:
        with self._changed:
            request, self._wanted = self._wanted, None
            return request

    def _fail(self, request: _Request, problem: Problem) -> None:
        """End a request with an error and the results so far."""
        with self._changed:
            if self._wanted is request:
                self._wanted = None
            known = self._answer
            # Results of another request do not apply.
            if known is None or known.id != request.id:
                known = Answer(request.id)
        self._report(replace(known, problem=problem, final=True))

    def _report(self, answer: Answer) -> None:
        """Publish an answer, unless there is a newer request."""
        with self._changed:
            if answer.id != self._newest_id:
                return
            self._answer = answer
            self._changed.notify_all()
        self.on_answer()
