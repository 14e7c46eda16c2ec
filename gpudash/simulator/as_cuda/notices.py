"""Notices to the program, once each: a call does nothing, differs or is refused on a simulated GPU."""

from __future__ import annotations

import re
from collections.abc import Callable

emitted: list[str] = []
"""The notices so far, in order."""

listeners: list[Callable[[str], None]] = []
"""Called with each notice, at the call it is about."""


def emit(sentence: str) -> None:
    """Report a notice, once."""
    if sentence not in emitted:
        emitted.append(sentence)
        for listener in listeners:
            listener(sentence)


def refusal(what: str) -> str:
    """A sentence on why something is not available."""
    return f"{what} needs a real GPU: this one is simulated, and its numbers are computed by the CPU."


_NO_CUDA = re.compile(
    r"not compiled with CUDA|[Nn]o CUDA GPUs are available|[Ff]ound no NVIDIA driver|no CUDA-capable device|"
    r"on a CUDA device but torch\.cuda\.is_available|CUDA (?:is not|not) available|[Nn]o supported gpu backend|"
    r"device .?cuda.? is not available|requires? (?:a )?(?:CUDA|GPU)",
)
"""What torch and libraries built on it report without CUDA."""


def misses_cuda(message: str) -> bool:
    """Whether an error reports that there is no CUDA."""
    return _NO_CUDA.search(message) is not None
