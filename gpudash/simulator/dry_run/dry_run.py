"""Runs code on tensors without numbers, and records its requests to the allocator.

This needs a process of its own: the simulated device of a process either computes or does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch._library import custom_ops, simple_registry

from gpudash.memory.allocator.device_memory import addresses_fall
from gpudash.memory.allocator.trace import ACTIVATIONS, TEMPORARY, Trace, TraceCopy, TraceMark
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.convolutions.workspaces import scratch
from gpudash.simulator.device.backend import Backend, register
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.device.simulated_gpu import A100, SimulatedGpu
from gpudash.simulator.device.storage import KEY, PINNED, kernel_library
from gpudash.simulator.device.tracking import BACKWARD, FORWARD, Tracker
from gpudash.simulator.dry_run.host_tensors import HostCopy
from gpudash.simulator.dry_run.missing_numbers import (
    TAKES_OUT,
    DataDependentError,
    KnownIntegers,
    explains,
    show_sizes_only,
)
from gpudash.simulator.operations.kernels import passed_through
from gpudash.simulator.step_work.work_log import LoggedCopy, WorkLog

ENDLESS = 2**50
"""Capacity in bytes of a dry run's card: whether the run fits is determined afterwards."""

FEW_NUMBERS = 4096
"""If our own code copies at most this many elements to the CPU, it can read them as zeros."""

_to_copy: Any = torch.ops.aten._to_copy.default
_TO_COPY_KEY = torch._C.DispatchKey.CompositeExplicitAutograd


class ReportedCard(NamedTuple):
    """The card that code sees in its dry run, where memory is unbounded.

    Attributes:
        product: its name.
        total_bytes: its memory.
    """

    product: str
    total_bytes: int


class LeftTheDeviceError(RuntimeError):
    """The code allocated nothing on the device it was given."""


class RequestRecorder:
    """Turns the events of one card into a `Trace`.

    Args:
        backend: of this process.
        tracker: reports steps and phases, and what blocks are for.
        index: of the card.

    Attributes:
        trace: what was recorded so far.
    """

    def __init__(self, backend: Backend, tracker: Tracker, index: int = 0) -> None:
        self.trace = Trace(addresses_fall=addresses_fall(torch.__version__))
        self._index = index
        self._card = backend.engine.cards[index]
        self._tracker = tracker
        self._streams = {0: 0}
        self._blocks: dict[int, int] = {}
        self._born: list[str] = []
        self._freed: dict[int, str] = {}
        self._certain: dict[int, str] = {}
        self._marked = (-1, "")

    def start(self) -> None:
        """Start recording."""
        scratch.begin()
        self._card.observe(self._happened)
        self._card.on_emptied.append(self._emptied)
        # gradients may be dropped at the start of the next step, so classify them while they are certain to exist
        self._tracker.on_roots.append(self._classify)
        self._tracker.on_gradients.append(self._classify_gradients)

    def stop(self) -> None:
        """Stop recording, and set the category of each block."""
        self._card.unobserve(self._happened)
        self._card.on_emptied.remove(self._emptied)
        self._tracker.on_roots.remove(self._classify)
        self._tracker.on_gradients.remove(self._classify_gradients)
        # roots can be found only while alive, so look once more before the blocks are sorted
        # At the end of a run its last gradients and its optimizer state still exist.
        self._classify()
        for address, block in self._blocks.items():
            self._note_label(block, address)
        # Code that never runs a backward pass saves nothing for it.
        learns = BACKWARD in self._born or any(mark.phase == BACKWARD for mark in self.trace.marks)
        self.trace.categories[:] = [self._category(block, learns) for block in range(1, len(self._born) + 1)]
        self.trace.convolutions = scratch.found()

    def _classify(self) -> None:
        """Record what belongs to modules and optimizers now; call it before gradients are dropped."""
        self._record(self._tracker.categories())

    def _classify_gradients(self) -> None:
        """Record the gradients of now, of what was classified before."""
        self._record(self._tracker.gradients())

    def _record(self, categories: Mapping[tuple[int, int], str]) -> None:
        # Current addresses: those of freed blocks may have been reused.
        for (card, address), category in categories.items():
            block = None
            if card == self._card.index:
                block = self._blocks.get(address)
            if block is not None:
                self._certain[block] = category

    def note_copy(self, copy: LoggedCopy) -> None:
        """Record a copy between the host and this card."""
        if not self._tracker.finished:
            at = len(self.trace.events)
            self.trace.copies.append(TraceCopy(at, self._tracker.step, copy.size, copy.outward))

    def _happened(self, action: str, address: int, size: int, stream: int) -> None:
        # what a program frees at its end is not recorded, or it would look as if it had been freed in time
        if self._tracker.finished:
            if action == "free_completed" and address in self._blocks:  # its label goes with it
                self._note_label(self._blocks.pop(address), address)
            return
        if action == "alloc":
            # The mark goes before the event, because it says what the event belongs to.
            self._mark()
            self.trace.sizes.append(size)
            self._born.append(self._tracker.phase)
            block = self._blocks[address] = len(self._born)
            self.trace.events.append(block)
            if stream:
                # renumbered, so that two recordings of the same code are equal
                self.trace.streams[block] = self._streams.setdefault(stream, len(self._streams))
        elif action == "free_completed" and address in self._blocks:
            self._mark()
            block = self._blocks.pop(address)
            self._note_label(block, address)
            self._freed[block] = self._tracker.phase
            self.trace.events.append(-block)

    def _emptied(self) -> None:
        if not self._tracker.finished:
            self.trace.emptied.append(len(self.trace.events))

    def _note_label(self, block: int, address: int) -> None:
        label = self._card.label_of(address)
        if label is not None:
            # what `_classify` found takes precedence over a label from the moment of allocation
            self._certain.setdefault(block, label)

    def _mark(self) -> None:
        now = self._tracker.step, self._tracker.phase
        # only where a step or phase starts: a mark applies to all events up to the next one
        if now != self._marked:
            self._marked = now
            self.trace.marks.append(TraceMark(len(self.trace.events), *now))

    def _category(self, block: int, learns: bool) -> str:
        """What the forward pass leaves for the backward pass are activations; without one, all that it allocates."""
        certain = self._certain.get(block)
        if certain is not None:
            return certain
        # freed within the forward pass, it was used only there
        outlives = not learns or self._freed.get(block) != FORWARD
        if self._born[block - 1] == FORWARD and outlives:
            return ACTIVATIONS
        return TEMPORARY


class DryRun:
    """The dry runs of a process, one after another.

    Attributes:
        reported_card: the card that code sees; ``None`` for an unbounded one.
    """

    def __init__(self) -> None:
        self.reported_card: ReportedCard | None = None
        # Once per process: the device can be renamed only once (torch.utils.rename_privateuse1_backend).
        self.backend: Backend = register([_card(ENDLESS, A100)], computes=False)
        self._meta = kernel_library("aten")
        # in a dry run, tensors on torch's device "meta" stand for CPU tensors
        self._meta.impl("copy_", self._copy, "Meta")
        # For both devices, as a copy involves two of them.
        for key in (KEY, "Meta"):
            self._meta.impl("_to_copy", self._converted, key)
        self._meta.impl("_pin_memory", _pinned, "Meta")
        show_sizes_only(DEVICE)
        self._custom: dict[str, Any] = {}

    def know_custom_operations(self) -> None:
        """Run operations that code defined with ``register_fake`` on sizes only on the device as well.

        Their real kernels may be written for any device, and would be tried on this one.
        """
        for name, entry in list(simple_registry.singleton._data.items()):
            namespace, _, operation = name.partition("::")
            made = custom_ops.OPDEFS.get(name)
            # without a fake kernel the sizes of the results are unknown
            lacks_sizes = entry.fake_impl.kernel is None or (made is not None and made._abstract_fn is None)
            if lacks_sizes or name in self._custom or "." in operation:
                continue
            found = getattr(getattr(torch.ops, namespace), operation).default
            library = self._custom[name] = kernel_library(namespace)
            library.impl(operation, functools.partial(self.backend.engine.run_boxed, found), KEY)

    def record(
        self,
        run: Callable[[Tracker], Any],
        *,
        trusting: bool = False,
        capacity: int | None = None,
        assume: Callable[[str], None] | None = None,
        architecture: Architecture = A100,
    ) -> Trace:
        """Record what ``run`` does on ``sim:0``.

        Args:
            run, trusting, capacity, assume: as for `record_each`.
            architecture: of the card.

        Raises:
            DataDependentError, LeftTheDeviceError: as for `record_each`.
        """
        return self.record_each(run, (architecture,), trusting=trusting, capacity=capacity, assume=assume)[0]

    def record_each(
        self,
        run: Callable[[Tracker], Any],
        architectures: Sequence[Architecture],
        *,
        trusting: bool = False,
        capacity: int | None = None,
        assume: Callable[[str], None] | None = None,
    ) -> list[Trace]:
        """Record what ``run`` does on each of several cards: ``sim:0``, ``sim:1`` and so on.

        Args:
            run: receives the tracker, and sets its ``step`` when a step starts.
            architectures: of the cards.
            trusting: as for `Engine`.
            capacity: bytes of each card; unbounded by default.
            assume: called with each assumption about unknown numbers.

        Raises:
            DataDependentError: the code needs numbers that a dry run does not have.
            LeftTheDeviceError: it allocated nothing on one of the cards.
        """
        engine = self.backend.engine
        engine.trusting = trusting
        if trusting:
            engine.integers = None
        else:
            # Trusted code does not depend on integers, so tracking them would only cost time.
            engine.integers = KnownIntegers(engine.storages, assume)
        self.put_cards(architectures, capacity)
        # No stacks: a dry run needs no lines, and walking stacks at each allocation takes time.
        log = engine.work_log = WorkLog()
        tracker = Tracker(engine, stacks=False, log=log)
        recorders = [RequestRecorder(self.backend, tracker, index) for index in range(len(architectures))]
        log.on_copy = lambda index, copy: recorders[index].note_copy(copy)
        tracker.start()
        for recorder in recorders:
            recorder.start()
        try:
            run(tracker)
        except Exception as error:
            # torch's error for a tensor without bytes is reported as missing numbers
            if trusting or not explains(error):
                raise
            raise DataDependentError(f"{TAKES_OUT}.") from error
        # Also after an error: the caller may want the trace up to it, and hooks must not stay.
        finally:
            for recorder in recorders:
                recorder.stop()
            tracker.stop()
            engine.work_log = None
        for index, recorder in enumerate(recorders):
            if not recorder.trace.events:
                raise LeftTheDeviceError(
                    f"Nothing was allocated on {DEVICE}:{index}; the code has to use the device it is given."
                )
        # if a model is split, each trace has the work of all cards, because one waits for the other
        return [replace(recorder.trace, count_work=log.work) for recorder in recorders]

    def put_cards(self, architectures: Sequence[Architecture], capacity: int | None = None) -> None:
        """Replace the current cards; the arguments are those of `record_each`."""
        made = [
            _card(capacity or ENDLESS, design, index, self.reported_card) for index, design in enumerate(architectures)
        ]
        self.backend.engine.replace(made)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy a tensor without numbers, which stands for one on the host: there is nothing to copy."""
        if not target.is_meta:
            self.backend.engine.note_copy(source, target, non_blocking=non_blocking)
            return self.backend.engine.copy(source, target)
        if source.device.type == DEVICE:  # to the host; its temporary on the card is freed at once
            self.backend.engine.note_copy(source, target, non_blocking=non_blocking)
            self.backend.engine.room(passed_through(source, target, non_blocking), source.device.index)
        return target

    def _converted(self, tensor: torch.Tensor, *, device: torch.device | None = None, **options: Any) -> torch.Tensor:
        """``tensor.to``. A copy on the CPU has no numbers either, so it can be kept but not read.

        Trusted code may read copies of a few numbers, which are zeros.
        """
        if device is not None and device.type == "cpu":
            # Some of our own workloads read one or two numbers, such as a count: any value will do.
            trusted = self.backend.engine.trusting and tensor.numel() <= FEW_NUMBERS
            integers = self.backend.engine.integers
            known = None
            if integers is not None:
                # known integers may be read on the CPU as on any device
                known = integers.of(tensor)
            if known is not None:
                return _copied(known, device=device, **options)
            if not trusted:
                device = torch.device("meta")
            options["pin_memory"] = None
            on_card = tensor.device.type == DEVICE
            if on_card and options.get("non_blocking") and options.get("dtype") not in (None, tensor.dtype):
                tensor = tensor.to(options["dtype"])  # a non-blocking copy is converted on the GPU
            if not self.backend.engine.trusting:
                return HostCopy.like(_copied(tensor, device=device, **options))
        return _copied(tensor, device=device, **options)


def _copied(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """``tensor.to`` as in torch."""
    copy: torch.Tensor = _to_copy._op_dk(_TO_COPY_KEY, tensor, **options)
    return copy


def _pinned(tensor: torch.Tensor, _device: torch.device | None = None) -> torch.Tensor:
    """A tensor without numbers counts as pinned without being copied."""
    setattr(tensor.untyped_storage(), PINNED, True)
    return tensor


class _DryCard(SimulatedGpu):
    """An unbounded card that code sees as another one."""

    def __init__(self, index: int, capacity: int, architecture: Architecture, reported: ReportedCard) -> None:
        super().__init__(
            index, capacity, context=0, computes=False, architecture=architecture, product=reported.product
        )
        self._reported = reported

    # Free memory of the card that the code sees; the run itself never runs out.
    def free_and_total(self) -> tuple[int, int]:
        total = self._reported.total_bytes
        return max(0, total - self.reserved_bytes()), total


def _card(
    capacity: int, architecture: Architecture, index: int = 0, reported: ReportedCard | None = None
) -> SimulatedGpu:
    if reported is not None:
        return _DryCard(index, capacity, architecture, reported)
    return SimulatedGpu(index, capacity, context=0, computes=False, architecture=architecture)
