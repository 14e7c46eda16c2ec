"""Which line of the followed code an error comes from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch

PACKAGE = str(Path(__file__).parents[1])
TORCH = str(Path(torch.__file__).parent)
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def place(error: BaseException) -> str:
    """``train.py:12``, of the innermost line that is the user's own, or else a library's; "" where there is none.

    The file is written as seen from the working directory.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return _shown(error.filename, error.lineno or 0)
    frames = [frame for frame in _frames(error) if not frame.filename.startswith((PACKAGE, TORCH, "<"))]
    own = [frame for frame in frames if not frame.filename.startswith(INSTALLED)]
    for frame in (own or frames)[-1:]:
        return _shown(frame.filename, frame.lineno or 0)
    return ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines the error went through, outermost first; further in, those of the error it was made from."""
    inner = [] if error.__cause__ is None else _frames(error.__cause__)
    return [*traceback.extract_tb(error.__traceback__), *inner]


def _shown(file: str, line: int) -> str:
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"
