"""Attention by the package flash-attn, as transformers calls it, on sizes alone: the package itself needs CUDA.

torch's own flash kernel is a copy of flash-attn's and allocates the same: its result, one sum per row and the
generator's state; in the backward pass the same accumulators (``mha_fwd`` and ``mha_bwd`` of
csrc/flash_attn/flash_api.cpp). torch keeps one more number for each call, a block of 512 bytes. They differ in when
they are used: flash-attn supports windows and soft caps in its kernel, for which torch needs a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpudash.simulator.device.backend import registered
from gpudash.simulator.models.config import refused
from gpudash.simulator.models.packed_layers import PackedLinear
from gpudash.simulator.operations.attention import HALVES, LARGEST_FLASH_WIDTH, flash
from gpudash.simulator.refusal import CannotPredictError

NAME = "flash_attention_2"
"""The name in transformers."""

OLDEST = (8, 0)
"""Lowest compute capability on which flash-attn runs."""

OTHERS = "Leave --attention out, or choose --attention sdpa."

AS_TORCH = "flash-attn takes what torch's copy of its kernel takes"


def use_flash_attention(model: Any, transformers: Any) -> None:
    """Make a model of transformers use the stand-in for flash-attn.

    Args:
        model: an existing model, with any attention.
        transformers: the library.

    Raises:
        CannotPredictError: in one sentence, if the model or this transformers does not support flash-attn.
    """
    name = type(model).__name__
    compatible = getattr(model, "_compatible_flash_implementations", None)
    knows = getattr(model, "_supports_flash_attn", False) or getattr(model, "_supports_flash_attn_2", False)
    if not knows or (compatible and NAME not in compatible):
        raise refused(f"{name} does not know {NAME}.", OTHERS)
    interface = getattr(transformers, "AttentionInterface", None)
    if interface is None:
        problem = f"transformers {transformers.__version__} is too old to be followed with {NAME}."
        raise refused(problem, "Update it there, or leave --attention out.")
    interface.register(NAME, _attend)
    model.config._attn_implementation = NAME


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """Return what ``flash_attention_forward`` of transformers returns: (batch, length, heads, width), and ``None``.

    Args:
        query, key, value: (batch, heads, length, width).
    """
    if attention_mask is not None or s_aux is not None:
        raise refused(f"{type(module).__name__} gives {NAME} a mask or sinks, which are not followed.", OTHERS)
    own_width, width = value.shape[-1], query.shape[-1]
    if own_width != width:
        value = nn.functional.pad(value, [0, width - own_width])
    dtype = _narrowed(module, query)
    if query.dtype != dtype:
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    _check(query)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and query.shape[2] > 1
    made = flash(query, key, value, dropout, causal, scaling).transpose(1, 2)
    return (made if own_width == width else made[..., :own_width]), None


def _narrowed(module: nn.Module, query: torch.Tensor) -> torch.dtype:
    """The dtype that transformers casts float32 to for flash-attn (``get_target_dtype``)."""
    if query.dtype != torch.float32:
        return query.dtype
    if torch.is_autocast_enabled(query.device.type):
        return torch.get_autocast_dtype(query.device.type)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if any(isinstance(layer, PackedLinear) for layer in layers):
        config: Any = module.config
        found = getattr(config, "dtype", None)
        if isinstance(found, torch.dtype):
            return found
        return query.dtype
    if layers:
        return layers[0].weight.dtype
    return query.dtype


def _check(query: torch.Tensor) -> None:
    """Refuse what flash-attn refuses.

    Raises:
        CannotPredictError: in one sentence.
    """
    if query.dtype not in HALVES:
        kind = str(query.dtype).removeprefix("torch.")
        raise _unfit(f"takes bfloat16 and float16 only, and this model attends in {kind}", "Choose --precision bf16.")
    if query.shape[-1] > LARGEST_FLASH_WIDTH:
        raise _unfit(f"takes heads of {LARGEST_FLASH_WIDTH} at most, and these have {query.shape[-1]}", OTHERS)
    backend = registered()
    assert backend is not None
    capability = backend.engine.card(query.device.index or 0).architecture.capability
    if capability < OLDEST:
        version = ".".join(map(str, capability))
        raise _unfit(f"needs compute capability {'.'.join(map(str, OLDEST))}, and this card has {version}", OTHERS)


def _unfit(text: str, remedy: str) -> CannotPredictError:
    return refused(f"{NAME} {text}.", remedy)
