"""Lines of stacks, and whose code they are: torch's, a library's, gpudash's own, or that of the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PROGRAMS = "workloads/programs"
"""The folder of gpudash whose code is what a run amounts to; all other code of gpudash runs it or looks on."""

_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_TORCH_PACKAGE = re.compile(r"(torch|torchvision|torchaudio|triton)[\\/]")

_GENERATED = re.compile(r"[\\/]torchinductor_[^\\/]*[\\/]|[\\/]([a-z2-7]{2})[\\/]c\1[a-z2-7]{49}\.py$")
"""Files that torch.compile wrote (torch/_inductor/codecache.py, `get_path`): in a folder of the user's, or, where
TORCHINDUCTOR_CACHE_DIR names another, under 52 characters of base32 in a folder of the second and third of them."""

_SLASH = r"[\\/]"
_ROOMS = sorted(entry.name for entry in Path(__file__).parents[1].iterdir() if entry.is_dir())

_LIBRARY = re.compile(
    r"^torch[\\/]|[\\/]torch[\\/](_|amp|autograd|cuda|distributed|functional|fx|jit|library|nn|optim|random|utils)"
    r"|[\\/]lib(64)?[\\/]python3[.\d]*[\\/]|[\\/]python3\d*[\\/]lib[\\/]"  # the standard library
    rf"|[\\/]gpudash[\\/](?!{PROGRAMS.replace('/', _SLASH)}{_SLASH})({'|'.join(_ROOMS)}){_SLASH}",
    re.IGNORECASE,
)


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    name: str


LONGEST_KEPT = 1024
"""Characters of the longest name of a file whose answer is kept: names come from programs and from files of anybody."""

MOST_KEPT = 4096
"""Names of files whose answers are kept: with `LONGEST_KEPT` a few MiB at most."""


def is_library(frame: Frame) -> bool:
    """Whether a frame lies in torch, the standard library, gpudash's machinery or in code that torch generated, and not
    in the code that is run.
    """
    file = frame.file
    if len(file) <= LONGEST_KEPT:
        return _is_library_file(file)
    return _is_library_file.__wrapped__(file)


@lru_cache(maxsize=MOST_KEPT)
def _is_library_file(file: str) -> bool:
    if not file.endswith(".py") or _GENERATED.search(file) is not None:
        return True
    installed = _INSTALLED.split(file)
    if len(installed) > 1:
        inside = installed[-1]
        return _TORCH_PACKAGE.match(inside) is not None or _LIBRARY.search(f"/{inside}") is not None
    return _LIBRARY.search(file) is not None


def is_installed(frame: Frame) -> bool:
    """Whether a frame lies in an installed package, such as a library that the program uses."""
    return _INSTALLED.search(frame.file) is not None


def is_own(frame: Frame) -> bool:
    """Whether a frame lies in the code that is run, and neither in a library it uses nor in what runs it."""
    return not is_library(frame) and not is_installed(frame)


def site_of(stack: Sequence[Frame]) -> Frame | None:
    """The innermost line of the program's own code; where there is none, of a library it uses, and else of all."""
    program = [frame for frame in stack if not is_library(frame)]
    own = next((frame for frame in program if not is_installed(frame)), None)
    return own or next(iter(program or stack), None)
