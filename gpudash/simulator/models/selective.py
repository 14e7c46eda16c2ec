"""Selective activation checkpointing: which results of a layer are saved while the rest is recomputed."""

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
"""Operations on a single device whose results torchtitan saves (``_op_sac_save_list``); every other matrix product."""


_MARK = "_gradient_checkpointing_func"
"""Attribute that transformers sets on a module that it checkpoints."""


def keep_of_layers(model: nn.Module, what: str) -> None:
    """Make checkpointing, which is on, save more than each layer's input.

    Args:
        model: a model of transformers; it is changed.
        what: "nothing"; "products": attention and every other matrix product, like torchtitan's ``selective_ac_option
            = "op"`` (torchtitan/distributed/activation_checkpoint.py); "layers": every other layer as a whole, like
            its ``selective_ac_option = "2"``.

    Raises:
        CannotPredictError: in one sentence, if the model's layers are not checkpointed one by one.
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
    """The modules that are checkpointed as a unit; transformers marks the model around the layers in the same way."""
    marked = [module for module in model.modules() if hasattr(module, _MARK)]
    return [module for module in marked if sum(hasattr(inner, _MARK) for inner in module.modules()) == 1]


def _contexts() -> Any:
    """Contexts for a layer's forward pass and its recomputation: each counts products from zero."""
    make: Any = create_selective_checkpoint_contexts  # untyped in torch
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
