"""Common to all predictions: the flags, the session that predicts, and printing the result."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeVar

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
"""Seconds to wait for the machine's first readings; a hanging driver is given up sooner."""

POLL_S = 0.05
"""Seconds between checks for Ctrl+C."""

Ask = Callable[["Session", str], int]

T = TypeVar("T")


@Parameter(name="*")
@dataclass(kw_only=True)
class EstimateOptions(WorkloadOptions, BudgetOptions, CardOptions):
    """Flags that belong to the command rather than to the workload."""

    alternatives: bool = True
    """Search for the largest batch and for changes that would fit."""

    time_limit: Annotated[float, Parameter(validator=Number(gt=0))] = 60.0
    """Seconds of processor time after which the prediction is given up, or three times as much wall-clock time."""

    ask_cudnn: Annotated[bool, Parameter(negative="")] = False
    """Ask the cuDNN of the Python that runs the code how much memory convolutions need, even without an NVIDIA driver;
    with a driver this is always done. NVIDIA licenses cuDNN "for use in systems with NVIDIA GPUs"."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print the prediction as one JSON document."""


def draws_curve(options: EstimateOptions) -> bool:
    """Whether the output can show a curve."""
    return not options.json and stdout().is_terminal


def execute(
    workload: str,
    ask: Ask,
    options: EstimateOptions,
    own_device: str | None = None,
    epoch_steps: int | None = None,
    completed: "Callable[[Answer], Answer] | None" = None,
) -> int:
    """Predict, and print the prediction or why there is none; return the exit code.

    Args:
        workload: name of the workload.
        ask: requests the prediction from the session.
        options: options of the command.
        own_device: device named by the workload's fields, used unless the options name one.
        epoch_steps: steps of an epoch by the workload's fields; ``None`` if it has none.
        completed: adds to an answer what the session does not look for.

    Raises:
        RequestError: if the request was invalid or interrupted.
    """
    held_against = HeldAgainst(options.budget(), options.card_table(), options.epoch_steps or epoch_steps)
    answer, device, joined = predict(ask, options, own_device)
    if completed is not None:
        answer = completed(answer)
    return conclude(workload, answer, device, options, held_against, joined=joined)


@dataclass(frozen=True)
class HeldAgainst:
    """What a prediction is compared with; read before predicting, so that an invalid flag costs no time.

    Attributes:
        budget: limit for the prediction.
        cards: other cards to predict for.
        epoch_steps: steps of an epoch; ``None`` if unknown.
    """

    budget: Budget
    cards: CardTable
    epoch_steps: int | None = None


def conclude(
    workload: str, answer: "Answer", device: str, options: EstimateOptions, held_against: HeldAgainst, *, joined: bool
) -> int:
    """Print an answer; return the exit code.

    Args:
        workload: name of the workload.
        answer: answer of the session.
        device: device of the prediction.
        options: options of the command.
        held_against: the budget, and other cards.
        joined: whether every thread has ended.

    Raises:
        RequestError: if the request was invalid.
    """
    estimate, problem = answer.estimate, answer.problem
    if problem is not None and problem.kind == "request":
        # An invalid request is the caller's error, whatever else is known: exit 2, not 1.
        wrong = RequestError(problem.message, problem.remedy)
        wrong.joined = joined
        raise wrong
    if estimate is None or estimate.peak_allocated_bytes is None:
        return leave(_print_failure(workload, device, answer, as_json=options.json), joined)
    # A prediction with a problem means that the search for alternatives ran out of time; the figures hold.
    warnings = []
    if problem is not None:
        warnings = [f"{problem.message} What would fit is only partly known."]
    # Judge before printing: if the baseline lacks the workload, the request is invalid, and nothing is printed.
    try:
        judged = held_against.budget.judge(estimate)
    except RequestError as error:
        error.joined = joined
        raise
    time = answer.times.get(estimate.device)
    offers = held_against.cards.offers(answer.cards, answer.times, held_against.epoch_steps)
    cap = options.memory_cap
    if options.json:
        document = {**estimate.to_json(), "simulated": kind_of(device) == "sim", **judged.to_json()}
        document |= {"time": None if time is None else time.to_dict(), "epoch_steps": held_against.epoch_steps}
        document["cards"] = [offer.to_dict() for offer in offers]
        document["memory_cap_bytes"] = None if cap is None else cap.allowed_bytes(estimate.capacity_bytes)
        print_json({**document, "warnings": warnings})
    else:
        from gpudash.cli.terminal.estimates.estimate_report import print_estimate
        from gpudash.cli.terminal.estimates.time_report import print_offers, print_time

        print_estimate(estimate, None if cap is None else str(cap), answer.ghost)
        if time is not None:
            print_time(time, held_against.epoch_steps)
        if offers:
            print_offers(offers, held_against.cards.prices, by_epoch=held_against.epoch_steps is not None)
        judged.print_changes()
    for text in filter(None, (*warnings, held_against.cards.remark, *judged.sentences)):
        print_notice(text)
    return leave(Exit.FAILED if judged.beyond else Exit.FINISHED, joined)


def predict(ask: Ask, options: EstimateOptions, own_device: str | None = None) -> "tuple[Answer, str, bool]":
    """The complete answer, its device, and whether every thread could be joined.

    Raises:
        RequestError: if the device does not exist, or the user interrupted.
    """

    def answered(session: "Session", interruption: Interruption) -> "tuple[Answer, str]":
        device = options.chosen_device(own_device) or session.default_device()
        ask(session, device)
        return _under_cap(_wait(session, interruption), session, device, options), device

    with interruptible() as interruption:
        (answer, device), joined = in_session(options, interruption, answered)
    return answer, device, joined


def in_session(
    options: EstimateOptions, interruption: Interruption, call: "Callable[[Session, Interruption], T]"
) -> tuple[T, bool]:
    """The result of a call with a session that knows the machine, and whether every thread could be joined.

    Raises:
        RequestError: if the call refuses the request, or the user interrupted.
    """
    session = _session_of(options)
    failure: RequestError | None = None
    # Predictions have their own processes; a worker for runs would only cost memory.
    session.start(worker=False)
    try:
        _wait_until_ready(session, interruption)
        result = call(session, interruption)
    except ValueError as error:
        failure = refused(error)
    except RequestError as error:
        failure = error
    finally:
        joined = session.close()
    if failure is not None:
        failure.joined = joined
        raise failure
    return result, joined


def _session_of(options: EstimateOptions) -> "Session":
    """A session with the user's settings, not yet started; problems with the settings are printed.

    Raises:
        RequestError: if the cards cannot be simulated.
    """
    # Loading the session's many modules frees no objects, so collecting garbage would be wasted.
    with without_collection():
        from gpudash.session import Session

    simulation = options.simulation()
    settings, notices = load_settings()
    settings.ask_cudnn = settings.ask_cudnn or options.ask_cudnn
    for text in notices:
        print_notice(text)
    return Session(settings, notices=notices, simulation=simulation)


def _wait_until_ready(session: "Session", interruption: Interruption) -> None:
    """Wait for the machine's first readings.

    Raises:
        RequestError: if they do not arrive, or the user interrupted.
    """
    waited = 0.0
    while not session.wait_ready(POLL_S):
        # Counting waits is accurate enough here: this thread does nothing else.
        waited += POLL_S
        if interruption.requested:
            raise RequestInterruptedError("Interrupted before anything was predicted.")
        if waited > READY_TIMEOUT_S:
            raise RequestError("The machine's memory could not be read.", "Run gpudash doctor.")


def _wait(session: "Session", interruption: Interruption) -> "Answer":
    with stderr().status("Predicting…") if sys.stderr.isatty() else nullcontext():
        # Partial answers arrive as alternatives are found; the command prints only the complete one.
        while (answer := session.estimates.wait(POLL_S)) is None or not answer.final:
            if interruption.requested:
                raise RequestInterruptedError("Interrupted; nothing was predicted in full.")
    return answer


def _under_cap(answer: "Answer", session: "Session", device: str, options: EstimateOptions) -> "Answer":
    """The answer with the remedies that a memory cap allows."""
    # The estimator works within the cap and cannot suggest raising it, which depends on the whole card.
    from gpudash.memory.explaining.remedies import with_raised_cap

    if options.memory_cap is None or answer.estimate is None or not options.alternatives:
        return answer
    uncapped = session.estimates.target(device)
    allowed = options.memory_cap.allowed_bytes(uncapped.capacity_bytes)
    return replace(answer, estimate=with_raised_cap(answer.estimate, allowed, uncapped.room_bytes))


def _print_failure(workload: str, device: str, answer: "Answer", *, as_json: bool) -> int:
    """Report why nothing was predicted."""
    if answer.problem is None:
        kind, message, remedy = _reason(answer.estimate)
    else:
        kind, message, remedy = _problem(answer)
    if as_json:
        about = {"workload": workload, "device": device, "simulated": kind_of(device) == "sim", "reason": message}
        error = {"kind": kind, "message": message, "remedy": remedy}
        # The document is complete even on failure, so that scripts can rely on its shape.
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
