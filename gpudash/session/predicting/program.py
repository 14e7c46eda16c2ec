"""A user's program, predicted as it is: ``gpudash estimate -- COMMAND``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.estimate import Estimate, Target, judge
from gpudash.memory.predicting.rank_estimates import of_halves, ranks_on
from gpudash.session.predicting.attempt import (
    HELD_BY_PYTHON,
    HELD_BY_SYSTEM,
    Attempt,
    FollowedRun,
    Launch,
    NotFollowed,
    script_name,
)
from gpudash.session.predicting.estimator import Problem
from gpudash.session.watching.request import WatchRequest, check_request
from gpudash.workloads.predicting.device_fit import unchanged

WITH_NUMBERS_RATIO = 2.0
"""A run with numbers takes at least what it holds on the GPU of this computer's memory; so much more is asked for."""

EACH = "each rank of the program"
EACH_CARD = "each GPU of the program"

HELD = {
    HELD_BY_SYSTEM: "what it wrote was held back by overlays, whichever code wrote it",
    HELD_BY_PYTHON: "what it wrote through Python was held back, and what other code wrote was not: this system allows "
    "no user namespaces, or no overlays",
}
"""In words, what held back what a program wrote."""


@dataclass(frozen=True)
class ProgramQuestion:
    """What is asked of a program.

    Attributes:
        command: program and arguments.
        target: where it is to fit: the first card.
        others: further cards, those that its ranks have.
        steps: of its optimizer that are followed.
        time_limit_s: processor time that it has, with what it starts, in seconds; by the clock three times as many.
        lets_write: whether it may write files.
        alternatives: whether to look for what would let it fit as it is.
    """

    command: Sequence[str]
    target: Target
    others: Sequence[Target] = ()
    steps: int = 3
    time_limit_s: float = 60.0
    lets_write: bool = False
    alternatives: bool = True


@dataclass(frozen=True)
class ProgramAnswer:
    """What came of a question: an estimate, or why there is none."""

    estimate: Estimate | None = None
    problem: Problem | None = None


def predict_program(
    question: ProgramQuestion, interrupted: Callable[[], bool], notice: Callable[[str], None]
) -> ProgramAnswer:
    """Run a program until it can be said what it takes, and end it.

    Args:
        question: the program.
        interrupted: whether the user wants no answer any more; ends the program.
        notice: is given, in a sentence, what the user should know while it goes on.

    Raises:
        ValueError: one sentence, when it cannot be started.
        KeyboardInterrupt: when ``interrupted``.
    """
    check_request(WatchRequest(command=question.command))
    check_options(question.command)
    began = time.perf_counter()
    launch = Launch(
        question.command,
        (question.target, *question.others),
        steps=question.steps,
        time_limit_s=question.time_limit_s,
        lets_write=question.lets_write,
    )
    found = Attempt(launch, "unknown").run(interrupted)
    if isinstance(found, NotFollowed) and found.because_of_numbers:
        computes = found.peak_bytes * WITH_NUMBERS_RATIO <= int(psutil.virtual_memory().available)
        how = "and goes on by guesses, since it is too large for this computer"
        if computes:
            how = "with numbers, which takes longer"
        notice(f"{found.problem.message} The program is started again, {how}.")
        found = Attempt(launch, "computed" if computes else "guessed").run(interrupted)
    if isinstance(found, NotFollowed):
        return ProgramAnswer(problem=found.problem)
    estimate = _judged(question, found)
    return ProgramAnswer(replace(estimate, seconds=time.perf_counter() - began))


def check_options(command: Sequence[str]) -> None:
    """Make sure that Python loads what predicts: without it the program would run as ever.

    Raises:
        ValueError: one sentence, when it does not.
    """
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--") or word[1] in "cmWX":
            return
        if ignoring := set(word[1:]) & set("IES"):
            flag = f"-{min(ignoring)}"
            raise ValueError(f"With {flag} Python does not load what predicts the program; leave {flag} out.")


def _judged(question: ProgramQuestion, found: FollowedRun) -> Estimate:
    """What the program comes to, by what its processes asked of their cards."""
    targets = [question.target, *question.others]
    name = script_name(question.command)
    ranked = sorted(found.answers, key=lambda answer: answer["rank"] or 0)
    cards = [(answer, card) for answer in ranked for card in answer["cards"]]
    places = [_card(targets, int(card["index"])) for _answer, card in cards]
    if len(ranked) > 1:
        places = list(ranks_on(places))
    judged = []
    for (answer, card), place in zip(cards, places, strict=True):
        trace = Trace.from_json(card["trace"])
        one = judge(trace, place, name)
        if question.alternatives and place.room_bytes is not None and not one.has_room:
            one = replace(one, alternatives=tuple(unchanged(partial(_same, trace), place, one, ())))
        judged.append(replace(one, by_line=dict(card["lines"]), assumptions=tuple(answer["assumptions"])))
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
    return replace(estimate, assumptions=assumptions, method=method, torch=str(first["torch"]), remark=remark)


def _same(trace: Trace, _where: Target) -> Trace:
    """What a program asks of any card: it was not run on another."""
    return trace


def _card(targets: Sequence[Target], index: int) -> Target:
    if index < len(targets):
        return targets[index]
    kind = targets[-1].device.partition(":")[0]
    return replace(targets[-1], device=f"{kind}:{index}")
