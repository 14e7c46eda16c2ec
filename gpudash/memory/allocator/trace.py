"""What a run asked of the allocator, in order: enough to replay it on any card with any settings."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from gpudash.speed.work import StepWork

CATEGORIES = ("weights", "gradients", "optimizer state", "activations", "inputs", "temporary", "workspace")
"""What a block was for; the order in which a bar shows them."""

WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, TEMPORARY, WORKSPACE = CATEGORIES


@dataclass(frozen=True)
class TraceMark:
    """Where in the events a phase of a step begins.

    Attributes:
        at: index of the first event that belongs to it.
        step: number of the step, from 1; 0 before the first.
        phase: "forward", "backward", "optimizer", or "" between them.
    """

    at: int
    step: int
    phase: str


class TraceCopy(NamedTuple):
    """A copy between the host and the card.

    Attributes:
        at: how many events come before it.
        step: in which it is, from 1; 0 before the first.
        size: bytes.
        outward: whether it leaves the card.
    """

    at: int
    step: int
    size: int
    outward: bool


@dataclass(frozen=True)
class ConvolutionScratch:
    """What is known of the memory that cuDNN takes for itself in convolutions.

    Attributes:
        cudnn: version of the user's cuDNN that has said it, such as "9.20"; "" where none was asked.
        unknown_bytes: how much more a convolution may take; 0 where nothing is unknown.
        problem: why cuDNN could not be asked though it may be, a sentence without a full stop; "" for nothing.
    """

    cudnn: str = ""
    unknown_bytes: int = 0
    problem: str = ""


@dataclass
class Trace:
    """Allocations and frees.

    Attributes:
        events: ``n`` allocates block n, counted from 1, and ``-n`` frees it.
        sizes: bytes asked for each block.
        categories: what each block was for, one of `CATEGORIES`.
        marks: where steps and phases begin, in order.
        followed: steps that were dry-run; 0 for a run that was not, or that has none.
        streams: block → stream it was asked on; those that are not here were on the default one, 0.
        emptied: places in `events` before which the allocator gives its cache back (``empty_cache``), in order.
        addresses_fall: of the torch that made it, see `device_memory.addresses_fall`.
        convolutions: what of their memory is known.
        copies: between the host and the card, in order; those of a trace from elsewhere are not known.
        count_work: says what one step does beside asking for memory, see `work`; ``None`` where that was not followed.
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
        """What one step does; worked out at the first time, for few of the traces of a search are asked for it."""
        if self.count_work is None:
            return None
        return self.count_work()

    def counting(self, **facts: Any) -> Trace:
        """The same, with what is known of its step: fields of `StepWork`."""

        def count() -> StepWork | None:
            if self.work is None:
                return None
            return replace(self.work, **facts)

        return replace(self, count_work=count)

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return max((mark.step for mark in self.marks), default=0)

    def step_events(self, step: int) -> tuple[int, int]:
        """First event of a step, and the first behind it.

        Raises:
            ValueError: when there is no such step.
        """
        starts = [mark.at for mark in self.marks if mark.step == step]
        if not starts:
            raise ValueError(f"The trace has {self.steps} steps, and no step {step}.")
        later = [mark.at for mark in self.marks if mark.step > step]
        if later:
            return starts[0], later[0]
        return starts[0], len(self.events)

    def to_json(self) -> dict[str, Any]:
        """As another process can read it, see `from_json`."""
        work = self.work
        return {
            "work": None if work is None else work.to_dict(),
            "events": self.events.tolist(),
            "sizes": self.sizes.tolist(),
            "categories": [CATEGORIES.index(category) for category in self.categories],
            "marks": [[mark.at, mark.step, mark.phase] for mark in self.marks],
            "followed": self.followed,
            "streams": [list(item) for item in self.streams.items()],
            "addresses_fall": self.addresses_fall,
            "convolutions": asdict(self.convolutions),
            "emptied": self.emptied.tolist(),
            "copies": [list(copy) for copy in self.copies],
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Trace:
        """The trace that `to_json` wrote.

        Raises:
            KeyError, IndexError, TypeError, ValueError: when it did not.
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
        """The most bytes, as they were asked for, that blocks of some categories hold at once."""
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
        """The same with every block of ``category`` empty, so that none takes memory."""
        # a request of 0 bytes gets no block, so that events and numbers stay as they are
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
    """What a run of a size between those of two traces asks for, if every block grows linearly with the size.

    Args:
        first, other: traces of two sizes.
        share: of the way from the first size to the other, 0 to 1.

    Returns:
        ``None`` when the two do not ask for the same blocks in the same order.
    """
    if first.events != other.events or first.categories != other.categories or first.streams != other.streams:
        return None
    if first.emptied != other.emptied:
        return None
    sizes = array("q", (round(one + share * (two - one)) for one, two in zip(first.sizes, other.sizes, strict=True)))
    return replace(first, sizes=sizes, copies=[], count_work=None)


def repeated(trace: Trace, steps: int) -> Trace:
    """``trace`` gone on to ``steps`` steps, each as its last one.

    A block that the last step freed and an earlier step had allocated is freed as many steps after its allocation
    again; so what a run keeps from step to step keeps adding up.
    """
    last = trace.steps
    if last < 2 or steps <= last:
        return trace
    first, behind = trace.step_events(last)
    template = trace.events[first:behind]
    made = [event for event in template if event > 0]
    if not made:
        return trace
    # a block of the last step is known by its place among those the step made, and so is one of the step
    # before it: in a repetition these places stand for the blocks made anew
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
    # of every step from the last recorded one on, the blocks it made, in order
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
            # made one step before, and freed now; what is older than that, a repetition frees nothing of
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
