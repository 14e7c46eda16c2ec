"""Python imports this at its start: ranks fail in their training, or take their time, as the environment says.

``RANK_FAULT`` is "RANK:STEP:FAULT,FAULT,...": the first fault at the first start, the next when all were started again.
``RANK_PACE`` is the seconds that every rank sleeps in each of its steps: its computing then hardly depends on what else
the machine does. ``RANK_COMPILER`` leaves torch's compiler in its place, which FSDP2 needs.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
import types
from pathlib import Path

TRAINING = "gpudash.workloads.programs.parallel.rank_training"


def grow() -> None:
    import torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.ones(1 << 28)


def raise_here() -> None:
    raise LookupError("the training set has a hole")


def stand_in_own_code() -> None:
    while True:
        time.sleep(0.05)


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda: os._exit(7),
    "raise": raise_here,
    "stand": stand_in_own_code,
    "grow": grow,
}


class NoCompiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torch's compiler, whose import is half of a rank's beginning; these ranks compile nothing."""

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name == "torch._dynamo" else None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: object) -> None:
        module.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        module.graph_break = lambda: None
        module.disable = lambda function=None, *_args, **_more: function


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != TRAINING:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        assert found is not None and found.loader is not None
        execute = found.loader.exec_module

        def exec_module(module: object) -> None:
            execute(module)
            fail_in(module.RankTraining)

        found.loader.exec_module = exec_module
        return found


def fail_in(training: type) -> None:
    step_of = training._step
    step_wanted, fault = (int(WORDS[1]), FAULTS[FAULT]) if FAULT else (0, None)

    def step(self: object, index: int, number: int) -> None:
        if number == step_wanted:
            fault()
        time.sleep(PACE_S)
        step_of(self, index, number)

    training._step = step


WORDS = os.environ.get("RANK_FAULT", "::").split(":")
START = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
FAULT = [*WORDS[2].split(","), *[""] * START][START] if os.environ.get("RANK") == WORDS[0] else ""
PACE_S = float(os.environ.get("RANK_PACE", "0"))
if "RANK" in os.environ and "RANK_COMPILER" not in os.environ:
    sys.meta_path.insert(0, NoCompiler())
if "RANK" in os.environ and (FAULT or PACE_S):
    sys.meta_path.insert(0, Finder())
