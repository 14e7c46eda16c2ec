"""Memory pressure as a plain PyTorch program."""

from __future__ import annotations

from gpudash.specs import PressureSpec
from gpudash.specs.training import CLASSES, FEATURES, SPREAD
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

LEAST_CAP = 1024
"""The least bytes that `PressureSpec.cap` may be."""


def ending(spec: PressureSpec, most: int | None) -> PressureSpec:
    """``spec`` with a cap, where it has none of its own: a program has no warning level to end above.

    Args:
        spec: the run.
        most: bytes that torch can reserve; ``None`` where that is not known.
    """
    if spec.cap is not None or spec.until == "oom":
        return spec
    cap = GIB if most is None else max(LEAST_CAP, min(GIB, int(OF_FREE * most)))
    cap = leak_within(cap, spec.step) if spec.pattern == "leak" else cap
    return spec.model_copy(update={"cap": cap})


def pressure_code(spec: PressureSpec, device: str) -> list[str]:
    """The lines of the program."""
    write = {
        "ramp": _ramp,
        "leak": _leak,
        "sawtooth": _sawtooth,
        "fragmentation": _fragmentation,
        "spike": _spike,
    }[spec.pattern]
    cap = "float('inf')" if spec.until == "oom" else str(spec.cap)
    lines = write(spec)
    own = [f"import {module}" for module in ("itertools", "time") if any(f"{module}." in line for line in lines)]
    leaks = spec.pattern == "leak"
    hold = [] if spec.until == "oom" else [f"time.sleep({spec.hold!r})"]
    return [
        *(own if "import time" in own or not hold else [*own, "import time"]),
        "",
        "import torch",
        *(["from torch import nn", "from torch.nn import functional"] if leaks else []),
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f"torch.manual_seed({spec.seed})",
        f'device = torch.device("{device}")',
        f"cap = {cap}  # bytes",
        "",
        *([] if leaks else ["def filled(size):", f"    return {_filled(device)}", ""]),
        *lines,
        *hold,
    ]


def _filled(device: str) -> str:
    """Memory nobody touches is not used; a simulated GPU counts what is asked for."""
    memory = "torch.empty(size, dtype=torch.uint8, device=device)"
    return memory if device.startswith("sim") else f"{memory}.fill_(1)"


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
    size = f"{first}" if spec.until == "oom" else f"min({first}, cap)"
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
    sizes = "((2 * flat) << spike for spike in itertools.count())" if spec.until == "oom" else "[cap - flat]"
    return [
        f"flat = min({spec.step}, cap // 2)" if spec.until == "cap" else f"flat = {spec.step}",
        "held = filled(flat)",
        *([f"time.sleep({spec.hold!r})"] if spec.until == "cap" else []),
        f"for size in {sizes}:",
        "    memory = filled(size)",
        '    print(f"{(flat + size) / 2**20:.0f} MiB")',
        f"    time.sleep({1 / spec.rate!r})",
        "    del memory",
    ]
