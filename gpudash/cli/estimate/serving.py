"""``gpudash estimate --model PATH --task serve``: what a server for a model would need."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Parameter

from gpudash.cli.estimate.answer import EstimateOptions
from gpudash.cli.terminal.output import (
    DEVICES,
    Exit,
    RequestError,
    print_json,
    print_notice,
)
from gpudash.devices.names import kind_of
from gpudash.memory.serving.llama_cpp import LlamaFlags
from gpudash.memory.serving.plan import ServerCard, ServerFlags, ServingAnswer
from gpudash.memory.serving.server_time import server_times
from gpudash.specs import ModelSpec
from gpudash.specs.model import SERVE
from gpudash.system.own_cards import own_cards

SERVE_FLAGS = "gpudash estimate --task serve --help lists the flags."

TOKEN_FLAGS = frozenset({
    "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--users", "--length", "--answer",
})  # fmt: skip
"""Flags of a server whose numbers can be abbreviated as in vLLM, such as 8k."""

SHORT_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
SHORT = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}
"""Meaning of the suffixes in vLLM (``human_readable_int``)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServingOptions(ServerFlags):
    """vLLM's flags under all of their names, and the load on the server."""

    tensor_parallel: Annotated[int, Parameter(alias="--tensor-parallel-size")] = 1
    kv_dtype: Annotated[str, Parameter(alias="--kv-cache-dtype")] = "auto"
    enforce_eager: Annotated[bool, Parameter(negative="")] = False
    allow_long_max_model_len: Annotated[bool, Parameter(negative="")] = False
    prefix_caching: Annotated[bool, Parameter(alias="--enable-prefix-caching", negative="")] = False
    quantization: Annotated[str | None, Parameter(alias="--quantisation")] = None

    users: int | None = None
    """Number of concurrent requests."""

    length: int | None = None
    """Tokens of each, prompt and answer; default: the longest possible request."""

    answer: int | None = None
    """Tokens of the answer among them; default: a quarter."""


def task_of(arguments: Sequence[str]) -> str | None:
    """The value of ``--task``, in either spelling."""
    for word, following in pairwise([*arguments, ""]):
        if word == "--task":
            return following
        if word.startswith("--task="):
            return word.partition("=")[2]
    return None


def is_serving(arguments: Sequence[str]) -> bool:
    """Whether the rest of a command line requests the prediction of a server."""
    return task_of(arguments) == SERVE


def print_serving_help() -> int:
    """Show the flags of a server, which differ from those of a run, and those of llama.cpp."""
    for kind in (ServingOptions, LlamaOptions):
        _serving_app(kind).help_print([])
    return Exit.FINISHED


def estimate_serving(path: str, arguments: Sequence[str], options: EstimateOptions) -> int:
    """Predict a server for the model at ``path``.

    Args:
        path: a folder with ``config.json``, or that file.
        arguments: the rest of the command line, for `ServingOptions`.
        options: the device, and other cards.

    Raises:
        RequestError: one sentence, if the model, a flag or the card is invalid.
    """
    from gpudash.simulator.refusal import CannotPredictError
    from gpudash.workloads.predicting.servers import model_server

    # Both spellings: with the value after `=` or as the next argument.
    if any(word.partition("=")[0] == "--devices" for word in arguments):
        raise RequestError("--devices: the cards of a server share its model.", "Say how many with --tensor-parallel.")
    spec = ModelSpec(path=path)
    if spec.missing:
        message, _, remedy = spec.missing.partition(". ")
        raise RequestError(f"{message}.", remedy)
    table = options.card_table()
    if options.preset is not None or options.memory_cap is not None:
        raise RequestError("A server has no preset and no memory cap.", "Use --gpu-memory-utilization instead.")
    found_at = spec.folder
    if found_at.endswith(".gguf"):
        return _estimate_gguf(found_at, arguments, options)
    serving = _parsed(arguments, ServingOptions)
    try:
        server = model_server(found_at)
        service = server.on(_card(options), serving)
        _check_positive(serving)
        answer = ServingAnswer(path, server, service, serving.length or service.max_model_len, serving.users)
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


def _check_positive(serving: ServingOptions) -> None:
    for name in ("users", "length", "answer"):
        value = getattr(serving, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value} is less than 1.")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LlamaOptions(LlamaFlags):
    """llama.cpp's flags, also under the names that other servers use."""

    gpu_layers: Annotated[int | None, Parameter(alias="--n-gpu-layers")] = None
    context: Annotated[int | None, Parameter(alias=("--ctx-size", "--max-model-len"))] = None
    cache_type: Annotated[str, Parameter(name=("--kv-dtype", "--cache-type-k", "--kv-cache-dtype"))] = "f16"
    ubatch: Annotated[int, Parameter(alias="--ubatch-size")] = 512


def _estimate_gguf(path: str, arguments: Sequence[str], options: EstimateOptions) -> int:
    """Predict llama.cpp for a GGUF file."""
    from gpudash.cli.terminal.estimates.llama_report import print_llama
    from gpudash.memory.serving.gguf import read_gguf
    from gpudash.memory.serving.llama_cpp import LlamaModel

    if options.cards:
        raise RequestError("--cards: a GGUF file is held against one card.", "Name it with --simulate.")
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


# A separate application: some flags of a server have the name, but not the meaning, of a workload's.
def _serving_app(kind: type[ServingOptions] | type[LlamaOptions]) -> App:
    path = "PATH"
    about = (
        "What a server of a model takes of a card, how many users it serves, and which cards serve as many as asked. "
        "The card is named by --simulate, such as h100 or 24GiB, and --cards rtx4090,h100 answers for others beside "
        "it, with --price h100=2.5/h or --prices FILE, --sort price. --json prints one document."
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
    """Expand a number such as 8k if it belongs to one of `TOKEN_FLAGS`, in either spelling."""
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
    """The card that was named, else the machine's own, else the first of the other cards."""
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
