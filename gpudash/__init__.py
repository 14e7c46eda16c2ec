"""gpudash: what a GPU's memory is doing, what a run will need, and why it ran out.

    import gpudash

    gpudash.estimate("train.py:build", card="rtx4090")   # what a run takes, before it is run
    gpudash.fits(build, cards=["l4", "rtx4090"])         # on which cards it fits
    gpudash.simulate("rtx4090", as_cuda=True)            # a GPU for this process
    with gpudash.measure() as found: ...                 # the peak of a block, by category and line
    gpudash.explain()                                    # why memory ran out
    gpudash.watch_this_process()                         # lets the window attach
    gpudash.read_recording(path)                         # a recording as an Arrow table
    gpudash.log_to(writer)                               # this process's memory to TensorBoard, W&B, MLflow
    gpudash.live_figure(globals())                       # a live figure in notebooks without magics

In a notebook, ``%load_ext gpudash``. Imports are lazy: nothing loads torch, numpy or Qt before it needs them.
"""

import importlib
import logging
from typing import Any

__version__ = "0.1.0"

_ROOM = "gpudash.session.api."

_MODULES = {
    "estimate": "estimating",
    "fits": "estimating",
    "explain": "memory",
    "log_to": "tracking",
    "measure": "memory",
    "live_figure": "notebook",
    "load_ipython_extension": "notebook",
    "unload_ipython_extension": "notebook",
    "read_recording": "recordings",
    "simulate": "simulating",
    "watch_this_process": "simulating",
}
"""Public function → the module that defines it."""

__all__ = [
    "__version__",
    "estimate",
    "explain",
    "fits",
    "live_figure",
    "log_to",
    "measure",
    "read_recording",
    "simulate",
    "watch_this_process",
]

# the application configures logging; without that a library prints nothing
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """A public function; its module is imported on first access (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'gpudash' has no attribute {name!r}")
    found = getattr(importlib.import_module(_ROOM + module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
