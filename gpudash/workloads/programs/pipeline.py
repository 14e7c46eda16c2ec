"""Creates a tensor on the CPU, moves it to the device, operates on it, and copies it back.

Also makes common mistakes with devices, to show torch's error messages with an explanation and the fix.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gpudash.specs import DTYPE_BYTES, PipelineSpec
from gpudash.specs.pipeline import COUNT_LIMIT
from gpudash.telemetry.records import Topic
from gpudash.units import format_duration
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.stages import Stage

WHOLE = 1000
"""Results of up to this many elements are reported whole; of larger ones, the first `FIRST`."""

FIRST = 9

CHUNK = 2**22
"""Elements that are filled or checked in one operation, so that Stop waits only a few milliseconds."""

CHECK_FLOPS = 2e9
"""The most floating-point operations for checking a matrix product; of larger ones the first rows are checked."""

SAME_DEVICE = "same device: torch returned the same tensor, 0 bytes copied"


@dataclass
class _Outcome:
    original: torch.Tensor
    returned: torch.Tensor
    same_object: bool


def run(spec: PipelineSpec, context: Context) -> Mapping[str, Any]:
    """Run the pipeline `spec.repeat` times, and check the last result.

    Returns:
        ``values`` and ``expected`` (whole up to `WHOLE` elements, otherwise the first `FIRST`), ``equal`` over all
        ``checked`` elements, ``original_unchanged``, ``same_object`` (moving returned the same Python object), and
        ``pitfall`` if one was requested.

    Raises:
        GuardRefused, Cancelled: between operations.
    """
    # Not timed: the first operation creates CUDA's context.
    _warm_up(spec, context)
    context.begin_steps()
    outcome: _Outcome | None = None
    for repetition in range(1, spec.repeat + 1):
        outcome = None  # free the previous tensors before the next ones are created
        context.check_cancelled()
        outcome = _once(spec, context)
        context.progress(repetition, spec.repeat)
    assert outcome is not None
    result = _check(spec, context, outcome)
    del outcome
    if spec.pitfall != "none":
        result["pitfall"] = show(spec.pitfall, context)
    return result


def _warm_up(spec: PipelineSpec, context: Context) -> None:
    """Let torch do its one-time setup, above all the CUDA context, so that it does not count for any stage."""
    single = spec.model_copy(update={"rows": 1, "columns": 1, "size": None})
    operated(spec, filled(single, torch.device("cpu"), context).to(context.device)).cpu()
    filled(single, context.device, context)


def _once(spec: PipelineSpec, context: Context) -> _Outcome:
    context.about_to_allocate(spec.bytes, "cpu")
    with context.stage("create", bytes=spec.bytes, to_device="cpu", copied=False) as created:
        original = filled(spec, torch.device(context.host), context)
    created.describe(original)
    created.report(same_object=False, remark="a new tensor in the CPU's memory")
    if spec.move == "pinned":
        context.about_to_allocate(spec.bytes, "cpu")
        with context.stage("pin", bytes=spec.bytes, from_device="cpu", to_device="cpu", copied=True) as pinned:
            pageable, original = original, original.pin_memory()
        pinned.describe(original)
        pinned.report(
            same_object=original is pageable, remark="copied into page-locked memory, shape and device unchanged"
        )
        del pageable
    moved = _move(spec, context, original)
    same_object = moved is original
    if spec.move == "direct":
        # The previous copy is freed first, so that both never exist at once.
        del moved
        moved = _create_directly(spec, context)
    operated = _operate(spec, context, moved)
    del moved
    return _Outcome(original, _return(spec, context, operated), same_object)


def filled(spec: PipelineSpec, device: torch.device, context: Context) -> torch.Tensor:
    """A new tensor on ``device`` with the shape and dtype of ``spec``, filled according to ``spec.fill``."""
    rows, columns = spec.shape
    dtype = getattr(torch, spec.dtype)
    if spec.fill == "ones":
        return torch.ones(rows, columns, dtype=dtype, device=device)
    tensor = torch.empty(rows, columns, dtype=dtype, device=device)
    flat = tensor.view(-1)
    if spec.fill == "count":
        limit = COUNT_LIMIT[spec.dtype]
        # Small enough for a single operation that counts from 1 without a remainder.
        if flat.numel() <= min(limit, CHUNK):
            torch.arange(1, flat.numel() + 1, out=flat)
            return tensor
        for first in range(0, flat.numel(), CHUNK):
            context.check_cancelled()
            part = flat[first : first + CHUNK]
            # By remainder, so that dtypes with few digits count without rounding.
            part.copy_((torch.arange(first, first + part.numel(), device=device) % limit) + 1)
        return tensor
    # A simulated GPU has no generator of its own: its numbers come from the CPU's.
    generator = torch.Generator("cpu" if device.type in ("sim", "meta") else device).manual_seed(spec.seed)
    for first in range(0, flat.numel(), CHUNK):
        context.check_cancelled()
        part = flat[first : first + CHUNK]
        if dtype.is_floating_point:
            part.uniform_(generator=generator)
        else:
            part.random_(0, 100, generator=generator)
    return tensor


def _move(spec: PipelineSpec, context: Context, original: torch.Tensor) -> torch.Tensor:
    device = context.device
    if device.type != "cpu" or spec.move == "to_dtype":
        if spec.move == "to_dtype":
            wide = DTYPE_BYTES["float64"]
        else:
            wide = DTYPE_BYTES[spec.dtype]
        context.about_to_allocate(original.numel() * wide)
    # Created before the stage, so that only the move is timed.
    other = torch.empty(0, dtype=original.dtype, device=device)
    moves: dict[str, Callable[[], torch.Tensor]] = {
        "to": lambda: original.to(device),
        "to_dtype": lambda: original.to(device, torch.float64),
        "to_other": lambda: original.to(other),
        "cuda": lambda: _by_kind(original, device.type)(),
        "cuda_index": lambda: _by_kind(original, device.type)(device.index),
        "pinned": lambda: original.to(device, non_blocking=True),
        "direct": lambda: original.to(device),
    }
    move = moves[spec.move]
    with context.stage("move", from_device="cpu", to_device=str(device)) as stage:
        if spec.move == "pinned":
            stage.memory = "pinned"
        else:
            stage.memory = "pageable"
        moved = move()
    renamed = device.type == "sim" and spec.move in ("cuda", "cuda_index")
    _report_move(stage, original, moved, "; on a simulated GPU .cuda() is called .sim()" if renamed else "")
    return moved


def _by_kind(tensor: torch.Tensor, kind: str) -> Callable[..., torch.Tensor]:
    """``tensor.cuda``, or its equivalent for another device type."""
    method: Callable[..., torch.Tensor] = getattr(tensor, kind)
    return method


def _report_move(stage: Stage, before: torch.Tensor, after: torch.Tensor, besides: str = "") -> None:
    same = after is before
    if same:
        remark = SAME_DEVICE
    elif after.device != before.device:
        remark = f"shape unchanged, device changed: {before.device} → {after.device}"
    else:
        remark = f"same device: a new tensor of type {str(after.dtype).removeprefix('torch.')}, shape unchanged"
    stage.describe(after)
    stage.report(bytes=0 if same else after.nbytes, copied=not same, same_object=same, remark=f"{remark}{besides}")


def _create_directly(spec: PipelineSpec, context: Context) -> torch.Tensor:
    context.about_to_allocate(spec.bytes)
    device = str(context.device)
    with context.stage("create on device", bytes=spec.bytes, to_device=device, copied=False) as stage:
        direct = filled(spec, context.device, context)
    stage.describe(direct)
    stage.report(same_object=False, remark=f"a new tensor in the memory of {device}: nothing to move")
    # Once: later repetitions use the allocator's cache.
    if context.steps_done == 0:
        directly = context.stage_seconds("create on device")
        indirectly = context.stage_seconds("create") + context.stage_seconds("move")
        context.note(
            Topic.DIRECT,
            f"Created on {device} in {format_duration(directly)}; created on the CPU and moved in "
            f"{format_duration(indirectly)}.",
            created_on_device_seconds=directly,
            created_and_moved_seconds=indirectly,
        )
    return direct


def _operate(spec: PipelineSpec, context: Context, tensor: torch.Tensor) -> torch.Tensor:
    rows, columns = spec.shape
    product = spec.operation == "matmul"
    size = (rows * rows if product else rows * columns) * tensor.element_size()
    context.about_to_allocate(size)
    if product:
        flops = 2.0 * rows * rows * columns
    else:
        flops = float(rows * columns)
    device = str(tensor.device)
    with context.stage("operate", bytes=size, from_device=device, to_device=device, copied=False, flops=flops) as stage:
        result = operated(spec, tensor)
    stage.describe(result)
    stage.report(same_object=result is tensor, remark=f"computed on {result.device}, where its operand is")
    return result


def operated(spec: PipelineSpec, tensor: torch.Tensor) -> torch.Tensor:
    """The result of ``spec.operation`` on ``tensor``; an integer scalar keeps integer dtypes."""
    if tensor.dtype.is_floating_point:
        scalar = spec.scalar
    else:
        scalar = int(spec.scalar)
    match spec.operation:
        case "add":
            return tensor + scalar
        case "multiply":
            return tensor * scalar
        case "matmul":
            return tensor @ tensor.T
        case "relu":
            return torch.relu(tensor)


def _return(spec: PipelineSpec, context: Context, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu":
        context.about_to_allocate(tensor.nbytes, "cpu")
    with context.stage("return", from_device=str(tensor.device), to_device="cpu") as stage:
        if spec.back == "cpu":
            returned = tensor.cpu()
        else:
            returned = tensor.to("cpu")
    _report_move(stage, tensor, returned)
    return returned


def _check(spec: PipelineSpec, context: Context, outcome: _Outcome) -> dict[str, Any]:
    expected_head, equal, checked = _compare(spec, context, outcome)
    if outcome.returned.numel() <= WHOLE:
        shown = outcome.returned
    else:
        shown = outcome.returned.reshape(-1)[:FIRST]
    return {
        "values": shown.tolist(),
        "expected": expected_head,
        "equal": equal,
        "checked": checked,
        "original_unchanged": _unchanged(spec, context, outcome.original),
        "same_object": outcome.same_object,
    }


def _compare(spec: PipelineSpec, context: Context, outcome: _Outcome) -> tuple[list[Any], bool, int]:
    """The first expected values, whether the result equals the float64 one, and over how many elements."""
    original, returned = outcome.original, outcome.returned
    rows, columns = spec.shape
    if original.dtype.is_floating_point:
        wide = torch.float64
    else:
        wide = torch.int64
    if spec.operation in ("add", "multiply"):
        scalars = _as_operands(spec.scalar, returned.dtype)
    else:
        scalars = [spec.scalar]
    specs = [spec.model_copy(update={"scalar": scalar}) for scalar in scalars]
    limit = rows
    if spec.operation == "matmul":
        limit = max(1, min(rows, int(CHECK_FLOPS / (2 * rows * columns))))
    # In parts: a float64 copy of the whole would take up to eight times as much as the tensor.
    step = max(1, CHUNK // max(columns, returned.shape[1]))
    # Announced, because it is the only large allocation of the check.
    context.about_to_allocate(original.numel() * 8 if spec.operation == "matmul" else 0, "cpu")
    transposed = None
    if spec.operation == "matmul" and limit:
        transposed = original.to(wide).T
    heads: list[torch.Tensor] = []
    equal = [True] * len(specs)
    for first in range(0, limit, step):
        context.check_cancelled()
        part = original[first : min(first + step, limit)].to(wide)
        for number, as_torch in enumerate(specs):
            if transposed is not None:
                expected = part @ transposed
            else:
                expected = operated(as_torch, part)
            expected = expected.to(returned.dtype)
            if first == 0:
                heads.append(expected)
            # Sums in a product may be in any order; everything else is exact.
            close = _close(returned[first : first + len(part)], expected, exact=transposed is None)
            equal[number] = equal[number] and close
    shown = heads[equal.index(True) if any(equal) else 0]
    whole = returned.numel() <= WHOLE and limit == rows
    return (shown.tolist() if whole else shown.reshape(-1)[:FIRST].tolist()), any(equal), limit * returned.shape[1]


def _as_operands(scalar: float, dtype: torch.dtype) -> list[float]:
    """The scalar as torch may use it: computations with types narrower than float64 use float32.

    In half-precision additions the CPU first rounds the scalar to the tensor's dtype, but a GPU does not.
    """
    if dtype == torch.float64 or not dtype.is_floating_point:
        return [scalar]
    return list(dict.fromkeys(float(torch.tensor(scalar, dtype=kind)) for kind in (torch.float32, dtype)))


def _close(found: torch.Tensor, expected: torch.Tensor, *, exact: bool) -> bool:
    """Whether they are equal, or for a product's sums within the rounding of the dtype: 16 units in the last place."""
    if exact or not found.dtype.is_floating_point:
        return torch.equal(found, expected)
    tolerance = 16 * torch.finfo(found.dtype).eps
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def _unchanged(spec: PipelineSpec, context: Context, original: torch.Tensor) -> bool:
    """Whether the original still holds its initial values, compared with another tensor filled the same way."""
    context.about_to_allocate(spec.bytes, "cpu")
    return torch.equal(original, filled(spec, torch.device("cpu"), context))


@dataclass(frozen=True)
class Pitfall:
    """The result of a mistake.

    Attributes:
        message: torch's own error message; ``None`` if there is none, which makes the mistake hard to find.
        explanation: the reason, in one sentence.
        remedy: what to write instead.
        facts: observed values.
    """

    message: str | None
    explanation: str
    remedy: str
    facts: dict[str, Any] = field(default_factory=dict)


def show(name: str, context: Context) -> dict[str, Any]:
    """Make the mistake ``name`` on the run's device and report it as a note of topic "pitfall"."""
    with context.stage(f"pitfall: {name.replace('_', ' ')}", device=str(context.device)) as stage:
        pitfall = PITFALLS[name](context.device)
    details = {"pitfall": name, **asdict(pitfall)}
    text = "PyTorch reports no error."
    if pitfall.message is not None:
        text = f"torch: {pitfall.message}"
    stage.report(is_cuda=context.device.type == "cuda", remark=text)
    context.note(Topic.PITFALL, f"{text} {pitfall.explanation} {pitfall.remedy}", **details)
    return details


def unassigned(device: torch.device) -> Pitfall:
    """``x.to(device)`` without using its result."""
    tensor = torch.ones(3)
    tensor.to(device)
    text = _error_message(lambda: tensor + torch.ones(3, device=device))
    return Pitfall(
        text,
        "A tensor's .to() returns a copy and leaves the tensor where it is; only a module moves in place.",
        "Keep the result: x = x.to(device).",
        {"device_after": str(tensor.device)},
    )


def mixed_devices(device: torch.device) -> Pitfall:
    """An operation on tensors of two devices."""
    on_cpu, on_device = torch.ones(3), torch.ones(3, device=device)
    return Pitfall(
        _error_message(lambda: on_cpu + on_device),
        "torch never moves a tensor by itself: both operands must be on the same device.",
        "Move one to the other's device: a.to(b.device) + b.",
        {"devices": [str(on_cpu.device), str(on_device.device)]},
    )


def leaf(device: torch.device) -> Pitfall:
    """A leaf that requires grad is moved, and the copy is mistaken for the leaf."""
    return copied_leaf(lambda original: original.to(device))


def copied_leaf(copy: Callable[[torch.Tensor], torch.Tensor]) -> Pitfall:
    """What happens to the gradient when computing with a ``copy`` of a leaf."""
    original = torch.ones(3, requires_grad=True)
    moved = copy(original)
    moved.sum().backward()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradient = moved.grad
    text = None
    if caught:
        text = str(caught[0].message)
    return Pitfall(
        text,
        "The copy is the result of an operation, so it is no leaf: the gradient went to the original, and an optimizer "
        "given the copy never changes it.",
        "Move first, then ask for gradients: x = x.to(device).requires_grad_().",
        {
            "copy_is_leaf": moved.is_leaf,
            "copy_has_gradient": gradient is not None,
            "original_has_gradient": original.grad is not None,
            "gradient_device": str(original.grad.device) if original.grad is not None else None,
        },
    )


def numpy(device: torch.device) -> Pitfall:
    """``.numpy()`` on a tensor that is on a device."""
    tensor = torch.ones(3, device=device)
    return Pitfall(
        _error_message(tensor.numpy),
        "NumPy reads the host's memory only.",
        "Bring the tensor back first: x.cpu().numpy(), and x.detach() before that when it requires grad.",
        {"device": str(tensor.device)},
    )


def current_device(device: torch.device) -> Pitfall:
    """``.cuda()`` (on a simulated GPU ``.sim()``) without an index, while another device is current."""
    kind = device.type
    module: Any = getattr(torch, kind)
    others = [index for index in range(module.device_count()) if index != device.index]
    if others:
        current = others[0]
    else:
        current = device.index
    # Made current for the block only: other operations of the run are not affected.
    with module.device(current):
        landed = getattr(torch.ones(3), kind)().device
    if others:
        explanation = (
            f".{kind}() goes to the current device, which was {kind}:{current}, and not to the chosen {device}."
        )
    else:
        explanation = (
            f".{kind}() goes to the current device; there is one GPU here, so that is the chosen {device} too."
        )
    return Pitfall(
        None,
        explanation,
        f"Name the device: x.to(device), or set it with torch.{kind}.set_device(i).",
        {"chosen": str(device), "landed": str(landed)},
    )


PITFALLS: dict[str, Callable[[torch.device], Pitfall]] = {
    "unassigned": unassigned,
    "mixed_devices": mixed_devices,
    "leaf": leaf,
    "numpy": numpy,
    "current_device": current_device,
}


def _error_message(mistake: Callable[[], Any]) -> str | None:
    """torch's error message for ``mistake``; ``None`` if there is no error."""
    try:
        mistake()
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        return str(error)
    return None
