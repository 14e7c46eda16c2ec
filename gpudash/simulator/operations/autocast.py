"""Autocast on the simulated device, with CUDA's operation lists and its cache of cast weights.

The lists and policies are those of torch 2.13's aten/src/ATen/autocast_mode.h and autocast_mode.cpp; operations that
the running torch lacks are skipped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.device.storage import kernel_library

KEY = "AutocastPrivateUse1"

LOWER_PRECISION = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
"""Run in autocast's dtype."""

SINGLE_PRECISION = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
"""Run in float32."""

SINGLE_PRECISION_RESULT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]
"""Return float32 through their ``dtype`` argument unless it is set; other arguments are unchanged."""

NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Norms, and the variants with a ``dtype`` that replace them to compute in float32."""

WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
"""Run in the widest dtype among the arguments."""

BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)

_keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))


class Casts:
    """Caches casts of weights until the outermost autocast ends.

    torch keeps its own cache out of Python's reach; this one replaces it, and is cleared with it.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def clear(self) -> None:
        """Drop all casts."""
        self._kept.clear()

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``tensor`` in ``dtype``, if autocast applies to it; the cast of a float32 leaf is cached.

        It is cached under ``no_grad`` too, but not under ``inference_mode``, where every use casts anew (`cached_cast`
        of torch's autocast_mode.cpp): an inference tensor could not be used for gradients later.
        """
        if not _is_eligible(tensor) or tensor.dtype == dtype:
            return tensor
        keeps = (
            dtype == torch.get_autocast_dtype(DEVICE)
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
            and not tensor._is_view()
        )
        if not keeps:
            return tensor.to(dtype)
        known = self._kept.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        with torch.enable_grad():  # it may be used again where gradients are needed
            made = tensor.to(dtype)
        self._kept[id(tensor)] = weakref.ref(tensor), made
        return made

    def all(self, value: Any, dtype: torch.dtype) -> Any:
        """``value`` with every tensor in it cast."""
        if isinstance(value, torch.Tensor):
            return self.cast(value, dtype)
        if isinstance(value, (list, tuple)):
            return type(value)([self.all(item, dtype) for item in value])
        return value


casts = Casts()
"""The cached casts of this process."""


def install() -> list[Any]:
    """Register what autocast does for each operation."""
    everything = kernel_library("_")
    everything.fallback(torch.library.fallthrough_kernel, KEY)
    library = kernel_library("aten")
    policies: tuple[tuple[list[str], Callable[[Any], Callable[..., Any]]], ...] = (
        (LOWER_PRECISION, _in_lower_precision),
        (SINGLE_PRECISION, _in_single_precision),
        (SINGLE_PRECISION_RESULT, _with_single_precision_result),
        (WIDEST, _in_widest),
        (list(NORMS), _norm),
        (["binary_cross_entropy"], _banned),
    )
    for names, policy in policies:
        for name in names:
            operation = find(name)
            if operation is not None:
                library.impl(name, policy(operation), KEY)
    _clear_with_torch()
    return [everything, library]


def find(name: str) -> Any:
    """torch's operation ``name`` or ``name.overload``; ``None`` if there is none."""
    packet, _dot, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.device.type == DEVICE and tensor.is_floating_point() and tensor.dtype != torch.float64


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _cast_and_run(operation: Any, dtype: torch.dtype, args: Any, kwargs: dict[str, Any]) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_keys):
        # the last argument first, the order in the compiled C++ code
        named = {name: casts.all(value, dtype) for name, value in reversed(kwargs.items())}
        inner = [casts.all(value, dtype) for value in reversed(args)]
        return operation(*reversed(inner), **named)


def _in_lower_precision(operation: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _cast_and_run(operation, torch.get_autocast_dtype(DEVICE), args, kwargs)

    return kernel


def _in_single_precision(operation: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _cast_and_run(operation, torch.float32, args, kwargs)

    return kernel


def _with_single_precision_result(operation: Any) -> Callable[..., Any]:
    place = [argument.name for argument in operation._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if place < len(args):
            given = args[place]
        else:
            given = kwargs.get("dtype")
        if given is None and _is_eligible(args[0]):
            args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
        with torch._C._ExcludeDispatchKeyGuard(_keys):
            return operation(*args, **kwargs)

    return kernel


def _in_widest(operation: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        widest = torch.get_autocast_dtype(DEVICE)
        for tensor in _tensors([*args, *kwargs.values()]):
            if tensor.is_floating_point() and tensor.dtype == torch.float32:
                widest = torch.float32
        return _cast_and_run(operation, widest, args, kwargs)

    return kernel


def _norm(operation: Any) -> Callable[..., Any]:
    schema = operation._schema
    name = schema.name.replace("aten::", "") + (f".{schema.overload_name}" if schema.overload_name else "")
    with_dtype = find(NORMS[name])
    names = [argument.name for argument in schema.arguments[1:]]
    defaults = {
        argument.name: argument.default_value for argument in schema.arguments[1:] if argument.has_default_value()
    }

    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_keys):
            if not _is_eligible(tensor):
                return operation(tensor, *args, **kwargs)
            given = {**defaults, **dict(zip(names, args)), **kwargs}
            return with_dtype(tensor, **given, dtype=torch.float32)

    return kernel


def _banned(_operation: Any) -> Callable[..., Any]:
    def kernel(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(BANNED)

    return kernel


def _clear_with_torch() -> None:
    """Clear the casts when torch clears its own: when the outermost autocast ends, and on request."""
    original: Callable[[], None] = torch.clear_autocast_cache

    def clear() -> None:
        original()
        casts.clear()

    torch.clear_autocast_cache = clear
