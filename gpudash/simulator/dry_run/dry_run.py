"""Running code on tensors without numbers, and recording what it asks of the allocator.

It has to be a process of its own: the simulated device of a process either computes or does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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
"""Capacity of the card of a dry run, in bytes: whether it fits is found out afterwards."""

FEW_NUMBERS = 4096
"""Elements up to which a copy to the CPU that code of ours makes is given zeros to read."""

_to_copy: Any = torch.ops.aten._to_copy.default
_TO_COPY_KEY = torch._C.DispatchKey.CompositeExplicitAutograd


class ReportedCard(NamedTuple):
    """What code sees of the unbounded GPU of its dry run.

    Attributes:
        product: its name.
        total_bytes: its memory.
    """

    product: str
    total_bytes: int


class LeftTheDeviceError(RuntimeError):
    """The code allocated nothing on the device it was given."""


class RequestRecorder:
    """Turns what happens on one card into a `Trace`.

    Args:
        backend: of this process.
        tracker: tells steps and phases, and what blocks are for.
        index: of the card.

    Attributes:
        trace: what has been recorded.
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
        """Begin to record."""
        scratch.begin()
        self._card.observe(self._happened)
        self._card.on_emptied.append(self._emptied)

    def stop(self) -> None:
        """End `start`, and say what each block was for."""
        self._card.unobserve(self._happened)
        self._card.on_emptied.remove(self._emptied)
        # roots are known while they are alive: a last look before the blocks are sorted
        # At the end of a run its last gradients and its state are still there.
        self.classify()
        for address, block in self._blocks.items():
            self._note_label(block, address)
        # Code that never comes to a backward pass keeps nothing for it.
        learns = BACKWARD in self._born or any(mark.phase == BACKWARD for mark in self.trace.marks)
        self.trace.categories[:] = [self._category(block, learns) for block in range(1, len(self._born) + 1)]
        self.trace.convolutions = scratch.found()

    def classify(self) -> None:
        """Note what belongs to modules and optimizers now; gradients must not have been dropped yet."""
        # Addresses of now: a block that has gone has given its address to another.
        for (card, address), category in self._tracker.categories().items():
            block = None
            if card == self._card.index:
                block = self._blocks.get(address)
            if block is not None:
                self._certain[block] = category

    def note_copy(self, copy: LoggedCopy) -> None:
        """Note a copy between the host and this card."""
        if not self._tracker.finished:
            at = len(self.trace.events)
            self.trace.copies.append(TraceCopy(at, self._tracker.step, copy.size, copy.outward))

    def _happened(self, action: str, address: int, size: int, stream: int) -> None:
        # what a program lets go of at its end is not recorded, or it would look as if it had been freed in
        # time
        if self._tracker.finished:
            if action == "free_completed" and address in self._blocks:  # its label goes with it
                self._note_label(self._blocks.pop(address), address)
            return
        if action == "alloc":
            # A mark before the event: it says what the event belongs to.
            self._mark()
            self.trace.sizes.append(size)
            self._born.append(self._tracker.phase)
            block = self._blocks[address] = len(self._born)
            self.trace.events.append(block)
            if stream:
                # counted anew, so that two recordings of the same code are alike
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
            # what `classify` has found counts more than a label of the moment of allocation
            self._certain.setdefault(block, label)

    def _mark(self) -> None:
        now = self._tracker.step, self._tracker.phase
        # a mark only where a step or phase begins: it stands for all events up to the next one
        if now != self._marked:
            self._marked = now
            self.trace.marks.append(TraceMark(len(self.trace.events), *now))

    def _category(self, block: int, learns: bool) -> str:
        """What the forward pass leaves for the backward pass are activations; without one, all it allocates."""
        certain = self._certain.get(block)
        if certain is not None:
            return certain
        # freed within the forward pass it was of use there only
        outlives = not learns or self._freed.get(block) != FORWARD
        if self._born[block - 1] == FORWARD and outlives:
            return ACTIVATIONS
        return TEMPORARY


class DryRun:
    """A process's dry runs, one after another.

    Attributes:
        reported_card: what code sees of a GPU; ``None`` for an unbounded one.
    """

    def __init__(self) -> None:
        self.reported_card: ReportedCard | None = None
        # Once for the process: a device can be named only once (torch.utils.rename_privateuse1_backend).
        self.backend: Backend = register([_card(ENDLESS, A100)], computes=False)
        self._meta = kernel_library("aten")
        # in a dry run tensors of torch's device "meta" stand for those of the CPU
        self._meta.impl("copy_", self._copy, "Meta")
        # For both devices, as a copy goes from one to the other.
        for key in (KEY, "Meta"):
            self._meta.impl("_to_copy", self._converted, key)
        self._meta.impl("_pin_memory", _pinned, "Meta")
        show_sizes_only(DEVICE)
        self._custom: dict[str, Any] = {}

    def know_custom_operations(self) -> None:
        """Let the operations that code has defined with ``register_fake`` do with sizes on the device too.

        What they do elsewhere may be written for any device, and would be tried on this one.
        """
        for name, entry in list(simple_registry.singleton._data.items()):
            namespace, _, operation = name.partition("::")
            made = custom_ops.OPDEFS.get(name)
            # without a fake kernel nobody can tell the sizes of its results
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
            run, trusting, capacity, assume: as of `record_each`.
            architecture: of the card.

        Raises:
            DataDependentError, LeftTheDeviceError: as `record_each`.
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
            run: is given the tracker, whose ``step`` it sets when a step begins.
            architectures: of the cards.
            trusting: of `Engine`.
            capacity: bytes of each card; without end unless given.
            assume: called with what is assumed about unknown numbers.

        Raises:
            DataDependentError: when the code needs numbers that a dry run does not have.
            LeftTheDeviceError: when it allocated nothing on one of them.
        """
        engine = self.backend.engine
        engine.trusting = trusting
        if trusting:
            engine.integers = None
        else:
            # Of code that is trusted nothing depends on integers: knowing them would only cost.
            engine.integers = KnownIntegers(engine.storages, assume)
        self.put_cards(architectures, capacity)
        # No stacks: a dry run needs no lines, and walking stacks takes time at each allocation.
        log = engine.work_log = WorkLog()
        tracker = Tracker(engine, stacks=False, log=log)
        recorders = [RequestRecorder(self.backend, tracker, index) for index in range(len(architectures))]
        log.on_copy = lambda index, copy: recorders[index].note_copy(copy)

        def classify() -> None:
            for recorder in recorders:
                recorder.classify()

        # gradients may be dropped at the begin of the next step: they are looked at where they are certain to
        # be there
        tracker.on_roots = classify
        tracker.start()
        for recorder in recorders:
            recorder.start()
        try:
            run(tracker)
        except Exception as error:
            # torch's words for a tensor without bytes are told as what they are in a dry run
            if trusting or not explains(error):
                raise
            raise DataDependentError(f"{TAKES_OUT}.") from error
        # Also after an error: the trace up to it is what the caller may want, and hooks must not stay.
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
        # of a model that is split each trace has the work of all cards: one waits for the other
        return [replace(recorder.trace, count_work=log.work) for recorder in recorders]

    def put_cards(self, architectures: Sequence[Architecture], capacity: int | None = None) -> None:
        """Put cards in place of the present ones; the arguments are those of `record_each`."""
        made = [
            _card(capacity or ENDLESS, design, index, self.reported_card) for index, design in enumerate(architectures)
        ]
        self.backend.engine.replace(made)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copies of tensors without numbers, which stand for the host's: there is nothing to be copied."""
        if not target.is_meta:
            self.backend.engine.note_copy(source, target, non_blocking=non_blocking)
            return self.backend.engine.copy(source, target)
        if source.device.type == DEVICE:  # to the host; what it passes through on the card is left at once
            self.backend.engine.note_copy(source, target, non_blocking=non_blocking)
            self.backend.engine.room(passed_through(source, target, non_blocking), source.device.index)
        return target

    def _converted(self, tensor: torch.Tensor, *, device: torch.device | None = None, **options: Any) -> torch.Tensor:
        """``tensor.to``; what is copied to the CPU stays without numbers, so that it can be kept but not read.

        Code that is trusted may read what a few numbers are copied to: zeros.
        """
        if device is not None and device.type == "cpu":
            # Some of our own workloads read a number or two, such as a count: any number does.
            trusted = self.backend.engine.trusting and tensor.numel() <= FEW_NUMBERS
            integers = self.backend.engine.integers
            known = None
            if integers is not None:
                # integers that are known may be read on the CPU as everywhere
                known = integers.of(tensor)
            if known is not None:
                return _copied(known, device=device, **options)
            if not trusted:
                device = torch.device("meta")
            options["pin_memory"] = None
            on_card = tensor.device.type == DEVICE
            if on_card and options.get("non_blocking") and options.get("dtype") not in (None, tensor.dtype):
                tensor = tensor.to(options["dtype"])  # what nobody waits for is converted on the GPU
            if not self.backend.engine.trusting:
                return HostCopy.like(_copied(tensor, device=device, **options))
        return _copied(tensor, device=device, **options)


def _copied(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """``tensor.to`` as torch has it."""
    copy: torch.Tensor = _to_copy._op_dk(_TO_COPY_KEY, tensor, **options)
    return copy


def _pinned(tensor: torch.Tensor, _device: torch.device | None = None) -> torch.Tensor:
    """What has no numbers need not be pinned; it counts as pinned."""
    setattr(tensor.untyped_storage(), PINNED, True)
    return tensor


class _DryCard(SimulatedGpu):
    """An unbounded card, which code sees as another one."""

    def __init__(self, index: int, capacity: int, architecture: Architecture, reported: ReportedCard) -> None:
        super().__init__(
            index, capacity, context=0, computes=False, architecture=architecture, product=reported.product
        )
        self._reported = reported

    # What is free of the card that the code believes in; the run itself never runs out.
    def free_and_total(self) -> tuple[int, int]:
        total = self._reported.total_bytes
        return max(0, total - self.reserved_bytes()), total


def _card(
    capacity: int, architecture: Architecture, index: int = 0, reported: ReportedCard | None = None
) -> SimulatedGpu:
    if reported is not None:
        return _DryCard(index, capacity, architecture, reported)
    return SimulatedGpu(index, capacity, context=0, computes=False, architecture=architecture)
