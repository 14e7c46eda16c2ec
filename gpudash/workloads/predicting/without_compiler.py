"""torch's compiler and its symbols, imported only when something needs them.

Every step of an optimizer imports ``torch._dynamo``, to mark where a compiler would break its graph; every check of a
shape imports ``torch.fx.experimental.symbolic_shapes`` and with it sympy, to ask whether the shape is a symbol.
Together they take as long as importing torch, and a dry run compiles nothing and has no symbols. A module that stands
in the place of each answers these questions, and makes way for the real one when it is asked for anything else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
SYMBOLS = "sympy"

NUMBERS = (bool, int)
"""Types that hold no symbols; those of torch's that may are no subclasses."""


def _same(value: Any, *_skip: Any) -> Any:
    return value


PLAIN: Mapping[str, Callable[..., Any]] = {
    "expect_true": _same,
    "guard_or_false": _same,
    "guard_or_true": _same,
    "guard_size_oblivious": _same,
    "guarding_hint_or_throw": _same,
    "has_guarding_hint": lambda _value: True,
    "is_nested_int": lambda _value: False,
    "sym_eq": lambda one, other: one == other if isinstance(one, int) else tuple(one) == tuple(other),
    "statically_known_true": _same,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
}
"""What torch asks of conditions and numbers that may hold symbols, and its answer where none does."""


class _StandIn(ModuleType):
    """What stands in the place of a module.

    Args:
        name: of the module.
        answers: what it answers by itself, by name.
    """

    def __init__(self, name: str, answers: Mapping[str, object]) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)
        if self.__spec__ is not None:
            self.__file__ = self.__spec__.origin
        self._answers = answers
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        real = self.__name__
        if name == "__path__" and (self.__spec__ is None or self.__spec__.submodule_search_locations is None):
            raise AttributeError(name)  # every `from ... import` asks whether it is a package
        if sys.modules.get(real) is self:
            # Taken out before the import, which would find the stand-in and return it.
            del sys.modules[real]
            for answered in self._answers:  # who holds this module asks the real one from now on
                delattr(self, answered)
        return getattr(importlib.import_module(real), name)


def leave_compiler_out() -> None:
    """Keep torch's compiler and sympy from being imported for nothing, where they have not been already."""
    # What torch asks of the compiler as it runs without it: torch/optim/optimizer.py and torch/_compile.py.
    _stand_in(COMPILER, {"graph_break": _no_graph, "disable": _uncompiled})
    if SYMBOLS not in sys.modules:
        _stand_in(SYMBOLS, {"Basic": type("Basic", (), {})})
        _stand_in(SHAPES, {name: _unless_symbolic(name, plain) for name, plain in PLAIN.items()})


def _stand_in(name: str, answers: Mapping[str, object]) -> None:
    if name in sys.modules:
        return
    module = _StandIn(name, answers)
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    if package:
        setattr(importlib.import_module(package), own, module)  # as importing it does


def _no_graph(msg: str = "") -> None:
    """Do nothing: there is no graph."""


def _uncompiled(fn: Callable[..., Any], *_recursive: bool, **_options: Any) -> Callable[..., Any]:
    """The function itself: nothing compiles it."""
    return fn


def _unless_symbolic(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function of that name, which asks the real one where a value is no plain number."""

    def answer(*values: Any, **options: Any) -> Any:
        for value in values:
            if type(value) not in NUMBERS and not _is_plain(value):
                return getattr(importlib.import_module(SHAPES), name)(*values, **options)
        return plain(*values)

    return answer


def _is_plain(value: object) -> bool:
    """Whether it is a number of Python's, or a sequence of them, such as a shape."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return type(value) in NUMBERS
