"""Explains a snapshot: first the cause in words, then the contents, the call sites, and what would help.

Remedies are found by replaying the trace; `gpudash.memory.explaining.remedies` describes the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.explaining.call_sites import LEAST_KEPT, SourceLine, growing_lines, no_source
from gpudash.memory.explaining.explain import SHARE_OF_LEAK, explain
from gpudash.memory.explaining.memory_state import MemoryState
from gpudash.memory.explaining.remedies import (
    REPLAY,
    larger_remedies,
    ordered,
    release_remedy,
    setting_remedies,
    smaller_activations,
    smaller_workspace,
)
from gpudash.memory.explaining.whole_need import changes_the_run, need_on_card
from gpudash.memory.explaining.wording import mostly_from
from gpudash.memory.snapshot.causes.activations import smaller_steps
from gpudash.memory.snapshot.causes.batch_size import is_of_single_samples
from gpudash.memory.snapshot.causes.case import Case, ProgramCause
from gpudash.memory.snapshot.causes.finding import cause_of, kept_cause
from gpudash.memory.snapshot.causes.savings import savings
from gpudash.memory.snapshot.causes.unusable_room import fragmented_memory
from gpudash.memory.snapshot.command_line import UNKNOWN_COMMAND, ProgramCommand
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.history.history import History, moment_text
from gpudash.memory.snapshot.history.model import NONE, SEGMENT_ALLOC, SEGMENT_MAP, Stack
from gpudash.memory.snapshot.kept_steps import FEWEST_STEPS_KEPT, NUMBER_BYTES, Ints, Leak, sites_of
from gpudash.memory.snapshot.replay.rest_of_step import what_if_of
from gpudash.memory.snapshot.replay.trace_program import compiled, releases
from gpudash.memory.snapshot.replay.trace_replay import UNLIMITED, ReplayRun, Rerun
from gpudash.memory.snapshot.replay.what_if import WhatIf
from gpudash.telemetry.explanation import NO_STACK, Evidence, Explanation, Growth, Need, Remedy
from gpudash.units import GIB, MIB, format_bytes, format_count, format_pair, summed_bytes

RECORD = "torch.cuda.memory._record_memory_history()"
"""The call needed before a run for its snapshot to contain more than the final state."""

SHARE_OF_IDLE = 0.1
"""Part of the reserved memory that must be idle to be in the headline of a snapshot without a failure."""

SHARE_OF_WORKSPACE = 0.1
"""Part of the live bytes from which a failed request for a workspace is itself the cause; for a smaller one, the cause
is what filled the memory before."""

NOTHING_BEFORE = "Nothing had been allocated before this request, so that no change of what came before would help."

MOST_EVENTS = 400_000
"""Largest trace that is replayed for remedies: about a second each."""

FROM_AN_EARLIER_STEP = (
    "The recording ends at the refused request: the replay goes on with what an earlier step asked from there on, and "
    "a later step may need more."
)

ENDS_HERE = (
    "The recording ends at the refused request, and no earlier step reached it in the same way, so the rest of "
    "the step may need more."
)


def is_first(state: MemoryState) -> bool:
    """Whether a request failed before anything was allocated."""
    return state.request is not None and not state.reserved


def of_nothing(found: Explanation) -> Explanation:
    """``found`` for a request with nothing before it, so that no history is missing either."""
    return replace(found, evidence=Evidence(began_s=0.0)).with_remedies((), NOTHING_BEFORE)


def explain_history(
    history: History,
    moment: int | None = None,
    *,
    source: SourceLine = no_source,
    what_if: WhatIf | None = None,
    allowed: int | None = None,
    command: ProgramCommand = UNKNOWN_COMMAND,
    shapes: Sequence[SeenTensor] = (),
) -> Explanation:
    """Why memory ran out, or what used it at its peak.

    Args:
        history: history of a device.
        moment: event after which the state is explained; by default the last ``oom``, else the peak.
        source: reads lines of the program, to quote them.
        what_if: replays the trace for remedies; created by default.
        allowed: bytes that the process could reserve, if less than the device's capacity.
        command: command that started the program.
        shapes: shapes of the program's tensors at a few steps and when memory ran out.

    Raises:
        ValueError: if the trace has no such moment.
    """
    at = moment
    if at is None:
        at = chosen_moment(history)
    if not -1 <= at < max(history.count, 0):
        raise ValueError(f"The trace has events 0 to {history.count - 1}, and no event {at}.")
    state = replace(history.state(at), allowed=allowed)
    found = _with_headline(explain(state, source, _growing(history, at, state, source)), history, at, state)
    if not history.is_recorded:
        if is_first(state):
            return of_nothing(found)
        return found.with_remedies((), _how_to_record(history))
    capacity = state.capacity
    if allowed is not None:
        capacity = min(capacity, allowed)
    leak = None
    case = None
    edit = NO_EDIT
    if found.growing and _is_replayed(history):
        leak = Leak.of(history, at, found.growing, source)
        found = _with_headline(explain(state, source, leak.with_keepers(found.growing)), history, at, state)
        edit = ProgramEdit(
            leak.edit(history), leak.patch(history, source), leak.keeps_numbers(history), leak.in_variables()
        )
    if state.request is not None and at == int(history.ooms[-1]) and _is_replayed(history):
        case = Case(history, found, capacity, source, uncapped=state.capacity, command=command, shapes=shapes)
    suggested = remedies(
        history,
        what_if or what_if_of(history.device, lambda: history),
        found,
        capacity if state.request else None,  # the capacity is only known if a request failed
        edit,
        case=case,
    )
    found = replace(found, cause=suggested.cause, savings=suggested.savings, need=suggested.need)
    note = suggested.note or _why_none(history)
    if leak is None or (found.verdict == "leak" and suggested.cause):  # a specific cause has its own advice
        return found.with_remedies(suggested.remedies, note)
    return found.with_remedies(
        leak.with_rewrites(history, suggested.remedies), note or leak.advice(history, found.growing)
    )


def _with_headline(found: Explanation, history: History, moment: int, state: MemoryState) -> Explanation:
    """``found`` with what its first lines say of a state without a failure, and of the card's settings."""
    if state.request is None:
        text = peak_text(history, moment, found)
        found = replace(found, verdict="no failure", headline=text, request_words=_card_text(history))
        if not state.reserved:
            return replace(found, parts=())
    elif history.is_recorded and not history.disagreeing:
        retries = retry_text(card_limits(history))
        return replace(found, request_words=f"{found.request_words} {retries}".strip())
    return found


def _growing(history: History, moment: int, state: MemoryState, source: SourceLine) -> Sequence[Growth] | None:
    """The growing lines, with those seen to grow in so few steps that it takes the program's statement that keeps the
    memory to be certain; ``None`` if enough steps show all of them.
    """
    if state.request is None:
        return None
    certain = growing_lines(state.groups, state.step, source)
    known = {(growth.file, growth.line) for growth in certain}
    more = []
    for growth in growing_lines(state.groups, state.step, source, FEWEST_STEPS_KEPT):
        # Next to a certain leak, two steps may as well be what a step and its successor hold.
        is_likely = growth.stride > 1.0 or not certain
        if is_likely and (growth.file, growth.line) not in known:
            more.append(growth)
    if more and Leak.of(history, moment, more, source).keepers:
        return sorted((*certain, *more), key=lambda growth: -growth.bytes_per_step)
    return None


def chosen_moment(history: History) -> int:
    """The most informative moment: the last failed request, else the peak."""
    if len(history.ooms):
        return int(history.ooms[-1])
    return history.peak


def peak_text(history: History, moment: int, found: Explanation) -> str:
    """The use of memory at a moment without a failure: "Peak at 12.3 s: 6.54 GiB allocated, mostly activations"."""
    allocated = int(history.allocated[moment + 1])
    reserved = int(history.reserved[moment + 1])
    if not reserved:
        return "Nothing was allocated."
    if not history.is_recorded:
        head = "At the time of the snapshot"
    elif moment == history.peak:
        head = "Peak before the first event"
        if moment >= 0:
            head = f"Peak at {moment_text(history, moment)}"
    else:
        head = f"At {moment_text(history, moment)}"
    mostly = max(found.by_category, key=lambda name: found.by_category[name], default="")
    text = f"{head}: {format_bytes(allocated)} allocated"
    if mostly and history.is_recorded:
        text += f", mostly {_category_text(history, moment, mostly, found)}"
    idle = reserved - allocated
    if idle >= SHARE_OF_IDLE * reserved:
        text += f"; {format_pair(idle, reserved)} reserved lies idle inside PyTorch"
    return f"{text}."


@dataclass(frozen=True, slots=True)
class Found:
    """What would help, and how sure that is.

    Attributes:
        remedies: changes that help, the best first.
        note: why they may not be enough; "" if they are.
        cause: the cause in the program, in words; "" if unknown.
        savings: changes of which one alone may be too little.
        need: what a replay to the end of the step needs.
    """

    remedies: tuple[Remedy, ...]
    note: str = ""
    cause: str = ""
    savings: tuple[Remedy, ...] = ()
    need: Need | None = None


@dataclass(frozen=True, slots=True)
class ProgramEdit:
    """An edit of the program so that it keeps nothing large from every step.

    Attributes:
        text: the edit in words; "" if the source does not show it.
        patch: the same as a diff; "" if it cannot be written as one.
        keeps_numbers: whether scalars stay on the device, without their graph.
        in_variables: of each statement that keeps something, the values that variables hold, too, until the next
            iteration assigns them anew.
    """

    text: str = ""
    patch: str = ""
    keeps_numbers: bool = False
    in_variables: Sequence[Sequence[int]] = ()


NO_EDIT = ProgramEdit()


def _is_replayed(history: History) -> bool:
    return history.is_recorded and history.count <= MOST_EVENTS and not history.disagreeing


def remedies(
    history: History,
    what_if: WhatIf,
    found: Explanation,
    capacity: int | None,
    edit: ProgramEdit = NO_EDIT,
    *,
    case: Case | None = None,
) -> Found:
    """Changes with which the trace succeeds on ``capacity``; without a capacity, changes with which it needs clearly
    less.

    A trace that ends with the failed request is continued with the rest of an earlier step, if it contains one;
    otherwise a change is only said to get past the request.

    Args:
        history: history of the device.
        what_if: replays of the same history.
        found: why it failed, or what uses the memory.
        capacity: bytes available to PyTorch; ``None`` if unknown.
        edit: what the program could keep instead.
        case: input for finding the cause in the program, if a request failed.
    """
    if not _is_replayed(history):
        return Found(())
    failed = capacity is not None and not what_if.run(capacity).fits
    # A trace without a failure is replayed without a limit: the result is how much less it would need.
    limit = None
    if failed:
        limit = capacity
    kept = tuple(_release(history, found, limit, edit))
    if found.verdict == "leak" or is_leaking(found):
        return _of_leak(kept, case)
    # A card without room made PyTorch free its cache, which a replay without a limit does not.
    reserved = min(int(history.reserved.max()), what_if.run(None).peak_reserved)
    refused = what_if.ends_refused
    if not failed or capacity is None:
        return Found((*kept, *setting_remedies(what_if.run, None, reserved)))
    settings: tuple[Remedy, ...] = ()
    # For a request without known followers, a setting only helps if the cause was fragmentation.
    if not refused or found.verdict == "fragmentation":
        settings = tuple(setting_remedies(what_if.run, capacity, reserved, ends_refused=refused))
    replayed = (*settings, *_larger(what_if, capacity))
    # The note is about replays: it is not needed without them.
    note = ""
    if replayed and (refused or what_if.goes_on):
        note = ENDS_HERE if refused else FROM_AN_EARLIER_STEP
    need = _replayed_need(what_if, found, capacity)
    if case is None:
        return Found(ordered((*kept, *replayed)), note, need=need)
    cause, smaller = _in_the_program(case, settings)
    if cause is None:
        cause = ProgramCause("")
    rest = cause.remedies
    if kept and cause.is_of_activations:
        rest = _put_off(rest, found, capacity)
    others = _put_off((*replayed, *smaller), found, capacity, cause.puts_off)
    return Found(ordered((*kept, *rest, *others)), note, cause.text, savings(case), need)


def _of_leak(kept: tuple[Remedy, ...], case: Case | None) -> Found:
    """What ends the growth; with any other change the run would only fail later."""
    if case is None:
        return Found(kept)
    cause = kept_cause(case)
    if cause is None:
        return Found(kept)
    return Found(cause.remedies, cause=cause.text)


def _put_off(remedies: Sequence[Remedy], found: Explanation, capacity: int, until: str = "") -> tuple[Remedy, ...]:
    """Remedies that end no growth; those that change the run say how long they last.

    Args:
        remedies: the remedies.
        found: why memory ran out, with the lines that keep memory from every step.
        capacity: bytes available to PyTorch.
        until: how long, if another growth is the cause.
    """
    rate = round(sum(growth.bytes_per_step for growth in found.growing))
    is_known = rate > 0 and summed_bytes(found.growing) >= LEAST_KEPT
    made = []
    for remedy in remedies:
        puts_off = until
        if not until and is_known and remedy.predicted_peak_bytes is not None:
            steps = max(0, capacity - remedy.predicted_peak_bytes) // rate
            puts_off = f"lasts at least {format_count(steps)} step{'s' * (steps != 1)} more, then it is full again"
        if changes_the_run(remedy):
            remedy = replace(remedy, puts_off=remedy.puts_off or puts_off)
        made.append(remedy)
    return tuple(made)


def _in_the_program(case: Case, settings: Sequence[Remedy]) -> tuple[ProgramCause | None, tuple[Remedy, ...]]:
    """The cause in the program, and changes that shrink what fills the memory, whatever the cause."""
    found = case.found
    history = case.history
    is_workspace = history.asks_for_workspace(case.moment)
    held = case.of_category(WORKSPACE)

    def shrunk(factor: float) -> ReplayRun:
        return case.resized(held, factor, request=is_workspace)

    workspace = tuple(smaller_workspace(found, shrunk, is_workspace=is_workspace))
    is_full_of_it = is_workspace and (found.requested_bytes or 0) >= SHARE_OF_WORKSPACE * case.live_bytes
    if is_full_of_it:
        return None, workspace
    cause = cause_of(case)
    is_waste = cause is not None and (cause.is_waste or bool(cause.puts_off))
    # A setting removes the fragmentation, and the run continues; but memory that is not needed would soon fill that
    # too.
    if found.verdict == "fragmentation" and not is_waste:
        # If that is not enough, changes that make the program request less come next.
        less: tuple[Remedy, ...] = ()
        if cause is not None:
            less = cause.remedies
        if settings:
            return None, (*workspace, *less)
        fragmented = fragmented_memory(case)
        if fragmented is not None:
            return fragmented, (*workspace, *less)
    if cause is not None and not cause.is_of_activations:
        # A smaller workspace would only postpone the failure; mention it if there is nothing better.
        if cause.remedies:
            return cause, ()
        return cause, workspace
    by_hand = smaller_activations(
        found,
        checkpoints=_checkpoints(history.device.stacks),
        trains=not case.only_infers,
        halves=not is_of_single_samples(case),
    )
    # However small a step's part of the memory, it may be as much as was missing.
    smaller: tuple[Remedy, ...] = ()
    if cause is None:
        smaller = smaller_steps(case)
        edits = smaller
    else:
        edits = cause.remedies
    return cause, (*workspace, *smaller, *_not_among(edits, by_hand))


def _not_among(edits: Sequence[Remedy], by_hand: Iterable[Remedy]) -> Iterator[Remedy]:
    """Changes in general terms that no edit of the program makes exactly."""
    texts = " ".join(edit.change for edit in edits)
    offered = [what for what in ("batch", "checkpoint") if what in texts]
    for remedy in by_hand:
        if not any(what in remedy.change for what in offered):
            yield remedy


def is_leaking(found: Explanation) -> bool:
    """Whether lines keep so much from every step that more room would only help for some steps.

    For states without a failure, with the criterion by which `verdict` makes them the cause of one.
    """
    grown = summed_bytes(found.growing)
    return found.requested_bytes is None and grown >= SHARE_OF_LEAK * max(1, found.evidence.live_bytes)


def _release(history: History, found: Explanation, capacity: int | None, edit: ProgramEdit) -> Iterator[Remedy]:
    growing = found.growing
    replayed = None
    if growing:
        replayed = without_kept(history, growing, capacity, edit)
    if replayed is None:
        return
    before, without, fits = replayed
    if fits is False or without >= before:
        return
    if found.requested_bytes is not None:
        # The replay released no cache on its way to the request: it may have held more than there was.
        before = found.refused_total_bytes
    yield release_remedy(growing, before, without, fits, edit.text, edit.patch)


def _larger(what_if: WhatIf, capacity: int) -> Iterator[Remedy]:
    smallest = what_if.smallest_capacity()
    if capacity < smallest < UNLIMITED:
        yield from larger_remedies(
            smallest,
            what_if.run(smallest).peak_reserved,
            ends_refused=what_if.ends_refused,
            goes_on=what_if.goes_on,
        )


def _replayed_need(what_if: WhatIf, found: Explanation, capacity: int) -> Need | None:
    """The need of the steps so far and the rest of the current one; ``None`` if that rest is unknown."""
    smallest = what_if.smallest_capacity()
    if what_if.ends_refused or not capacity < smallest < UNLIMITED:
        return None
    ran = what_if.run(None)
    return need_on_card(
        Need(
            capacity_bytes=smallest,
            pytorch_bytes=smallest,
            peak_allocated_bytes=ran.peak_allocated,
            peak_reserved_bytes=ran.peak_reserved,
            steps=found.step,
            is_whole=False,
            seconds=0.0,
            found_by=REPLAY,
        ),
        found,
    )


def _category_text(history: History, moment: int, mostly: str, found: Explanation) -> str:
    alive = history.alive(moment)
    lives = history.lives
    before = int(lives.bytes[alive[lives.born[alive] < 0]].sum())
    unknown = found.evidence.without_stack_bytes
    if min(before, unknown) > found.evidence.live_bytes / 2:
        return "from before the recording began"
    if mostly == NO_STACK:
        return "without a recorded stack"
    return f"{mostly}{mostly_from(mostly, found.owners)}"


def _card_text(history: History) -> str:
    """What is known about the card if no request failed for good."""
    if history.disagreeing:
        return "The file does not record the card's size."  # an inconsistent trace gives no reliable level
    most = int(history.reserved.max())
    if not history.is_recorded:
        if not most:
            return "The file does not record the card's size."
        return f"PyTorch holds {format_bytes(most)}. What it held before and how much the card has are not in the file."
    limits = card_limits(history)
    sentences = (f"PyTorch reserved {format_bytes(most)} at most in this recording.", retry_text(limits))
    return " ".join([*filter(None, sentences), capacity_text(limits)])


def _how_to_record(history: History) -> str:
    if not int(history.reserved[-1]):
        return (
            f"The snapshot holds nothing: call {RECORD} before the run, and write the snapshot while it holds memory."
        )
    return (
        "The snapshot was taken without a history, so that it does not tell what happened before, nor what else would "
        f"fit: call {RECORD} before the run, and write it again."
    )


def _why_none(history: History) -> str:
    """Why nothing is replayed; "" if it is."""
    if history.disagreeing:
        return "The trace and the segments contradict each other, so that nothing is replayed."
    if history.count > MOST_EVENTS:
        return (
            f"The trace has {format_count(history.count)} events, too many to try changes on the way: ask what-if "
            "questions."
        )
    return ""


def _checkpoints(stacks: Sequence[Stack]) -> bool:
    """Whether the program already uses activation checkpointing."""
    files: set[str] = set()
    for stack in stacks:
        files.update(file for file, _line, _name in stack)
    return any("torch/utils/checkpoint.py" in file.replace("\\", "/") for file in files)


def without_kept(
    history: History, growing: Sequence[Growth], capacity: int | None, edit: ProgramEdit = NO_EDIT
) -> tuple[int, int, bool | None] | None:
    """Replay a trace so that nothing allocated by some lines outlives its step, or the variable that holds it.

    Args:
        history: history of the device, with steps.
        growing: the lines.
        capacity: bytes available to PyTorch.
        edit: what the program keeps instead.

    Returns:
        Peak of reserved bytes as recorded and without what is kept, and whether the latter fits the capacity (``None``
        without one); ``None`` if no step ends in which something could be freed.
    """
    kept = _kept(history, growing)
    if edit.keeps_numbers:
        kept = kept[history.lives.requested[kept] > NUMBER_BYTES]
    if not len(kept) or len(history.steps) < 2:
        return None
    program, lives, order = compiled(history.device)
    block_of = np.full(len(lives), -1, np.int64)
    block_of[order] = np.arange(len(order))
    # The beginning of the next step ends what a program normally holds.
    step = np.searchsorted(history.steps, history.lives.born[kept], side="right")
    # Omit the last two steps: the step that would free the memory is not in the trace.
    ends = step < len(history.steps)
    event = history.steps[np.minimum(step, len(history.steps) - 1)]
    if edit.in_variables:
        event = np.maximum(event, np.min([_reassigned(history, kept, values) for values in edit.in_variables], axis=0))
    ends &= event < history.lives.freed[kept]
    place = np.searchsorted(program.events, event[ends])
    blocks = block_of[kept[ends]]
    known = blocks >= 0
    if not known.any():
        return None
    sooner = program.without_late(dict(zip(blocks[known].tolist(), place[known].tolist(), strict=True)))
    settings = history.device.settings
    room = UNLIMITED
    if capacity is not None:
        room = capacity
    without = Rerun(sooner, room, settings).run()
    before = Rerun(program, UNLIMITED, settings).run()
    fits = None
    if capacity is not None:
        fits = without.fits
    return before.peak_reserved, without.peak_reserved, fits


def _reassigned(history: History, kept: Ints, values: Sequence[int]) -> Ints:
    """For each kept life, the first event after the variables that hold it and its graph are assigned anew.

    Args:
        history: history of the device.
        kept: the lives.
        values: what variables hold, as allocated in one step.
    """
    lives = history.lives
    latest = np.zeros(len(kept), np.int64)
    for value in values:
        born = np.sort(lives.born[lives.stack == lives.stack[value]])
        # The value is the last that its line allocates in a step; the others were needed to compute it.
        step = history.step_of(born)
        born = born[np.append(step[1:] != step[:-1], True)]
        following = np.searchsorted(born, lives.born[kept], side="left") + 1
        never = following >= len(born)
        event = born[np.minimum(following, len(born) - 1)] + 1
        latest = np.maximum(latest, np.where(never, history.count, event))
    return latest


def _kept(history: History, growing: Sequence[Growth]) -> Ints:
    """Lives that the lines allocated within a step."""
    sites = sites_of(history, growing)
    lives = history.lives
    return np.flatnonzero(sites[history.sites.of_stack[lives.stack]] & (lives.born >= 0))


@dataclass(frozen=True, slots=True)
class CardLimits:
    """Bounds for the memory that PyTorch could reserve on a card, in bytes.

    Attributes:
        least: the most that it had at one time, plus what the driver called free.
        below: an upper bound: a request that would have reached it failed; ``None`` if none did.
        retries: requests that only succeeded after cached segments were freed.
    """

    least: int
    below: int | None
    retries: int


def card_limits(history: History) -> CardLimits:
    """The bounds that a trace shows.

    Before the allocator retries a request that the card refused, it frees its cached segments
    (c10/cuda/CUDACachingAllocator.cpp, `release_cached_blocks`). In the trace they directly precede the segment that
    followed, with that request's stack if stacks were recorded. A program that empties the cache itself leaves its own
    stack, and its next segment would have fitted.
    """
    columns = history.columns
    reserved = history.reserved
    free = columns.device_free[history.ooms]
    known = history.ooms[free != NONE]
    least = max(int(reserved.max()), int((reserved[known + 1] + free[free != NONE]).max(initial=0)))
    if history.device.settings.garbage_collection_threshold:
        return CardLimits(least, None, 0)  # it also frees segments while the card has room
    # A bound must exceed the highest level reached: the card has held that much.
    came = [total for total in _reserved_without_release(history) if total > least]
    return CardLimits(least, min(came, default=None), len(came))


def _reserved_without_release(history: History) -> list[int]:
    """For each release that a request may have caused, the reserved bytes without it."""
    columns = history.columns
    action = columns.action
    stack = columns.stack
    found = []
    for release in releases(history.device):
        begin = release.begin
        end = release.end
        if not release.is_retry or action[end] not in (SEGMENT_ALLOC, SEGMENT_MAP):
            continue
        if (stack[begin : end + 1] == stack[end]).all():
            found.append(int(history.reserved[begin]) + int(columns.size[end]))
    return found


def retry_text(limits: CardLimits) -> str:
    """That requests were refused and retried, in a sentence; "" if none was."""
    if not limits.retries:
        return ""
    times = "once"
    if limits.retries > 1:
        times = f"{format_count(limits.retries)} times"
    return f"The card ran short {times}: PyTorch released its idle cache, asked again and got the memory."


def capacity_text(limits: CardLimits) -> str:
    """What is known about the card's size, in a sentence."""
    if limits.below is None:
        return "The file does not record the card's size."
    if limits.below < GIB:
        return f"So the card has between {limits.least // MIB} and {-(-limits.below // MIB)} MiB for PyTorch."
    # Rounded outwards: the card's size is between the two.
    low = math.floor(10 * limits.least / GIB) / 10
    high = math.ceil(10 * limits.below / GIB) / 10
    return f"So the card has between {low:.1f} and {high:.1f} GiB for PyTorch."
