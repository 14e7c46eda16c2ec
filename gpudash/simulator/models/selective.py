"""Selective activation checkpointing: which of a layer's results are kept, where the rest is computed again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from gpudash.simulator.models.config import refused

_aten = torch.ops.aten

PRODUCTS = "products"
LAYERS = "layers"

KEPT = frozenset(
    (
        _aten.mm.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten.max.default,
    )
)
"""Operations of one device whose results torchtitan keeps (``_op_sac_save_list``): of matrix products, every other."""


_MARK = "_gradient_checkpointing_func"
"""What transformers sets of a module that it checkpoints."""


def keep_of_layers(model: nn.Module, what: str) -> None:
    """Let checkpointing, which is on, keep more than each layer's input.

    Args:
        model: of transformers, changed.
        what: "nothing"; "products": attention and every other matrix product, as torchtitan's ``selective_ac_option =
            "op"`` does (torchtitan/distributed/activation_checkpoint.py); "layers": every other layer whole, as its
            ``selective_ac_option = "2"`` does.

    Raises:
        CannotPredictError: one sentence, where the model's layers are not checkpointed one by one.
    """
    if what not in (PRODUCTS, LAYERS):
        return
    layers = _checkpointed_layers(model)
    if not layers:
        raise refused(f"{type(model).__name__} has no layers of which some could be kept.", "Leave --keeps out.")
    if what == LAYERS:
        # The first, third, …: `_apply_layer_sac` of torchtitan counts from 1 and checkpoints the even ones.
        for layer in layers[::2]:
            layer.gradient_checkpointing = False
        return
    for layer in layers:
        layer._gradient_checkpointing_func = functools.partial(
            torch.utils.checkpoint.checkpoint, use_reentrant=False, context_fn=_contexts
        )


def _checkpointed_layers(model: nn.Module) -> list[Any]:
    """What is checkpointed as one; transformers marks the model around the layers as it marks them."""
    marked = [module for module in model.modules() if hasattr(module, _MARK)]
    return [module for module in marked if sum(hasattr(inner, _MARK) for inner in module.modules()) == 1]


def _contexts() -> Any:
    """Of one layer's passes, forward and again: products are counted anew in each."""
    make: Any = create_selective_checkpoint_contexts  # torch's is untyped
    return make(_policy())


def _policy() -> Callable[..., CheckpointPolicy]:
    products = {False: 0, True: 0}

    def chosen(context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if operation is _aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        if operation in KEPT:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return chosen
