"""A snapshot in figures: the JSON document of ``gpudash snapshot``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.memory.snapshot.explaining import card_limits, chosen_moment, remedies
from gpudash.memory.snapshot.history.history import History, SiteChange, difference_text, differences
from gpudash.memory.snapshot.history.model import ALLOC, NONE, DeviceSnapshot, Snapshot, SnapshotError, Stack, is_python
from gpudash.memory.snapshot.replay.placements import ReplayOutcome, replay
from gpudash.memory.snapshot.replay.rest_of_step import what_if_of
from gpudash.memory.snapshot.replay.trace_replay import ReplayRun
from gpudash.memory.snapshot.sidecar import NOTHING, Sidecar
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.units import format_bytes

TOP = 10
"""Number of stacks in the document."""


class DeviceStudy:
    """A device of a snapshot, analysed once for all outputs.

    Attributes:
        device, history, what_if: the device, its history, and its what-if answers.
        found: why memory ran out, or what used it.
        outcome: result for the given capacity or settings; ``None`` if there are none, or nothing can be replayed.
        outcome_text: the same in a sentence.
        ways: changes with which the given capacity would be enough, if it is not; see `alternatives_title`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        device: DeviceSnapshot,
        capacity: int | None = None,
        settings: str | None = None,
        source: SourceLine = no_source,
        known: Sidecar = NOTHING,
    ) -> None:
        self.device = device
        self.history: History = known.history(snapshot, device)
        self.what_if = what_if_of(device, lambda: self.history)
        self.found: Explanation = known.explained(self.history, source=source, what_if=self.what_if)
        self.outcome: ReplayRun | None = None
        self.outcome_text = ""
        if self.history.is_recorded and (capacity is not None or settings):
            if settings:
                chosen = AllocatorSettings.parse(settings)
            else:
                chosen = device.settings
            self.outcome = self.what_if.run(capacity, chosen)
            self.outcome_text = self.what_if.describe(self.outcome, capacity, settings)
        self.ways: tuple[Remedy, ...] = ()
        if self.outcome is not None and not self.outcome.fits:
            recorded = replace(self.found, requested_bytes=None)  # edits of the program are about the recorded state
            self.ways = remedies(self.history, self.what_if, recorded, capacity).remedies


def studied(
    snapshot: Snapshot,
    capacity: int | None = None,
    settings: str | None = None,
    device: int | None = None,
    source: SourceLine = no_source,
    known: Sidecar = NOTHING,
) -> list[DeviceStudy]:
    """The devices of a snapshot, or the given one; those that ran out of memory come first.

    Args:
        snapshot: the snapshot.
        capacity: bytes available to PyTorch, for what-if.
        settings: allocator settings in PYTORCH_ALLOC_CONF's syntax, for what-if.
        device: index in the file; all devices by default.
        source: reads lines of the program.
        known: facts stored next to the file.

    Raises:
        ValueError: one sentence, if there is no such device, or torch would refuse the settings.
    """
    chosen = [one for one in snapshot.devices if device is None or one.index == device]
    if not chosen:
        there = ", ".join(str(one.index) for one in snapshot.devices)
        raise ValueError(f"The snapshot has no device {device}: it has {there}.")
    studies = [DeviceStudy(snapshot, one, capacity, settings, source, known) for one in chosen]
    return sorted(studies, key=lambda study: study.found.requested_bytes is None)


def compared(studies: Sequence[DeviceStudy]) -> str:
    """The reserved memory of a snapshot's devices, in a sentence; "" for one device, or if none had any."""
    had = [(study, int(study.history.reserved.max())) for study in studies]
    if len(had) < 2 or not any(size for _, size in had):
        return ""
    recorded = all(study.history.is_recorded for study, size in had if size)
    sizes = ", ".join(f"{format_bytes(size)} on device {study.device.index}" for study, size in had)
    out = [str(study.device.index) for study, _ in had if study.found.requested_bytes is not None]
    ran_out = ""
    if out:
        ran_out = f"Device {' and '.join(out)} ran out of memory. "
    return f"{ran_out}PyTorch reserved {f'at most {sizes}' if recorded else sizes}."


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """The changes between two snapshots, each at its out-of-memory, or else at its peak.

    Attributes:
        device: index of the device in the first.
        first, second: bytes allocated in each.
        changes: changes by call site, the largest first.
        sentence: the same in words.
    """

    device: int
    first: int
    second: int
    changes: tuple[SiteChange, ...]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``gpudash snapshot A B --json``."""
        changes = [
            {
                "file": change.file,
                "line": change.line,
                "function": change.function,
                "category": change.category,
                "first_bytes": change.first,
                "second_bytes": change.second,
                "grown_bytes": change.grown,
            }
            for change in self.changes
        ]
        facts = {"device": self.device, "first_allocated_bytes": self.first, "second_allocated_bytes": self.second}
        return {**facts, "sentence": self.sentence, "changes": changes}


def compared_with(first: DeviceStudy, second: DeviceStudy) -> SnapshotChange:
    """The changes between devices of two snapshots."""
    begin, end = chosen_moment(first.history), chosen_moment(second.history)
    return SnapshotChange(
        first.device.index,
        int(first.history.allocated[begin + 1]),
        int(second.history.allocated[end + 1]),
        tuple(differences(first.history, begin, second.history, end)),
        difference_text(first.history, begin, second.history, end),
    )


def figures(snapshot: Snapshot, studies: Sequence[DeviceStudy]) -> dict[str, Any]:
    """The figures of all studied devices, and the results of replaying their traces."""
    warnings = list(snapshot.warnings)
    replays = []
    for study in studies:
        if not study.history.is_recorded:
            continue
        replay, problem = _replay(study)
        replays.append(replay)
        # The reader has already reported inconsistencies of the file.
        if problem and not snapshot.warnings:
            warnings.append(problem)
    return {
        "kind": snapshot.kind,
        "events_in_file": snapshot.events_in_file,
        "compared": compared(studies),
        "devices": list(map(_device, studies)),
        "replay": replays,
        "allocator_settings": dict(snapshot.settings),
        "warnings": warnings,
    }


def _device(study: DeviceStudy) -> dict[str, Any]:
    history, device = study.history, study.device
    # An inconsistent trace gives no reliable level.
    recorded = history.is_recorded and not history.disagreeing
    allocated = sum(segment.allocated_size for segment in device.segments)
    names = history.columns.actions
    actions = Counter({names[code]: int(n) for code, n in enumerate(np.bincount(history.columns.action)) if n})
    at = chosen_moment(history)
    timed = history.count and history.time_us[0] != NONE
    limits = None
    if recorded:
        limits = card_limits(history)
    return {
        "device": device.index,
        "events": history.count,
        "actions": dict(actions.most_common()),
        "peak_allocated_bytes": int(history.allocated.max()) if recorded else None,
        "peak_reserved_bytes": int(history.reserved.max()) if recorded else None,
        "peak_event": history.peak if recorded else None,
        "unrecorded_slack_bytes": history.unrecorded_slack,
        "final_allocated_bytes": allocated if device.stated_allocated is None else device.stated_allocated,
        "final_reserved_bytes": device.reserved_bytes,
        "segments": len(device.segments),
        "duration_s": float(history.time_us[-1] - history.time_us[0]) / 1e6 if timed else None,
        "steps": len(history.steps),
        "retries": None if limits is None else limits.retries,
        "capacity_at_least_bytes": None if limits is None else limits.least,
        "capacity_below_bytes": None if limits is None else limits.below,
        "oom": _oom(history, device),
        "top": [
            {"stack": _frames(device, stack), "bytes": size, "count": count}
            for stack, size, count in history.by_stack(history.alive(at))[:TOP]
        ],
        "by_category": history.by_category(history.alive(at)),
        "explanation": study.found.to_json(),
    }


def _oom(history: History, device: DeviceSnapshot) -> dict[str, Any] | None:
    """The last failed request."""
    if not len(history.ooms):
        return None
    event = int(history.ooms[-1])
    free = int(history.columns.device_free[event])
    return {
        "event": event,
        "time_s": history.time_s(event),
        "requested_bytes": int(history.columns.size[event]),
        "device_free_bytes": None if free == NONE else free,
        "allocated_bytes": int(history.allocated[event + 1]),
        "reserved_bytes": int(history.reserved[event + 1]),
        "stack": _frames(device, int(history.columns.stack[event])),
    }


def _frames(device: DeviceSnapshot, stack: int) -> list[dict[str, Any]]:
    """Python frames, innermost first; all frames if there are none of Python."""
    if stack == NONE:
        return []
    found: Stack = device.stacks[stack]
    kept = [*filter(is_python, found)] or found
    return [{"file": file, "line": line, "name": name} for file, line, name in kept]


def _replay(study: DeviceStudy) -> tuple[dict[str, Any], str]:
    """The result of the replay, and in a sentence why it could not be followed."""
    problem = ""
    checked: ReplayOutcome | None = None
    try:
        checked = replay(study.device)
    except SnapshotError as error:
        problem = str(error)
    ran = study.outcome
    facts: dict[str, Any] = {
        "device": study.device.index,
        "peak_allocated_bytes": None if checked is None else checked.peak_allocated,
        "peak_reserved_bytes": None if checked is None else checked.peak_reserved,
        "allocations": int((study.history.columns.action == ALLOC).sum()),
        "allocations_at_real_address": None if checked is None else checked.allocations_at_real_address,
        "retries": None if checked is None else checked.retries,
        "fits": None,
        "failed_at_event": None,
        "words": study.outcome_text,
        "remedies": list(map(asdict, study.ways)),
    }
    if ran is not None:
        facts |= {
            "peak_allocated_bytes": ran.peak_allocated,
            "peak_reserved_bytes": ran.peak_reserved,
            "retries": ran.retries,
            "fits": ran.fits,
            "failed_at_event": ran.failed_at,
        }
    return facts, problem
