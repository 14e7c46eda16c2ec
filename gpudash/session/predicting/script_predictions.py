"""Predicts the user's script before it runs, on request: one at a time, on a thread of its own.

A script's memory requests are cached, so that another card needs no second run.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudash.devices.names import SimulatedCard
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.attempt import FollowedRun, NotFollowed, script_name
from gpudash.session.predicting.estimates import Estimates
from gpudash.session.predicting.estimator import Answer, Problem
from gpudash.session.predicting.program import (
    ProgramQuestion,
    follow_program,
    judge_program,
    with_largest_batch,
)
from gpudash.session.watching.request import WatchRequest, script_of
from gpudash.system.threads import joined, started

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 300.0
"""Processor time for a script and its children, in seconds; in the window the user can stop it at any moment."""

NO_CARD = "A script is predicted on a GPU, and there is none here; choose a card above."
BUSY = "A script is being predicted; stop that first."

_Version = tuple[object, ...]


@dataclass(frozen=True)
class PredictedScript:
    """A script whose prediction is in progress.

    Attributes:
        request: the script.
        name: file name of the script.
        began_s: start, on the clock of `time.monotonic`.
    """

    request: WatchRequest
    name: str
    began_s: float


@dataclass(frozen=True)
class _Followed:
    """A script's memory requests, and the architecture of the first card, which its scratch memory depends on."""

    run: FollowedRun
    architecture: Architecture


class ScriptPredictions:
    """Predicts scripts.

    Args:
        estimates: provides the cards and their free memory.

    Attributes:
        following: the script in progress; ``None`` if there is none.
    """

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count(1)
        self._followed: dict[_Version, _Followed] = {}
        self._answers: dict[_Version, Answer] = {}
        self.following: PredictedScript | None = None

    def begin(self, request: WatchRequest, cards: Sequence[SimulatedCard] = ()) -> None:
        """Predict a script, even if there is a prediction already; returns immediately.

        Args:
            request: the script, with the cards it should run on.
            cards: further cards to check, taken as empty.

        Raises:
            RuntimeError: one sentence, if another prediction is in progress.
            ValueError: one sentence, if there is no card to predict for.
        """
        question = self._question(request, cards)
        if not self._start(request, lambda stop: self._follow(request, question, stop)):
            raise RuntimeError(BUSY)

    def request(self, request: WatchRequest, cards: Sequence[SimulatedCard] = ()) -> None:
        """Answer for other cards a script that has been predicted, from its cached requests; returns immediately.

        Does nothing if there is no prediction, or the file has changed since.
        """
        version = _version(request)
        followed = self._followed.get(version)
        if followed is None or (*version, *request.simulate) in self._answers:
            return
        try:
            question = self._question(request, cards)
        except ValueError:
            return
        self._start(request, lambda _stop: iter([judge_program(question, followed.run, followed.architecture)]))

    def stop(self) -> None:
        """Stop the prediction in progress; what it has found so far stays."""
        self._stop.set()

    def of(self, request: WatchRequest) -> Answer | None:
        """The prediction for a script, with its file as it is now, on these cards; ``None`` if there is none."""
        return self._answers.get((*_version(request), *request.simulate))

    def wait(self, timeout_s: float) -> bool:
        """Wait until no prediction is in progress; false on timeout."""
        return joined(self._thread, timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Stop predicting, for good; false if the thread has not ended in time."""
        self.stop()
        return self.wait(timeout_s)

    def _question(self, request: WatchRequest, cards: Sequence[SimulatedCard]) -> ProgramQuestion:
        targets = self._targets(request)
        return ProgramQuestion(
            request.command,
            targets[0],
            targets[1:],
            time_limit_s=TIME_LIMIT_S,
            folder=request.folder,
            environment={**os.environ, **request.environment},
            is_quiet=True,
            cards=self._estimates.card_requests("" if request.simulate else targets[0].device, cards),
            draws=True,
        )

    def _targets(self, request: WatchRequest) -> list[Target]:
        """The cards that the script finds: the simulated ones of the request, else this machine's GPU."""
        if request.simulate:
            return list(map(self._estimates.empty_target, request.simulate))
        try:
            return [self._estimates.target("cuda:0")]
        except ValueError:
            raise ValueError(NO_CARD) from None

    def _follow(self, request: WatchRequest, question: ProgramQuestion, stop: threading.Event) -> Iterator[Answer]:
        """The prediction, and then with the largest batch that fits, which takes further runs."""
        version = _version(request)  # before the start: the file may be edited meanwhile

        def log_notice(text: str) -> None:
            logger.info("%s", text)

        found = follow_program(question, stop.is_set, log_notice)
        if isinstance(found, NotFollowed):
            yield Answer(problem=found.problem)
            return
        architecture = question.target.architecture
        self._followed[version] = _Followed(found, architecture)
        answer = judge_program(question, found, architecture)
        yield answer
        yield with_largest_batch(question, found, answer, stop.is_set, log_notice)

    def _start(self, request: WatchRequest, answers: Callable[[threading.Event], Iterator[Answer]]) -> bool:
        """Start a thread that answers a script; false if one is busy."""
        with self._lock:
            if self._thread is not None:
                return False
            self._stop = threading.Event()
            self.following = PredictedScript(request, script_name(request.command), time.monotonic())
            key = (*_version(request), *request.simulate)
            self._thread = started("gpudash-script", self._work, key, answers, self._stop)
        return True

    def _work(
        self, key: _Version, answers: Callable[[threading.Event], Iterator[Answer]], stop: threading.Event
    ) -> None:
        last: Answer | None = None
        try:
            for found in answers(stop):
                last = found
                self._keep(key, found, final=False)
        except KeyboardInterrupt:
            logger.info("the prediction of a script was stopped")
        except ValueError as error:
            last = last or Answer(problem=Problem("command", str(error)))
        except Exception as error:
            logger.exception("a script could not be predicted")
            message = f"The script could not be predicted ({type(error).__name__})."
            last = last or Answer(problem=Problem("crashed", message, "Help > Log has the details."))
        if last is not None:
            self._keep(key, last, final=True)
        with self._lock:
            self._thread = self.following = None

    def _keep(self, key: _Version, found: Answer, *, final: bool) -> None:
        self._answers[key] = replace(found, id=next(self._numbers), final=final)


def _version(request: WatchRequest) -> _Version:
    """Key of an answer: the command with its folder and environment, and the state of its file."""
    script = script_of(list(request.command))
    state: tuple[object, ...] = ()
    if script is not None:
        try:
            stat = (request.folder or Path.cwd()).joinpath(script).stat()
            state = stat.st_mtime_ns, stat.st_size
        except OSError:
            pass  # deleted; the script will fail to start too
    return tuple(request.command), str(request.folder), tuple(sorted(request.environment.items())), state
