"""``torch.cuda`` as a program meets it: what the simulated device has, and a reason for what it has not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from gpudash.simulator.as_cuda.devices import CUDA, inward, outward
from gpudash.simulator.as_cuda.replacing import Replacements
from gpudash.simulator.as_cuda.telling import tell
from gpudash.simulator.device import device_module
from gpudash.simulator.device.device_module import DeviceModule
from gpudash.simulator.device.naming import DEVICE

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
"""Functions of ``torch.cuda`` that `DeviceModule` has under the same names."""

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
"""Those of ``torch.cuda.memory``, most of which ``torch.cuda`` has too."""

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
"""What there is no simulation of. What is in no list, and needs CUDA all the same, ends in `_refuse_to_begin`."""

TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}

STREAMS = (
    "Streams and events of torch.cuda do nothing on a simulated GPU: work is over when its call returns, and the time "
    "between two events is the CPU's."
)


class Stream(device_module.Stream):
    """``torch.cuda.Stream``."""

    _asked_for = True

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if cls._asked_for:
            tell(STREAMS)
        made = super().__new__(cls, inward(device), priority, **kwargs)
        made.priority = priority
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stubs
        """As the program calls it."""
        return outward(super().device)

    @property
    def cuda_stream(self) -> int:
        """In place of the driver's handle."""
        return int(self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority that a card has."""
        return 0, -5


class DefaultStream(Stream):
    """One that a device has without being asked: torch looks at it in every backward pass."""

    _asked_for = False


class Event(device_module.Event):
    """``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        tell(STREAMS)
        super().__init__(enable_timing, blocking, interprocess)

    @property
    def cuda_event(self) -> int:
        """In place of the driver's handle."""
        return id(self)


def install(replaced: Replacements, module: DeviceModule) -> None:
    """Let the functions of ``torch.cuda`` be those of ``module``, ``torch.sim``."""
    cuda: Any = torch.cuda
    before = module.Stream
    module.Stream = DefaultStream
    replaced.undo_by(lambda: setattr(module, "Stream", before))
    module.forget_streams()
    replaced.undo_by(module.forget_streams)
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
    replaced.put_all(cuda, {name: _tensor_type(name, dtype) for name, dtype in TENSOR_TYPES.items()})
    replaced.put(cuda.nvtx, "_nvtx", _Ranges())
    replaced.put(cuda.nccl, "version", _refusing("nccl.version"))
    replaced.put(torch, "set_default_tensor_type", _default_tensor_type(torch.set_default_tensor_type))
    replaced.put(torch.backends.cuda, "is_built", lambda: True)


def _own(module: DeviceModule) -> dict[str, Any]:
    """Functions that are CUDA's alone, or answer otherwise there."""

    def exchange_device(index: int) -> int:
        """What ``with torch.cuda.device(...)`` calls, with -1 for none."""
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
        cudaProfilerStart=lambda: success,  # nobody profiles the card
        cudaProfilerStop=lambda: success,
    )
    return {
        "Event": Event,
        "Stream": Stream,
        "_cudart": runtime,
        "_exchange_device": exchange_device,
        "_lazy_init": _refuse_to_begin,
        "_maybe_exchange_device": exchange_device,
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


def refusal(what: str) -> str:
    """Why something cannot be had, in a sentence."""
    return f"{what} needs a real GPU: this one is simulated, and its numbers are computed by the CPU."


def _refuse_to_begin() -> None:
    """In place of what initialises CUDA: what of torch calls it wants more than is simulated; a program does not."""
    caller = sys._getframe(1)
    if str(caller.f_globals.get("__name__")).partition(".")[0] == "torch":
        raise RuntimeError(refusal(f"torch.cuda.{caller.f_code.co_name}"))


def _default_tensor_type(plain: Callable[[Any], None]) -> Callable[[Any], None]:
    """``torch.set_default_tensor_type``, also for CUDA's types, which decide the default device as well."""

    def put(kind: Any) -> None:
        name = getattr(kind, "cuda_name", kind)
        there = isinstance(name, str) and name.startswith(f"torch.{CUDA}.")
        if not there and torch.get_default_device().type == CUDA:
            torch.set_default_device(None)
        plain(name.replace(f".{CUDA}.", ".") if there else kind)
        if there:
            torch.set_default_device(CUDA)

    return put


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(refusal(f"torch.cuda.{name}"))

    return refuse


class _NoGraph:
    """In place of ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError(refusal("A CUDA graph"))


class _Runtime(SimpleNamespace):
    """In place of ``torch.cuda.cudart()``: what it is made with, and a refusal of all else."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(refusal(f"torch.cuda.cudart().{name}"))


class _Ranges(SimpleNamespace):
    """In place of the library behind ``torch.cuda.nvtx``: nobody looks at the ranges."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_args: 0


class _TensorType(type):
    """The class of ``torch.cuda.FloatTensor`` and its like."""

    dtype: torch.dtype
    cuda_name: str

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """A tensor of these sizes, or of these values."""
        target = torch.device(DEVICE) if device is None else inward(device)
        if all(isinstance(size, int) for size in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device=target)
        if isinstance(args[0], torch.Tensor) and not args[0].is_cuda:
            raise TypeError(f"{cls.cuda_name} takes no tensor of the CPU; use .cuda() or .to().")
        if len(args) == 1 and isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device=target)
        return torch.as_tensor(*args).to(target, cls.dtype)


def _tensor_type(name: str, dtype: torch.dtype) -> Any:
    return _TensorType(name, (), {"dtype": dtype, "cuda_name": f"torch.{CUDA}.{name}"})
