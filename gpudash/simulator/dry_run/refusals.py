"""Why there is no prediction for a piece of code, as text, and which line is the reason."""

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
    is_fault,
)
from gpudash.simulator.refusal import FIX, FIX_OR_WATCH, CannotPredictError
from gpudash.system.foreign_text import error_text, first_line

DECIDING = tuple(str(Path(TORCH) / folder) for folder in ("optim", "nn", "distributions"))
CALLING = str(Path(TORCH) / "_ops.py")
"""The file through which code calls an operation of ``torch.ops``."""

Line = tuple[str, int]
"""File and line number, from 1."""

logger = logging.getLogger(__name__)


def place(error: BaseException) -> str:
    """``train.py:12``: the innermost line of the user's own code, otherwise of a library; "" if there is none.

    The file is relative to the working directory.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return shown_line((error.filename, error.lineno or 0))
    # The user's own line if there is one: a library's would not show what to change.
    lines = _followed(_lines(error))
    if lines:
        return shown_line((_own(lines) or lines)[-1])
    return ""


def library_place(error: BaseException) -> str:
    """``transformers/masking_utils.py:344``: the innermost line if it is in a library and another one is the user's.

    Of torch's own files, only those count that branch on numbers, such as an optimizer with a line search.
    """
    lines = [line for line in _lines(error) if not line[0].startswith((PACKAGE, "<"))]
    if not lines or not _own(lines) or _own(lines[-1:]):
        return ""
    innermost = lines[-1][0]
    if innermost.startswith(TORCH) and not innermost.startswith(DECIDING):
        return ""
    return shown_line(lines[-1])


def place_of(frame: FrameType | None, *, within_torch: bool = False) -> str:
    """Like `place`, for running code, and the place in a library that is the caller; "" if torch is the caller.

    Args:
        frame: the innermost running frame.
        within_torch: whether torch may be the caller.
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
    """The lines of the error's traceback, outermost first, followed by those of its cause."""
    if error.__cause__ is None:
        # The cause comes first in time: its lines are further in.
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
    """A line as people read it: a library's relative to its package, others relative to the working directory."""
    path, here = Path(line[0]), Path.cwd()
    for folder in LIBRARIES:
        if folder in path.parts:
            return f"{Path(*path.parts[path.parts.index(folder) + 1 :])}:{line[1]}"
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line[1]}"


WRONG_ANYWHERE = (ImportError, NameError, SyntaxError)
"""Errors that do not depend on tensors or devices."""

WATCH = "watch a real run: gpudash watch -- python YOUR_SCRIPT"
DECIDE_EARLIER = f"Decide before the step by a number of Python's own, or {WATCH}."
LEAVE_OUT = f"Leave out the argument or setting that makes {{library}} look at numbers, or {WATCH}."


OF_GPUDASH = "gpudash cannot predict the code{where}: {said}."
WATCH_INSTEAD = f"This is no fault of the code; leave that part out, or {WATCH}."

_DEVICE_REFUSED = re.compile(rf"\b{DEVICE}\b(?!.*same device)|[Pp]rivate[Uu]se(1|[Oo]ne)")
"""torch's or a library's error if it knows real devices only."""


@contextmanager
def explaining_errors() -> Iterator[None]:
    """Turn any exception of followed code into a `CannotPredictError`."""
    try:
        yield
    except CannotPredictError:
        raise
    except DataDependentError as error:
        # Two places: the user's line, and the library's line that needs the numbers.
        own, library = place(error), library_place(error)
        where = _at(own)
        remedy = DECIDE_EARLIER
        if library:
            where = f" at {library}, called from {own}"
            remedy = LEAVE_OUT.format(library=library.split("/")[0].split(".")[0])
        raise CannotPredictError(
            "data_dependent",
            f"{str(error).rstrip('.')}{where}; a dry run has none, so nothing can be predicted.",
            remedy,
        ) from error
    except LeftTheDeviceError as error:
        raise CannotPredictError(
            "left_the_device", str(error), "Build the model and the tensors on the device that is given."
        ) from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # user code may raise anything
        own, said = place(error), first_line(str(error)).rstrip(".")
        # Before blaming the code: what the simulator cannot do is reported as gpudash's.
        cannot = _reason_of_gpudash(error)
        if cannot:
            logger.error("No prediction: %s", cannot, exc_info=error)
            sentence = OF_GPUDASH.format(where=_at(own), said=cannot)
            raise CannotPredictError("gpudash", sentence, WATCH_INSTEAD) from error
        said = f": {said}" if said else ""
        raise CannotPredictError(
            "raised",
            f"{f'At {own} the' if own else 'The'} code raised {type(error).__name__}{said}.",
            FIX if isinstance(error, WRONG_ANYWHERE) else FIX_OR_WATCH,
        ) from error


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def _reason_of_gpudash(error: BaseException) -> str:
    """Why the simulator cannot do what the code requests, if that is the cause; otherwise ""."""
    if isinstance(error, UnsupportedError):
        return first_line(str(error)).rstrip(".")
    if isinstance(error, SimulatorError):
        return f"it cannot simulate {error.name} there ({error_text(error.__cause__ or error).rstrip('.')})"
    if is_fault(error):
        return f"its simulator failed ({error_text(error).rstrip('.')})"
    if _DEVICE_REFUSED.search(str(error)) and not _raised_by_simulator(error):
        return f"what it calls takes no simulated device ({error_text(error).rstrip('.')})"
    return ""


def _raised_by_simulator(error: BaseException) -> bool:
    """Whether the simulator itself raised it, as for tensors on different devices."""
    lines = _lines(error)
    return bool(lines) and lines[-1][0].startswith(PACKAGE)
