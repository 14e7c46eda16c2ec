"""The commit between two others that raised, or lowered, the peak of a program, and the lines that did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Protocol

from gpudash.session.predicting.bisecting.changed_lines import ChangedLine, changed_lines, largest
from gpudash.session.predicting.bisecting.peaks import CommitPeaks, Peak, PeakFinder, SearchedProgram
from gpudash.session.predicting.bisecting.repository import BisectError, Commit, Hunk, Repository
from gpudash.telemetry.comparing.baseline import TOLERANCE
from gpudash.units import format_bytes

HALF = 0.5
"""Part of the whole change from which a commit counts as changed unless another is asked for: the largest change
between the two crosses it."""

AROUND = 3
"""Unchanged lines that are shown around changed ones, as git does."""

MOST_HUNKS = 3
"""That are shown where the commit touches none of the lines: of their files, else of any of Python."""


@dataclass(frozen=True)
class Threshold:
    """From which change on a peak counts as another; `HALF` of the change that there is with neither.

    Attributes:
        share: of the peak at the first commit.
        bytes: how many.
    """

    share: float | None = None
    bytes: int | None = None

    def of(self, first: int) -> int | None:
        """In bytes, for the peak at the first commit."""
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
    """What a search came to.

    Attributes:
        commit: that changed the peak; ``None`` where commits without an answer lie in the way.
        previous: the one before it that `before` is of.
        before, after: the peaks at `previous` and `commit`; without a commit those at both ends of `suspects`.
        test: whose peaks they are; "" of a program.
        other_tests: whose peaks changed between the two ends as well.
        lines: that account for the change, the largest first.
        hunks: some of what the commit changes, where it touches none of `lines`: of their files, else of any.
        suspects: hashes of commits of which one changed the peak, where it cannot be told which.
        skipped: commits without an answer.
        commits: how many were searched.
        estimates: how many commits were asked about.
        kept: how many of those answers were known before.
        measured: whether tests measured the peaks; else they are predicted.
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
        """Bytes more after than before."""
        return self.after.bytes - self.before.bytes


def bisect(
    good: str,
    bad: str,
    subject: SearchedProgram,
    threshold: Threshold,
    interrupted: Callable[[], bool],
    notice: Callable[[str], None],
    *,
    lowered: bool = False,
) -> BisectResult:
    """Find the commit that raised the peak.

    Args:
        good, bad: names of commits; the peak is larger at the second, which has the first in its history.
        subject: what is run at each.
        threshold: from which change on a peak counts as raised.
        interrupted: whether the user wants no answer any more.
        notice: is given sentences on the way.
        lowered: look for the commit that lowered the peak instead.

    Raises:
        BisectError: one sentence, when there is no answer.
        KeyboardInterrupt: when ``interrupted``.
    """
    repository = Repository.around(subject.folder)
    first = repository.commit(good)
    last = repository.commit(bad)
    _check_order(repository, first, last, good, bad)
    if repository.is_dirty:
        notice("Changes of the working tree that are in no commit are left out: only commits are compared.")
    with repository.checkout(last) as checkout:
        finder = PeakFinder(repository, checkout, subject, last, interrupted)
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
    """Who knows the peak at a commit; see `PeakFinder`."""

    counted: int
    kept: int
    measures: bool

    def at(self, commit: Commit) -> CommitPeaks:
        """The answer of a commit."""

    def predict_instead(self) -> None:
        """Go on without the tests' own peaks."""


class Search:
    """One search; see `bisect`.

    Args:
        repository: with the history.
        finder: knows the peaks.
        notice, lowered: as of `bisect`.
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
        """Search between two commits, of which the second has the first in its history.

        Raises:
            BisectError: as `bisect`.
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
        """The answer at one of the two ends, which has to be."""
        answer = self._finder.at(commit)
        if answer.problem:
            raise BisectError(f"At {commit.short} there is no peak. {answer.problem}")
        for name, peak in answer.peaks.items():
            if not name:
                self._notice(f"{commit.short} {format_bytes(peak.bytes)}.")
        return answer

    def _choose(self, before: CommitPeaks, after: CommitPeaks, first: Commit, last: Commit) -> tuple[str, list[str]]:
        """The test whose peak changed most, and the others whose peak did."""
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
        """From how many bytes on the peak counts as changed."""
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
        """The peak at a commit; ``None`` where there is none, which skips it."""
        answer = self._finder.at(commit)
        peak = answer.peaks.get(self._test)
        if peak is None:
            reason = answer.problem or f"It has no {self._test}."
            self._skipped[commit.hash] = Skipped(commit, reason)
            self._notice(f"{commit.short} is skipped. {reason}")
        return peak

    def _next(self, suspects: Sequence[str], raised: Commit) -> str | None:
        """The commit to ask about; ``None`` when only commits without an answer are left."""
        left = [one for one in suspects if one not in self._skipped]
        if suspects and suspects[0] in self._skipped and len(left) > 1:
            return away(left, raised.hash)
        return next((one for one in left if one != raised.hash), None)

    def _result(self, raised: Commit, others: Sequence[Commit], suspects: Sequence[str]) -> BisectResult:
        """The answer, once nothing is left to ask."""
        after = self._finder.at(raised).peaks[self._test]
        if len(suspects) > 1:
            previous = others[-1]
            before = self._finder.at(previous).peaks[self._test]
            named = [self._repository.commit(one) for one in suspects]
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
            # What a line is given may come from anywhere.
            hunks = (own or [hunk for hunk in shown if hunk.text and hunk.new_file.endswith(".py")])[:MOST_HUNKS]
        return BisectResult(commit, previous, before, after, lines=lines, hunks=hunks)

    def _before(self, raised: Commit, others: Sequence[Commit]) -> tuple[Commit, Peak]:
        """The commit before, and its peak: the parent, or where that has none the last that was as before."""
        parents = [self._repository.commit(one) for one in raised.parents]
        known = {one.hash for one in others}
        # Of a merge, the parent that was asked already.
        ordered = sorted(parents, key=lambda one: one.hash not in known)
        if ordered:
            peak = self._peak(ordered[0])
            if peak is not None:
                return ordered[0], peak
        return others[-1], self._finder.at(others[-1]).peaks[self._test]

    def _with_text(self, line: ChangedLine, previous: Commit, commit: Commit) -> ChangedLine:
        """A line with what stands there."""
        if not line.file or line.file.startswith("/"):
            return line
        source = self._repository.text_of(previous if line.is_gone else commit, line.file).splitlines()
        if 0 < line.line <= len(source):
            return replace(line, text=source[line.line - 1].strip())
        return line


def away(suspects: Sequence[str], raised: str) -> str:
    """A commit off the middle, for the one there has no answer, and its neighbours mostly have none either.

    As ``git bisect skip`` does it (bisect.c, ``skip_away``): made up by the count, and so the same each time.

    Args:
        suspects: without those that were skipped, the best first; two or more.
        raised: the last of them, which is known.
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
