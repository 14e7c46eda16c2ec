"""gpudash: what a GPU's memory is doing, what a run will need, and why it ran out."""

import logging
from typing import Any

__version__ = "0.1.0"

# whoever wants the log configures it; nobody else is shown anything
logging.getLogger(__name__).addHandler(logging.NullHandler())


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext gpudash`` calls in a notebook: makes ``%%gpudash_estimate`` known."""
    from gpudash.simulator.notebook import register

    register(shell)
