"""What asking for a prediction has in common: its flags, the session that is asked, and the answer printed."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.budget import Budget, BudgetOptions
from gpudash.cli.terminal.card_options import CardOptions, CardTable
from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.output import (
    Exit,
    RequestError,
    RequestInterruptedError,
    leave,
    print_json,
    print_notice,
    refused,
    stderr,
    stdout,
)
from gpudash.cli.terminal.workload_flags import WorkloadOptions
from gpudash.devices.names import kind_of
from gpudash.system.garbage import without_collection
from gpudash.system.settings import load_settings

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Estimate
    from gpudash.session import Answer, Session

READY_TIMEOUT_S = 20.0
"""Longest wait for the machine's first readings; a hanging driver is given up sooner."""

POLL_S = 0.05
"""How soon Ctrl+C is noticed."""

Ask = Callable[["Session", str], int]


@Parameter(name="*")
@dataclass(kw_only=True)
class EstimateOptions(WorkloadOptions, BudgetOptions, CardOptions):
    """What belongs to the command rather than to the workload."""

    alternatives: bool = True
    """Look for the largest batch and for changes that would fit."""

    time_limit: Annotated[float, Parameter(validator=Number(gt=0))] = 60.0
    """Seconds of processor time after which predicting is given up; by the clock, after three times as many."""

    ask_cudnn: Annotated[bool, Parameter(negative="")] = False
    """Ask the cuDNN of the Python that runs the code what convolutions take, also where there is no NVIDIA driver, as
    is done where there is one. NVIDIA licenses cuDNN "for use in systems with NVIDIA GPUs"."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print the prediction as one JSON document."""


def draws_curve(options: EstimateOptions) -> bool:
    """Whether the answer is read where a curve can be drawn."""
    return not options.json and stdout().is_terminal


def execute(
    workload: str,
    ask: Ask,
    options: EstimateOptions,
    own_device: str | None = None,
    epoch_steps: int | None = None,
) -> int:
    """Predict, and print the prediction or why there is none; the exit code.

    Args:
        workload: its name.
        ask: asks the session.
        options: of the command.
        own_device: where the run takes place by its own fields, unless a device is given.
        epoch_steps: of an epoch by its own fields; ``None`` where there is none.

    Raises:
        RequestError: when the request was wrong or interrupted.
    """
    held_against = HeldAgainst(options.budget(), options.card_table(), options.epoch_steps or epoch_steps)
    answer, device, joined = predict(ask, options, own_device)
    return conclude(workload, answer, device, options, held_against, joined=joined)


@dataclass(frozen=True)
class HeldAgainst:
    """What a prediction is held against, read before it is made, so that a wrong flag costs no time.

    Attributes:
        budget: what it may come to.
        cards: that are asked about beside its own.
        epoch_steps: steps of an epoch; ``None`` where that is not known.
    """

    budget: Budget
    cards: CardTable
    epoch_steps: int | None = None


def conclude(
    workload: str, answer: "Answer", device: str, options: EstimateOptions, held_against: HeldAgainst, *, joined: bool
) -> int:
    """Print an answer; the exit code.

    Args:
        workload: its name.
        answer: of the session.
        device: that it is for.
        options: of the command.
        held_against: what it may come to, and the cards that are asked about.
        joined: whether every thread has ended.

    Raises:
        RequestError: when the request was wrong.
    """
    estimate, problem = answer.estimate, answer.problem
    if problem is not None and problem.kind == "request":
        # A wrong request is the caller's, whatever is known beside it: exit 2, not 1.
        wrong = RequestError(problem.message, problem.remedy)
        wrong.joined = joined
        raise wrong
    if estimate is None or estimate.peak_allocated_bytes is None:
        return leave(_print_failure(workload, device, answer, as_json=options.json), joined)
    # Where a prediction is there and a problem too, the alternatives ran out of time: the figures themselves stand.
    if problem is None:
        warnings = []
    else:
        warnings = [f"{problem.message} What would fit is known in part only."]
    # Judged before anything is printed: a baseline that lacks the workload is a wrong request, and prints no half
    # answer.
    try:
        judged = held_against.budget.judge(estimate)
    except RequestError as error:
        error.joined = joined
        raise
    time = answer.times.get(estimate.device)
    offers = held_against.cards.offers(answer.cards, answer.times, held_against.epoch_steps)
    if options.json:
        document = {**estimate.to_json(), "simulated": kind_of(device) == "sim", **judged.to_json()}
        document |= {"time": None if time is None else time.to_dict(), "epoch_steps": held_against.epoch_steps}
        document["cards"] = [offer.to_dict() for offer in offers]
        cap = None
        if options.memory_cap is not None:
            cap = options.memory_cap.allowed_bytes(estimate.capacity_bytes)
        print_json({**document, "memory_cap_bytes": cap, "warnings": warnings})
    else:
        from gpudash.cli.terminal.estimates.estimate_report import print_estimate
        from gpudash.cli.terminal.estimates.time_report import print_offers, print_time

        shown_cap = None
        if options.memory_cap is not None:
            shown_cap = str(options.memory_cap)
        print_estimate(estimate, shown_cap, answer.ghost)
        if time is not None:
            print_time(time, held_against.epoch_steps)
        if offers:
            print_offers(offers, held_against.cards.prices, by_epoch=held_against.epoch_steps is not None)
        judged.print_changes()
    for text in (*warnings, held_against.cards.remark, *judged.sentences):
        if text:
            print_notice(text)
    return leave(Exit.FAILED if judged.beyond else Exit.FINISHED, joined)


def predict(ask: Ask, options: EstimateOptions, own_device: str | None = None) -> "tuple[Answer, str, bool]":
    """The whole answer, the device it is for, and whether every thread could be joined.

    Raises:
        RequestError: when the device is not there, or the user interrupted.
    """
    session = session_of(options)
    failure: RequestError | None = None
    answer, device = None, options.device or ""
    with interruptible() as interruption:
        # Predicting has processes of its own; a worker for runs would only cost memory.
        session.start(worker=False)
        try:
            wait_until_ready(session, interruption)
            device = options.chosen_device(own_device) or session.default_device()
            ask(session, device)
            answer = _under_cap(_wait(session, interruption), session, device, options)
        except ValueError as error:
            failure = refused(error)
        except RequestError as error:
            failure = error
        finally:
            joined = session.close()
    if failure is not None:
        failure.joined = joined
        raise failure
    # Either an answer or a failure has come: the loop leaves by nothing else.
    assert answer is not None
    return answer, device, joined


def session_of(options: EstimateOptions) -> "Session":
    """A session by the user's settings, not yet started; what is wrong with these is printed.

    Raises:
        RequestError: when the simulated cards cannot be.
    """
    # The session's modules are many and none of their objects goes: the collector would pass over them in vain.
    with without_collection():
        from gpudash.session import Session

    simulation = options.simulation()
    settings, notices = load_settings()
    settings.ask_cudnn = settings.ask_cudnn or options.ask_cudnn
    for text in notices:
        print_notice(text)
    return Session(settings, notices=notices, simulation=simulation)


def wait_until_ready(session: "Session", interruption: Interruption) -> None:
    """Wait for the machine's first readings.

    Raises:
        RequestError: when they do not come, or the user interrupted.
    """
    waited = 0.0
    while not session.wait_ready(POLL_S):
        # Counted waits, of which each takes its time: nothing else is done in this thread.
        waited += POLL_S
        if interruption.requested:
            raise RequestInterruptedError("Interrupted before anything was predicted.")
        if waited > READY_TIMEOUT_S:
            raise RequestError("The machine's memory could not be read.", "Run gpudash doctor.")


def _wait(session: "Session", interruption: Interruption) -> "Answer":
    with stderr().status("Predicting…") if sys.stderr.isatty() else nullcontext():
        # Partial answers come as the alternatives are found; the command prints the whole alone.
        while (answer := session.estimates.wait(POLL_S)) is None or not answer.final:
            if interruption.requested:
                raise RequestInterruptedError("Interrupted; nothing was predicted in full.")
    return answer


def _under_cap(answer: "Answer", session: "Session", device: str, options: EstimateOptions) -> "Answer":
    """The answer with the ways out that a memory cap leaves."""
    # The estimator judges under the cap and knows nothing of raising it, which takes the room of the whole card.
    from gpudash.memory.explaining.remedies import with_raised_cap

    if options.memory_cap is None or answer.estimate is None or not options.alternatives:
        return answer
    uncapped = session.estimates.target(device)
    allowed = options.memory_cap.allowed_bytes(uncapped.capacity_bytes)
    return replace(answer, estimate=with_raised_cap(answer.estimate, allowed, uncapped.room_bytes))


def _print_failure(workload: str, device: str, answer: "Answer", *, as_json: bool) -> int:
    """Say why nothing was predicted."""
    if answer.problem is None:
        kind, message, remedy = _reason(answer.estimate)
    else:
        kind, message, remedy = _problem(answer)
    if as_json:
        about = {"workload": workload, "device": device, "simulated": kind_of(device) == "sim", "reason": message}
        error = {"kind": kind, "message": message, "remedy": remedy}
        # Also on failure the document is complete, so that a script reads one shape.
        print_json({"status": "failed", **about, "fits": None, "error": error})
    print_notice(f"{message} {remedy}".strip())
    return Exit.FAILED


def _problem(answer: "Answer") -> tuple[str, str, str]:
    problem = answer.problem
    assert problem is not None
    if problem.kind == "time_limit":
        remedy = "Ask for a smaller run, or raise --time-limit."
    else:
        remedy = problem.remedy
    return problem.kind, problem.message, remedy


def _reason(estimate: "Estimate | None") -> tuple[str, str, str]:
    return "not_predicted", (estimate.reason if estimate is not None else "") or "Nothing could be predicted.", ""
