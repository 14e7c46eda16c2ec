"""Why there is no prediction. Also used without torch, such as for a server's memory by its model's config."""

from __future__ import annotations

SEE_PRINTED = "See what it printed for the reason."
"""What to do about a program that failed before it could be predicted, if its output is shown."""

FIX = "Fix that first; it happens without a GPU too."
FIX_OR_WATCH = "Fix that first; if a real run does not raise it, watch that instead."
"""What to do about code that raised an exception."""

OR_ANOTHER_PYTHON = ", or name another Python with --python."
"""How a remedy ends that asks for something to be installed."""

MORE_TIME = "Allow it more: --time-limit {seconds:g}."
"""What to do about a program whose steps did not come in time."""

AS_CUDA = "Add --as-cuda, and the device of the prediction is what the code calls cuda."
GIVEN_OR_AS_CUDA = (
    "Build the model and the tensors on the device that is given; or add --as-cuda, and code that looks for a GPU "
    "finds it."
)
"""What to do about a function that uses CUDA, or no GPU."""

GIVEN_OR_COMMAND = (
    "Build the model and the tensors on the device that the function is given; a script that looks for a GPU is "
    'predicted by its command, as ["python", "train.py"].'
)
"""The same without a flag."""


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
    if remedy in (AS_CUDA, GIVEN_OR_AS_CUDA):
        return GIVEN_OR_COMMAND
    return remedy.replace(OR_ANOTHER_PYTHON, ".").replace("--time-limit ", "time_limit_s=")
