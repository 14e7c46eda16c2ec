"""The sample recordings that come with gpudash, and their paths. They are read, never written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpudash.system.files import resource

FOLDER = "samples"


@dataclass(frozen=True, slots=True)
class SampleRecording:
    """A sample to open.

    Attributes:
        name: the name of its file or folder, without a suffix.
        title: a few words for a menu.
        description: one sentence: what it shows, and the device it was recorded on.
        path: a recording, or the folder of an out-of-memory report.
    """

    name: str
    title: str
    description: str
    path: Path


_ON_CPU = "Recorded on a CPU."
_SIMULATED = "Recorded on a SIMULATED GPU: its memory is that of a GPU, its speed is not."

_KNOWN = (
    (
        "healthy-training.gpudash",
        "A healthy training",
        f"A small transformer learns: the loss falls, memory stays level. {_ON_CPU}",
    ),
    (
        "out-of-memory.gpudash",
        "A program that runs out of memory",
        f"Validation without no_grad keeps 5 MiB of every step, until the GPU is full. {_SIMULATED}",
    ),
    (
        "out-of-memory",
        "The snapshot of that out-of-memory",
        f"What filled the memory, who allocated it, and what would have fitted. {_SIMULATED}",
    ),
    (
        "transfer-sweep.gpudash",
        "A sweep of copies",
        f"Copies of 64 KiB to 64 MiB, each measured many times. {_ON_CPU}",
    ),
    (
        "comparison.gpudash",
        "A comparison of two devices",
        f"The CPU against itself, in alternation: too close to call, as it should be. {_ON_CPU}",
    ),
    (
        "two-runs-fp32.gpudash",
        "Two runs to compare: fp32",
        f"One of two trainings that differ in their precision alone. {_SIMULATED}",
    ),
    (
        "two-runs-bf16.gpudash",
        "Two runs to compare: bf16",
        f"The other: the same training under bfloat16 autocast. {_SIMULATED}",
    ),
)


def samples() -> list[SampleRecording]:
    """The samples of this installation, in menu order; empty if it has none."""
    try:
        folder = resource(FOLDER)
    except FileNotFoundError:
        return []
    paths = ((folder / name, title, description) for name, title, description in _KNOWN)
    return [SampleRecording(path.stem, title, description, path) for path, title, description in paths if path.exists()]


def sample(name: str) -> SampleRecording | None:
    """The first sample called ``name``; ``None`` if this installation lacks it."""
    return next((found for found in samples() if found.name == name), None)
