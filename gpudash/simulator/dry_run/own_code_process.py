"""The process that follows a user's code, in the user's own Python: ``python .../own_code_process.py``.

That Python needs only torch; this file is read before anything is known about it. It reads one JSON object per line
from its standard input and answers each with one on its standard output:

* first, without a request: ``{"ready": true, "torch": "2.13.0"}``, or ``{"ready": false, "problem": sentence}`` and it
ends;
* for ``{"callable", "steps", "architecture"}``: ``{"trace", "assumptions"}``, the trace in the form of
  `Trace.to_json`, or ``{"error": {"kind", "message", "remedy"}}``; with ``{"as_cuda": {"product", "total_bytes"}}``
  the code calls the device cuda and sees a GPU with that name and memory;
* for ``{"model", "architecture"}``, a model by its config as in `gpudash.specs.model.ModelSpec.options`: the same,
  with ``model``, what is known about it.

It ends when its standard input closes, even during a request.
"""

# mypy: ignore-errors
# even an old Python must get as far as its error message

import gc
import json
import logging
import os
import queue
import sys
import threading

OLDEST = (3, 9)
OLDEST_TORCH = (2, 9)


def main():
    """Answer until the standard input ends; returns only if nothing can be followed here."""
    # Duplicated first: from here on descriptor 1 belongs to the code, and answers use one it does not know.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of any code goes to the standard error
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # code that reads input gets an end of file, not the next request
    gc.disable()  # loaded modules stay: repeated garbage collections would take a sixth of the time
    problem = _prepare()
    if problem is not None:
        _report(answers, {"ready": False, "problem": problem})
        return 1
    import torch

    from gpudash.system.log import VARIABLE, start_log

    if VARIABLE in os.environ:
        start_log(os.environ[VARIABLE])
    torch.set_num_threads(1)
    try:
        from gpudash.simulator.dry_run.dry_run import DryRun

        dry = DryRun()
    except Exception as error:  # a newer torch may fail in any way
        logging.getLogger("gpudash").exception("no dry run can be made")
        _report(answers, {"ready": False, "problem": "No prediction can be made: {}.".format(str(error).rstrip("."))})
        return 1
    _report(answers, {"ready": True, "torch": torch.__version__})
    gc.freeze()
    gc.enable()
    lines = queue.Queue()
    threading.Thread(target=_read, args=(requests, lines), name="gpudash-requests", daemon=True).start()
    while True:
        _report(answers, _answer(json.loads(lines.get()), dry))


def _prepare():
    """Make gpudash and torch importable; returns why that fails, or ``None``."""
    if sys.version_info < OLDEST:
        found, least = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST))
        return f"{sys.executable} is Python {found}; {least} or newer is needed."
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    here = os.path.dirname(os.path.abspath(__file__))
    # Python puts the script's folder first: its files would hide modules with their names.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    folder = os.path.dirname(os.path.dirname(here))
    # from this installation, whatever that Python has, and without the libraries installed beside it
    spec = spec_from_file_location("gpudash", folder + "/__init__.py", submodule_search_locations=[folder])
    package = sys.modules["gpudash"] = module_from_spec(spec)
    spec.loader.exec_module(package)
    if find_spec("torch") is None:
        return f"{sys.executable} has no torch."
    try:
        import torch
    except Exception as error:
        return f"torch cannot be imported by {sys.executable} ({type(error).__name__}: {error})."
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < OLDEST_TORCH:
        least = ".".join(map(str, OLDEST_TORCH))
        return "{} has torch {}; {} or newer is needed.".format(sys.executable, torch.__version__, least)
    return None


def _read(requests, lines):
    for line in requests:
        if line.strip():
            lines.put(line)
    # The standard input has ended: the requesting process is gone, even if an answer is pending.
    os._exit(0)


def _answer(query, dry):
    from gpudash.memory.predicting.architecture import Architecture
    from gpudash.simulator.dry_run.answering import follow_named
    from gpudash.simulator.dry_run.dry_run import ReportedCard
    from gpudash.simulator.refusal import CannotPredictError

    known = query["architecture"]
    architecture = Architecture(tuple(known["capability"]), known["multiprocessors"])
    try:
        if "model" in query:
            from gpudash.simulator.without_compiler import leave_compiler_out, load_masks_class

            # Importing transformers would import both, which takes as long as the rest of it.
            leave_compiler_out()
            load_masks_class()
            from gpudash.simulator.models.steps import follow_model

            found, facts = follow_model(query["model"], dry, architecture)
            return {"trace": found.trace.to_json(), "assumptions": found.assumptions, "model": facts}
        card = None
        if "as_cuda" in query:
            card = ReportedCard(**query["as_cuda"])
        steps = query["steps"]
        found = follow_named(query["callable"], dry, steps=steps, architecture=architecture, as_cuda=card)
    except CannotPredictError as error:
        return {"error": {"kind": error.kind, "message": str(error), "remedy": error.remedy}}
    return {"trace": found.trace.to_json(), "assumptions": found.assumptions}


def _report(answers, answer):
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
