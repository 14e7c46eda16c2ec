"""Run by every Python that a watched program starts, in place of its own ``sitecustomize``, which follows.

Any Python may come by here, also one before 3.9: the agent is loaded where it can run, and nothing is said where not.
"""

# mypy: ignore-errors
# nothing of it can be annotated for a Python that knows no annotations

import os
import sys


def _search_without_this_folder():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path_importer_cache.pop(here, None)
    return os.path.dirname(here)


def _watch(folder):
    """Load the agent by its place: the program may have no gpudash, or another one."""
    predicts = os.environ.get("GPUDASH_PREDICT")
    wanted = predicts or os.environ.get("GPUDASH_SOCKET") or os.environ.get("GPUDASH_AGENT") == "1"
    if sys.version_info < (3, 9) and predicts:
        raise OSError("predicting needs Python 3.9 or newer")
    if sys.version_info < (3, 9) or not wanted:
        return
    package = type(sys)("_gpudash_agent")
    package.__path__ = [folder]
    sys.modules[package.__name__] = package
    if predicts:
        from _gpudash_agent.predicting import begin

        begin(os.environ)
    elif os.environ.get("GPUDASH_SOCKET"):
        from _gpudash_agent.program import begin

        begin(os.environ)
    else:
        from _gpudash_agent.attach.attach_socket import open_attach_socket

        open_attach_socket()


try:
    _watch(_search_without_this_folder())
except Exception as error:
    if os.environ.get("GPUDASH_PREDICT"):
        # the program would run as ever, with its GPU and its files
        reason = str(error)
        sys.stderr.write("gpudash: " + sys.executable + " is not run, since it cannot be predicted (" + reason + ").\n")
        os._exit(1)
    # whatever goes wrong here is no concern of the program's
    for loaded in [name for name in sys.modules if name.split(".")[0] == "_gpudash_agent"]:
        del sys.modules[loaded]

# what follows is as if this file were not there: the program's own sitecustomize, or the error that there is none
sys.modules.pop(__name__, None)
import sitecustomize  # noqa: E402, F401
