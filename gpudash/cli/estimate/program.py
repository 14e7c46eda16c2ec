"""``gpudash estimate -- COMMAND``: what an unchanged program would need of a GPU, run with one that does not exist."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.estimate.answer import (
    EstimateOptions,
    HeldAgainst,
    conclude,
    in_session,
)
from gpudash.cli.estimate.commands import FOLLOWED_STEPS, PROGRAM_FORM
from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.output import RequestError, RequestInterruptedError, print_notice
from gpudash.specs.invalid import did_you_mean

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Target
    from gpudash.session import Session


FLAGS = (
    "--simulate",
    "--device",
    "--steps",
    "--time-limit",
    "--let-it-write",
    "--show-output",
    "--ask-cudnn",
    "--max",
    "--memory-cap",
    "--cards",
    "--price",
    "--prices",
    "--sort",
    "--epoch-steps",
    "--json",
)
"""Flags to suggest for a misspelt one."""


def estimate_program(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    steps: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000))] = FOLLOWED_STEPS,
    let_it_write: Annotated[bool, Parameter(negative="")] = False,
    show_output: Annotated[bool, Parameter(negative="")] = False,
    _as_cuda: Annotated[bool, Parameter(name="--as-cuda", negative="", show=False)] = True,
    options: EstimateOptions | None = None,
) -> int:
    """Predict the memory of a program, unchanged: gpudash estimate [OPTIONS] -- python train.py --epochs 3

    Parameters
    ----------
    steps
        Steps of its optimizer to follow; then it is stopped.
    let_it_write
        Let it write its files rather than redirect them to a folder that is deleted. Checkpoints are never written.
    show_output
        Also show its output. It runs without numbers: losses and other figures in it are not computed.
    _as_cuda
        Always on: the GPU of a program stands in for CUDA.
    """
    if not command:
        raise RequestError("There is no command to predict.", PROGRAM_FORM)
    if command[0].startswith("-"):
        raise _unknown(command[0])
    options = options or EstimateOptions()
    if options.preset is not None:
        raise RequestError("--preset: only workloads have presets.", "Leave it out, or name a workload.")
    return _predict(command, steps, options, lets_write=let_it_write, shows_output=show_output)


def _unknown(flag: str) -> RequestError:
    """The error for a flag that does not apply to programs."""
    name = flag.partition("=")[0]
    if name in ("--python", "--callable", "--model"):
        return RequestError(f"{name} is not for a program, whose command names its Python.", PROGRAM_FORM)
    return RequestError(f"There is no {name} for a program{did_you_mean(name, FLAGS)}.", PROGRAM_FORM)


def _predict(
    command: Sequence[str], steps: int, options: EstimateOptions, *, lets_write: bool, shows_output: bool
) -> int:
    """Predict, and print the prediction or why there is none; return the exit code.

    Args:
        command: program and arguments.
        steps: steps of its optimizer to follow.
        options: options of the command.
        lets_write: whether it may write files.
        shows_output: whether to show its output, in which numbers are not computed.

    Raises:
        RequestError: if the request was invalid or interrupted.
    """
    from gpudash.session.predicting.attempt import script_name
    from gpudash.session.predicting.program import ProgramQuestion, predict_program

    held_against = HeldAgainst(options.budget(), options.card_table(), options.epoch_steps)

    def question_of(session: "Session", _interruption: Interruption) -> tuple[ProgramQuestion, str]:
        device = options.chosen_device() or session.default_device()
        if device == "cpu" and options.device is None:
            device = "sim:0"  # the one offered if there is no GPU
        targets = _targets(session, device, options)
        question = ProgramQuestion(
            command=command,
            target=targets[0],
            others=targets[1:],
            steps=steps,
            time_limit_s=options.time_limit,
            lets_write=lets_write,
            holds_output=not shows_output,
            alternatives=options.alternatives,
            cards=session.estimates.card_requests(device, options.cards) if options.cards else [],
        )
        return question, device

    with interruptible() as interruption:
        (question, device), joined = in_session(options, interruption, question_of)
        try:
            found = predict_program(question, lambda: bool(interruption.requested), print_notice)
        except (KeyboardInterrupt, ValueError) as error:
            failure = RequestError(str(error))
            if isinstance(error, KeyboardInterrupt):
                failure = RequestInterruptedError("Interrupted; nothing was predicted.")
            failure.joined = joined
            raise failure from None
    return conclude(script_name(command), found, device, options, held_against, joined=joined)


def _targets(session: "Session", device: str, options: EstimateOptions) -> "list[Target]":
    """The cards of the program: the chosen one first, then those like it."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        raise RequestError("A program is predicted on a GPU, and the CPU is none.", PROGRAM_FORM)
    number = int(device.partition(":")[2] or 0)
    found: list[Target] = []
    while True:
        try:
            session.estimates.target(f"{kind}:{number}")
        except ValueError:
            if not found:
                raise
            return found
        found.append(session.estimates.capped_target(f"{kind}:{number}", options.memory_cap))
        number += 1
