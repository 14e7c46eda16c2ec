"""Explaining a snapshot: the cause in words first, then what filled the memory, and who allocated that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpudash.memory.call_sites import SourceLine, no_source
from gpudash.memory.explain import explain
from gpudash.memory.explanation import NO_STACK, Evidence, Explanation
from gpudash.memory.held import HeldState
from gpudash.memory.snapshot.card_limits import capacity_words, card_limits, retry_words
from gpudash.memory.snapshot.history import History
from gpudash.memory.snapshot.leak_advice import advice
from gpudash.memory.snapshot.model import Snapshot
from gpudash.memory.snapshot.remedies import MOST_EVENTS, remedies
from gpudash.memory.snapshot.rest_of_step import what_if_of
from gpudash.memory.snapshot.what_if import WhatIf
from gpudash.memory.snapshot.wording import moment_words
from gpudash.memory.wording import mostly_from
from gpudash.units import format_bytes, format_count, format_pair

RECORD = "torch.cuda.memory._record_memory_history()"
"""What has to be called before a run for its snapshot to tell more than what is there at the end."""

SHARE_OF_IDLE = 0.1
"""Part of what is reserved that must lie idle to be told in the headline of a snapshot without a failure."""


def explain_snapshot(
    snapshot: Snapshot,
    device_index: int,
    moment: int | None = None,
    *,
    source: SourceLine = no_source,
    steps: Sequence[tuple[int, int]] = (),
) -> Explanation:
    """Why memory ran out, or where it was at its peak.

    Args:
        snapshot: as read.
        device_index: of the device, as in the file.
        moment: which state is explained: after this event. By default the last ``oom``, else the peak.
        source: reads lines of the program, for naming them.
        steps: times at which steps began, in microseconds since 1970, and their numbers, from outside.

    Raises:
        ValueError: the snapshot has no such device, or the trace no such moment.
    """
    device = next((device for device in snapshot.devices if device.index == device_index), None)
    if device is None:
        there = ", ".join(str(device.index) for device in snapshot.devices)
        raise ValueError(f"The snapshot has no device {device_index}: it has {there}.")
    history = History(device, snapshot.annotations, steps)
    return explain_history(history, moment, source=source)


NOTHING_BEFORE = "Nothing had been allocated before this request, so that no change of what came before would help."


def is_first(state: HeldState) -> bool:
    """Whether a request was refused before anything was allocated."""
    return state.request is not None and not state.reserved


def of_nothing(found: Explanation) -> Explanation:
    """``found`` of a request before which there is nothing to know, so that no history is missing either."""
    return replace(found, evidence=Evidence(began_s=0.0)).with_remedies((), NOTHING_BEFORE)


def explain_history(
    history: History,
    moment: int | None = None,
    *,
    source: SourceLine = no_source,
    what_if: WhatIf | None = None,
) -> Explanation:
    """The same of a history that is there already; without ``what_if`` one is made for the remedies.

    Raises:
        ValueError: the trace has no such moment.
    """
    at = chosen_moment(history) if moment is None else moment
    if not -1 <= at < max(history.count, 0):
        raise ValueError(f"The trace has events 0 to {history.count - 1}, and no event {at}.")
    state = history.state(at)
    found = explain(state, source)
    if state.request is None:
        words = peak_words(history, at, found)
        found = replace(found, verdict="no failure", headline=words, request_words=_card_words(history))
        if not state.reserved:
            found = replace(found, parts=())
    elif history.is_recorded and not history.disagreeing:
        retries = retry_words(card_limits(history))
        found = replace(found, request_words=f"{found.request_words} {retries}".strip())
    if not history.is_recorded:
        return of_nothing(found) if is_first(state) else found.with_remedies((), _how_to_record(history))
    ways = remedies(
        history,
        what_if or what_if_of(history.device, lambda: history),
        found,
        state.capacity if state.request else None,
    )
    return found.with_remedies(ways.remedies, ways.note or _note(history, at, found, source))


def chosen_moment(history: History) -> int:
    """The moment that tells most: the last request that was refused, else the peak."""
    return int(history.ooms[-1]) if len(history.ooms) else history.peak


def peak_words(history: History, moment: int, found: Explanation) -> str:
    """Where memory is at a moment without a failure: "Peak at 12.3 s: 6.54 GiB allocated, mostly activations"."""
    allocated, reserved = int(history.allocated[moment + 1]), int(history.reserved[moment + 1])
    if not reserved:
        return "Nothing was allocated."
    if not history.is_recorded:
        head = "At the time of the snapshot"
    elif moment == history.peak:
        head = f"Peak at {moment_words(history, moment)}" if moment >= 0 else "Peak before the first event"
    else:
        head = f"At {moment_words(history, moment)}"
    mostly = max(found.by_category, key=lambda name: found.by_category[name], default="")
    words = f"{head}: {format_bytes(allocated)} allocated"
    if mostly and history.is_recorded:
        words += f", mostly {_category_words(history, moment, mostly, found)}"
    idle = reserved - allocated
    if idle >= SHARE_OF_IDLE * reserved:
        words += f"; {format_pair(idle, reserved)} reserved lies idle inside PyTorch"
    return f"{words}."


def _category_words(history: History, moment: int, mostly: str, found: Explanation) -> str:
    alive, lives = history.alive(moment), history.lives
    before = int(lives.bytes[alive[lives.born[alive] < 0]].sum())
    unknown = found.evidence.without_stack_bytes
    if min(before, unknown) > found.evidence.live_bytes / 2:
        return "from before the recording began"
    if mostly == NO_STACK:
        return "without a recorded stack"
    return f"{mostly}{mostly_from(mostly, found.owners)}"


def _card_words(history: History) -> str:
    """What is known of the card where nothing was refused for good."""
    if history.disagreeing:
        return "How much the card has is not in the file."  # of a trace that contradicts itself nobody knows the level
    most = int(history.reserved.max())
    if not history.is_recorded:
        if not most:
            return "How much the card has is not in the file."
        return f"PyTorch holds {format_bytes(most)}. What it held before and how much the card has are not in the file."
    limits = card_limits(history)
    told = (f"PyTorch reserved {format_bytes(most)} at most in this recording.", retry_words(limits))
    return " ".join([*filter(None, told), capacity_words(limits)])


def _how_to_record(history: History) -> str:
    if not int(history.reserved[-1]):
        return (
            f"The snapshot holds nothing: call {RECORD} before the run, and write the snapshot while it holds memory."
        )
    return (
        "The snapshot was taken without a history, so that it does not tell what happened before, nor what else would "
        f"fit: call {RECORD} before the run, and write it again."
    )


def _note(history: History, moment: int, found: Explanation, source: SourceLine) -> str:
    if history.disagreeing:
        return "The trace and the segments contradict each other, so that nothing is replayed."
    if history.count > MOST_EVENTS:
        return (
            f"The trace has {format_count(history.count)} events, too many to try changes on the way: ask what-if "
            "questions."
        )
    return advice(history, moment, found.growing, source)
