"""Delays importing torch's compiler and its symbolic shapes until something needs them.

Every optimizer step imports ``torch._dynamo``, to mark where a compiler would break its graph; every shape check
imports ``torch.fx.experimental.symbolic_shapes`` and with it sympy, to test whether the shape is symbolic. Together
they take as long as importing torch, but a dry run compiles nothing and has no symbols. A stand-in for each module
answers these calls, and loads the real one for anything else.

Importing transformers needs more: its functions are marked for a compiler as they are defined, and it imports one
class of the compiler, from a module that depends on nothing else of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
ALONE = "torch._dynamo._trace_wrapped_higher_order_op"
"""Module of the compiler that transformers' masks import a class of; it imports nothing else of the compiler."""

SHAPES = "torch.fx.experimental.symbolic_shapes"
FUNCTIONS = "torch.utils._sympy.functions"
SYMBOLS = "sympy"

UNKNOWN_SYMBOL = "GuardOnDataDependentSymNode"

NUMBERS = (bool, int)
"""Types that contain no symbols; subclasses are excluded, since torch's may be symbolic."""


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
"""torch's functions for conditions and numbers that may be symbolic, and their result if they are not."""


class _StandIn(ModuleType):
    """Stands in for a module.

    Args:
        name: of the module.
        answers: attributes that it answers itself, by name.
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
            raise AttributeError(name)  # every `from ... import` checks whether it is a package
        if sys.modules.get(real) is self:
            # Removed before the import, which would otherwise find the stand-in and return it.
            del sys.modules[real]
            for answered in self._answers:  # code that holds this module uses the real one from now on
                delattr(self, answered)
        module = importlib.import_module(real)
        if real == COMPILER and ALONE in sys.modules:
            # It was imported into the stand-in; a package has its modules as attributes.
            setattr(module, ALONE.rpartition(".")[2], sys.modules[ALONE])
        return getattr(module, name)


def leave_compiler_out() -> None:
    """Avoid importing torch's compiler and sympy unnecessarily, unless they are imported already."""
    # What torch calls in the compiler even without compiling: torch/optim/optimizer.py, torch/_compile.py and
    # torch/compiler/__init__.py.
    answers = {
        "graph_break": _no_graph,
        "disable": _uncompiled,
        "allow_in_graph": _same,
        "assume_constant_result": _same,
    }
    _stand_in(COMPILER, answers)
    if SYMBOLS not in sys.modules:
        _stand_in(SYMBOLS, {"Basic": type("Basic", (), {})})
        shapes: dict[str, Any] = {name: _unless_symbolic(name, plain) for name, plain in PLAIN.items()}
        # Only to be caught, and only raised of symbols: torch/distributed/tensor/_decompositions.py.
        shapes[UNKNOWN_SYMBOL] = type(UNKNOWN_SYMBOL, (RuntimeError,), {})
        _stand_in(SHAPES, shapes)
        # torch/_prims_common/__init__.py imports the name of it wherever it asks whether a tensor is dense.
        _stand_in(FUNCTIONS, {"Max": _largest})


def load_masks_class() -> None:
    """Import the module that transformers' masks need of the compiler, without the compiler."""
    package = sys.modules.get(COMPILER)
    if not isinstance(package, _StandIn) or ALONE in sys.modules or package.__spec__ is None:
        return
    # A stand-in is no package, so that all other modules of the compiler come with the real one.
    package.__path__ = list(package.__spec__.submodule_search_locations or ())
    try:
        # Another version of torch has no such module, or it needs more: then whoever asks gets the real compiler.
        with suppress(ImportError):
            importlib.import_module(ALONE)
    finally:
        vars(package).pop("__path__", None)


def _stand_in(name: str, answers: Mapping[str, object]) -> None:
    if name in sys.modules:
        return
    module = _StandIn(name, answers)
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    if package:
        setattr(importlib.import_module(package), own, module)  # as an import does


def _no_graph(msg: str = "") -> None:
    """Do nothing: there is no graph."""


def _uncompiled(fn: Callable[..., Any] | None = None, *_recursive: bool, **_options: Any) -> Callable[..., Any]:
    """Return the function unchanged, or for a decorator with options, what does so: nothing compiles it."""
    if fn is None:
        return _same
    return fn


def _largest(*values: Any) -> Any:
    """The largest of symbols, by the real function: whoever has symbols has imported it."""
    return importlib.import_module(FUNCTIONS).Max(*values)


def _unless_symbolic(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function of that name that calls the real one if a value is not a plain number."""

    def answer(*values: Any, **options: Any) -> Any:
        for value in values:
            if type(value) not in NUMBERS and not _is_plain(value):
                return getattr(importlib.import_module(SHAPES), name)(*values, **options)
        return plain(*values)

    return answer


def _is_plain(value: object) -> bool:
    """Whether it is a Python number, or a sequence of them, such as a shape."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return type(value) in NUMBERS
