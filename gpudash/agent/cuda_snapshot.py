"""A snapshot of CUDA's memory, for which torch imports nothing into the program."""

from __future__ import annotations

from _thread import RLock, get_native_id
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_one_at_a_time = RLock()


def take(torch: Any) -> Any:
    """``torch.cuda.memory._snapshot()``, by any thread at any time.

    To name the lines of an allocation, torch asks itself for ``torch._inductor`` (``appendSymbolized`` in
    torch/csrc/profiler/python/combined_traceback.cpp), an attribute that imports what it names. That takes seconds, and
    where the program imports ``torch._dynamo`` meanwhile, as the first optimizer does, each of the two imports meets a
    module that the other has not finished, and the program's fails. So the attribute is not there for this thread,
    unless the program has imported it: only then there is code of its making, whose lines it could tell.
    """
    with _one_at_a_time, _importing_nothing(torch):
        return torch.cuda.memory._snapshot()


@contextmanager
def _importing_nothing(torch: Any) -> Iterator[None]:
    """For this thread alone, torch has the attributes that it has, and makes no further ones.

    The system's number of the thread is none of a forked child's, which may begin in the midst of this.
    """
    taker, program = get_native_id(), getattr(torch, "__getattr__", None)

    def __getattr__(name: str) -> Any:  # noqa: N807 - the name by which Python asks a module for what it has not
        if program is None or get_native_id() == taker:
            raise AttributeError(name)
        return program(name)

    torch.__getattr__ = __getattr__
    try:
        yield
    finally:
        if program is None:
            del torch.__getattr__
        else:
            torch.__getattr__ = program
