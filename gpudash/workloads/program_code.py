"""Generates the plain PyTorch program for a run, to read, copy and change, short enough to grasp at a glance.

The programs are templates of Jinja in `program_templates/`. What depends on more than
a field is computed here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpudash.devices.names import OFFERED_BYTES, SIMULATED, Simulation, kind_of, written
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.specs import (
    ComparisonSpec,
    MatmulSpec,
    ModelSpec,
    PipelineSpec,
    PressureSpec,
    Spec,
    TrainingSpec,
    TransferSpec,
    matmul,
    training,
    transfer,
)
from gpudash.specs.matmul import threads_for
from gpudash.specs.memory_cap import MemoryCap
from gpudash.specs.model import SERVE
from gpudash.specs.pipeline import COUNT_LIMIT
from gpudash.units import GIB
from gpudash.workloads.programs import pressure_sizes, text
from gpudash.workloads.programs.parallel.job import BACKENDS
from gpudash.workloads.programs.pressure_sizes import OF_FREE, leak_within

WARM_UP = 3
"""How many first answers are left out of an inference's latency, as in the run."""

REPETITIONS = 10
"""Groups of four repetitions in the program of a comparison; the run itself continues until its interval is narrow."""

STEPS = 20
"""Steps in a repetition; the first two do not count."""

CHARACTERS = 90
"""Different characters in a comparison's generated text: a step takes equally long on any text with as many."""

_TEMPLATES: dict[type[Spec], str] = {
    PipelineSpec: "pipeline",
    TransferSpec: "transfer",
    MatmulSpec: "matmul",
    TrainingSpec: "training",
    PressureSpec: "pressure",
    ModelSpec: "model",
    ComparisonSpec: "comparison",
}

_COMPARED = (TrainingSpec, MatmulSpec, PipelineSpec)
"""Workloads whose program runs on two devices in alternation."""


def code(
    spec: Spec,
    device: str,
    simulation: Simulation | None = None,
    memory_cap: MemoryCap | None = None,
    remark: Sequence[str] = (),
) -> str:
    """A program of at most 60 lines that does with torch alone what ``spec`` does on ``device``; prints the result.

    Args:
        spec: the run.
        device: the device; a simulated GPU is first added to torch, which needs gpudash.
        simulation: the simulated GPUs; ``None`` for one of the default size.
        memory_cap: the most memory that torch may reserve on a GPU.
        remark: comments at the start of the program.

    Raises:
        ValueError: the workload is not built in.
    """
    shown = spec
    if isinstance(spec, ComparisonSpec):
        shown = spec.chosen
    if type(spec) not in _TEMPLATES or (shown is not spec and not isinstance(shown, _COMPARED)):
        where = shown.run.partition(":")[0]
        raise ValueError(f"the workload {shown.name} cannot be shown as a program; read {where}")
    # Each rank would have to set it for its own device, but the program is the same for all.
    if isinstance(spec, TrainingSpec) and spec.device_names and memory_cap is not None:
        raise ValueError("--memory-cap is not part of the program of several devices; leave it out")
    simulation = simulation or Simulation()
    if isinstance(spec, PressureSpec):
        # The run ends above a warning level that a program does not know, so it gets a limit in bytes.
        spec = ending(spec, _most(device, simulation, memory_cap))
    lines = _lines(spec, device)
    if memory_cap is not None:
        # After the last import, because the limit is set before any tensor is created.
        begin = 1 + max(number for number, line in enumerate(lines) if line.startswith(("import ", "from ")))
        lines[begin:begin] = ["", *_capped(memory_cap, device)]
    added = []
    if kind_of(device) == "sim":
        added = _simulated(simulation)
    return "\n".join(fitted([*remark, *added, *lines])) + "\n"


@cache
def _templates() -> Environment:
    # Nothing is escaped: this is Python, and no page.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("program_templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(matmul=matmul, pressure=pressure_sizes, sizes=training, text=text, transfer=transfer)
    environment.globals.update(COUNT_LIMIT=COUNT_LIMIT, WARM_UP=WARM_UP, CHARACTERS=CHARACTERS, STEPS=STEPS)
    environment.globals["gcd"] = math.gcd
    return environment


def _lines(spec: Spec, device: str) -> list[str]:
    """The lines of the program before it is shortened."""
    template = _TEMPLATES[type(spec)]
    values: dict[str, Any] = {"spec": spec, "device": device, "kind": kind_of(device)}
    match spec:
        case TrainingSpec():
            values |= _training(spec)
            if values["ranks"]:
                template = "ranks"
        case ComparisonSpec():
            values |= _comparison(spec)
        case MatmulSpec():
            values["threads"] = _threads(spec)
        case TransferSpec():
            paths = _paths(spec, device)
            values["paths"] = paths
            values["overlapped"] = any(is_overlapped for *_, is_overlapped in paths)
        case ModelSpec():
            values |= _model(spec)
    lines = _templates().get_template(f"{template}.jinja").render(values).splitlines()
    if isinstance(spec, ComparisonSpec):
        lines = list(filter(None, lines))
    return lines


def _training(spec: TrainingSpec) -> dict[str, Any]:
    """What the templates of a training need besides its fields, on one device or on several.

    Raises:
        KeyError: no backend of torch.distributed joins ranks on such devices.
    """
    names = spec.device_names
    ranks = bool(spec.rank_devices)
    whole = spec
    own = spec
    if names:
        whole = spec.joined_spec
        own = whole
    if ranks:
        own = spec.rank_spec
    kinds = list(map(kind_of, names))
    return {
        "spec": own,
        "whole": whole,
        "checkpointing": spec.checkpointing and spec.mode == "train",
        "left_out": f"{{{', '.join(map(json.dumps, sorted(text.LEFT_OUT)))}}}",
        "ranks": ranks,
        "split": spec.is_split,
        "place": spec.second_half,
        "second": names[-1] if names else "",
        "parallel": spec.parallel,
        "world_size": spec.world_size,
        "max_restarts": spec.max_restarts,
        "devices": json.dumps(names),
        "on_gpu": kinds[:1] == ["cuda"],
        "backend": BACKENDS[kinds[0]] if ranks else "",
    }


def _comparison(spec: ComparisonSpec) -> dict[str, Any]:
    """What the template of a comparison needs."""
    chosen = spec.chosen
    values = {"spec": chosen, "pair": spec.pair, "threads": _threads(chosen), "REPETITIONS": REPETITIONS}
    if isinstance(chosen, TrainingSpec):
        # Validated again: fewer steps may conflict with other fields.
        steps = {**chosen.model_dump(exclude_unset=True), "steps": STEPS, "epochs": 1}
        values |= _training(TrainingSpec.model_validate(steps))
    return values


def _model(spec: ModelSpec) -> dict[str, Any]:
    """What the template of a model by its config needs.

    Raises:
        ValueError: for packed weights, which need the weights themselves, for several devices, for a server, and for
            what a library's own training loop does.
    """
    refusal = _refusal(spec)
    if refusal:
        raise ValueError(refusal)
    targets: str | list[str] | None = spec.lora_targets or None
    if "," in spec.lora_targets:
        targets = spec.lora_targets.split(",")
    return {"folder": json.dumps(spec.folder), "lora_targets": json.dumps(targets).replace("null", "None")}


def _threads(spec: Spec) -> int:
    """CPU threads of the run."""
    if isinstance(spec, MatmulSpec):
        return spec.threads or threads_for(spec.size)
    return spec.threads or 1


def _refusal(spec: ModelSpec) -> str:
    """Why no program is shown; "" if one is."""
    if spec.task == SERVE:
        return "a server has a program of its own, such as vllm serve"
    if spec.device_names:
        return f"a model over {len(spec.device_names)} devices is not shown; show the program of one device"
    if spec.packed:
        return f"{spec.packed} weights are packed from the weights themselves; show the program without them"
    if spec.task == "infer":
        return ""
    if spec.loss != "full":
        return f"a {spec.loss} loss is of a library, such as torchtune; show the program with --loss full"
    if spec.task == "train" and spec.optimizer_in_backward:
        return "an update within the backward pass is not shown; show the program without it"
    if spec.keeps != "nothing":
        return "what checkpointing keeps is not shown; show the program with --keeps nothing"
    if spec.packing:
        return "packed rows are made by a data set; show the program without --packing"
    if spec.offload != "none":
        return f"{spec.offload} on the host are not shown; show the program without --offload"
    return ""


def _paths(spec: TransferSpec, device: str) -> list[tuple[str, str, str, bool]]:
    """The paths to measure: source, target, type of host memory, and whether during a computation."""
    ends = {"h2d": ("cpu", device), "d2h": (device, "cpu"), "h2h": ("cpu", "cpu")}
    memories = ["pageable"]
    if device.startswith("cuda"):
        memories.append("pinned")
    paths = []
    for name, (source, target) in ends.items():
        if spec.directions not in ("all", name) or (device == "cpu" and name != "h2h"):
            continue
        for memory in memories:
            if spec.memory not in ("both", memory):
                continue
            if spec.blocking in ("both", "blocking"):
                paths.append((source, target, memory, False))
            # During a computation only non-blocking copies make sense: pinned memory, and never host to host.
            if spec.blocking in ("both", "overlapped") and memory == "pinned" and name != "h2h":
                paths.append((source, target, memory, True))
    return paths


_LEAST_CAP = 1024
"""The smallest value of `PressureSpec.cap` in bytes."""


def ending(spec: PressureSpec, most: int | None) -> PressureSpec:
    """``spec`` with a limit, if it has none: a program has no warning level at which to end.

    Args:
        spec: the run.
        most: bytes that torch can reserve; ``None`` if unknown.
    """
    if spec.cap is not None or spec.until == "oom":
        return spec
    if most is None:
        cap = GIB
    else:
        cap = max(_LEAST_CAP, min(GIB, int(OF_FREE * most)))
    if spec.pattern == "leak":
        cap = leak_within(cap, spec.step)
    return spec.model_copy(update={"cap": cap})


def _most(device: str, simulation: Simulation, cap: MemoryCap | None) -> int | None:
    """The most bytes that torch can reserve on a device; ``None`` if unknown here."""
    if kind_of(device) != "sim":
        if cap is None:
            return None
        return cap.allowed_bytes(None)
    index = int(device.partition(":")[2])
    capacity = (simulation.sizes or (OFFERED_BYTES,))[index]
    room = capacity - CONTEXT_BYTES - (0 if index else simulation.others)
    if cap is None:
        return room
    return min(room, cap.allowed_bytes(capacity) or room)


def _simulated(simulation: Simulation) -> list[str]:
    given = [repr(written(card)) for card in simulation.cards or (OFFERED_BYTES,)]
    what = "a GPU's name, or bytes"
    # Sizes in bytes need no name in the remark; an empty choice is the default size, in bytes too.
    if all(isinstance(card, int) for card in simulation.cards):
        what = "bytes"
    if simulation.others:
        given.append(f"others={simulation.others}")
    return [
        "from gpudash.simulator import simulate",
        "",
        f"simulate({', '.join(given)})  # {what}; from here on torch has the device sim:0, which is {SIMULATED}",
        "",
    ]


def _capped(cap: MemoryCap, device: str) -> list[str]:
    module = f"torch.{kind_of(device)}"
    if cap.share is not None:
        return [f'{module}.set_per_process_memory_fraction({cap.share!r}, "{device}")']
    return [
        f'capacity = {module}.get_device_properties("{device}").total_memory',
        # A quarter of a byte more: torch multiplies the fraction by the capacity and rounds down, which must not lose
        # a byte.
        f'{module}.set_per_process_memory_fraction(({cap.size} + 0.25) / capacity, "{device}")',
    ]


MOST_LINES = 60
_LINE_WIDTH = 120

_COMPOUND = re.compile(r"(class|def|for|while|with|if|elif|else|import|from|return|try|except|finally|@)\b")


def fitted(lines: list[str], most: int = MOST_LINES) -> list[str]:
    """Shorten ``lines`` to at most ``most``: first without blank lines, then with short statements joined.

    If that is not enough, bodies of one line follow the line they belong to.

    Args:
        lines: of a program with one statement per line.
    """
    surplus = len(lines) - most
    kept: list[str] = []
    # Backwards, so that the blank lines nearest to the end go first.
    for line in reversed(lines):  # the blank lines around the imports go last
        if surplus > 0 and not line:
            surplus -= 1
        else:
            kept.append(line)
    lines = kept[::-1]
    while len(lines) > most:
        joined = _joined(lines, len(lines) - most)
        # Nothing left to join: move bodies behind the line they belong to.
        if len(joined) == len(lines):
            joined = _folded(lines, len(lines) - most)
        if len(joined) == len(lines):
            # Neither helps any more: a program that is slightly too long is better than one that is wrong.
            break
        lines = joined
    return lines


def _joined(lines: list[str], surplus: int) -> list[str]:
    """``lines`` with up to ``surplus`` statements joined to the one before, from the end."""
    # From the end, because the beginning is what people read.
    kept = [lines[-1]]
    for line in reversed(lines[:-1]):
        below = kept[-1]
        if surplus > 0 and _simple(line) and _simple(below) and _indent(line) == _indent(below):
            both = f"{line}; {below.strip()}"
            if len(both) <= _LINE_WIDTH:
                kept[-1] = both
                surplus -= 1
                continue
        kept.append(line)
    return kept[::-1]


def _folded(lines: list[str], surplus: int) -> list[str]:
    """``lines`` with up to ``surplus`` bodies of one statement behind the line they belong to, from the end."""
    kept = [lines[-1]]
    # A body is a single statement if the line below it does not belong to the same or a deeper block.
    after = 0  # indentation of the line after the body
    for line in reversed(lines[:-1]):
        below = kept[-1]
        alone = _indent(line) < _indent(below) and after < _indent(below)
        both = f"{line} {below.strip()}"
        if surplus > 0 and alone and line.endswith(":") and _simple(below) and len(both) <= _LINE_WIDTH:
            kept[-1] = both
            surplus -= 1
        else:
            after = _indent(below)
            kept.append(line)
    return kept[::-1]


def _simple(line: str) -> bool:
    text = line.strip()
    # A statement over several lines has open brackets at its end.
    whole = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))
    return bool(text) and whole and "#" not in text and not _COMPOUND.match(text)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
