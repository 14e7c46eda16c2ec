"""Why there is no prediction of a piece of code, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpudash.simulator.dry_run.dry_run import LeftTheDeviceError
from gpudash.simulator.dry_run.failing_line import library_place, place
from gpudash.simulator.dry_run.missing_numbers import DataDependentError

WRONG_ANYWHERE = (ImportError, NameError, SyntaxError)
"""Errors that do not depend on a tensor or a device."""

FIX = "Fix that first; it happens without a GPU too."
FIX_OR_WATCH = "Fix that first; if a real run does not raise it, watch that instead."

WATCH = "watch a real run: gpudash watch -- python YOUR_SCRIPT"
DECIDE_EARLIER = f"Decide before the step by a number of Python's own, or {WATCH}."
LEAVE_OUT = f"Leave out the argument or setting that makes {{library}} look at numbers, or {WATCH}."


class CannotPredictError(Exception):
    """There is no prediction, for a reason that can be put into words.

    Attributes:
        kind: one word for programs.
        remedy: one sentence saying what to do.
    """

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


@contextmanager
def in_words() -> Iterator[None]:
    """Turn whatever followed code raises into a `CannotPredictError`."""
    try:
        yield
    except CannotPredictError:
        raise
    except DataDependentError as error:
        own, library = place(error), library_place(error)
        where = f" at {own}" if own else ""
        if library:
            where = f" at {library}, called from {own},"
        remedy = LEAVE_OUT.format(library=library.split("/")[0].split(".")[0]) if library else DECIDE_EARLIER
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
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        own, said = place(error), f": {first.rstrip('.')}" if first else ""
        raise CannotPredictError(
            "raised",
            f"{'The' if not own else f'At {own} the'} code raised {type(error).__name__}{said}.",
            FIX if isinstance(error, WRONG_ANYWHERE) else FIX_OR_WATCH,
        ) from error
