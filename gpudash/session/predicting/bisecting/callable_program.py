"""A user's function as a program of its own: ``python .../callable_program.py FILE.py:FUNCTION STEPS``.

Runs in the user's Python, which need not have gpudash. The function is called with the first GPU and returns its step,
as for ``gpudash estimate --callable``.
"""

# mypy: ignore-errors
# An old Python should get far enough to refuse.

import importlib
import importlib.util
import sys
from pathlib import Path


def main():
    """Call the function and run its steps."""
    name, steps = sys.argv[1], int(sys.argv[2])
    here = Path(__file__).absolute().parent
    # Python puts this script's folder first, so the modules next to it would shadow the user's of the same name.
    sys.path[:] = [entry for entry in sys.path if Path(entry).absolute() != here]
    sys.argv[:] = [name]
    module, _, function = name.rpartition(":")
    import torch

    step = getattr(_module(module), function)(torch.device("cuda", 0))
    if not callable(step):
        sys.exit(f"{name} returned {type(step).__name__} in place of its step.")
    for _number in range(steps):
        step()


def _module(name):
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).absolute()
    # Last: a file that is in no commit lies next to the modules of the working tree, not the commit's.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location("_gpudash_bisected", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
