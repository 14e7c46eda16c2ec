"""Changes with which a run would have fitted, or needs less: the source of every remedy shown.

Each kind is a function. For a run that failed here, `replay_remedies` replays its requests, and `with_dry_run` adds
the results of dry runs of the whole run. For a snapshot, `setting_remedies`, `larger_remedies` and `release_remedy`
replay its trace; `smaller_activations` and `smaller_workspace` use only its figures. If a cap on the allocator is the
cause, the remedy is a higher one: `raised_cap`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import EXPANDABLE, assignment
from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, TEMPORARY, WORKSPACE, Trace
from gpudash.memory.explaining.explain import rejudged
from gpudash.memory.predicting.architecture import WORKSPACE_VARIABLE, workspace_bytes
from gpudash.memory.predicting.estimate import Alternative, Estimate, smallest_card
from gpudash.memory.predicting.fit import peaks, run_on
from gpudash.memory.predicting.prediction import change_text
from gpudash.telemetry.explanation import Explanation, Growth, Part, Remedy, Verdict
from gpudash.units import GIB, KIB, MIB, available, format_like, needed, summed_bytes

REPLAY = "replay"
DRY_RUN = "dry run"
"""Value of `Remedy.verified_by`."""

MOST_EVENTS = 300_000
"""Most events of a failed run that are replayed: about a second."""

SETTINGS = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8")
"""Allocator settings that are tried on a snapshot's trace."""

NOTABLE = 0.02
NOTABLE_BYTES = 20 * MIB
"""Smallest saving of a setting that is reported if nothing failed: a part of the peak of reserved memory, and
bytes."""

SHARE_OF_ACTIVATIONS = 0.3
"""Part of the live bytes that activations must be for remedies that shrink them, if nothing was missing."""

AT_LEAST = "at least "
"""Prefix of a capacity that is a lower bound, because the requests after the failed one are unknown."""

_CAPACITY = re.compile(rf"({AT_LEAST})?[\d.,]+ \w+ (of the card|for PyTorch)\b")
"""Matches a capacity among the remedies."""

ALONE = "without the other processes"

NONE_FOUND = "No change of this run's fields was found with which it would have fitted."


class Replayed(Protocol):
    """The result of a replay.

    Attributes:
        fits: whether every request succeeded.
        peak_reserved: peak of reserved bytes.
    """

    @property
    def fits(self) -> bool: ...
    @property
    def peak_reserved(self) -> int: ...


ReplayOn = Callable[[int | None, AllocatorSettings], Replayed]
"""Replays a trace with a limit on the allocator in bytes (``None``: no limit), under the given settings."""


def replay_remedies(trace: Trace, found: Explanation, settings: AllocatorSettings | None = None) -> tuple[Remedy, ...]:
    """Changes outside of the program with which ``trace``, which ends with the failed request, succeeds.

    Later requests are unknown, so it is uncertain whether the run would have fitted. For a run that leaks, or is too
    large for the device, there are no such remedies: it would only fail later.

    Args:
        trace: requests of the run.
        found: why it failed.
        settings: allocator settings of the run.
    """
    if len(trace.events) > MOST_EVENTS:
        return ()
    settings = settings or AllocatorSettings()
    settings = replace(settings, per_process_memory_fraction=1.0)  # the limit is in `found`
    if found.verdict == "fragmentation" and not settings.expandable_segments:
        expandable = replace(settings, expandable_segments=True)
        room = _room_of(found)
        if found.allowed_bytes is not None:
            room = min(room, found.allowed_bytes)
        if run_on(trace, room, expandable).fits:
            return (_setting_remedy(EXPANDABLE, peaks(trace, expandable).reserved, None),)
    return ()


def with_dry_run(found: Explanation, estimate: Estimate, *, raises_cap: bool = True, note: str = "") -> Explanation:
    """``found`` updated by a dry run of the whole run and of changed runs.

    Args:
        found: why the run failed, with remedies found by a replay.
        estimate: estimate of the run, on the device without it.
        raises_cap: whether a higher cap is a remedy; not for a run that fills memory by design.
        note: why the dry run may not have tried everything; "" if it did.
    """
    if estimate.minimum_capacity_bytes is not None:
        found = rejudged(found, estimate.minimum_capacity_bytes, estimate.peak_allocated_bytes)
    candidates = list(estimate.alternatives)
    allowed = found.allowed_bytes
    if allowed is not None:
        candidates = [way for way in candidates if _under_the_cap(way, allowed)]
        raised = None
        if raises_cap:
            raised = raised_cap(estimate, allowed, _room_of(found))
        if raised is not None:
            candidates = [raised, *candidates]
    made = dry_run_remedies(candidates)
    if allowed is not None:
        made = tuple(map(_uncapped, made))
    if found.verdict == "other process":
        alone = Remedy(ALONE, predicted_peak_bytes=estimate.peak_reserved_bytes, fits=True, verified_by=DRY_RUN)
        made = (alone, *made)
    changes = {remedy.change for remedy in made}
    # If the whole run was predicted, that replaces remedies that only get past the request.
    kept = (remedy for remedy in found.remedies if remedy.fits or note)
    made += tuple(remedy for remedy in kept if remedy.change not in changes)
    if not note and not made:
        note = NONE_FOUND
    return found.with_remedies(made, note)


def _uncapped(remedy: Remedy) -> Remedy:
    """On the CPU no cap can be set: say in words which limit to remove, since options cannot."""
    if remedy.device != "cpu":
        return remedy
    return replace(remedy, change=f"{remedy.change}, without the memory cap")


def dry_run_remedies(alternatives: Iterable[Alternative]) -> tuple[Remedy, ...]:
    """The ``alternatives`` that fit."""
    return tuple(_remedy_of(alternative) for alternative in alternatives if alternative.fits is True)


def _remedy_of(alternative: Alternative) -> Remedy:
    return Remedy(
        change=change_text(alternative),
        fields=dict(alternative.fields),
        device=alternative.device,
        allocator=alternative.allocator,
        fits=True,
        releases_cache=alternative.releases_cache,
        slowdown=alternative.slowdown,
        slowdown_from=alternative.slowdown_from,
        changes_training=alternative.changes_training,
        note=alternative.note,
        flags=flags(alternative),
        predicted_peak_bytes=alternative.peak_reserved_bytes,
        verified_by=DRY_RUN,
    )


def setting_remedies(
    replay: ReplayOn, capacity: int | None, reserved: int, *, ends_refused: bool = False
) -> Iterator[Remedy]:
    """The first of `SETTINGS` with which a trace succeeds on a capacity that was too small, or needs clearly less.

    Args:
        replay: replays the trace.
        capacity: limit in bytes; ``None`` if nothing failed.
        reserved: peak of reserved bytes without the setting.
        ends_refused: whether the trace ends with the failed request.
    """
    least_saved = max(NOTABLE_BYTES, NOTABLE * reserved)
    for text in SETTINGS:
        ran = replay(capacity, AllocatorSettings.parse(text))
        # If nothing failed, the setting must save enough to be worth reporting.
        fits: bool | None = None
        if capacity is None:
            helps = ran.peak_reserved <= reserved - least_saved
        else:
            helps = ran.fits
            if not ends_refused:
                fits = True
        if helps:
            yield _setting_remedy(text, ran.peak_reserved, fits)
            return  # one setting is enough


def larger_remedies(smallest: int, peak: int, *, ends_refused: bool = False, goes_on: bool = False) -> Iterator[Remedy]:
    """The memory with which a trace succeeds.

    Args:
        smallest: smallest limit for PyTorch with which it does, in bytes.
        peak: peak of reserved bytes at that limit.
        ends_refused: whether the trace ends with the failed request.
        goes_on: whether the rest of an earlier step was appended; a later step may need more.
    """
    if ends_refused:
        yield Remedy(f"{AT_LEAST}{needed(smallest)} for PyTorch", predicted_peak_bytes=peak, verified_by=REPLAY)
        return
    card = smallest_card(smallest)
    text = f"{needed(smallest)} for PyTorch"
    if card is not None:
        text += f", a card with {card // GIB} GiB"
    fits: bool | None = True
    if goes_on:
        text = f"{AT_LEAST}{text}"
        fits = None
    yield Remedy(text, predicted_peak_bytes=peak, fits=fits, verified_by=REPLAY)


def release_remedy(
    growing: Sequence[Growth], peak_before: int, peak: int, fits: bool | None, edit: str = "", patch: str = ""
) -> Remedy:
    """Freeing the memory that some lines keep from every step.

    Args:
        growing: one or more lines.
        peak_before, peak: peak of reserved bytes with and without that memory.
        fits: as in `Remedy`.
        edit: the change to the program; "" if its source does not show that.
        patch: the same as a diff.
    """
    others = len(growing) - 1
    keeps = "keeps"
    if others == 1:
        keeps = "and 1 other line keep"
    elif others:
        keeps = f"and {others} other lines keep"
    if not edit:
        edit = f"let go of what {growing[0].place} {keeps}"
    text = f"{edit}: {format_like(peak, peak_before)} at the peak instead of {format_like(peak_before, peak)}"
    return Remedy(text, predicted_peak_bytes=peak, fits=fits, verified_by=REPLAY, patch=patch)


def ordered(remedies: Iterable[Remedy], verdict: Verdict) -> tuple[Remedy, ...]:
    """The verified remedies first, then the untried ones.

    Verified ones begin with changes of the program or its environment that work on the same card, those with which the
    whole run fits first; then larger cards, a lower bound last. What only puts off the failure follows what ends it.
    If memory was only fragmented, what keeps the program's results precedes what changes them.

    Args:
        remedies: the remedies.
        verdict: why memory ran out.
    """
    is_fragmented = verdict == "fragmentation"

    def rank(remedy: Remedy) -> tuple[bool, ...]:
        is_change = bool(remedy.patch or remedy.command or remedy.flags or remedy.allocator)
        if is_fragmented and remedy.fits:
            # An edit by hand, too, if the whole run fits with it.
            is_change = is_change or not is_capacity(remedy)
        changes_results = is_fragmented and remedy.changes_training
        return (
            not remedy.verified_by,
            bool(remedy.puts_off),
            not is_change,
            not remedy.fits,
            changes_results,
            is_bound(remedy),
        )

    return tuple(sorted(remedies, key=rank))


def is_bound(remedy: Remedy) -> bool:
    """Whether a remedy is only a lower bound for the capacity."""
    return remedy.change.startswith(AT_LEAST)


def is_capacity(remedy: Remedy) -> bool:
    """Whether a remedy is a larger card."""
    return _CAPACITY.match(remedy.change) is not None


def smaller_activations(
    found: Explanation, *, checkpoints: bool, trains: bool = True, halves: bool = True
) -> Iterator[Remedy]:
    """Untried changes of the program that make activations smaller.

    A change that saves less than was missing is omitted; if nothing was missing, activations must be a large part of
    the live memory.

    Args:
        found: where memory is.
        checkpoints: whether the program already uses activation checkpointing.
        trains: whether it computes gradients; without them, nothing is stored for the backward pass.
        halves: whether its batch can be halved.
    """
    live = sum(found.by_category.values())
    activations = found.by_category.get(ACTIVATIONS, 0)
    missing = found.missing_bytes
    if not missing and activations < SHARE_OF_ACTIVATIONS * live:
        return
    of_batch = activations + found.by_category.get(INPUTS, 0) + found.by_category.get(TEMPORARY, 0)
    if halves and of_batch // 2 >= missing:
        saved = available(of_batch // 2)
        alike = ""
        if trains:
            alike = ", two of them for each optimizer step"
        yield Remedy(f"half the batch{alike}: up to {saved} less at this moment")
    if trains and not checkpoints and activations >= missing:
        saved = available(activations)
        yield Remedy(f"activation checkpointing (torch.utils.checkpoint): up to {saved} less at this moment")
    if activations // 2 >= missing:
        saved = available(activations // 2)
        yield Remedy(
            f"bf16 autocast, if the activations are float32: up to {saved} less at this moment", changes_training=True
        )


SMALL_WORKSPACE = ":16:8"
"""The smallest workspace in NVIDIA's cuBLAS documentation: 8 times 16 KiB for each thread."""


def smaller_workspace(
    found: Explanation, shrunk: Callable[[float], Replayed] | None = None, *, is_workspace: bool
) -> Iterator[Remedy]:
    """A smaller cuBLAS workspace, if that saves as much as was missing.

    Args:
        found: where memory is.
        shrunk: replays the trace with workspaces scaled by a factor; ``None`` if that was not tried.
        is_workspace: whether the failed request was for a workspace.
    """
    small = workspace_bytes(SMALL_WORKSPACE)
    held = found.by_category.get(WORKSPACE, 0)
    taken = held
    of_device = held
    if is_workspace:
        taken += found.requested_bytes or 0
        # A request served by a new segment needs the whole segment from the device.
        of_device += found.segment_bytes or 0
    if taken <= small or of_device - small < found.missing_bytes:
        return
    ran = None
    if shrunk is not None:
        ran = shrunk(small / workspace_bytes(None))
    peak = None
    verified_by = ""
    if ran is not None and ran.fits:
        peak = ran.peak_reserved
        verified_by = REPLAY
    yield replace(workspace_remedy(taken), predicted_peak_bytes=peak, verified_by=verified_by)


def workspace_remedy(taken: int) -> Remedy:
    """A smaller cuBLAS workspace instead of the given bytes; untried."""
    small = workspace_bytes(SMALL_WORKSPACE)
    return Remedy(
        f"a workspace of {small // KIB} KiB for cuBLAS, whose products may be slower: up to "
        f"{available(taken - small)} less at this moment",
        flags=f"{WORKSPACE_VARIABLE}={SMALL_WORKSPACE}",
    )


def without_others(
    others: Sequence[Part], verified_by: str, peak: int | None = None, *, patch: str = ""
) -> Iterator[Remedy]:
    """Ending other processes, or freeing their memory.

    Args:
        others: processes with memory on the device, the largest first.
        verified_by, peak: as in `Remedy`.
        patch: a diff with which the program waits for a process that it started.
    """
    started = [part for part in others if part.command]
    if started:
        first = max(started, key=lambda part: part.bytes)
        text = f"let {first.command} (pid {first.pid}), which this program started, end before it goes on"
        text += f": {available(first.bytes)} less"
        yield Remedy(text, predicted_peak_bytes=peak, verified_by=verified_by, patch=patch)
        return
    text = ALONE
    names = ", ".join(f"{part.name or 'another process'} (pid {part.pid})" for part in others if part.pid is not None)
    if names:
        text += f": {names}"
    text += f": {available(summed_bytes(others))} less"
    yield Remedy(
        text,
        predicted_peak_bytes=peak,
        verified_by=verified_by,
    )


def raised_cap(found: Estimate, allowed: int, room: int | None) -> Alternative | None:
    """The cap with which a run succeeds; ``None`` if the cap is not the limit, or the device is too small as well.

    A run that may reserve as much as it would with room to spare succeeds, so no further replay is needed.

    Args:
        found: prediction under the present cap.
        allowed: the present cap, bytes.
        room: bytes available to the allocator without it; ``None`` if unknown.
    """
    peak = _spacious(found)
    if peak is None or room is None or allowed >= peak + found.margin_bytes:
        return None
    cap = -(-(peak + found.margin_bytes) // MIB) * MIB
    # If even the whole device is too small, no cap helps.
    if cap > room:
        return None
    return Alternative(
        f"a memory cap of {needed(cap)}",
        memory_cap_bytes=cap,
        peak_reserved_bytes=peak,
        fits=True,
        needed_bytes=peak + found.overhead_bytes,
        free_bytes=cap + found.overhead_bytes,
    )


def with_raised_cap(found: Estimate, allowed: int | None, room: int | None) -> Estimate:
    """``found`` with a higher cap instead of a larger card, which does not help if the cap is the limit.

    Args:
        found, allowed, room: as in `raised_cap`; ``allowed`` is ``None`` without a cap.
    """
    peak = _spacious(found)
    if found.fits is True or allowed is None or peak is None or allowed >= peak + found.margin_bytes:
        return found
    raised = raised_cap(found, allowed, room)
    candidates = [way for way in found.alternatives if way.card_bytes is None]
    if raised is not None:
        candidates.insert(0, raised)
    return replace(found, alternatives=tuple(candidates))


def flags(alternative: Alternative) -> str:
    """The options of ``gpudash run`` for a change; for an allocator setting, an environment variable before it."""
    if alternative.allocator:
        return assignment(alternative.allocator)
    if alternative.device is None:
        arguments = []
    else:
        arguments = ["--device", alternative.device]
    for name, value in alternative.fields.items():
        arguments += _flag(name.replace("_", "-"), value)
    return " ".join([*arguments, *_flag("memory-cap", alternative.memory_cap_bytes)])


IN_BYTES = frozenset({"cap", "memory-cap", "size", "step"})
"""Options that are sizes of memory: other large numbers are tokens, samples or steps."""


def _flag(name: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if value is None:
        return []
    if name in IN_BYTES and value >= MIB:
        for unit, word in ((GIB, "GiB"), (MIB, "MiB")):
            if value % unit == 0:
                return [f"--{name}", f"{value // unit}{word}"]
    return [f"--{name}", str(value)]


def _setting_remedy(text: str, peak: int, fits: bool | None) -> Remedy:
    if text == EXPANDABLE:
        label = "expandable segments"
    else:
        label = text
    return Remedy(
        label, allocator=text, flags=assignment(text), predicted_peak_bytes=peak, fits=fits, verified_by=REPLAY
    )


def _room_of(found: Explanation) -> int:
    """The allocator's maximum on the device, without caps."""
    return found.capacity_bytes - found.part_bytes("process", "context", "unattributed")


def _under_the_cap(way: Alternative, allowed: int) -> bool:
    """Whether a change works under a limit of ``allowed`` reserved bytes on each GPU."""
    elsewhere = way.device not in (None, "cpu") or way.card_bytes is not None or way.ranks is not None
    return not elsewhere or (way.peak_reserved_bytes or 0) <= allowed


def _spacious(found: Estimate) -> int | None:
    """Peak of reserved bytes with room to spare."""
    if found.peak_reserved_bytes is None:
        return None
    return found.peak_reserved_bytes + found.released_bytes
