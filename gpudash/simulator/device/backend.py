"""Making the simulated device known to torch: done once in a process, at the first use."""

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
        # kernels can be registered only when torch knows the name
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
        # without numbers there is nothing that ranks could exchange
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
        computes: of `Engine`.

    Returns:
        the backend; when there is one already, that one with ``cards`` in place of its own, all of which must be empty.

    Raises:
        RuntimeError: one sentence, when another device has been added to torch already, or this torch cannot.
        ValueError: when a card that is in use would be taken away.
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
    """What went wrong on a card of its own."""
    backend.engine.replace([SimulatedGpu(0, TRIAL_BYTES, context=0)])
    return probe.tried()


NOT_SHARED = "A tensor of a simulated GPU cannot be shared with another process; share tensor.cpu()."

_CpuGenerator = torch._C.Generator
_CpuStorage: Any = torch._C.StorageBase


def _construct(engine: Engine) -> Any:
    """Make storages, generators and pinned memory of the simulated device.

    For these torch asks the device's C++ side, which a device registered from Python has not, and crashes or fails.
    """
    _make_storages(engine)
    torch.Generator = Generator  # type: ignore[misc]  # torch's name is a type to mypy, which nothing may replace
    library = kernel_library("aten")
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    return library


def _make_storages(engine: Engine) -> None:
    """Let ``torch.UntypedStorage(..., device="sim")`` take memory of the card, and its methods say what they cannot."""
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
    """Let storages give their bytes back and take as many again, as FSDP has those of gathered parameters do."""
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
            # for torch it keeps its size; from the first one on, storages are asked whether they have their bytes
            storage_type.nbytes = bytes_held
            storages.release(self)
        elif size != nbytes(self):
            raise RuntimeError("The storage of a simulated GPU keeps its size; resize the tensor instead.")
        else:
            storages.take_again(self, engine.card(self.device.index))
        return self

    storage_type.resize_ = resized


def _to_device(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """``storage.sim()``, after ``storage.cuda()``."""
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
    """A copy that counts as pinned; the host's memory is no faster for a simulated GPU when it is."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    setattr(made.untyped_storage(), PINNED, True)
    return made


def _is_pinned(tensor: torch.Tensor, _device: torch.device | None = None) -> bool:
    return getattr(tensor.untyped_storage(), PINNED, False)


class _AnyGenerator(type(_CpuGenerator)):  # type: ignore[misc]  # a base that is worked out
    """Every generator of torch's is an instance of ``torch.Generator``, as before."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _CpuGenerator)


class Generator(_CpuGenerator, metaclass=_AnyGenerator):
    """``torch.Generator``, also for the simulated device, whose numbers the CPU's generator makes."""

    _simulated: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        if not naming.means_simulated(device):
            return _CpuGenerator(device)
        made = _CpuGenerator.__new__(cls)
        made._simulated = torch.device(naming.shown, torch.device(device).index or 0)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """Everything is done by then."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stubs
        """The device it was made for."""
        return self._simulated


_COULD_NOT_SWAP = "Couldn't swap"


def _keep_parameters() -> None:
    """Let the parameters of a module that is moved to the simulated device stay the same objects, as on CUDA.

    torch swaps the bytes of a parameter for those on the new device only between the kinds of device it knows as dense,
    and makes new parameters otherwise, which an optimizer made before would not know of. Its other way, swapping whole
    tensors, keeps them; where that is not possible (a graph still holds the parameter) new ones are made all the same.
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
            # torch hides what went wrong within the swap behind a sentence of its own
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                raise error.__cause__ from None
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
        return original(self, fn, recurse)

    nn.Module._apply = apply  # type: ignore[method-assign]  # that is what it is for


@contextmanager
@hands_on
def _without_sizes_moved(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Move what a lazy module will only know the size of at its first call, and hide it meanwhile.

    It stays the same object of its own class, which says what it is to become.
    """
    every: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    lazy: list[tuple[dict[str, Any], str, Any]] = []
    for owned in every:
        lazy += [(owned, name, tensor) for name, tensor in owned.items() if is_lazy(tensor)]
    swap: Any = torch.utils.swap_tensors
    for owned, name, tensor in lazy:
        moved = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        made = type(tensor)(tensor.requires_grad, device=moved.device, dtype=moved.dtype)
        # a lazy tensor keeps in its attributes what class it becomes once it is filled
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
    """Whether ``fn`` leaves the module's own parameters on the device, as a change of their dtype does.

    torch then puts their new bytes in place of the old ones, which are free before the next parameter's turn.
    """
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    if any(device_of(parameter).type != DEVICE or type(parameter) is not nn.Parameter for parameter in own):
        return False
    with torch.no_grad():
        return all(fn(torch.empty(0, dtype=one.dtype, device=one.device)).device == one.device for one in own)


class _OfClass(torch.autograd.Function):
    """A tensor as one of another class, of the same graph."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor, kind: Any) -> torch.Tensor:
        made: torch.Tensor = torch.Tensor._make_subclass(kind, tensor.detach())
        return made

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def _keep_classes() -> None:
    """Let ``as_subclass`` work on the simulated device, where torch finds its own alias to have a class already."""
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
    """Let ``tensor.data`` be set to a tensor of the other device."""
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
        # torch takes the bytes of a tensor of the same kind; then the whole tensors are swapped, so that
        # `self` stays the object it was
        plain.__set__(made, value)
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, requires_grad=self.requires_grad)
        else:
            made.requires_grad_(self.requires_grad)
        swap(self, made)

    tensor_type: Any = torch.Tensor
    tensor_type.data = property(data, set_data, plain.__delete__)


def _answer_for_accelerator(module: DeviceModule) -> None:
    """Answer for the simulated device what ``torch.accelerator`` asks.

    Its functions ask torch's C++ side, where a device registered from Python has no memory figures, no current device
    and nothing to wait for.
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
"""The package of all that runs for a device of ours."""

_INDUCTOR = "_TorchCompileInductorWrapper"
_OTHER_COMPILERS = "_TorchCompileWrapper"


def _leave_uncompiled() -> None:
    """Let ``torch.compile`` trace code of the simulated device and then run it as it is, with one warning."""
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
    """``make``, after torch's tracer has been set to leave the simulator's own code alone.

    Tracing asks the device for its stream; traced itself, the answer asks again, without end.
    """

    def made(*args: Any, **kwargs: Any) -> None:
        _leave_out(SIMULATOR)
        make(*args, **kwargs)

    return made


@functools.cache
def _leave_out(package: str) -> None:
    from torch._dynamo import trace_rules  # costs seconds, which only code that compiles should spend

    add: Any = trace_rules.add
    add(package)
