"""What an explanation of a device's memory says: a record, made by `gpudash.memory.explaining`, and its way to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

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
"""Why memory ran out; when it did not "headroom", or "no failure" where it is not known how much the device has."""

NO_STACK = "no stack recorded"
"""Stands for the call site or category of memory whose allocator is unknown."""

SHOWN_TEXT = 60
"""Characters of a line of source that are shown within a sentence."""

PartKind = Literal["process", "context", "category", "idle", "pending", "private", "free", "barred", "unattributed"]


@dataclass(frozen=True)
class Part:
    """A share of the device's memory.

    Attributes:
        kind: what holds it; a category is one of live tensors. What is "barred" is free, and beyond what the process
            may reserve.
        name: of the category or process, else the glossary's word.
        pid, user: of another process.
        command: with which this program started that process; "" where it did not.
    """

    kind: PartKind
    name: str
    bytes: int
    pid: int | None = None
    user: str = ""
    command: str = ""


@dataclass(frozen=True)
class StackLine:
    """A line of a stack; `is_library` when it is torch's, the standard library's or gpudash's machinery."""

    file: str
    line: int
    name: str
    is_library: bool = False


@dataclass(frozen=True)
class Where:
    """The place in the program that asked, with what was known of the moment; ``None`` and "" where it was not."""

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
    """A call site, and what of the live memory it allocated.

    Attributes:
        file, line, name: innermost line of the program's own code, of a library where there is none; ``None`` when no
            stack was recorded.
        library: short name of the innermost line of a library that line called; "" when it called torch itself.
        text: that line of the source, where it could be read.
        module: innermost module that was running.
        category: what the blocks are for.
        bytes, count: of the blocks.
        total_bytes: of all blocks that have this line anywhere in their stack.
        growth_per_step: bytes that stay behind at every step; ``None`` when it does not grow.
        first_step, last_step: in which the oldest and the newest of the blocks were allocated; 0 is before the first.
        stack: of the most of it, innermost line first.
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
    first_step: int = 0
    last_step: int = 0
    stack: tuple[StackLine, ...] = ()
    library: str = ""


@dataclass(frozen=True)
class Growth:
    """A line of which every step leaves about as much behind.

    Attributes:
        bytes_per_step: that stay.
        bytes: that have stayed so far.
        steps: in which.
    """

    file: str
    line: int
    name: str
    text: str
    bytes_per_step: float
    bytes: int
    steps: int
    first_step: int

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
    """A change of a run with which it takes less memory, or has more; and what that costs.

    Attributes:
        change: in words: "batch 24".
        fields: fields of the spec and their new values; empty when the change is none of the spec.
        device: another device, ``None`` for the same one.
        allocator: a setting of torch's allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` takes it; "" for none.
        fits: whether the run would then fit; ``None`` when that is not sure.
        releases_cache: whether it fits only because the allocator releases its cache on the way.
        slowdown: expected time per item over that of the unchanged run; ``None`` when nothing can be said.
        slowdown_from: what `slowdown` rests on: "FLOPs of the dry run", "the same products in smaller batches", ""
            when there is none.
        changes_training: whether convergence may differ.
        note: what else is different, in words: "weights rounded to 4 bits"; "" for nothing.
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


@dataclass(frozen=True)
class Rewrite:
    """An expression of a program, and what to write in its place.

    Attributes:
        line, column, end_line, end_column: its place in the file: lines from 1 on, columns in bytes from 0 on.
        before, after: both in one line.
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
    """A change with which a run that failed would have fitted, or one that takes less.

    Attributes:
        fits: ``None`` when it is likely but within the margin, when it is only known to get past the request that
            failed, and when it was not tried.
        flags: the change as ``gpudash run`` takes it.
        predicted_peak_bytes: reserved, with the change.
        verified_by: "dry run", "replay" of what the run had asked for, "rerun" of the whole program, or "rerun without
            numbers"; "" when it was not tried.
        rewrites: what it changes in the program, where that is known to the character.
        patch: the change as a unified diff, with paths relative to the program's folder, or to the root where that is
            not known; "" where there is none.
        command: of the program, with the change; empty where it is another change.
    """

    flags: str = ""
    predicted_peak_bytes: int | None = None
    verified_by: str = ""
    rewrites: tuple[Rewrite, ...] = ()
    patch: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What an explanation rests on.

    Attributes:
        events: allocations and frees that were recorded.
        of_events: that there were; ``None`` when it is not known.
        began_s: session time at which recording began; ``None`` when nothing was recorded.
        live_bytes: allocated at the moment.
        without_stack_bytes: the part of it whose stack was not recorded.
    """

    events: int = 0
    of_events: int | None = None
    began_s: float | None = None
    live_bytes: int = 0
    without_stack_bytes: int = 0


@dataclass(frozen=True)
class Need:
    """What the whole run needs, found by running the program again, or what its steps until now do; sizes in bytes.

    Attributes:
        capacity_bytes: the smallest card on which everything that was asked for is served; of a part of a run one on
            which that takes no release of the cache.
        pytorch_bytes: that of it PyTorch has.
        peak_allocated_bytes, peak_reserved_bytes: the highest of each on a card with room to spare.
        steps: that were complete when it was found.
        is_whole: whether the program ran to its end.
        seconds: that it took.
        found_by: "rerun" on a larger simulated card, "rerun without numbers" on one that is not there, or "replay" of
            what it had asked for, which goes on with the rest of an earlier step.
        remark: what was not run, in words; "" where there is nothing to be said.
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
    """Why memory ran out, or where it is; sizes in bytes.

    Attributes:
        headline: the cause in a sentence.
        request_words: what was asked and what was missing, in a sentence; without a request the headroom.
        verdict: the cause in one word.
        requested_bytes: of the allocator; ``None`` when nothing was refused.
        segment_bytes: asked of the device for it.
        missing_bytes: how much of that could not be had.
        where: who asked; empty when nothing was refused.
        allowed_bytes: what the process may reserve, ``None`` without a limit.
        parts: what the device held; adds up to `capacity_bytes` and `beyond_bytes`.
        beyond_bytes: by how much the parts exceed the capacity, where a driver lends host memory.
        largest_free_block_bytes: of what is idle inside PyTorch.
        by_category: live bytes by category, the largest first.
        owners: call sites, the largest first.
        rest_owners, rest_bytes: call sites that are not among them, and their bytes.
        growing: lines of which every step leaves something behind, the largest first.
        remedies: changes with which it would have fitted.
        remedies_note: why there are none, or what they rest on.
        cause: what in the program made it run out, in a sentence; "" where that is not known, or the verdict says it.
        need: what the whole run needs, ``None`` where that was not found.
        savings: changes that make room, of which one alone may be too little, the largest first.
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
        """As mappings, lists, numbers and words; `from_json` is its way back."""
        return asdict(self)

    def with_remedies(self, remedies: tuple[Remedy, ...], note: str = "") -> Explanation:
        """The same with other remedies."""
        return replace(self, remedies=remedies, remedies_note=note)

    @property
    def findings(self) -> Findings:
        """What a search for remedies may change."""
        return Findings(self.verdict, self.headline, self.remedies, self.remedies_note)

    def with_findings(self, found: Findings) -> Explanation:
        """The same in the light of what a search for remedies found."""
        return replace(self, **vars(found))

    def part_bytes(self, *kinds: PartKind) -> int:
        """Bytes of all parts of these kinds."""
        return sum(part.bytes for part in self.parts if part.kind in kinds)


@dataclass(frozen=True)
class Findings:
    """What a search for remedies found after a failure; the cause in the light of what the whole run takes.

    Attributes:
        verdict, headline, remedies, remedies_note: as of `Explanation`.
    """

    verdict: Verdict
    headline: str
    remedies: tuple[Remedy, ...] = ()
    remedies_note: str = ""


def explanation_from_json(data: Mapping[str, Any]) -> Explanation:
    """The explanation that `Explanation.to_json` wrote; unknown keys are ignored.

    Raises:
        ValueError: one sentence, when something is missing or of another kind.
    """
    return cast(Explanation, _read(Explanation, "explanation of memory", data))


def findings_from_json(data: Mapping[str, Any]) -> Findings:
    """The findings whose fields ``data`` holds; unknown keys are ignored.

    Raises:
        ValueError: one sentence, when something is missing or of another kind.
    """
    return cast(Findings, _read(Findings, "list of remedies", data))


def short(file: str) -> str:
    """A file's own name, without its folders."""
    return file.replace("\\", "/").rpartition("/")[2]


def site_name(file: str | None, line: int | None, name: str) -> str:
    """A call site's short name: "train.py:41 step"; without a file, that there is no stack."""
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
    """Made when it is first asked for: most processes only write explanations."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
