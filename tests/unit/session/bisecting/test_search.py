"""The search for the commit that changed the peak, over histories made by git and peaks that are known."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

import pytest

from gpudash.session.predicting.bisecting.peaks import CommitPeaks, Peak
from gpudash.session.predicting.bisecting.repository import BisectError, Commit
from gpudash.session.predicting.bisecting.search import RUNS, BisectResult, Search, Threshold, away
from gpudash.units import MIB
from tests.unit.session.bisecting.histories import History, KnownPeaks

FEW = 13

HALF = Threshold()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Thirteen commits, "0" to "12"; each writes its number into a file, and "7" a line above others as well."""
    made = History(tmp_path_factory.mktemp("history") / "repository")
    source = "import torch\nmodel = build()\nloss = model(x)\n"
    for number in range(FEW):
        if number == 7:
            source = "import torch\n# larger\nmodel = build(wide=True)\nloss = model(x)\n"
        made.commit(str(number), number__txt=str(number), train__py=source)
    return made


def searched(
    history: History, peaks: KnownPeaks, threshold: Threshold = HALF, *, lowered: bool = False
) -> BisectResult:
    repository = history.repository
    first = repository.commit(f"HEAD~{FEW - 1}")
    search = Search(repository, peaks, lambda _text: None, lowered=lowered)
    return search.run(first, repository.commit("HEAD"), threshold)


@pytest.mark.parametrize("risen", [1, 6, 7, 12])
def test_the_commit_that_raised_the_peak_is_found_with_no_more_peaks_than_promised(
    history: History, risen: int
) -> None:
    peaks = KnownPeaks({str(number): (100 if number < risen else 150) * MIB for number in range(FEW)})
    found = searched(history, peaks)
    assert found.commit is not None and found.commit.subject == str(risen)
    assert found.previous.subject == str(risen - 1)
    assert (found.before.bytes, found.after.bytes) == (100 * MIB, 150 * MIB)
    assert found.commits == FEW - 1 and found.estimates == peaks.counted <= ceil(log2(FEW - 1)) + 2


def test_a_commit_that_lowered_the_peak_is_found_when_that_is_asked(history: History) -> None:
    peaks = {str(number): (100 if number < 4 else 50) * MIB for number in range(FEW)}
    found = searched(history, KnownPeaks(peaks), lowered=True)
    assert found.commit is not None and found.commit.subject == "4" and found.difference == -50 * MIB
    with pytest.raises(BisectError, match=r"nowhere rises .* 100 MiB at \w+, 50 MiB at") as raised:
        searched(history, KnownPeaks(peaks))
    assert "--lowered" in raised.value.remedy


def test_the_largest_of_several_rises_is_found_and_a_given_threshold_finds_the_first(history: History) -> None:
    peaks = {str(number): 100 * MIB + (10 * MIB) * (number >= 3) + (90 * MIB) * (number >= 9) for number in range(FEW)}
    found = searched(history, KnownPeaks(peaks))
    assert found.commit is not None and found.commit.subject == "9"
    for threshold in (Threshold(share=0.05), Threshold(bytes=8 * MIB)):
        found = searched(history, KnownPeaks(peaks), threshold)
        assert found.commit is not None and found.commit.subject == "3"


def test_commits_that_cannot_be_run_are_skipped(history: History) -> None:
    peaks = {str(number): (100 if number < 10 else 150) * MIB for number in range(FEW) if number not in (5, 6, 7)}
    found = searched(history, KnownPeaks(peaks))
    assert found.commit is not None and found.commit.subject == "10"
    assert {one.commit.subject for one in found.skipped} <= {"5", "6", "7"} and found.skipped
    assert all(one.reason == "It cannot be imported." for one in found.skipped)


def test_where_such_commits_lie_before_the_rise_all_that_it_may_be_are_named(history: History) -> None:
    peaks = {str(number): (100 if number < 5 else 150) * MIB for number in range(FEW) if number not in (5, 6, 7)}
    found = searched(history, KnownPeaks(peaks))
    assert found.commit is None
    assert {commit.subject for commit in found.suspects} == {"5", "6", "7", "8"}
    assert (found.before.bytes, found.after.bytes) == (100 * MIB, 150 * MIB)


def test_a_full_card_counts_as_risen_whatever_was_measured_until_then(history: History) -> None:
    peaks: dict[str, int | Peak] = {str(number): 100 * MIB for number in range(FEW)}
    peaks |= {str(number): Peak(90 * MIB, ran_out=True) for number in range(8, FEW)}
    found = searched(history, KnownPeaks(peaks))
    assert found.commit is not None and found.commit.subject == "8"


def test_the_line_that_grew_is_named_where_the_commit_has_moved_it_with_the_hunk_that_touches_it(
    history: History,
) -> None:
    small = Peak(100 * MIB, {"train.py:2": 40 * MIB, "train.py:3": 60 * MIB})
    large = Peak(150 * MIB, {"train.py:3": 90 * MIB, "train.py:4": 60 * MIB})
    found = searched(history, KnownPeaks({str(number): small if number < 7 else large for number in range(FEW)}))
    (line,) = found.lines
    assert (line.file, line.line, line.text, line.difference) == (
        "train.py",
        3,
        "model = build(wide=True)",
        50 * MIB,
    )
    assert line.hunk is not None and "+model = build(wide=True)" in line.hunk.text


def test_a_line_of_a_file_outside_the_repository_is_shown_with_its_text(history: History, tmp_path: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text("import train\nstep = train.step()\n")
    small = Peak(100 * MIB, {f"{bench}:2": 40 * MIB, f"{tmp_path}/gone.py:2": 0})
    large = Peak(150 * MIB, {f"{bench}:2": 90 * MIB, f"{tmp_path}/gone.py:2": 9 * MIB})
    found = searched(history, KnownPeaks({str(number): small if number < 7 else large for number in range(FEW)}))
    assert [(line.file, line.text) for line in found.lines] == [
        (str(bench), "step = train.step()"),
        (f"{tmp_path}/gone.py", ""),
    ]


@pytest.mark.parametrize(
    ("risen", "threshold", "said"),
    [
        (100.0, Threshold(), "nowhere rises"),
        (100.5, Threshold(), "rises by less than 1 %"),
        (120.0, Threshold(share=0.3), "rises by less than 30 MiB"),
    ],
)
def test_without_a_rise_there_is_no_search(history: History, risen: float, threshold: Threshold, said: str) -> None:
    peaks = KnownPeaks({"0": 100 * MIB, "12": int(risen * MIB)})
    with pytest.raises(BisectError, match=said):
        searched(history, peaks, threshold)
    assert peaks.counted == 2


def test_an_end_that_cannot_be_run_is_said_with_its_reason(history: History) -> None:
    with pytest.raises(BisectError, match=r"At \w{12} there is no peak. It cannot be imported.") as raised:
        searched(history, KnownPeaks({"12": MIB}))
    assert raised.value.remedy == RUNS


class PeaksOfTests(KnownPeaks):
    """Two tests, of which one rises at "2" and the other, by more, at "9"; a third is new."""

    def __init__(self) -> None:
        super().__init__({})
        self.measures = True

    def at(self, commit: Commit) -> CommitPeaks:
        number = int(commit.subject)
        peaks = {"test_a": Peak(100 + 10 * (number >= 2)), "test_b": Peak(100 + 50 * (number >= 9))}
        if number > 5:
            peaks["test_new"] = Peak(900)
        return CommitPeaks(peaks)


def test_of_several_tests_that_which_rose_most_is_followed_and_the_others_are_named(history: History) -> None:
    found = searched(history, PeaksOfTests())
    assert found.commit is not None and found.commit.subject == "9"
    assert found.test == "test_b" and list(found.other_tests) == ["test_a"] and found.measured


def test_beside_a_commit_that_cannot_be_run_another_is_chosen_which_is_never_the_known_one() -> None:
    for count in range(2, 300):
        suspects = [str(number) for number in range(count)]
        for known in (suspects[0], suspects[-1]):
            assert away(suspects, known) in suspects and away(suspects, known) != known


def test_a_merge_is_told_with_the_parent_that_lacks_the_rise(tmp_path: Path) -> None:
    made = History(tmp_path / "merged")
    made.commit("start", a__txt="1")
    made.git("checkout", "--quiet", "-b", "side")
    made.commit("side", b__txt="1")
    made.git("checkout", "--quiet", "main")
    made.commit("main", c__txt="1")
    made.git("merge", "--quiet", "--no-edit", "-m", "merge", "side")
    repository = made.repository
    peaks = KnownPeaks({"start": 100, "side": 100, "main": 100, "merge": 200})
    found = Search(repository, peaks, lambda _text: None).run(
        repository.commit("HEAD~2"), repository.commit("HEAD"), Threshold()
    )
    assert found.commit is not None and found.commit.subject == "merge"
    assert found.previous.subject in ("main", "side") and found.before.bytes == 100
