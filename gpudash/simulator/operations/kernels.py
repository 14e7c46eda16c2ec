"""The simulated device's own kernels: creating, resizing and copying tensors, and operations torch would decompose."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpudash.simulator.convolutions import own_kernels
from gpudash.simulator.convolutions.backends import ConvBackend, as_images, backend_of, layout_of_convolution
from gpudash.simulator.device import autograd
from gpudash.simulator.device.mismatch import COMPOSITE
from gpudash.simulator.device.naming import DEVICE, naming
from gpudash.simulator.device.storage import AS_ON_CPU, KEY, kernel_library, letting_the_tracer_in, seeing_plainly
from gpudash.simulator.faults import UnsupportedError
from gpudash.simulator.operations.operations import Engine
from gpudash.simulator.operations.scripts import suggested_layout

WHOLE = (
    "_chunk_cat",
    "_chunk_cat.out",
    "_fused_rms_norm",
    "_grouped_mm",
    "addr",
    "addr.out",
    "kaiser_window",
    "kaiser_window.beta",
    "kaiser_window.periodic",
    "linalg__powsum",
    "mish_backward",
    "native_group_norm",
    "native_layer_norm",
    "split_with_sizes_copy.out",
)
"""Operations that CUDA runs as a whole, but that torch decomposes for devices without a kernel, with temporaries in
between (``CUDA`` beside a composite kernel in torch's native_functions.yaml; in addition every ``_foreach``
operation)."""

VIEWS = ("_reshape_alias", "alias", "as_strided", "unfold", "view")
"""Operations that only change sizes and strides, on which all other view operations are built."""

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset


def install(engine: Engine) -> list[Any]:
    """Register the device's kernels, for as long as the libraries live."""
    # the backend keeps them for the life of the process
    everything = kernel_library("_")
    everything.fallback(engine.run_boxed, KEY)
    library = kernel_library("aten")
    own_kernels = {
        **_making(engine),
        **_sizing(engine),
        **_adding(engine),
        **_convolving(engine),
        **_COMPOSED,
        "native_dropout": _dropout_of(engine),
    }
    if engine.computes:  # a dry run has its own, whose copies keep no numbers
        own_kernels["_to_copy"] = _to_copy
    for name, kernel in own_kernels.items():
        library.impl(name, kernel, KEY)
    for name, function in _COMPOSED.items():
        # otherwise torch would use its own before it reaches the device
        library.impl(name, function, f"Autograd{KEY}")
    for key in ("Conjugate", "Negative"):
        # without it torch would copy a conjugated tensor before it copies it
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    for name in VIEWS:
        # bypassing the fallback kernel: these are half of all calls in a training step
        library.hand_on(name, functools.partial(overload(f"aten::{name}").redispatch, AS_ON_CPU), KEY)
    library.hand_on("convolution", _convolution_of(engine), KEY)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and name[len("aten::") :] not in own_kernels and _is_whole(name):
            library.impl(name[len("aten::") :], _whole(engine, name), KEY)
    for kind in ("Sparse", "SparseCsr", "Quantized", "NestedTensor"):
        everything.fallback(_refuse_layout, f"{kind}{KEY}")
    return [everything, library]


def _refuse_layout(operation: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise UnsupportedError(
        f"A simulated GPU keeps dense tensors only, so {operation._schema.name} cannot run there; use device='cpu'."
    )


def _is_whole(name: str) -> bool:
    short = name[len("aten::") :]
    if short in WHOLE:
        return True
    if short == "new_empty_strided":
        return False  # it creates a tensor, on any device
    if short.startswith("_foreach_"):
        return not short.endswith(("out", "_foreach_zero"))
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, COMPOSITE))


def _whole(engine: Engine, name: str) -> Callable[..., Any]:
    """A kernel that runs the operation ``name`` as a whole; torch's object for it is created at the first call."""
    found: list[Any] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(overload(name))
        return engine.run(found[0], args, kwargs)

    return kernel


def overload(name: str) -> Any:
    """torch's object for the operation ``aten::name`` or ``aten::name.overload``."""
    packet, _dot, variant = name[len("aten::") :].partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


def _making(engine: Engine) -> dict[str, Callable[..., Any]]:
    """Kernels that create tensors and read numbers from them."""

    def empty(
        size: Sequence[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        _check(layout, pin_memory)
        return engine.empty(size, dtype or torch.get_default_dtype(), engine.index_of(device), memory_format)

    def empty_strided(
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> torch.Tensor:
        _check(layout, pin_memory)
        return engine.empty_strided(size, stride, dtype or torch.get_default_dtype(), engine.index_of(device))

    def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        on_card = source
        if target.device.type == DEVICE:
            on_card = target
        room = engine.room(passed_through(source, target, non_blocking), on_card.device.index)
        engine.note_copy(source, target, non_blocking=non_blocking)
        copied = engine.copy(source, target)
        del room
        return copied

    def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.shape != source.shape:
            target.resize_(source.shape)
        engine.note_copy(source, target)
        return engine.copy(source, target)

    def zeros(
        size: Sequence[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> torch.Tensor:
        return empty(size, dtype, layout, device, pin_memory).zero_()

    def is_nestable(_tensor: torch.Tensor, _mask: torch.Tensor) -> bool:
        """False: there are no nested tensors, so transformers use padded ones."""
        return False

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        """Do nothing: work is complete when its call returns, on any stream."""

    return {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_copy_from": copy_from,
        "_copy_from_and_resize": copy_from_and_resize,
        "_local_scalar_dense": engine.number,
        "_efficientzerotensor": zeros,
        "_nested_tensor_from_mask_left_aligned": is_nestable,
        "record_stream": record_stream,
    }


def passed_through(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> int:
    """Bytes of the temporary on the GPU in a copy between host and GPU: transferred data is contiguous, and is
    converted on the GPU only if the copy is non-blocking (`copy_kernel_cuda`, Copy.cu)."""
    same = source.dtype == target.dtype
    if source.device.type == target.device.type or (same and _lie_alike(source, target)):
        return 0
    if target.device.type != DEVICE:
        is_sent = source.shape == target.shape and source.is_contiguous()
        if is_sent:
            return 0
        return target.numel() * source.dtype.itemsize
    is_written = target.is_contiguous() and (same or not non_blocking)
    if is_written:
        return 0
    return target.numel() * (source if non_blocking else target).dtype.itemsize


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.stride() != other.stride():
        return False
    return one.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(one))


def _to_copy(
    tensor: torch.Tensor, *, device: torch.device | None = None, non_blocking: bool = False, **options: Any
) -> torch.Tensor:
    """Copy. A non-blocking copy to the CPU goes to pinned memory, for which torch would call the device's C++ side.
    Data that changes dtype on the way is converted first."""
    out = non_blocking and device is not None and device.type == "cpu"
    if out and tensor.device.type == DEVICE and options.get("dtype") not in (None, tensor.dtype):
        tensor = tensor.to(options["dtype"])
    made: torch.Tensor = torch.ops.aten._to_copy.default.redispatch(
        AS_ON_CPU, tensor, device=device, non_blocking=non_blocking and not out, **options
    )
    if out:
        return made.pin_memory()
    return made


def _sizing(engine: Engine) -> dict[str, Callable[..., Any]]:
    """Kernels that change a tensor's size or storage."""

    def resize(
        tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
    ) -> torch.Tensor:
        return engine.resize(tensor, size, memory_format)

    def set_to_storage(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
        count = storage.nbytes() // tensor.dtype.itemsize
        return set_to_part(tensor, storage, 0, [count], [1])

    def set_to_part(
        tensor: torch.Tensor, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
    ) -> torch.Tensor:
        if not naming.means_simulated(storage.device) or storage.device.index != tensor.device.index:
            raise RuntimeError(
                f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage on different '
                f'device "{storage.device}".  This is no longer allowed; the devices must match.'
            )
        return _set_storage.redispatch(AS_ON_CPU, tensor, storage, offset, size, stride)  # type: ignore[no-any-return]

    def set_to_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return set_to_part(
            tensor, source.untyped_storage(), int(source.storage_offset()), source.shape, source.stride()
        )

    def set_to_nothing(tensor: torch.Tensor) -> torch.Tensor:
        return set_to_tensor(tensor, engine.empty([0], tensor.dtype, tensor.device.index, None))

    return {
        "resize_": resize,
        "set_": set_to_nothing,
        "set_.source_Storage": set_to_storage,
        "set_.source_Storage_storage_offset": set_to_part,
        "set_.source_Tensor": set_to_tensor,
    }


def _check(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        kind = str(layout).replace("torch.", "")
        raise UnsupportedError(f"A simulated GPU keeps no {kind} tensors; use device='cpu' for them.")
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


TENSOR_HOLDERS, STORAGE_HOLDERS = 3, 2
"""The reference counts that torch reports inside a kernel for a tensor and its storage if only the engine's buffer
holds them; a sum that Python or another operation requests has other counts."""

HOLDERS_OF_A_MODE = 2
"""How many more references there are for each Python mode that the operation passed through."""


class _Passed(threading.local):
    modes = 0


passed = _Passed()
"""Our modes that the current operation of this thread passed through."""

_add = torch.ops.aten.add.Tensor
_add_in_place = torch.ops.aten.add_.Tensor


def _adding(engine: Engine) -> dict[str, Callable[..., Any]]:
    """The sum of two tensors. Gradients from several uses of a tensor are accumulated in place if CUDA's would be.

    ``InputBuffer::accumulate`` (torch/csrc/autograd/input_buffer.cpp) accumulates in place if there is no other owner,
    which it determines from the storage's reference count. The Python object of a simulated tensor is one more
    reference, so the engine requests a new tensor instead. This kernel recognises that request, and adds to the
    existing tensor.
    """

    def add(one: torch.Tensor, other: Any, *, alpha: Any = 1) -> Any:
        if alpha == 1 and autograd.goes_backward() and not torch.is_grad_enabled() and _takes(one, other):
            return engine.run(_add_in_place, (one, other), {})
        return engine.run(_add, (one, other), {} if alpha == 1 else {"alpha": alpha})

    return {"add.Tensor": add}


def _takes(one: torch.Tensor, other: Any) -> bool:
    """Whether only the engine's buffer holds ``one``, it is dense, and ``other`` can be added to it unchanged."""
    if one.device.type != DEVICE or not isinstance(other, torch.Tensor):
        return False
    holders = TENSOR_HOLDERS + HOLDERS_OF_A_MODE * passed.modes
    if one.shape != other.shape or one.dtype != other.dtype or one._use_count() != holders:  # type: ignore[attr-defined]
        return False
    storage = one.untyped_storage()
    if torch._C._storage_Use_Count(storage._cdata) != STORAGE_HOLDERS:
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense(one))


_convolution = torch.ops.aten.convolution.default
_recorded_convolution = torch.ops.aten._convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default
_sum = torch.ops.aten.sum.dim_IntList

_FORWARD_NAMES = [argument.name for argument in _convolution._schema.arguments]
_BACKWARD_NAMES = [argument.name for argument in _convolution_backward._schema.arguments]

_Gradients = tuple[torch.Tensor | None, ...]


CUDNN_DEFAULTS = (False, False, True, True)
"""No benchmark, not deterministic, cuDNN and TF32 if possible."""


def _convolution_of(engine: Engine) -> Callable[..., torch.Tensor]:
    """A convolution, recorded as ``aten::_convolution`` while ``torch.jit.trace`` records, which skips the operation
    that calls it (``DONT_RECORD_TRACE``, torch's tools/autograd/gen_trace_type.py)."""
    convolve = seeing_plainly(functools.partial(_convolve, engine), "aten::convolution")

    def convolution(*args: Any) -> torch.Tensor:
        if torch._C._get_tracing_state() is None:
            return convolve(*args)  # type: ignore[no-any-return]
        with letting_the_tracer_in():
            made: torch.Tensor = _recorded_convolution(*args, *CUDNN_DEFAULTS)
        return made

    return convolution


def _convolve(engine: Engine, *args: Any) -> torch.Tensor:
    given = dict(zip(_FORWARD_NAMES, args, strict=True))
    backend = _backend_of(engine, given)
    if backend != ConvBackend.CUDNN:
        return own_kernels.forward(engine, backend, given)
    made: torch.Tensor = engine.run(_convolution, args, {})
    return made


def _backend_of(engine: Engine, given: Mapping[str, Any]) -> ConvBackend:
    return backend_of(given, engine.card(given["input"].device.index).architecture)


def _convolving(engine: Engine) -> dict[str, Callable[..., Any]]:
    """Convolutions with one, two or three dimensions as they are traced, and their gradients."""

    def convolution_backward(*args: Any) -> _Gradients:
        given = dict(zip(_BACKWARD_NAMES, args, strict=True))
        backend = _backend_of(engine, given)
        is_signal = given["weight"].dim() == 3
        if is_signal:  # its copy, if any, lives to the end
            given["input"] = engine.copied(given["input"], torch.contiguous_format)
        given = as_images(given)
        if backend == ConvBackend.CUDNN:
            made = _by_cudnn(engine, given)
        else:
            made = own_kernels.backward(engine, backend, given)
        if not is_signal:
            return made
        *of_operands, of_bias = made
        return *(None if one is None else one.squeeze(2) for one in of_operands), of_bias

    def recorded(*args: Any) -> torch.Tensor:
        return _convolve(engine, *args[: -len(CUDNN_DEFAULTS)])

    return {"_convolution": recorded, "convolution_backward": convolution_backward}


def _by_cudnn(engine: Engine, given: Mapping[str, Any]) -> _Gradients:
    """The gradients of a convolution of images or volumes, in the order in which cuDNN computes them.

    ``convolution_backward`` (aten/src/ATen/native/Convolution.cpp) computes them one after another
    (``cudnn_convolution_backward`` and ``cudnn_convolution_transpose_backward``,
    aten/src/ATen/native/cudnn/ConvShared.cpp). Copies of the input and of the incoming gradient serve both the input's
    and the weight's gradient, and are freed before the bias's gradient is summed, which may therefore reuse their
    memory.
    """
    incoming, values, weight, *rest, mask = given.values()
    grad = incoming
    if mask[1]:
        values = engine.copied(values, layout_of_convolution(values, weight))
    layout = suggested_layout(values)
    if given["transposed"] or suggested_layout(grad) != layout:
        grad = engine.copied(grad, layout)
    made: list[torch.Tensor | None] = [None, None, None]
    for place in range(2):
        if mask[place]:
            only = [place == number for number in range(3)]
            made[place] = engine.run(_convolution_backward, (grad, values, weight, *rest, only), {})[place]
    del grad, values  # in torch's order, the last copy first
    if mask[2]:
        made[2] = engine.run(_sum, (incoming, [0, *range(2, incoming.dim())]), {})
    return tuple(made)


def _softmax_by(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Softmax with ``kernel``, which can read float16 and return float32 in one pass
    (aten/src/ATen/native/SoftMax.cpp)."""

    def softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if tensor.dtype == torch.float16 and dtype == torch.float32:
            return kernel(tensor, dim, True)
        return kernel(tensor if dtype is None else tensor.to(dtype), dim, False)

    return softmax


def _group_norm(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Group norm on a contiguous tensor: CUDA does not keep channels last (aten/src/ATen/native/group_norm.cpp)."""
    return torch.ops.aten.group_norm.default.decompose(tensor.contiguous(), *args, **kwargs)  # type: ignore[no-any-return]


_COMPOSED = {
    "group_norm": _group_norm,
    "softmax.int": _softmax_by(torch.ops.aten._softmax),
    "log_softmax.int": _softmax_by(torch.ops.aten._log_softmax),
}


def _dropout_of(engine: Engine) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Dropout, which allocates its mask before its result (aten/src/ATen/native/cuda/Dropout.cu)."""

    def dropout(tensor: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
        if train is False or not tensor.numel():
            return torch.clone(tensor), torch.ones_like(tensor, dtype=torch.bool)
        mask = torch.empty_like(tensor, dtype=torch.bool)
        result = torch.empty_like(tensor)
        if engine.computes:
            made = torch.native_dropout(engine.like(tensor), p, train)
            engine.like(result).copy_(made[0])
            engine.like(mask).copy_(made[1])
        engine.count(torch.ops.aten.native_dropout.default, (tensor, p, train), {}, (result, mask))
        return result, mask

    return dropout
