"""Why there is no prediction of a piece of code, in words, and which line of it is the reason."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpudash.memory.frames import Frame, is_own
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.dry_run.dry_run import LeftTheDeviceError
from gpudash.simulator.dry_run.missing_numbers import DataDependentError
from gpudash.simulator.faults import (
    LIBRARIES,
    PACKAGE,
    STANDARD_LIBRARY,
    TORCH,
    SimulatorError,
    UnsupportedError,
    first_line,
    is_fault,
    reason,
)
from gpudash.simulator.refusal import CannotPredictError

DECIDING = tuple(str(Path(TORCH) / folder) for folder in ("optim", "nn", "distributions"))
CALLING = str(Path(TORCH) / "_ops.py")
"""Where code that names an operation in ``torch.ops`` calls it through."""

Line = tuple[str, int]
"""File and number, from 1."""

logger = logging.getLogger(__name__)


def place(error: BaseException) -> str:
    """``train.py:12``, of the innermost line that is the user's own, or else a library's; "" where there is none.

    The file is written as seen from the working directory.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return shown_line((error.filename, error.lineno or 0))
    # The user's own line if there is one: a library's would not say what to change.
    lines = _followed(_lines(error))
    if lines:
        return shown_line((_own(lines) or lines)[-1])
    return ""


def library_place(error: BaseException) -> str:
    """``transformers/masking_utils.py:344``, when the innermost line is a library's and another is the user's own.

    Of torch's own files those are meant that decide for themselves, as an optimizer that searches along a line.
    """
    lines = [line for line in _lines(error) if not line[0].startswith((PACKAGE, "<"))]
    if not lines or not _own(lines) or _own(lines[-1:]):
        return ""
    innermost = lines[-1][0]
    if innermost.startswith(TORCH) and not innermost.startswith(DECIDING):
        return ""
    return shown_line(lines[-1])


def place_of(frame: FrameType | None, *, within_torch: bool = False) -> str:
    """As `place`, of code that is running, and where in a library that asks; "" when it is torch that asks.

    Args:
        frame: the innermost that is running.
        within_torch: whether torch may ask.
    """
    lines = [(found.filename, found.lineno or 0) for found in traceback.extract_stack(frame)]
    outside = [line for line in lines if not line[0].startswith((PACKAGE, CALLING, "<"))]
    if not outside or (outside[-1][0].startswith(TORCH) and not within_torch):
        return ""
    kept = _followed(lines)
    own = _own(kept)
    if own and not _own(kept[-1:]):
        return f"{shown_line(own[-1])}, in {shown_line(kept[-1])}"
    if kept:
        return shown_line(kept[-1])
    return ""


def _lines(error: BaseException) -> list[Line]:
    """The lines the error went through, outermost first; further in, those of the error it was made from."""
    if error.__cause__ is None:
        # The cause is where it began: its lines are further in.
        inner = []
    else:
        inner = _lines(error.__cause__)
    return [*((frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)), *inner]


def _followed(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if not line[0].startswith((PACKAGE, TORCH, "<")) and not _is_standard(line[0])]


def _is_standard(file: str) -> bool:
    return file.startswith(STANDARD_LIBRARY) and not any(folder in file for folder in LIBRARIES)


def _own(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if is_own(Frame(line[0], line[1], ""))]


def shown_line(line: Line) -> str:
    """A line as people read it: a library's within its package, others as seen from the working directory."""
    path, here = Path(line[0]), Path.cwd()
    for folder in LIBRARIES:
        if folder in path.parts:
            return f"{Path(*path.parts[path.parts.index(folder) + 1 :])}:{line[1]}"
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line[1]}"


WRONG_ANYWHERE = (ImportError, NameError, SyntaxError)
"""Errors that do not depend on a tensor or a device."""

FIX = "Fix that first; it happens without a GPU too."
FIX_OR_WATCH = "Fix that first; if a real run does not raise it, watch that instead."

WATCH = "watch a real run: gpudash watch -- python YOUR_SCRIPT"
DECIDE_EARLIER = f"Decide before the step by a number of Python's own, or {WATCH}."
LEAVE_OUT = f"Leave out the argument or setting that makes {{library}} look at numbers, or {WATCH}."


OF_GPUDASH = "gpudash cannot predict the code{where}: {said}."
WATCH_INSTEAD = f"This is no fault of the code; leave that part out, or {WATCH}."

_DEVICE_REFUSED = re.compile(rf"\b{DEVICE}\b(?!.*same device)|[Pp]rivate[Uu]se(1|[Oo]ne)")
"""What torch or a library says where it knows no device but the real ones."""


@contextmanager
def explaining_errors() -> Iterator[None]:
    """Turn whatever followed code raises into a `CannotPredictError`."""
    try:
        yield
    except CannotPredictError:
        raise
    except DataDependentError as error:
        # Two places: where the user's code is, and where the library decides.
        own, library = place(error), library_place(error)
        where = ""
        if own:
            where = f" at {own}"
        if library:
            where = f" at {library}, called from {own},"
        remedy = DECIDE_EARLIER
        if library:
            remedy = LEAVE_OUT.format(library=library.split("/")[0].split(".")[0])
        raise CannotPredictError(
            "data_dependent",
            f"{str(error).rstrip('.')}{where.rstrip(',')}; a dry run has none, so nothing can be predicted.",
            remedy,
        ) from error
    except LeftTheDeviceError as error:
        raise CannotPredictError(
            "left_the_device", str(error), "Build the model and the tensors on the device that is given."
        ) from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # any code may raise anything
        own, said = place(error), first_line(error)
        # Before the code is blamed: what the simulator cannot do is said of gpudash.
        cannot = _reason_of_gpudash(error)
        if cannot:
            logger.error("No prediction: %s", cannot, exc_info=error)
            where = ""
            if own:
                where = f" at {own}"
            raise CannotPredictError("gpudash", OF_GPUDASH.format(where=where, said=cannot), WATCH_INSTEAD) from error
        if said:
            said = f": {said}"
        else:
            said = ""
        raise CannotPredictError(
            "raised",
            f"{'The' if not own else f'At {own} the'} code raised {type(error).__name__}{said}.",
            FIX if isinstance(error, WRONG_ANYWHERE) else FIX_OR_WATCH,
        ) from error


def _reason_of_gpudash(error: BaseException) -> str:
    """Why the simulator cannot do what the code asks, where it is that and not the code; "" otherwise."""
    if isinstance(error, UnsupportedError):
        return first_line(error)
    if isinstance(error, SimulatorError):
        return f"it cannot simulate {error.name} there ({reason(error.__cause__ or error)})"
    if is_fault(error):
        return f"its simulator failed ({reason(error)})"
    if _DEVICE_REFUSED.search(str(error)) and not _raised_by_simulator(error):
        return f"what it calls takes no simulated device ({reason(error)})"
    return ""


def _raised_by_simulator(error: BaseException) -> bool:
    """Whether the simulator itself has raised it, as it does of devices that differ."""
    lines = _lines(error)
    return bool(lines) and lines[-1][0].startswith(PACKAGE)
