"""What dry runs of the configurations come to."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.fit import peaks, run_on
from gpudash.simulator.dry_run.dry_run import DryRun
from tests.allocator_matrix.configurations import ALLOCATORS, CAPABILITIES, Configuration, named
from tests.allocator_matrix.program import STEPS, build


def trace_of(one: Configuration, dry: DryRun, *, cudnn_converts: bool = False) -> Trace:
    """What a configuration asks of the allocator.

    Args:
        cudnn_converts: whether cuDNN takes a workspace, which the stand-in's does not.
    """

    def run(tracker: Any) -> None:
        torch.manual_seed(0)
        step = build(one, torch.device("sim", 0))
        for number in range(1, STEPS + 1):
            tracker.step = number
            step()
        tracker.finish()

    return dry.record(run, architecture=Architecture(*CAPABILITIES[one.capability], cudnn_converts=cudnn_converts))


def predict(one: Configuration, dry: DryRun, *, cudnn_converts: bool = False) -> dict[str, Any]:
    """The peaks of a configuration, in bytes."""
    found = peaks(trace_of(one, dry, cudnn_converts=cudnn_converts), AllocatorSettings.parse(ALLOCATORS[one.allocator]))
    return {"name": one.name, "allocated": found.allocated, "reserved": found.reserved}


def in_room(one: Configuration, room: int, dry: DryRun) -> dict[str, Any]:
    """How a configuration ends where the allocator can have ``room`` bytes, and the most that it reserves."""
    outcome = run_on(trace_of(one, dry), room, AllocatorSettings.parse(ALLOCATORS[one.allocator]))
    return {"name": one.name, "room": room, "fits": outcome.fits, "retries": outcome.retries, "reserved": outcome.taken}


def main(names: list[str]) -> None:
    """Tell what each is predicted to come to, a line of JSON each; of ``NAME@BYTES`` how it ends with so much room.

    ``--cudnn`` before them: with cuDNN's workspaces, as a real card has them.
    """
    torch.set_num_threads(1)
    dry, converts = DryRun(), names[:1] == ["--cudnn"]
    for name in names[converts:]:
        chosen, _at, room = name.partition("@")
        told = in_room(named(chosen), int(room), dry) if room else predict(named(chosen), dry, cudnn_converts=converts)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
