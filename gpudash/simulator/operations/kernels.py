"""What the simulated device does itself: making, sizing and copying tensors, and what torch would split up for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpudash.simulator.device import registration
from gpudash.simulator.device.mismatch import COMPOSITE
from gpudash.simulator.device.registration import KEY
from gpudash.simulator.device.storage import AS_ON_CPU
from gpudash.simulator.operations import accumulation, convolution, functional
from gpudash.simulator.operations.operations import Engine

WHOLE = (
    "_chunk_cat",
    "_chunk_cat.out",
    "_fused_rms_norm",
    "_grouped_mm",
    "addr",
    "addr.out",
    "convolution",
    "linalg__powsum",
    "mish_backward",
    "native_group_norm",
    "native_layer_norm",
    "split_with_sizes_copy.out",
)
"""Operations that CUDA runs whole while torch splits them up for devices without a kernel, with temporaries between
(``CUDA`` beside a composite kernel in torch's native_functions.yaml; besides them every ``_foreach`` operation)."""

VIEWS = ("_reshape_alias", "alias", "as_strided", "unfold", "view")
"""Operations that only give other sizes and strides to a tensor's bytes, on which all others of the kind are built."""

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset


def install(engine: Engine) -> list[Any]:
    """Register the device's kernels; they last as long as the libraries."""
    # kept by the backend for the process's life
    everything = registration.library("_")
    everything.fallback(engine.run_boxed, KEY)
    library = registration.library("aten")
    own_kernels = {**_making(engine), **_sizing(engine)}
    for subject in (accumulation, convolution, functional):
        own_kernels.update(subject.kernels(engine))
    for name, kernel in own_kernels.items():
        library.impl(name, kernel, KEY)
    for key in ("Conjugate", "Negative"):
        # without it torch would make a copy of a conjugated tensor before copying it, by copying it
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    for name in VIEWS:
        # without a detour by the kernel of everything: they are half of all calls of a training step
        library.impl(name, functools.partial(overload(f"aten::{name}").redispatch, AS_ON_CPU), KEY)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and name[len("aten::") :] not in own_kernels and _is_whole(name):
            library.impl(name[len("aten::") :], _whole(engine, name), KEY)
    for kind in ("Sparse", "SparseCsr", "Quantized", "NestedTensor"):
        everything.fallback(_refuse_layout, f"{kind}{KEY}")
    return [everything, library]


def _refuse_layout(operation: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError(
        f"A simulated GPU keeps dense tensors only, so {operation._schema.name} cannot run there; use device='cpu'."
    )


def _is_whole(name: str) -> bool:
    short = name[len("aten::") :]
    if short in WHOLE:
        return True
    if short == "new_empty_strided":
        return False  # it makes a tensor, on any device
    if short.startswith("_foreach_"):
        return not short.endswith(("out", "_foreach_zero"))
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, COMPOSITE))


def _whole(engine: Engine, name: str) -> Callable[..., Any]:
    """A kernel that runs the operation ``name`` in one piece; torch's object for it is made at the first call."""
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
    """Kernels that make tensors and read numbers out of them."""

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

    def copy_from(source: torch.Tensor, target: torch.Tensor, _non_blocking: bool = False) -> torch.Tensor:
        return engine.copy(source, target)

    def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.shape != source.shape:
            target.resize_(source.shape)
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
        """Never: there are no nested tensors, and so transformers keep to padded ones."""
        return False

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        """Nothing: work is over when its call returns, whatever the stream."""

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


def _sizing(engine: Engine) -> dict[str, Callable[..., Any]]:
    """Kernels that give a tensor another size or other bytes."""

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
        if storage.device != tensor.device:
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
        raise NotImplementedError(f"A simulated GPU keeps no {kind} tensors; use device='cpu' for them.")
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
