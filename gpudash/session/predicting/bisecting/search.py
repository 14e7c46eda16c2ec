"""The commit between two others that raised, or lowered, the peak of a program, and the lines that did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Protocol

from gpudash.session.predicting.bisecting.changed_lines import ChangedLine, changed_lines, largest
from gpudash.session.predicting.bisecting.peaks import CommitPeaks, Peak, PeakFinder, SearchedProgram
from gpudash.session.predicting.bisecting.repository import BisectError, Commit, Hunk, Repository
from gpudash.system.foreign_files import read_regular_text
from gpudash.telemetry.comparing.baseline import TOLERANCE
from gpudash.units import format_bytes

HALF = 0.5
"""Share of the whole change from which a commit counts as changed, unless the user sets a threshold: the largest step
between the two ends crosses it."""

AROUND = 3
"""Context lines around changed ones, as in git."""

MOST_HUNKS = 3
"""How many hunks are shown if the commit touches none of the lines: of the lines' files, else of any Python file."""

RUNS = "Name a commit at which it runs, or a Python with the libraries that the commit needs."
"""What to do where an end of the search has no peak."""

MOST_SOURCE_BYTES = 4 * 2**20
"""Maximum size of a source file outside the repository whose lines are shown."""


@dataclass(frozen=True)
class Threshold:
    """From which change on a peak counts as raised; `HALF` of the whole change if neither is given.

    Attributes:
        share: change as a part of the peak at the first commit.
        bytes: change in bytes.
    """

    share: float | None = None
    bytes: int | None = None

    def of(self, first: int) -> int | None:
        """The threshold in bytes, for the given peak at the first commit."""
        if self.bytes is not None:
            return self.bytes
        if self.share is not None:
            return int(self.share * first)
        return None


@dataclass(frozen=True)
class Skipped:
    """A commit without an answer, and why."""

    commit: Commit
    reason: str


@dataclass(frozen=True)
class BisectResult:
    """The result of a search.

    Attributes:
        commit: the commit that changed the peak; ``None`` if commits without an answer leave several candidates.
        previous: the commit that `before` belongs to.
        before, after: peaks at `previous` and `commit`; without a commit, those at both ends of `suspects`.
        test: the test whose peaks these are; "" for a program.
        other_tests: other tests whose peaks changed between the two ends.
        lines: the lines that account for the change, the largest first.
        hunks: some hunks of the commit, if it touches none of `lines`: of their files, else of any.
        suspects: hashes of the candidates, if it cannot be decided which of them changed the peak.
        skipped: commits without an answer.
        commits: size of the searched range.
        estimates: how many commits were asked about.
        kept: how many of the answers came from the cache.
        measured: whether the peaks were measured by tests; otherwise they are predicted.
    """

    commit: Commit | None
    previous: Commit
    before: Peak
    after: Peak
    test: str = ""
    other_tests: Sequence[str] = ()
    lines: Sequence[ChangedLine] = ()
    hunks: Sequence[Hunk] = ()
    suspects: Sequence[Commit] = ()
    skipped: Sequence[Skipped] = ()
    commits: int = 0
    estimates: int = 0
    kept: int = 0
    measured: bool = False

    @property
    def difference(self) -> int:
        """Increase from before to after, in bytes."""
        return self.after.bytes - self.before.bytes


def bisect(
    good: str,
    bad: str,
    program: SearchedProgram,
    threshold: Threshold,
    interrupted: Callable[[], bool],
    notice: Callable[[str], None],
    *,
    lowered: bool = False,
) -> BisectResult:
    """Find the commit that raised the peak.

    Args:
        good, bad: names of two commits; the peak is larger at the second, which has the first in its history.
        program: the program that is run at each commit.
        threshold: the change from which a peak counts as raised.
        interrupted: whether the user has cancelled.
        notice: callback for progress messages, each a sentence.
        lowered: whether to look for the commit that lowered the peak instead.

    Raises:
        BisectError: one sentence, if there is no answer.
        KeyboardInterrupt: if ``interrupted``.
    """
    repository = Repository.around(program.folder)
    first = repository.commit(good)
    last = repository.commit(bad)
    _check_order(repository, first, last, good, bad)
    if repository.is_dirty:
        notice("Changes of the working tree that are in no commit are left out: only commits are compared.")
    with repository.checkout(last) as checkout:
        finder = PeakFinder(repository, checkout, program, last, interrupted)
        return Search(repository, finder, notice, lowered=lowered).run(first, last, threshold)


def _check_order(repository: Repository, first: Commit, last: Commit, good: str, bad: str) -> None:
    if first.hash == last.hash:
        raise BisectError(f"{good} and {bad} are the same commit.", "Name one before the rise and one after it.")
    if repository.is_ancestor(first, last):
        return
    if repository.is_ancestor(last, first):
        raise BisectError(
            f"{good} comes after {bad}.", "Name the older one first; --lowered finds the commit that lowered the peak."
        )
    base = repository.merge_base(first, last)
    if repository.is_shallow:
        remedy = "This clone is shallow; git fetch --unshallow brings the rest."
    elif base:
        remedy = f"Their common ancestor is {base[:12]}; give that in its place."
    else:
        remedy = "They have no common ancestor."
    raise BisectError(f"{good} is not in the history of {bad}.", remedy)


class PeaksByCommit(Protocol):
    """Provides the peak at a commit; see `PeakFinder`."""

    counted: int
    kept: int
    measures: bool

    def at(self, commit: Commit) -> CommitPeaks:
        """The answer for a commit."""

    def predict_instead(self) -> None:
        """Stop using the tests' own peaks."""


class Search:
    """A search; see `bisect`.

    Args:
        repository: the repository with the history.
        finder: provides the peaks.
        notice, lowered: as in `bisect`.
    """

    def __init__(
        self, repository: Repository, finder: PeaksByCommit, notice: Callable[[str], None], *, lowered: bool = False
    ) -> None:
        self._repository = repository
        self._finder = finder
        self._notice = notice
        self._lowered = lowered
        self._skipped: dict[str, Skipped] = {}
        self._test = ""

    def run(self, first: Commit, last: Commit, threshold: Threshold) -> BisectResult:
        """Search between two commits, the first of which is in the second's history.

        Raises:
            BisectError: as in `bisect`.
        """
        after_all = self._end(last)
        if self._finder.measures and not after_all.peaks:
            self._notice("No test of it measures its GPU memory; the whole is predicted as a program instead.")
            self._finder.predict_instead()
            after_all = self._end(last)
        before_all = self._end(first)
        self._test, others = self._choose(before_all, after_all, first, last)
        lowest = before_all.peaks[self._test]
        highest = after_all.peaks[self._test]
        limit = self._limit(lowest, highest, threshold, first, last)

        def is_changed(peak: Peak) -> bool:
            change = peak.bytes - lowest.bytes
            if self._lowered:
                return change <= -limit
            return change >= limit or peak.ran_out

        raised = last
        others_of: list[Commit] = [first]
        suspects = self._repository.suspects(raised, others_of)
        commits = len(suspects)
        while (chosen := self._next(suspects, raised)) is not None:
            commit = self._repository.commit(chosen)
            peak = self._peak(commit)
            if peak is None:
                continue
            if is_changed(peak):
                raised = commit
            else:
                others_of.append(commit)
            suspects = self._repository.suspects(raised, others_of)
            word = "changed" if is_changed(peak) else "as before"
            left = _count(len(suspects) - 1, "commit")
            self._notice(f"{commit.short} {format_bytes(peak.bytes)}, {word}; {left} left to tell.")
        found = self._result(raised, others_of, suspects)
        return replace(
            found,
            test=self._test,
            other_tests=others,
            skipped=tuple(self._skipped.values()),
            commits=commits,
            estimates=self._finder.counted,
            kept=self._finder.kept,
            measured=self._finder.measures,
        )

    def _end(self, commit: Commit) -> CommitPeaks:
        """The answer at one of the two ends; without one there is no search."""
        answer = self._finder.at(commit)
        if answer.problem:
            raise BisectError(f"At {commit.short} there is no peak. {answer.problem}", RUNS)
        for name, peak in answer.peaks.items():
            if not name:
                self._notice(f"{commit.short} {format_bytes(peak.bytes)}.")
        return answer

    def _choose(self, before: CommitPeaks, after: CommitPeaks, first: Commit, last: Commit) -> tuple[str, list[str]]:
        """The test whose peak changed most, and the other tests whose peak changed."""
        common = [name for name in after.peaks if name in before.peaks]
        if not common:
            raise BisectError(
                f"No test that measures its GPU memory is in both {first.short} and {last.short}.",
                "Give tests that both have, or a function by --callable.",
            )
        sign = -1 if self._lowered else 1

        def rise(name: str) -> float:
            low = before.peaks[name].bytes
            return sign * (after.peaks[name].bytes - low) / max(1, low)

        ordered = sorted(common, key=rise, reverse=True)
        return ordered[0], [name for name in ordered[1:] if rise(name) > TOLERANCE]

    def _limit(self, lowest: Peak, highest: Peak, threshold: Threshold, first: Commit, last: Commit) -> int:
        """The size in bytes from which the peak counts as changed."""
        sign = -1 if self._lowered else 1
        change = sign * (highest.bytes - lowest.bytes)
        wanted = threshold.of(lowest.bytes)
        ends = f"{format_bytes(lowest.bytes)} at {first.short}, {format_bytes(highest.bytes)} at {last.short}"
        if self._test:
            ends = f"{self._test}, {ends}"
        verb = "falls" if self._lowered else "rises"
        if change <= 0 and not highest.ran_out:
            remedy = ""
            if -change > TOLERANCE * lowest.bytes:
                remedy = "--lowered finds the commit that lowered it."
                if self._lowered:
                    remedy = "Leave --lowered out to find the commit that raised it."
            raise BisectError(f"The peak nowhere {verb} from the one to the other: {ends}.", remedy)
        if wanted is not None and wanted > change and not highest.ran_out:
            raise BisectError(
                f"The peak {verb} by less than {format_bytes(wanted)}: {ends}.", "Give less to --raised-by."
            )
        if wanted is not None:
            return max(1, wanted)
        if change <= TOLERANCE * lowest.bytes and not highest.ran_out:
            raise BisectError(
                f"The peak {verb} by less than {TOLERANCE * 100:g} %: {ends}.", "--raised-by 0.1% looks for less."
            )
        return max(1, int(HALF * change))

    def _peak(self, commit: Commit) -> Peak | None:
        """The peak at a commit; ``None`` skips the commit."""
        answer = self._finder.at(commit)
        peak = answer.peaks.get(self._test)
        if peak is None:
            reason = answer.problem or f"It has no {self._test}."
            self._skipped[commit.hash] = Skipped(commit, reason)
            self._notice(f"{commit.short} is skipped. {reason}")
        return peak

    def _next(self, suspects: Sequence[str], raised: Commit) -> str | None:
        """The next commit to try; ``None`` when only commits without an answer are left."""
        left = [one for one in suspects if one not in self._skipped]
        if suspects and suspects[0] in self._skipped and len(left) > 1:
            return away(left, raised.hash)
        return next((one for one in left if one != raised.hash), None)

    def _result(self, raised: Commit, others: Sequence[Commit], suspects: Sequence[str]) -> BisectResult:
        """The result, once no commit is left to try."""
        after = self._finder.at(raised).peaks[self._test]
        if len(suspects) > 1:
            previous = others[-1]
            before = self._finder.at(previous).peaks[self._test]
            named = list(map(self._repository.commit, suspects))
            return BisectResult(None, previous, before, after, suspects=named)
        previous, before = self._before(raised, others)
        commit = raised
        plain = self._repository.hunks(previous, commit, around=0)
        shown = self._repository.hunks(previous, commit, around=AROUND)
        lines = largest(changed_lines(before.lines, after.lines, plain, shown))
        lines = [self._with_text(line, previous, commit) for line in lines]
        hunks: list[Hunk] = []
        if not any(line.hunk for line in lines):
            files = {line.file for line in lines}
            own = [hunk for hunk in shown if hunk.text and {hunk.new_file, hunk.old_file} & files]
            # The allocation's cause may be in any Python file.
            hunks = (own or [hunk for hunk in shown if hunk.text and hunk.new_file.endswith(".py")])[:MOST_HUNKS]
        return BisectResult(commit, previous, before, after, lines=lines, hunks=hunks)

    def _before(self, raised: Commit, others: Sequence[Commit]) -> tuple[Commit, Peak]:
        """The previous commit and its peak: the parent, or if that has no answer the last commit with the old peak."""
        parents = list(map(self._repository.commit, raised.parents))
        known = {one.hash for one in others}
        # Of a merge, prefer the parent that has an answer already.
        ordered = sorted(parents, key=lambda one: one.hash not in known)
        if ordered:
            peak = self._peak(ordered[0])
            if peak is not None:
                return ordered[0], peak
        return others[-1], self._finder.at(others[-1]).peaks[self._test]

    def _with_text(self, line: ChangedLine, previous: Commit, commit: Commit) -> ChangedLine:
        """The line with its source."""
        if not line.file:
            return line
        if line.file.startswith("/"):
            # A file outside the repository is the same at every commit.
            try:
                source = read_regular_text(line.file, MOST_SOURCE_BYTES).splitlines()
            except (OSError, ValueError):
                return line
        else:
            source = self._repository.text_of(previous if line.is_gone else commit, line.file).splitlines()
        if 0 < line.line <= len(source):
            return replace(line, text=source[line.line - 1].strip())
        return line


def away(suspects: Sequence[str], raised: str) -> str:
    """A commit away from the middle: that one has no answer, and mostly its neighbours have none either.

    Follows ``git bisect skip`` (bisect.c, ``skip_away``): pseudo-random by the count, so the same each time.

    Args:
        suspects: two or more candidates without skipped ones, the best first.
        raised: the last of them, whose peak is known.
    """
    count = len(suspects)
    modulo = 32768
    made_up = ((count * 1103515245 + 12345) % 2**32 // 65536) % modulo
    place = (count * made_up // modulo) * isqrt(made_up) // isqrt(modulo)
    chosen = suspects[place]
    if chosen != raised:
        return chosen
    return suspects[place - 1]


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"
