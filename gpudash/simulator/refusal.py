"""Why there is no prediction. Also used without torch, such as for a server's memory by its model's config."""

from __future__ import annotations

SEE_PRINTED = "See what it printed for the reason."
"""What to do about a program that failed before it could be predicted, if its output is shown."""


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
