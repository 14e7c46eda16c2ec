"""``gpudash estimate --model PATH --task serve``: what a server takes, how many it serves, and what would serve more.

Annotations are evaluated, as in `gpudash.cli.terminal.flags`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter

from gpudash.cli.terminal.output import DEVICES, Exit, RequestError, print_json
from gpudash.devices.known_gpus import KnownGpu, find
from gpudash.devices.names import kind_of, size_of
from gpudash.memory.serving.plan import ModelServer, ServerCard, ServerFlags, ServingAnswer
from gpudash.units import format_bytes

if TYPE_CHECKING:
    from gpudash.cli.terminal.workload_flags import WorkloadOptions

TASK = "serve"

FLAGS = "The guide's page on serving lists the flags."


@Parameter(name="*")
@dataclass(kw_only=True)
class ServingOptions:
    """Flags as vLLM calls them, and what is asked."""

    gpu_memory_utilization: float = ServerFlags.gpu_memory_utilization
    """Share of each card that the server may have."""

    max_model_len: int | None = None
    """The longest request in tokens; left out: the model's."""

    max_num_batched_tokens: int | None = None
    """Tokens computed in one step; left out: 8192 on cards of 70 GiB and more but the A100, else 2048."""

    max_num_seqs: int | None = None
    """Requests in one step; left out: 1024 on such cards, else 256."""

    tensor_parallel: Annotated[int, Parameter(alias="--tensor-parallel-size")] = 1
    """Cards that share the model."""

    dtype: str = "auto"
    """Of the model's numbers."""

    kv_dtype: Annotated[str, Parameter(alias="--kv-cache-dtype")] = "auto"
    """Of the KV cache: auto, fp8, bfloat16 or float16."""

    quantization: str | None = None
    """fp8: quantise while loading."""

    enforce_eager: Annotated[bool, Parameter(negative="")] = False
    """No CUDA graphs."""

    prefix_caching: Annotated[bool, Parameter(alias="--enable-prefix-caching", negative="")] = False
    """Keep what requests begin alike with; it matters to models with recurrent layers."""

    users: int | None = None
    """Requests that are to be served at a time."""

    length: int | None = None
    """Tokens of each, prompt and answer; left out: the longest request."""


def is_serving(words: Sequence[str]) -> bool:
    """Whether what is left of a command line asks for a server."""
    return f"--task={TASK}" in words or ("--task", TASK) in pairwise(words)


def estimate_serving(path: str, words: Sequence[str], options: "WorkloadOptions", *, as_json: bool) -> int:
    """Answer for the model at ``path``.

    Args:
        path: a folder with ``config.json``, or that file.
        words: the rest of the command line, of `ServingOptions`.
        options: where.
        as_json: print one JSON document.

    Raises:
        RequestError: one sentence, when the model, a flag or the card cannot be.
    """
    from gpudash.simulator.dry_run.refusals import CannotPredictError
    from gpudash.simulator.models.config import read

    if any(word.partition("=")[0] == "--devices" for word in words):
        raise RequestError("--devices: the cards of a server share its model.", "Say how many by --tensor-parallel.")
    asked = _parsed(words)
    if options.preset is not None or options.memory_cap is not None:
        raise RequestError("A server has no preset and no memory cap.", "Say --gpu-memory-utilization instead.")
    try:
        found = read(path)
    except CannotPredictError as error:
        raise RequestError(str(error), error.remedy) from None
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    if (stored := found.stored) is not None:
        tensors = [(name, stored.dtypes[name], shape) for name, shape in stored.shapes.items()]
        tensors = tensors or [("the index's total", "U8", (stored.total_bytes, 1))]
    given = {name: value for name, value in asdict(asked).items() if name not in ("users", "length")}
    try:
        server = ModelServer(found.values, tensors)
        service = server.on(_card(options), ServerFlags(**given))
        length = asked.length or service.max_model_len
        for name in ("users", "length"):
            if (value := getattr(asked, name)) is not None and value < 1:
                raise ValueError(f"--{name} {value} is less than 1.")
        answer = ServingAnswer(path, server, service, length, asked.users)
    except ValueError as error:
        raise RequestError(str(error), FLAGS) from None
    if as_json:
        print_json(answer.to_json())
    else:
        from gpudash.cli.terminal.serving_report import print_serving

        print_serving(answer)
    return Exit.FINISHED


def _parsed(words: Sequence[str]) -> ServingOptions:
    app = App(name="estimate", help_flags=[], version_flags=[])

    def take(*, options: ServingOptions | None = None) -> ServingOptions:
        return options or ServingOptions()

    app.default(take)
    rest = [word for place, word in enumerate(words) if not _names_task(words, place)]
    try:
        parsed = app(rest, exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value")
    except CycloptsError as error:
        raise RequestError(str(error).splitlines()[0], FLAGS) from None
    assert isinstance(parsed, ServingOptions)
    return parsed


def _names_task(words: Sequence[str], place: int) -> bool:
    """Whether a word is ``--task`` or its value."""
    before = words[place - 1] if place else ""
    return words[place].partition("=")[0] == "--task" or before == "--task"


def _card(options: "WorkloadOptions") -> ServerCard:
    """The card that was named, else the machine's own."""
    if options.simulate:
        device = options.device or "sim:0"
        place = device.partition(":")[2]
        if kind_of(device) != "sim" or not place.isdecimal() or int(place) >= len(options.simulate):
            raise RequestError(f"--device {device!r} is none of the cards of --simulate.", DEVICES)
        named = options.simulate[int(place)]
        if isinstance(named, KnownGpu):
            return ServerCard.known(named)
        return ServerCard(f"a card of {format_bytes(size_of(named))}", size_of(named))
    from gpudash.cli.devices import inventory

    document = inventory(options.simulation())
    name = options.device or document["default"]
    found = next((device for device in document["devices"] if device["name"] == name), None)
    if found is None:
        raise RequestError(f"There is no device {name!r}.", DEVICES)
    if name == "cpu" or found["total_bytes"] is None:
        raise RequestError("A server needs a GPU.", "Name a card, such as --simulate h100.")
    known = find(found["product"])
    card = ServerCard(found["product"], found["total_bytes"])
    return card if known is None else replace(ServerCard.known(known), total_bytes=found["total_bytes"])
