"""What would have let a run fit, or takes less: every remedy shown is made here.

Each source is a function. Of a run that failed here: `replay_remedies` replays what it had asked for, and
`with_dry_run` adds what dry runs of the whole run say. Of a snapshot: `setting_remedies`, `larger_remedies` and
`release_remedy` rest on replays of its trace, `smaller_activations` and
`smaller_workspace` on its figures alone. Under a cap on the allocator
the way out is a higher one: `raised_cap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import EXPANDABLE, assignment
from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, TEMPORARY, WORKSPACE, Trace
from gpudash.memory.explaining.explain import rejudged
from gpudash.memory.explaining.wording import available, needed
from gpudash.memory.predicting.architecture import WORKSPACE_VARIABLE, workspace_bytes
from gpudash.memory.predicting.estimate import Alternative, Estimate, smallest_card
from gpudash.memory.predicting.fit import peaks, run_on
from gpudash.memory.predicting.prediction import change_text
from gpudash.telemetry.explanation import Explanation, Growth, Part, Remedy
from gpudash.units import GIB, KIB, MIB, format_like

REPLAY = "replay"
DRY_RUN = "dry run"
"""What a remedy is verified by."""

MOST_EVENTS = 300_000
"""Events of a failed run that are replayed at most: about a second."""

SETTINGS = (EXPANDABLE, "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8")
"""Settings of the allocator that are tried on a snapshot's trace."""

NOTABLE = 0.02
NOTABLE_BYTES = 20 * MIB
"""Part of what was reserved at most, and bytes, that a setting has to save to be told where nothing had failed."""

SHARE_OF_ACTIVATIONS = 0.3
"""Part of the live bytes that activations must be for changes to be named that make them smaller, where nothing was
missing."""

AT_LEAST = "at least "
"""Begins a capacity that is a bound, because nobody has seen all that comes after the refused request."""

ALONE = "without the other processes"

NONE_FOUND = "No change of this run's fields was found with which it would have fitted."


class Replayed(Protocol):
    """How a replay ended.

    Attributes:
        fits: whether every request was served.
        peak_reserved: bytes.
    """

    @property
    def fits(self) -> bool: ...
    @property
    def peak_reserved(self) -> int: ...


ReplayOn = Callable[[int | None, AllocatorSettings], Replayed]
"""Replays a trace where the allocator can have so many bytes (``None``: without end), under these settings."""


def replay_remedies(trace: Trace, found: Explanation, settings: AllocatorSettings | None = None) -> tuple[Remedy, ...]:
    """Changes outside of the program with which ``trace``, which ends with the refused request, passes.

    What comes after that request is not in the trace, so that it is not known whether the run would have fitted. A run
    that leaks, or that is too large for what the device has, would only fail later: nothing is said of those.

    Args:
        trace: what the run had asked for.
        found: why it failed.
        settings: of the allocator it ran with.
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
    """``found`` in the light of a dry run of the whole run and of changes of it.

    Args:
        found: why the run failed, with what a replay has found.
        estimate: of the run, on the device as it was without it.
        raises_cap: whether a higher cap is a way out; not of a run that fills the memory by design.
        note: why the dry run may not have tried everything; "" when it has.
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
    # what a replay got past the request is known better where the whole run was predicted
    kept = (remedy for remedy in found.remedies if remedy.fits or note)
    made += tuple(remedy for remedy in kept if remedy.change not in changes)
    if not note and not made:
        note = NONE_FOUND
    return found.with_remedies(made, note)


def _uncapped(remedy: Remedy) -> Remedy:
    """On the CPU no cap can be set: the words say what has to be left out, which flags cannot."""
    if remedy.device != "cpu":
        return remedy
    return replace(remedy, change=f"{remedy.change}, without the memory cap")


def dry_run_remedies(alternatives: Iterable[Alternative]) -> tuple[Remedy, ...]:
    """Those of ``alternatives`` that fit."""
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
    """The first of `SETTINGS` with which a trace passes a capacity that was too little, or takes clearly less.

    Args:
        replay: of the trace.
        capacity: bytes; ``None`` where nothing had failed.
        reserved: bytes, at most, without the setting.
        ends_refused: whether the trace ends with the refused request.
    """
    least_saved = max(NOTABLE_BYTES, NOTABLE * reserved)
    for text in SETTINGS:
        ran = replay(capacity, AllocatorSettings.parse(text))
        # where nothing had failed there is nothing to pass: the setting must save enough to be worth telling
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
    """The memory with which a trace passes.

    Args:
        smallest: bytes for PyTorch with which it does.
        peak: bytes reserved there.
        ends_refused: whether the trace ends with the refused request.
        goes_on: whether it goes on with the rest of an earlier step: a later one may take more.
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
    """Keeping nothing of what some lines keep of every step.

    Args:
        growing: the lines, at least one.
        peak_before, peak: reserved with and without what they keep, bytes.
        fits: as of `Remedy`.
        edit: how the program is to be changed for it; "" where its source does not show that.
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


def ordered(remedies: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """The tried ones first, then the untried.

    Of the former come first the changes of the program or its environment, which the same card is enough for, and of
    these the ones with which the whole run fits; then the sizes of other cards, a bound last.
    """

    def rank(remedy: Remedy) -> tuple[bool, bool, bool, bool]:
        is_change = bool(remedy.patch or remedy.command or remedy.flags or remedy.allocator)
        is_bound = remedy.change.startswith(AT_LEAST)
        return not remedy.verified_by, not is_change, not remedy.fits, is_bound

    return tuple(sorted(remedies, key=rank))


def smaller_activations(
    found: Explanation, *, checkpoints: bool, trains: bool = True, halves: bool = True
) -> Iterator[Remedy]:
    """Changes of the program that make activations smaller; none was tried.

    What saves less than was missing is no way out, and is not named; where nothing was missing, activations have to be
    much of what is live.

    Args:
        found: where memory is.
        checkpoints: whether the program already checkpoints some of its activations.
        trains: whether it differentiates anything: what is not differentiated is not kept to be made again.
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
"""The smallest workspace that NVIDIA's documentation of cuBLAS names: 8 times 16 KiB for each thread."""


def smaller_workspace(
    found: Explanation, shrunk: Callable[[float], Replayed] | None = None, *, is_workspace: bool
) -> Iterator[Remedy]:
    """A smaller workspace for cuBLAS, where what that saves is as much as was missing.

    Args:
        found: where memory is.
        shrunk: replays the trace with workspaces so many times as large; ``None`` where it was not tried.
        is_workspace: whether it was a workspace that was refused.
    """
    small = workspace_bytes(SMALL_WORKSPACE)
    held = found.by_category.get(WORKSPACE, 0)
    taken = held
    of_device = held
    if is_workspace:
        taken += found.requested_bytes or 0
        # a request that is served from a new segment asks the device for all of that
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
    """A smaller workspace for cuBLAS in place of so many bytes; untried."""
    small = workspace_bytes(SMALL_WORKSPACE)
    return Remedy(
        f"a workspace of {small // KIB} KiB for cuBLAS, whose products may be slower: up to "
        f"{available(taken - small)} less at this moment",
        flags=f"{WORKSPACE_VARIABLE}={SMALL_WORKSPACE}",
    )


def without_others(
    others: Sequence[Part], verified_by: str, peak: int | None = None, *, patch: str = ""
) -> Iterator[Remedy]:
    """That other processes end, or free what they hold.

    Args:
        others: that hold memory of the device, the largest first.
        verified_by, peak: as of `Remedy`.
        patch: with which the program waits for the end of a process that it has started.
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
    text += f": {available(sum(part.bytes for part in others))} less"
    yield Remedy(
        text,
        predicted_peak_bytes=peak,
        verified_by=verified_by,
    )


def raised_cap(found: Estimate, allowed: int, room: int | None) -> Alternative | None:
    """The cap under which a run passes; ``None`` where the cap is not what is short, or the device is short too.

    A run that may reserve as much as it takes with room to spare passes, so that no further replay is needed.

    Args:
        found: what was predicted under the present cap.
        allowed: the present cap, bytes.
        room: bytes the allocator could have without it; ``None`` where that is not known.
    """
    peak = _spacious(found)
    if peak is None or room is None or allowed >= peak + found.margin_bytes:
        return None
    cap = -(-(peak + found.margin_bytes) // MIB) * MIB
    # even all of the device is too little: no cap is a way out
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
    """``found`` with a higher cap in place of a larger card, which changes nothing where the cap is what is short.

    Args:
        found, allowed, room: as of `raised_cap`; ``allowed`` is ``None`` without a cap.
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
    """What ``gpudash run`` takes for a change; a setting of the allocator is an environment variable before it."""
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
"""Flags that take a size of memory: any other large number is of tokens, samples or steps."""


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
    """What the allocator could have had of the device, caps aside."""
    return found.capacity_bytes - found.part_bytes("process", "context", "unattributed")


def _under_the_cap(way: Alternative, allowed: int) -> bool:
    """Whether a change is a way out while the process may reserve no more than ``allowed`` bytes on any GPU."""
    elsewhere = way.device not in (None, "cpu") or way.card_bytes is not None or way.ranks is not None
    return not elsewhere or (way.peak_reserved_bytes or 0) <= allowed


def _spacious(found: Estimate) -> int | None:
    """What is reserved with room to spare."""
    if found.peak_reserved_bytes is None:
        return None
    return found.peak_reserved_bytes + found.released_bytes
