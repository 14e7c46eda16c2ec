"""A function mode that passes simulated devices to torch in place of CUDA's, and CUDA's back to the program.

A function mode belongs to a thread. Threads started by Python's `threading` enter it at their start. A backward pass,
which torch runs with all modes disabled, re-enters it for the hooks and the code that run within.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import overrides
from torch.utils._device import _device_constructors
from torch.utils.dlpack import DLDeviceType

from gpudash.simulator.as_cuda.devices import CUDA, inward, outward, reworded
from gpudash.simulator.as_cuda.notices import refusal
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements

Answer = Callable[..., Any]

_device_type = torch.device


class CudaMode(overrides.TorchFunctionMode):
    """Maps devices."""

    @hands_on
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Called by torch for each of its functions, with this mode disabled during the call."""
        answer = _answers.get(func)
        if kwargs:
            device = kwargs.get("device")
            if device is not None and (mapped := placed(device)) is not device:
                kwargs = {**kwargs, "device": mapped}
            if kwargs.get("pin_memory") and (func in _device_constructors() or func in _LIKE):
                answer, kwargs = _making_pinned(func), {**kwargs, "pin_memory": False}
        else:
            kwargs = {}
        for value in args:
            if type(value) is _device_type and value.type == CUDA:
                args = tuple(map(_mapped, args))
                break
        try:
            if answer is None:
                return func(*args, **kwargs)
            return answer(*args, **kwargs)
        except Exception as error:
            if error.args and isinstance(error.args[0], str) and DEVICE in error.args[0]:
                error.args = (reworded(error.args[0]), *error.args[1:])
            raise


_mode = CudaMode()

_modes: Callable[[], list[Any]] = overrides._get_current_function_mode_stack
_turned_off: Callable[[], AbstractContextManager[Any]] = overrides._pop_mode_temporarily
_text: Callable[..., str] = torch.Tensor.__repr__


def is_on() -> bool:
    """Whether the mode is active in the calling thread."""
    return any(mode is _mode for mode in _modes())


def install(replaced: Replacements) -> None:
    """Enter the mode in the calling thread, and in threads started from now on."""
    _mode.__enter__()  # type: ignore[no-untyped-call]
    replaced.undo_by(_leave)
    replaced.wrap(threading.Thread, "start", _with_mode_in_thread)
    # `torch.autograd` has the same function under a second name
    for owner in (torch.autograd.graph, torch.autograd):
        replaced.wrap(owner, "_engine_run_backward", with_mode)
    replaced.wrap(torch._C._autograd, "_push_saved_tensors_default_hooks", _with_mode_in_hooks)
    replaced.wrap(overrides, "has_torch_function", _without_ours)
    replaced.wrap(torch, "range", _placing)


def _leave() -> None:
    if is_on():
        _mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _with_mode_in_thread(start: Callable[..., None]) -> Callable[..., None]:
    def started(self: threading.Thread) -> None:
        run = self.run

        def run_with_mode() -> None:
            self.__dict__.pop("run", None)  # restore the thread's own method: a pickle or a subclass may access it
            with _mode:
                run()

        if "run" not in self.__dict__:
            self.__dict__["run"] = run_with_mode
        start(self)

    return started


def with_mode(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with the mode active, even where torch has disabled all modes."""

    @hands_on
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if is_on() else _mode:
            return run(*args, **kwargs)

    return run_backward


def _with_mode_in_hooks(push: Callable[..., None]) -> Callable[..., None]:
    """Wrap hooks for saved tensors, as checkpointing uses them: torch calls them from within its own functions."""

    def pushed(*hooks: Callable[..., Any]) -> None:
        push(*map(with_mode, hooks))

    return pushed


def _without_ours(has: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Hide our mode from modules, which otherwise treat inputs as not plain and take a slower path."""

    def has_torch_function(values: Any) -> bool:
        if _modes()[-1:] != [_mode]:
            return has(values)
        with _turned_off():
            return has(values)

    return has_torch_function


def _placing(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap ``torch.range``, the only factory function that torch does not pass to modes."""

    @hands_on
    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return make(*args, device=placed(device), **kwargs)

    return made


def _mapped(value: Any) -> Any:
    if type(value) is _device_type:
        return inward(value)
    return value


@hands_on
def _moved(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """``tensor.cuda()``."""
    named = device
    if device is None:
        named = CUDA
    elif isinstance(device, int):
        named = torch.device(DEVICE, device)
    target = placed(named)
    if torch.device(target).type != DEVICE:
        raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
    if memory_format is None:
        layout = torch.preserve_format
    else:
        layout = memory_format
    return tensor.to(target, non_blocking=non_blocking, memory_format=layout)


@hands_on
def _sent(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``tensor.to("cuda")``, where any argument may be the device."""
    if args and type(args[0]) in (str, _device_type):
        args = (placed(args[0]), *args[1:])
    elif "device" in kwargs:
        kwargs = {**kwargs, "device": placed(kwargs["device"])}
    return tensor.to(*args, **kwargs)


def placed(device: Any) -> Any:
    """Where a tensor is created or moved to: the current card by default, where torch would often take the first."""
    target = inward(device)
    if type(target) is _device_type and target.type == DEVICE and target.index is None:
        return torch.device(DEVICE, torch.cuda.current_device())
    return target


@hands_on
def _typed(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """``tensor.type()``, and ``tensor.type("torch.cuda.FloatTensor")``."""
    if dtype is None:
        return tensor.type().replace(f"torch.{DEVICE}.", f"torch.{CUDA}.")
    name = getattr(dtype, "cuda_name", dtype)
    if isinstance(name, str) and name.startswith(f"torch.{CUDA}."):
        return tensor.type(name.replace(f".{CUDA}", "")).to(placed(CUDA), non_blocking=non_blocking)
    return tensor.type(dtype, non_blocking=non_blocking, **kwargs)


def _is_cuda(tensor: torch.Tensor) -> bool:
    return tensor.device.type == DEVICE


def _device(tensor: torch.Tensor) -> torch.device:
    return outward(tensor.device)


@hands_on
def _made_device(*args: Any, **kwargs: Any) -> torch.device:
    """``torch.device(0)`` is a device of the accelerator; a name is kept, even that of the simulated device."""
    made = torch.device(*args, **kwargs)
    if args and isinstance(args[0], int):
        return outward(made)
    return made


@hands_on
def _lent_by(tensor: torch.Tensor) -> Any:
    """The result of ``__dlpack_device__``: torch can exchange these bytes with itself, but no other library mistakes
    them for a real GPU's, where its kernels would access them."""
    device = tensor.device
    if device.type == DEVICE:
        return (DLDeviceType.kDLExtDev, device.index)
    return tensor.__dlpack_device__()


@hands_on
def _lent(tensor: torch.Tensor, *, stream: Any = None, **kwargs: Any) -> Any:
    """``__dlpack__``: there is nothing a stream must wait for."""
    if tensor.device.type == DEVICE:
        return tensor.__dlpack__(**kwargs)
    return tensor.__dlpack__(stream=stream, **kwargs)


def _no_array(tensor: torch.Tensor) -> Any:
    if tensor.device.type == DEVICE:
        raise AttributeError(refusal("__cuda_array_interface__"))
    return tensor.__cuda_array_interface__


@hands_on
def _shown(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
    return _text(tensor, *args, **kwargs).replace(f"device='{DEVICE}", f"device='{CUDA}")


@hands_on
def _pinned(tensor: torch.Tensor, *_device: Any, **_named: Any) -> Any:
    return tensor.pin_memory()


def _making_pinned(func: Answer) -> Answer:
    """Create tensors first and then pin them: torch would call CUDA's C++ side for tensors created pinned."""
    return hands_on(lambda *args, **kwargs: func(*args, **kwargs).pin_memory())


_LIKE = frozenset(
    (
        torch.empty_like,
        torch.full_like,
        torch.ones_like,
        torch.rand_like,
        torch.randn_like,
        torch.zeros_like,
        torch.Tensor.new_empty,
        torch.Tensor.new_full,
        torch.Tensor.new_ones,
        torch.Tensor.new_zeros,
    )
)
"""Functions that create a tensor like another one and take ``pin_memory``."""


def _is_pinned(tensor: torch.Tensor, *_device: Any, **_named: Any) -> bool:
    return tensor.is_pinned()


def _getter(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


_answers: dict[Any, Answer] = {
    _getter("device"): _device,
    _getter("is_cuda"): _is_cuda,
    torch.device: _made_device,
    torch.Tensor.cuda: _moved,
    torch.Tensor.to: _sent,
    torch.Tensor.type: _typed,
    torch.Tensor.__repr__: _shown,
    torch.Tensor.pin_memory: _pinned,
    torch.Tensor.is_pinned: _is_pinned,
    torch.Tensor.__dlpack__: _lent,
    torch.Tensor.__dlpack_device__: _lent_by,
    torch.Tensor.__cuda_array_interface__.__get__: _no_array,
}
"""What is called in place of torch's function, with the mode disabled."""
