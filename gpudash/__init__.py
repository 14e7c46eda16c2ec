"""gpudash: what a GPU's memory is doing, what a run will need, and why it ran out."""

__version__ = "0.1.0"
