"""Python imports this at its start: a rank that the environment names fails in its training as the environment says.

``RANK_FAULT`` is "RANK:STEP:FAULT", with "once" behind it for the first start only.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
from pathlib import Path

TRAINING = "gpudash.workloads.parallel.rank_training"


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
    step_wanted, fault = int(WORDS[1]), FAULTS[WORDS[2]]

    def step(self: object, index: int, number: int) -> None:
        if number == step_wanted:
            fault()
        step_of(self, index, number)

    training._step = step


WORDS = os.environ.get("RANK_FAULT", "").split(":")
if os.environ.get("RANK") == WORDS[0] and (
    WORDS[-1] != "once" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
):
    sys.meta_path.insert(0, Finder())
