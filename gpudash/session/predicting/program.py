"""Prediction of a user's unmodified program: ``gpudash estimate -- COMMAND``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.growth_rate import growth_rate
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import CardEstimate, CardRequest, Estimate, Target, fits, judge, judge_card
from gpudash.memory.predicting.fit import Peaks, peaks
from gpudash.memory.predicting.rank_estimates import of_halves, ranks_on
from gpudash.memory.snapshot.causes.batch_size import BatchSize
from gpudash.session.predicting.attempt import (
    HELD_BY_PYTHON,
    HELD_BY_SYSTEM,
    Attempt,
    FollowedRun,
    Launch,
    NotFollowed,
    script_name,
)
from gpudash.session.predicting.bisecting import callable_program
from gpudash.session.predicting.estimator import Answer
from gpudash.session.predicting.largest_batch import (
    BatchSearch,
    ScriptFiles,
    SizedRun,
    batches_of,
    changes_training,
    edited,
    files_of,
    growing_bytes,
    note_of,
)
from gpudash.session.predicting.step_times import times_on
from gpudash.session.watching.request import WatchRequest, check_request
from gpudash.telemetry.explanation import RunChange
from gpudash.workloads.predicting.card_fits import BORROWED_RATIO
from gpudash.workloads.predicting.device_fit import as_alternative, unchanged

logger = logging.getLogger(__name__)

WITH_NUMBERS_RATIO = 2.0
"""Host memory required for a run with numbers, as a multiple of what it holds on the GPU; it needs at least 1."""

EACH = "each rank of the program"
EACH_CARD = "each GPU of the program"

HELD = {
    HELD_BY_SYSTEM: "what it wrote was held back by overlays, whichever code wrote it",
    HELD_BY_PYTHON: "what it wrote through Python was held back, and what other code wrote was not: this system allows "
    "no user namespaces, or no overlays",
}
"""What held back a program's writes, in words."""


HELD_OUTPUT = (
    "What {name} printed is held back: it ran without numbers, so its losses were not computed. --show-output shows it."
)
LAST_OUTPUT = "The last that {name} printed, without numbers, so that losses in it were not computed:"


SEARCHING = "The largest batch of {name} that fits is looked for ({place}), with up to three more runs."


@dataclass(frozen=True)
class ProgramQuestion:
    """A request to predict a program.

    Attributes:
        command: program and arguments.
        target: the first card, which it should fit.
        others: further cards, for its other ranks.
        steps: how many optimizer steps are followed.
        time_limit_s: processor time for it and its children, in seconds; by the clock three times as many.
        lets_write: whether it may write files.
        alternatives: whether to look for changes with which it would fit.
        folder, environment, is_quiet, holds_output: as in `Launch`.
        cards: further cards to check, for a program on one card.
        draws: whether the answer should include `Answer.ghost`.
        script: file in which its batch is looked for; by default the command's script.
    """

    command: Sequence[str]
    target: Target
    others: Sequence[Target] = ()
    steps: int = 3
    time_limit_s: float = 60.0
    lets_write: bool = False
    alternatives: bool = True
    folder: Path | None = None
    environment: Mapping[str, str] | None = None
    is_quiet: bool = False
    holds_output: bool = False
    cards: Sequence[CardRequest] = ()
    draws: bool = False
    script: str = ""


def predict_program(
    question: ProgramQuestion, interrupted: Callable[[], bool], notice: Callable[[str], None]
) -> Answer:
    """Run a program until its needs are known, and end it.

    Args:
        question: the program.
        interrupted: whether the user has cancelled; ends the program.
        notice: callback for progress messages, each a sentence.

    Raises:
        ValueError: one sentence, if it cannot be started.
        KeyboardInterrupt: if ``interrupted``.
    """
    began = time.perf_counter()
    found = follow_program(question, interrupted, notice)
    if isinstance(found, NotFollowed):
        return Answer(problem=found.problem)
    answer = judge_program(question, found, question.target.architecture)
    answer = with_largest_batch(question, found, answer, interrupted, notice)
    assert answer.estimate is not None
    return replace(answer, estimate=replace(answer.estimate, seconds=time.perf_counter() - began))


def follow_program(
    question: ProgramQuestion, interrupted: Callable[[], bool], notice: Callable[[str], None]
) -> FollowedRun | NotFollowed:
    """Run a program until its memory requests are known, and end it; otherwise as `predict_program`."""
    check_request(WatchRequest(command=question.command, folder=question.folder))
    check_options(question.command)
    launch = _launch(question)
    attempt = Attempt(launch, "unknown")
    found = attempt.run(interrupted)
    if isinstance(found, NotFollowed) and found.because_of_numbers:
        computes = found.peak_bytes * WITH_NUMBERS_RATIO <= int(psutil.virtual_memory().available)
        how = "and goes on by guesses, since it is too large for this computer"
        if computes:
            how = "with numbers, which takes longer"
        notice(f"{found.problem.message} The program is started again, {how}.")
        attempt = Attempt(launch, "computed" if computes else "guessed")
        found = attempt.run(interrupted)
    if not attempt.held_output:
        return found
    name = script_name(question.command)
    if isinstance(found, FollowedRun):
        notice(HELD_OUTPUT.format(name=name))
        return found
    if found.problem.kind == "unavailable":
        return found  # a sentence tells it, and what was printed would only tell it again
    notice(LAST_OUTPUT.format(name=name))
    for line in attempt.last_lines():
        notice(line)
    return found


def _launch(question: ProgramQuestion) -> Launch:
    return Launch(
        question.command,
        (question.target, *question.others),
        steps=question.steps,
        time_limit_s=question.time_limit_s,
        lets_write=question.lets_write,
        folder=question.folder,
        environment=question.environment,
        is_quiet=question.is_quiet,
        holds_output=question.holds_output,
    )


def check_options(command: Sequence[str]) -> None:
    """Check that Python will load the predicting code: without it the program would run for real.

    Raises:
        ValueError: one sentence, if it will not.
    """
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--") or word[1] in "cmWX":
            return
        if ignoring := set(word[1:]) & set("IES"):
            flag = f"-{min(ignoring)}"
            raise ValueError(f"With {flag} Python does not load what predicts the program; leave {flag} out.")


def judge_program(question: ProgramQuestion, found: FollowedRun, followed_on: Architecture) -> Answer:
    """What the program needs, by the memory requests of its processes.

    Args:
        question: the cards it should fit.
        found: the requests.
        followed_on: architecture of the card on which they were recorded; on another one, scratch memory differs.
    """
    name = script_name(question.command)
    ranked = sorted(found.answers, key=lambda answer: answer["rank"] or 0)
    judged = []
    followed = _followed_cards(question, found, followed_on)
    for answer, card, place, trace in followed:
        one = judge(trace, place, name)
        if question.alternatives and place.room_bytes is not None and not one.has_room:
            one = replace(one, alternatives=tuple(unchanged(partial(_same, trace), place, one, ())))
        one = replace(one, by_line=dict(card["lines"]), assumptions=tuple(answer["assumptions"]), work=trace.work)
        judged.append(replace(one, keeps=_keeps(card["kept"], trace.followed)))
    what = EACH_CARD
    if len(ranked) > 1:
        what = EACH
    if len(judged) == 1:
        estimate = judged[0]
    else:
        estimate = of_halves(judged, what)
    assumptions = tuple(dict.fromkeys(said for answer in ranked for said in answer["assumptions"]))
    method = estimate.method
    if found.numbers == "computed":
        method = method.replace("dry run on sizes alone", "run with numbers on a simulated GPU")
    first = ranked[0]
    remark = "; ".join(filter(None, (str(first["remark"]), HELD.get(found.held_by))))
    estimate = replace(estimate, assumptions=assumptions, method=method, torch=str(first["torch"]), remark=remark)
    ghost = None
    if question.draws:
        # Imported late: only windows ask for it.
        from gpudash.memory.predicting.memory_timeline import timeline_of
        from gpudash.session.predicting.ghosts import ghost_of

        fullest = max(range(len(judged)), key=lambda place: judged[place].needed_bytes or 0)
        _answer, _card, place, trace = followed[fullest]
        ghost = ghost_of(timeline_of(trace, place, judged[fullest]), judged[fullest], place)
    on_cards: Mapping[str, CardEstimate] = {}
    if len(judged) == 1:
        on_cards = _on_cards(question, followed[0].trace, followed_on)
    requested = {card.key: card.target for card in question.cards}
    requested[estimate.device] = question.target
    times = times_on(estimate.work, requested, estimate.batch_rooms(on_cards))
    return Answer(estimate=estimate, ghost=ghost, cards=on_cards, times=times)


class _FollowedCard(NamedTuple):
    """A card of the program: the answer of its process, its own part of it, the card as a target, the requests."""

    answer: Mapping[str, Any]
    card: Mapping[str, Any]
    place: Target
    trace: Trace


def _followed_cards(
    question: ProgramQuestion, found: FollowedRun, followed_on: Architecture
) -> Sequence[_FollowedCard]:
    """The cards of the program, by rank."""
    targets = [_as_known(target, followed_on) for target in (question.target, *question.others)]
    ranked = sorted(found.answers, key=lambda answer: answer["rank"] or 0)
    cards = [(answer, card) for answer in ranked for card in answer["cards"]]
    places = [_card(targets, int(card["index"])) for _answer, card in cards]
    if len(ranked) > 1:
        places = list(ranks_on(places))
    return [
        _FollowedCard(answer, card, place, Trace.from_json(card["trace"]))
        for (answer, card), place in zip(cards, places, strict=True)
    ]


def with_largest_batch(
    question: ProgramQuestion,
    followed: FollowedRun,
    answer: Answer,
    interrupted: Callable[[], bool],
    notice: Callable[[str], None],
) -> Answer:
    """``answer`` with the largest batch that fits, where the program does not fit and its source shows the batch.

    The search begins no run after the question's time limit, and ends if ``interrupted``; the answer then stays as it
    is.
    """
    estimate = answer.estimate
    if not question.alternatives or estimate is None or estimate.fits is True or estimate.spare_bytes is None:
        return answer
    trials = _BatchTrials(question, followed, answer, interrupted)
    files = files_of(question.command, question.folder, question.script)
    try:
        for batch in batches_of(files, estimate.work):
            if not _is_changed_since(followed.began_s, batch):
                notice(SEARCHING.format(name=script_name(question.command), place=batch.place))
                search = BatchSearch(
                    trials.whole(batch.value), partial(trials.tried, batch), trials.passes, batch.is_named
                )
                if search.run():
                    return trials.answered(search, batch, files)
    except KeyboardInterrupt:
        logger.info("the search for the largest batch was stopped")
    return answer


def with_batch_of_callable(question: ProgramQuestion, estimate: Estimate, interrupted: Callable[[], bool]) -> Estimate:
    """``estimate`` of a user's function with the largest batch that fits, found by running the function as a program.

    Args:
        question: the function as a program, see `callable_question`.
        estimate: what is known of it.
        interrupted: as in `with_largest_batch`.
    """
    if estimate.fits is True or estimate.spare_bytes is None:
        return estimate
    if not batches_of(files_of(question.command, question.folder, question.script), estimate.work):
        return estimate
    try:
        answer = predict_program(question, interrupted, logger.info)
    except (KeyboardInterrupt, ValueError) as error:
        logger.info("no batch of %s was tried (%s)", estimate.workload, error)
        return estimate
    found = answer.estimate
    # As a program it may take another way.
    if found is None or found.peak_allocated_bytes != estimate.peak_allocated_bytes:
        return estimate
    ways = tuple(way for way in found.alternatives if way.patch)
    return replace(estimate, largest_batch_size=found.largest_batch_size, alternatives=(*ways, *estimate.alternatives))


def callable_question(python: str, name: str, steps: int, target: Target, time_limit_s: float) -> ProgramQuestion:
    """The steps of a user's function as a program.

    Args:
        python: the Python that runs it.
        name: ``package.module:function`` or ``folder/file.py:function``.
        steps, target, time_limit_s: as in `ProgramQuestion`.
    """
    module = name.rpartition(":")[0]
    script = module
    if not module.endswith(".py"):
        script = f"{module.replace('.', '/')}.py"
    command = callable_command(python, name, steps)
    return ProgramQuestion(command, target, steps=steps, time_limit_s=time_limit_s, is_quiet=True, script=script)


def callable_command(python: str, name: str, steps: int) -> tuple[str, ...]:
    """The command that runs the steps of a user's function."""
    return (python, str(callable_program.__file__), name, str(steps))


def _is_changed_since(time_s: float, batch: BatchSize) -> bool:
    """Whether the file with the batch is another than the program ran with."""
    if batch.file is None:
        return False
    try:
        return Path(batch.file.file).stat().st_mtime > time_s
    except OSError:
        return True


class _BatchTrials:
    """Dry runs of a program with other batches.

    Args:
        question, followed, answer, interrupted: the program as it is, see `with_largest_batch`.
    """

    def __init__(
        self,
        question: ProgramQuestion,
        followed: FollowedRun,
        answer: Answer,
        interrupted: Callable[[], bool],
    ) -> None:
        self._question = replace(question, alternatives=False, cards=())
        self._followed = followed
        self._answer = answer
        self._interrupted = interrupted
        self._architecture = question.target.architecture
        self._folder = str((question.folder or Path.cwd()).absolute())
        self._began_s = time.monotonic()
        self._changes: dict[int, RunChange] = {}
        self._found: dict[int, Answer] = {}
        self._places: Sequence[Target] = ()

    def whole(self, size: int) -> SizedRun:
        """The program as it is, with a batch of this size."""
        cards = _followed_cards(self._question, self._followed, self._architecture)
        self._places = [card.place for card in cards]
        assert self._answer.estimate is not None
        return _sized(size, self._answer.estimate, [card.trace for card in cards])

    def tried(self, batch: BatchSize, size: int) -> SizedRun | None:
        """A dry run with another batch; ``None`` if it fails, or there is no time for it.

        Raises:
            KeyboardInterrupt: if interrupted.
        """
        change = edited(batch, size, self._folder)
        if change is None or time.monotonic() - self._began_s > self._question.time_limit_s:
            return None
        # An edit has to be undone, whatever the program may write.
        launch = replace(_launch(self._question), lets_write=False, is_quiet=True, holds_output=False)
        launch = replace(launch, command=change.command or launch.command, edit=change.patch)
        try:
            found = Attempt(launch, self._followed.numbers).run(self._interrupted)
        except ValueError as error:
            logger.info("no batch of %d was tried: %s", size, error)
            return None
        if isinstance(found, NotFollowed):
            logger.info("with a batch of %d: %s", size, found.problem.message)
            return None
        self._changes[size] = change
        self._found[size] = judge_program(self._question, found, self._architecture)
        estimate = self._found[size].estimate
        assert estimate is not None
        cards = _followed_cards(self._question, found, self._architecture)
        return _sized(size, estimate, [card.trace for card in cards])

    def passes(self, traces: Sequence[Trace]) -> bool:
        """Whether requests, for each card, succeed there."""
        return all(fits(trace, place) is True for trace, place in zip(traces, self._places, strict=False))

    def answered(self, search: BatchSearch, batch: BatchSize, files: ScriptFiles) -> Answer:
        """The answer with the result of a search."""
        answer = self._answer
        assert answer.estimate is not None
        if search.best is None:
            return replace(answer, estimate=replace(answer.estimate, largest_batch_size=0))
        size = search.best.size
        change, found = self._changes[size], self._found[size]
        assert found.estimate is not None
        way = as_alternative(
            change.change,
            found.estimate,
            patch=change.patch,
            command=change.command,
            changes_training=changes_training(search.best, batch),
            note=note_of(search, batch, files),
        )
        largest = None
        if not answer.estimate.ranks:
            largest = search.largest
        estimate = replace(
            answer.estimate, largest_batch_size=largest, alternatives=(way, *answer.estimate.alternatives)
        )
        remedies = {} if found.ghost is None else {0: found.ghost}
        return replace(answer, estimate=estimate, remedies=remedies)


def _sized(size: int, estimate: Estimate, traces: Sequence[Trace]) -> SizedRun:
    more = estimate.margin_bytes + estimate.convolutions.unknown_bytes
    short_bytes = more - (estimate.spare_bytes or 0)
    peak_bytes = estimate.peak_allocated_bytes or 0
    growing = growing_bytes(estimate.by_category) + estimate.convolutions.unknown_bytes
    return SizedRun(size, short_bytes, estimate.fits is True, peak_bytes, traces, growing)


LEAST_KEPT = 4096
"""Smallest growth a step, in bytes, for which a line is blamed: a scalar loss in a list is 512."""


def _keeps(kept: Sequence[tuple[str, Mapping[str, int]]], steps: int) -> dict[str, float]:
    """Bytes that each line keeps from every step, most first.

    The first step's are no growth (the optimizer's state, say); those of the last step may still be freed.

    Args:
        kept: lines with the bytes of each step that were still allocated after the last one.
        steps: number of steps taken.
    """
    found = {}
    for line, sizes in kept:
        of_steps = {int(step): size for step, size in sizes.items() if 1 < int(step) < steps}
        rate = growth_rate(of_steps, steps)
        if line and rate is not None and rate.bytes_per_step >= LEAST_KEPT:
            found[line] = rate.bytes_per_step
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _on_cards(question: ProgramQuestion, trace: Trace, followed_on: Architecture) -> dict[str, CardEstimate]:
    """What a program that was followed on one card needs on others, assuming the same requests."""
    found = {}
    spacious: dict[str, Peaks] = {}
    for card in question.cards:
        if card.target.device == "cpu":
            continue
        target = _as_known(card.target, followed_on)
        settings = repr(target.settings)
        if settings not in spacious:
            spacious[settings] = peaks(trace, target.settings)
        judged = judge_card(trace, replace(card, target=target), spacious[settings])
        found[card.key] = replace(judged, borrowed=target is not card.target)
    return found


def _as_known(target: Target, followed_on: Architecture) -> Target:
    """The card with the added error of using another card's requests."""
    if target.architecture == followed_on:
        return target
    return replace(target, margin_ratio=max(target.margin_ratio, BORROWED_RATIO))


def _same(trace: Trace, _where: Target) -> Trace:
    """The requests of a program on any card: it was not run on another."""
    return trace


def _card(targets: Sequence[Target], index: int) -> Target:
    if index < len(targets):
        return targets[index]
    kind = targets[-1].device.partition(":")[0]
    return replace(targets[-1], device=f"{kind}:{index}")
