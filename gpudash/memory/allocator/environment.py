"""The environment variables of torch's CUDA allocator: which one is in use, and what it says with a setting added."""

from __future__ import annotations

import os
import re
import shlex

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where torch reads its allocator's settings, the first that is set."""

EXPANDABLE = "expandable_segments:True"
"""The setting with which segments can grow."""

_BETWEEN_SETTINGS = re.compile(r",(?![^\[]*\])")


def variable() -> str:
    """The variable that torch reads here; the one that every version knows where none is set."""
    return next((name for name in VARIABLES if os.environ.get(name)), VARIABLES[-1])


def allocator_text() -> str:
    """torch's settings of its CUDA allocator in this environment; "" when there are none."""
    return os.environ.get(variable(), "")


def assignment(setting: str) -> str:
    """``setting``, such as "expandable_segments:True", beside those of this environment, as a shell takes it.

    Another value of the same setting is replaced.
    """
    key = _key(setting)
    kept = [part.strip() for part in _BETWEEN_SETTINGS.split(allocator_text()) if part.strip() and _key(part) != key]
    return f"{variable()}={shlex.quote(','.join([*kept, setting]))}"


def _key(setting: str) -> str:
    return setting.partition(":")[0].strip()
