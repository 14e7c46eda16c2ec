"""Why there is no prediction. Also used without torch, such as for a server's memory by its model's config."""

from __future__ import annotations

SEE_PRINTED = "See what it printed for the reason."
"""What to do about a program that failed before it could be predicted, if its output is shown."""

FIX = "Fix that first; it happens without a GPU too."
FIX_OR_WATCH = "Fix that first; if a real run does not raise it, watch that instead."
"""What to do about code that raised an exception."""

OR_ANOTHER_PYTHON = ", or name another Python with --python."
"""How a remedy ends that asks for something to be installed."""


class CannotPredictError(Exception):
    """There is no prediction, for a reason that can be stated.

    Attributes:
        kind: one word for programs.
        remedy: one sentence on what to do.
    """

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


def without_flags(remedy: str) -> str:
    """A remedy for whoever asked by a function or a tool, which have no flags."""
    return remedy.replace(OR_ANOTHER_PYTHON, ".")
