"""Makes the simulated device stand in for CUDA in this process, until `end`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device as default_device

from gpudash.simulator.as_cuda import cuda_functions, mode, parallel, streams, tensor_types
from gpudash.simulator.as_cuda.devices import CUDA, inward, outward
from gpudash.simulator.as_cuda.notices import emit
from gpudash.simulator.device.backend import NOT_SHARED, Backend
from gpudash.simulator.device.naming import DEVICE, naming
from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements

FIRST = 0
"""Priority before all others that torch queries for storages in files, which start at 10."""

UNCOMPILED = "torch.compile compiles nothing for a simulated GPU: the code runs as it is."

UNPROFILED = "The profiler sees no kernels of a simulated GPU: its times are those of the CPU."

_answering: Replacements | None = None


def is_answering() -> bool:
    """Whether the simulated device stands in for CUDA in this process."""
    return _answering is not None


def refuse_with_real_gpu() -> None:
    """Make sure that no real GPU is in use as CUDA.

    Raises:
        RuntimeError: in one sentence, if one is.
    """
    if _answering is None and torch.cuda.is_available():
        raise RuntimeError(
            f"A GPU of this computer answers as {CUDA} already ({torch.cuda.get_device_name()}); leave --as-cuda out, "
            f"or hide it from the program with CUDA_VISIBLE_DEVICES=-1."
        )


def answer_for_cuda(backend: Backend) -> Replacements:
    """Make the simulated device stand in for CUDA from now on.

    Returns:
        what was replaced; `end` restores it.

    Raises:
        RuntimeError: in one sentence, if a real GPU is in use.
    """
    global _answering
    refuse_with_real_gpu()
    if _answering is not None:
        return _answering
    _answering = replaced = Replacements()
    try:
        _name_it(replaced)
        _name_storages(replaced)
        streams.install(replaced, backend.module)
        cuda_functions.install(replaced, backend.module)
        tensor_types.install(replaced)
        # the documented way to release cuBLAS's workspaces
        replaced.add(torch._C, "_cuda_clearCublasWorkspaces", backend.engine.drop_cublas_workspaces)
        parallel.install(replaced)
        _answer_accelerator(replaced)
        _answer_autocast(replaced)
        _answer_default_device(replaced)
        _read_and_write_files(replaced)
        _leave_uncompiled(replaced)
        _profile_the_host(replaced)
        mode.install(replaced)
    except BaseException:
        end()
        raise
    return replaced


def end() -> None:
    """Restore the real CUDA."""
    global _answering
    replaced, _answering = _answering, None
    if replaced is not None:
        replaced.undo()


def _name_it(replaced: Replacements) -> None:
    before = naming.shown, naming.understood

    def as_before() -> None:
        naming.shown, naming.understood = before

    naming.shown, naming.understood = CUDA, naming.understood | {CUDA}
    replaced.undo_by(as_before)


def _name_storages(replaced: Replacements) -> None:
    plain: Any = torch.UntypedStorage.device
    replaced.put(torch.UntypedStorage, "device", property(lambda storage: outward(plain.__get__(storage))))

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(NOT_SHARED)

    replaced.put(torch.UntypedStorage, "_share_cuda_", refuse)


def _answer_accelerator(replaced: Replacements) -> None:
    """Make ``torch.accelerator`` name CUDA; its functions already use the simulated device."""
    for name in ("_accelerator_getAccelerator", "_get_accelerator"):
        replaced.put(torch._C, name, lambda *_check: torch.device(CUDA))
    replaced.wrap(torch._C, "_group_tensors_by_device_and_dtype", _with_keys_outward)


def _with_keys_outward(group: Callable[..., dict[Any, Any]]) -> Callable[..., dict[Any, Any]]:
    def grouped(*args: Any, **kwargs: Any) -> dict[Any, Any]:
        found = group(*args, **kwargs)
        return {(device and outward(device), dtype): tensors for (device, dtype), tensors in found.items()}

    return grouped


def _answer_autocast(replaced: Replacements) -> None:
    """Route CUDA's autocast settings and queries to the simulated device, which has the same rules."""
    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        replaced.wrap(torch, name, _of_simulated)
    plain: dict[str, Callable[..., Any]] = {
        "get_autocast_gpu_dtype": lambda: torch.get_autocast_dtype(DEVICE),
        "set_autocast_gpu_dtype": lambda dtype: torch.set_autocast_dtype(DEVICE, dtype),
    }
    replaced.put_all(torch, plain)


def _of_simulated(function: Callable[..., Any]) -> Callable[..., Any]:
    @hands_on
    def called(*args: Any, **kwargs: Any) -> Any:
        if "device_type" in kwargs:
            args = (kwargs.pop("device_type"), *args)
        if args and isinstance(args[0], str):
            return function(DEVICE if args[0] == CUDA else args[0], *args[1:], **kwargs)
        return function(DEVICE, *args, **kwargs)  # the older signature, which implies CUDA

    return called


def _answer_default_device(replaced: Replacements) -> None:
    """Handle ``torch.set_default_device("cuda")`` and ``with torch.device("cuda"):``."""

    @hands_on
    def with_device(self: Any, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if self.device.type != CUDA:
            return original(self, func, types, args, kwargs)
        kwargs = kwargs or {}
        if func in default_device._device_constructors() and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": mode.placed(self.device)}
        return func(*args, **kwargs)

    original: Callable[..., Any] = default_device.DeviceContext.__torch_function__
    replaced.put(default_device.DeviceContext, "__torch_function__", with_device)


def _read_and_write_files(replaced: Replacements) -> None:
    """Make files name ``cuda:0``, as if they had been written on a GPU."""

    def tag(storage: Any) -> str | None:
        if storage.device.type == CUDA:
            return str(storage.device)
        return None

    def put_back(storage: Any, location: str) -> Any:
        if location.startswith(CUDA):
            return storage.to(device=inward(location))
        return None

    registry: Any = torch.serialization._package_registry
    torch.serialization.register_package(FIRST, tag, put_back)

    def forget() -> None:
        registry[:] = [entry for entry in registry if tag not in entry]

    replaced.undo_by(forget)
    replaced.wrap(torch.jit, "load", _loaded_from)


def _loaded_from(load: Callable[..., Any]) -> Callable[..., Any]:
    @hands_on
    def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(file, inward(map_location), *args, **kwargs)

    return loaded


def _leave_uncompiled(replaced: Replacements) -> None:
    """Make ``torch.compile`` return its argument unchanged: the compiler supports real devices only."""

    def left_as_it_is(model: Any = None, **_options: Any) -> Any:
        emit(UNCOMPILED)
        warnings.warn(UNCOMPILED, stacklevel=2)
        if model is None:
            return lambda made: made
        return model

    replaced.put(torch, "compile", left_as_it_is)
    # the compiler's part for CUDA graphs accesses these when imported, which happens in the compiler's reset
    replaced.add(torch._C, "_cuda_CUDAAllocator_AllocatorState", type("AllocatorState", (), {}))
    replaced.add(torch._C, "_set_cached_tensors_enabled", lambda _enabled: None)


def _profile_the_host(replaced: Replacements) -> None:
    """Leave out profiling of CUDA kernels, as torch does without CUDA; otherwise it would call its C++ side."""

    def profile(make: Callable[..., None]) -> Callable[..., None]:
        @hands_on
        def made(self: Any, *args: Any, use_device: str | None = None, **kwargs: Any) -> None:
            # the older argument is `use_cuda=True`
            if use_device == CUDA or kwargs.pop("use_cuda", False):
                emit(UNPROFILED)
                use_device = None
            make(self, *args, use_device=use_device, **kwargs)

        return made

    replaced.wrap(torch.autograd.profiler.profile, "__init__", profile)
