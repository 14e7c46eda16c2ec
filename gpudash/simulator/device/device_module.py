"""``torch.sim``: what torch and users ask of a device's module, after ``torch.cuda``.

Streams and events: work is over when its call returns, and nothing is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from gpudash.simulator.device.memory_history import MemoryHistory
from gpudash.simulator.device.memory_module import DeviceLike, MemoryModule
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.storage import DEVICE, OutOfMemoryError
from gpudash.simulator.operations.operations import Engine


class Stream(torch.Stream):
    """``torch.cuda.Stream`` for the simulated device."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        if device is None:
            device = torch.accelerator.current_device_index()
        if isinstance(device, int):
            device = torch.device(DEVICE, device)
        return super().__new__(cls, device=device, priority=priority)

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def synchronize(self) -> None:
        """Nothing: all work is done."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing: the other stream's work is done."""

    def wait_event(self, event: Any) -> None:
        """Nothing: the event has passed."""

    def record_event(self, event: Any = None) -> Any:
        """An event that passes now."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """``torch.cuda.Event`` for the simulated device, by the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Let the event pass now."""
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing: the event has passed."""

    def query(self) -> bool:
        """Whether the work before it is done: always."""
        return True

    def synchronize(self) -> None:
        """Nothing: the event has passed."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the host's time between two recorded events; not a GPU's.

        Raises:
            ValueError: torch's words, when one was not recorded or measures no time.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3


class StreamContext:
    """A context in which ``stream`` is the current one, and its device the current device."""

    def __init__(self, module: Any, stream: Stream | None) -> None:
        self._module = module
        self._stream = stream

    def __enter__(self) -> None:
        self._before = self._module.current_stream(), self._module.current_device()
        if self._stream is not None:
            self._module.set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        stream, index = self._before
        self._module.set_stream(stream)
        self._module.set_device(index)


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
]


class _Properties:
    """What ``torch.cuda.get_device_properties`` tells, as far as a simulation has it."""

    def __init__(self, card: SimulatedGpu) -> None:
        self.name = card.product
        self.total_memory = card.capacity
        self.major, self.minor = card.architecture.capability
        self.multi_processor_count = card.architecture.multiprocessors
        self.max_threads_per_multi_processor = card.architecture.threads_per_multiprocessor
        self.uuid = card.uuid

    def __repr__(self) -> str:
        mib = self.total_memory // 2**20
        return f"_DeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, total_memory={mib}MB)"


class _Current:
    """A context in which another device is the current one."""

    def __init__(self, module: DeviceModule, index: int) -> None:
        self._module = module
        self._index = index
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(self._module.current_device())
        self._module.set_device(self._index)

    def __exit__(self, *error: object) -> None:
        self._module.set_device(self._before.pop())


_Stream = Stream
"""Within `DeviceModule` the name is that of its attribute."""


class DeviceModule(MemoryModule):
    """The functions of ``torch.cuda`` that make sense here, under the same names.

    Args:
        engine: runs the device's operations.
    """

    OutOfMemoryError = OutOfMemoryError
    Event = Event
    Stream = Stream

    def __init__(self, engine: Engine) -> None:
        history = MemoryHistory(lambda: engine.cards)
        super().__init__(engine, history)
        self.memory = MemoryModule(engine, history)
        self._streams: dict[int, _Stream] = {}
        self._default_streams: dict[int, _Stream] = {}

    def init(self) -> None:
        """Nothing: a card is ready at its first use."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return bool(self._engine.cards)

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """How many GPUs are simulated."""
        return len(self._engine.cards)

    def current_device(self) -> int:
        """Index of the device that ``device="sim"`` means."""
        return self._engine.current

    def set_device(self, device: DeviceLike) -> None:
        """Let ``device="sim"`` mean ``device``."""
        self._engine.current = self.index_of(device)

    def device(self, device: DeviceLike) -> _Current:
        """A context in which ``device`` is the current one."""
        return _Current(self, self.index_of(device))

    def device_of(self, tensor: Any) -> _Current:
        """A context in which the device of ``tensor`` is the current one, if it is simulated."""
        simulated = isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE
        return _Current(self, tensor.device.index if simulated else self.current_device())

    def get_device_name(self, device: DeviceLike = None) -> str:
        return self._engine.cards[self.index_of(device)].product

    def get_device_properties(self, device: DeviceLike = None) -> _Properties:
        return _Properties(self._engine.cards[self.index_of(device)])

    def get_device_capability(self, device: DeviceLike = None) -> tuple[int, int]:
        """The compute capability whose rules are followed."""
        return self._engine.cards[self.index_of(device)].architecture.capability

    def get_arch_list(self) -> list[str]:
        return []

    def can_device_access_peer(self, device: DeviceLike, peer_device: DeviceLike) -> bool:
        return self.index_of(device) != self.index_of(peer_device)

    def ipc_collect(self) -> None:
        """Nothing: no memory is shared with other processes."""

    def synchronize(self, device: DeviceLike = None) -> None:
        """Nothing: operations are over when their call returns."""
        self.index_of(device)

    def current_stream(self, device: DeviceLike = None) -> _Stream:
        """The stream in use on ``device``."""
        index = self.index_of(device)
        return self._streams.get(index) or self.default_stream(index)

    def default_stream(self, device: DeviceLike = None) -> _Stream:
        """The stream that ``device`` begins with, always the same."""
        index = self.index_of(device)
        if index not in self._default_streams:
            self._default_streams[index] = _Stream(torch.device(DEVICE, index))
        return self._default_streams[index]

    def set_stream(self, stream: _Stream | None) -> None:
        """Use ``stream``, and its device, from now on."""
        if stream is not None:
            self._streams[self.index_of(stream.device)] = stream
            self.set_device(stream.device)

    def stream(self, stream: _Stream | None) -> StreamContext:
        """A context in which ``stream`` is the current one."""
        return StreamContext(self, stream)

    def manual_seed(self, seed: int) -> None:
        """Seed the CPU's generator, which makes this device's numbers too."""
        torch.default_generator.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Nothing more: ``torch.manual_seed``, which calls this, has seeded the CPU's generator."""

    def seed(self) -> None:
        torch.default_generator.seed()

    def seed_all(self) -> None:
        self.seed()

    def initial_seed(self) -> int:
        return torch.default_generator.initial_seed()

    def get_rng_state(self, device: DeviceLike = None) -> torch.Tensor:
        return torch.default_generator.get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: DeviceLike = None) -> None:
        torch.default_generator.set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, new_states: Sequence[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def supported_dtypes(self) -> set[torch.dtype]:
        """What tensors may be of."""
        return {getattr(torch, name) for name in DTYPES if hasattr(torch, name)}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.{DEVICE} has no {name!r}: this GPU is simulated")
