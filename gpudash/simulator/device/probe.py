"""Checks whether a simulated device can be added to the running torch, before anything relies on it."""

from __future__ import annotations

from typing import Any

import torch

from gpudash.simulator.device.naming import DEVICE

NEEDED = (
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
    "torch._C._acc.PrivateUse1Hooks",
    "torch._C._construct_storage_from_data_pointer",
    "torch._C._from_dlpack",
    "torch._C._dispatch_get_all_op_names",
    "torch._C._dispatch_has_kernel_for_dispatch_key",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C._get_privateuse1_backend_name",
    "torch._C.DispatchKey.AutocastPrivateUse1",
    "torch.autograd.graph._engine_run_backward",
    "torch.library.fallthrough_kernel",
    "torch.nn.attention.SDPBackend",
    "torch.utils.swap_tensors",
)
"""What the simulated device builds on; most of it is private to torch and may change."""


def problem() -> str | None:
    """Why no GPU can be simulated, in one sentence; ``None`` if one can.

    Checks whether everything needed exists; `tried` then uses it, when the device is registered.
    """
    missing = [name for name in NEEDED if not _exists(name)]
    if missing:
        return (
            f"torch {torch.__version__} cannot be given a device from Python: it lacks {missing[0]}; "
            "torch 2.9 or newer can."
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", DEVICE):
        return f"torch has been given another device already ({taken}), so no GPU can be simulated."
    return None


def tried() -> str | None:
    """What went wrong on the registered device, in one sentence; ``None`` if it works."""
    try:
        _try()
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        return f"torch {torch.__version__} has changed too much to be given a simulated GPU: {reason}"
    return None


def _try() -> None:
    weight = torch.arange(6.0).reshape(2, 3).to(DEVICE).requires_grad_()
    values = torch.ones(3, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        result = torch.nn.functional.linear(values, weight)
    torch.autograd.backward(result.float().square().sum())
    if weight.grad is None or weight.grad.cpu().tolist() != [[6.0] * 3, [24.0] * 3]:
        raise RuntimeError("a backward pass gave wrong numbers")


def _exists(name: str) -> bool:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
        if found is None:
            return False
    return True
