"""Processor time of commands that answer at once, beside `nvitop --help` and `import torch` of the same run."""

from __future__ import annotations

import resource
import statistics

from tests.benchmarks.compiled import compiled_python

ROUNDS = 3

GPUDASH = ("-m", "gpudash")
COMMANDS = {
    "nvitop": ("-m", "nvitop", "--help"),
    "torch": ("-c", "import torch"),
    "help": (*GPUDASH, "--help"),
    "devices": (*GPUDASH, "devices"),
    "doctor": (*GPUDASH, "doctor"),
    "monitor": (*GPUDASH, "monitor", "--seconds", "0.2", "--no-record"),
    "estimate": (*GPUDASH, "estimate", "training", "--simulate", "8GiB"),
}
"""The default estimate is of the default workload, on a simulated GPU."""


def measure() -> dict[str, float]:
    """Seconds of processor time of each command with all its processes, the median of some, and what is held of them.

    Each is run once before, so that nothing is compiled while it is measured.
    """
    for command in COMMANDS.values():
        _processor_s(command)
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _round in range(ROUNDS):
        for name, command in COMMANDS.items():
            taken[name].append(_processor_s(command))
    seconds = {name: statistics.median(found) for name, found in taken.items()}
    return {
        **{f"{name}_s": found for name, found in seconds.items()},
        "help_over_nvitop": seconds["help"] / seconds["nvitop"],
        "estimate_over_torch": seconds["estimate"] / seconds["torch"],
    }


def _processor_s(command: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    compiled_python(*command)  # doctor's exit code says what it found
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
