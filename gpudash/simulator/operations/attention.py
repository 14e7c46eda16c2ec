"""Fused attention on the simulated device: allocates like CUDA's kernels, which never hold all scores at once.

The choice of kernel follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. The kernels' allocations follow
attention.cu and attention_backward.cu there, and the flash attention 2 that torch includes. Workspaces that depend on
the number of multiprocessors are left out.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend

from gpudash.simulator.device.storage import KEY, kernel_library
from gpudash.simulator.operations.attention_scratch import backward_room_bytes
from gpudash.simulator.operations.operations import TORCH_VERSION, Engine

WIDEST_IN_REGISTERS = 128
"""For wider heads the memory-efficient kernel accumulates a half-precision result in a float32 buffer."""

# through torch.ops, rather than calling the kernels below, so that autograd records each as on CUDA
_math: Callable[..., tuple[torch.Tensor, ...]] = torch.ops.aten._scaled_dot_product_attention_math
_flash: Callable[..., tuple[torch.Tensor, ...]] = torch.ops.aten._scaled_dot_product_flash_attention
_efficient: Callable[..., tuple[torch.Tensor, ...]] = torch.ops.aten._scaled_dot_product_efficient_attention
_cudnn: Callable[..., tuple[torch.Tensor, ...]] = torch.ops.aten._scaled_dot_product_cudnn_attention


def install(engine: Engine) -> list[Any]:
    """Register attention and its kernels."""
    library = kernel_library("aten")

    def attending(*args: Any, **kwargs: Any) -> torch.Tensor:
        card = engine.card(engine.index_of(args[0].device))
        return attend(*args, **kwargs, capability=card.architecture.capability)

    # for autograd too, since the kernel is chosen first: the chosen one is recorded
    for key in (KEY, f"Autograd{KEY}"):
        library.impl("scaled_dot_product_attention", attending, key)
    kernels: dict[str, Callable[..., Any]] = {
        "_scaled_dot_product_flash_attention": Flash(engine).forward,
        "_scaled_dot_product_flash_attention_backward": Flash(engine).backward,
        "_scaled_dot_product_cudnn_attention": Cudnn(engine).forward,
        "_scaled_dot_product_cudnn_attention_backward": Cudnn(engine).backward,
        "_scaled_dot_product_efficient_attention": Efficient(engine).forward,
        "_scaled_dot_product_efficient_attention_backward": Efficient(engine).backward,
    }
    for name, kernel in kernels.items():
        library.impl(name, engine.counting(name, kernel), KEY)
    return [library]


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    capability: tuple[int, int] = (8, 0),
) -> torch.Tensor:
    """``scaled_dot_product_attention`` with the kernel that CUDA would choose for this compute capability."""
    if attn_mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    chosen = choose(query, key, value, attn_mask, is_causal, enable_gqa, dropout_p, capability)
    if chosen == cudnn:
        keeps = _keeps(query, key, value, attn_mask)
        bias = _as_bias(attn_mask, query)
        made = _cudnn(query, key, value, bias, keeps, dropout_p, is_causal, scale=scale)
        return made[0]
    if chosen == SDPBackend.FLASH_ATTENTION:
        return flash(query, key, value, dropout_p, is_causal, scale)
    if chosen == SDPBackend.EFFICIENT_ATTENTION:
        keeps = _keeps(query, key, value, attn_mask)
        bias = _bias(query, key, attn_mask)
        return _efficient(query, key, value, bias, keeps, dropout_p, is_causal, scale=scale)[0]
    mask = _as_bias(attn_mask, query)
    return _math(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention with the flash kernel, even if it would not be chosen; tensors are (batch, heads, length, width)."""
    width = query.shape[-1]
    padded = list(map(_padded, (query, key, value)))
    result: torch.Tensor = _flash(*padded, dropout_p, is_causal, scale=_scale(scale, width))[0]
    if result.shape[-1] == width:
        return result
    return result[..., :width]


def _keeps(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether there may be a backward pass (``should_compute_logsumexp``)."""
    given = [query, key, value]
    if mask is not None:
        given.append(mask)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


def _scale(scale: float | None, width: int) -> float:
    if scale is None:
        return 1 / math.sqrt(width)
    return scale


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with its last dimension filled up to a multiple of 8."""
    missing = -tensor.shape[-1] % 8
    if missing:
        return torch.nn.functional.pad(tensor, [0, missing])
    return tensor


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Convert a boolean mask to one that is added, as torch does."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, query.new_zeros(()), query.new_full((), float("-inf")))


def _bias(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask as the memory-efficient kernel needs it: additive, rows aligned to 8 elements, four dimensions
    (``pad_bias`` of aten/src/ATen/native/transformers/attention.cpp)."""
    bias = _as_bias(mask, query)
    if bias is None:
        return None
    if bias.shape[-1] % 8:
        length = bias.shape[-1]
        bias = _padded(bias)[..., :length]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


class _Kernel:
    """What the kernels of fused attention share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._engine.like(tensor)

    def _like_all(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return list(map(self._like, tensors))

    def _like_bias(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        if bias is None:
            return None
        return self._like(bias)

    def _take(self, size: Sequence[int], dtype: torch.dtype, near: torch.Tensor) -> torch.Tensor:
        return self._engine.empty(size, dtype, near.device.index, None)

    def _result(self, near: torch.Tensor, last: int) -> torch.Tensor:
        """An uninitialised result stored as (batch, length, heads, width), viewed as (batch, heads, length, width)."""
        batch, heads, length, _width = near.shape
        return self._take((batch, length, heads, last), near.dtype, near).transpose(1, 2)

    def _write(self, target: torch.Tensor, numbers: torch.Tensor | None) -> None:
        if self._engine.computes and numbers is not None:
            self._like(target).copy_(numbers)

    def _write_all(self, targets: Sequence[torch.Tensor | None], made: Sequence[torch.Tensor | None]) -> None:
        """Copy each gradient to its target, which is ``None`` for one that is not needed."""
        for target, numbers in zip(targets, made):
            if target is not None:
                self._write(target, numbers)

    def _seed(self, dropout: float) -> int:
        if dropout and self._engine.computes:
            return remembered(torch.default_generator.get_state())
        return 0


class Flash(_Kernel):
    """Flash attention 2, for half precision without a mask."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        """Result, log-sum-exp, ``None`` twice, both lengths, the generator's state (2), an unused one, an empty
        mask."""
        how = _Attention(dropout_p, is_causal, _scale(scale, query.shape[3]), self._seed(dropout_p))
        # first the result and the log-sum-exp, then what the split needs, then the generator's state: the order of the
        # requests determines where each block is placed
        result = torch.empty_like(query)
        sums = self._take(query.shape[:3], torch.float32, query)
        # flash_api.cpp splits keys only without dropout
        splits = 1
        if not dropout_p:
            splits = self._splits(query, key)
        # flash attention computes head widths in multiples of 32
        wide = query.shape[3] + -query.shape[3] % 32
        sizes = []
        if splits > 1:
            sizes = [(splits, *query.shape[:3]), (splits, *query.shape[:3], wide)]
        parts = [self._take(size, torch.float32, query) for size in sizes]
        state = self._take((2,), torch.uint64, query)
        unused = self._take((), torch.uint64, query)
        del parts
        nothing = self._take((0,), query.dtype, query)
        made = _attended(self._like(query), self._like(key), self._like(value), None, how)
        self._write(result, made[0])
        self._write(sums, made[1])
        if self._engine.computes:
            self._like(state).view(torch.int64).fill_(how.seed)
        return result, sums, None, None, query.shape[2], key.shape[2], state, unused, nothing

    def backward(
        self,
        grad_out: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        logsumexp: torch.Tensor,
        cum_seq_q: torch.Tensor | None,
        cum_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        philox_seed: torch.Tensor,
        philox_offset: torch.Tensor,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Gradients for query, key and value."""
        batch, heads, length, width = query.shape
        rounded = length + -length % 128
        multiple = 64
        if width <= 128:
            multiple = 32
        wide = width + -width % multiple
        seed = 0
        if dropout_p and self._engine.computes:
            seed = int(self._like(philox_seed).view(torch.int64)[0])
        how = _Attention(dropout_p, is_causal, _scale(scale, width), seed)
        copies = [tensor.transpose(1, 2).contiguous() for tensor in (grad_out, out)]  # usually without a copy
        grads = list(map(torch.empty_like, (query, key, value)))
        scratch = [
            self._take((batch, heads, rounded), torch.float32, query),
            self._take((batch, rounded, heads, wide), torch.float32, query),
        ]
        if key.shape[1] != heads:
            expanded = (batch, key.shape[2], heads, width)
            scratch += [self._take(expanded, key.dtype, query), self._take(expanded, key.dtype, query)]
        grad, inner, keys, values = self._like_all(grad_out, query, key, value)
        made = _gradients(grad, inner, keys, values, None, self._like(out), self._like(logsumexp), how)
        # one by one in reverse order, as C++ destroys local variables
        while scratch:
            scratch.pop()
        del copies
        self._write_all(grads, made)
        return tuple(grads)

    def _splits(self, query: torch.Tensor, key: torch.Tensor) -> int:
        """Number of parts to split the keys into if there are too few queries for all multiprocessors
        (``num_splits_heuristic`` of flash_api.cpp)."""
        batch, heads, length, width = query.shape
        card = self._engine.card(query.device.index or 0)
        room = 2 * card.architecture.multiprocessors
        if width <= 64:
            columns = 256
        elif width <= 128:
            columns = 128
        else:
            columns = 64
        blocks = -(-key.shape[2] // columns)
        work = batch * heads * -(-length // 64)
        # enough work for nearly all multiprocessors without a split
        if work >= 0.8 * room:
            return 1
        fill: dict[int, float] = {}
        for splits in range(1, min(128, room, blocks) + 1):
            # a split whose parts are as long as those of a smaller one is skipped
            if splits == 1 or -(-blocks // splits) != -(-blocks // (splits - 1)):
                waves = work * splits / room
                fill[splits] = waves / math.ceil(waves)
        # the fewest splits that fill the last wave nearly as well as the best ones
        return next(splits for splits, share in fill.items() if share >= 0.85 * max(fill.values()))


class Cudnn(_Kernel):
    """cuDNN's attention, for half precision; of its workspaces only the backward pass's accumulators are known."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: torch.Tensor | None,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        """Result, log-sum-exp, ``None``, ``None``, both lengths, the generator's seed and offset, an empty mask."""
        how = _Attention(dropout_p, is_causal, _scale(scale, query.shape[3]), self._seed(dropout_p))
        seed = self._take((), torch.int64, query)
        offset = self._take((), torch.int64, query)
        result = self._ordered(query, value.shape[3])
        size: tuple[int, ...] = (0,)
        if compute_log_sumexp:
            size = (*query.shape[:3], 1)
        sums = self._take(size, torch.float32, query)
        made = _attended(self._like(query), self._like(key), self._like(value), self._like_bias(attn_bias), how)
        self._write(result, made[0])
        if compute_log_sumexp and self._engine.computes:
            self._write(sums, made[1].unsqueeze(-1))
        if self._engine.computes:
            self._like(seed).fill_(how.seed)
        nothing = self._take((0,), query.dtype, query)
        return result, sums, None, None, query.shape[2], key.shape[2], seed, offset, nothing

    def backward(
        self,
        grad_out: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        logsumexp: torch.Tensor,
        philox_seed: torch.Tensor,
        philox_offset: torch.Tensor,
        attn_bias: torch.Tensor | None,
        cum_seq_q: torch.Tensor | None,
        cum_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Gradients for query, key and value; those of the queries accumulate in float32, with one sum per row."""
        batch, heads, length, width = query.shape
        seed = 0
        if dropout_p and self._engine.computes:
            seed = int(self._like(philox_seed))
        how = _Attention(dropout_p, is_causal, _scale(scale, width), seed)
        grads = list(map(torch.empty_like, (query, key, value)))
        scratch = self._take((batch, heads, length, width + 1), torch.float32, query)
        grad, inner, keys, values = self._like_all(grad_out, query, key, value)
        bias = self._like_bias(attn_bias)
        sums = self._like(logsumexp).squeeze(-1)
        made = _gradients(grad, inner, keys, values, bias, self._like(out), sums, how)
        self._write_all(grads, made)
        del scratch
        return tuple(grads)

    def _ordered(self, query: torch.Tensor, last: int) -> torch.Tensor:
        """An uninitialised result with the query's order of dimensions (``alloc_with_matching_layout`` of
        aten/src/ATen/native/cudnn/MHA.cpp)."""
        if last == query.shape[3]:
            return torch.empty_like(query)
        order = sorted(range(4), key=query.stride, reverse=True)
        sizes = (*query.shape[:3], last)
        made = self._take([sizes[axis] for axis in order], query.dtype, query)
        return made.permute(list(map(order.index, range(4))))


class Efficient(_Kernel):
    """The memory-efficient kernel, for any precision up to float32, with or without a mask."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: torch.Tensor | None,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Result, log-sum-exp (rows rounded up to 32), and the generator's seed and offset, which are on the CPU, but
        since torch 2.15 on the GPU if there is no dropout."""
        batch, heads, length, width = query.shape
        how = _Attention(dropout_p, is_causal, _scale(scale, width), self._seed(dropout_p))
        if dropout_p or TORCH_VERSION < (2, 15):
            seed, offset = torch.tensor(how.seed), torch.tensor(0)
        else:
            seed, offset = (self._take((), torch.int64, query) for _ in range(2))
        result = self._result(query, value.shape[3])
        rows = 0
        if compute_log_sumexp:
            rows = length + -length % 32
        sums = self._take((batch, heads, rows), torch.float32, query)
        gathered = None
        if query.dtype in HALVES and value.shape[3] > WIDEST_IN_REGISTERS:
            gathered = self._take((batch, length, heads, value.shape[3]), torch.float32, query)
        made = _attended(self._like(query), self._like(key), self._like(value), self._like_bias(attn_bias), how)
        del gathered
        self._write(result, made[0])
        if rows:
            self._write(sums[..., :length], made[1])
        return result, sums, seed, offset

    def backward(
        self,
        grad_out: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: torch.Tensor | None,
        out: torch.Tensor,
        logsumexp: torch.Tensor,
        philox_seed: torch.Tensor,
        philox_offset: torch.Tensor,
        dropout_p: float,
        grad_input_mask: Sequence[bool],
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients for query, key, value and the bias."""
        batch, heads, length, width = query.shape
        seed = 0
        if dropout_p and self._engine.computes:
            seed = int(philox_seed)
        how = _Attention(dropout_p, is_causal, _scale(scale, width), seed)
        copied = grad_out.transpose(1, 2).contiguous()  # usually without a copy
        grads: list[torch.Tensor | None] = [self._result(t, t.shape[3]) for t in (query, key, value)]
        wants_bias = attn_bias is not None and grad_input_mask[3]
        if wants_bias:
            columns = key.shape[2]
            room = self._take((batch, heads, length, columns + -columns % 16), query.dtype, query)
            grads.append(room[..., :columns])
        else:
            grads.append(None)
        widened = [self._widened(tensor, query) for tensor in (key, value)]
        scratch = self._scratch(query, key, grad_out)
        while scratch:
            scratch.pop(0)
        del widened
        del copied
        grad, inner, keys, values = self._like_all(grad_out, query, key, value)
        bias = self._like_bias(attn_bias)
        sums = self._like(logsumexp)[..., :length]
        made = _gradients(grad, inner, keys, values, bias, self._like(out), sums, how, wants_bias)
        self._write_all(grads, made)
        return tuple(grads)

    def _widened(self, tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor | None:
        """Buffer for the gradients of keys or values that heads share, one per head before they are summed."""
        if tensor.shape[1] == query.shape[1]:
            return None
        batch, _heads, length, width = tensor.shape
        return self._take((batch, length, query.shape[1], width), tensor.dtype, tensor)

    def _scratch(self, query: torch.Tensor, key: torch.Tensor, grad_out: torch.Tensor) -> list[torch.Tensor]:
        """A sum for each row, and buffers in which blocks accumulate gradients.

        In float32 the sums come from an explicit product (attention_backward.cu).
        """
        batch, heads, length, width = query.shape
        is_half = query.dtype in HALVES
        if is_half:
            sums = self._take((batch, heads, length), torch.float32, query)
        else:
            product = self._take(grad_out.shape, torch.float32, query)
            sums = self._take((batch, length, heads), torch.float32, query)
            if heads > 1 and length > 1:
                sums = self._take((batch, heads, length), torch.float32, query)
            del product
        capability = self._engine.card(query.device.index or 0).architecture.capability
        size = backward_room_bytes(batch * heads, length, key.shape[2], width, is_half=is_half, capability=capability)
        return [sums, self._take((size // 4,), torch.float32, query)]


HALVES = (torch.float16, torch.bfloat16)
LARGEST_FLASH_WIDTH = 256
NONE_LEFT = "No available kernel. Aborting execution."

PREFER_CUDNN = ((9, 0), (10, 0))
"""Compute capabilities on which torch prefers cuDNN's attention (``check_prefer_cudnn_attention``)."""

WIDEST_CUDNN = 128

cudnn: Any = getattr(SDPBackend, "CUDNN_ATTENTION", None)

Attended = list[torch.Tensor]


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
    dropout: float,
    capability: tuple[int, int],
) -> Any:
    """The first enabled kernel, in torch's order of priority, that supports these tensors on such a card.

    Raises:
        RuntimeError: torch's, if there is none.
    """
    attended = [query, key, value]
    enabled: Any = torch.backends.cuda
    # which kernels the switches of torch.backends.cuda allow and which support these tensors
    usable = {
        SDPBackend.FLASH_ATTENTION: enabled.flash_sdp_enabled()
        and capability >= (8, 0)
        and mask is None
        and _takes_flash(attended, is_causal, enable_gqa),
        SDPBackend.EFFICIENT_ATTENTION: enabled.mem_efficient_sdp_enabled()
        and (capability >= (8, 0) or query.dtype != torch.bfloat16)
        and _takes_efficient(attended, mask, enable_gqa),
        SDPBackend.MATH: enabled.math_sdp_enabled(),
    }
    order = _order()
    if cudnn is not None and enabled.cudnn_sdp_enabled():
        usable[cudnn] = capability >= (8, 0) and not dropout and _takes_cudnn(attended, enable_gqa)
        # on other cards it comes at its place in torch's order
        if capability in PREFER_CUDNN:
            order.insert(0, cudnn)
    for backend in order:
        if usable.get(backend, False):
            return backend
    raise RuntimeError(NONE_LEFT)


def _order() -> list[Any]:
    backends: list[Any] = [getattr(SDPBackend, name) for name in SDPBackend.__members__]
    known = {int(backend): backend for backend in backends}
    if hasattr(torch._C, "_get_sdp_priority_order"):
        return [known[number] for number in torch._C._get_sdp_priority_order() if number in known]
    return [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _fits(attended: Attended, enable_gqa: bool) -> bool:
    """Whether tensors have four dimensions, one dtype, a dense last dimension, and match in the first two."""
    query, key, value = attended
    if any(tensor.dim() != 4 for tensor in attended) or len({tensor.dtype for tensor in attended}) > 1:
        return False
    if any(tensor.stride(-1) != 1 and tensor.shape[-1] > 1 for tensor in attended):
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or 0 in (query.shape[2], key.shape[2]):
        return False
    if enable_gqa:
        return key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    return query.shape[1] == key.shape[1] == value.shape[1]


def _takes_flash(attended: Attended, is_causal: bool, enable_gqa: bool) -> bool:
    query, key, value = attended
    if query.dtype not in HALVES or not _fits(attended, enable_gqa):
        return False
    if not query.shape[3] == key.shape[3] == value.shape[3] <= LARGEST_FLASH_WIDTH:
        return False
    return not is_causal or query.shape[2] == key.shape[2]


def _takes_cudnn(attended: Attended, enable_gqa: bool) -> bool:
    """Half precision with widths that are multiples of 8; its needs for dropout are known only to cuDNN."""
    query, key, value = attended
    if query.dtype not in HALVES or not _fits(attended, enable_gqa):
        return False
    return all(tensor.shape[3] % 8 == 0 and tensor.shape[3] <= WIDEST_CUDNN for tensor in (query, key, value))


def _takes_efficient(attended: Attended, mask: torch.Tensor | None, enable_gqa: bool) -> bool:
    """Heads may share keys since torch 2.15."""
    query, key, value = attended
    if enable_gqa and TORCH_VERSION < (2, 15):
        return False
    if query.dtype not in (*HALVES, torch.float32) or not _fits(attended, enable_gqa):
        return False
    if mask is not None and mask.dim() not in (2, 4):
        return False
    multiple = 4
    if query.dtype in HALVES:
        multiple = 8
    width = query.shape[3]
    last = value.shape[3]
    return width == key.shape[3] and width > 0 and last > 0 and width % multiple == 0 and last % multiple == 0


_softmax: Callable[..., torch.Tensor] = torch.ops.aten._safe_softmax
_softmax_backward: Callable[..., torch.Tensor] = torch.ops.aten._softmax_backward_data
_fast = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_fast_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Attention(NamedTuple):
    """The settings of one attention call.

    Attributes:
        dropout: probability.
        is_causal: whether a position attends only to positions up to its own.
        scale: factor for the scores.
        seed: number of the generator state that made the dropout mask, see `remembered`.
    """

    dropout: float
    is_causal: bool
    scale: float
    seed: int


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, how: _Attention
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the logarithm of the sum of exponentiated scores.

    Args:
        query, key, value: (batch, heads, length, width); a head of keys and values may serve several of the queries'.
        bias: added to the scores.
        how: the settings.
    """
    # without numbers only the sizes matter
    if query.is_meta:
        size = (*query.shape[:3], value.shape[3])
        return query.new_empty(size), query.new_empty(query.shape[:3], dtype=torch.float32)
    key = _repeated(key, query)
    value = _repeated(value, query)
    if not how.dropout and query.shape[3] == value.shape[3]:
        result = _fast(query, key, value, 0.0, how.is_causal, attn_mask=bias, scale=how.scale)
        return result[0], result[1]
    # the CPU's own fused kernel supports neither dropout nor values of another width: then compute all scores
    scores = _scores(query, key, bias, how)
    shares = _softmax(scores, -1) * _kept(scores, how, torch.default_generator)
    return (shares @ value.to(scores.dtype)).to(query.dtype), scores.logsumexp(-1)


def _gradients(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    result: torch.Tensor,
    sums: torch.Tensor,
    how: _Attention,
    wants_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients for query, key, value and, if requested, the bias."""
    if query.is_meta:
        for_bias = None
        if wants_bias and bias is not None:
            for_bias = torch.empty_like(bias)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), for_bias
    keys = _repeated(key, query)
    values = _repeated(value, query)
    if not how.dropout and not wants_bias and query.shape[3] == value.shape[3]:
        # the CPU's kernel expects the sums in its own layout: by length, then by head
        ordered = sums.transpose(1, 2).contiguous().transpose(1, 2)
        grads = _fast_backward(
            grad, query, keys, values, result, ordered, 0.0, how.is_causal, attn_mask=bias, scale=how.scale
        )
        return grads[0], _summed(grads[1], key), _summed(grads[2], value), None
    scores = _scores(query, keys, bias, how)
    shares = _softmax(scores, -1)
    kept = _kept(scores, how, _again(how))
    wide = grad.to(scores.dtype)
    signed, root = _roots(how.scale)
    for_values = (shares * kept).transpose(-2, -1) @ wide
    for_shares = (wide @ values.to(scores.dtype).transpose(-2, -1)) * kept
    for_scores = _softmax_backward(for_shares, shares, -1, scores.dtype)
    for_query = for_scores @ (keys.to(scores.dtype) * root) * signed
    for_keys = ((query.to(scores.dtype) * signed).transpose(-2, -1) @ for_scores * root).transpose(-2, -1)
    for_bias = None
    if wants_bias and bias is not None:
        for_bias = for_scores.to(bias.dtype)
    return (
        for_query.to(query.dtype),
        _summed(for_keys.to(key.dtype), key),
        _summed(for_values.to(value.dtype), value),
        for_bias,
    )


def _scores(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, how: _Attention) -> torch.Tensor:
    """Scores computed like ``_scaled_dot_product_attention_math`` (transformers/attention.cpp), to the last bit."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    signed, root = _roots(how.scale)
    # torch multiplies both factors by the root of the scale, which prevents overflow in half precision
    scores = (query.to(dtype) * signed) @ (key.to(dtype).transpose(-2, -1) * root)
    if bias is not None:
        scores = scores + bias
    if how.is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores


def _roots(scale: float) -> tuple[float, float]:
    """Factors for queries and keys."""
    root = math.sqrt(abs(scale))
    return math.copysign(root, scale), root


def _kept(scores: torch.Tensor, how: _Attention, generator: torch.Generator | None) -> torch.Tensor:
    """The dropout mask, drawn as on the CPU (``_dropout_impl`` of aten/src/ATen/native/Dropout.cpp)."""
    if not how.dropout:
        return torch.ones((), dtype=scores.dtype)
    share = 1 - how.dropout
    drawn = torch.empty(scores.shape, dtype=scores.dtype).bernoulli_(share, generator=generator)
    return drawn.div_(share or 1.0)


MOST_STATES = 16_384
"""How many masks may exist before their backward passes; a state takes 5 KB."""

_states: OrderedDict[int, torch.Tensor] = OrderedDict()
_numbers = itertools.count(1)


def remembered(state: torch.Tensor) -> int:
    """Keep a generator state until the backward pass; a graph can store only the number returned."""
    number = next(_numbers)
    _states[number] = state
    # the oldest first: a graph dropped without a backward pass never retrieves its own
    while len(_states) > MOST_STATES:
        _states.pop(next(iter(_states)), None)
    return number


def _again(how: _Attention) -> torch.Generator | None:
    """A generator that makes the mask of the forward pass again.

    Raises:
        RuntimeError: too many masks have been made since.
    """
    if not how.dropout:
        return None
    generator = torch._C.Generator()
    generator.set_state(recalled(how.seed, "of this attention"))
    return generator


def recalled(number: int, whose: str) -> torch.Tensor:
    """Retrieve a state that was `remembered`.

    Raises:
        RuntimeError: too many were stored since.
    """
    state = _states.get(number)
    if state is None:
        raise RuntimeError(
            f"The dropout {whose} is forgotten: {MOST_STATES} others were made before its backward pass."
        )
    return state


def _repeated(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    times = query.shape[1] // tensor.shape[1]
    if times == 1:
        return tensor
    return tensor.repeat_interleave(times, 1)


def _summed(grad: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if grad.shape == tensor.shape:
        return grad
    batch, heads, length, width = tensor.shape
    return grad.reshape(batch, heads, -1, length, width).sum(2)
