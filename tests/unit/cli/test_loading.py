"""Dataclasses whose methods are compiled when they are first called."""

from __future__ import annotations

import dataclasses
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from gpudash.cli import loading


def classes() -> list[type]:
    @dataclass(frozen=True, slots=True)
    class Reading:
        self: int
        words: tuple[str, ...] = ()

    @dataclass
    class Basis:
        name: str
        values: list[int] = field(default_factory=list)

    @dataclass(order=True)
    class Derived(Basis):
        more: float = 1.5

    return [Reading, Basis, Derived]


@pytest.fixture
def later() -> list[type]:
    with loading._uncompiled_methods():
        return classes()


def test_a_method_is_compiled_when_it_is_first_called_and_not_again(later: list[type]) -> None:
    basis = later[1]
    waiting = basis.__init__
    assert "name" not in waiting.__code__.co_varnames
    assert basis("a").values == []
    assert basis.__init__ is not waiting
    assert "name" in basis.__init__.__code__.co_varnames
    compiled = basis.__init__
    basis("b")
    assert basis.__init__ is compiled


def test_objects_are_made_compared_hashed_printed_and_frozen_as_those_of_any_dataclass(later: list[type]) -> None:
    for given, plain in zip(later, classes(), strict=True):
        first, second = given("a"), given("b")
        assert repr(first) == repr(plain("a"))
        assert first == given("a")
        assert first != second
        assert first != plain("a")
        assert dataclasses.asdict(first) == dataclasses.asdict(plain("a"))
    reading, derived = later[0], later[2]
    assert {reading(self=1), reading(1)} == {reading(1)}
    assert replace(reading(1), words=("x",)) == reading(1, ("x",))
    with pytest.raises(FrozenInstanceError):
        reading(1).self = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'self'"):
        reading()
    assert derived("a") < derived("b")
    assert derived("a", [1], 2.0).more == 2.0


def test_a_class_that_is_made_afterwards_has_its_methods_at_once(later: list[type]) -> None:
    assert later
    assert "name" in classes()[1].__init__.__code__.co_varnames  # type: ignore[misc]
