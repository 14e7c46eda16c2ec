"""Logs what a step does on the device while it is followed: one entry per call, and nothing else.

A dry run calls the same operations on the same sizes in every layer and every step. So the cost of a call is computed
on request, once for each kind of call; during the run, logging a call only appends to a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.device.storage import PINNED
from gpudash.simulator.step_work.flops import call_flops
from gpudash.speed.classify import classify
from gpudash.speed.work import UNKNOWN, Operation, StepWork

MOST_SEGMENTS = 16
"""How many whole steps are kept; a typical one among them shows early."""

MOST_CALLS = 2_000_000
"""The most calls of a step that are logged: 16 MB of a list."""

SCALARS = ("groups", "transposed", "is_causal", "training")
"""Arguments by which `classify` identifies a kernel."""

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Channels-last memory formats of images and volumes, by the number of dimensions of a batch."""

TF32 = "tf32"
"""float32 arithmetic on tensor cores, if torch's settings allow it."""

PASSES, STEPS = 1, 2
"""What divides a run into steps: forward passes of a program without an optimizer, or optimizer steps."""


class TensorSize(NamedTuple):
    """What matters for the cost of a tensor: sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSize:
        """The sizes of ``tensor``."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def whole(self) -> tuple[tuple[int, ...], str, int]:
        """The tensor in the form `classify` needs."""
        return self.size, str(self.dtype)[6:], self.dtype.itemsize

    @property
    def held(self) -> tuple[tuple[int, ...], str, int]:
        """The same, counting expanded dimensions once, as in memory."""
        size = tuple(1 if not step and length else length for length, step in zip(self.size, self.stride))
        return size, str(self.dtype)[6:], self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return prod(self.size) * self.dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Bytes of the elements in memory."""
        size, _dtype, itemsize = self.held
        return prod(size) * itemsize

    @property
    def is_channels_last(self) -> bool:
        """Whether it is an image in channels-last format."""
        like = self.like()
        if len(self.size) not in FORMATS or like.is_contiguous():
            return False
        return like.is_contiguous(memory_format=FORMATS[len(self.size)])

    def like(self) -> torch.Tensor:
        """A tensor with these sizes, without bytes."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


class LoggedCall:
    """One kind of call: an operation on tensors of certain sizes.

    Args:
        operation: from `torch.ops`.
        args, kwargs: its arguments, each tensor as `TensorSize`.
        made: its result, in the same form.
    """

    def __init__(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        self._operation = operation
        self._args = args
        self._kwargs = kwargs
        self._made = made

    @classmethod
    def of(cls, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> LoggedCall:
        """The kind of a call with these tensors."""
        named = {name: _sized(value) for name, value in kwargs.items()}
        return cls(operation, tuple(map(_sized, args)), named, _sized(made))

    @cached_property
    def operation(self) -> Operation | None:
        """The operation on the device, without a phase; ``None`` for nothing."""
        schema = self._operation._schema
        name = schema.name.partition("::")[2]
        given = dict(zip((argument.name for argument in schema.arguments), self._args))
        given.update(self._kwargs)
        flops = self._flops()
        inputs = list(_sizes(list(given.values())))
        first = next(iter(given.values()), None)
        is_list = name.startswith(("_foreach_", "_fused_")) and type(first) is tuple
        made = self._made
        # in place on lists of tensors, which torch does not return
        if made is None and is_list and name.startswith("_foreach_"):
            made = first
        results = list(_sizes(made))
        scalars = {name: given[name] for name in SCALARS if name in given}
        if "conv" in name or "upsample" in name:
            scalars["channels_last"] = any(one.is_channels_last for one in (*inputs, *results))
        if inputs:
            scalars["contiguous"] = inputs[0].like().is_contiguous()
        found = _classified(name, inputs, results, flops, scalars)
        # the host visits the tensors of a list one by one, whatever the device does
        if found is not None and is_list and first is not None:
            found = found._replace(shape=(len(first),))
        if found is None or found.dtype != "float32" or not found.flops or not _takes_tf32(name):
            return found
        return found._replace(dtype=TF32)

    def _flops(self) -> int:
        args = list(map(_as_tensors, self._args))
        kwargs = {name: _as_tensors(value) for name, value in self._kwargs.items()}
        try:
            return call_flops(self._operation, args, kwargs, _as_tensors(self._made))
        # torch's formulas assume the arguments of its own kernels
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return 0


def _classified(
    name: str, inputs: Sequence[TensorSize], results: Sequence[TensorSize], flops: int, scalars: Mapping[str, Any]
) -> Operation | None:
    """The operation of a call; one of unknown kind if its tensors are not as for torch's own kernels."""
    held = [one.held for one in inputs]
    given = held
    if flops:
        given = [one.whole for one in inputs]
    read_bytes = sum(one.held_bytes for one in inputs)
    try:
        found = classify(name, given, [one.held for one in results], flops, scalars)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        written_bytes = sum(one.held_bytes for one in results)
        return Operation(name, UNKNOWN, next((dtype for _, dtype, _ in held), ""), flops, read_bytes, written_bytes)
    if found is None or not flops:
        return found
    # factors of a product count with all their sizes, but are read as often as they exist in memory
    seen = sum(one.nbytes for one in inputs) - read_bytes
    return found._replace(read_bytes=max(0, found.read_bytes - seen))


class LoggedCopy(NamedTuple):
    """A copy between the host and a card.

    Attributes:
        size: bytes.
        outward: whether it goes from the card to the host.
        pinned: whether the host's side is in pinned memory.
        waits: whether the host waits for it.
        rows: length of the first dimension.
    """

    size: int
    outward: bool
    pinned: bool
    waits: bool
    rows: int


class Exchange(NamedTuple):
    """Gradients that ranks exchange, in bytes."""

    size: int


class _Waits:
    """The host waits for the device."""


WAITS = _Waits()


class Stepped(NamedTuple):
    """An optimizer step; ``optimizer`` identifies the optimizer."""

    optimizer: int


class WorkLog:
    """The calls of a run, step by step.

    Attributes:
        note: adds an entry to the current step: a `LoggedCall`, a `LoggedCopy`, an `Exchange`, `WAITS`, `Stepped`, or
            a phase, which applies to what follows.
        on_copy: called with the index of the card and each copy between it and the host; ``None`` for no callback.
    """

    def __init__(self) -> None:
        # The list is never replaced: `note` is its append method, with no overhead for a call.
        self._calls: list[Any] = []
        self.note: Callable[[Any], object] = self._calls.append
        self._segments: list[list[Any]] = []
        self._divided_by = 0
        self._phase = ""
        self._known: dict[Any, LoggedCall] = {}
        self.on_copy: Callable[[int, LoggedCopy], None] | None = None

    def note_call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        """Log a call whose sizes are not known from an earlier one."""
        given = tuple(map(_sized, args))
        named = tuple((name, _sized(value)) for name, value in kwargs.items())
        result = _sized(made)
        key = operation, given, named, result
        try:
            call = self._known.get(key)
            if call is None:
                call = self._known[key] = LoggedCall(operation, given, dict(named), result)
        except TypeError:  # an argument that is not hashable
            call = LoggedCall(operation, given, dict(named), result)
        self.note(call)

    def note_copy(self, source: torch.Tensor, target: torch.Tensor, *, non_blocking: bool) -> None:
        """Log a copy with one or both sides on a card."""
        outward = target.device.type != DEVICE
        if not outward and source.device.type == DEVICE:
            self.note_call(_copy, (target, source), {}, target)
            return
        # such as an empty KV cache: torch starts no copy
        if not source.numel():
            return
        rows = 1
        if source.dim():
            rows = source.shape[0]
        on_host = source
        if outward:
            on_host = target
        pinned = getattr(on_host.untyped_storage(), PINNED, False)
        # torch synchronises the stream after a blocking copy (copy_kernel_cuda, Copy.cu)
        copy = LoggedCopy(source.numel() * source.dtype.itemsize, outward, pinned, not non_blocking, rows)
        self.note(copy)
        if self.on_copy is not None:
            on_card = target
            if outward:
                on_card = source
            self.on_copy(on_card.device.index or 0, copy)

    def note_phase(self, phase: str) -> None:
        """Log the start of a phase."""
        if phase != self._phase:
            self._phase = phase
            self.note(phase)

    def end_step(self, divided_by: int = STEPS) -> None:
        """End the current step and start another.

        Args:
            divided_by: what ends it; if there are both kinds, optimizer steps count.
        """
        if divided_by < self._divided_by:
            return
        if divided_by > self._divided_by:
            self._segments.clear()
            self._divided_by = divided_by
        if len(self._calls) > 1 and len(self._segments) < MOST_SEGMENTS:
            self._segments.append(self._calls[:MOST_CALLS])
        self._calls.clear()
        self.note(self._phase)

    def begin_steps(self) -> None:
        """Exclude everything so far, such as building a model, from the steps."""
        self._calls.clear()
        self.note(self._phase)

    def divide_by_optimizer(self) -> None:
        """Treat what was one step as a whole training, divided by the steps of its optimizer.

        With several optimizers, use the one that steps most often.
        """
        calls = self._calls[:]
        stepped = Counter(entry for entry in calls if isinstance(entry, Stepped))
        if not stepped:
            return
        deciding = stepped.most_common(1)[0][0]
        self._calls.clear()
        self._segments.clear()
        for entry in calls:
            self.note(entry)
            if entry == deciding:
                self.end_step()
        self._calls.clear()

    def finish(self, *, whole: bool) -> None:
        """Exclude everything from now on from the steps.

        Args:
            whole: whether what happened since the last step counts as a step too.
        """
        if whole:
            self.end_step()
        self._calls.clear()

    def work(self) -> StepWork | None:
        """The work of one step in the steady state; ``None`` if no step was followed."""
        calls = self._steady()
        if calls is None:
            return None
        return _added(calls)

    def _steady(self) -> list[Any] | None:
        """The typical step.

        The first step creates the optimizer's state. A step followed by a validation does more, and one that an
        optimizer skips does less, so the most common number of calls is that of a plain step. The last of those is not
        used: the last batch of an epoch may be smaller.
        """
        segments = self._segments
        if not segments:
            return None
        later = segments[1:] or segments
        lengths = Counter(map(len, later))
        most = max(lengths.values())
        wanted = min(length for length, count in lengths.items() if count == most)
        alike = [segment for segment in later if len(segment) == wanted]
        return alike[(len(alike) - 1) // 2]


def _added(calls: Sequence[Any]) -> StepWork:
    """The sum of all entries of a step."""
    counted: Counter[tuple[LoggedCall, str]] = Counter()
    phase = ""
    copies: list[LoggedCopy] = []
    waits = exchanged = 0
    for entry in calls:
        kind = type(entry)
        if kind is LoggedCall:
            counted[entry, phase] += 1
        elif kind is str:
            phase = entry
        elif kind is LoggedCopy:
            copies.append(entry)
        elif kind is Exchange:
            exchanged += entry.size
        elif entry is WAITS:
            waits += 1
    operations: Counter[Operation] = Counter()
    for (call, phase), count in counted.items():
        operation = call.operation
        if operation is not None:
            operations[operation._replace(phase=phase)] += count
    inward = [copy for copy in copies if not copy.outward]
    into = sum(copy.size for copy in inward)
    # What is copied in is the batch, whose first dimension counts its samples.
    rows = max(((copy.size, copy.rows) for copy in inward if copy.size), key=lambda one: one[0], default=(0, 0))[1]
    return StepWork(
        dict(operations),
        items=rows or 1,
        unit="samples" if rows else "steps",
        copied_in_bytes=into,
        copied_out_bytes=sum(copy.size for copy in copies if copy.outward),
        copies=len(copies),
        pinned=into > 0 and 2 * sum(copy.size for copy in inward if copy.pinned) >= into,
        synchronisations=waits + sum(copy.waits for copy in copies),
        exchanged_bytes=exchanged,
    )


_copy = torch.ops.aten.copy_.default


def _sized(value: Any) -> Any:
    """``value`` with every tensor replaced by its sizes."""
    if isinstance(value, torch.Tensor):
        return TensorSize.of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_sized, value))
    return value


def _sizes(value: Any) -> Iterator[TensorSize]:
    if isinstance(value, TensorSize):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _sizes(one)


def _as_tensors(value: Any) -> Any:
    if isinstance(value, TensorSize):
        return value.like()
    if type(value) in (list, tuple):
        return list(map(_as_tensors, value))
    return value


def _takes_tf32(name: str) -> bool:
    """Whether torch's settings allow float32 products on tensor cores: by default for convolutions, for matrix
    products only if enabled."""
    if "conv" in name or "cudnn" in name:
        return bool(torch._C._get_cudnn_allow_tf32())
    return torch.get_float32_matmul_precision() != "highest"
