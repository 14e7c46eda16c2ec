"""Which line of the followed code asks, or raises."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

PACKAGE = str(Path(__file__).parents[2])
TORCH = str(Path(torch.__file__).parent)
DECIDING = tuple(str(Path(TORCH) / folder) for folder in ("optim", "nn", "distributions"))
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = ("site-packages", "dist-packages")
"""Folders whose contents somebody else wrote, wherever they lie."""

Line = tuple[str, int]
"""File and number, from 1."""


def place(error: BaseException) -> str:
    """``train.py:12``, of the innermost line that is the user's own, or else a library's; "" where there is none.

    The file is written as seen from the working directory.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return _shown((error.filename, error.lineno or 0))
    lines = _followed(_lines(error))
    return _shown((_own(lines) or lines)[-1]) if lines else ""


def library_place(error: BaseException) -> str:
    """``transformers/masking_utils.py:344``, when the innermost line is a library's and another is the user's own.

    Of torch's own files those are meant that decide for themselves, as an optimizer that searches along a line.
    """
    lines = [line for line in _lines(error) if not line[0].startswith((PACKAGE, "<"))]
    if not lines or not _own(lines) or not _is_library(lines[-1][0]):
        return ""
    innermost = lines[-1][0]
    if innermost.startswith(TORCH) and not innermost.startswith(DECIDING):
        return ""
    return _shown(lines[-1])


def place_of(frame: FrameType | None, *, within_torch: bool = False) -> str:
    """As `place`, of code that is running, and where in a library that asks; "" when it is torch that asks.

    Args:
        frame: the innermost that is running.
        within_torch: whether torch may ask.
    """
    lines = [(found.filename, found.lineno or 0) for found in traceback.extract_stack(frame)]
    outside = [line for line in lines if not line[0].startswith((PACKAGE, "<"))]
    if not outside or (outside[-1][0].startswith(TORCH) and not within_torch):
        return ""
    kept = _followed(lines)
    own = _own(kept)
    if own and _is_library(kept[-1][0]):
        return f"{_shown(own[-1])}, in {_shown(kept[-1])}"
    return _shown(kept[-1]) if kept else ""


def _lines(error: BaseException) -> list[Line]:
    """The lines the error went through, outermost first; further in, those of the error it was made from."""
    inner = [] if error.__cause__ is None else _lines(error.__cause__)
    return [*((frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)), *inner]


def _followed(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if not line[0].startswith((PACKAGE, TORCH, "<"))]


def _own(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if not _is_library(line[0])]


def _is_library(file: str) -> bool:
    return file.startswith(INSTALLED) or any(part in LIBRARIES for part in Path(file).parts)


def _shown(line: Line) -> str:
    path, here = Path(line[0]), Path.cwd()
    for folder in LIBRARIES:
        if folder in path.parts:
            return f"{Path(*path.parts[path.parts.index(folder) + 1 :])}:{line[1]}"
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line[1]}"
