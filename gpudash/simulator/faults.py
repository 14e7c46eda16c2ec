"""Decides whether an error comes from the user's code, as it would on a GPU, or from the simulator.

Most errors that pass through the simulator are torch's, such as mismatched sizes, or are raised here with torch's
message. All others are faults of the simulator, and are reported as such.
"""

from __future__ import annotations

import dis
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map_only

from gpudash.simulator.as_cuda.notices import emit
from gpudash.system.foreign_text import error_text

PACKAGE = str(Path(__file__).parents[1])
HELD_WRITES = str(Path(PACKAGE) / "agent" / "predicting" / "held_writes.py")
TORCH = str(Path(torch.__file__).parent)
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
LIBRARIES = ("site-packages", "dist-packages")
"""Folders with installed libraries, wherever they are."""

CHECKPOINT = str(Path(TORCH) / "utils" / "checkpoint.py")
"""Raises during an operation, from a hook for its saved tensors, when enough has been recomputed."""

CANNOT_SIMULATE = (
    "gpudash cannot simulate {name} with these arguments ({reason}), which is no fault of the code. Run that part with "
    "device='cpu', or all of it on a real GPU."
)

TORCHS = "_sim_torchs"
"""Attribute of an error that torch itself raises too for the same arguments."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class SimulatorError(RuntimeError):
    """The simulator failed on something that torch accepts.

    Args:
        name: of the operation.
        cause: the original exception.
    """

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(CANNOT_SIMULATE.format(name=name, reason=error_text(cause).rstrip(".")))
        self.name = name


class UnsupportedError(NotImplementedError):
    """A sentence on what a simulated GPU does not support."""


_RAISES = dis.opmap["RAISE_VARARGS"]
_MISMATCHED = re.compile(r"\w+::\w+\(\) (Expected a value of type|expected at most|is missing value)")
"""torch's errors for a call that does not match its schema, with which code cannot reach a kernel."""

_handing_on: set[CodeType] = set()


def hands_on(function: _Function) -> _Function:
    """Mark ``function`` as passing a call on to torch or the program, whose errors are not its own."""
    _handing_on.add(function.__code__)
    return function


def is_fault(error: BaseException) -> bool:
    """Whether ``error`` comes from the simulator itself, judging by the code that raised it.

    Errors that the simulator raises on purpose, with torch's or its own message, do not count.
    """
    if isinstance(error, SimulatorError):
        return True
    if isinstance(error, UnsupportedError) or getattr(error, TORCHS, False):
        return False
    steps = list(_steps(error.__traceback__))
    for depth, (code, place) in enumerate(reversed(steps)):
        if code.co_filename == HELD_WRITES:
            continue  # it opens files on behalf of its callers, like Python's functions
        if code.co_filename.startswith(PACKAGE):
            return _is_fault_of(error, code, place, is_innermost=not depth)
        if not _is_between(code.co_filename):
            return False  # the program's own code, or a library's
    return False


def _is_between(file: str) -> bool:
    """Whether a file belongs to torch or Python, which raise on behalf of their callers."""
    if file == CHECKPOINT:
        return False
    if file.startswith((TORCH, "<")):
        return True
    return file.startswith(STANDARD_LIBRARY) and not any(folder in Path(file).parts for folder in LIBRARIES)


def _is_fault_of(error: BaseException, code: CodeType, place: int, *, is_innermost: bool) -> bool:
    if code in _handing_on:
        return _MISMATCHED.match(str(error)) is not None
    is_raised_here = is_innermost and code.co_code[place] == _RAISES
    return not is_raised_here or isinstance(error, AssertionError)


def _steps(trace: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lasti
        trace = trace.tb_next


def simulator_error(
    error: Exception, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> SimulatorError | None:
    """The exception to raise in place of an error in the kernel of ``name``; ``None`` if the error is legitimate.

    Args:
        error: raised by the kernel.
        name: of the operation, such as ``aten::add.Tensor``; "" if the kernel serves any.
        args, kwargs: the kernel's arguments; if it serves any operation, that comes first.
    """
    if isinstance(error, SimulatorError) or not is_fault(error):
        return None
    operation = _operation(name, args)
    if operation is not None and not _takes(operation, args if name else args[1:], kwargs):
        setattr(error, TORCHS, True)
        return None
    made = SimulatorError(operation.name() if operation is not None else name, error)
    emit(str(made))  # even if the program continues without the call
    return made


def _operation(name: str, args: Sequence[Any]) -> Any:
    if not name:
        if args and isinstance(args[0], torch._ops.OpOverload):
            return args[0]
        return None
    packet, _, variant = name.partition(".")
    namespace, _, short = packet.partition("::")
    if namespace == "c10d":  # torch would communicate with other processes to find out
        return None
    return getattr(getattr(getattr(torch.ops, namespace), short), variant or "default", None)


def _takes(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch itself accepts these arguments, judging by their sizes."""

    def sized(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    meta = torch.device("meta")
    try:
        given = tree_map_only(torch.Tensor, sized, (tuple(args), dict(kwargs)))
        inner, named = tree_map_only(torch.device, lambda _device: meta, given)
        operation(*inner, **named)
    except NotImplementedError:
        return True  # torch cannot tell
    except Exception:  # it may refuse them in any way
        return False
    return True
