"""The requests of a run to the allocator, in order: enough to replay it on any card with any settings."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from gpudash.speed.work import StepWork

CATEGORIES = ("weights", "gradients", "optimizer state", "activations", "inputs", "temporary", "workspace")
"""What a block was for, in the order of the parts of a bar."""

WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, TEMPORARY, WORKSPACE = CATEGORIES


@dataclass(frozen=True)
class TraceMark:
    """Where a phase of a step starts in the events.

    Attributes:
        at: index of its first event.
        step: number of the step, from 1; 0 before the first.
        phase: "forward", "backward", "optimizer", or "" between them.
    """

    at: int
    step: int
    phase: str


class TraceCopy(NamedTuple):
    """A copy between the host and the card.

    Attributes:
        at: number of events before it.
        step: the step it belongs to, from 1; 0 before the first.
        size: bytes.
        outward: whether it goes from the card to the host.
    """

    at: int
    step: int
    size: int
    outward: bool


@dataclass(frozen=True)
class ConvolutionScratch:
    """What is known about the workspaces cuDNN allocates for convolutions.

    Attributes:
        cudnn: version of the user's cuDNN that reported them, such as "9.20"; "" if none was queried.
        unknown_bytes: how much more a convolution may allocate; 0 if nothing is unknown.
        problem: why a permitted query of cuDNN failed, a sentence without a full stop; "" if it did not.
    """

    cudnn: str = ""
    unknown_bytes: int = 0
    problem: str = ""


@dataclass
class Trace:
    """Allocations and frees.

    Attributes:
        events: ``n`` allocates block n, counted from 1, and ``-n`` frees it.
        sizes: bytes requested for each block.
        categories: what each block was for, one of `CATEGORIES`.
        marks: where steps and phases begin, in order.
        followed: steps that were dry-run; 0 for a run that was not dry-run or has none.
        streams: block → the stream that requested it; blocks not listed are on the default one, 0.
        emptied: indices in `events` before which the allocator releases its cache (``empty_cache``), in order.
        addresses_fall: for the torch that made it, see `device_memory.addresses_fall`.
        convolutions: what is known about their workspaces.
        copies: between the host and the card, in order; unknown for traces from elsewhere.
        count_work: returns what else one step does, see `work`; ``None`` if that was not recorded.
    """

    events: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    categories: list[str] = field(default_factory=list)
    marks: list[TraceMark] = field(default_factory=list)
    followed: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    addresses_fall: bool = False
    emptied: array[int] = field(default_factory=lambda: array("q"))
    convolutions: ConvolutionScratch = field(default_factory=ConvolutionScratch)
    copies: list[TraceCopy] = field(default_factory=list)
    count_work: Callable[[], StepWork | None] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def work(self) -> StepWork | None:
        """What one step does. Computed on first use, because a search needs it for few of its traces."""
        if self.count_work is None:
            return None
        return self.count_work()

    def counting(self, **facts: Any) -> Trace:
        """A copy with facts about its step added: fields of `StepWork`."""

        def count() -> StepWork | None:
            if self.work is None:
                return None
            return replace(self.work, **facts)

        return replace(self, count_work=count)

    @property
    def steps(self) -> int:
        """Number of steps in the trace."""
        return max((mark.step for mark in self.marks), default=0)

    def step_events(self, step: int) -> tuple[int, int]:
        """Index of a step's first event, and of the first event after it.

        Raises:
            ValueError: there is no such step.
        """
        starts = [mark.at for mark in self.marks if mark.step == step]
        if not starts:
            raise ValueError(f"The trace has {self.steps} steps, and no step {step}.")
        later = [mark.at for mark in self.marks if mark.step > step]
        if later:
            return starts[0], later[0]
        return starts[0], len(self.events)

    def to_json(self) -> dict[str, Any]:
        """The trace as JSON for another process, see `from_json`."""
        work = self.work
        return {
            "work": None if work is None else work.to_dict(),
            "events": self.events.tolist(),
            "sizes": self.sizes.tolist(),
            "categories": list(map(CATEGORIES.index, self.categories)),
            "marks": [[mark.at, mark.step, mark.phase] for mark in self.marks],
            "followed": self.followed,
            "streams": list(map(list, self.streams.items())),
            "addresses_fall": self.addresses_fall,
            "convolutions": asdict(self.convolutions),
            "emptied": self.emptied.tolist(),
            "copies": list(map(list, self.copies)),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Trace:
        """Parse what `to_json` wrote.

        Raises:
            KeyError, IndexError, TypeError, ValueError: ``written`` does not come from `to_json`.
        """
        return cls(
            array("q", written["events"]),
            array("q", written["sizes"]),
            [CATEGORIES[number] for number in written["categories"]],
            [TraceMark(*mark) for mark in written["marks"]],
            written["followed"],
            dict(written["streams"]),
            written["addresses_fall"],
            array("q", written.get("emptied", ())),
            ConvolutionScratch(**written.get("convolutions", {})),
            [TraceCopy(*copy) for copy in written.get("copies", ())],
            _reading(written.get("work")),
        )

    def most_held(self, categories: Collection[str]) -> int:
        """The most requested bytes that blocks of these categories hold at once."""
        counted = [0]
        for size, category in zip(self.sizes, self.categories, strict=True):
            counted.append(size if category in categories else 0)
        held = 0
        most = 0
        for event in self.events:
            if event > 0:
                held += counted[event]
                most = max(most, held)
            else:
                held -= counted[-event]
        return most

    def without(self, category: str) -> Trace:
        """A copy in which every block of ``category`` is empty and takes no memory."""
        # a request of 0 bytes gets no block, so events and block numbers stay as they are
        sizes = array("q", self.sizes)
        for number, kind in enumerate(self.categories):
            if kind == category:
                sizes[number] = 0
        return replace(self, sizes=sizes)


def _reading(work: Mapping[str, Any] | None) -> Callable[[], StepWork] | None:
    if work is None:
        return None
    return lambda: StepWork.from_dict(work)


def between(first: Trace, other: Trace, share: float) -> Trace | None:
    """Interpolate between two traces, if every block grows linearly with the size.

    Args:
        first, other: traces of two sizes.
        share: position between the first size and the other, 0 to 1.

    Returns:
        ``None`` if the two do not request the same blocks in the same order.
    """
    if first.events != other.events or first.categories != other.categories or first.streams != other.streams:
        return None
    if first.emptied != other.emptied:
        return None
    sizes = array("q", (round(one + share * (two - one)) for one, two in zip(first.sizes, other.sizes, strict=True)))
    return replace(first, sizes=sizes, copies=[], count_work=None)


def repeated(trace: Trace, steps: int) -> Trace:
    """``trace`` extended to ``steps`` steps, each a repetition of its last one.

    A block that an earlier step allocated and the last step freed is freed equally many steps after its allocation
    again, so what a run keeps from step to step keeps accumulating.
    """
    last = trace.steps
    if last < 2 or steps <= last:
        return trace
    first, behind = trace.step_events(last)
    template = trace.events[first:behind]
    made = [event for event in template if event > 0]
    if not made:
        return trace
    # a block of the last step, or of the one before it, is identified by its index among the blocks of its step: in a
    # repetition the index stands for the newly allocated blocks
    born = {block: position for position, block in enumerate(made)}
    before_first, before_behind = trace.step_events(last - 1)
    made_before = [event for event in trace.events[before_first:before_behind] if event > 0]
    previous = {block: position for position, block in enumerate(made_before)}
    events = array("q", trace.events)
    sizes = array("q", trace.sizes)
    categories = list(trace.categories)
    marks = list(trace.marks)
    streams = dict(trace.streams)
    emptied = array("q", trace.emptied)
    copies = list(trace.copies)
    inner_copies = [copy for copy in trace.copies if copy.step == last]
    inner = [mark for mark in trace.marks if mark.step == last]
    inner_emptied = [at for at in trace.emptied if first <= at < behind]
    # the blocks that each step allocated, in order, from the last recorded step on
    blocks_of = [made]
    for step in range(last + 1, steps + 1):
        offset = len(events) - first
        marks += [TraceMark(mark.at + offset, step, mark.phase) for mark in inner]
        emptied.extend(at + offset for at in inner_emptied)
        copies += [copy._replace(at=copy.at + offset, step=step) for copy in inner_copies]
        fresh: list[int] = []
        for event in template:
            if event > 0:
                sizes.append(trace.sizes[event - 1])
                categories.append(trace.categories[event - 1])
                fresh.append(len(sizes))
                if event in trace.streams:
                    streams[len(sizes)] = trace.streams[event]
                events.append(len(sizes))
            elif -event in born:
                events.append(-fresh[born[-event]])
            # allocated one step before and freed now; a repetition frees nothing older
            elif -event in previous and previous[-event] < len(blocks_of[-1]):
                events.append(-blocks_of[-1][previous[-event]])
        blocks_of.append(fresh)
    return replace(
        trace,
        events=events,
        sizes=sizes,
        categories=categories,
        marks=marks,
        streams=streams,
        emptied=emptied,
        copies=copies,
    )
