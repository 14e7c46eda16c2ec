"""The devices on which a test's memory is measured: a simulated card of the budget's size, or a CUDA device."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.optim import optimizer as optimizer_hooks

from gpudash.agent.memory import snapshots as cuda_snapshot
from gpudash.devices.names import SimulatedCard, shown_name
from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY
from gpudash.memory.allocator.settings import AllocatorSettings, allocator_text
from gpudash.simulator.as_cuda.answering import answer_for_cuda, is_answering
from gpudash.simulator.as_cuda.answering import end as end_answering
from gpudash.simulator.device.backend import Backend, register, registered
from gpudash.simulator.device.memory_history import MemoryHistory
from gpudash.simulator.device.naming import naming
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, SimulatedGpu, card_of
from gpudash.specs.memory_cap import MemoryCap
from gpudash.workloads.live_blocks import CudaBlocks, SimulatedBlocks, can_record
from gpudash.workloads.post_mortem import Collector
from gpudash.workloads.testing.marker import MemoryBudget

MOST_EVENTS = 400_000
"""How many events of a test are kept to explain what filled the memory at its peak."""


class MeasuringError(RuntimeError):
    """Nothing can be measured here: one sentence, with what to do."""


class PeakLevels(NamedTuple):
    """The most since the last `MeasuredDevice.reset`, in bytes, and the total number of allocations."""

    allocated: int
    reserved: int
    allocations: int


class MeasuredDevice(Protocol):
    """A device whose memory a single test uses.

    Attributes:
        device: torch's.
        label: its name for people.
        context_bytes: count against the budget in addition to what the allocator reserves.
        collector: knows what the device holds; ``None`` if this torch does not support it.
    """

    device: torch.device
    label: str
    context_bytes: int
    collector: Collector | None

    def begin(self, budget: MemoryBudget, before_reset: Callable[[], None]) -> None:
        """Apply the budget from now on.

        Args:
            budget: of the test; if it has a size or a baseline, a history is recorded.
            before_reset: called before the test's code resets the device's peaks.

        Raises:
            MeasuringError: that is not possible.
        """

    def levels(self) -> PeakLevels:
        """The peaks."""

    def reset(self) -> None:
        """Reset the peaks."""

    def snapshot(self) -> Any:
        """The history in the form of torch's snapshots; ``None`` if none was recorded."""

    def end(self) -> None:
        """Restore what `begin` changed."""


class SimulatedDevice:
    """``sim:0``, a card of the budget's size; a `MeasuredDevice`. What an earlier test left on it stays and counts.

    If it stands in for CUDA, code calls it ``cuda:0``.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")  # until there is another
        self.label = ""
        self.context_bytes = CONTEXT_BYTES
        self.collector: Collector | None = None
        self._card: SimulatedGpu | None = None
        self._before: list[SimulatedGpu] = []
        self._before_reset: Callable[[], None] | None = None
        self._history: MemoryHistory | None = None
        self._steps: Any = None
        self._answers = False

    def begin(self, budget: MemoryBudget, before_reset: Callable[[], None]) -> None:
        if not is_answering() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
            raise MeasuringError(
                "This process has run on a CUDA device, so it cannot run on a simulated one: measure there with "
                "--gpu-memory-device cuda:0, or run these tests alone."
            )
        backend, card = self._put(budget.card)
        if budget.as_cuda and not is_answering():
            _answer(backend)
            self._answers = True
        self.device = torch.device(naming.shown, 0)
        self.label = shown_name("sim:0", card.product)
        self._card, self._before_reset = card, before_reset
        card.reset_peaks()
        card.before_reset.append(before_reset)
        if budget.needs_history or budget.bytes is not None:
            self._history = MemoryHistory(lambda: [card])
            self._history.record("all", "alloc", "python", MOST_EVENTS)
        began = time.monotonic()
        self.collector = SimulatedBlocks(backend, 0, lambda: time.monotonic() - began)
        self.collector.start()
        self._steps = _counting(self.collector)

    def levels(self) -> PeakLevels:
        assert self._card is not None
        return _levels(self._card.statistics())

    def reset(self) -> None:
        assert self._card is not None
        self._card.reset_peaks()

    def snapshot(self) -> Any:
        if self._history is None:
            return None
        return self._history.snapshot()

    def end(self) -> None:
        if self._card is None or self.collector is None:
            return
        self._steps.remove()
        self.collector.stop()
        if self._history is not None:
            self._history.record(None, None, "python", 0)
        if self._before_reset is not None:
            self._card.before_reset.remove(self._before_reset)
        if self._answers:
            end_answering()
        present = registered()
        if self._before and present is not None:
            _replace(present, self._before)

    def _put(self, wanted: SimulatedCard | None) -> tuple[Backend, SimulatedGpu]:
        """Make the card ``sim:0``; an existing card that is in use gets its size."""
        _forget_failures()
        present = registered()
        settings = AllocatorSettings.parse(allocator_text())
        card = card_of(0, LARGEST_CAPACITY if wanted is None else wanted, settings=settings)
        try:
            if present is None:
                return register([card]), card
        except RuntimeError as error:
            raise MeasuringError(str(error)) from None
        before = list(present.cards)
        if _replace(present, [card]):
            self._before = before
            return present, card
        held = before[0]
        if held.architecture != card.architecture:
            raise MeasuringError(
                f"sim:0 still holds memory of an earlier test or of a fixture, so that no {card.product} can take its "
                "place: let go of it, or give gpu_memory the same card there."
            )
        held.resize(card.capacity)
        present.module.set_device(0)
        return present, held


class CudaDevice:
    """A CUDA device, on which torch may reserve as much as the budget; a `MeasuredDevice`."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name if ":" in name else f"{name}:0")
        self.label = str(self.device)
        self.context_bytes = CONTEXT_BYTES
        self.collector: Collector | None = None
        self._fraction = 1.0
        self._steps: Any = None

    def begin(self, budget: MemoryBudget, before_reset: Callable[[], None]) -> None:
        if registered() is not None:
            raise MeasuringError(
                "This process has a simulated GPU, so it cannot run on a CUDA device: run these tests alone."
            )
        if not torch.cuda.is_available():
            raise MeasuringError(f"There is no {self.device} here: leave --gpu-memory-device out for a simulated one.")
        count = torch.cuda.device_count()
        if (self.device.index or 0) >= count:
            raise MeasuringError(f"There is no {self.device}: torch sees {count} CUDA device{'s' * (count > 1)}.")
        _forget_failures()
        torch.cuda.empty_cache()
        self._allow(budget.bytes)
        self.reset()
        began = time.monotonic()
        if can_record():
            self.collector = CudaBlocks(self.device.index or 0, lambda: time.monotonic() - began)
            self.collector.start()
            self._steps = _counting(self.collector)

    def levels(self) -> PeakLevels:
        return _levels(torch.cuda.memory_stats(self.device))

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def snapshot(self) -> Any:
        if self.collector is None:
            return None
        return cuda_snapshot.take(torch)

    def end(self) -> None:
        if self.collector is not None:
            self._steps.remove()
            self.collector.stop()
        torch.cuda.set_per_process_memory_fraction(self._fraction, self.device)

    def _allow(self, budget: int | None) -> None:
        """Limit torch to a budget, less the context; existing allocations count."""
        known = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # not in older torch
        if known is None:
            self._fraction = 1.0
        else:
            self._fraction = known(self.device)
        total = torch.cuda.get_device_properties(self.device).total_memory
        if budget is not None and budget - self.context_bytes < total * self._fraction:
            fraction = MemoryCap(size=budget - self.context_bytes).fraction(total)
            torch.cuda.set_per_process_memory_fraction(fraction, self.device)


def answer_for_cuda_all_along() -> Callable[[], None]:
    """Make an unbounded simulated GPU the one that code calls ``cuda``, from now on.

    Returns:
        a function that ends it.

    Raises:
        MeasuringError: a real one is in use.
    """
    _answer(register([card_of(0, LARGEST_CAPACITY, settings=AllocatorSettings.parse(allocator_text()))]))
    return end_answering


def _answer(backend: Backend) -> None:
    try:
        answer_for_cuda(backend)
    except RuntimeError:
        raise MeasuringError(
            f"A GPU of this computer answers as cuda already ({torch.cuda.get_device_name()}): run pytest with "
            "CUDA_VISIBLE_DEVICES=-1, or measure on it with --gpu-memory-device cuda:0."
        ) from None


def device_of(name: str) -> MeasuredDevice:
    """The device that ``--gpu-memory-device`` names."""
    if name.startswith("sim"):
        return SimulatedDevice()
    return CudaDevice(name)


def _levels(statistics: dict[str, int]) -> PeakLevels:
    return PeakLevels(
        statistics.get("allocated_bytes.all.peak", 0),
        statistics.get("reserved_bytes.all.peak", 0),
        statistics.get("allocation.all.allocated", 0),
    )


def _counting(collector: Collector) -> Any:
    """End a step with each optimizer step, so that lines that keep something of every step are detected."""
    collector.step = 1

    def ended(_optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        collector.step += 1

    return optimizer_hooks.register_optimizer_step_post_hook(ended)


def _forget_failures() -> None:
    """Free the tensors in the traceback of an earlier test, as pytest does slightly later."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


def _replace(backend: Backend, cards: list[SimulatedGpu]) -> bool:
    """Replace the current cards with ``cards``; false if they are in use."""
    try:
        backend.engine.replace(cards)
    except ValueError:
        return False
    return True
