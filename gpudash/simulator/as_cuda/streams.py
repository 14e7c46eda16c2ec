"""Streams and events, both as ``torch.cuda`` classes and as ``torch.Stream("cuda")`` and ``torch.Event("cuda")``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.as_cuda.devices import CUDA, inward, outward
from gpudash.simulator.as_cuda.notices import emit
from gpudash.simulator.device import device_module
from gpudash.simulator.device.device_module import DeviceModule
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.replacing import Replacements

STREAMS = (
    "Streams and events of torch.cuda do nothing on a simulated GPU: work is over when its call returns, and the time "
    "between two events is the CPU's."
)


class Stream(device_module.Stream):
    """``torch.cuda.Stream``."""

    _emits_notice = True

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if cls._emits_notice:
            emit(STREAMS)
        target = None
        if device is not None:
            target = inward(torch.device(device))
        made = super().__new__(cls, target, priority, **kwargs)
        made.priority = priority
        made._on = outward(made._on)
        return made

    @property
    def cuda_stream(self) -> int:
        """A number in place of the driver's handle."""
        return int(self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority that a card supports."""
        return 0, -5

    def record_event(self, event: Any = None) -> Any:
        """Record an event, which has completed immediately."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class DefaultStream(Stream):
    """A stream that a device has from the start: torch accesses it in every backward pass."""

    _emits_notice = False


class Event(device_module.Event):
    """``torch.cuda.Event``."""

    device = torch.device(CUDA, 0)

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        emit(STREAMS)
        super().__init__(enable_timing, blocking, interprocess)

    def record(self, stream: Any = None) -> None:
        """Record the event, which has completed immediately."""
        if stream is None:
            self.device = torch.device(CUDA, torch.cuda.current_device())
        else:
            self.device = stream.device
        super().record(stream)

    @property
    def cuda_event(self) -> int:
        """A number in place of the driver's handle."""
        return id(self)


def install(replaced: Replacements, module: DeviceModule) -> None:
    """Make the streams of ``module``, ``torch.sim``, those of CUDA, and make torch's own classes create them."""
    before = module.Stream
    module.Stream = DefaultStream
    replaced.undo_by(lambda: setattr(module, "Stream", before))
    module.forget_streams()
    replaced.undo_by(module.forget_streams)
    replaced.put(torch, "Stream", _AnyStream)
    replaced.put(torch, "Event", _AnyEvent)


class _AnyKind(type):
    """Metaclass of the stand-ins for torch's classes: both torch's objects and ours are instances."""

    plain: Any
    ours: type
    made: Callable[..., Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (cls.ours, cls.plain))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (cls.ours, cls.plain))

    def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Create one for the simulated device, which is the default; other devices get torch's own."""
        if device is not None and torch.device(inward(device)).type not in (DEVICE, CUDA):
            return cls.plain(device, *args, **kwargs)
        return cls.made(device, *args, **kwargs)


def _stream(device: Any, *args: Any, **kwargs: Any) -> Any:
    """Streams that torch creates for itself, as `nn.DataParallel` does, do not count as the program's."""
    asker = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]
    return (DefaultStream if asker == "torch" else Stream)(device, *args, **kwargs)


def _event(_device: Any, **kwargs: Any) -> Event:
    return Event(**kwargs)


class _AnyStream(metaclass=_AnyKind):
    """Replaces ``torch.Stream``."""

    plain, ours, made = torch.Stream, device_module.Stream, staticmethod(_stream)


class _AnyEvent(metaclass=_AnyKind):
    """Replaces ``torch.Event``."""

    plain, ours, made = getattr(torch, "Event", Event), device_module.Event, staticmethod(_event)
