"""Processor time of answers about models by their config, with all processes: of 70 billion parameters beside the
import of the libraries that build it, and of 8 billion on thirty cards beside on one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpudash.devices.known_gpus import KNOWN_GPUS
from tests.benchmarks.compiled import compiled_python

CARDS = 30

MODELS = Path("resources/models/meta-llama")
LARGE, SMALL = (str(MODELS / name / "config.json") for name in ("Llama-3.1-70B", "Llama-3.1-8B"))

IMPORTS = ("-c", "import torch, transformers.modeling_utils")

ESTIMATE = ("-m", "gpudash", "estimate", "--simulate", "h100", "--no-alternatives", "--model")

WHOLE = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what a process leaves behind is waited for here
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
sys.exit(code)
"""


def measure() -> dict[str, float]:
    """Seconds of processor time, and the two ratios.

    The libraries are imported once before, so that nothing is compiled while it is measured.
    """
    names = ",".join(card.key for card in KNOWN_GPUS[:CARDS])
    _processor_s(*ESTIMATE, SMALL, "--task", "infer")
    imports = _processor_s(*IMPORTS)
    large = _processor_s(*ESTIMATE, LARGE, "--task", "train")
    one = _processor_s(*ESTIMATE, SMALL, "--task", "infer")
    several = _processor_s(*ESTIMATE, SMALL, "--task", "infer", "--cards", names)
    return {
        "imports_s": imports,
        "seventy_billion_s": large,
        "seventy_over_imports": large / imports,
        "one_card_s": one,
        "thirty_over_one": several / one,
    }


def _processor_s(*command: str) -> float:
    return float(compiled_python("-c", WHOLE, sys.executable, *command, check=True).stdout)
