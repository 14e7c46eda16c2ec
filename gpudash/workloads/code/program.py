"""A run as the plain PyTorch program it amounts to, to be read, copied and changed, in as many lines as are read
at a glance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gpudash.devices.names import OFFERED_BYTES, SIMULATED, Simulation, kind_of, written
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.specs import ComparisonSpec, MatmulSpec, PipelineSpec, PressureSpec, Spec, TrainingSpec, TransferSpec
from gpudash.specs.matmul import WARM_UP, threads_for
from gpudash.specs.memory_cap import MemoryCap
from gpudash.specs.pipeline import COUNT_LIMIT
from gpudash.workloads.code.comparison import comparison_code
from gpudash.workloads.code.pressure import ending, pressure_code
from gpudash.workloads.code.ranks import ranks_code
from gpudash.workloads.code.training import training_code
from gpudash.workloads.code.transfer import transfer_code


def code(
    spec: Spec,
    device: str,
    simulation: Simulation | None = None,
    memory_cap: MemoryCap | None = None,
    remark: Sequence[str] = (),
) -> str:
    """A program of at most 60 lines that does with torch alone what ``spec`` does on ``device``; prints its outcome.

    Args:
        spec: the run.
        device: where; a simulated GPU is first added to torch, which takes gpudash.
        simulation: the GPUs that are simulated; ``None``: one of the size that is offered.
        memory_cap: the most that torch may reserve on a GPU.
        remark: comments that the program begins with.

    Raises:
        ValueError: for a workload that is not built in.
    """
    writers: dict[type[Spec], Callable[[Any, str], list[str]]] = {
        PipelineSpec: _pipeline,
        TransferSpec: transfer_code,
        MatmulSpec: _matmul,
        TrainingSpec: training_code,
        PressureSpec: pressure_code,
        ComparisonSpec: comparison_code,
    }
    write = writers.get(type(spec))
    if isinstance(spec, TrainingSpec) and spec.device_names:
        write = ranks_code
        if memory_cap is not None:
            raise ValueError("--memory-cap is not part of the program of several devices; leave it out")
    if write is None:
        raise ValueError(f"the workload {spec.name} cannot be shown as a program; read {spec.run.partition(':')[0]}")
    simulation = simulation or Simulation()
    if isinstance(spec, PressureSpec):
        spec = ending(spec, _most(device, simulation, memory_cap))
    lines = write(spec, device)
    if memory_cap is not None:
        begin = 1 + max(number for number, line in enumerate(lines) if line.startswith(("import ", "from ")))
        lines[begin:begin] = ["", *_capped(memory_cap, device)]
    added = _simulated(simulation) if kind_of(device) == "sim" else []
    return "\n".join(fitted([*remark, *added, *lines])) + "\n"


def _most(device: str, simulation: Simulation, cap: MemoryCap | None) -> int | None:
    """Bytes that torch can reserve on a device at most; ``None`` where that is not known here."""
    if kind_of(device) != "sim":
        return None if cap is None else cap.allowed_bytes(None)
    index = int(device.partition(":")[2])
    capacity = (simulation.sizes or (OFFERED_BYTES,))[index]
    room = capacity - CONTEXT_BYTES - (0 if index else simulation.others)
    return room if cap is None else min(room, cap.allowed_bytes(capacity) or room)


def _simulated(simulation: Simulation) -> list[str]:
    given = [repr(written(card)) for card in simulation.cards or (OFFERED_BYTES,)]
    what = "bytes" if all(isinstance(card, int) for card in simulation.cards) else "a GPU's name, or bytes"
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
        f'{module}.set_per_process_memory_fraction({cap.size} / capacity, "{device}")',
    ]


def _pipeline(spec: PipelineSpec, device: str) -> list[str]:
    rows, columns = spec.shape
    scalar = repr(spec.scalar if spec.dtype.startswith(("float", "bfloat")) else int(spec.scalar))
    move = {
        "to": "x.to(device)",
        "to_dtype": "x.to(device, torch.float64)",
        "to_other": "x.to(torch.empty(0, dtype=x.dtype, device=device))",
        "cuda": "x.cuda()",
        "cuda_index": "x.cuda(device.index)",
        "pinned": "x.pin_memory().to(device, non_blocking=True)",
        "direct": _fill(spec, "device"),
    }[spec.move]
    operation = {
        "add": f"moved + {scalar}",
        "multiply": f"moved * {scalar}",
        "matmul": "moved @ moved.T",
        "relu": "torch.relu(moved)",
    }[spec.operation]
    back = "result.cpu()" if spec.back == "cpu" else 'result.to("cpu")'
    again = [f"    torch.manual_seed({spec.seed})"] if spec.fill == "random" else []
    lines = [
        "import torch",
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f'device = torch.device("{device}")',
        f"rows, columns = {rows}, {columns}",
        f"for _ in range({spec.repeat}):",
        *again,
        f"    x = {_fill(spec, None)}",
        *(again if spec.move == "direct" else []),
        f"    moved = {move}",
        f"    result = {operation}",
        f"    back = {back}",
        "print(x.device, moved.device, back.device, moved is x)",
        "print(back)",
    ]
    kind = device.partition(":")[0]
    return lines + [line.replace("{kind}", kind) for line in _PITFALLS[spec.pitfall]]


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
    wait = ["    torch.cuda.synchronize()"] if device.startswith("cuda") else []
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
WIDTH = 120

_COMPOUND = re.compile(r"(class|def|for|while|with|if|elif|else|import|from|return|try|except|finally|@)\b")


def fitted(lines: list[str], most: int = MOST_LINES) -> list[str]:
    """``lines`` as at most ``most``: where they are more, without blank ones, then with short statements side by side.

    Args:
        lines: of a program whose statements take a line each.
    """
    surplus = len(lines) - most
    kept: list[str] = []
    for line in reversed(lines):  # the blank lines between the imports and what follows go last
        if surplus > 0 and not line:
            surplus -= 1
        else:
            kept.append(line)
    lines = kept[::-1]
    while len(lines) > most:
        joined = _joined(lines, len(lines) - most)
        if len(joined) == len(lines):
            break
        lines = joined
    return lines


def _joined(lines: list[str], surplus: int) -> list[str]:
    """``lines`` with up to ``surplus`` statements put behind the one before, from the end on."""
    kept = [lines[-1]]
    for line in reversed(lines[:-1]):
        below = kept[-1]
        if surplus > 0 and _simple(line) and _simple(below) and _indent(line) == _indent(below):
            both = f"{line}; {below.strip()}"
            if len(both) <= WIDTH:
                kept[-1] = both
                surplus -= 1
                continue
        kept.append(line)
    return kept[::-1]


def _simple(line: str) -> bool:
    text = line.strip()
    whole = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))
    return bool(text) and whole and "#" not in text and not _COMPOUND.match(text)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
