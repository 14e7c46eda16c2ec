"""Whose fault an error is: torch's refusal of what the code asks, as it would be on a GPU, or a fault of the simulator.

Most errors that go through the simulator are torch's, of sizes that do not match for instance, or are raised here in
torch's words. All others are faults of the simulator, and are reported as such.
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

PACKAGE = str(Path(__file__).parents[1])
HELD_WRITES = str(Path(PACKAGE) / "agent" / "predicting" / "held_writes.py")
TORCH = str(Path(torch.__file__).parent)
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
LIBRARIES = ("site-packages", "dist-packages")
"""Folders of other people's code, wherever they are."""

CHECKPOINT = str(Path(TORCH) / "utils" / "checkpoint.py")
"""Raises in the midst of an operation, from a hook of what it saves, when enough has been computed again."""

CANNOT_SIMULATE = (
    "gpudash cannot simulate {name} with these arguments ({reason}), which is no fault of the code. Run that part with "
    "device='cpu', or all of it on a real GPU."
)

TORCHS = "_sim_torchs"
"""Attribute of an error that torch raises too, given the same arguments."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class SimulatorError(RuntimeError):
    """The simulator failed at something that torch takes.

    Args:
        name: of the operation.
        cause: what was raised.
    """

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(CANNOT_SIMULATE.format(name=name, reason=reason(cause)))
        self.name = name


class UnsupportedError(NotImplementedError):
    """What a simulated GPU has not, in a sentence."""


_RAISES = dis.opmap["RAISE_VARARGS"]
_MISMATCHED = re.compile(r"\w+::\w+\(\) (Expected a value of type|expected at most|is missing value)")
"""What torch says of a call that its schema does not allow: code cannot make one that comes as far as a kernel."""

_handing_on: set[CodeType] = set()


def hands_on(function: _Function) -> _Function:
    """Say that ``function`` hands a call on to torch or to the program: what that raises is no fault of its own."""
    _handing_on.add(function.__code__)
    return function


def is_fault(error: BaseException) -> bool:
    """Whether ``error`` comes from the simulator itself, by the code it went through last.

    What the simulator raises on purpose, after torch or in its own words, is none.
    """
    if isinstance(error, SimulatorError):
        return True
    if isinstance(error, UnsupportedError) or getattr(error, TORCHS, False):
        return False
    steps = list(_steps(error.__traceback__))
    for depth, (code, place) in enumerate(reversed(steps)):
        if code.co_filename == HELD_WRITES:
            continue  # it opens files as Python's own functions do
        if code.co_filename.startswith(PACKAGE):
            return _is_fault_of(error, code, place, is_innermost=not depth)
        if not _is_between(code.co_filename):
            return False  # the program's own code, or a library's
    return False


def _is_between(file: str) -> bool:
    """Whether a file is torch's or Python's own, which raise on behalf of who calls them."""
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
    """What is raised in place of an error of the kernel of ``name``; ``None`` where that is as it should be.

    Args:
        error: what the kernel has raised.
        name: of the operation, as ``aten::add.Tensor``; "" where the kernel serves any.
        args, kwargs: what it was given; an operation, if the kernel serves any, comes first.
    """
    if isinstance(error, SimulatorError) or not is_fault(error):
        return None
    operation = _operation(name, args)
    if operation is not None and not _takes(operation, args if name else args[1:], kwargs):
        setattr(error, TORCHS, True)
        return None
    made = SimulatorError(operation.name() if operation is not None else name, error)
    emit(str(made))  # also where the program goes on without the call
    return made


def first_line(error: BaseException) -> str:
    """What an error says first, without a full stop."""
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), "")


def reason(error: BaseException) -> str:
    """An error by its kind and what it says first."""
    said = first_line(error)
    if said:
        return f"{type(error).__name__}: {said}"
    return type(error).__name__


def _operation(name: str, args: Sequence[Any]) -> Any:
    if not name:
        if args and isinstance(args[0], torch._ops.OpOverload):
            return args[0]
        return None
    packet, _, variant = name.partition(".")
    namespace, _, short = packet.partition("::")
    if namespace == "c10d":  # torch would talk to other processes to find out
        return None
    return getattr(getattr(getattr(torch.ops, namespace), short), variant or "default", None)


def _takes(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch itself takes these arguments, by their sizes."""

    def sized(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    meta = torch.device("meta")
    try:
        given = tree_map_only(torch.Tensor, sized, (tuple(args), dict(kwargs)))
        inner, named = tree_map_only(torch.device, lambda _device: meta, given)
        operation(*inner, **named)
    except NotImplementedError:
        return True  # torch does not say
    except Exception:  # whatever it refuses them by
        return False
    return True
