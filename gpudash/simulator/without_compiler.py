"""torch's compiler and its symbols, imported only when something needs them.

Every step of an optimizer imports ``torch._dynamo``, to mark where a compiler would break its graph; every check of a
shape imports ``torch.fx.experimental.symbolic_shapes`` and with it sympy, to ask whether the shape is a symbol.
Together they take as long as importing torch, and a dry run compiles nothing and has no symbols. A module that stands
in the place of each answers these questions, and makes way for the real one when it is asked for anything else.

Importing transformers asks more: its functions are marked for a compiler as they are defined, and of the compiler it
takes one class, from a module that needs nothing of the rest.
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
        module = importlib.import_module(real)
        if real == COMPILER and ALONE in sys.modules:
            # It was imported into the stand-in; a package has its modules as attributes.
            setattr(module, ALONE.rpartition(".")[2], sys.modules[ALONE])
        return getattr(module, name)


def leave_compiler_out() -> None:
    """Keep torch's compiler and sympy from being imported for nothing, where they have not been already."""
    # What torch asks of the compiler as it runs without it: torch/optim/optimizer.py, torch/_compile.py and
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
        setattr(importlib.import_module(package), own, module)  # as importing it does


def _no_graph(msg: str = "") -> None:
    """Do nothing: there is no graph."""


def _uncompiled(fn: Callable[..., Any] | None = None, *_recursive: bool, **_options: Any) -> Callable[..., Any]:
    """The function itself, or what returns it of a decorator with options: nothing compiles it."""
    if fn is None:
        return _same
    return fn


def _largest(*values: Any) -> Any:
    """The largest of symbols, by the real function: whoever has symbols has imported it."""
    return importlib.import_module(FUNCTIONS).Max(*values)


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
