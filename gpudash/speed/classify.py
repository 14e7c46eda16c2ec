"""From an operation of torch, as a dispatch mode sees it, to an `Operation` whose time can be predicted.

Only the standard library, for Python 3.9: the dry run is in the user's own Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from gpudash.speed.work import (
    ATTENTION,
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    ELEMENTWISE,
    EMBEDDING,
    GROUPED,
    NORMALISATION,
    OPTIMIZER,
    PRODUCT,
    RECURRENT,
    REDUCTION,
    SORT,
    UNKNOWN,
    Operation,
)


class Tensor(NamedTuple):
    """The properties of a tensor that determine its cost; any tuple of these three works.

    Attributes:
        shape: sizes, with 1 for expanded dimensions (stride 0): they are not in memory, so they are not read.
        dtype: torch's name: "float16".
        element_size: bytes of an element.
    """

    shape: tuple[int, ...]
    dtype: str
    element_size: int


def classify(
    name: str,
    inputs: Iterable[tuple[Sequence[int], str, int]],
    outputs: Iterable[tuple[Sequence[int], str, int]],
    flops: int = 0,
    scalars: Mapping[str, Any] | None = None,
    phase: str = "",
) -> Operation | None:
    """The device's work for one operation; None if there is none, as for a view or an empty tensor.

    Args:
        name: torch's name, without namespace and overload: "addmm", "add_".
        inputs: all tensors among its arguments, including those in lists, in order.
        outputs: all tensors that it returns, in order.
        flops: FLOPs, counting a multiply-add as two; computed here for products, convolutions and attention, for which
            0 is enough.
        scalars: arguments by name that determine the kernel: for a convolution ``groups``, ``transposed`` and
            ``channels_last`` (true if its result has that memory format); for a normalisation ``contiguous``, false if
            its input must first be copied, and for one over batches ``training``.
        phase: as in `Operation`.
    """
    if name in _FREE:
        return None
    reads = [Tensor(tuple(shape), dtype, size) for shape, dtype, size in inputs]
    writes = [Tensor(tuple(shape), dtype, size) for shape, dtype, size in outputs]
    if not writes and name not in _WRITE_THEIR_ARGUMENTS:
        return None
    operation = _operation(name, reads, writes, flops, scalars or {})
    if operation.read_bytes + operation.written_bytes + operation.flops == 0:
        return None
    return operation._replace(phase=phase, channels_last=bool((scalars or {}).get("channels_last", False)))


def _operation(
    name: str, reads: list[Tensor], writes: list[Tensor], flops: int, scalars: Mapping[str, Any]
) -> Operation:
    if name in _PRODUCTS:
        product = _product(name, reads, writes)
        if product is not None:
            return product
    if name in _CONVOLUTIONS and len(reads) >= 2:
        return _convolution(name, reads, writes, int(scalars.get("groups", 1)), bool(scalars.get("transposed", False)))
    if name in _CONVOLUTIONS_BACKWARD and len(reads) >= 3:
        return _convolution_backward(
            name, reads, writes, int(scalars.get("groups", 1)), bool(scalars.get("transposed", False))
        )
    if name in _ATTENTION and len(reads) >= 3:
        return _attention(name, reads, writes)
    if name in _ATTENTION_BACKWARD and len(reads) >= 4:
        return _attention(name, reads, writes, backward=True)
    if name in _RECURRENT:
        return _recurrent(name, reads, writes, flops)
    if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_")):
        return _many_tensors(name, reads, writes)
    return _by_bytes(name, reads, writes, flops, scalars)


def _recurrent(name: str, reads: list[Tensor], writes: list[Tensor], flops: int) -> Operation:
    """All layers of cuDNN together: the values and weights are read; the values come first among the results, then a
    state.

    A layer is one product of all steps with the input matrix, and then for each step one with the hidden state's
    matrix and one kernel for the gates (Appleyard, Kočiský, Blunsom, arXiv 1604.01946, section 3, which describes
    cuDNN).
    """
    values, *weights = reads
    layers, batch, _width = writes[1].shape
    matrices = [weight.shape for weight in weights if len(weight.shape) > 1]
    rows = matrices[0][0]
    hidden = matrices[1][1]
    tokens = prod(values.shape[:-1])
    steps = -(-tokens // batch)
    # Upper layers are as wide as the hidden state, the first as wide as the values: use the average.
    inputs = max(round(sum(map(prod, matrices)) / layers / rows) - hidden, 1)
    return Operation(
        name=name,
        kind=RECURRENT,
        dtype=values.dtype,
        flops=flops,
        read_bytes=_bytes(reads),
        written_bytes=_bytes(writes),
        shape=(layers, steps, batch, rows, inputs, hidden),
        # In the backward pass, the gradients of inputs and weights are products of all steps too.
        launches=layers * (2 * steps + 1 + (name != "_cudnn_rnn")),
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(prod(tensor.shape) * tensor.element_size for tensor in tensors)


def _product(name: str, reads: list[Tensor], writes: list[Tensor]) -> Operation | None:
    factors = reads[_PRODUCTS[name] : _PRODUCTS[name] + 2]
    if len(factors) < 2:
        return None
    left, right = factors
    if not left.shape or not right.shape:
        return None
    k = left.shape[-1]
    if name == "linear":
        n = right.shape[0]
    elif len(right.shape) == 1:
        n = 1
    else:
        n = right.shape[-1]
    batch = 1
    if name in ("bmm", "baddbmm", "addbmm"):
        batch = max(left.shape[0], right.shape[0])
        m = left.shape[1]
    else:
        m = prod(left.shape[:-1])
    return Operation(
        name=name,
        kind=PRODUCT,
        dtype=left.dtype,
        flops=2 * batch * m * n * k,
        read_bytes=_bytes(reads),
        written_bytes=_bytes(writes),
        shape=(batch, m, n, k),
    )


def _convolution_shape(
    given: Tensor, weight: Tensor, result: Tensor, groups: int, transposed: bool
) -> tuple[str, tuple[int, ...], int]:
    """Kind, shape for `Operation`, and FLOPs, all for the direction in which it shrinks."""
    channels_in = given.shape[1]
    channels_out = result.shape[1]
    kernel = prod(weight.shape[2:])
    positions = prod(result.shape[2:])
    if transposed:
        # A transposed convolution is the gradient of the opposite one: its products are over its input.
        positions = prod(given.shape[2:])
        channels_in, channels_out = channels_out, channels_in
    flops = 2 * given.shape[0] * channels_out * positions * (channels_in // groups) * kernel
    kind = GROUPED
    if groups == 1:
        kind = CONVOLUTION
    elif groups == channels_in and channels_out % groups == 0:
        kind = DEPTHWISE
    return kind, (given.shape[0], channels_in, channels_out, groups, kernel, positions), flops


def _convolution(name: str, reads: list[Tensor], writes: list[Tensor], groups: int, transposed: bool) -> Operation:
    given, weight = reads[:2]
    kind, shape, flops = _convolution_shape(given, weight, writes[0], groups, transposed)
    # A bias is added by a separate kernel (aten/src/ATen/native/cudnn/ConvShared.cpp: cudnn_convolution, then add_).
    launches = 1 + (len(reads) > 2)
    return Operation(
        name=name,
        kind=kind,
        dtype=given.dtype,
        flops=flops,
        read_bytes=_bytes(reads),
        written_bytes=_bytes(writes[:1]),
        shape=shape,
        launches=launches,
    )


def _convolution_backward(
    name: str, reads: list[Tensor], writes: list[Tensor], groups: int, transposed: bool
) -> Operation:
    result, given, weight = reads[:3]
    kind, shape, flops = _convolution_shape(given, weight, result, groups, transposed)
    products = sum(tensor.shape in (given.shape, weight.shape) for tensor in writes)
    return Operation(
        name=name,
        kind=kind,
        dtype=result.dtype,
        flops=flops * products,
        read_bytes=_bytes(reads[:3]) + (products > 1) * _bytes(reads[:1]),
        written_bytes=_bytes(writes),
        shape=shape,
        launches=len(writes),
    )


def _attention(name: str, reads: list[Tensor], writes: list[Tensor], backward: bool = False) -> Operation:
    query, key, value = reads[:3]
    if backward:
        query, key, value = reads[1:4]
    heads = prod(query.shape[1:-2])
    queries, width = query.shape[-2:]
    keys = key.shape[-2]
    if name in _HEADS_THIRD and len(query.shape) == 4:
        heads = query.shape[2]
        queries = query.shape[1]
        keys = key.shape[1]
    flops = 2 * query.shape[0] * heads * queries * keys * (width + value.shape[-1])
    if backward:
        # Five products for the forward pass's two: the scores again, and the gradients of all three inputs.
        flops = flops * 5 // 2
    return Operation(
        name=name,
        kind=ATTENTION,
        dtype=query.dtype,
        flops=flops,
        read_bytes=_bytes(reads),
        written_bytes=_bytes(writes),
        shape=(query.shape[0], heads, queries, keys, width),
        launches=3 if backward else 1,
    )


_CHUNK = 65536
"""Elements per block of a multi-tensor kernel (aten/src/ATen/native/cuda/MultiTensorApply.cuh: kChunkSize)."""

_BLOCKS_A_LAUNCH = 320
_TENSORS_A_LAUNCH = (110, 64, 48, 36, 30)
"""Tensors per launch by number of lists (the same file: depth_to_max_blocks, depth_to_max_tensors)."""


def _many_tensors(name: str, reads: list[Tensor], writes: list[Tensor]) -> Operation:
    """A kernel processes as many tensors as fit in its arguments."""
    changed = max(len(writes), 1)
    lists = max(round(len(reads) / changed), 1) if writes else 4
    each_list = len(reads) / lists
    blocks = sum(-(-prod(tensor.shape) // _CHUNK) for tensor in reads) / lists
    by_tensors = each_list / _TENSORS_A_LAUNCH[min(lists, len(_TENSORS_A_LAUNCH)) - 1]
    launches = int(max(by_tensors, blocks / _BLOCKS_A_LAUNCH)) + 1
    dtype = reads[0].dtype if reads else "float32"
    written = writes
    if not writes:
        # In place without a result: all lists but the gradients are written.
        written = reads[: len(reads) * (lists - 1) // lists]
    return Operation(
        name=name,
        kind=OPTIMIZER,
        dtype=dtype,
        flops=0,
        read_bytes=_bytes(reads),
        written_bytes=_bytes(written),
        shape=(round(each_list),),
        launches=launches,
    )


def _by_bytes(
    name: str, reads: list[Tensor], writes: list[Tensor], flops: int, scalars: Mapping[str, Any]
) -> Operation:
    extra = 0
    plain = name.rstrip("_") if not name.startswith("__") else name.strip("_")
    kind = _KIND_OF.get(name) or _KIND_OF.get(plain) or _KIND_OF.get(plain.replace("_backward", "")) or UNKNOWN
    read_bytes = _bytes(reads)
    written_bytes = _bytes(writes)
    if plain in _WRITE_ONLY:
        read_bytes = 0
    elif plain == "copy":
        read_bytes = _bytes(reads[1:])
    elif plain in _PICK:
        # Only the selected elements are read, and the indices.
        read_bytes = written_bytes + _bytes(reads[1:])
    elif kind == NORMALISATION and scalars.get("contiguous") is False:
        copied_bytes = _bytes(reads[:1])
        read_bytes += copied_bytes
        written_bytes += copied_bytes
        extra = 1
    elif plain in _PUT_IN_PLACE and name.endswith("_"):
        read_bytes = 2 * _bytes(reads[1:])
        written_bytes = _bytes(reads[-1:])
    if "batch_norm" in name and scalars.get("training"):
        # The statistics, then the values.
        extra = 1
    shape: tuple[int, ...] = ()
    if plain in ("upsample_bilinear2d", "upsample_bicubic2d") and not scalars.get("channels_last"):
        shape = (prod(writes[0].shape[:-2]), prod(writes[0].shape[-2:]))
    arithmetic = max([*reads, *writes], key=lambda tensor: prod(tensor.shape) * tensor.element_size)
    return Operation(
        name=name,
        kind=kind,
        dtype=arithmetic.dtype,
        flops=flops,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        shape=shape,
        launches=_LAUNCHES.get(plain, 1) + extra,
    )


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FREE = _split(
    "_local_scalar_dense _reshape_alias _reshape_copy _unsafe_view _version alias as_strided as_strided_ "
    "broadcast_tensors chunk "
    "conj contiguous data detach detach_ diagonal dim empty empty_like empty_permuted empty_strided equal "
    "expand expand_as flatten "
    "imag is_nonzero is_pinned lift lift_fresh movedim narrow new_empty new_empty_strided numel permute pin_memory "
    "_pin_memory "
    "prim_device real record_stream requires_grad_ reshape resize_ resize_as_ resolve_conj resolve_neg "
    "result_type select "
    "set_ set_data size slice split split_with_sizes squeeze squeeze_ stride swapaxes sym_numel sym_size "
    "sym_stride sym_storage_offset t t_ tensor_split to transpose transpose_ unbind unflatten unfold unsafe_chunk "
    "unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as view_as_complex view_as_real "
    "_nested_view_from_buffer output_nr _fused_sdp_choice retain_grad is_same_size _backward"
)
"""Operations without a kernel: views, tensors without content, and queries on a tensor."""

_WRITE_THEIR_ARGUMENTS = _split(
    "_foreach_add_ _foreach_mul_ _foreach_sub_ _foreach_div_ _foreach_lerp_ _foreach_addcdiv_ _foreach_addcmul_ "
    "_foreach_sqrt_ _foreach_neg_ _foreach_maximum_ _foreach_copy_ _foreach_zero_ _foreach_clamp_min_ "
    "_foreach_clamp_max_ _foreach_reciprocal_ _foreach_pow_ _foreach_sign_ _foreach_exp_ _fused_adam_ _fused_adamw_ "
    "_fused_sgd_ _fused_adagrad_ _amp_foreach_non_finite_check_and_unscale_"
)
"""Operations without a result, because they change lists of tensors in place."""

_PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "linear": 0,
    "matmul": 0,
    "_int_mm": 0,
    "_scaled_mm": 0,
    "addmm": 1,
    "addmm_": 1,
    "addmv": 1,
    "addbmm": 1,
    "baddbmm": 1,
    "baddbmm_": 1,
    "_addmm_activation": 1,
}
"""Which argument is the left factor."""

_CONVOLUTIONS = _split(
    "convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_transpose conv1d conv2d "
    "conv3d conv_transpose1d conv_transpose2d conv_transpose3d _conv_depthwise2d conv_depthwise3d "
    "mkldnn_convolution _slow_conv2d_forward"
)
_CONVOLUTIONS_BACKWARD = _split("convolution_backward convolution_backward_overrideable")

_ATTENTION = _split(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math_for_mps "
    "_flash_attention_forward _efficient_attention_forward _cudnn_attention_forward"
)
_ATTENTION_BACKWARD = _split(
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward "
    "_scaled_dot_product_flash_attention_for_cpu_backward _flash_attention_backward "
    "_efficient_attention_backward"
)
_RECURRENT = _split("_cudnn_rnn _cudnn_rnn_backward")

_HEADS_THIRD = _split(
    "_flash_attention_forward _efficient_attention_forward _flash_attention_backward _efficient_attention_backward"
)
"""Operations with the layout (batch, positions, heads, width); the others have (batch, heads, positions, width)."""

_NAMES = {
    NORMALISATION: (
        "native_layer_norm native_layer_norm_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm "
        "cudnn_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update "
        "batch_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward "
        "rms_norm layer_norm batch_norm group_norm "
        "_softmax _log_softmax softmax log_softmax _softmax_backward_data _log_softmax_backward_data "
        "_masked_softmax _safe_softmax weight_norm_interface _weight_norm_interface batch_norm_stats "
        "batch_norm_elemt batch_norm_backward_reduce batch_norm_backward_elemt batch_norm_gather_stats_with_counts"
    ),
    REDUCTION: (
        "sum mean amax amin max min argmax argmin aminmax var var_mean std std_mean norm linalg_vector_norm prod any "
        "all logsumexp nansum nanmean cumsum cumprod logcumsumexp cummax cummin count_nonzero bincount histc "
        "trace nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss l1_loss "
        "smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div max_pool2d "
        "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices avg_pool1d avg_pool2d "
        "avg_pool2d_backward avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool2d_backward "
        "max_pool1d _ctc_loss _ctc_loss_backward cross_entropy_loss _cdist_forward _cdist_backward _pdist_forward"
    ),
    EMBEDDING: (
        "embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward "
        "_embedding_bag_backward index index_select gather scatter scatter_add scatter_reduce index_put "
        "_index_put_impl _unsafe_index _unsafe_index_put index_add index_copy index_fill index_reduce "
        "take put masked_select masked_scatter nonzero one_hot embedding_renorm searchsorted bucketize "
        "select_backward slice_backward select_scatter slice_scatter gather_backward index_select_backward"
    ),
    SORT: (
        "sort argsort topk kthvalue median nanmedian mode unique _unique _unique2 unique_dim unique_consecutive "
        "randperm multinomial msort"
    ),
    COPY: (
        "clone copy _to_copy cat stack concat hstack vstack repeat repeat_interleave roll flip constant_pad_nd "
        "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d pad tile pixel_shuffle pixel_unshuffle "
        "channel_shuffle native_channel_shuffle im2col col2im unfold_backward tril triu view_copy expand_copy "
        "permute_copy split_with_sizes_copy rot90 diag_embed diagonal_backward diagonal_scatter block_diag "
        "_cudnn_init_dropout_state lift_fresh_copy _copy_from _copy_from_and_resize"
    ),
    ELEMENTWISE: (
        "abs add sub rsub mul div true_divide floor_divide remainder fmod neg pow sqrt rsqrt square exp exp2 expm1 "
        "log log2 log10 log1p logaddexp sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid relu relu6 "
        "leaky_relu elu celu selu gelu silu mish softplus hardtanh hardswish hardsigmoid hardshrink softshrink "
        "threshold prelu _prelu_kernel rrelu rrelu_with_noise log_sigmoid log_sigmoid_forward glu clamp clamp_min "
        "clamp_max clip maximum minimum fmax fmin where masked_fill lerp addcmul addcdiv eq ne lt le gt ge isnan "
        "isinf isfinite nan_to_num logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
        "bitwise_xor bitwise_left_shift bitwise_right_shift and or xor iand ior lshift rshift "
        "sign sgn floor ceil round trunc frac reciprocal erf erfc erfinv lgamma digamma "
        "polar complex angle "
        "zero fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor arange "
        "linspace logspace eye rand randn randint rand_like randn_like randint_like normal uniform random bernoulli "
        "exponential geometric cauchy log_normal native_dropout _fused_dropout dropout alpha_dropout "
        "native_dropout_backward _masked_scale upsample_nearest1d upsample_nearest2d upsample_nearest2d_backward "
        "_upsample_nearest_exact2d upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d "
        "_upsample_bicubic2d_aa upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_linear1d "
        "upsample_trilinear3d upsample_nearest3d grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d "
        "affine_grid_generator sigmoid_backward tanh_backward gelu_backward silu_backward threshold_backward "
        "hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward elu_backward mish_backward "
        "softplus_backward glu_backward log_sigmoid_backward _prelu_kernel_backward mse_loss_backward "
        "smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward xlogy heaviside copysign hypot "
        "addr outer ger lerp "
        "_amp_update_scale _amp_non_finite_check_and_unscale cross linalg_cross bernoulli_p tril_indices triu_indices "
        "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward "
        "vander float_power special_expm1 trapezoid"
    ),
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}

_WRITE_ONLY = _split(
    "zero fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor arange "
    "linspace logspace eye rand randn randint rand_like randn_like randint_like normal uniform random bernoulli "
    "exponential geometric cauchy log_normal"
)
"""Operations that read nothing, even with tensors among their arguments."""

_PICK = _split("embedding index index_select gather take _unsafe_index masked_select nonzero")
_PUT_IN_PLACE = _split("index_put _index_put_impl scatter scatter_add scatter_reduce index_add index_copy")

_LAUNCHES = {
    # Backward: the sums, then the gradient (aten/src/ATen/native/cuda/Normalization.cuh).
    "_batch_norm_with_update": 2,
    "native_batch_norm_backward": 2,
    "cudnn_batch_norm_backward": 2,
    "batch_norm_backward": 2,
    # The gradient, then those of weight and bias (layer_norm_kernel.cu).
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
    # Moments, scale and shift, then the values (group_norm_kernel.cu).
    "native_group_norm": 3,
    "native_group_norm_backward": 4,
    # Radix sort: passes of histogram, scan and scatter (cub).
    "sort": 5,
    "argsort": 5,
    "topk": 3,
    "unique": 8,
    "_unique2": 8,
    "nonzero": 3,
    "embedding_dense_backward": 5,
    "index_put": 2,
    "cumsum": 2,
}
