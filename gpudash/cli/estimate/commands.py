"""``gpudash estimate WORKLOAD``, ``--callable`` and ``--model``: what a run would need, and whether it fits."""

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gpudash.cli.estimate.answer import EstimateOptions, draws_curve, execute
from gpudash.cli.estimate.download import SAY_A_NAME
from gpudash.cli.estimate.download import download_config as fetch_config
from gpudash.cli.estimate.serving import estimate_serving, is_serving, task_of
from gpudash.cli.terminal.flags import python_program, require_function
from gpudash.cli.terminal.interruption import interruptible
from gpudash.cli.terminal.output import (
    DEVICES,
    NoGpuError,
    RequestError,
)
from gpudash.cli.terminal.workload_flags import SpecHelp, given_fields, has_fields, no_workload, parsed_fields
from gpudash.specs import ModelSpec, Spec, TrainingSpec, build, workloads
from gpudash.specs.invalid import did_you_mean
from gpudash.specs.model import BUILT, SERVE

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Target
    from gpudash.session import Answer, Session

FOLLOWED_STEPS = 3
"""Steps of a function to follow: its optimizer creates its state in the first, and the third shows growth."""

AS_CUDA_FORM = "Write for example: gpudash estimate --callable train.py:build --as-cuda --simulate 24GiB"

PROGRAM_FORM = "Write for example: gpudash estimate --simulate 24GiB -- python train.py --epochs 3"

OTHER_NAMES = {"--batch-size": "--batch", "--quantization": "--quantisation"}
"""Spellings of transformers and vLLM → our flags."""


def add_estimate_commands(app: App, default: Callable[..., int] | None = None) -> None:
    """Add a sub-command per workload to ``gpudash estimate``, with flags built from its spec.

    Args:
        app: the command.
        default: called without a workload; ``None`` for the prediction of a callable or a model.
    """
    app.default(default or _estimate_callable)
    for name, spec in workloads().items():
        if has_fields(spec):
            continue  # a comparison needs the memory of the workload it runs
        app.command(_command(spec), name=name, help=spec.summary, help_formatter=SpecHelp(spec))


def _estimate_callable(
    *arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    callable: str | None = None,
    model: str | None = None,
    steps: Annotated[int, Parameter(validator=Number(gte=2, lte=100))] = FOLLOWED_STEPS,
    as_cuda: Annotated[bool, Parameter(negative="")] = False,
    python: str | None = None,
    let_it_write: Annotated[bool, Parameter(negative="")] = False,
    download_config: Annotated[bool, Parameter(negative="")] = False,
    options: EstimateOptions | None = None,
) -> int:
    """Predict the memory of a workload, of a model by its config, of your own function, or of any program:
    gpudash estimate [OPTIONS] -- python train.py --epochs 3

    A program is run unchanged by its own Python, with a GPU that does not exist and without computing anything, until
    its optimizer has taken three steps. What it writes is held back. Its output goes to standard error.

    Parameters
    ----------
    callable
        Your own function, package.module:function or folder/file.py:function. It is called with a torch.device, builds
        its model there and returns a function that takes one step.
    model
        A model in Hugging Face's format: its folder or its config.json; the weights are not needed. Takes --task,
        --batch, --sequence, --precision, --optimizer and more; see gpudash estimate model --help. With --task serve it
        predicts a server, with vLLM's flags and --users and --length; the guide lists them.
    steps
        Steps of the program or the callable to follow. A callable that trains as a whole, such as trainer.train, is
        called once.
    as_cuda
        Let the GPU stand in for CUDA, so that unchanged code is predicted that uses "cuda", or chooses a GPU by itself
        like Accelerator and Trainer. The callable is called with torch.device("cuda:0").
    python
        The Python that runs it, such as .venv/bin/python. It needs torch and your libraries, but not gpudash. Default:
        the one that runs gpudash.
    let_it_write
        Let a program write its files rather than redirect them to a folder that is deleted. Checkpoints are never
        written.
    download_config
        If --model names a model of the Hugging Face Hub that is not on this computer, download its config.json, and
        nothing else, into Hugging Face's cache. Without this flag, the network is never used.
    """
    if let_it_write:
        raise RequestError("--let-it-write is for a program, and none is given.", PROGRAM_FORM)
    if as_cuda and callable is None:
        raise RequestError("--as-cuda is for your own code, and no --callable is given.", AS_CUDA_FORM)
    if download_config and model is None:
        raise RequestError("--download-config is for a model, and no --model is given.", SAY_A_NAME)
    options = options or EstimateOptions()
    if model is not None:
        if download_config:
            fetch_config(model)
        return _estimate_model(model, arguments, callable, python, options)
    if arguments or callable is None:
        raise _wrong_workload(arguments, callable, python)
    require_function(callable)
    return _estimate_function(callable, steps, options, python_program(python), as_cuda=as_cuda)


def _estimate_function(callable: str, steps: int, options: EstimateOptions, program: str, *, as_cuda: bool) -> int:
    """Predict the memory of a user's function, by the Python ``program``."""
    if options.preset is not None:
        raise RequestError("--preset: only workloads have presets.", "Leave it out, or name a workload.")

    targets: list[Target] = []

    # Called once the session knows its devices: without --device, it may be the CPU.
    def ask(session: "Session", device: str) -> int:
        targets.append(session.estimates.target(device))
        if as_cuda and device == "cpu":
            raise NoGpuError("--as-cuda lets code find a GPU, and the CPU is none.", AS_CUDA_FORM)
        return session.estimates.ask_callable(
            callable,
            steps,
            device,
            as_cuda=as_cuda,
            alternatives=options.alternatives,
            time_limit_s=options.time_limit,
            memory_cap=options.memory_cap,
            python=program,
            timeline=draws_curve(options),
            cards=options.cards or None,
        )

    def completed(answer: "Answer") -> "Answer":
        (target,) = targets
        if answer.estimate is None or target.device == "cpu" or options.memory_cap or not options.alternatives:
            return answer
        from gpudash.session.predicting.program import callable_question, with_batch_of_callable

        question = callable_question(program, callable, steps, target, options.time_limit)
        with interruptible() as interruption:
            estimate = with_batch_of_callable(question, answer.estimate, lambda: bool(interruption.requested))
        return replace(answer, estimate=estimate)

    return execute(callable, ask, options, completed=completed)


def _wrong_workload(arguments: Sequence[str], callable: str | None, python: str | None) -> RequestError:
    """The error for arguments that name no workload; names of workloads are handled by their own sub-commands."""
    known = workloads()
    there = [name for name, spec in known.items() if not has_fields(spec)]
    if not arguments:
        return RequestError("Which workload?", f"There is: {', '.join(there)}; or --callable package.module:function.")
    first = arguments[0]
    if callable is not None:
        return RequestError(f"{first!r} is given together with --callable.", "Name a workload or --callable, not both.")
    if first in known:
        return RequestError(
            f"A {first} takes the memory of the workload that it runs.", f"Predict one of: {', '.join(there)}."
        )
    if first.startswith("-"):
        hint = did_you_mean(first.partition("=")[0], ("--callable", "--model", "--steps", "--as-cuda", "--python"))
        # The parser handles known flags, so this one is unknown.
        return RequestError(f"Unknown option: {first}{hint}.", "gpudash estimate --help lists what there is.")
    if first.endswith(".py"):
        command = shlex.join([python or "python", *arguments])
        return RequestError(f"{first} is a script, and no workload.", f"Predict it by: gpudash estimate -- {command}")
    wrong = no_workload(first, there)
    if shutil.which(first) is not None:
        # A program in place of a workload is the most common mistake; the remedy is `--`.
        wrong.remedy = f"{wrong.remedy} A program follows two dashes: gpudash estimate -- {' '.join(arguments)}"
    return wrong


def _estimate_model(
    path: str, arguments: Sequence[str], callable: str | None, python: str | None, options: EstimateOptions
) -> int:
    if callable is not None:
        raise RequestError("--model is given together with --callable.", "Name one of them.")
    if is_serving(arguments):
        options.refuse_budget("A server takes what it is given")
        if options.epoch_steps is not None:
            raise RequestError("A server has no epochs, so --epoch-steps does not apply.", "Leave it out.")
        return estimate_serving(path, arguments, options)
    if (task := task_of(arguments)) is not None and task not in BUILT:
        hint = did_you_mean(task, (*BUILT, SERVE))
        raise RequestError(
            f"--task {task!r} is none of {', '.join(BUILT)} and {SERVE}{hint}.",
            "gpudash estimate model --help and gpudash estimate --task serve --help list their flags.",
        )
    given = {**parsed_fields(ModelSpec, list(map(_renamed, arguments))), "path": path}
    return _predicted(ModelSpec, given, options, python_program(python))


def _renamed(word: str) -> str:
    """Replace a flag's name in other tools with ours."""
    name, is_set, value = word.partition("=")
    return f"{OTHER_NAMES.get(name, name)}{is_set}{value}"


def _command(spec_type: type[Spec]) -> Callable[..., int]:
    def command(*, spec: Any = None, options: Any = None) -> int:
        return _predicted(spec_type, given_fields(spec), options or EstimateOptions())

    command.__annotations__ = {
        "spec": Annotated[spec_type | None, Parameter(name="*")],
        "options": EstimateOptions | None,
        "return": int,
    }
    return command


def _predicted(
    spec_type: type[Spec], given: Mapping[str, Any], options: EstimateOptions, python: str = sys.executable
) -> int:
    """Predict a workload, and print the prediction or why there is none; return the exit code."""
    try:
        whole = build(spec_type, given, options.preset)
    except ValueError as error:
        raise RequestError(f"{error}.", f"gpudash estimate {spec_type.name} --help lists what is allowed.") from None
    if isinstance(whole, ModelSpec) and whole.task == SERVE:
        raise RequestError("A server is predicted with --model.", f"gpudash estimate --model {whole.path} --task serve")

    def ask(session: "Session", device: str) -> int:
        if isinstance(whole, ModelSpec) and whole.missing:
            raise RequestError(whole.missing, "")  # it says what to do, and no device would help
        if problems := whole.problems(device):
            raise RequestError("; ".join(problems) + ".", DEVICES)
        return session.estimates.ask(
            whole,
            device,
            alternatives=options.alternatives,
            time_limit_s=options.time_limit,
            memory_cap=options.memory_cap,
            python=python,
            timeline=draws_curve(options),
            cards=options.cards or None,
        )

    return execute(whole.name, ask, options, whole.own_device, _epoch_steps(whole))


def _epoch_steps(spec: Spec) -> int | None:
    """Steps of an epoch of a workload; ``None`` if it has none."""
    if isinstance(spec, TrainingSpec) and spec.mode == "train":
        return spec.batches_per_epoch
    return None
