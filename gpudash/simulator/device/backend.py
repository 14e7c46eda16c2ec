"""Registers the simulated device with torch, once per process, at the first use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gpudash.simulator.device import autograd, probe
from gpudash.simulator.device.device_module import DeviceModule
from gpudash.simulator.device.naming import DEVICE, device_of, naming
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.storage import PINNED, kernel_library
from gpudash.simulator.faults import hands_on
from gpudash.simulator.operations import (
    attention,
    autocast,
    collectives,
    cudnn_recurrent,
    encoder_layers,
    kernels,
    recurrent,
)
from gpudash.simulator.operations.operations import Engine


class Backend:
    """The simulated device of this process.

    Attributes:
        engine: runs its operations.
        module: ``torch.sim``.
    """

    def __init__(self, engine: Engine) -> None:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        self.engine = engine
        self.module = DeviceModule(engine)
        # torch must know the name before kernels can be registered
        _setup_privateuseone_for_python_backend(
            DEVICE, backend_module=self.module, device_guard=autograd.device_guard()
        )
        self._libraries = [
            *kernels.install(engine),
            _construct(engine),
            *attention.install(engine),
            *encoder_layers.install(engine),
            *recurrent.install(engine),
            *cudnn_recurrent.install(engine),
            *autocast.install(),
        ]
        # without numbers ranks have nothing to exchange
        if engine.computes:
            self._libraries += collectives.install(engine)
        _answer_for_accelerator(self.module)
        autograd.install()
        _leave_uncompiled()
        _keep_parameters()
        _keep_classes()
        _set_data_across_devices()

    @property
    def cards(self) -> list[SimulatedGpu]:
        """The simulated cards."""
        return self.engine.cards


TRIAL_BYTES = 2**30

_backend: Backend | None = None


def registered() -> Backend | None:
    """The device of this process; ``None`` before `register`."""
    return _backend


def register(cards: Sequence[SimulatedGpu], *, computes: bool = True) -> Backend:
    """Add the device ``sim`` to torch.

    Args:
        cards: ``sim:0``, ``sim:1``, and so on.
        computes: as for `Engine`.

    Returns:
        the backend; an existing one gets ``cards`` in place of its own, all of which must be empty.

    Raises:
        RuntimeError: in one sentence, if another device was already added to torch, or this torch does not support it.
        ValueError: a card to be replaced is in use.
    """
    global _backend
    if _backend is None:
        reason = probe.problem()
        if reason is not None:
            raise RuntimeError(reason)
        _backend = Backend(Engine([], computes=computes))
        reason = None
        if computes:
            reason = _tried(_backend)
        if reason is not None:
            raise RuntimeError(reason)
    _backend.engine.replace(cards)
    return _backend


def _tried(backend: Backend) -> str | None:
    """Try the backend on a card of its own, and return what went wrong."""
    backend.engine.replace([SimulatedGpu(0, TRIAL_BYTES, context=0)])
    return probe.tried()


NOT_SHARED = "A tensor of a simulated GPU cannot be shared with another process; share tensor.cpu()."

_CpuGenerator = torch._C.Generator
_CpuStorage: Any = torch._C.StorageBase


def _construct(engine: Engine) -> Any:
    """Support creating storages, generators and pinned memory for the simulated device.

    torch calls the device's C++ side for these. A device registered from Python has none, so torch crashes or fails.
    """
    _make_storages(engine)
    torch.Generator = Generator  # type: ignore[misc]  # torch's name is a type to mypy, which nothing may replace
    library = kernel_library("aten")
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    return library


def _make_storages(engine: Engine) -> None:
    """Let ``torch.UntypedStorage(..., device="sim")`` allocate on the card; methods that cannot work raise errors."""
    storage_type: Any = torch.UntypedStorage

    def make(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not naming.means_simulated(device):
            return _CpuStorage.__new__(cls, *args, device=device, **kwargs)
        card = engine.card(engine.index_of(torch.device(device)))
        if not args:
            return engine.storages.new(card, 0)
        if isinstance(args[0], int):
            return engine.storages.new(card, args[0])
        return storage_type(args[0]).to(device=torch.device(DEVICE, card.index))

    storage_type.__new__ = make
    _resize_storages(engine)
    for name, sentence in (
        ("_share_fd_cpu_", NOT_SHARED),
        ("_share_filename_cpu_", NOT_SHARED),
    ):
        setattr(storage_type, name, _unless_simulated(getattr(storage_type, name), sentence))
    if not hasattr(storage_type, DEVICE):
        setattr(storage_type, DEVICE, _to_device)


def _resize_storages(engine: Engine) -> None:
    """Let storages free their bytes and allocate them again, as FSDP does with gathered parameters."""
    storage_type: Any = torch.UntypedStorage
    storages = engine.storages
    resize = storage_type.resize_
    nbytes = storage_type.nbytes

    def bytes_held(self: Any) -> int:
        if storages.has_released(self):
            return 0
        return int(nbytes(self))

    def resized(self: Any, size: int) -> Any:
        if not naming.means_simulated(self.device):
            return resize(self, size)
        if size == 0:
            # torch still sees the full size; from the first resize on, storages report whether they have their bytes
            storage_type.nbytes = bytes_held
            storages.release(self)
        elif size != nbytes(self):
            raise RuntimeError("The storage of a simulated GPU keeps its size; resize the tensor instead.")
        else:
            storages.take_again(self, engine.card(self.device.index))
        return self

    storage_type.resize_ = resized


def _to_device(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """``storage.sim()``, like ``storage.cuda()``."""
    target: Any = DEVICE
    if device is not None:
        target = torch.device(DEVICE, device)
    return self.to(device=target, non_blocking=non_blocking)


def _unless_simulated(original: Any, sentence: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if naming.means_simulated(self.device):
            raise RuntimeError(sentence)
        return original(self, *args, **kwargs)

    return method


def _pin_memory(tensor: torch.Tensor, _device: torch.device | None = None) -> torch.Tensor:
    """A copy that counts as pinned; pinning makes host memory no faster for a simulated GPU."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    setattr(made.untyped_storage(), PINNED, True)
    return made


def _is_pinned(tensor: torch.Tensor, _device: torch.device | None = None) -> bool:
    return getattr(tensor.untyped_storage(), PINNED, False)


class _AnyGenerator(type(_CpuGenerator)):  # type: ignore[misc]  # a base that is worked out
    """Makes every generator of torch an instance of ``torch.Generator``, as before."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _CpuGenerator)


class Generator(_CpuGenerator, metaclass=_AnyGenerator):
    """``torch.Generator``, also for the simulated device, whose numbers come from the CPU's generator."""

    _simulated: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        if not naming.means_simulated(device):
            return _CpuGenerator(device)
        made = _CpuGenerator.__new__(cls)
        made._simulated = torch.device(naming.shown, torch.device(device).index or 0)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """Do nothing: the object is already initialised."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stubs
        """The device it was created for."""
        return self._simulated


_COULD_NOT_SWAP = "Couldn't swap"


def _keep_parameters() -> None:
    """Keep the parameters of a module moved to the simulated device the same objects, as on CUDA.

    torch swaps a parameter's bytes for new ones only between device types it knows as dense, and otherwise creates new
    parameters, unknown to an existing optimizer. Its other way, swapping whole tensors, keeps them. Where that fails
    (a graph still holds the parameter), new ones are created.
    """
    original: Any = nn.Module._apply

    @hands_on
    def apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        with _without_sizes_moved(self, fn):
            return apply_to_sized(self, fn, recurse)

    @hands_on
    def apply_to_sized(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        if before or _stays(self, fn):
            return original(self, fn, recurse)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return original(self, fn, recurse)
        except RuntimeError as error:
            if _COULD_NOT_SWAP not in str(error):
                raise
            # torch hides errors within the swap behind a message of its own
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                raise error.__cause__ from None
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
        return original(self, fn, recurse)

    nn.Module._apply = apply  # type: ignore[method-assign]  # that is what it is for


@contextmanager
@hands_on
def _without_sizes_moved(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Move uninitialised parameters of a lazy module, whose size is known at its first call, and hide them meanwhile.

    A parameter stays the same object of its own class, which determines what it becomes.
    """
    every: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    lazy: list[tuple[dict[str, Any], str, Any]] = []
    for owned in every:
        lazy += [(owned, name, tensor) for name, tensor in owned.items() if is_lazy(tensor)]
    swap: Any = torch.utils.swap_tensors
    for owned, name, tensor in lazy:
        moved = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        made = type(tensor)(tensor.requires_grad, device=moved.device, dtype=moved.dtype)
        # a lazy tensor's attributes hold the class it becomes once it is filled
        made.__dict__.update(tensor.__dict__)
        swap(tensor, made)
        owned[name] = None
    try:
        yield
    finally:
        for owned, name, tensor in lazy:
            owned[name] = tensor


@hands_on
def _stays(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether ``fn`` leaves the module's own parameters on the device, as a change of dtype does.

    torch then replaces the bytes of each parameter and frees the old ones before the next parameter.
    """
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    if any(device_of(parameter).type != DEVICE or type(parameter) is not nn.Parameter for parameter in own):
        return False
    with torch.no_grad():
        return all(fn(torch.empty(0, dtype=one.dtype, device=one.device)).device == one.device for one in own)


class _OfClass(torch.autograd.Function):
    """A tensor as an instance of another class, in the same graph."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor, kind: Any) -> torch.Tensor:
        made: torch.Tensor = torch.Tensor._make_subclass(kind, tensor.detach())
        return made

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def _keep_classes() -> None:
    """Make ``as_subclass`` work on the simulated device, where torch finds that its alias already has a class."""
    tensor_type: Any = torch.Tensor
    of_class: Any = _OfClass.apply
    plain = tensor_type.as_subclass

    @hands_on
    def as_subclass(self: torch.Tensor, cls: Any) -> Any:
        if device_of(self).type != DEVICE:
            return plain(self, cls)
        return of_class(self, cls)

    tensor_type.as_subclass = as_subclass


def _set_data_across_devices() -> None:
    """Allow setting ``tensor.data`` to a tensor of the other device."""
    swap: Any = torch.utils.swap_tensors
    plain: Any = torch._C.TensorBase.data

    def data(self: torch.Tensor) -> Any:
        if not is_lazy(self):
            return plain.__get__(self)
        with torch._C.DisableTorchFunctionSubclass():  # else torch makes a lazy one of it, which it cannot from Python
            return plain.__get__(self)

    @hands_on
    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        kinds = {device_of(self).type, device_of(value).type}
        if len(kinds) == 1 or DEVICE not in kinds or "meta" in kinds:
            plain.__set__(self, value)
            return
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        # torch takes the bytes of a tensor of the same type; then the whole tensors are swapped, so `self` stays the
        # same object
        plain.__set__(made, value)
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, requires_grad=self.requires_grad)
        else:
            made.requires_grad_(self.requires_grad)
        swap(self, made)

    tensor_type: Any = torch.Tensor
    tensor_type.data = property(data, set_data, plain.__delete__)


def _answer_for_accelerator(module: DeviceModule) -> None:
    """Answer ``torch.accelerator``'s calls for the simulated device.

    Its functions call torch's C++ side, where a device registered from Python has no memory statistics, no current
    device and nothing to synchronise.
    """

    def exchange(index: int) -> int:
        before = module.current_device()
        if index >= 0:
            module.set_device(index)
        return before

    def set_stream(stream: Any) -> None:
        module.set_device(stream.device)

    answers: dict[str, Callable[..., Any]] = {
        "emptyCache": module.empty_cache,
        "emptyHostCache": lambda: None,
        "exchangeDevice": exchange,
        "getDeviceCapability": lambda _index: {"supported_dtypes": module.supported_dtypes()},
        "getDeviceIndex": module.current_device,
        "getDeviceStats": module.memory_stats,
        "getMemoryInfo": module.mem_get_info,
        "getStream": module.current_stream,
        "isAllocatorInitialized": lambda: True,
        "maybeExchangeDevice": exchange,
        "resetAccumulatedStats": module.reset_accumulated_memory_stats,
        "resetPeakStats": module.reset_peak_memory_stats,
        "setDeviceIndex": exchange,
        "setStream": set_stream,
        "synchronizeDevice": module.synchronize,
    }
    # older torches lack some of them
    for name, answer in answers.items():
        if hasattr(torch._C, f"_accelerator_{name}"):
            setattr(torch._C, f"_accelerator_{name}", answer)


SIMULATOR = __package__.rpartition(".")[0]
"""The package of all code that runs for our devices."""

_INDUCTOR = "_TorchCompileInductorWrapper"
_OTHER_COMPILERS = "_TorchCompileWrapper"


def _leave_uncompiled() -> None:
    """Let ``torch.compile`` trace code of the simulated device, then run it as it is with one warning."""
    for name in (_INDUCTOR, _OTHER_COMPILERS):
        wrapper: Any = getattr(torch, name, None)
        if wrapper is not None:
            wrapper.__init__ = _leaving_the_simulator_out(wrapper.__init__)
    compiler: Any = getattr(torch, _INDUCTOR, None)
    if compiler is None:
        return
    original = compiler.__call__

    def compiled(self: Any, model: Any, inputs: Sequence[Any]) -> Any:
        if any(isinstance(value, torch.Tensor) and value.device.type == DEVICE for value in inputs):
            warnings.warn(f"torch.compile compiles nothing for {DEVICE}: the code runs as it is.", stacklevel=2)
            return model.forward
        return original(self, model, inputs)

    compiler.__call__ = compiled


def _leaving_the_simulator_out(make: Callable[..., None]) -> Callable[..., None]:
    """``make``, after excluding the simulator's own code from torch's tracer.

    Tracing queries the device's stream; if that call is traced too, it recurses without end.
    """

    def made(*args: Any, **kwargs: Any) -> None:
        _leave_out(SIMULATOR)
        make(*args, **kwargs)

    return made


@functools.cache
def _leave_out(package: str) -> None:
    from torch._dynamo import trace_rules  # takes seconds, which only code that compiles should pay for

    add: Any = trace_rules.add
    add(package)
