"""What a step does on the device, written down while it is followed: one entry a call, and no more than that.

A dry run calls the same operations on the same sizes in every layer and every step. What a call comes to is therefore
worked out when somebody asks, once for each kind of call; while the run goes on, noting one is appending to a list.
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
"""Whole steps that are kept; which of them is like the others shows early."""

MOST_CALLS = 2_000_000
"""Calls of a step that are written down: 16 MB of a list."""

SCALARS = ("groups", "transposed", "is_causal", "training")
"""Arguments by which `classify` knows a kernel."""

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""How images and volumes lie channel by channel within a position, by the dimensions of a batch of them."""

TF32 = "tf32"
"""Arithmetic of float32 on tensor cores, where torch's settings allow it."""

PASSES, STEPS = 1, 2
"""What divides a run into steps: forward passes of a program that has no optimizer, or steps of one."""


class TensorSize(NamedTuple):
    """A tensor as far as its cost goes: sizes and strides in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSize:
        """The sizes of ``tensor``."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def whole(self) -> tuple[tuple[int, ...], str, int]:
        """As `classify` has it."""
        return self.size, str(self.dtype)[6:], self.dtype.itemsize

    @property
    def held(self) -> tuple[tuple[int, ...], str, int]:
        """As `classify` has it, where what is expanded lies in memory once."""
        size = tuple(1 if not step and length else length for length, step in zip(self.size, self.stride))
        return size, str(self.dtype)[6:], self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Of all its elements."""
        return prod(self.size) * self.dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Of those that lie in memory."""
        size, _dtype, itemsize = self.held
        return prod(size) * itemsize

    @property
    def is_channels_last(self) -> bool:
        """Whether it is an image that lies so."""
        like = self.like()
        if len(self.size) not in FORMATS or like.is_contiguous():
            return False
        return like.is_contiguous(memory_format=FORMATS[len(self.size)])

    def like(self) -> torch.Tensor:
        """A tensor of these sizes, without bytes."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


class LoggedCall:
    """One kind of call: an operation on tensors of certain sizes.

    Args:
        operation: of `torch.ops`.
        args, kwargs: what it was given, each tensor as `TensorSize`.
        made: what it returned, in the same way.
    """

    def __init__(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        self._operation = operation
        self._args = args
        self._kwargs = kwargs
        self._made = made

    @classmethod
    def of(cls, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> LoggedCall:
        """The kind of a call with tensors."""
        named = {name: _sized(value) for name, value in kwargs.items()}
        return cls(operation, tuple(map(_sized, args)), named, _sized(made))

    @cached_property
    def operation(self) -> Operation | None:
        """What the device does for it, of no phase; ``None`` for nothing."""
        schema = self._operation._schema
        name = schema.name.partition("::")[2]
        given = dict(zip((argument.name for argument in schema.arguments), self._args))
        given.update(self._kwargs)
        flops = self._flops()
        inputs = list(_sizes(list(given.values())))
        first = next(iter(given.values()), None)
        is_list = name.startswith(("_foreach_", "_fused_")) and type(first) is tuple
        made = self._made
        # in place on lists of tensors, which torch gives back to nobody
        if made is None and is_list and name.startswith("_foreach_"):
            made = first
        results = list(_sizes(made))
        scalars = {name: given[name] for name in SCALARS if name in given}
        if "conv" in name or "upsample" in name:
            scalars["channels_last"] = any(one.is_channels_last for one in (*inputs, *results))
        if inputs:
            scalars["contiguous"] = inputs[0].like().is_contiguous()
        found = _classified(name, inputs, results, flops, scalars)
        # the host goes over the tensors of a list one by one, whatever the device does
        if found is not None and is_list and first is not None:
            found = found._replace(shape=(len(first),))
        if found is None or found.dtype != "float32" or not found.flops or not _takes_tf32(name):
            return found
        return found._replace(dtype=TF32)

    def _flops(self) -> int:
        args = [_as_tensors(value) for value in self._args]
        kwargs = {name: _as_tensors(value) for name, value in self._kwargs.items()}
        try:
            return call_flops(self._operation, args, kwargs, _as_tensors(self._made))
        # torch's formulas take for granted what its own kernels are given
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return 0


def _classified(
    name: str, inputs: Sequence[TensorSize], results: Sequence[TensorSize], flops: int, scalars: Mapping[str, Any]
) -> Operation | None:
    """The operation that a call is; one of no known kind where its tensors are not as torch's own kernels have them."""
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
    # what is multiplied has all its sizes, and is read as often as it lies in memory
    seen = sum(one.nbytes for one in inputs) - read_bytes
    return found._replace(read_bytes=max(0, found.read_bytes - seen))


class LoggedCopy(NamedTuple):
    """A copy between the host and a card.

    Attributes:
        size: bytes.
        outward: whether it leaves the card.
        pinned: whether the host's side lies in pinned memory.
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
    """An optimizer has stepped; ``optimizer`` tells it from others."""

    optimizer: int


class WorkLog:
    """The calls of a run, step by step.

    Attributes:
        note: notes an entry of the present step: a `LoggedCall`, a `LoggedCopy`, an `Exchange`, `WAITS`, `Stepped`, or
            a phase, which holds for what follows.
        on_copy: called with the index of the card and each copy between that and the host; ``None`` for nobody.
    """

    def __init__(self) -> None:
        # One list for good: `note` is its append, and nothing stands between a call and that.
        self._calls: list[Any] = []
        self.note: Callable[[Any], object] = self._calls.append
        self._segments: list[list[Any]] = []
        self._divided_by = 0
        self._phase = ""
        self._known: dict[Any, LoggedCall] = {}
        self.on_copy: Callable[[int, LoggedCopy], None] | None = None

    def note_call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        """Note a call whose sizes are not known to be those of an earlier one."""
        given = tuple(map(_sized, args))
        named = tuple((name, _sized(value)) for name, value in kwargs.items())
        result = _sized(made)
        key = operation, given, named, result
        try:
            call = self._known.get(key)
            if call is None:
                call = self._known[key] = LoggedCall(operation, given, dict(named), result)
        except TypeError:  # an argument that cannot be a key
            call = LoggedCall(operation, given, dict(named), result)
        self.note(call)

    def note_copy(self, source: torch.Tensor, target: torch.Tensor, *, non_blocking: bool) -> None:
        """Note a copy of which one side, or both, are on a card."""
        outward = target.device.type != DEVICE
        if not outward and source.device.type == DEVICE:
            self.note_call(_copy, (target, source), {}, target)
            return
        # as of a KV cache that has nothing in it yet: torch starts no copy
        if not source.numel():
            return
        rows = 1
        if source.dim():
            rows = source.shape[0]
        on_host = source
        if outward:
            on_host = target
        pinned = getattr(on_host.untyped_storage(), PINNED, False)
        # torch waits for the stream behind a copy that is not asked to go on by itself (copy_kernel_cuda, Copy.cu)
        copy = LoggedCopy(source.numel() * source.dtype.itemsize, outward, pinned, not non_blocking, rows)
        self.note(copy)
        if self.on_copy is not None:
            on_card = target
            if outward:
                on_card = source
            self.on_copy(on_card.device.index or 0, copy)

    def note_phase(self, phase: str) -> None:
        """Say what is going on from now on."""
        if phase != self._phase:
            self._phase = phase
            self.note(phase)

    def end_step(self, divided_by: int = STEPS) -> None:
        """A step is over, and another begins.

        Args:
            divided_by: what ends it; where both do, steps of an optimizer count.
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
        """What was done until now, as building a model, is no part of a step."""
        self._calls.clear()
        self.note(self._phase)

    def divide_by_optimizer(self) -> None:
        """What was one step until now was a whole training: its optimizer's steps are the steps.

        Of several optimizers, those of the one that steps most often.
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
        """What is done from now on is no part of a step.

        Args:
            whole: whether what was done since the last step ended is one, too.
        """
        if whole:
            self.end_step()
        self._calls.clear()

    def work(self) -> StepWork | None:
        """The work of one step in the steady state; ``None`` where no step was followed."""
        calls = self._steady()
        if calls is None:
            return None
        return _added(calls)

    def _steady(self) -> list[Any] | None:
        """The step that others are like.

        The first makes an optimizer's state. One with a validation behind it does more, and one that an optimizer left
        out less, so that the commonest number of calls is that of a plain step. Not the last of those: the last batch
        of an epoch may be a smaller one.
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
    """All entries of a step together."""
    counted: Counter[tuple[LoggedCall, str]] = Counter()
    phase = ""
    into = out = pinned = copies = waits = exchanged = 0
    largest = 0
    rows = 0
    for entry in calls:
        kind = type(entry)
        if kind is LoggedCall:
            counted[entry, phase] += 1
        elif kind is str:
            phase = entry
        elif kind is LoggedCopy:
            copies += 1
            waits += entry.waits
            if entry.outward:
                out += entry.size
                continue
            into += entry.size
            pinned += entry.size * entry.pinned
            if entry.size > largest:
                largest = entry.size
                rows = entry.rows
        elif kind is Exchange:
            exchanged += entry.size
        elif entry is WAITS:
            waits += 1
    operations: Counter[Operation] = Counter()
    for (call, phase), count in counted.items():
        operation = call.operation
        if operation is not None:
            operations[operation._replace(phase=phase)] += count
    items = 1
    unit = "steps"
    if rows:
        items = rows
        unit = "samples"
    return StepWork(
        dict(operations),
        items=items,
        unit=unit,
        copied_in_bytes=into,
        copied_out_bytes=out,
        copies=copies,
        pinned=into > 0 and 2 * pinned >= into,
        synchronisations=waits,
        exchanged_bytes=exchanged,
    )


_copy = torch.ops.aten.copy_.default


def _sized(value: Any) -> Any:
    """``value`` with every tensor as its sizes."""
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
        return [_as_tensors(one) for one in value]
    return value


def _takes_tf32(name: str) -> bool:
    """Whether torch's settings let float32 be multiplied on tensor cores: convolutions unless told otherwise, matrix
    products if told so."""
    if "conv" in name or "cudnn" in name:
        return bool(torch._C._get_cudnn_allow_tf32())
    return torch.get_float32_matmul_precision() != "highest"
