"""The record that explains a device's memory, created by `gpudash.memory.explaining`, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from gpudash.units import format_bytes, needed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Verdict = Literal[
    "impossible request",
    "other process",
    "fragmentation",
    "real capacity",
    "memory cap",
    "private pools",
    "pending frees",
    "leak",
    "headroom",
    "no failure",
]
"""Why memory ran out; if it did not, "headroom", or "no failure" if the device's capacity is unknown."""

NO_STACK = "no stack recorded"
"""Name of the call site or category of memory with an unknown origin."""

SHOWN_TEXT = 60
"""Longest excerpt of a source line within a sentence, in characters."""

PartKind = Literal["process", "context", "category", "idle", "pending", "private", "free", "barred", "unattributed"]


@dataclass(frozen=True)
class Part:
    """A part of the device's memory.

    Attributes:
        kind: kind of holder; a category is one of live tensors. "barred" memory is free, but beyond what the process
            may reserve.
        name: name of the category or process, else the glossary's term.
        pid, user: PID and user of another process.
        command: command with which this program started that process; "" if it did not.
    """

    kind: PartKind
    name: str
    bytes: int
    pid: int | None = None
    user: str = ""
    command: str = ""


@dataclass(frozen=True)
class StackLine:
    """A line of a stack; `is_library` if it belongs to torch, the standard library or gpudash's internals."""

    file: str
    line: int
    name: str
    is_library: bool = False


@dataclass(frozen=True)
class Where:
    """The place in the program that made the request, and the state at that moment; ``None`` and "" if unknown."""

    stage: str = ""
    phase: str = ""
    step: int = 0
    module: str = ""
    file: str | None = None
    line: int | None = None
    name: str = ""
    text: str = ""


@dataclass(frozen=True)
class Owner:
    """A call site, and the live memory that it allocated.

    Attributes:
        file, line, name: innermost line of the program's own code, else of a library; ``None`` if no stack was
            recorded.
        library: short name of the innermost library line that it called; "" if it called torch directly.
        text: source of that line, if readable.
        module: innermost running module.
        category: category of the blocks.
        bytes, count: size and number of the blocks.
        total_bytes: size of all blocks with this line anywhere in their stack.
        growth_per_step: bytes left by every step, on average; ``None`` if it does not grow.
        growth_stride: steps from one that leaves something to the next.
        first_step, last_step: steps that allocated the oldest and the newest block; 0 means before the first step.
        stack: most frequent stack by bytes, innermost line first.
    """

    file: str | None
    line: int | None
    name: str
    module: str
    category: str
    bytes: int
    count: int
    total_bytes: int
    text: str = ""
    growth_per_step: float | None = None
    growth_stride: float = 1.0
    first_step: int = 0
    last_step: int = 0
    stack: tuple[StackLine, ...] = ()
    library: str = ""


def request_size(requested: int, segment: int | None) -> str:
    """The size of a refused request: "8 MiB, which needs a segment of 20 MiB".

    Args:
        requested: bytes of the tensor.
        segment: bytes that the allocator needs of the card for it; ``None`` if unknown.
    """
    return f"{needed(requested)}{segment_text(requested, segment or requested)}"


def segment_text(requested: int, segment: int) -> str:
    """What is said of a request's segment after its own size; "" if both read alike."""
    if needed(segment) == needed(requested):
        return ""
    return f", which needs a segment of {needed(segment)}"


def every_steps(stride: float, always: str = "every step") -> str:
    """How often something comes that comes again after so many steps: "every step", "about every 3 steps".

    Args:
        stride: the steps.
        always: the text if it comes in every step.
    """
    rounded = round(stride)
    if rounded <= 1:
        return always
    if rounded == stride:
        return f"every {rounded} steps"
    return f"about every {rounded} steps"


@dataclass(frozen=True)
class Growth:
    """A line that leaves about the same amount of memory in every step, or in every n-th.

    Attributes:
        bytes_per_step: bytes left by each step, on average.
        bytes: bytes left so far.
        steps: number of steps that left something.
        stride: steps from one of them to the next.
        kept_by: the statement that keeps it: "train.py:44 (losses.append(loss))"; "" if the line does, or if unknown.
    """

    file: str
    line: int
    name: str
    text: str
    bytes_per_step: float
    bytes: int
    steps: int
    first_step: int
    stride: float = 1.0
    kept_by: str = ""

    @property
    def every(self) -> str:
        """How often it leaves something: "every step", "every 5 steps", "about every 3 steps"."""
        return every_steps(self.stride)

    @property
    def bytes_at_once(self) -> float:
        """Bytes left by a step that leaves something."""
        return self.bytes_per_step * self.stride

    @property
    def place(self) -> str:
        """The line's short name: "train.py:41 (losses.append(loss))"."""
        if len(self.text) <= SHOWN_TEXT:
            text = self.text
        else:
            text = f"{self.text[:SHOWN_TEXT]}…"
        return f"{short(self.file)}:{self.line}{f' ({text})' if text else ''}"


@dataclass(frozen=True)
class RunChange:
    """A change with which a run needs less memory, or has more; and its cost.

    Attributes:
        change: in words: "batch 24".
        fields: fields of the spec and their new values; empty if the change is not in the spec.
        device: another device; ``None`` for the same one.
        allocator: a setting of torch's allocator, in the syntax of ``PYTORCH_CUDA_ALLOC_CONF``; "" for none.
        fits: whether the run would then fit; ``None`` if uncertain.
        releases_cache: whether it only fits because the allocator frees its cache meanwhile.
        slowdown: expected time per item, relative to the unchanged run; ``None`` if unknown.
        slowdown_from: basis of `slowdown`: "FLOPs of the dry run", "the same products in smaller batches", or "".
        changes_training: whether it may affect convergence.
        note: other differences, in words: "weights rounded to 4 bits"; "" for none.
        patch: the change as a unified diff, with paths relative to the program's folder, or to the root if that is
            unknown; "" for none.
        command: command of the program with the change; empty for other changes.
    """

    change: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    allocator: str = ""
    fits: bool | None = None
    releases_cache: bool = False
    slowdown: float | None = None
    slowdown_from: str = ""
    changes_training: bool = False
    note: str = ""
    patch: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rewrite:
    """An expression of a program, and its replacement.

    Attributes:
        line, column, end_line, end_column: position in the file: lines from 1, columns in bytes from 0.
        before, after: old and new text, each on one line.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    after: str


@dataclass(frozen=True)
class Remedy(RunChange):
    """A change with which a failed run would have fitted, or needs less.

    Attributes:
        fits: ``None`` if it is likely but within the margin, if only the failed request is known to succeed, or if it
            was not tried.
        flags: the change as options of ``gpudash run``.
        predicted_peak_bytes: peak of reserved memory with the change.
        verified_by: "dry run", "replay" of the run's requests, "rerun" of the whole program, or "rerun without
            numbers"; "" if it was not tried.
        rewrites: edits of the program, if known exactly.
        puts_off: until when the memory has room again, if the cause goes on: "at least 12 steps more, then it is full
            again"; "" if it ends the cause.
    """

    flags: str = ""
    predicted_peak_bytes: int | None = None
    verified_by: str = ""
    rewrites: tuple[Rewrite, ...] = ()
    puts_off: str = ""


@dataclass(frozen=True)
class Evidence:
    """What an explanation is based on.

    Attributes:
        events: number of recorded allocations and frees.
        of_events: number of all that occurred; ``None`` if unknown.
        began_s: session time at which recording began; ``None`` if nothing was recorded.
        live_bytes: bytes allocated at the moment of the explanation.
        without_stack_bytes: bytes of that without a recorded stack.
    """

    events: int = 0
    of_events: int | None = None
    began_s: float | None = None
    live_bytes: int = 0
    without_stack_bytes: int = 0


@dataclass(frozen=True)
class Need:
    """Memory that the whole run needs, found by running the program again, or its steps so far; sizes in bytes.

    Attributes:
        capacity_bytes: smallest card on which every request succeeds; for part of a run, one on which that needs no
            release of the cache.
        pytorch_bytes: PyTorch's part of it.
        peak_allocated_bytes, peak_reserved_bytes: peaks on a card with room to spare.
        steps: number of steps completed when it was found.
        is_whole: whether the program ran to its end.
        seconds: time that the search took.
        found_by: "rerun" on a larger simulated card, "rerun without numbers" on a card that does not exist, or
            "replay" of its requests, continued with the rest of an earlier step.
        remark: what was not run, in words; "" for nothing.
    """

    capacity_bytes: int
    pytorch_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    steps: int
    is_whole: bool
    seconds: float
    found_by: str = "rerun"
    remark: str = ""


@dataclass(frozen=True)
class BlockMap:
    """How the blocks of an allocator lay, its segments one behind the other; sizes and places in bytes.

    Attributes:
        segments: of each segment, shared ones before private ones, large before small.
        begin, bytes: of each block, in the order of its place; blocks that are free are left out.
        waits: whether a block is freed, but still in use by another stream.
        label: of each block its place in `categories` and `lines`, which belong together.
        categories, lines: what blocks are for, and the line that allocated them; "" for none.
    """

    segments: tuple[int, ...]
    begin: tuple[int, ...]
    bytes: tuple[int, ...]
    waits: tuple[bool, ...]
    label: tuple[int, ...]
    categories: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def consistent(self) -> bool:
        """Whether its columns fit each other, as those of a file need not."""
        count = len(self.begin)
        if not len(self.bytes) == len(self.waits) == len(self.label) == count or not self.segments:
            return False
        if len(self.lines) != len(self.categories):
            return False
        last = 0
        for begin, size, label in zip(self.begin, self.bytes, self.label, strict=True):
            if begin < last or size <= 0 or not 0 <= label < len(self.categories):
                return False
            last = begin + size
        return last <= sum(self.segments) < 2**62 and min(self.segments) > 0


@dataclass(frozen=True)
class Explanation:
    """Why memory ran out, or what uses it; sizes in bytes.

    Attributes:
        headline: the cause in a sentence.
        request_words: what was requested and what was missing, in a sentence; without a request, the headroom.
        verdict: the cause in one word.
        requested_bytes: size of the request to the allocator; ``None`` if none failed.
        segment_bytes: size of the allocator's request to the device.
        missing_bytes: by how much that was too large.
        where: origin of the request; empty if none failed.
        allowed_bytes: limit on what the process may reserve; ``None`` without a limit.
        parts: contents of the device's memory; they add up to `capacity_bytes` plus `beyond_bytes`.
        beyond_bytes: by how much the parts exceed the capacity, on a driver that adds host memory.
        largest_free_block_bytes: largest free block in PyTorch's cache.
        by_category: live bytes by category, the largest first.
        owners: call sites, the largest first.
        rest_owners, rest_bytes: number and bytes of the remaining call sites.
        growing: lines that leave memory in every step, the largest first.
        remedies: changes with which it would have fitted.
        remedies_note: why there are none, or what they are based on.
        cause: what in the program caused it, in a sentence; "" if unknown, or if the verdict says it.
        need: memory that the whole run needs; ``None`` if unknown.
        savings: changes that free memory, though one alone may not be enough, the largest first.
        blocks: how they lay, where the free memory was in too small pieces; ``None`` where that is not known.
    """

    device: str
    product: str
    simulated: bool
    time_s: float
    step: int
    headline: str
    request_words: str
    verdict: Verdict
    requested_bytes: int | None
    segment_bytes: int | None
    missing_bytes: int
    where: Where
    capacity_bytes: int
    parts: tuple[Part, ...]
    beyond_bytes: int
    largest_free_block_bytes: int
    by_category: Mapping[str, int]
    owners: tuple[Owner, ...]
    rest_owners: int
    rest_bytes: int
    growing: tuple[Growth, ...]
    evidence: Evidence
    allowed_bytes: int | None = None
    remedies: tuple[Remedy, ...] = ()
    remedies_note: str = ""
    cause: str = ""
    need: Need | None = None
    savings: tuple[Remedy, ...] = ()
    blocks: BlockMap | None = None

    def to_json(self) -> dict[str, Any]:
        """As mappings, lists, numbers and strings; read by `from_json`."""
        return asdict(self)

    def with_remedies(self, remedies: tuple[Remedy, ...], note: str = "") -> Explanation:
        """A copy with other remedies."""
        return replace(self, remedies=remedies, remedies_note=note)

    @property
    def request_size(self) -> str:
        """The size of the refused request, and of its segment; "" if none failed."""
        if self.requested_bytes is None:
            return ""
        return request_size(self.requested_bytes, self.segment_bytes)

    @property
    def refused_total_bytes(self) -> int:
        """PyTorch's memory on the device if the failed request had succeeded."""
        reserved = self.part_bytes("category", "idle", "pending", "private")
        return reserved + (self.segment_bytes or self.requested_bytes or 0)

    @property
    def peak_without_change(self) -> str:
        """`refused_total_bytes` in words, wherever the peak of a change is compared with it."""
        return f"{format_bytes(self.refused_total_bytes)} with the refused request"

    @property
    def patch(self) -> str:
        """The first change of the program's source among the remedies, as a diff; "" without one."""
        return next((remedy.patch for remedy in self.remedies if remedy.patch), "")

    @property
    def used_bytes(self) -> int:
        """Bytes of the device's memory that were in use."""
        return self.capacity_bytes + self.beyond_bytes - self.part_bytes("free", "barred")

    @property
    def findings(self) -> Findings:
        """The parts that a search for remedies may change."""
        return Findings(self.verdict, self.headline, self.remedies, self.remedies_note)

    def with_findings(self, found: Findings) -> Explanation:
        """A copy updated with the results of a search for remedies."""
        return replace(self, **vars(found))

    def part_bytes(self, *kinds: PartKind) -> int:
        """Bytes of all parts of the given kinds."""
        return sum(part.bytes for part in self.parts if part.kind in kinds)


@dataclass(frozen=True)
class Findings:
    """Results of the search for remedies after a failure, which may revise the cause.

    Attributes:
        verdict, headline, remedies, remedies_note: as in `Explanation`.
    """

    verdict: Verdict
    headline: str
    remedies: tuple[Remedy, ...] = ()
    remedies_note: str = ""


def explanation_from_json(data: Mapping[str, Any]) -> Explanation:
    """Read the output of `Explanation.to_json`; ignores unknown keys.

    Raises:
        ValueError: one sentence, if something is missing or of another type.
    """
    return cast(Explanation, _read(Explanation, "explanation of memory", data))


def findings_from_json(data: Mapping[str, Any]) -> Findings:
    """Read findings from ``data``; ignores unknown keys.

    Raises:
        ValueError: one sentence, if something is missing or of another type.
    """
    return cast(Findings, _read(Findings, "list of remedies", data))


def short(file: str) -> str:
    """A file's own name, without its folders."""
    return file.replace("\\", "/").rpartition("/")[2]


def site_name(file: str | None, line: int | None, name: str) -> str:
    """A call site's short name: "train.py:41 step"; without a file, a note that there is no stack."""
    if file:
        return f"{short(file)}:{line} {name}"
    return NO_STACK


def _read(kind: type, name: str, data: Mapping[str, Any]) -> object:
    from pydantic import ValidationError

    try:
        return _reader(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"This is no {name}: {place or 'the whole'}: {first['msg']}.") from None


@cache
def _reader(kind: type) -> TypeAdapter[object]:
    """Created on first use: most processes only write explanations."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
