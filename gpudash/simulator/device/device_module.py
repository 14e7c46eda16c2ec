"""``torch.sim``: the module for the device, modelled on ``torch.cuda``.

Streams and events never wait, because work is complete when its call returns.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar, Union

import torch

from gpudash.memory.allocator.refusal import format_size
from gpudash.simulator.device.memory_history import MemoryHistory
from gpudash.simulator.device.naming import DEVICE, naming
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.storage import OutOfMemoryError
from gpudash.simulator.operations.operations import Engine

DeviceLike = Union[torch.device, str, int, None]

SUMMARISED = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("GPU reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("GPU reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
)
"""Rows of `MemoryModule.memory_summary`: label, statistic, whether it counts bytes."""


class MemoryModule:
    """The functions of ``torch.cuda.memory`` that apply here, under the same names.

    Args:
        engine: runs the device's operations.
        history: records the allocators' events.

    Attributes:
        history: as given.
    """

    def __init__(self, engine: Engine, history: MemoryHistory) -> None:
        self._engine = engine
        self.history = history

    def index_of(self, device: DeviceLike = None) -> int:
        """Index of a device in any form that torch accepts.

        Raises:
            ValueError: it is not a simulated device.
            RuntimeError: there is no device with this index.
        """
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type not in naming.understood:
                raise ValueError(f"Expected a {naming.shown} device, but got: {device}")
            device = device.index
        if device is None or device < 0:
            return self._engine.current
        return self._engine.card(device).index

    def mem_get_info(self, device: DeviceLike = None) -> tuple[int, int]:
        """Free and total bytes of the card. As on CUDA, the call creates a context.

        Raises:
            torch.OutOfMemoryError: there is no memory for the context.
        """
        card = self._engine.cards[self.index_of(device)]
        self._engine.storages.open(card)
        return card.free_and_total()

    def memory_stats(self, device: DeviceLike = None) -> dict[str, int]:
        """The allocator's statistics under torch's names."""
        return OrderedDict(sorted(self._engine.cards[self.index_of(device)].statistics().items()))

    def memory_allocated(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["allocated_bytes.all.current"]

    def max_memory_allocated(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["allocated_bytes.all.peak"]

    def memory_reserved(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["reserved_bytes.all.current"]

    def max_memory_reserved(self, device: DeviceLike = None) -> int:
        return self.memory_stats(device)["reserved_bytes.all.peak"]

    def reset_peak_memory_stats(self, device: DeviceLike = None) -> None:
        self._engine.cards[self.index_of(device)].reset_peaks()

    def reset_max_memory_allocated(self, device: DeviceLike = None) -> None:
        self.reset_peak_memory_stats(device)

    def reset_accumulated_memory_stats(self, device: DeviceLike = None) -> None:
        self._engine.cards[self.index_of(device)].reset_accumulated()

    def empty_cache(self) -> None:
        """Release every unused segment on every card."""
        for card in self._engine.cards:
            card.empty_cache()

    def set_per_process_memory_fraction(self, fraction: float, device: DeviceLike = None) -> None:
        """Limit what the allocator may reserve to a fraction of the capacity.

        Raises:
            ValueError: it is not between 0 and 1.
        """
        self._engine.cards[self.index_of(device)].set_fraction(fraction)

    def get_per_process_memory_fraction(self, device: DeviceLike = None) -> float:
        """The fraction of the capacity that the allocator may reserve."""
        return self._engine.cards[self.index_of(device)].fraction

    def get_allocator_backend(self) -> str:
        return "native"

    def memory_snapshot(self, mempool_id: Any = None) -> Any:
        """The segments of every card, in the list form of torch's snapshots."""
        return self.history.snapshot()["segments"]

    def memory_summary(self, device: DeviceLike = None, abbreviated: bool = False) -> str:
        """A printable table of the statistics."""
        index = self.index_of(device)
        stats = self.memory_stats(index)
        pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")
        lines = [
            f"PyTorch {naming.shown.upper()} memory summary, device ID {index} (simulated)",
            f"{naming.shown.upper()} OOMs: {stats['num_ooms']}    cudaMalloc retries: {stats['num_alloc_retries']}",
            f"{'Metric':<28}{'Cur Usage':>14}{'Peak Usage':>14}{'Tot Alloc':>14}{'Tot Freed':>14}",
        ]
        for label, statistic, counts_bytes in SUMMARISED:
            for pool in pools:
                values = [stats[f"{statistic}.{pool}.{part}"] for part in ("current", "peak", "allocated", "freed")]
                shown = [format_size(value) if counts_bytes else str(value) for value in values]
                if pool == "all":
                    name = label
                else:
                    name = f"  from {pool.replace('_', ' ')}"
                lines.append(f"{name:<28}" + "".join(f"{value:>14}" for value in shown))
        return "\n".join(lines)

    def _record_memory_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        device: DeviceLike = None,
        clear_history: bool = False,
        **_ignored: Any,
    ) -> None:
        """Record every card's events from now on, or stop with ``enabled=None``, like torch's function.

        Raises:
            ValueError: in one sentence, for a setting that torch does not have.
        """
        self.history.record(enabled, context, stacks, max_entries, clear_history)

    def _snapshot(self, device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
        """Current allocations and recorded events, in the form of torch's snapshots."""
        return self.history.snapshot()

    def _dump_snapshot(self, filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        """Write the snapshot to a file in torch's format."""
        self.history.dump(filename)


STREAMS_PER_POOL = 32
"""torch reuses its streams round-robin, from a pool for each priority (c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""


class Stream(torch.Stream):
    """``torch.cuda.Stream`` for the simulated device.

    Attributes:
        number: 0 for the default stream; streams that are one to torch have the same number.
    """

    _on: torch.device
    number = 0
    _made: ClassVar[Counter[tuple[int | None, int]]] = Counter()

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if kwargs:
            made = super().__new__(cls, priority=priority, **kwargs)
            made._on = torch.device(DEVICE, kwargs.get("device_index", 0))
            return made
        if device is None:
            target = torch.device(DEVICE)
        else:
            target = torch.device(device)
        if target.index is None:
            target = torch.device(target.type, torch.accelerator.current_device_index())
        made = super().__new__(cls, device=target, priority=priority)
        made._on = target
        level = max(0, -priority)
        place = Stream._made[target.index, level] % STREAMS_PER_POOL
        Stream._made[target.index, level] += 1
        made.number = 1 + level * STREAMS_PER_POOL + place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in torch's stubs
        """Its own device: torch takes every device of a backend registered from Python for the first."""
        return self._on

    def query(self) -> bool:
        """Whether all work is done, which is always true."""
        return True

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: the other stream's work is done."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: the event has completed."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event, which has completed immediately."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """``torch.cuda.Event`` for the simulated device, timed by the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Record the event, which has completed immediately."""
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: the event has completed."""

    def query(self) -> bool:
        """Whether the work before it is done, which is always true."""
        return True

    def synchronize(self) -> None:
        """Do nothing: the event has completed."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of host time between two recorded events; not a GPU's time.

        Raises:
            ValueError: in torch's words, if one was not recorded or does not measure time.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3


class StreamContext:
    """A context manager that makes ``stream`` and its device current."""

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
    """The result of ``torch.cuda.get_device_properties``, as far as it is simulated."""

    def __init__(self, card: SimulatedGpu) -> None:
        self.name = card.product
        self.total_memory = card.free_and_total()[1]
        self.major, self.minor = card.architecture.capability
        self.multi_processor_count = card.architecture.multiprocessors
        self.max_threads_per_multi_processor = card.architecture.threads_per_multiprocessor
        self.uuid = card.uuid
        self.warp_size = 32
        self.regs_per_multiprocessor = 2**16
        self.shared_memory_per_block = 48 * 2**10
        self.is_integrated = self.is_multi_gpu_board = 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r} of a simulated GPU is not known")

    def __repr__(self) -> str:
        mib = self.total_memory // 2**20
        return f"_DeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, total_memory={mib}MB)"


class _Current:
    """A context manager that makes another device current."""

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
"""Within `DeviceModule`, an attribute has the name."""


class DeviceModule(MemoryModule):
    """The functions of ``torch.cuda`` that apply here, under the same names.

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
        """Do nothing: a card is initialised at its first use."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return bool(self._engine.cards)

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """Number of simulated GPUs."""
        return len(self._engine.cards)

    def current_device(self) -> int:
        """Index of the device that ``device="sim"`` stands for."""
        return self._engine.current

    def set_device(self, device: DeviceLike) -> None:
        """Make ``device`` the one that ``device="sim"`` stands for."""
        self._engine.current = self.index_of(device)

    def device(self, device: DeviceLike) -> _Current:
        """A context manager that makes ``device`` current."""
        return _Current(self, self.index_of(device))

    def device_of(self, tensor: Any) -> _Current:
        """A context manager that makes the device of ``tensor`` current, if it is simulated."""
        simulated = isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE
        return _Current(self, tensor.device.index if simulated else self.current_device())

    def get_device_name(self, device: DeviceLike = None) -> str:
        return self._engine.cards[self.index_of(device)].product

    def get_device_properties(self, device: DeviceLike = None) -> _Properties:
        return _Properties(self._engine.cards[self.index_of(device)])

    def get_device_capability(self, device: DeviceLike = None) -> tuple[int, int]:
        """The compute capability that is simulated."""
        return self._engine.cards[self.index_of(device)].architecture.capability

    def get_arch_list(self) -> list[str]:
        return []

    def can_device_access_peer(self, device: DeviceLike, peer_device: DeviceLike) -> bool:
        return self.index_of(device) != self.index_of(peer_device)

    def ipc_collect(self) -> None:
        """Do nothing: no memory is shared with other processes."""

    def synchronize(self, device: DeviceLike = None) -> None:
        """Do nothing: operations are complete when their call returns."""
        self.index_of(device)
        self._engine.note_wait()

    def current_stream(self, device: DeviceLike = None) -> _Stream:
        """The current stream on ``device``."""
        index = self.index_of(device)
        return self._streams.get(index) or self.default_stream(index)

    def default_stream(self, device: DeviceLike = None) -> _Stream:
        """The default stream of ``device``, always the same object."""
        index = self.index_of(device)
        if index not in self._default_streams:
            made = self.Stream(torch.device(DEVICE, index))
            made.number = 0
            self._default_streams[index] = made
        return self._default_streams[index]

    def forget_streams(self) -> None:
        """Reset every device to a new default stream."""
        self._streams.clear()
        self._default_streams.clear()
        for card in self._engine.cards:
            card.stream = 0

    def set_stream(self, stream: _Stream | None) -> None:
        """Make ``stream`` and its device current."""
        if stream is not None:
            index = self.index_of(stream.device)
            self._streams[index] = stream
            self._engine.cards[index].stream = stream.number
            self.set_device(stream.device)

    def stream(self, stream: _Stream | None) -> StreamContext:
        """A context manager that makes ``stream`` current."""
        return StreamContext(self, stream)

    def manual_seed(self, seed: int) -> None:
        """Seed the CPU's generator, which also serves this device."""
        torch.default_generator.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: ``torch.manual_seed``, which calls this, has already seeded the CPU's generator."""

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
        return list(map(self.get_rng_state, range(self.device_count())))

    def set_rng_state_all(self, new_states: Sequence[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def supported_dtypes(self) -> set[torch.dtype]:
        """The dtypes that tensors may have."""
        return {getattr(torch, name) for name in DTYPES if hasattr(torch, name)}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.{naming.shown} has no {name!r}: this GPU is simulated")
