"""Common mistakes with devices, made for real: torch's own words, an explanation and the mend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gpudash.workloads.running.context import Context


@dataclass(frozen=True)
class Pitfall:
    """What came of a mistake.

    Attributes:
        message: torch's own words; ``None`` where torch says nothing, which is what makes the mistake hard to find.
        explanation: why, in one sentence.
        remedy: what to write instead.
        facts: what could be observed.
    """

    message: str | None
    explanation: str
    remedy: str
    facts: dict[str, Any] = field(default_factory=dict)


def show(name: str, context: Context) -> dict[str, Any]:
    """Make the mistake called ``name`` on the run's device and tell it as a note of topic "pitfall"."""
    with context.stage(f"pitfall: {name}", device=str(context.device)) as stage:
        pitfall = PITFALLS[name](context.device)
    details = {"pitfall": name, **asdict(pitfall)}
    words = f"torch: {pitfall.message}" if pitfall.message is not None else "torch says nothing."
    stage.tell(is_cuda=context.device.type == "cuda", remark=words)
    context.note("pitfall", f"{words} {pitfall.explanation} {pitfall.remedy}", **details)
    return details


def unassigned(device: torch.device) -> Pitfall:
    """``x.to(device)`` without keeping what it returns."""
    tensor = torch.ones(3)
    tensor.to(device)
    words = _words_of(lambda: tensor + torch.ones(3, device=device))
    return Pitfall(
        words,
        "A tensor's .to() returns a copy and leaves the tensor where it is; only a module moves in place.",
        "Keep the result: x = x.to(device).",
        {"device_after": str(tensor.device)},
    )


def mixed_devices(device: torch.device) -> Pitfall:
    """An operation on tensors of two devices."""
    on_cpu, on_device = torch.ones(3), torch.ones(3, device=device)
    return Pitfall(
        _words_of(lambda: on_cpu + on_device),
        "torch never moves a tensor by itself: both operands must be on the same device.",
        "Move one to the other's device: a.to(b.device) + b.",
        {"devices": [str(on_cpu.device), str(on_device.device)]},
    )


def leaf(device: torch.device) -> Pitfall:
    """A ``requires_grad`` leaf is moved, and the copy is taken for the leaf."""
    return copied_leaf(lambda original: original.to(device))


def copied_leaf(copy: Callable[[torch.Tensor], torch.Tensor]) -> Pitfall:
    """What becomes of the gradient when ``copy`` of a leaf is computed with."""
    original = torch.ones(3, requires_grad=True)
    moved = copy(original)
    moved.sum().backward()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gradient = moved.grad
    words = str(told[0].message) if told else None
    return Pitfall(
        words,
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
    """``.numpy()`` on a tensor of a device."""
    tensor = torch.ones(3, device=device)
    return Pitfall(
        _words_of(tensor.numpy),
        "NumPy reads the host's memory only.",
        "Bring the tensor back first: x.cpu().numpy(), and x.detach() before that when it requires grad.",
        {"device": str(tensor.device)},
    )


def current_device(device: torch.device) -> Pitfall:
    """``.cuda()`` (on a simulated GPU ``.sim()``) without an index, while another device than the chosen is current."""
    kind = device.type
    module: Any = getattr(torch, kind)
    others = [index for index in range(module.device_count()) if index != device.index]
    current = others[0] if others else device.index
    with module.device(current):
        landed = getattr(torch.ones(3), kind)().device
    explanation = (
        f".{kind}() goes to the current device, which was {kind}:{current}, and not to the chosen {device}."
        if others
        else f".{kind}() goes to the current device; there is one GPU here, so that is the chosen {device} too."
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


def _words_of(mistake: Callable[[], Any]) -> str | None:
    """What torch says to ``mistake``; ``None`` when it lets it pass."""
    try:
        mistake()
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        return str(error)
    return None
