"""The inference fast path of ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention``, as on CUDA.

torch runs a whole layer as one operation, whose parts each allocate memory (aten/src/ATen/native/transformers:
transformer.cpp, attention.cpp and cuda/attention.cu; the masked softmax is in cuda/SoftMax.cu). Here the same parts
are called in the same order, each with its own kernel for the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend

from gpudash.simulator.device.storage import KEY, kernel_library
from gpudash.simulator.operations.attention import choose, cudnn
from gpudash.simulator.operations.operations import Engine

FUSED = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, cudnn)

OF_ROWS_AND_COLUMNS, OF_KEYS = 0, 1
"""Mask types: the same for the whole batch, (length, length), or the padding, (batch, length)."""

LONGEST_PERSISTENT, WIDEST_PERSISTENT = 1024, 4096
"""Elements and bytes of a row that the masked softmax reads at once; longer rows take two more copies."""

_attention = torch.ops.aten._native_multi_head_attention
_masked_softmax: Callable[..., torch.Tensor] = torch.ops.aten._masked_softmax
_split = torch.ops.aten._transform_bias_rescale_qkv
_activated = torch.ops.aten._addmm_activation


def install(engine: Engine) -> list[Any]:
    """Register the layer, its attention and the operations that only it uses."""
    library = kernel_library("aten")
    parts = EncoderAttention(engine)
    for name, kernel in {
        "_transformer_encoder_layer_fwd": layer,
        "_native_multi_head_attention": parts.attend,
        "_transform_bias_rescale_qkv": engine.counting("_transform_bias_rescale_qkv", parts.split),
        "_masked_softmax": engine.counting("_masked_softmax", parts.masked_softmax),
    }.items():
        library.impl(name, kernel, KEY)
    return [library]


def layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """The layer's output for ``src``, of sizes (batch, length, ``embed_dim``)."""
    if not src.numel():
        return src.clone()
    first = norm_weight_1, norm_bias_1, eps
    second = norm_weight_2, norm_bias_2, eps
    x = src
    if norm_first:
        x = functional.layer_norm(src, (embed_dim,), *first)
    qkv, projection = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
    x = _attention(x, x, x, embed_dim, num_heads, *qkv, *projection, mask, False, True, mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = functional.layer_norm(x, (embed_dim,), *first)
    attended = x
    if norm_first:
        x = functional.layer_norm(x, (embed_dim,), *second)
    rows = x.view(-1, embed_dim)
    wide = _activated(ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu)
    del rows
    made = torch.addmm(ffn_bias_2, wide, ffn_weight_2.t()).view(src.shape)
    del wide
    x = made
    del made
    x.add_(attended)
    if not norm_first:
        x = functional.layer_norm(x, (embed_dim,), *second)
    return x


class EncoderAttention:
    """Multi-head attention, from its inputs to its projection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        embed_dim: int,
        num_head: int,
        qkv_weight: torch.Tensor,
        qkv_bias: torch.Tensor,
        proj_weight: torch.Tensor,
        proj_bias: torch.Tensor,
        mask: torch.Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The projected result, (batch, length, ``embed_dim``), and the weights if they are needed.

        Raises:
            RuntimeError: for sizes that torch rejects.
        """
        _check(query, key, value, embed_dim, num_head)
        if mask is None and not need_weights and self._is_fused(query, key, value, num_head):
            x = functional.linear(query, qkv_weight, qkv_bias)
            queries, keys, values = (_heads(part, num_head) for part in x.chunk(3, -1))
            made = functional.scaled_dot_product_attention(queries, keys, values)
            del queries, keys, values
            flat = made.transpose(1, 2).reshape(query.shape)
            result = functional.linear(flat, proj_weight, proj_bias)
            del flat, made, x
            return result, None
        qkv = _projected(query, key, value, embed_dim, qkv_weight)
        if not qkv.numel():
            return torch.empty_like(query), None
        queries, keys, values = (part.flatten(0, 1) for part in _split(qkv, qkv_bias, num_head))
        del qkv
        batch, length = query.shape[:2]
        scores = torch.bmm(queries, keys.transpose(1, 2)).view(batch, num_head, length, keys.shape[1])
        scores = self._softmax(scores, mask, mask_type)
        torch.bmm(scores.flatten(0, 1), values, out=queries)  # whose contents are no longer needed
        weights = None
        if need_weights:
            weights = scores
        del scores
        gathered = queries.view(batch, num_head, length, -1).transpose(1, 2).reshape(batch, length, embed_dim)
        result = functional.linear(gathered, proj_weight, proj_bias)
        del gathered
        if weights is not None and average_attn_weights:
            weights = weights.sum(1)
            weights /= num_head
        return result, weights

    def split(
        self, qkv: torch.Tensor, qkv_bias: torch.Tensor, num_heads: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (scaled), keys and values, each (batch, heads, length, width), in a single buffer."""
        batch, length, wide = qkv.shape
        width = wide // 3 // num_heads
        size = (3, batch, num_heads, length, width)
        whole = self._engine.empty(size, qkv.dtype, qkv.device.index, None)
        if self._engine.computes:
            numbers = self._engine.like(qkv) + self._engine.like(qkv_bias)
            numbers = numbers.view(batch, length, 3, num_heads, width).permute(2, 0, 3, 1, 4)
            target = self._engine.like(whole)
            target.copy_(numbers)
            target[0].div_(width**0.5)
        queries, keys, values = whole.unbind()
        return queries, keys, values

    def masked_softmax(
        self, scores: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
    ) -> torch.Tensor:
        """Softmax of ``scores`` without the elements that ``mask`` excludes.

        Raises:
            RuntimeError: for a mask that torch rejects.
        """
        result = torch.empty_like(scores)
        if dim is None:
            axis = scores.dim() - 1
        else:
            axis = dim
        shown = mask
        is_of_keys = mask_type == OF_KEYS and mask.dim() == 2 and scores.dim() == 4
        if is_of_keys:
            shown = mask.view(mask.shape[0], 1, 1, mask.shape[1]).expand(scores.shape)
        elif mask_type == OF_ROWS_AND_COLUMNS and mask.dim() == 2 and scores.dim() == 4:
            shown = mask.expand(scores.shape)
        elif mask.shape != scores.shape:
            raise RuntimeError(f"Mask shape should match input. mask: {list(mask.shape)} input: {list(scores.shape)}")
        whole = shown
        if is_of_keys:
            whole = mask
        count = 1
        if scores.dim():
            count = scores.shape[axis]
        is_long = count > LONGEST_PERSISTENT or count * scores.dtype.itemsize > WIDEST_PERSISTENT
        if is_long or not whole.is_contiguous() or axis not in (scores.dim() - 1, -1):
            filled = scores.masked_fill(shown, float("-inf"))
            made = torch.softmax(filled, axis)
            del filled, result
            return made
        if self._engine.computes:
            given = self._engine.like(scores).masked_fill(self._engine.like(shown), float("-inf"))
            self._engine.like(result).copy_(given.softmax(axis))
        return result

    def _is_fused(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int) -> bool:
        """Whether all three are one tensor that a fused attention kernel supports."""
        if not (query is key and key is value) or not query.numel():
            return False
        capability = self._engine.card(query.device.index).architecture.capability
        part = _heads(query, heads)
        return choose(part, part, part, None, False, False, 0.0, capability) in FUSED

    def _softmax(self, scores: torch.Tensor, mask: torch.Tensor | None, mask_type: int | None) -> torch.Tensor:
        """Softmax, in place if there is no mask."""
        if mask is not None:
            truths = mask.to(torch.bool)
            return _masked_softmax(scores, truths, scores.dim() - 1, mask_type)
        if self._engine.computes:
            numbers = self._engine.like(scores)
            numbers.copy_(numbers.softmax(-1))
        return scores


def _heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    batch, length, width = tensor.shape
    return tensor.view(batch, length, heads, width // heads).transpose(1, 2)


def _projected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, weight: torch.Tensor
) -> torch.Tensor:
    """Queries, keys and values side by side, with one product for each different input."""
    if key is value:
        if query is key:
            return functional.linear(query, weight)
        inner, outer = weight[:width], weight[width:]
        return torch.cat([functional.linear(query, inner), functional.linear(key, outer)], 2)
    parts = [functional.linear(given, one) for given, one in zip((query, key, value), weight.chunk(3))]
    return torch.cat(parts, 2)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, heads: int) -> None:
    if query.dim() != 3 or query.shape[2] != width or not query.shape == key.shape == value.shape:
        sizes = ", ".join(str(list(tensor.shape)) for tensor in (query, key, value))
        raise RuntimeError(f"expected query, key and value of the same sizes, (batch, length, {width}), got {sizes}")
    if width % heads:
        raise RuntimeError("`embed_dim` must divide evenly by `num_heads`")
