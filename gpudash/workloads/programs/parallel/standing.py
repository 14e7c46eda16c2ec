"""Where each rank of a run stands, as far as it has told; and which of them the others wait for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudash.devices.names import shown_name
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.units import format_duration

SILENT_S = 3.0
"""Silence after which a rank's process is taken to stand still: it tells how it is ten times a second."""

COLLECTIVE = "collective"


@dataclass
class Standing:
    """One rank.

    Attributes:
        step: the newest it has begun, as far as it has told.
        steps: the newest it has ended.
        phase: what it is at: "starting", "computing", "collective", "leaving".
        since_s: session time at which it told that first.
        heard_s: session time of its newest word; ``None`` before the first.
        where: the place in the code where its main thread stands.
        ready: whether it has come as far as its first step.
        memory: its newest figures in bytes.
    """

    rank: int
    device: str
    pid: int | None = None
    host: str = ""
    step: int = 0
    steps: int = 0
    phase: str = "starting"
    since_s: float = 0.0
    heard_s: float | None = None
    where: str = ""
    ready: bool = False
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What it is called in a sentence: "Rank 1 (cuda:1, pid 4711)"."""
        process = "" if self.pid is None else f", pid {self.pid}"
        return f"Rank {self.rank} ({shown_name(self.device)}{process})"

    def stands(self, step: int, phase: str, where: str, now_s: float) -> None:
        """Take in what it has told of itself now."""
        if (step, phase) != (self.step, self.phase):
            self.step, self.phase, self.since_s = step, phase, now_s
        self.heard_s, self.where = now_s, where


@dataclass(frozen=True)
class HeldUp:
    """The rank that the others wait for, and what is known of why, in a sentence."""

    rank: int
    text: str


def held_up(standings: Sequence[Standing], now_s: float) -> HeldUp | None:
    """The rank that has not come to where the others wait; ``None`` where none of them differs.

    In this order: one that says nothing any more, one that is a step behind, one that still computes.
    """
    silent = [one for one in standings if one.heard_s is None or now_s - one.heard_s > SILENT_S]
    if silent and len(silent) < len(standings):
        one = min(silent, key=lambda standing: -1.0 if standing.heard_s is None else standing.heard_s)
        return HeldUp(one.rank, _silent_words(one, now_s))
    arrived = max((one.step for one in standings if one.phase == COLLECTIVE), default=None)
    late = [one for one in standings if arrived is not None and (one.step, one.phase == COLLECTIVE) < (arrived, True)]
    if not late:
        return None
    one = min(late, key=lambda standing: (standing.step, standing.since_s))
    place = f", at {one.where}" if one.where else ""
    waited = format_duration(max(0.0, now_s - one.since_s))
    others = "the other ranks" if len(standings) > 2 else "the other rank"
    text = f"{one.words} keeps {others} waiting at step {arrived}: for {waited} it has been {_doing(one)}{place}."
    return HeldUp(one.rank, text)


def waited_s(standings: Sequence[Standing], now_s: float) -> float:
    """How long a rank has been waiting for another by now: the longest that any has been in one collective."""
    return max((now_s - one.since_s for one in standings if one.phase == COLLECTIVE), default=0.0)


def overdue(standings: Sequence[Standing], now_s: float, patience_s: float, grace_s: float) -> bool:
    """Whether a rank has been waited for longer than the backend's own limit, or all have fallen silent for so long.

    Args:
        patience_s: the limit that the ranks were given.
        grace_s: what the backend's error may take to come.
    """
    limit = grace_s + (patience_s if all(one.ready for one in standings) else max(patience_s, TORCH_IMPORT_S))
    silent = [one.heard_s is not None and now_s - one.heard_s > limit for one in standings]
    return all(silent) or waited_s(standings, now_s) > limit


def _silent_words(one: Standing, now_s: float) -> str:
    if one.heard_s is None:
        return f"{one.words} has not begun, and the others wait for it."
    silence = format_duration(now_s - one.heard_s)
    seen = f"{_doing(one)}{f', at {one.where}' if one.where else ''}"
    if one.steps >= max(1, one.step):  # what it has told of where it stands is older than its newest step
        seen = f"after step {one.steps}"
    return (
        f"{one.words} stands still, and the others wait for it: its process has said nothing for {silence}; it was "
        f"last heard of {seen}."
    )


def _doing(one: Standing) -> str:
    step = f"step {max(one.step, one.steps, 1)}"
    return {
        "starting": f"starting, before {step}",
        COLLECTIVE: f"waiting for the others in {step}" if one.step else "connecting to the others",
        "leaving": f"leaving, after {step}",
    }.get(one.phase, f"computing {step}")
