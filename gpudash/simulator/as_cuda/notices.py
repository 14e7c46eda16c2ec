"""Notices to a program: once each, that a call does nothing or differs on a simulated GPU; and why one is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

emitted: list[str] = []
"""Sentences, in order."""

listeners: list[Callable[[str], None]] = []
"""Called with each sentence at the call that it is about."""


def emit(sentence: str) -> None:
    """Let it be known, once."""
    if sentence not in emitted:
        emitted.append(sentence)
        for listener in listeners:
            listener(sentence)


def refusal(what: str) -> str:
    """Why something cannot be had, in a sentence."""
    return f"{what} needs a real GPU: this one is simulated, and its numbers are computed by the CPU."


_NO_CUDA = re.compile(
    r"not compiled with CUDA|[Nn]o CUDA GPUs are available|[Ff]ound no NVIDIA driver|no CUDA-capable device|"
    r"on a CUDA device but torch\.cuda\.is_available|CUDA (?:is not|not) available|[Nn]o supported gpu backend|"
    r"device .?cuda.? is not available|requires? (?:a )?(?:CUDA|GPU)",
)
"""What torch and what is built on it say where there is no CUDA."""


def misses_cuda(message: str) -> bool:
    """Whether an error says that there is no CUDA."""
    return _NO_CUDA.search(message) is not None
