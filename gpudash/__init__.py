"""gpudash: what a GPU's memory is doing, what a run will need, and why it ran out."""

import logging

__version__ = "0.1.0"

# whoever wants the log configures it; nobody else is shown anything
logging.getLogger(__name__).addHandler(logging.NullHandler())
