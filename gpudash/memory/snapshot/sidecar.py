"""Facts about a snapshot stored next to its file: when steps began, and what else was on the card."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpudash.memory.explaining.call_sites import SourceLine, no_source
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import MemoryState, RefusedRequest
from gpudash.memory.explaining.patches import line_changes, with_patches
from gpudash.memory.explaining.remedies import REPLAY, ordered, without_others
from gpudash.memory.explaining.whole_need import need_on_card, with_reruns_of
from gpudash.memory.snapshot.command_line import UNKNOWN_COMMAND, ProgramCommand
from gpudash.memory.snapshot.explaining import (
    ENDS_HERE,
    NOTHING_BEFORE,
    chosen_moment,
    explain_history,
    is_first,
    of_nothing,
)
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import DeviceSnapshot, Snapshot
from gpudash.memory.snapshot.replay.rest_of_step import what_if_of
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.memory.snapshot.source_edits import SourceFile, ended_before
from gpudash.telemetry.explanation import Explanation, Remedy

WATCH_LARGER = "On a larger simulated GPU, such as --simulate 24GiB, the same command measures it."
"""How to measure the need of a program that ran out in its first step on a simulated GPU."""


CAUSED = ("real capacity", "impossible request", "memory cap", "fragmentation", "leak")
"""Verdicts for which a cause in the program is more informative."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Facts that a snapshot's file does not contain.

    Attributes:
        steps: start times of steps, in microseconds since 1970, and their numbers.
        cards: memory of each device when it was full, seen from outside of the program, by device index.
        explanations: explanation of each device's memory when it ran out, by device index.
        warnings: sentences about data that could not be used.
        command: command that started the program, and its folder.
        shapes: shapes of the program's tensors at a few steps and when memory ran out.
    """

    steps: tuple[tuple[int, int], ...] = ()
    cards: Mapping[int, MemoryState] = field(default_factory=dict)
    explanations: Mapping[int, Explanation] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    command: ProgramCommand = UNKNOWN_COMMAND
    shapes: Sequence[SeenTensor] = ()

    def warned(self, snapshot: Snapshot) -> Snapshot:
        """``snapshot`` with these warnings added."""
        if self.warnings:
            return replace(snapshot, warnings=(*snapshot.warnings, *self.warnings))
        return snapshot

    def history(self, snapshot: Snapshot, device: DeviceSnapshot) -> History:
        """The history of a device of the snapshot, with its steps."""
        return History(device, snapshot.annotations, self.steps)

    def explained(
        self,
        history: History,
        *,
        source: SourceLine = no_source,
        what_if: WhatIf | None = None,
    ) -> Explanation:
        """Why memory ran out, or what used it at its peak.

        Args:
            history: history of a device, with these steps.
            source: reads lines of the program.
            what_if: what-if answers for the device, if they exist already.
        """
        card = self.cards.get(history.device.index)
        allowed = None
        if card is not None:
            allowed = card.allowed
        found = explain_history(
            history, source=source, what_if=what_if, allowed=allowed, command=self.command, shapes=self.shapes
        )
        if card is not None:
            found = on_card(found, history, card, source)
        if self.command.folder:
            found = with_patches(found, self.command.folder)
        earlier = self.explanations.get(history.device.index)
        if earlier is None:
            return found
        return with_reruns_of(with_kept_changes(found, earlier, self.command.folder, source), earlier)


NOTHING = Sidecar()
"""For a snapshot without such facts."""


def on_card(found: Explanation, history: History, card: MemoryState, source: SourceLine = no_source) -> Explanation:
    """``found``, which explains the main moment, with what was seen of the card."""
    state = history.state(chosen_moment(history))
    if state.request is None and card.request is not None:  # without a history, the file lacks the request
        state = replace(state, request=card.request, device_free=card.device_free)
    whole = replace(
        state,
        device=card.device,
        product=card.product,
        simulated=card.simulated,
        time_s=card.time_s,
        capacity=max(state.capacity, card.capacity),
        context_bytes=card.context_bytes,
        processes=card.processes,
        allowed=card.allowed,
    )
    explanation = explain(whole, source, found.growing or None)
    if is_first(whole):
        explanation = of_nothing(explanation)
    else:
        explanation = explanation.with_remedies(found.remedies, found.remedies_note)
    if explanation.verdict == "other process":
        alone = _without_others(explanation, history, source)
        explanation = explanation.with_remedies(ordered((*alone, *explanation.remedies)), explanation.remedies_note)
    need = found.need
    if need is not None:
        need = need_on_card(need, explanation)
    explanation = replace(with_cause(explanation, found.cause), savings=found.savings, need=need)
    if card.simulated and explanation.remedies_note in (ENDS_HERE, NOTHING_BEFORE):
        explanation = explanation.with_remedies(explanation.remedies, f"{explanation.remedies_note} {WATCH_LARGER}")
    return explanation


def with_kept_changes(found: Explanation, earlier: Explanation, folder: str, source: SourceLine) -> Explanation:
    """``found`` with the changes of the program that the earlier explanation has, if the source is not as it was then.

    Args:
        found: a new explanation of the moment.
        earlier: the stored explanation.
        folder: the program's folder; "" if unknown.
        source: reads lines of the program.
    """
    if earlier.requested_bytes != found.requested_bytes or found.patch:
        return found
    changes = (change for remedy in earlier.remedies for change in line_changes(remedy.patch) if change.removed)
    for change in changes:
        file = posixpath.join(folder or "/", change.file)
        text = source(file, change.line)
        if text.strip() == change.removed[0].strip():
            continue
        why = f"{file} cannot be read here"
        if text or source(file, 1):
            why = f"{file} has changed since"
        note = f"{why}: the change is shown as the report kept it. {earlier.remedies_note}".strip()
        return with_cause(found.with_remedies(earlier.remedies, note), found.cause or earlier.cause)
    return found


def with_cause(explanation: Explanation, cause: str) -> Explanation:
    """``explanation`` with the cause in the program as its headline, unless the verdict is more important.

    Args:
        cause: the cause in a sentence; "" for none.
    """
    if cause and explanation.verdict in CAUSED:
        return replace(explanation, cause=cause, headline=cause)
    return explanation


def _without_others(explanation: Explanation, history: History, source: SourceLine) -> tuple[Remedy, ...]:
    """Ending the other processes, if the requests so far would then succeed."""
    others = [part for part in explanation.parts if part.kind == "process"]
    together = sum(part.bytes for part in others)
    place = explanation.where
    if place.file is None or place.line is None:
        patch = ""
    else:
        patch = ended_before(SourceFile(place.file, source), place.line)
    if not history.is_recorded:
        passes = (explanation.segment_bytes or 0) <= explanation.capacity_bytes - explanation.part_bytes(
            "context", "unattributed"
        )
        return tuple(without_others(others, "" if not passes else REPLAY, patch=patch))
    ran = what_if_of(history.device, lambda: history).run(history.state(chosen_moment(history)).capacity + together)
    peak = None
    if ran.fits:
        peak = ran.peak_reserved
    return tuple(without_others(others, REPLAY if ran.fits else "", peak, patch=patch))


def card_of(explanation: Explanation) -> MemoryState:
    """The state of the card that an explanation describes."""
    requested = explanation.requested_bytes
    where = explanation.where
    request = None
    if requested is not None:
        request = RefusedRequest(
            requested, explanation.segment_bytes or requested, where.step, where.phase, where.stage, where.module
        )
    return MemoryState(
        device=explanation.device,
        product=explanation.product,
        simulated=explanation.simulated,
        time_s=explanation.time_s,
        capacity=explanation.capacity_bytes,
        device_free=explanation.part_bytes("free"),
        reserved=0,
        context_bytes=explanation.part_bytes("context") or None,
        processes=tuple(part for part in explanation.parts if part.kind == "process"),
        request=request,
        allowed=explanation.allowed_bytes,
    )
