"""Numbers that a dry run does not have: what stands in for them may be shown and kept, but nothing is decided by it.

``loss.item()`` is mostly printed, added up or put into a list, for which any number does. Code that goes on by it is
refused, unless it only guards against what does not happen in a run as it should be.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpudash.simulator.device.storage import BLOCK, DEVICE, lacks_numbers
from gpudash.simulator.dry_run import failing_line as blame
from gpudash.simulator.dry_run import missing_numbers
from gpudash.simulator.dry_run.missing_numbers import DECIDES, READS, TAKES_OUT, DataDependentError

MOST_LISTED = 2**16
"""Elements up to which a tensor is turned into a list of numbers that are not known."""

MILLION = 1e6

FINITE = "numbers of tensors are finite, above 0 and below a million"
FALLS = "each number that is compared with an earlier one of its kind is smaller, as a loss that falls"
ORDINARY = "any() and isnan() of a tensor are false, all() and isfinite() are true"
AS_ONE = "a tensor's number that is turned into a plain one is 1, whatever is decided by it"

_order = itertools.count()
_assumed: list[str] = []


class UnknownTruth:
    """The outcome of a comparison with a number that is not known; of its own kind, since nothing can be a bool."""

    def __bool__(self) -> bool:
        """Refused: a branch would be taken by it."""
        raise DataDependentError(f"{DECIDES}.")

    def __repr__(self) -> str:
        return "unknown"

    def _number(self, *_other: Any) -> UnknownNumber:
        return UnknownNumber()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __float__ = _number

    def _truth(self, *_other: Any) -> UnknownTruth:
        return self

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _truth


class UnknownNumber(float):
    """A number that was to be read out of a tensor. Shown, it is a 1."""

    _made: int

    def __new__(cls, *_given: Any) -> UnknownNumber:  # noqa: PYI034 - Python 3.9 has no Self
        made = float.__new__(cls, 1.0)
        made._made = next(_order)
        return made

    def __bool__(self) -> bool:
        """Refused, as every way of deciding by it."""
        raise DataDependentError(f"{DECIDES}.")

    def _refuse(self, *_other: Any) -> int:
        raise DataDependentError(f"{READS}.")

    __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = _refuse

    def _number(self, *_other: Any) -> UnknownNumber:
        return UnknownNumber()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _number
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _number
    __neg__ = __pos__ = __abs__ = __round__ = _number  # type: ignore[assignment]

    def __float__(self) -> float:
        assume(AS_ONE)
        return 1.0

    def __format__(self, wanted: str) -> str:
        try:
            return format(1.0, wanted)
        except ValueError:  # as :d, for what the code knows to be whole
            return format(1, wanted)

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> Any:
        return self._compared(other, float.__eq__, None)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, float.__ne__, None)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, float.__lt__, True)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, float.__le__, True)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, float.__gt__, False)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, float.__ge__, False)

    def _compared(self, other: Any, compare: Callable[[float, Any], Any], smaller: bool | None) -> Any:
        """The outcome for ordinary numbers, and for ones that fall; unknown where that does not tell it.

        Args:
            smaller: the outcome if this number is the smaller one; ``None`` for those that ask for equality.
        """
        if other is self:
            assume(FINITE)
            return compare(1.0, 1.0)
        if isinstance(other, UnknownNumber):
            assume(FALLS)
            return compare is float.__ne__ if smaller is None else smaller is (self._made > other._made)
        if isinstance(other, (int, float)) and not 0 < other < MILLION:  # NaN too
            assume(FINITE)
            return compare(1.0, other)
        return UnknownTruth()


def assume(what: str) -> None:
    """Note that the answer rests on ``what``, where the code asks for it."""
    where = blame.place_of(sys._getframe(1))
    said = f"{where}: {what}"
    if where and said not in _assumed:
        _assumed.append(said)


def assumptions() -> tuple[str, ...]:
    """What has been assumed since `standing_in` was entered, each with the line that asked."""
    return tuple(_assumed)


@contextmanager
def standing_in() -> Iterator[None]:
    """Let tensors without numbers give unknown ones for as long as this is entered."""
    _assumed.clear()
    tensor_type: Any = torch.Tensor
    replaced: list[tuple[Any, str, Any]] = [
        *((tensor_type, name, _unless_known(getattr(tensor_type, name), made)) for name, made in _METHODS.items()),
        *((math, name, _of_a_finite(getattr(math, name))) for name in ("isnan", "isinf", "isfinite")),
        *((owner, name, _into_a_tensor(getattr(owner, name))) for owner, name in _TAKING_NUMBERS),
    ]
    own = [vars(owner).get(name) for owner, name, _made in replaced]
    for owner, name, made in replaced:
        setattr(owner, name, made)
    try:
        yield
    finally:
        for (owner, name, _made), before in zip(replaced, own):
            if before is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, before)


_TAKING_NUMBERS: tuple[tuple[Any, str], ...] = (
    (torch, "tensor"),
    (torch, "as_tensor"),
    (torch.Tensor, "__setitem__"),
)
"""What makes plain numbers of those that it is given."""


def _into_a_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *(value for part in args if isinstance(part, (list, tuple)) for value in part))
        if any(isinstance(value, UnknownNumber) for value in given):
            assume(AS_ONE)
        return original(*args, **kwargs)

    return made


def _of_a_finite(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def tested(number: Any) -> bool:
        if isinstance(number, UnknownNumber) or (isinstance(number, torch.Tensor) and lacks(number)):
            assume(FINITE)
            return test(1.0)
        return test(number)

    return tested


def lacks(tensor: torch.Tensor) -> bool:
    """Whether the numbers of ``tensor`` are not known."""
    kind = tensor.device.type
    if kind == DEVICE:
        return getattr(getattr(tensor.untyped_storage(), BLOCK, None), "host", None) is None
    return kind == "meta" or (kind == "cpu" and lacks_numbers(tensor))


def _unless_known(original: Callable[..., Any], unknown: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: torch.Tensor, *args: Any) -> Any:
        return unknown(self, original, *args) if lacks(self) else original(self, *args)

    return method


def _item(self: torch.Tensor, original: Callable[..., Any]) -> Any:
    answer = missing_numbers.for_scaler()
    if self.numel() != 1 or self.is_complex() or answer is not None:
        return original(self) if answer is None else answer
    if self.dtype is torch.bool:
        known = missing_numbers.answer_to(self)
        if known is not None:
            assume(ORDINARY)
        return UnknownTruth() if known is None else known
    return UnknownNumber()


def _truth(self: torch.Tensor, original: Callable[..., Any]) -> bool:
    answer = missing_numbers.answer_to(self)
    if answer is None:
        if self.numel() == 1:
            raise DataDependentError(f"{DECIDES}.")
        return bool(original(self))
    assume(ORDINARY)
    return answer


def _plain(self: torch.Tensor, original: Callable[..., Any]) -> float:
    answer = missing_numbers.for_scaler()
    if answer is None:
        if self.numel() != 1:
            return float(original(self))
        assume(AS_ONE)
    return 1.0 if answer is None else answer


def _formatted(self: torch.Tensor, original: Callable[..., Any], wanted: str) -> str:
    return str(format(UnknownNumber(), wanted) if not self.dim() and wanted else original(self, wanted))


def _listed(self: torch.Tensor, _original: Callable[..., Any]) -> Any:
    if self.numel() > MOST_LISTED or self.is_complex():
        raise DataDependentError(f"{TAKES_OUT}.")

    def part(sizes: tuple[int, ...]) -> Any:
        return [part(sizes[1:]) for _ in range(sizes[0])] if sizes else UnknownNumber()

    return part(tuple(self.shape))


def _array(_self: torch.Tensor, _original: Callable[..., Any], *_args: Any) -> Any:
    raise DataDependentError(f"{TAKES_OUT}.")


_METHODS: dict[str, Callable[..., Any]] = {
    "item": _item,
    "tolist": _listed,
    "numpy": _array,
    "__array__": _array,
    "__bool__": _truth,
    "__float__": _plain,
    "__format__": _formatted,
}
