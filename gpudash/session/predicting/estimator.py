"""Predictions by a child process that stays warm: importing torch takes seconds, a prediction a fraction of one."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from gpudash.memory.predicting.estimate import CardEstimate, Estimate, Target
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.speed.work import StepWork
from gpudash.system.child_process import ChildProcess, Waker
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.system.threads import joined

if TYPE_CHECKING:
    from gpudash.drawing.ghost import Ghost
    from gpudash.speed.work import StepTime

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "gpudash.workloads.predicting.estimate_process")

OWN_CODE_COMMAND = (sys.executable, "-m", "gpudash.workloads.predicting.own_code_process")
"""The process that predicts a user's code; the user's Python is its argument."""

TIME_LIMIT_S = 60.0
"""Processor time that one prediction may take unless another limit is given, in seconds."""

LONGEST_RATIO = 3.0
"""Longest that a prediction may take by the clock, as a part of its limit: a busy machine has given it less by then."""

TOOK_TOO_LONG = "time_limit"
"""Kind of the problem that a prediction took too long."""

PATIENCE_S = 1.0
"""Processor time within which the process has to leave an older request for a newer one, else it is started anew."""

FIRST_PATIENCE_S = 5.0
"""The same where the older one is the first of its process, for which much is imported."""

LONGEST_PATIENCE_RATIO = 15.0
"""Longest that either may take by the clock: on a busy machine starting anew would take longer than waiting."""

LEAST_MORE_S = 0.05
"""Least that a prediction goes on when its processor time is not used up."""

CLOSE_TIMEOUT_S = 0.5


@functools.cache
def _reader() -> TypeAdapter[Estimate]:
    """What reads an estimate from a line of JSON; made once there is one, for that takes a while."""
    return TypeAdapter(Estimate)


@functools.cache
def _card_reader() -> TypeAdapter[list[CardEstimate]]:
    """As `_reader`, of the cards beside it."""
    return TypeAdapter(list[CardEstimate])


@functools.cache
def _server_reader() -> TypeAdapter[list[ServerOnCard]]:
    """As `_reader`, of servers."""
    return TypeAdapter(list[ServerOnCard])


def _cards(message: Mapping[str, Any]) -> Mapping[str, CardEstimate]:
    """What is known of other cards, by their keys."""
    if not message.get("cards"):
        return {}
    return {card.key: card for card in _card_reader().validate_python(message["cards"])}


def _targets(request: Mapping[str, Any]) -> dict[str, Target]:
    """The devices of a request, by the keys of `Answer.times`."""
    target = Target.from_json(request["target"])
    requested = {str(card["key"]): Target.from_json(card["target"]) for card in request.get("cards", ())}
    return {**requested, target.device: target}


def _work(message: Mapping[str, Any]) -> StepWork | None:
    """What one step does, which comes with one of the estimates of a request."""
    if not message.get("work"):
        return None
    return StepWork.from_dict(message["work"])


def _ghost(message: Mapping[str, Any], estimate: Estimate, request: Mapping[str, Any]) -> Ghost | None:
    """The run's memory as a drawing, made here and not by the window's thread."""
    if not message.get("timeline"):
        return None
    # Only windows ask for it.
    from gpudash.memory.predicting.memory_timeline import MemoryTimeline
    from gpudash.session.predicting.ghosts import ghost_of

    return ghost_of(MemoryTimeline.from_json(message["timeline"]), estimate, Target.from_json(request["target"]))


@dataclass(frozen=True)
class Problem:
    """Why a prediction was not made.

    Attributes:
        kind: `TOOK_TOO_LONG`, "crashed", "unavailable", or what the process calls it.
        message: one sentence saying what was wrong.
        remedy: what to do about it; may be empty.
    """

    kind: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Answer:
    """What has been found out about one request.

    Attributes:
        id: of the request.
        estimate: as far as it has come.
        problem: why it has come no further.
        final: whether nothing more will come.
        ghost: the run's memory as a drawing, where that was asked for and could be told.
        remedies: the same of the run with a change, by the change's place among the estimate's alternatives.
        cards: what is known of the cards that were asked about beside it, by their keys.
        times: how long a step is predicted to take, by the name of the device in question and by the cards' keys; of
            those of which that can be said.
        servers: of a model that is to be served, what that comes to, by the name of the device in question and by the
            cards' keys; there is no estimate then.
    """

    id: int
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
    """A limit on what a process works from now on; a busy machine gives it the time late, up to a limit by the clock.

    Args:
        process: that works.
        limit_s: of its processor time.
        longest_s: of the clock's.

    Attributes:
        at: when it is to be looked at next, of `time.monotonic`.
    """

    def __init__(self, process: ChildProcess, limit_s: float, longest_s: float) -> None:
        now = time.monotonic()
        self._process = process
        self._processor_until_s = process.processor_s + limit_s
        self._at_most = now + longest_s
        self.at = now + min(limit_s, longest_s)

    @property
    def passed(self) -> bool:
        """Whether the process has had its time; where it lacks some, `at` is later from now on."""
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
    """The process, and until when what is expected of it must have come.

    Attributes:
        start_until: when it must be ready, of `time.monotonic`.
        request: the newest that it was sent.
        limit: of that.
        leaving: of leaving the one before; ``None`` once it has.
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
    ghost: Ghost | None = None
    remedies: Mapping[int, Ghost] = field(default_factory=dict)
    cards: Mapping[str, CardEstimate] = field(default_factory=dict)
    times: Mapping[str, StepTime] = field(default_factory=dict)
    rooms: Mapping[str, float | None] = field(default_factory=dict)
    work: StepWork | None = None

    def take_times(self, request: Mapping[str, Any], estimate: Estimate) -> None:
        """Work out how long a step takes: once, and anew only where it matters that a larger batch fits or does not."""
        if estimate.work is None:
            return
        from gpudash.session.predicting.step_times import times_on

        rooms = estimate.batch_rooms(self.cards)
        targets = _targets(request)
        if self.times:
            # All else of a time is the same for every answer to a request.
            waiting = {key for key, time in self.times.items() if time.bound == "launches"}
            changed = {key for key in waiting if rooms.get(key) != self.rooms.get(key)}
            targets = {key: target for key, target in targets.items() if key in changed}
        self.times = {**self.times, **times_on(estimate.work, targets, rooms)}
        self.rooms = rooms

    def answer(self, request: _Request, estimate: Estimate | None, *, final: bool) -> Answer:
        """What is known of a request now."""
        return Answer(request.id, estimate, None, final, self.ghost, self.remedies, self.cards, self.times)

    def take_drawing(self, drawn: Ghost | None, estimate: Estimate) -> None:
        """Keep what came with an estimate: of the run itself, or of the last change that was tried."""
        tried = len(estimate.alternatives)
        if drawn is not None and tried:
            self.remedies = {**self.remedies, tried - 1: drawn}
        elif drawn is not None:
            self.ghost = drawn


class Estimator:
    """Asks a child process, of which only the newest request matters. Any thread may call any method.

    Nothing is started before the first request. One thread owns the process; it ends in `close`.

    Args:
        command: the process, `COMMAND` unless given. It writes ``{"ready": true}``, or ``{"ready": false, "problem"}``
            and ends; then it reads one request a line and writes answers with the request's ``id``, an ``estimate``
            or an ``error``, and ``final``. It should leave a request when a newer one arrives.
        start_limit_s: longest that it may take to become ready.
    """

    def __init__(self, command: Sequence[str] | None = None, start_limit_s: float = TORCH_IMPORT_S) -> None:
        self._command = tuple(command or COMMAND)
        self._start_limit_s = start_limit_s
        # Without the lock (GIL-protected): the reference of a frozen answer is replaced, and none is changed.
        self._changed = threading.Condition()
        self._newest_id = 0
        self._left_id = 0
        self._wanted: _Request | None = None
        self._answer: Answer | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None
        self._child: _Child | None = None

    def ask(
        self,
        message: Mapping[str, Any],
        time_limit_s: float = TIME_LIMIT_S,
        command: Sequence[str] | None = None,
        *,
        longest_s: float | None = None,
    ) -> int:
        """Ask for a prediction in place of the one that is being made, and return the request's number.

        Args:
            message: the request.
            time_limit_s: seconds of processor time after which predicting is given up.
            command: the process that is to make it, when it is another than usual.
            longest_s: seconds by the clock after which it is given up; `LONGEST_RATIO` of the limit unless given.

        Raises:
            RuntimeError: when the estimator is closed.
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
                # Made with the first request: who only watches has neither thread nor process.
                self._thread = threading.Thread(target=self._work, name="gpudash-estimator", daemon=True)
                self._thread.start()
            self._rouse()
            return self._newest_id

    def leave(self) -> None:
        """Give up what is being predicted, as soon as that can be left; what is known stays.

        The process is free then when the next request comes, which would wait for what it is in the midst of.
        """
        with self._changed:
            self._left_id = self._newest_id
            self._rouse()

    def newest(self) -> Answer | None:
        """What is known of the newest request; ``None`` before its first answer."""
        return self._answer

    def wait(self, timeout_s: float) -> Answer | None:
        """Wait until the newest request is answered in full; what is known then, as `newest`."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None and self._answer.final, timeout_s)
            return self._answer

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """End the process and the thread.

        Returns:
            Whether the thread is gone; one that is not is a daemon and does not keep the process.
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
        """Obey, wait and listen once; an error becomes the answer, because the next request is to have its chance."""
        try:
            self._obey()
            due = self._due()
            # Also woken by `ask` and `close`, and by whatever the process writes.
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

    def _obey(self) -> None:
        """Do what was asked for since the last time."""
        with self._changed:
            # Only looked at: the request stays wanted until there is a process that is ready for it.
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
            # A newer request came meanwhile: the next turn takes that.
            if self._wanted is not request:
                return
            self._wanted = None
        patience_s = FIRST_PATIENCE_S
        # The first answer of a process waits for imports that later ones have done.
        if child.has_answered:
            patience_s = PATIENCE_S
        # The process is still at an older request, which it leaves at its next chance; if it does not, it is started
        # anew.
        child.leaving = None
        if child.request is not None:
            child.leaving = _Deadline(child.process, patience_s, LONGEST_PATIENCE_RATIO * patience_s)
        child.ghost = None
        child.remedies = {}
        child.cards = {}
        child.times = {}
        child.rooms = {}
        child.work = None
        child.request = request
        child.limit = _Deadline(child.process, request.limit_s, request.longest_s)
        child.process.send(request.message)

    def _send_leave(self, left: int) -> None:
        """Let the process leave a request that is not wanted any more; it says when it has."""
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
        """End the process; how it ended, in words."""
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
        """Take what the process has written."""
        child = self._child
        if child is None:
            return
        for message in child.process.read():
            if not child.ready:
                self._take_greeting(child, message)
            elif child.request is not None and message.get("id") == child.request.id:
                self._take_answer(child, child.request, message)
            # Other answers to a request that was replaced are still in the pipe, and are dropped.
            elif message.get("final"):
                child.leaving = None
        # `_take_greeting` may have ended this child and another may stand in its place.
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
            estimate = None
            if "servers" in message:
                servers = _server_reader().validate_python(message["servers"])
                self._report(Answer(request.id, final=final, servers={server.key: server for server in servers}))
                return
            if not error:
                # The estimate says with which torch it was made: another Python may have another.
                child.work = _work(message) or child.work
                read = _reader().validate_python(message.get("estimate"))
                estimate = replace(read, torch=child.torch, work=child.work)
                drawn = _ghost(message, estimate, request.message)
                child.take_drawing(drawn, estimate)
                child.cards = _cards(message) or child.cards
                # A drawing does not wait for the times of a step on twenty cards.
                if drawn is not None:
                    self._report(child.answer(request, estimate, final=False))
                child.take_times(request.message, estimate)
        except (ValidationError, TypeError, KeyError, ValueError) as wrong:
            problem, estimate = Problem("crashed", f"The prediction could not be read ({type(wrong).__name__})."), None
        if problem is not None:
            self._fail(request, problem)
        else:
            self._report(child.answer(request, estimate, final=final))

    def _lost(self, child: _Child) -> None:
        """The process has ended without being asked to."""
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
        # Past its own time it is given up; past the time to leave another it is asked again of a new process.
        if child.limit.passed:
            message = f"Predicting took longer than {request.limit_s:g} s and was stopped."
            self._fail(request, Problem(TOOK_TOO_LONG, message, "Ask for a smaller run, or allow more time."))
        elif child.leaving is not None and child.leaving.passed:
            logger.info("process %s did not leave an older request, and is started anew", child.command[-1])
            with self._changed:
                # Unless something newer is wanted by now.
                self._wanted = self._wanted or request
        else:
            return
        # It may be in the midst of an operation that cannot be broken off. Another is started at once, so that the
        # imports are done before the next question.
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
        """End a request with what was known of it until now."""
        with self._changed:
            if self._wanted is request:
                self._wanted = None
            known = self._answer
            # What was known of another request says nothing of this one.
            if known is None or known.id != request.id:
                known = Answer(request.id)
        self._report(replace(known, problem=problem, final=True))

    def _report(self, answer: Answer) -> None:
        """Make an answer known, unless something newer was asked."""
        with self._changed:
            if answer.id == self._newest_id:
                self._answer = answer
                self._changed.notify_all()
