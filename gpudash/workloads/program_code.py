"""Generates the plain PyTorch program for a run, to read, copy and change, short enough to grasp at a glance."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

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
)
from gpudash.specs.matmul import WARM_UP, threads_for
from gpudash.specs.memory_cap import MemoryCap
from gpudash.specs.pipeline import COUNT_LIMIT
from gpudash.specs.training import CLASSES, FEATURES, SPREAD
from gpudash.specs.transfer import COMPARED_BYTES, COMPUTE_MARGIN, COMPUTE_SIZE, COPY_STEPS, SERIES, SERIES_BYTES
from gpudash.units import GIB
from gpudash.workloads.programs.pressure_sizes import (
    DEPTH,
    FIRST_TOOTH,
    KEPT,
    LEARNING_RATE,
    LONGER,
    OF_FREE,
    OWN_SEGMENT,
    SAMPLE_BYTES,
    SMALL,
    TEETH,
    WIDTH,
    leak_within,
)
from gpudash.workloads.training_code import indented, lines_if, model_code, ranks_code, split_code, training_code


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
    writers: dict[type[Spec], Callable[[Any, str], list[str]]] = {
        PipelineSpec: _pipeline,
        TransferSpec: _transfer_code,
        MatmulSpec: _matmul,
        TrainingSpec: training_code,
        PressureSpec: _pressure_code,
        ModelSpec: model_code,
        ComparisonSpec: comparison_code,
    }
    write = writers.get(type(spec))
    if isinstance(spec, TrainingSpec) and spec.device_names:
        write = ranks_code
        if spec.is_split:
            write = split_code
        # Each rank would have to set it for its own device, but the program is the same for all.
        if memory_cap is not None:
            raise ValueError("--memory-cap is not part of the program of several devices; leave it out")
    if write is None:
        raise ValueError(f"the workload {spec.name} cannot be shown as a program; read {spec.run.partition(':')[0]}")
    simulation = simulation or Simulation()
    if isinstance(spec, PressureSpec):
        # The run ends above a warning level that a program does not know, so it gets a limit in bytes.
        spec = ending(spec, _most(device, simulation, memory_cap))
    lines = write(spec, device)
    if memory_cap is not None:
        # After the last import, because the limit is set before any tensor is created.
        begin = 1 + max(number for number, line in enumerate(lines) if line.startswith(("import ", "from ")))
        lines[begin:begin] = ["", *_capped(memory_cap, device)]
    added = []
    if kind_of(device) == "sim":
        added = _simulated(simulation)
    return "\n".join(fitted([*remark, *added, *lines])) + "\n"


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


def _pipeline(spec: PipelineSpec, device: str) -> list[str]:
    rows, columns = spec.shape
    kind = kind_of(device)
    move = {
        "to": "x.to(device)",
        "to_dtype": "x.to(device, torch.float64)",
        "to_other": "x.to(torch.empty(0, dtype=x.dtype, device=device))",
        "cuda": f"x.{kind}()",
        "cuda_index": f"x.{kind}(device.index)",
        "pinned": "x.pin_memory().to(device, non_blocking=True)",
        "direct": _fill(spec, "device"),
    }[spec.move]
    back = 'result.to("cpu")'
    if spec.back == "cpu":
        back = "result.cpu()"
    again = []
    if spec.fill == "random":
        again = [f"    torch.manual_seed({spec.seed})"]
    lines = [
        "import torch",
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f'device = torch.device("{device}")',
        f"rows, columns = {rows}, {columns}",
        f"for _ in range({spec.repeat}):",
        *again,
        f"    x = {_fill(spec, None)}",
        *lines_if(spec.move == "direct", *again),
        f"    moved = {move}",
        f"    result = {_operation(spec)}",
        f"    back = {back}",
        "print(x.device, moved.device, back.device, moved is x)",
        "print(back)",
    ]
    return lines + [line.replace("{kind}", kind) for line in _PITFALLS[spec.pitfall]]


def _operation(spec: PipelineSpec) -> str:
    # As in `operated` in programs/pipeline.py: an integer scalar keeps integer types.
    scalar = repr(spec.scalar if spec.dtype.startswith(("float", "bfloat")) else int(spec.scalar))
    return {
        "add": f"moved + {scalar}",
        "multiply": f"moved * {scalar}",
        "matmul": "moved @ moved.T",
        "relu": "torch.relu(moved)",
    }[spec.operation]


def _fill(spec: PipelineSpec, device: str | None) -> str:
    rows, columns = spec.shape
    dtype, place = f"torch.{spec.dtype}", f", device={device}" if device else ""
    if spec.fill == "ones":
        return f"torch.ones(rows, columns, dtype={dtype}{place})"
    if spec.fill == "random" and spec.dtype.startswith("int"):
        return f"torch.randint(100, (rows, columns), dtype={dtype}{place})"
    if spec.fill == "random":
        return f"torch.rand(rows, columns, dtype={dtype}{place})"
    limit = COUNT_LIMIT[spec.dtype]
    if rows * columns <= limit:
        return f"torch.arange(1, rows * columns + 1, dtype={dtype}{place}).reshape(rows, columns)"
    return f"(torch.arange(rows * columns{place}) % {limit} + 1).to({dtype}).reshape(rows, columns)"


_PITFALLS: dict[str, list[str]] = {
    "none": [],
    "unassigned": ["x.to(device)  # the result is thrown away", "print(x.device)", "x + torch.ones_like(moved)"],
    "mixed_devices": ["torch.ones(3) + torch.ones(3, device=device)"],
    "leaf": [
        "leaf = torch.ones(3, requires_grad=True)",
        "copy = leaf.to(device)",
        "copy.sum().backward()",
        "print(copy.is_leaf, copy.grad, leaf.grad)",
    ],
    "numpy": ["moved.numpy()"],
    "current_device": [
        "torch.{kind}.set_device(torch.{kind}.device_count() - 1)",
        "print(torch.ones(3).{kind}().device)",
    ],
}


def _matmul(spec: MatmulSpec, device: str) -> list[str]:
    wait = []
    if device.startswith("cuda"):
        wait = ["    torch.cuda.synchronize()"]
    return [
        "import statistics",
        "import time",
        "",
        "import torch",
        "",
        f"torch.manual_seed({spec.seed})",
        f"torch.set_num_threads({spec.threads or threads_for(spec.size)})",
        f"n = {spec.size}",
        f'a = torch.empty(n, n, dtype=torch.{spec.dtype}, device="{device}").uniform_(-1, 1)',
        "b, product = torch.empty_like(a).uniform_(-1, 1), torch.empty_like(a)",
        "seconds = []",
        f"for _ in range({WARM_UP + spec.repeat}):",
        "    began = time.perf_counter()",
        "    torch.mm(a, b, out=product)",
        *wait,
        "    seconds.append(time.perf_counter() - began)",
        f"median = statistics.median(seconds[{WARM_UP}:])",
        'print(f"{median:.6f} s, {2 * n**3 / median:.3e} FLOP/s")',
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


def _transfer_code(spec: TransferSpec, device: str) -> list[str]:
    """The lines of the program."""
    cuda = device.startswith("cuda")
    paths = _paths(spec, device)
    overlapped = any(path[3] for path in paths)
    pinned = ""
    if cuda:
        pinned = ', non_blocking=memory == "pinned"'
    return [
        "import statistics",
        "import time",
        "",
        "import torch",
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f'device = "{device}"',
        "",
        "def seconds_of(work, stream=None):",
        *lines_if(cuda, "    torch.cuda.synchronize()"),
        "    began = time.perf_counter()",
        "    work()",
        *lines_if(cuda, "    (stream or torch.cuda.current_stream()).synchronize()"),
        "    return time.perf_counter() - began",
        "",
        *lines_if(overlapped, *_timed_together()),
        "paths = [",
        *(f"    {', '.join(map(repr, paths[first : first + 2]))}," for first in range(0, len(paths), 2)),
        "]",
        "for source, target, memory, overlapped in paths:",
        f"    for size in {spec.block_sizes}:",
        f"        count = min({SERIES}, max(1, -(-{SERIES_BYTES} // size)))",
        f"        a = {_buffer(cuda, 'source')}",
        f"        b = {_buffer(cuda, 'target')}",
        "        def copies():",
        "            for _ in range(count):",
        f"                b.copy_(a{pinned})",
        "        copies()",
        f"        seconds = [{_sample(overlapped)} for _ in range({spec.samples})]",
        "        rate = size * count / statistics.median(seconds)",
        '        print(source, target, memory, overlapped, size, f"{rate:.3e} B/s")',
        "",
        f"block = torch.ones({min(spec.block_sizes[-1], COMPARED_BYTES)}, dtype=torch.uint8)",
        "def steps(every_step):",
        "    there = block.to(device, copy=True)",
        f"    for _ in range({COPY_STEPS}):",
        "        there.bitwise_xor_(1)",
        "        if every_step:",
        '            there = there.to("cpu", copy=True).to(device, copy=True)',
        "    there.cpu()",
        'print(f"copied every step {seconds_of(lambda: steps(True)):.6f} s")',
        'print(f"copied once {seconds_of(lambda: steps(False)):.6f} s")',
    ]


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


def _buffer(cuda: bool, place: str) -> str:
    pinned = ""
    if cuda:
        pinned = f', pin_memory=memory == "pinned" and {place} == "cpu"'
    return f"torch.empty(size, dtype=torch.uint8, device={place}{pinned}).fill_(1)"


def _sample(overlapped: bool) -> str:
    if overlapped:
        return "beside(copies) if overlapped else seconds_of(copies)"
    return "seconds_of(copies)"


def _timed_together() -> list[str]:
    """Copies on a stream of their own, while longer matrix products keep the GPU busy."""
    size = COMPUTE_SIZE
    return [
        f"matrix, stream = torch.ones({size}, {size}, device=device), torch.cuda.Stream()",
        "torch.mm(matrix, matrix)",
        "product_seconds = seconds_of(lambda: torch.mm(matrix, matrix))",
        "def beside(copies):",
        f"    products = max(1, int({COMPUTE_MARGIN} * seconds_of(copies) / product_seconds))",
        "    def both():",
        "        for _ in range(products):",
        "            torch.mm(matrix, matrix)",
        "        with torch.cuda.stream(stream):",
        "            copies()",
        "    return seconds_of(both, stream)",
        "",
    ]


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


def _pressure_code(spec: PressureSpec, device: str) -> list[str]:
    """The lines of the program."""
    write = {
        "ramp": _ramp,
        "leak": _leak,
        "sawtooth": _sawtooth,
        "fragmentation": _fragmentation,
        "spike": _spike,
    }[spec.pattern]
    # `inf` exceeds any level, so the program ends with the out-of-memory error itself.
    if spec.until == "oom":
        cap = "float('inf')"
    else:
        cap = str(spec.cap)
    lines = write(spec)
    own = [f"import {module}" for module in ("itertools", "time") if any(f"{module}." in line for line in lines)]
    leaks = spec.pattern == "leak"
    if spec.until == "oom":
        hold = []
    else:
        hold = [f"time.sleep({spec.hold!r})"]
    return [
        # Sorted like the two modules: "itertools" before "time".
        *(own if "import time" in own or not hold else [*own, "import time"]),
        "",
        "import torch",
        *lines_if(leaks, "from torch import nn", "from torch.nn import functional"),
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f"torch.manual_seed({spec.seed})",
        f'device = torch.device("{device}")',
        f"cap = {cap}  # bytes",
        "",
        *lines_if(not leaks, "def filled(size):", f"    return {_filled_memory(device)}", ""),
        *lines,
        *hold,
    ]


def _filled_memory(device: str) -> str:
    """Memory that was never touched is not in use; a simulated GPU counts requests."""
    memory = "torch.empty(size, dtype=torch.uint8, device=device)"
    if device.startswith("sim"):
        return memory
    return f"{memory}.fill_(1)"


def _ramp(spec: PressureSpec) -> list[str]:
    return [
        "held = []",
        "level = 0",
        "while level < cap:",
        f"    held.append(filled(min({spec.step}, cap - level)))",
        "    level += held[-1].nbytes",
        '    print(f"{level / 2**20:.0f} MiB")',
        f"    time.sleep({1 / spec.rate!r})",
    ]


def _leak(spec: PressureSpec) -> list[str]:
    hidden = ", ".join(f"nn.Linear({FEATURES if n == 0 else WIDTH}, {WIDTH}), nn.GELU()" for n in range(DEPTH))
    return [
        f"samples = int(max(1, min({spec.step}, cap) // {SAMPLE_BYTES}))",
        f"generator = torch.Generator().manual_seed({spec.seed})",
        f"centres = {SPREAD} * torch.randn({CLASSES}, {FEATURES}, generator=generator)",
        f"labels = torch.randint({CLASSES}, (samples,), generator=generator)",
        f"points = centres[labels] + torch.randn(samples, {FEATURES}, generator=generator)",
        "inputs, targets = points.to(device), labels.to(device)",
        f"model = nn.Sequential({hidden}, nn.Linear({WIDTH}, {CLASSES})).to(device)",
        f"optimizer = torch.optim.Adam(model.parameters(), lr={LEARNING_RATE})",
        "losses = []",
        f"while (len(losses) + 1) * samples * {SAMPLE_BYTES} <= cap:",
        "    losses.append(functional.cross_entropy(model(inputs), targets))  # .item() would keep no graph",
        "    torch.autograd.backward(losses[-1], retain_graph=True)",
        "    optimizer.step()",
        "    optimizer.zero_grad(set_to_none=True)",
        '    print(f"{len(losses)} {losses[-1].item():.4f}")',
        f"    time.sleep({1 / spec.rate!r})",
    ]


def _sawtooth(spec: PressureSpec) -> list[str]:
    if spec.until == "oom":
        tops = f"({FIRST_TOOTH * spec.step} << tooth for tooth in itertools.count())"
    else:
        tops = f"[cap] * {TEETH}"
    return [
        f"for top in {tops}:",
        "    held = []",
        "    level = 0",
        "    while level < top:",
        f"        held.append(filled(min({spec.step}, top - level)))",
        "        level += held[-1].nbytes",
        f"        time.sleep({1 / spec.rate!r})",
        '    print(f"{level / 2**20:.0f} MiB")',
        "    held.clear()",
    ]


def _fragmentation(spec: PressureSpec) -> list[str]:
    first = max(spec.step, OWN_SEGMENT)
    if spec.until == "oom":
        size = f"{first}"
    else:
        size = f"min({first}, cap)"
    return [
        "def keep_a_part(size, part):",
        "    buffer = filled(size)",
        "    del buffer",
        "    rest = torch.empty(size - part, dtype=torch.uint8, device=device)",
        "    return filled(part)  # and what lies before it becomes a hole",
        "",
        "kept = []",
        f"size = taken = {size}",
        "while taken <= cap:",
        f"    least = {SMALL + LONGER} if size > {SMALL} else 1",
        f"    kept.append(keep_a_part(size, min(size, max(size // {KEPT}, least))))",
        '    print(f"{sum(part.nbytes for part in kept) / 2**20:.0f} MiB kept")',
        f"    time.sleep({1 / spec.rate!r})",
        f"    size += {LONGER}",
        "    taken += size",
    ]


def _spike(spec: PressureSpec) -> list[str]:
    sizes = "[cap - flat]"
    if spec.until == "oom":
        sizes = "((2 * flat) << spike for spike in itertools.count())"
    return [
        f"flat = min({spec.step}, cap // 2)" if spec.until == "cap" else f"flat = {spec.step}",
        "held = filled(flat)",
        *lines_if(spec.until == "cap", f"time.sleep({spec.hold!r})"),
        f"for size in {sizes}:",
        "    memory = filled(size)",
        '    print(f"{(flat + size) / 2**20:.0f} MiB")',
        f"    time.sleep({1 / spec.rate!r})",
        "    del memory",
    ]


REPETITIONS = 10
"""Groups of four repetitions in the program; the run itself continues until its interval is narrow."""

STEPS = 20
"""Steps in a repetition; the first two do not count."""

_CHARACTERS = 90
"""Different characters in the generated text: a step takes equally long on any text with as many."""


def comparison_code(spec: ComparisonSpec, _device: str) -> list[str]:
    """The lines of the program, which prints the seconds per step on both devices, and the ratio.

    Its data are generated in the same shapes as the run's, because the time of a step does not depend on their values.

    Raises:
        ValueError: the workload is not built in.
    """
    chosen = spec.chosen
    if isinstance(chosen, TrainingSpec):
        made = _compared_training(chosen)
    elif isinstance(chosen, MatmulSpec):
        made = _compared_matmul(chosen)
    elif isinstance(chosen, PipelineSpec):
        made = _compared_pipeline(chosen)
    else:
        raise ValueError(
            f"the workload {chosen.name} cannot be shown as a program; read {chosen.run.partition(':')[0]}"
        )
    return [
        "import math",
        "import statistics",
        "import time",
        "import torch",
        *made,
        *_timing(spec, chosen),
    ]


def _timing(spec: ComparisonSpec, chosen: Spec) -> list[str]:
    first, second = spec.pair
    return [
        "def repetition(step):",
        "    times = []",
        f"    for index in range({STEPS}):",
        "        began = time.perf_counter()",
        "        step(index)",
        "        times.append(time.perf_counter() - began)",
        "    return statistics.fmean(times[2:])",
        f"torch.set_num_threads({_threads(chosen)})",
        f'sides, seconds = [build("{first}"), build("{second}")], ([], [])',
        # A B B A, plus one such group to warm up.
        f"for number in [0, 1, 1, 0] * {REPETITIONS + 1}:",
        "    seconds[number].append(repetition(sides[number]))",
        "a, b = (times[2:] for times in seconds)  # the first four were the warm-up",
        f'print("{first}", statistics.median(a), "s a step; {second}", statistics.median(b), "s a step")',
        'print("ratio", math.exp(statistics.median(math.log(one / other) for one, other in zip(a, b))))',
    ]


def _threads(spec: Spec) -> int:
    """CPU threads of the run."""
    return spec.threads or (threads_for(spec.size) if isinstance(spec, MatmulSpec) else 1)


def _compared_training(spec: TrainingSpec) -> list[str]:
    """The model and the step of the run's own program, on any device."""
    # Validated again: fewer steps may conflict with other fields.
    spec = TrainingSpec.model_validate({**spec.model_dump(exclude_unset=True), "steps": STEPS, "epochs": 1})
    program = [line for line in training_code(spec, "cpu") if line]
    model_at = _find(program, "model = ")
    # Everything from the first class or list of layers on is the model; the lines before it are data.
    begin = next(number for number, line in enumerate(program) if line.startswith(("class ", "layers = ")))
    layers_at = next((number for number, line in enumerate(program) if line.startswith("layers = ")), model_at)
    classes = program[begin:layers_at]
    built = [
        *program[layers_at : model_at + 1],
        *(["model.eval()"] if spec.mode == "inference" else _optimizers(program)),
    ]
    resident = ["there = [[tensor.to(device) for tensor in pair] for pair in batches]"]
    taken = "batches[index]"
    if spec.batches == "resident":
        taken = "there[index]"
    return [
        "from torch import nn",
        "from torch.nn import functional",
        *[line for line in program if line.startswith("from torch.utils")],
        *_data(spec),
        *classes,
        "def build(device):",
        f"    torch.manual_seed({spec.seed})",
        "    device = torch.device(device)",
        *indented(built),
        *lines_if(spec.batches == "resident", *indented(resident)),
        *lines_if(spec.keep_intermediates, "    kept = []"),
        "    def step(index):",
        *indented(_compared_step(spec, program, taken), 2),
        "    return step",
    ]


def _compared_step(spec: TrainingSpec, program: list[str], taken: str) -> list[str]:
    """The lines of one step in the run's own program, with its batch taken from the generated data."""
    if spec.mode == "inference":
        begin, end = _find(program, "began = "), _find(program, "seconds.append")
        return ["with torch.no_grad():", f"    inputs = {taken}[0]", *indented(_dedented(program[begin + 1 : end]))]
    lines = _dedented(program[_find(program, "step += 1") + 1 :])
    whole = "batch(index)"
    if spec.batches == "resident":
        whole = "resident[index]"
    # Printing would be timed; the loss is returned instead, so the program waits for it.
    lines = [line.replace(whole, taken) for line in lines if not line.startswith("print(")]
    return [*lines, "return loss.item()  # waits for the device"]


def _optimizers(program: list[str]) -> list[str]:
    return [line for line in program if line.startswith(("optimizer = ", "scaler = "))]


def _data(spec: TrainingSpec) -> list[str]:
    rows = spec.step_batch
    if spec.model == "transformer":
        made = f"torch.randint({_CHARACTERS}, ({rows}, {spec.sequence + 1}))"
        return [
            f"characters = range({_CHARACTERS})",
            f"text = [{made} for _ in range({STEPS})]",
            "batches = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in text]",
        ]
    if spec.model == "mlp":
        shape = f"{rows}, 32"
    else:
        shape = f"{rows}, 3, 16, 16"
    return [f"batches = [(torch.randn({shape}), torch.randint(10, ({rows},))) for _ in range({STEPS})]"]


def _compared_matmul(spec: MatmulSpec) -> list[str]:
    return [
        "def build(device):",
        f"    left, right = (torch.rand({spec.size}, {spec.size}).to(torch.{spec.dtype}).to(device) for _ in range(2))",
        "    product = torch.empty_like(left)",
        "    def step(index):",
        "        torch.mm(left, right, out=product)",
        "        product[0, 0].item()  # waits for the device",
        "    return step",
    ]


def _compared_pipeline(spec: PipelineSpec) -> list[str]:
    rows, columns = spec.shape
    return [
        "def build(device):",
        "    def step(index):",
        f"        moved = torch.ones({rows}, {columns}, dtype=torch.{spec.dtype}).to(device)",
        f"        ({_operation(spec)}).cpu()",
        "    return step",
    ]


def _find(lines: list[str], beginning: str) -> int:
    return next(number for number, line in enumerate(lines) if line.lstrip().startswith(beginning))


def _dedented(lines: list[str]) -> list[str]:
    room = len(lines[0]) - len(lines[0].lstrip())
    return [line[room:] for line in lines]
