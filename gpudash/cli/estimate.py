"""``gpudash estimate WORKLOAD``: what a run would take, whether it fits, and what would; ``--task serve``: what a
server of a model would.
"""

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.budget import Budget, BudgetOptions
from gpudash.cli.terminal.card_options import CardOptions, CardTable
from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.output import (
    DEVICES,
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
from gpudash.cli.terminal.workload_flags import SpecHelp, WorkloadOptions, has_fields, no_workload, parsed_fields
from gpudash.devices.names import kind_of
from gpudash.memory.serving.llama_cpp import LlamaFlags
from gpudash.memory.serving.plan import ServerCard, ServerFlags, ServingAnswer
from gpudash.memory.serving.server_time import server_times
from gpudash.specs import ModelSpec, Spec, TrainingSpec, build, workloads
from gpudash.specs.invalid import did_you_mean
from gpudash.specs.model import BUILT, SERVE
from gpudash.system.garbage import without_collection
from gpudash.system.own_cards import own_cards
from gpudash.system.settings import load_settings

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Estimate
    from gpudash.session import Answer, Session

READY_TIMEOUT_S = 20.0
"""Longest wait for the machine's first readings; a hanging driver is given up sooner."""

POLL_S = 0.05
"""How soon Ctrl+C is noticed."""

FOLLOWED_STEPS = 3
"""Steps of a function that are followed: its optimizer makes its state in the first, and the third shows growth."""

AS_CUDA_FORM = "Write for example: gpudash estimate --callable train.py:build --as-cuda --simulate 24GiB"

PROGRAM_FORM = "Write for example: gpudash estimate --simulate 24GiB -- python train.py --epochs 3"

Ask = Callable[["Session", str], int]

OTHER_NAMES = {"--batch-size": "--batch", "--quantization": "--quantisation"}
"""As transformers and vLLM write them."""

SERVE_FLAGS = "gpudash estimate --task serve --help lists the flags."

TOKEN_FLAGS = frozenset({
    "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--users", "--length", "--answer",
})  # fmt: skip
"""Of a server: numbers that may be written as vLLM's may, such as 8k."""

SHORT_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
SHORT = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}
"""What vLLM takes the letters for (``human_readable_int``)."""


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


def add_estimate_commands(app: App, default: Callable[..., int] | None = None) -> None:
    """Give ``gpudash estimate`` one sub-command per workload, its flags built from the spec.

    Args:
        app: the command.
        default: what it does without a workload; ``None`` for the prediction of a callable or a model.
    """
    app.default(default or _estimate_callable)
    for name, spec in workloads().items():
        if has_fields(spec):
            # A comparison has none of its own.
            continue  # the memory of a comparison is that of the workload it runs
        app.command(_command(spec), name=name, help=spec.summary, help_formatter=SpecHelp(spec))


def _estimate_callable(
    *arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    callable: str | None = None,
    model: str | None = None,
    steps: Annotated[int, Parameter(validator=Number(gte=2, lte=100))] = FOLLOWED_STEPS,
    as_cuda: Annotated[bool, Parameter(negative="")] = False,
    python: str | None = None,
    let_it_write: Annotated[bool, Parameter(negative="")] = False,
    options: EstimateOptions | None = None,
) -> int:
    """Predict the memory of a workload, of a model by its config, of your own function, or of any program:
    gpudash estimate [OPTIONS] -- python train.py --epochs 3

    A program is run as it is, by its own Python, with a GPU that is not there and nothing computed, until its optimizer
    has taken three steps; then it is ended. What it writes is held back. Its output goes to standard error.

    Parameters
    ----------
    callable
        Your own code, package.module:function or folder/file.py:function. It is given a torch.device, builds its model
        there and returns a function that takes one step.
    model
        A model in Hugging Face's form: its folder or its config.json; the weights need not be there. With --task,
        --batch, --sequence, --precision, --optimizer and more, which gpudash estimate model --help lists. --task serve
        answers for a server instead, with flags as vLLM names them and --users and --length; the guide lists them.
    steps
        Steps of the program or the callable that are followed. A callable that trains as a whole, such as
        trainer.train, is called once.
    as_cuda
        Let the GPU answer for CUDA, so that code that says "cuda", or chooses a GPU by itself as Accelerator and
        Trainer do, is predicted unchanged. The callable is given torch.device("cuda:0").
    python
        The Python that follows it, such as .venv/bin/python: it needs torch and your libraries, not gpudash. Left out:
        the one that gpudash runs in.
    let_it_write
        Let a program write its files, instead of into a folder that is removed. Checkpoints are never written.
    """
    if let_it_write:
        raise RequestError("--let-it-write is for a program, and none is given.", PROGRAM_FORM)
    if as_cuda and callable is None:
        raise RequestError("--as-cuda is for your own code, and no --callable is given.", AS_CUDA_FORM)
    if model is not None:
        return _estimate_model(model, arguments, callable, python, options or EstimateOptions())
    known = workloads()
    there = [name for name, spec in known.items() if not has_fields(spec)]
    if callable is not None and arguments:
        raise RequestError(
            f"{arguments[0]!r} is given together with --callable.", "Name a workload or --callable, not both."
        )
    if arguments and arguments[0] in known:
        raise RequestError(
            f"A {arguments[0]} takes the memory of the workload that it runs.", f"Predict one of: {', '.join(there)}."
        )
    if arguments and arguments[0].startswith("-"):
        hint = did_you_mean(
            arguments[0].partition("=")[0], ("--callable", "--model", "--steps", "--as-cuda", "--python")
        )
        # Only a beginning of a flag is left here: a known one would have been parsed.
        raise RequestError(f"Unknown option: {arguments[0]}{hint}.", "gpudash estimate --help lists what there is.")
    if arguments:
        wrong = no_workload(arguments[0], there)
        if shutil.which(arguments[0]) is not None:
            # A program's name where a workload's is wanted is the commonest mistake here, and its remedy two dashes.
            wrong.remedy = f"{wrong.remedy} A program follows two dashes: gpudash estimate -- {' '.join(arguments)}"
        raise wrong
    if callable is None:
        raise RequestError("Which workload?", f"There is: {', '.join(there)}; or --callable package.module:function.")
    module, _, function = callable.rpartition(":")
    # a file may have any name, such as train-gpt.py
    if module.endswith(".py"):
        parts = []
    else:
        parts = module.split(".")
    if not all(part.isidentifier() for part in [*parts, function]):
        way = "Write package.module:function or folder/file.py:function."
        raise RequestError(f"--callable {callable!r} names no function.", way)
    program = _program(python)
    options = options or EstimateOptions()
    if options.preset is not None:
        raise RequestError("--preset: only workloads have presets.", "Leave it out, or name a workload.")

    # Asked once the session knows its devices: "no device given" may come to be the CPU.
    def ask(session: "Session", device: str) -> int:
        if as_cuda and device == "cpu":
            raise RequestError("--as-cuda lets code find a GPU, and the CPU is none.", AS_CUDA_FORM)
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

    return execute(callable, ask, options)


def _program(python: str | None) -> str:
    program = sys.executable if python is None else shutil.which(python)
    if program is None:
        raise RequestError(f"--python {python!r} is no program.", "Name a Python, such as .venv/bin/python.")
    return program


def _estimate_model(
    path: str, arguments: Sequence[str], callable: str | None, python: str | None, options: EstimateOptions
) -> int:
    if callable is not None:
        raise RequestError("--model is given together with --callable.", "Name one of them.")
    if is_serving(arguments):
        options.refuse_budget("A server takes what it is given")
        if options.epoch_steps is not None:
            raise RequestError("A server has no epochs, so that --epoch-steps does not apply.", "Leave it out.")
        return estimate_serving(path, arguments, options)
    if (task := _task(arguments)) is not None and task not in BUILT:
        hint = did_you_mean(task, (*BUILT, SERVE))
        raise RequestError(
            f"--task {task!r} is none of {', '.join(BUILT)} and {SERVE}{hint}.",
            "gpudash estimate model --help and gpudash estimate --task serve --help list their flags.",
        )
    given = {**parsed_fields(ModelSpec, [_renamed(word) for word in arguments]), "path": path}
    return _predicted(ModelSpec, given, options, _program(python))


def _renamed(word: str) -> str:
    """What other tools call a flag is what it is called here."""
    name, is_set, value = word.partition("=")
    return f"{OTHER_NAMES.get(name, name)}{is_set}{value}"


def _command(spec_type: type[Spec]) -> Callable[..., int]:
    def command(*, spec: Any = None, options: Any = None) -> int:
        given = {}
        if spec is not None:
            given = {name: getattr(spec, name) for name in spec.model_fields_set}
        return _predicted(spec_type, given, options or EstimateOptions())

    command.__annotations__ = {
        "spec": Annotated[spec_type | None, Parameter(name="*")],
        "options": EstimateOptions | None,
        "return": int,
    }
    return command


def _predicted(
    spec_type: type[Spec], given: Mapping[str, Any], options: EstimateOptions, python: str = sys.executable
) -> int:
    """Predict a workload, and print the prediction or why there is none; the exit code."""
    try:
        whole = build(spec_type, given, options.preset)
    except ValueError as error:
        raise RequestError(f"{error}.", f"gpudash estimate {spec_type.name} --help lists what is allowed.") from None
    if isinstance(whole, ModelSpec) and whole.task == SERVE:
        raise RequestError("A server is asked about by --model.", f"gpudash estimate --model {whole.path} --task serve")

    def ask(session: "Session", device: str) -> int:
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
    """Steps of an epoch of a workload; ``None`` where it has none."""
    if isinstance(spec, TrainingSpec) and spec.mode == "train":
        return spec.batches_per_epoch
    return None


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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServingOptions(ServerFlags):
    """Flags as vLLM calls them, under all of their names, and what is asked."""

    tensor_parallel: Annotated[int, Parameter(alias="--tensor-parallel-size")] = 1
    kv_dtype: Annotated[str, Parameter(alias="--kv-cache-dtype")] = "auto"
    enforce_eager: Annotated[bool, Parameter(negative="")] = False
    allow_long_max_model_len: Annotated[bool, Parameter(negative="")] = False
    prefix_caching: Annotated[bool, Parameter(alias="--enable-prefix-caching", negative="")] = False
    quantization: Annotated[str | None, Parameter(alias="--quantisation")] = None

    users: int | None = None
    """Requests that are to be served at a time."""

    length: int | None = None
    """Tokens of each, prompt and answer; left out: the longest request."""

    answer: int | None = None
    """Tokens of the answer among them; left out: a quarter."""


def _task(arguments: Sequence[str]) -> str | None:
    """What ``--task`` says, in either form."""
    for word, following in pairwise([*arguments, ""]):
        if word == "--task":
            return following
        if word.startswith("--task="):
            return word.partition("=")[2]
    return None


def is_serving(arguments: Sequence[str]) -> bool:
    """Whether what is left of a command line asks for a server."""
    return _task(arguments) == SERVE


def print_serving_help() -> int:
    """Show the flags of a server, which are others than those of a run, and those of llama.cpp."""
    for kind in (ServingOptions, LlamaOptions):
        _serving_app(kind).help_print([])
    return Exit.FINISHED


def estimate_serving(path: str, arguments: Sequence[str], options: EstimateOptions) -> int:
    """Answer for the model at ``path``.

    Args:
        path: a folder with ``config.json``, or that file.
        arguments: the rest of the command line, of `ServingOptions`.
        options: where, and which cards beside it.

    Raises:
        RequestError: one sentence, when the model, a flag or the card cannot be.
    """
    from gpudash.simulator.dry_run.refusals import CannotPredictError
    from gpudash.workloads.predicting.servers import model_server

    # Both spellings, with a value behind `=` or after it.
    if any(word.partition("=")[0] == "--devices" for word in arguments):
        raise RequestError("--devices: the cards of a server share its model.", "Say how many by --tensor-parallel.")
    spec = ModelSpec(path=path)
    if spec.missing:
        message, _, remedy = spec.missing.partition(". ")
        raise RequestError(f"{message}.", remedy)
    table = options.card_table()
    if options.preset is not None or options.memory_cap is not None:
        raise RequestError("A server has no preset and no memory cap.", "Say --gpu-memory-utilization instead.")
    found_at = spec.folder
    if found_at.endswith(".gguf"):
        return _estimate_gguf(found_at, arguments, options)
    serving = _parsed(arguments, ServingOptions)
    try:
        server = model_server(found_at)
        service = server.on(_card(options), serving)
        length = serving.length or service.max_model_len
        for name in ("users", "length", "answer"):
            if (value := getattr(serving, name)) is not None and value < 1:
                raise ValueError(f"--{name} {value} is less than 1.")
        answer = ServingAnswer(path, server, service, length, serving.users)
        times = server_times(answer, own_cards().performance, serving.answer)
        offers = table.server_offers(answer, serving, serving.answer)
    except CannotPredictError as error:
        raise RequestError(str(error), error.remedy) from None
    except ValueError as error:
        raise RequestError(str(error), SERVE_FLAGS) from None
    if options.json:
        print_json({**times.joined(answer.to_json()), "compared_cards": [offer.to_dict() for offer in offers]})
    else:
        from gpudash.cli.terminal.estimates.estimate_report import print_serving
        from gpudash.cli.terminal.estimates.time_report import print_server_offers

        print_serving(answer, times)
        if offers:
            print_server_offers(offers, table.prices)
    if table.remark:
        print_notice(table.remark)
    return Exit.FINISHED


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LlamaOptions(LlamaFlags):
    """Flags as llama.cpp calls them, under those of other servers too."""

    gpu_layers: Annotated[int | None, Parameter(alias="--n-gpu-layers")] = None
    context: Annotated[int | None, Parameter(alias=("--ctx-size", "--max-model-len"))] = None
    cache_type: Annotated[str, Parameter(name=("--kv-dtype", "--cache-type-k", "--kv-cache-dtype"))] = "f16"
    ubatch: Annotated[int, Parameter(alias="--ubatch-size")] = 512


def _estimate_gguf(path: str, arguments: Sequence[str], options: EstimateOptions) -> int:
    """Answer for a GGUF file in llama.cpp."""
    from gpudash.cli.terminal.estimates.llama_report import print_llama
    from gpudash.memory.serving.gguf import read_gguf
    from gpudash.memory.serving.llama_cpp import LlamaModel

    if options.cards:
        raise RequestError("--cards: a GGUF file is held against one card.", "Name it by --simulate.")
    flags = _parsed(arguments, LlamaOptions)
    try:
        model = LlamaModel(read_gguf(Path(path)))
        print_llama(path, model, _card(options), flags, as_json=options.json)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.", "Give a file that can be.") from None
    except ValueError as error:
        raise RequestError(str(error), SERVE_FLAGS) from None
    return Exit.FINISHED


Options = TypeVar("Options", ServingOptions, LlamaOptions)


# An application of its own: the flags of a server overlap with those of a workload by other names.
def _serving_app(kind: type[ServingOptions] | type[LlamaOptions]) -> App:
    path = "PATH"
    about = (
        "What a server of a model takes of a card, how many users it serves, and which cards serve as many as asked. "
        "The card is named by --simulate, such as h100 or 24GiB; --json prints one document."
    )
    if kind is LlamaOptions:
        path = "FILE.gguf"
        about = "What llama.cpp takes of a card for a GGUF file, and how many layers and how long a context have room."
    app = App(
        name=f"gpudash estimate --model {path} --task serve",
        help=about,
        help_flags=[],
        version_flags=[],
    )

    def take(*, options: Any = None) -> Any:
        return options or kind()

    take.__annotations__ = {"options": kind | None, "return": kind}
    app.default(take)
    return app


def _parsed(arguments: Sequence[str], kind: type[Options]) -> Options:
    rest: list[str] = [word for place, word in enumerate(arguments) if not _names_task(arguments, place)]
    expanded = [_written_out(before, word) for before, word in pairwise(["", *rest])]
    app = _serving_app(kind)
    try:
        parsed = app(
            expanded, exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        raise RequestError(str(error).splitlines()[0], SERVE_FLAGS) from None
    assert isinstance(parsed, kind)
    return parsed


def _written_out(before: str, word: str) -> str:
    """A word with a number such as 8k written out, where it is one of `TOKEN_FLAGS`, in either form."""
    name, is_set, value = word.partition("=")
    if not is_set:
        name, value = before, word
    short = SHORT_NUMBER.fullmatch(value)
    if name not in TOKEN_FLAGS or short is None:
        return word
    number = str(int(float(short[1]) * SHORT[short[2]]))
    if is_set:
        return f"{name}={number}"
    return number


def _names_task(arguments: Sequence[str], place: int) -> bool:
    """Whether an argument is ``--task`` or its value."""
    before = ""
    if place:
        before = arguments[place - 1]
    return arguments[place].partition("=")[0] == "--task" or before == "--task"


def _card(options: EstimateOptions) -> ServerCard:
    """The card that was named, else the machine's own; where that has none, the first of those beside it."""
    if options.simulate:
        if len(options.simulate) > 1 and options.device is None:
            raise RequestError(
                f"A server is answered for one kind of card, and --simulate names {len(options.simulate)}.",
                f"Say --tensor-parallel {len(options.simulate)} for cards that share the model, or choose by --device.",
            )
        device = options.device or "sim:0"
        place = device.partition(":")[2]
        if kind_of(device) != "sim" or not place.isdecimal() or int(place) >= len(options.simulate):
            raise RequestError(f"--device {device!r} is none of the cards of --simulate.", DEVICES)
        return ServerCard.named(options.simulate[int(place)])
    from gpudash.cli.devices import inventory

    document = inventory(options.simulation())
    name = options.device or document["default"]
    found = next((device for device in document["devices"] if device["name"] == name), None)
    if found is None:
        raise RequestError(f"There is no device {name!r}.", DEVICES)
    without_gpu = name == "cpu" or found["total_bytes"] is None
    if without_gpu and options.device is None and options.cards:
        return ServerCard.named(options.cards[0])
    if without_gpu:
        raise RequestError("A server needs a GPU.", "Name a card, such as --simulate h100.")
    return ServerCard.found(found["product"], found["total_bytes"])
