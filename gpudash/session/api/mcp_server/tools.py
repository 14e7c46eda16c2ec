"""The tools: for each its arguments, the gpudash command that it runs, and whether it runs the user's code.

Coding agents read the docstrings as descriptions.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import AfterValidator, Field

from gpudash.devices.names import parse_card
from gpudash.memory.serving.llama_cpp import LlamaFlags
from gpudash.memory.serving.plan import ServerFlags
from gpudash.session.api.mcp_server import answers, consent
from gpudash.session.api.mcp_server.command import CallLimits, CommandOutcome, run_command
from gpudash.session.api.mcp_server.consent import Consent
from gpudash.session.api.mcp_server.root import Root, shown
from gpudash.session.recordings.file_kinds import find_file
from gpudash.specs import ModelSpec
from gpudash.specs.invalid import did_you_mean
from gpudash.system.folders import data_folder

AT_ONCE = 2
"""Commands that run at a time; further calls wait."""

NO_GPU = (
    "There is no GPU on this computer for the function: name one in the argument card, such as rtx4090 or 24GiB; it "
    "need not be there."
)

LONGEST_S = 24 * 3600.0
"""The longest time limit that a call may request, if the server's limit allows it."""


@dataclass(frozen=True)
class CommandRunner:
    """What all tools of a server share.

    Attributes:
        root: which files may be named.
        limits: for each call.
        turns: limits how many commands run at a time.
    """

    root: Root
    limits: CallLimits
    turns: anyio.CapacityLimiter

    async def read(self, arguments: Sequence[str], limit_s: float | None = None) -> CommandOutcome:
        """Run a command that only reads and does not run the user's code."""
        # only gpudash writes into this folder, so no model name can be taken for a file
        return await self._run(arguments, data_folder(), limit_s, runs_code=False)

    async def run_code(self, arguments: Sequence[str], folder: str, limit_s: float | None = None) -> CommandOutcome:
        """Run a command that runs the user's code, in a folder of the root."""
        return await self._run(arguments, self.root.directory(folder), limit_s, runs_code=True)

    async def _run(
        self, arguments: Sequence[str], folder: Path, limit_s: float | None, *, runs_code: bool
    ) -> CommandOutcome:
        within: tuple[Path, ...] = ()
        if not runs_code:
            within = (self.root.folder, *self.root.own)
        limits = replace(self.limits, seconds=min(limit_s or self.limits.seconds, self.limits.seconds))
        async with self.turns:
            return await run_command(arguments, folder, limits, runs_code=runs_code, within=within)


Ctx = Context[CommandRunner, Any]


def _checked_card(card: str) -> str:
    """Raises: ValueError: one sentence, when it is no GPU."""
    parse_card(card)
    return card


Card = Annotated[
    str,
    Field(max_length=100, description="A GPU by its name (h100, rtx4090) or memory (24GiB); it need not be there"),
    AfterValidator(_checked_card),
]
Cards = Annotated[list[Card], Field(max_length=32, description="GPUs by name or memory")]
Folder = Annotated[str, Field(description="Folder to run it in, in the root")]
Command = Annotated[
    list[Annotated[str, Field(max_length=4096)]],
    Field(max_length=200, description="Program and arguments, such as ['python', 'train.py', '--epochs', '3']"),
]
Function = Annotated[
    str,
    Field(
        max_length=4096,
        description="The user's function as file.py:function or package.module:function; it is given a torch.device, "
        "builds its model there and returns a function that takes one step",
    ),
]
Python = Annotated[str | None, Field(description="The Python that follows a function, such as .venv/bin/python")]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
ProcessorSeconds = Annotated[Seconds, Field(description="Seconds of processor time")]
Confirmed = Annotated[
    bool,
    Field(
        description="Only for clients that cannot ask their user: true says that you have shown the user this very "
        "call and that they have agreed to it. Of a client that can ask it counts for nothing"
    ),
]
Setting = str | int | float | bool
Settings = Annotated[dict[str, Setting], Field(max_length=40)]
Model = Annotated[
    str,
    Field(
        description="A model by its config: its folder or config.json in the root, or a name such as Qwen2.5-7B; the "
        "weights need not be there"
    ),
]

MODEL_FIELDS = frozenset(ModelSpec.model_fields) - {"path", "task", "trust_remote_code"}
"""Model settings that a call may change; code that comes with a model is never run."""

SERVER_FIELDS = frozenset(one.name for kind in (ServerFlags, LlamaFlags) for one in fields(kind)) - {"cache_type"}

MODEL_SETTINGS = Field(description=f"Of the run, by name: {', '.join(sorted(MODEL_FIELDS))}")
SERVER_SETTINGS = Field(description=f"Flags of the server, as vLLM calls them: {', '.join(sorted(SERVER_FIELDS))}")


async def estimate_model(
    ctx: Ctx,
    model: Model,
    card: Card | None = None,
    task: Literal["train", "lora", "qlora", "infer"] = "train",
    settings: Annotated[Settings | None, MODEL_SETTINGS] = None,
) -> CallToolResult:
    """Predict what training a model, or running inference with it, takes on a GPU, from its config alone: whether it
    fits, the peak by category, the largest batch that fits, and changes with which it would fit. Does not run the
    user's code.
    """
    runner = ctx.request_context.lifespan_context
    arguments = [*_on(card), *_of_model(runner, model, task, settings)]
    return answers.result(await runner.read(["estimate", *arguments, "--json"]), answers.of_estimate)


async def serve_plan(
    ctx: Ctx,
    model: Model,
    card: Card,
    cards: Cards | None = None,
    users: Annotated[int | None, Field(ge=1, description="Requests to be served at a time")] = None,
    length: Annotated[int | None, Field(ge=1, description="Tokens of each, prompt and answer")] = None,
    answer: Annotated[int | None, Field(ge=1, description="Tokens of the answer among them")] = None,
    settings: Annotated[Settings | None, SERVER_SETTINGS] = None,
) -> CallToolResult:
    """Predict what a server of a model (vLLM, SGLang, or llama.cpp for a GGUF file) takes on a GPU: its KV cache, how
    many users it serves at a time, how fast it is predicted to answer, and which flags and which cards would serve the
    requested number. With `cards` it answers for these as well.
    """
    runner = ctx.request_context.lifespan_context
    arguments = [f"--simulate={card}", f"--model={runner.root.model(model)}", "--task=serve"]
    if cards:
        arguments.append(f"--cards={','.join(cards)}")
    for name, value in (("users", users), ("length", length), ("answer", answer)):
        if value is not None:
            arguments.append(f"--{name}={value}")
    arguments += _flags(settings, SERVER_FIELDS)
    return answers.result(await runner.read(["estimate", *arguments, "--json"]), answers.of_server)


async def explain(
    ctx: Ctx,
    path: Annotated[
        str,
        Field(
            description="A snapshot of torch.cuda.memory, the folder of an out-of-memory report, or a recording "
            "(FILE#2 is its second run); a name without folders may be one of gpudash's own folder of recordings"
        ),
    ],
    other: Annotated[str | None, Field(description="A later snapshot: what grew, by line")] = None,
    capacity: Annotated[Card | None, Field(description="Replay a snapshot with the memory of this GPU")] = None,
) -> CallToolResult:
    """Explain what filled a GPU's memory, which lines allocated it, why it ran out, and which changes would have
    fitted: for a snapshot or a recorded run. If the change is known to the character, the remedy has it as a `patch`
    for `patch -p0`. Reads only.
    """
    runner = ctx.request_context.lifespan_context
    found, number = runner.root.recorded(path)
    if other is None and _kind(found) == "recording":
        arguments = ["runs", f"{found}{number}", "--json"]
        return answers.result(await runner.read(arguments), answers.of_run)
    if number:
        raise ToolError(f"{shown(path)} is no recording, of which alone runs have numbers.")
    arguments = ["snapshot", str(found), f"--sources={runner.root.folder}", "--json"]
    if other is not None:
        arguments.insert(2, str(runner.root.recorded(other)[0]))
    if capacity is not None:
        arguments.append(f"--capacity={capacity}")
    return answers.result(await runner.read(arguments), answers.of_snapshot)


async def list_runs(
    ctx: Ctx,
    folder: Annotated[str | None, Field(description="Folder in the root; left out: gpudash's own")] = None,
    most: Annotated[int, Field(ge=1, le=200, description="Recordings that are listed, the newest")] = 20,
) -> CallToolResult:
    """List the recorded runs with their settings, how each ended, and its peak memory. Reads only."""
    runner = ctx.request_context.lifespan_context
    arguments = ["runs", f"--most={most}", "--json"]
    if folder is not None:
        arguments.append(f"--folder={runner.root.directory(folder)}")
    return answers.result(await runner.read(arguments), answers.of_runs)


async def compare_runs(
    ctx: Ctx,
    a: Annotated[str, Field(description="The recording that is compared with, or FILE#2 for its second run")],
    b: Annotated[str, Field(description="The recording that is compared")],
) -> CallToolResult:
    """Compare two recorded runs: every figure as B minus A, with the noise of both. Reads only."""
    runner = ctx.request_context.lifespan_context
    first, second = ("".join(map(str, runner.root.recorded(text))) for text in (a, b))
    arguments = ["compare", first, second, "--json"]
    return answers.result(await runner.read(arguments), answers.of_comparison)


def _ask_to_predict(
    ctx: Ctx,
    command: Command | None,
    function: Function,
    folder: Folder,
    python: str | None,
    confirmed: Confirmed,
) -> Consent | Elicit[Consent]:
    root = ctx.request_context.lifespan_context.root
    where = root.directory(folder)
    if command and function:
        raise ToolError("A command and a function are given: give one of them.")
    if function:
        command = [
            "gpudash",
            "estimate",
            f"--callable={_located(root, function)}",
            f"--python={python or sys.executable}",
        ]
    what = consent.command_text(command or ())
    return consent.required(ctx, consent.question_to_predict(what, where), confirmed=confirmed)


async def estimate_program(
    ctx: Ctx,
    agreed: Annotated[ElicitationResult[Consent], Resolve(_ask_to_predict)],
    command: Command | None = None,
    function: Function = "",
    card: Card | None = None,
    folder: Folder = ".",
    python: Python = None,
    time_limit_s: ProcessorSeconds = 60.0,
    confirmed: Confirmed = False,
) -> CallToolResult:
    """Predict what the user's own code takes on a GPU, without a GPU and without computing anything: a whole program
    by its command, unchanged, or a function. The code runs until its optimizer has taken three steps; files that it
    writes are discarded. Says whether it fits, the peak by line, and with which changes it would fit. The user is
    asked first.
    """
    consent.require(ctx, agreed, confirmed=confirmed)
    runner = ctx.request_context.lifespan_context
    arguments = [*_on(card), *_of_code(runner, command, function, python, time_limit_s)]
    outcome = await runner.run_code(["estimate", *arguments], folder)
    if outcome.refused_for("no_gpu"):
        raise ToolError(NO_GPU)
    return answers.result(outcome, answers.of_estimate, prints=True)


def _ask_to_predict_fits(
    ctx: Ctx,
    command: Command | None,
    function: Function,
    model: str,
    folder: Folder,
    python: str | None,
    confirmed: Confirmed,
) -> Consent | Elicit[Consent]:
    if sum(map(bool, (command, function, model))) != 1:
        raise ToolError("Give one of command, function and model.")
    if model:
        return Consent(run=True)  # reads only its config
    return _ask_to_predict(ctx, command, function, folder, python, confirmed)


async def fits(
    ctx: Ctx,
    agreed: Annotated[ElicitationResult[Consent], Resolve(_ask_to_predict_fits)],
    cards: Annotated[Cards, Field(min_length=1)],
    command: Command | None = None,
    function: Function = "",
    model: Annotated[str, Field(description="In place of code: a model, as of estimate_model")] = "",
    task: Literal["train", "lora", "qlora", "infer"] = "train",
    settings: Annotated[Settings | None, MODEL_SETTINGS] = None,
    folder: Folder = ".",
    python: Python = None,
    time_limit_s: ProcessorSeconds = 60.0,
    confirmed: Confirmed = False,
) -> CallToolResult:
    """Say on which of several GPUs a program, a function or a model fits, from one prediction, with the predicted time
    of a step. For code the user is asked first; for a model only its config is read.
    """
    runner = ctx.request_context.lifespan_context
    several = [f"--simulate={cards[0]}", f"--cards={','.join(cards)}"]
    if model:
        arguments = [*several, *_of_model(runner, model, task, settings), "--json"]
        return answers.result(await runner.read(["estimate", *arguments]), answers.of_cards)
    consent.require(ctx, agreed, confirmed=confirmed)
    arguments = [*several, *_of_code(runner, command, function, python, time_limit_s)]
    return answers.result(await runner.run_code(["estimate", *arguments], folder), answers.of_cards, prints=True)


def _ask_to_watch(ctx: Ctx, command: Command, folder: Folder, confirmed: Confirmed) -> Consent | Elicit[Consent]:
    where = ctx.request_context.lifespan_context.root.directory(folder)
    return consent.required(ctx, consent.question_to_run(command, where), confirmed=confirmed)


async def watch(
    ctx: Ctx,
    agreed: Annotated[ElicitationResult[Consent], Resolve(_ask_to_watch)],
    command: Command,
    folder: Folder = ".",
    simulate: Annotated[Card | None, Field(description="Run it on this GPU, simulated: it answers for CUDA")] = None,
    find_need: Annotated[bool, Field(description="After an out-of-memory, run it again to try remedies")] = True,
    time_limit_s: Annotated[Seconds | None, Field(description="Seconds after which it is ended")] = None,
    confirmed: Confirmed = False,
) -> CallToolResult:
    """Run a program for real and watch its memory, on this computer's GPU or a simulated one: how it ended, its peak,
    lines whose memory grows, and after an out-of-memory the cause, with remedies that were tried (a `patch` for `patch
    -p0` if the change is known to the character). Keeps a recording. The user is asked first.
    """
    consent.require(ctx, agreed, confirmed=confirmed)
    runner = ctx.request_context.lifespan_context
    arguments = ["watch", "--json"]
    if simulate is not None:
        arguments += [f"--simulate={simulate}", "--as-cuda"]
    if not find_need:
        arguments.append("--no-find-need")
    arguments += ["--", *command]
    return answers.result(await runner.run_code(arguments, folder, time_limit_s), answers.of_run, prints=True)


READING = (estimate_model, serve_plan, explain, list_runs, compare_runs)
"""Tools that neither run the user's code nor write the user's files."""

RUNNING = (estimate_program, fits, watch)
"""Tools that run the user's code."""


def _on(card: str | None) -> list[str]:
    if card is None:
        return []
    return [f"--simulate={card}"]


def _of_model(runner: CommandRunner, model: str, task: str, settings: Mapping[str, Setting] | None) -> list[str]:
    return [f"--model={runner.root.model(model)}", f"--task={task}", *_flags(settings, MODEL_FIELDS)]


def _of_code(
    runner: CommandRunner, command: Sequence[str] | None, function: str, python: str | None, time_limit_s: float
) -> list[str]:
    arguments = [f"--time-limit={time_limit_s}", "--json"]
    if not function:
        return [*arguments, "--", *(command or ())]
    arguments += [f"--callable={_located(runner.root, function)}", "--as-cuda"]
    if python is not None:
        arguments.append(f"--python={python}")
    return arguments


def _located(root: Root, function: str) -> str:
    """A function's name, with its file as a path in the root."""
    file, _, name = function.rpartition(":")
    if file.endswith(".py"):
        return f"{root.file(file)}:{name}"
    return function


def _flags(settings: Mapping[str, Setting] | None, there: Collection[str]) -> list[str]:
    """Settings as command-line flags; ``there`` holds the permitted names.

    Raises:
        ToolError: one sentence, for an unknown name.
    """
    arguments = []
    for name, value in (settings or {}).items():
        known = name.replace("-", "_")
        if known not in there:
            hint = did_you_mean(known, there)
            raise ToolError(f"There is no setting {shown(name)}{hint}. There is: {', '.join(sorted(there))}.")
        flag = known.replace("_", "-")
        if value is True:
            arguments.append(f"--{flag}")
        elif value is not False:
            arguments.append(f"--{flag}={value}")
    return arguments


def _kind(path: Path) -> str:
    """Raises: ToolError: one sentence, when it is neither a recording nor a snapshot."""
    try:
        return find_file(path).kind
    except ValueError as error:
        raise ToolError(str(error)) from None
