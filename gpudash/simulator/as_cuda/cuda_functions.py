"""``torch.cuda`` for the program: what the simulated device supports, and an explanation for what it does not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from gpudash.simulator.as_cuda.notices import refusal
from gpudash.simulator.as_cuda.streams import Event, Stream
from gpudash.simulator.device.device_module import DeviceModule
from gpudash.simulator.replacing import Replacements

SIMULATED = (
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "ipc_collect",
    "is_available",
    "is_initialized",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
)
"""Functions of ``torch.cuda`` that `DeviceModule` provides under the same names."""

SIMULATED_MEMORY = (
    "_dump_snapshot",
    "_record_memory_history",
    "_snapshot",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
)
"""Those of ``torch.cuda.memory``, most of which are also in ``torch.cuda``."""

SIMULATED_RANDOM = (
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
)
"""Those of ``torch.cuda.random``."""

REFUSED = (
    "CUDAPluggableAllocator",
    "ExternalStream",
    "MemPool",
    "caching_allocator_alloc",
    "change_current_allocator",
    "clock_rate",
    "current_blas_handle",
    "device_memory_used",
    "get_stream_from_external",
    "graph_pool_handle",
    "list_gpu_processes",
    "make_graphed_callables",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
)
"""Functions without a simulation. Others that need CUDA and are in no list end in `_refuse_to_begin`."""

REFUSED_OF: dict[str, tuple[str, ...]] = {
    "nccl": ("all_gather", "all_reduce", "broadcast", "init_rank", "reduce", "reduce_scatter", "unique_id"),
    "tunable": (
        "enable",
        "get_filename",
        "get_max_tuning_duration",
        "get_max_tuning_iterations",
        "get_results",
        "get_validators",
        "read_file",
        "set_filename",
        "set_max_tuning_duration",
        "set_max_tuning_iterations",
        "tune_gemm_in_file",
        "tuning_enable",
    ),
}
"""The same in submodules: NCCL without ranks, and tuning of kernels."""

CUDA_VERSION, CUDNN_VERSION, NCCL_VERSION = "13.0", 92000, (2, 29, 7)
"""Versions reported by a build of torch 2.13 with CUDA; programs compare them with the oldest they support."""


def install(replaced: Replacements, module: DeviceModule) -> None:
    """Replace the functions of ``torch.cuda`` with those of ``module``, ``torch.sim``."""
    cuda: Any = torch.cuda
    replaced.put_all(cuda, {name: getattr(module, name) for name in SIMULATED})
    for names, submodule in ((SIMULATED_MEMORY, cuda.memory), (SIMULATED_RANDOM, cuda.random)):
        found = {name: getattr(module, name) for name in names}
        replaced.put_all(submodule, found)
        replaced.put_all(cuda, {name: value for name, value in found.items() if not name.startswith("_")})
    own = {**_own(module), **{name: _refusing(name) for name in REFUSED}}
    replaced.put_all(cuda, own)
    for submodule in (cuda.memory, cuda.random, cuda.streams, cuda.graphs, cuda.profiler):
        replaced.put_all(submodule, {name: value for name, value in own.items() if hasattr(submodule, name)})
    for owner in (cuda, cuda.graphs):
        replaced.put(owner, "CUDAGraph", _NoGraph)
    replaced.put(cuda.nvtx, "_nvtx", _Ranges())
    replaced.put(cuda.nccl, "version", lambda: NCCL_VERSION)
    replaced.put(torch.version, "cuda", CUDA_VERSION)
    for part, refused in REFUSED_OF.items():
        owner = getattr(cuda, part, None)  # older versions of torch have no `tunable`
        if owner is not None:
            replaced.put_all(owner, {name: _refusing(f"{part}.{name}") for name in refused})
    # a function made from a kernel's source is an object that raises when called
    replaced.add(torch._C, "_cuda_jiterator_compile_and_launch_kernel", _refusing("jiterator"))
    if hasattr(cuda, "tunable"):
        replaced.put_all(cuda.tunable, {name: lambda: False for name in ("is_enabled", "tuning_is_enabled")})
    replaced.put(torch.backends.cuda, "is_built", lambda: True)
    replaced.put_all(torch.backends.cudnn, {"is_available": lambda: True, "version": lambda: CUDNN_VERSION})
    replaced.put(torch.backends.cuda, "cuFFTPlanCache", _PlanCache)
    replaced.undo_by(torch.backends.cuda.cufft_plan_cache.caches.clear)
    _prefer(replaced)


def _own(module: DeviceModule) -> dict[str, Any]:
    """Functions that only CUDA has, or that behave differently there."""

    def exchange_device(index: int) -> int:
        """Switch devices for ``with torch.cuda.device(...)``; -1 stands for none."""
        before = module.current_device()
        if index >= 0:
            module.set_device(index)
        return before

    def manual_seed_all(seed: int) -> None:
        module.manual_seed(seed)

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or module.get_device_capability() >= (8, 0)

    def is_tf32_supported() -> bool:
        return module.get_device_capability() >= (8, 0)

    def get_arch_list() -> list[str]:
        major, minor = module.get_device_capability()
        return [f"sm_{major}{minor}"]

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, value in module.memory_stats(device).items():
            *path, last = name.split(".")
            place = nested
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
        return nested

    success = 0
    runtime = _Runtime(
        cudaError=SimpleNamespace(success=success),
        cudaMemGetInfo=module.mem_get_info,
        cudaProfilerStart=lambda: success,  # no profiler is attached to the card
        cudaProfilerStop=lambda: success,
    )
    return {
        "Event": Event,
        "Stream": Stream,
        "_cudart": runtime,
        "_exchange_device": exchange_device,
        "_lazy_init": _refuse_to_begin,
        "_maybe_exchange_device": exchange_device,
        "_sleep": lambda _cycles: None,
        "cudart": lambda: runtime,
        "default_generators": (torch.default_generator,) * module.device_count(),
        "get_arch_list": get_arch_list,
        "get_sync_debug_mode": lambda: 0,
        "is_bf16_supported": is_bf16_supported,
        "is_current_stream_capturing": lambda: False,
        "is_tf32_supported": is_tf32_supported,
        "manual_seed_all": manual_seed_all,
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "set_sync_debug_mode": lambda _mode: None,
    }


def _refuse_to_begin() -> None:
    """Replaces CUDA's initialisation. Only functions of torch that need more than is simulated call it."""
    caller = sys._getframe(1)
    if str(caller.f_globals.get("__name__")).partition(".")[0] == "torch":
        raise RuntimeError(refusal(f"torch.cuda.{caller.f_code.co_name}"))


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(refusal(f"torch.cuda.{name}"))

    return refuse


def _prefer(replaced: Replacements) -> None:
    """Store the preferred linear algebra library; the CPU does the work in any case."""
    preferred = [torch._C._get_linalg_preferred_backend()]
    replaced.put(torch._C, "_get_linalg_preferred_backend", lambda: preferred[-1])
    replaced.put(torch._C, "_set_linalg_preferred_backend", preferred.append)


class _PlanCache:
    """Replaces ``torch.backends.cuda.cufft_plan_cache``. It stays empty, since the CPU plans its own transforms."""

    size = 0

    def __init__(self, device_index: int) -> None:
        self.device_index = device_index
        self.max_size = 4096  # torch's default

    def clear(self) -> None:
        """Do nothing: the cache is empty."""


class _NoGraph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError(refusal("A CUDA graph"))


class _Runtime(SimpleNamespace):
    """Replaces ``torch.cuda.cudart()``: it has the functions it is created with and refuses all others."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(refusal(f"torch.cuda.cudart().{name}"))


class _Ranges(SimpleNamespace):
    """Replaces the library behind ``torch.cuda.nvtx``: ranges are ignored."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_args: 0
