"""Numbers in a dry run: the missing ones, what happens if code requests them, and the integers that are known.

Code reads masks, lengths and labels, and depends on them. So small integer tensors on the device are also computed on
the host, as long as everything they depend on is known. Whether a batch has padding, and how many of its labels count,
is then known too.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.device.storage import Storages, lacks_numbers, unwrapped
from gpudash.simulator.dry_run import line_search
from gpudash.simulator.faults import hands_on

READS = "The code reads a number out of a tensor (as int(x) or a slice up to x does)"
DECIDES = "The code decides by a number of a tensor (as an if on a tensor or on .item() does)"
TAKES_OUT = "The code needs the numbers in a tensor (as .tolist(), .numpy() or computing with it on the CPU does)"
COPIES = "The code copies numbers from the device into a tensor that lies on the CPU (as buffer.copy_(x) does)"
MASKS = "The code picks elements by the numbers in a tensor (as x[x > 0] does)"
DEPENDS = "The code calls {name}, whose result cannot be known without the numbers in a tensor"

PICKING = frozenset(("index", "index_put", "index_put_", "masked_select", "nonzero"))

SUPPRESSION = "torchvision::nms"
"""The operation that selects boxes by their scores, as every detector does."""

BY_MASKS = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
"""Those that accept positions in place of a mask."""

SCALER = str(Path(torch.amp.__file__).parent / "grad_scaler.py")
SAVER = str(Path(torch.autograd.graph.__file__))
OWN = str(Path(__file__).parents[1])
CALLING = str(Path(torch.__file__).parent / "_ops.py")

_LACK = re.compile(
    r"\b[Mm]eta (tensor|device)|\bdevice meta\b|\bmeta\b.*\bsame device\b|with unallocated storage"
    r"|data-dependent output shape"
)
"""torch's errors for tensors without numbers: on its device ``meta``, without bytes, or with a size that a custom
operation computes from numbers."""


class DataDependentError(RuntimeError):
    """A dry run met code that needs the numbers in a tensor, which it does not have."""


def of_operation(name: str) -> DataDependentError:
    """The error for operation ``name``, given without its namespace, which needs more than sizes."""
    # Ordered by how the code would put it: reading, selecting, any other dependence.
    if name == "_local_scalar_dense":
        return DataDependentError(f"{READS}.")
    if name in PICKING:
        return DataDependentError(f"{MASKS}.")
    shown = name.strip("_").rstrip("0123456789")
    return DataDependentError(f"{DEPENDS.format(name=shown)}.")


FINITE = "numbers of tensors are finite, at least a thousandth and below a million"
ORDINARY = "any() and isnan() of a tensor are false, all() and isfinite() are true"
ALL_PICKED = "what is picked by numbers that are not known is everything, so that this is the most it takes"

LEAST, MOST = 1e-3, 1e6


class AssumedTruth(NamedTuple):
    """The expected truth value in a run that goes well.

    Attributes:
        truth: the value.
        because: the reason, a sentence without a full stop.
    """

    truth: bool
    because: str


ANSWER = "_sim_answer"
"""Attribute of the storage of a truth value with an expected answer: its `AssumedTruth`."""

_ORDINARY_ANSWERS = {"any": False, "all": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}

_COMPARING: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}

_TURNING = ("logical_not", "bitwise_not")
_JOINING = ("logical_and", "bitwise_and", "mul", "logical_or", "bitwise_or")

QUESTIONS = frozenset((*_ORDINARY_ANSWERS, *_COMPARING, *_TURNING, *_JOINING))
"""Operations whose truth values have, or may have, an expected answer."""


def note_answer(name: str, args: Sequence[Any], result: torch.Tensor) -> None:
    """Store the expected value of ``result`` in a run that goes well, if there is one.

    Args:
        name: of the operation, without its namespace.
        args: its arguments.
        result: its truth values.
    """
    answer = None
    if name in _ORDINARY_ANSWERS:
        answer = AssumedTruth(_ORDINARY_ANSWERS[name], ORDINARY)
    elif name in _COMPARING:
        answer = _compared(name, *args[:2], is_one=result.numel() == 1)
    elif name in _TURNING:
        before = answer_to(args[0])
        if before is not None:
            answer = before._replace(truth=not before.truth)
    else:
        left, right = map(answer_to, args[:2])
        # two assumed values, joined: report the reason of the first
        if left is not None and right is not None and name.endswith("or"):
            answer = left._replace(truth=left.truth or right.truth)
        elif left is not None and right is not None:
            answer = left._replace(truth=left.truth and right.truth)
    if answer is not None:
        setattr(result.untyped_storage(), ANSWER, answer)


def _compared(name: str, tensor: Any, other: Any, *, is_one: bool) -> AssumedTruth | None:
    if name in ("eq", "ne") and (tensor is other or (isinstance(other, float) and math.isinf(other))):
        # Code looks for overflows by comparing with infinity.
        return AssumedTruth((name == "eq") is (tensor is other), ORDINARY)  # a number equals itself unless it is NaN
    # what holds for every element may not hold for one: only a single number is compared
    if not is_one:
        return None
    if line_search.is_search(_caller()):
        outcome = line_search.outcome(name, other)
        if outcome is None:
            return None
        return AssumedTruth(outcome, line_search.SEARCHES)
    # Only a bound beyond all numbers of a tensor decides the comparison.
    if isinstance(other, (int, float)) and is_beyond(other):
        # 1 stands for all numbers of a tensor, which are between LEAST and MOST: with a bound beyond these, all
        # compare alike
        return AssumedTruth(_COMPARING[name](1.0, other), FINITE)
    return None


def is_beyond(number: float) -> bool:
    """Whether all numbers of a tensor are assumed to lie on one side of ``number``."""
    return not LEAST < number < MOST  # NaN too


def answer_to(tensor: Any) -> AssumedTruth | None:
    """The expected answer of a tensor of truth values; ``None`` if it has none."""
    if isinstance(tensor, torch.Tensor):
        return getattr(unwrapped(tensor).untyped_storage(), ANSWER, None)
    return None


def explains(error: BaseException) -> bool:
    """Whether torch raised ``error`` because a tensor has no numbers."""
    return isinstance(error, (RuntimeError, TypeError)) and _LACK.search(str(error)) is not None


def for_known_code() -> float | None:
    """The number for torch code known to read one; ``None`` for all other code.

    `torch.amp.GradScaler` asks whether a gradient was infinite, and gets no; its scale has not changed. L-BFGS asks
    for the loss, which falls, and for factors.
    """
    frame = _caller()
    # L-BFGS reads its loss in every iteration; a falling one makes it run to the last.
    if line_search.is_search(frame):
        return line_search.falling_loss()
    if frame is None or frame.f_code.co_filename != SCALER:
        return None
    if frame.f_code.co_name == "get_scale":
        return float(getattr(frame.f_locals.get("self"), "_init_scale", 1.0))
    return 0.0


def only_keeps() -> bool:
    """Whether torch is offloading an activation to the CPU, to copy it back unread."""
    frame = _caller()
    return frame is not None and frame.f_code.co_filename == SAVER


def _caller() -> FrameType | None:
    """The innermost frame that is neither the simulator's nor the Python code through which it calls operations."""
    frame: FrameType | None = sys._getframe(1)
    # Outwards from here: the first frame that is neither ours nor torch's operation call.
    while frame is not None and frame.f_code.co_filename.startswith((OWN, CALLING)):
        frame = frame.f_back
    return frame


def described(tensor: torch.Tensor) -> str:
    """What printing a tensor without numbers shows, in the style of torch's device ``meta``."""
    parts = ["...", f"device='{tensor.device}'", f"size={tuple(tensor.shape)}"]
    if tensor.dtype not in (torch.get_default_dtype(), torch.int64, torch.bool):
        parts.append(f"dtype={tensor.dtype}")
    text = f"tensor({', '.join(parts)})"
    if isinstance(tensor, torch.nn.Parameter):
        return f"Parameter containing: {text}"
    return text


def show_sizes_only(device: str) -> None:
    """Print tensors on ``device``, and uncomputed ones on the CPU, without their numbers."""
    printing: Any = torch._tensor_str
    original = printing._str

    def shown(self: torch.Tensor, *, tensor_contents: Any = None) -> Any:
        lacking = self.device.type == device or (self.device.type == "cpu" and lacks_numbers(self))
        if lacking and tensor_contents is None:
            return described(self)
        return original(self, tensor_contents=tensor_contents)

    printing._str = shown


MOST_INTEGERS = 2**18
"""Number of elements up to which a new tensor of integers or truth values is computed: a batch of masks or indices."""

_CPU = torch.device("cpu")


class KnownIntegers:
    """The known numbers of the device's tensors in a dry run.

    Args:
        storages: of the device.
        assume: called with each assumption; without it, nothing is selected by unknown numbers.
    """

    def __init__(self, storages: Storages, assume: Callable[[str], None] | None = None) -> None:
        self._storages = storages
        self._assume = assume

    def prepare(self, storage: torch.UntypedStorage, size: int, dtype: torch.dtype) -> None:
        """Give a new storage for ``size`` elements known zeros, if they are few integers."""
        block = self._storages.block(storage)
        if block is not None and size <= MOST_INTEGERS and not is_fractional(dtype):
            # Host bytes behind the block: `of` checks for their presence.
            block.host = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A CPU tensor with the numbers of ``tensor``, sharing its bytes; ``None`` if they are unknown."""
        if tensor.device.type == "cpu":
            if lacks_numbers(tensor):
                return None
            return tensor
        if tensor.device.type != DEVICE or is_fractional(tensor.dtype):
            return None
        storage = tensor.untyped_storage()
        block = self._storages.block(storage)
        # host bytes behind the block mean that its numbers are known
        # An empty tensor has no bytes, so nothing in it is unknown.
        if storage.nbytes() and (block is None or block.host is None):
            return None
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(self._storages.host(storage), tensor.storage_offset(), tensor.shape, tensor.stride())

    def forget(self, tensor: torch.Tensor) -> None:
        """Mark the contents of ``tensor`` as unknown."""
        block = None
        if tensor.device.type == DEVICE:
            block = self._storages.block(tensor.untyped_storage())
        if block is not None:
            block.host = None

    def copied(self, source: torch.Tensor, target: torch.Tensor) -> bool:
        """Follow a copy between any two devices; return whether its numbers are known."""
        values = self.of(source)
        place = self.of(target)
        # not between integers and floats: floats are unknown, and must not become known integers
        if values is None or place is None or is_fractional(target.dtype) is not is_fractional(source.dtype):
            self.forget(target)
            return False
        place.copy_(values)
        return True

    def follow(self, plan: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Compute the result of an operation on known integers, or forget what it wrote.

        Args:
            plan: for the operation, see `gpudash.simulator.operations.operations.Plan`.
            args, kwargs: its arguments.
            result: its result, of sizes alone.
        """
        first = next(tensors_among((*args, *kwargs.values())), None)
        if first is None or (is_fractional(first.dtype) and not plan.written):
            return
        made: tuple[torch.Tensor, ...] = ()
        if not plan.written:
            made = tuple(tensors_among((result,)))
        known = all(tensor.numel() <= MOST_INTEGERS and not is_fractional(tensor.dtype) for tensor in made)
        values = None
        if known:
            values = self.computed(plan, args, kwargs)
        # Unknown inputs make all that was written unknown, however little it is.
        if values is None:
            for name, value in (*zip(plan.names, args), *kwargs.items()):
                if name in plan.written:
                    for tensor in tensors_among((value,)):
                        self.forget(tensor)
            return
        for tensor, computed in zip(made, tensors_among((values,))):
            self.prepare(tensor.untyped_storage(), tensor.numel(), tensor.dtype)
            place = self.of(tensor)
            if place is not None:
                place.copy_(computed)

    @hands_on
    def computed(self, plan: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation on its arguments' numbers, on the CPU; ``None`` if one of them is unknown."""
        try:
            inner = list(map(self._inward, args))
            named = {name: self._inward(value) for name, value in kwargs.items()}
        except UnknownIntegerError:
            return None
        first = next(tensors_among((*inner, *named.values())), None)
        inner = [_as_tensor(value, name, plan, first) for value, name in zip(inner, plan.names)]
        named = {name: _as_tensor(value, name, plan, first) for name, value in named.items()}
        return plan.compute(*inner, **named)

    def picked(self, mask: torch.Tensor) -> torch.Tensor | None:
        """The positions of true elements in ``mask``, ``(count, dimensions)``; all positions if they are unknown.

        The result is on the CPU, or on the device if it is large. ``None`` if nothing may be assumed.
        """
        known = self.of(mask)
        if known is not None:
            return known.nonzero()
        # All positions: the largest result of selecting by an unknown mask.
        if self._assume is None:
            return None
        self._assume(ALL_PICKED)
        # The positions in a large mask are many numbers too: they stay on the device, without values.
        if mask.numel() > MOST_INTEGERS:
            return torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=mask.device)
        return torch.ones(mask.shape, dtype=torch.bool).nonzero()

    def places(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """``indices`` with masks replaced by the positions of their true elements; ``None`` if one is unknown."""
        found: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                found.append(index)
                continue
            positions = self.picked(index)
            if positions is None:
                return None
            # a mask with several dimensions stands for one index tensor per dimension
            found += [place.to(index.device) for place in positions.unbind(1)]
        return found

    def _inward(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None:
                raise UnknownIntegerError
            return known
        if isinstance(value, (list, tuple)):
            return list(map(self._inward, value))
        if isinstance(value, torch.device) and value.type == DEVICE:
            return _CPU
        return value


NUMBERS = (bool, int, float, complex)


def number_as_tensor(value: Any, operand: torch.Tensor | None) -> torch.Tensor:
    """The tensor that a plain number stands for, with a dtype that does not change that of a result.

    torch passes ``False`` in ``mask & False`` as a number where the schema has a tensor, and few operations accept it.

    Args:
        value: the number.
        operand: another argument of the operation; ``None`` if there is none.
    """
    dtype = None
    if operand is not None:
        dtype = torch.result_type(operand, value)
    return torch.tensor(value, dtype=dtype)


def _as_tensor(value: Any, name: str, plan: Any, operand: torch.Tensor | None) -> Any:
    is_number = name in plan.tensors and type(value) in NUMBERS
    if is_number:
        return number_as_tensor(value, operand)
    return value


class UnknownIntegerError(Exception):
    """The numbers of a tensor are unknown."""


def tensors_among(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments or results of an operation, including those in lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)


def is_fractional(dtype: torch.dtype) -> bool:
    """Whether ``dtype`` is for neither integers nor truth values."""
    return dtype.is_floating_point or dtype.is_complex
