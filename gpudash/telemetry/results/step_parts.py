"""Where the time of a run's steps went, as measured: shares of its stages, a sentence about them, and what would help.

Uses the stages that a run reports anyway: for our workloads their own, for a watched program those summed by its agent
(`gpudash.agent.stepping.step_clock`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpudash.units import format_percent

FIRST_BATCH = "first batch"
"""Stage of waiting for the first batch of a pass over a `DataLoader` whose workers start for it."""

PARTS = ("input", "copies", "forward", "backward", "optimizer", "other")

_PART_OF = {
    "input": "input",
    FIRST_BATCH: "input",
    "batch": "copies",
    "batch, inputs": "copies",
    "batch, targets": "copies",
    "batch back": "copies",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "read loss": "other",
    "read output": "other",
    "other": "other",
}
"""Stage → part of a step; without stages inside others, and those that occur once before the first step."""

MENTIONED = 0.1
"""Share of waiting for input from which it is mentioned even if it is not the largest part."""

SHOWN = 0.005
"""Smallest share that is shown."""

NOTABLE = 0.3
"""Share of the waiting for input due to first batches from which that is mentioned."""

MOST_WORKERS = 1024

ON_CORES = ("cpu", "sim")
"""Kinds of device that compute on the CPU, so that the work is done when a call returns."""

Bound = Literal["input", "copies", "compute", "optimizer", "other"]
"""The largest part of a step; "compute" is the forward and backward pass together."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Settings of a `DataLoader`. `cores` are available to the program; ``None`` means unknown."""

    num_workers: int
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    cores: int | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Loader | None:
        """Read from JSON; ``None`` if it lacks the workers."""
        workers = _count(found.get("num_workers"))
        if workers is None:
            return None
        pinned, persistent = _truth(found.get("pin_memory")), _truth(found.get("persistent_workers"))
        return cls(workers, pinned, persistent, _count(found.get("cores")) or None)

    def text(self) -> str:
        """Its settings in Python syntax."""
        settings = [f"num_workers={self.num_workers}"]
        if self.num_workers and self.persistent_workers is not None:
            settings.append(f"persistent_workers={self.persistent_workers}")
        if self.pin_memory is not None:
            settings.append(f"pin_memory={self.pin_memory}")
        return ", ".join(settings)


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a run's steps.

    Attributes:
        seconds: mean time of a step.
        shares: part → its share of that, in the order of `PARTS`; without parts that were not measured.
        bound: the largest part.
        host: whether the times are the host's, for a program whose GPU works asynchronously.
        sentence: what the step spends its time on.
        help: how to shorten it, in sentences; their gains are calculated, not measured.
    """

    seconds: float
    shares: Mapping[str, float]
    bound: Bound
    host: bool
    sentence: str
    help: tuple[str, ...] = ()

    def line(self) -> str:
        """The parts on one line: "input 58 % · forward 18 % · backward 17 % · optimizer 7 %"."""
        return shares_line(self.shares)

    def text(self) -> str:
        """The sentence, and how to shorten the step."""
        return " ".join((self.sentence, *self.help))

    def to_json(self) -> dict[str, Any]:
        return {
            "step_seconds": self.seconds,
            "shares": dict(self.shares),
            "bound": self.bound,
            "clock": "host" if self.host else "device",
            "sentence": self.sentence,
            "help": list(self.help),
        }


def step_parts(
    seconds: Mapping[str, float], steps: int, kind: str, loader: Loader | None = None, *, watched: bool = False
) -> StepParts | None:
    """The parts of a step by its stages; ``None`` without a forward pass and another part.

    Args:
        seconds: stage → total seconds.
        steps: number of steps.
        kind: kind of the computing device: "cpu", "cuda".
        loader: settings of the loader, if known.
        watched: whether the times are of a program's calls; for our workloads they are the device's.
    """
    host = watched and kind not in ON_CORES
    sums: dict[str, float] = {}
    for stage, taken in seconds.items():
        part = _PART_OF.get(stage)
        if part is not None and math.isfinite(taken) and taken >= 0:
            sums[part] = sums.get(part, 0.0) + taken
    whole = sum(sums.values())
    if "forward" not in sums or len(sums) < 2 or whole <= 0 or steps < 1:
        return None
    shares = {part: sums[part] / whole for part in PARTS if part in sums}
    computing = shares["forward"] + shares.get("backward", 0.0)
    sizes: dict[Bound, float] = {
        "input": shares.get("input", 0.0),
        "copies": shares.get("copies", 0.0),
        "compute": computing,
        "optimizer": shares.get("optimizer", 0.0),
        "other": shares.get("other", 0.0),
    }
    bound = max(sizes, key=lambda part: sizes[part])
    of_first = 0.0
    if sums.get("input"):
        of_first = seconds.get(FIRST_BATCH, 0.0) / sums["input"]
    found = []
    if sizes["input"] >= MENTIONED and loader is not None:
        found.append(_help(sizes["input"], of_first, loader, kind))
    sentence = _sentence(bound, sizes, has_backward="backward" in shares, host=host)
    return StepParts(whole / steps, shares, bound, host, sentence, tuple(found))


def shares_line(shares: Mapping[str, float]) -> str:
    """Shares of a step on one line, as in `StepParts.line`."""
    return " · ".join(f"{part} {format_percent(share)}" for part, share in shares.items() if share >= SHOWN)


def _sentence(bound: Bound, sizes: Mapping[Bound, float], *, has_backward: bool, host: bool) -> str:
    share = format_percent(sizes[bound])
    whole = "the step"
    if host:
        whole = "the host's time in a step"
    passes = "The forward pass takes"
    if has_backward:
        passes = "Forward and backward pass take"
    between = "reading the loss, evaluating, saving"
    if host:
        between = "reading the loss, where it waits for the GPU, evaluating, saving"
    sentences: dict[Bound, str] = {
        "input": f"{share} of {whole} waits for the DataLoader",
        "copies": f"Copies between host and device take {share} of {whole}",
        "compute": f"{passes} {share} of {whole}",
        "optimizer": f"The optimizer takes {share} of {whole}",
        "other": f"{share} of {whole} is none of its parts: {between}",
    }
    said = sentences[bound]
    if bound != "input" and sizes["input"] >= MENTIONED:
        said += f"; {format_percent(sizes['input'])} waits for the DataLoader"
    return f"{said}."


def _help(share: float, of_first: float, loader: Loader, kind: str) -> str:
    """How to shorten the wait for input.

    If a batch takes t to load, n workers provide one every t/n. Without workers the wait is t; with n workers that
    cannot keep up, t is n times the step. Loading is hidden if t/n is no more than the rest of the step.

    Args:
        share: share of the step spent waiting.
        of_first: share of that for first batches.
        loader: settings of the loader.
        kind: kind of device.
    """
    said = f"Its DataLoader has {loader.text()}"
    pin = ""
    if kind == "cuda" and loader.pin_memory is False:
        pin = " With pin_memory=True and .to(device, non_blocking=True) copies go on beside the computation."
    if loader.num_workers and of_first > NOTABLE and loader.persistent_workers is False:
        return (
            f"{said}: {format_percent(of_first)} of the wait is for the first batch of each pass, for which the "
            f"workers start anew; persistent_workers=True keeps them.{pin}"
        )
    rest = max(1 - share, 1 / MOST_WORKERS)
    load = share if loader.num_workers == 0 else float(loader.num_workers)
    wanted = max(1, math.ceil(load / rest - 1e-9))
    workers = min(wanted, loader.cores or wanted)
    if workers <= loader.num_workers:
        return (
            f"{said}, as many as there are cores for: less work for each item would help, such as smaller files, "
            f"what is decoded once and kept, or augmentation on the device.{pin}"
        )
    gain = 1 - max(rest, load / workers)
    if loader.num_workers:
        cause = "which do not keep up"
    else:
        cause = "so that the program itself loads every batch"
    noun = "worker" if workers == 1 else "workers"
    cores = ""
    if kind in ON_CORES:
        cores = " of the computation"
    return (
        f"{said}, {cause}: {workers} {noun} would load beside the step, which then takes up to {format_percent(gain)} "
        f"less time where as many cores are free{cores}.{pin}"
    )


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WORKERS:
        return value
    return None


def _truth(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return None
