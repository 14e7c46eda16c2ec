"""Numbers in a dry run: those it lacks, what is done where code asks for them, and the integers that it knows.

Code looks at masks, lengths and labels, and goes on by them. Small tensors of integers on the device are therefore
computed on the host beside their sizes, for as long as everything they come from is known. Whether a batch has padding,
and how many of its labels count, is then known too.
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
"""The operation that picks boxes by their scores, as every detector does."""

BY_MASKS = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
"""Those of them that take positions in place of a mask."""

SCALER = str(Path(torch.amp.__file__).parent / "grad_scaler.py")
SAVER = str(Path(torch.autograd.graph.__file__))
OWN = str(Path(__file__).parents[1])
CALLING = str(Path(torch.__file__).parent / "_ops.py")

_LACK = re.compile(
    r"\b[Mm]eta (tensor|device)|\bdevice meta\b|\bmeta\b.*\bsame device\b|with unallocated storage"
    r"|data-dependent output shape"
)
"""What torch says of a tensor that has no numbers: of one on its device ``meta``, over no bytes, or of a size that an
operation of somebody else's decides by numbers."""


class DataDependentError(RuntimeError):
    """A dry run met code that needs the numbers in a tensor, which it does not have."""


def of_operation(name: str) -> DataDependentError:
    """The refusal of the operation ``name``, without its namespace, that cannot do with sizes."""
    # In the order of how the code would put it: reading, picking, any other dependence.
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
    """What a truth on the device is in a run as it should be.

    Attributes:
        truth: whether it is true.
        because: what that rests on, a sentence without a full stop.
    """

    truth: bool
    because: str


ANSWER = "_sim_answer"
"""Attribute of the storage of a truth that has an ordinary outcome: its `AssumedTruth`."""

_ORDINARY_ANSWERS = {"any": False, "all": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}

_COMPARING: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}

_TURNING = ("logical_not", "bitwise_not")
_JOINING = ("logical_and", "bitwise_and", "mul", "logical_or", "bitwise_or")

QUESTIONS = frozenset((*_ORDINARY_ANSWERS, *_COMPARING, *_TURNING, *_JOINING))
"""Operations whose truths have an ordinary outcome, or may have."""


def note_answer(name: str, args: Sequence[Any], result: torch.Tensor) -> None:
    """Remember what ``result`` is in a run as it should be, when that can be told.

    Args:
        name: of the operation, without its namespace.
        args: what it was given.
        result: its truths.
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
        # two truths that are assumed, joined: what they rest on is told of the first
        if left is not None and right is not None and name.endswith("or"):
            answer = left._replace(truth=left.truth or right.truth)
        elif left is not None and right is not None:
            answer = left._replace(truth=left.truth and right.truth)
    if answer is not None:
        setattr(result.untyped_storage(), ANSWER, answer)


def _compared(name: str, tensor: Any, other: Any, *, is_one: bool) -> AssumedTruth | None:
    if name in ("eq", "ne") and (tensor is other or (isinstance(other, float) and math.isinf(other))):
        # Comparing with infinity is how code looks for overflows.
        return AssumedTruth((name == "eq") is (tensor is other), ORDINARY)  # a number equals itself unless it is NaN
    # what is true of every element may be false of one: only a single number is compared
    if not is_one:
        return None
    if line_search.is_search(_caller()):
        outcome = line_search.outcome(name, other)
        if outcome is None:
            return None
        return AssumedTruth(outcome, line_search.SEARCHES)
    # Only what lies beyond all numbers of a tensor is decided by it.
    if isinstance(other, (int, float)) and is_beyond(other):
        # 1 stands for all numbers of a tensor, which lie between LEAST and MOST: beyond these every one
        # compares alike
        return AssumedTruth(_COMPARING[name](1.0, other), FINITE)
    return None


def is_beyond(number: float) -> bool:
    """Whether no number of a tensor is taken to reach ``number``, or to fall below it."""
    return not LEAST < number < MOST  # NaN too


def answer_to(tensor: Any) -> AssumedTruth | None:
    """The ordinary outcome that a tensor of truths has; ``None`` where it has none."""
    if isinstance(tensor, torch.Tensor):
        return getattr(unwrapped(tensor).untyped_storage(), ANSWER, None)
    return None


def explains(error: BaseException) -> bool:
    """Whether torch raised ``error`` because a tensor has no numbers."""
    return isinstance(error, (RuntimeError, TypeError)) and _LACK.search(str(error)) is not None


def for_known_code() -> float | None:
    """The answer to code of torch's that is known to read a number; ``None`` for everyone else.

    `torch.amp.GradScaler` asks whether a gradient was infinite, and is told that none was, and for its factor, which
    nothing has changed. L-BFGS asks for the loss, which falls, and for factors.
    """
    frame = _caller()
    # L-BFGS reads its loss at every turn; a falling one lets it go on to its last iteration.
    if line_search.is_search(frame):
        return line_search.falling_loss()
    if frame is None or frame.f_code.co_filename != SCALER:
        return None
    if frame.f_code.co_name == "get_scale":
        return float(getattr(frame.f_locals.get("self"), "_init_scale", 1.0))
    return 0.0


def only_keeps() -> bool:
    """Whether the copy into memory of the CPU is one that torch makes of an activation, to copy it back unread."""
    frame = _caller()
    return frame is not None and frame.f_code.co_filename == SAVER


def _caller() -> FrameType | None:
    """The innermost frame that is neither the simulator's nor what it calls operations through."""
    frame: FrameType | None = sys._getframe(1)
    # outwards past the simulator, and past what torch's Python calls operations through
    # Outwards from here: the first frame that is neither ours nor torch's caller of operations.
    while frame is not None and frame.f_code.co_filename.startswith((OWN, CALLING)):
        frame = frame.f_back
    return frame


def described(tensor: torch.Tensor) -> str:
    """What printing a tensor without numbers shows, after torch's way for its device ``meta``."""
    parts = ["...", f"device='{tensor.device}'", f"size={tuple(tensor.shape)}"]
    if tensor.dtype not in (torch.get_default_dtype(), torch.int64, torch.bool):
        parts.append(f"dtype={tensor.dtype}")
    text = f"tensor({', '.join(parts)})"
    if isinstance(tensor, torch.nn.Parameter):
        return f"Parameter containing: {text}"
    return text


def show_sizes_only(device: str) -> None:
    """Print tensors of ``device``, and uncomputed ones of the CPU, without their numbers."""
    printing: Any = torch._tensor_str
    original = printing._str

    def shown(self: torch.Tensor, *, tensor_contents: Any = None) -> Any:
        lacking = self.device.type == device or (self.device.type == "cpu" and lacks_numbers(self))
        if lacking and tensor_contents is None:
            return described(self)
        return original(self, tensor_contents=tensor_contents)

    printing._str = shown


MOST_INTEGERS = 2**18
"""Elements up to which a new tensor of integers or truths is computed: a batch of masks or indices."""

_CPU = torch.device("cpu")


class KnownIntegers:
    """The numbers of the device's tensors that are known in a dry run.

    Args:
        storages: of the device.
        assume: called with what is assumed; without it, nothing is picked by unknown numbers.
    """

    def __init__(self, storages: Storages, assume: Callable[[str], None] | None = None) -> None:
        self._storages = storages
        self._assume = assume

    def prepare(self, storage: torch.UntypedStorage, size: int, dtype: torch.dtype) -> None:
        """Give a new storage for ``size`` elements zeros to be known, when it is for few integers."""
        block = self._storages.block(storage)
        if block is not None and size <= MOST_INTEGERS and not is_fractional(dtype):
            # Bytes on the host behind the block: their being there is what `of` asks for.
            block.host = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor of the CPU with the numbers of ``tensor``, whose bytes it shares; ``None`` when they are unknown."""
        if tensor.device.type == "cpu":
            if lacks_numbers(tensor):
                return None
            return tensor
        if tensor.device.type != DEVICE or is_fractional(tensor.dtype):
            return None
        storage = tensor.untyped_storage()
        block = self._storages.block(storage)
        # bytes of the host behind the block are what says that its numbers are known
        # An empty tensor has no bytes, and so nothing that could be unknown.
        if storage.nbytes() and (block is None or block.host is None):
            return None
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(self._storages.host(storage), tensor.storage_offset(), tensor.shape, tensor.stride())

    def forget(self, tensor: torch.Tensor) -> None:
        """What is written into ``tensor`` is not known."""
        block = None
        if tensor.device.type == DEVICE:
            block = self._storages.block(tensor.untyped_storage())
        if block is not None:
            block.host = None

    def copied(self, source: torch.Tensor, target: torch.Tensor) -> bool:
        """Follow a copy between any two devices; whether its numbers are known."""
        values = self.of(source)
        place = self.of(target)
        # between kinds numbers are not followed: floats are not known, and must not become known integers
        if values is None or place is None or is_fractional(target.dtype) is not is_fractional(source.dtype):
            self.forget(target)
            return False
        place.copy_(values)
        return True

    def follow(self, plan: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Compute what an operation made of known integers, or forget what it wrote.

        Args:
            plan: of the operation, see `gpudash.simulator.operations.operations.Plan`.
            args, kwargs: what it was given.
            result: what it returned, of sizes alone.
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
        # Not known: what was written is not either, however little of it.
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
        """What an operation makes of its arguments' numbers on the CPU; ``None`` when one of them is unknown."""
        try:
            inner = [self._inward(value) for value in args]
            named = {name: self._inward(value) for name, value in kwargs.items()}
        except UnknownIntegerError:
            return None
        first = next(tensors_among((*inner, *named.values())), None)
        inner = [_as_tensor(value, name, plan, first) for value, name in zip(inner, plan.names)]
        named = {name: _as_tensor(value, name, plan, first) for name, value in named.items()}
        return plan.compute(*inner, **named)

    def picked(self, mask: torch.Tensor) -> torch.Tensor | None:
        """The positions of what is true in ``mask``, ``(count, dimensions)``: of everything where that is not known.

        They lie on the CPU, or on the device where they are many. ``None`` when nothing may be assumed.
        """
        known = self.of(mask)
        if known is not None:
            return known.nonzero()
        # Everything: the largest that picking by an unknown mask can give.
        if self._assume is None:
            return None
        self._assume(ALL_PICKED)
        # Positions of a large mask are many numbers themselves: they lie on the device, without values.
        if mask.numel() > MOST_INTEGERS:
            return torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=mask.device)
        return torch.ones(mask.shape, dtype=torch.bool).nonzero()

    def places(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """``indices`` with the positions of what is true in place of masks; ``None`` when one of them is unknown."""
        found: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                found.append(index)
                continue
            positions = self.picked(index)
            if positions is None:
                return None
            # a mask of several dimensions stands for as many index tensors, one for each
            found += [place.to(index.device) for place in positions.unbind(1)]
        return found

    def _inward(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None:
                raise UnknownIntegerError
            return known
        if isinstance(value, (list, tuple)):
            return [self._inward(item) for item in value]
        if isinstance(value, torch.device) and value.type == DEVICE:
            return _CPU
        return value


NUMBERS = (bool, int, float, complex)


def number_as_tensor(value: Any, operand: torch.Tensor | None) -> torch.Tensor:
    """The tensor that a plain number stands for, of a dtype that does not change that of a result.

    torch hands ``False`` of ``mask & False`` over as a number where the schema says tensor, and takes few operations'
    numbers back.

    Args:
        value: the number.
        operand: another argument of the operation; ``None`` where there is none.
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
    """A tensor's numbers are not known."""


def tensors_among(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments or results of an operation, those in lists and tuples of them included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)


def is_fractional(dtype: torch.dtype) -> bool:
    """Whether numbers of ``dtype`` are neither integers nor truths."""
    return dtype.is_floating_point or dtype.is_complex
