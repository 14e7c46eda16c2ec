"""Leaves code uncompiled in a dry run: a compiler would trace the simulator itself, and its kernels need a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch

from gpudash.simulator.dry_run.refusals import place_of

UNCOMPILED = "torch.compile is left out, so that the code is predicted as it runs without it"

INDUCTOR = (
    f"{UNCOMPILED}; Inductor mostly needs less, since it fuses operations and reuses buffers, but it chooses itself "
    "what is kept for the backward pass"
)
"""Known effects of torch's compiler: fused operations have no intermediate results, dead buffers are reused, and the
min-cut partitioner (torch/_functorch/partitioners.py) decides what is saved and what is recomputed."""

CUDA_GRAPHS = f"{INDUCTOR}, and CUDA graphs keep their memory in pools of their own"

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that record CUDA graphs."""

GRAPH_OPTION = "triton.cudagraphs"

COMPILER = "torch._dynamo.eval_frame"

WRAPPERS = ("_TorchCompileInductorWrapper", "_TorchCompileAOTInductorWrapper", "_TorchCompileWrapper")
"""The objects that ``torch.compile`` creates for a backend's name before it imports the compiler."""

MOST_PLACES = 3
"""The most lines listed of those that compile; libraries have dozens."""

Note = Callable[[str], None]


class LeftUncompiled:
    """Records what was left uncompiled.

    Args:
        known: what is already known.
    """

    def __init__(self, known: LeftUncompiled | None = None) -> None:
        self._places: dict[str, list[str]] = {}
        if known is not None:
            self._places = {what: list(places) for what, places in known._places.items()}

    def note(self, what: str) -> None:
        """Note a sentence about the running line; torch may be the caller on its behalf, as in ``Module.compile``."""
        where = place_of(sys._getframe(1), within_torch=True)
        places = self._places.setdefault(what, [])
        if where and where not in places:
            places.append(where)

    def assumptions(self) -> Iterator[str]:
        """Sentences without a full stop, each preceded by the lines that it concerns."""
        for what, places in self._places.items():
            more = len(places) - MOST_PLACES
            named = [*places[:MOST_PLACES], *([f"{more} more"] if more > 0 else [])]
            if places:
                yield f"{' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))}: {what}"


@contextmanager
def compiling_nothing(left: LeftUncompiled) -> Iterator[None]:
    """Make ``torch.compile`` return its argument, run earlier compiled code as it was written, and skip the comparison
    of traces of ``torch.jit`` with their originals.

    Args:
        left: records what was left uncompiled.
    """
    note = left.note
    with ExitStack() as stack:

        def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            if hasattr(owner, name):
                original = getattr(owner, name)
                setattr(owner, name, make(original))
                stack.callback(setattr, owner, name, original)

        def run_as_written() -> None:
            """Disable compilation of code compiled earlier, or by a ``torch.compile`` that was imported earlier."""
            # Sets the stance of the compiler if it is imported already; later imports go through the wrappers.
            compiler = sys.modules.get(COMPILER)
            if compiler is not None and compiler not in left_out:
                left_out.append(compiler)
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                replace(compiler, "_callback_from_stance", lambda original: _noting_calls(original, note))

        left_out: list[ModuleType] = []
        replace(torch, "compile", lambda _original: _leaving_uncompiled(note))
        for name in WRAPPERS:
            replace(getattr(torch, name, None), "__init__", lambda make: _after_importing(make, run_as_written))
        run_as_written()
        # torch compares the results of a trace with those of the code, which needs no more memory than tracing:
        # without numbers they differ, and torch/jit/_trace.py then prints constants that do not exist
        replace(torch.jit._trace, "_check_trace", lambda _original: _found_equal)
        yield


def _found_equal(*_args: Any, **_kwargs: Any) -> None:
    """Replaces the comparison of a trace with its original."""


def _leaving_uncompiled(note: Note) -> Callable[..., Any]:
    def left_as_it_is(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
        if not disable:
            note(_changes(options))
        if model is None:
            return lambda made: made
        return model

    return left_as_it_is


def _changes(options: dict[str, Any]) -> str:
    """The known effects of the requested compiler."""
    if options.get("backend") not in (None, "inductor"):
        return UNCOMPILED
    chosen = options.get("options")
    records = isinstance(chosen, dict) and bool(chosen.get(GRAPH_OPTION))
    if records or options.get("mode") in GRAPH_MODES:
        return CUDA_GRAPHS
    return INDUCTOR


def _after_importing(make: Callable[..., None], then: Callable[[], None]) -> Callable[..., None]:
    def made(*args: Any, **kwargs: Any) -> None:
        importlib.import_module(COMPILER)  # takes seconds, which only code that compiles should pay for
        then()
        make(*args, **kwargs)

    return made


def _noting_calls(callback_of: Callable[[Any], Any], note: Note) -> Callable[[Any], Any]:
    def noted(callback: Any) -> Any:
        if callback not in (None, False):
            note(UNCOMPILED)
        return callback_of(callback)

    return noted
