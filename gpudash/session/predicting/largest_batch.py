"""The largest batch with which a user's program fits its cards: found in its source, and verified by dry runs.

A number counts as the batch only where a dry run with a smaller one needs less, for the same weights. Only a batch
with which a dry run fitted is an answer.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gpudash.memory.allocator.trace import WEIGHTS, Trace, between
from gpudash.memory.explaining.patches import MOST_SOURCE_BYTES, in_folder
from gpudash.memory.predicting.estimate import GROWING
from gpudash.memory.snapshot.causes.batch_size import BatchSize, accumulated, named_batches, shaped_batches
from gpudash.memory.snapshot.command_line import ProgramCommand
from gpudash.memory.snapshot.source_edits import MOST_IMPORTED, SourceFile, imported_paths
from gpudash.session.watching.request import script_of
from gpudash.speed.work import StepWork
from gpudash.system.foreign_files import read_regular
from gpudash.telemetry.explanation import RunChange

MOST_RUNS = 3
"""Most dry runs for one number: two points give a line, and a third verifies what it says."""

ROUND = 8
CLOSE = 16
"""A multiple of `ROUND` is preferred that is less by at most this fraction: tensor cores like those best (NVIDIA, "Deep
Learning Performance: Get Started")."""

LAST = 7 / 8
"""The last batch that is tried is smaller by this factor than the one that should fit, if none has."""

MOST_REPLAYED = 30_000
"""Most requests that are replayed some thirty times: together about three seconds."""

SAMPLES = 16
"""Parts of the range of batches in which a replay looks for one that fits."""

EVEN_ONE = "Even a batch of 1 does not fit ({place})."


class ScriptFiles:
    """The source of a program that Python is given as a script or module, as in `ProgramFiles`.

    Args:
        command: its command and folder.
        script: the script, if the command does not say it.
    """

    def __init__(self, command: ProgramCommand, script: str = "") -> None:
        self.command = command
        self._script = script or _script(command.arguments)
        self._texts: dict[str, list[str]] = {}

    @cached_property
    def program_files(self) -> Sequence[SourceFile]:
        """The script; none for any other program."""
        path = posixpath.normpath(posixpath.join(self.command.folder, self._script))
        return self._files([path])

    @cached_property
    def imported_files(self) -> Sequence[SourceFile]:
        """The modules that it imports from its folder or the working directory, and those that these import."""
        found: list[SourceFile] = []
        files = self.program_files
        known = {file.file for file in files}
        while files:
            paths = [path for path in imported_paths(files, self.command.folder) if path not in known]
            files = self._files(paths)[: MOST_IMPORTED - len(found)]
            known.update(paths)
            found += files
        return found

    @cached_property
    def named_files(self) -> Sequence[SourceFile]:
        """Python files that the command names, such as settings."""
        known = {file.file for file in (*self.program_files, *self.imported_files)}
        return self._files([path for path in self.command.files if path not in known])

    def _files(self, paths: Sequence[str]) -> Sequence[SourceFile]:
        """Those of the files that can be read."""
        return [file for file in (SourceFile(path, self._line) for path in paths) if file.lines]

    def _line(self, file: str, line: int) -> str:
        if file not in self._texts:
            try:
                self._texts[file] = read_regular(file, MOST_SOURCE_BYTES).decode("utf-8").split("\n")
            except (OSError, ValueError):
                self._texts[file] = []
        lines = self._texts[file]
        if line > len(lines):
            return ""
        return lines[line - 1].rstrip()


def _script(arguments: Sequence[str]) -> str:
    """The Python file in a command, also behind a launcher such as torchrun, and of ``-m``; "" for none."""
    if not arguments:
        return ""
    script = script_of(arguments)
    if script is None and "-m" in arguments[:-1]:
        script = f"{arguments[list(arguments).index('-m') + 1].replace('.', '/')}.py"
    return script or next((argument for argument in arguments[1:] if argument.endswith(".py")), "")


def batches_of(files: ScriptFiles, work: StepWork | None) -> list[BatchSize]:
    """Numbers that may be the program's batch, the most certain first.

    Args:
        files: its source.
        work: the work of its step, whose leading sizes decide for tensors that it creates, if no name says so.
    """
    named = named_batches(files)
    if named or work is None:
        return named
    sizes = {work.items}
    for operation in work.operations:
        sizes.update(operation.shape[:2])
    found = (one for file in files.program_files for one in shaped_batches(file, lambda _number, size: size in sizes))
    return [batch for batch in found if len(batch.numbers) > 1][:1]


def batches_changed_by(remedies: Sequence[RunChange], files: ScriptFiles) -> Iterator[BatchSize]:
    """The batches of a program that some of its remedies make smaller."""
    shaped = (one for file in files.program_files for one in shaped_batches(file, lambda _number, _size: True))
    for batch in (*named_batches(files), *named_batches(files, evaluates=True), *shaped):
        if any(batch.size_in(remedy.change) is not None for remedy in remedies):
            yield batch


def edited(batch: BatchSize, size: int, folder: str) -> RunChange | None:
    """The program with another batch; ``None`` if its file cannot be changed or has changed.

    Args:
        batch: where the batch is defined.
        size: another one.
        folder: the program's folder, an absolute path.
    """
    patch = batch.patch(size)
    if patch:
        patch = in_folder(patch, folder, lambda file: read_regular(file, MOST_SOURCE_BYTES))
    command = batch.command(size)
    if not patch and not command:
        return None
    return RunChange(batch.text(size), patch=patch, command=command)


@dataclass(frozen=True)
class SizedRun:
    """A dry run of the program with one batch.

    Attributes:
        size: the batch.
        short_bytes: by how much its card has too little; negative: what is left.
        fits: whether it fits.
        peak_bytes: what tensors hold at the peak.
        traces: its requests, for each card.
        growing_bytes: what it holds at the peak that grows with the batch; 0 if unknown.
    """

    size: int
    short_bytes: int
    fits: bool
    peak_bytes: int
    traces: Sequence[Trace]
    growing_bytes: int = 0

    def is_batch_of(self, whole: SizedRun) -> bool:
        """Whether the number that was made smaller is the batch: tensors hold less, for the same weights."""
        # What is reserved for them changes in steps of whole segments.
        return self.peak_bytes < whole.peak_bytes and self._weights == whole._weights

    @property
    def _weights(self) -> list[int]:
        return [trace.most_held((WEIGHTS,)) for trace in self.traces]


def growing_bytes(by_category: Mapping[str, int]) -> int:
    """Bytes of what grows with a batch."""
    return sum(by_category.get(category, 0) for category in GROWING)


@dataclass
class BatchSearch:
    """The search for the largest batch that fits.

    Args:
        whole: the program as it is, which does not fit.
        tried: a dry run with another batch; ``None`` if that fails.
        passes: whether requests, for each card, succeed there.
        is_named: whether its name says that the number is the batch.
        earlier: dry runs with other batches that there were already.

    Attributes:
        runs: dry runs so far, the earlier ones included.
        best: the largest batch with which one fitted; ``None`` if none did.
        largest: the largest batch that fits, by a replay of the dry runs' requests; ``None`` if unknown.
    """

    whole: SizedRun
    tried: Callable[[int], SizedRun | None]
    passes: Callable[[Sequence[Trace]], bool]
    is_named: bool = False
    earlier: Sequence[SizedRun] = ()
    runs: int = 0
    best: SizedRun | None = None
    largest: int | None = None
    _known: dict[int, SizedRun] = field(default_factory=dict)

    def run(self) -> bool:
        """Search; returns whether the number is the batch, and something is known of it."""
        self._known[self.whole.size] = self.whole
        self.runs = len(self.earlier)
        for run in self.earlier:
            self._add(run)
        if self.earlier:
            size = self._next()
        else:
            size = self._first()
        while self.runs < MOST_RUNS and size not in self._known:
            self.runs += 1
            found = self.tried(size)
            if found is None:
                break
            # A batch of 1 that changes no peak either leaves one that is of weights and the optimizer's state.
            is_of_state = self.is_named and size == 1 and not found.fits and found.peak_bytes == self.whole.peak_bytes
            if not (found.is_batch_of(self.whole) or is_of_state):
                return False
            self._add(found)
            size = self._next()
        if self.best is None or (self.largest is not None and self.best.size < rounded(self.largest)):
            self.largest = None
        return self.best is not None or self.none_fits

    def _add(self, run: SizedRun) -> None:
        self._known[run.size] = run
        if run.fits:
            self.best = run

    @property
    def none_fits(self) -> bool:
        """Whether not even a batch of 1 fitted."""
        return 1 in self._known and self.best is None

    @property
    def refused(self) -> int:
        """The smallest batch that did not fit."""
        return min(run.size for run in self._known.values() if not run.fits)

    def _first(self) -> int:
        """By what grows with the batch at the peak, which gives a second point of the line without a dry run."""
        whole = self.whole
        size = whole.size // 2
        if whole.growing_bytes > 0:
            size = int(whole.size * (1 - whole.short_bytes / whole.growing_bytes))
        return max(1, rounded(min(size, whole.size - 1)))

    def _next(self) -> int:
        """The batch to try next; a known one at the end of the search."""
        low = 0
        if self.best is not None:
            low = self.best.size
        high = self.refused
        # The two that are nearest to the limit.
        near = sorted(self._known.values(), key=lambda run: abs(run.short_bytes))[:2]
        one, other = sorted(near, key=lambda run: run.size)
        self.largest = self._replayed(one, other, low, high)
        largest = self.largest
        if largest is None:
            largest = min(max(_on_line(one, other), low), high - 1)
        # A smaller batch that is known to fit is better than none.
        if self.best is None and self.runs == MOST_RUNS - 1:
            largest = int(largest * LAST)
        return max(1, low, rounded(largest))

    def _replayed(self, one: SizedRun, other: SizedRun, low: int, high: int) -> int | None:
        """The largest batch from ``low`` on and below ``high`` whose interpolated requests succeed; ``None`` if they
        cannot be interpolated, or are too many."""
        if _interpolated(one, other, max(1, low)) is None:
            return None

        def fits(size: int) -> bool:
            traces = _interpolated(one, other, size)
            return traces is not None and self.passes(traces)

        # A larger batch may fit where a smaller one does not, by how its blocks lie: look from above first.
        places = range(SAMPLES - 1, 0, -1)
        for size in dict.fromkeys(low + (high - low) * place // SAMPLES for place in places):
            if size > low and fits(size):
                low = size
                break
            high = max(size, low + 1)
        while high - low > 1:
            size = (low + high) // 2
            if fits(size):
                low = size
            else:
                high = size
        return low


def _on_line(one: SizedRun, other: SizedRun) -> int:
    """The largest batch that fits, if needs lie on a line; half of the smaller one if they do not grow."""
    slope = (other.short_bytes - one.short_bytes) / (other.size - one.size)
    if slope <= 0:
        return one.size // 2
    return int(one.size - one.short_bytes / slope)


def rounded(size: int) -> int:
    """The next lower multiple of `ROUND`, if that is close; else the size itself."""
    rest = size % ROUND
    if rest * CLOSE <= size:
        return size - rest
    return size


def _interpolated(one: SizedRun, other: SizedRun, size: int) -> list[Trace] | None:
    """What the program requests with a batch between two others, or beyond them; ``None`` if they differ in more."""
    if sum(len(trace.events) for trace in one.traces) > MOST_REPLAYED:
        return None
    share = (size - one.size) / (other.size - one.size)
    made = []
    for first, second in zip(one.traces, other.traces, strict=False):
        trace = between(first, second, share)
        # What cuDNN takes does not grow with a batch in between.
        if trace is None or min(trace.sizes, default=0) < 0 or first.convolutions != second.convolutions:
            return None
        made.append(trace)
    return made or None


def note_of(search: BatchSearch, batch: BatchSize, files: ScriptFiles) -> str:
    """How the largest batch was found, and what else it changes."""
    assert search.best is not None
    size = search.best.size
    what = "the largest that was tried and fits"
    if size in (search.largest, search.refused - 1):
        what = "the largest that fits"
    elif search.largest is not None or rounded(search.refused - 1) <= size:
        what = f"the largest multiple of {ROUND} that fits"
    how = f"{what}, by {search.runs} dry run{'s' * (search.runs != 1)}"
    return "; ".join([how, *_effects(search.best, batch, files, size)])


def _effects(run: SizedRun, batch: BatchSize, files: ScriptFiles, size: int) -> Iterator[str]:
    if not changes_training(run, batch):
        return
    count = accumulated(files)
    if count is None:
        yield "how many batches a step accumulates is computed by the program"
    elif count > 1:
        before = count * batch.value
        yield f"the effective batch becomes {count * size} in place of {before}, accumulated over {count}"
    else:
        yield f"a step learns from {size} samples in place of {batch.value}"
    work = run.traces[0].work
    if work is not None and any("batch_norm" in operation.name for operation in work.operations):
        yield f"the statistics of BatchNorm are of {size} samples"


def changes_training(run: SizedRun, batch: BatchSize) -> bool:
    """Whether a batch is of a training: the program computes gradients, and the batch is not of its evaluation."""
    phases = {mark.phase for trace in run.traces for mark in trace.marks}
    return not batch.evaluates and not phases.isdisjoint(("backward", "optimizer"))


def files_of(command: Sequence[str], folder: Path | None, script: str = "") -> ScriptFiles:
    """The source of a program, by its command and folder; ``None`` for the present one."""
    return ScriptFiles(ProgramCommand(tuple(command), str((folder or Path.cwd()).absolute())), script)
