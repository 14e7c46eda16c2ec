"""The largest batch of a program that fits: the number in its source, and the dry runs that verify it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS, Trace, TraceMark
from gpudash.memory.predicting.estimate import Target, fits, judge
from gpudash.session.predicting import program
from gpudash.session.predicting.attempt import FollowedRun, Launch, NotFollowed
from gpudash.session.predicting.estimator import Answer, Problem
from gpudash.session.predicting.largest_batch import (
    MOST_RUNS,
    BatchSearch,
    SizedRun,
    batches_of,
    edited,
    files_of,
    growing_bytes,
    rounded,
)
from gpudash.session.predicting.program import (
    ProgramQuestion,
    callable_question,
    judge_program,
    with_batch_of_callable,
    with_largest_batch,
)
from gpudash.speed.work import PRODUCT, Operation, StepWork
from gpudash.units import MIB

CARD = Target("sim:0", 1000 * MIB, 1000 * MIB, overhead_bytes=300 * MIB)

SAMPLE = 3 * MIB + 40_000
"""Bytes for each sample of a batch: the card has room for 197."""


def trace_of(size: int, *, sample: int = 3 * MIB, weights: int = 100 * MIB, more: int = 0) -> Trace:
    """A step with weights, and two activations that grow with the batch; ``more`` blocks make another structure."""
    sizes = [weights, size * sample // 2, size * sample // 2, *[512] * more]
    categories = [WEIGHTS, *[ACTIVATIONS] * (2 + more)]
    blocks = range(2, len(sizes) + 1)
    events = [1, *blocks, *(-block for block in blocks)]
    marks = [TraceMark(1, 1, "forward"), TraceMark(len(sizes), 1, "backward")]
    return Trace(array("q", events), array("q", sizes), categories, marks, followed=1)


def run_of(size: int, trace: Trace) -> SizedRun:
    found = judge(trace, CARD, "train.py")
    growing = growing_bytes(found.by_category)
    return SizedRun(
        size, -(found.spare_bytes or 0), found.fits is True, found.peak_allocated_bytes or 0, [trace], growing
    )


def passes(traces: Sequence[Trace]) -> bool:
    return fits(traces[0], CARD) is True


def search_of(size: int, made: Callable[[int], Trace | None], tried: list[int] | None = None) -> BatchSearch:
    """A search in a program whose requests with a batch are what ``made`` returns."""

    def run(other: int) -> SizedRun | None:
        if tried is not None:
            tried.append(other)
        trace = made(other)
        return None if trace is None else run_of(other, trace)

    whole = made(size)
    assert whole is not None
    return BatchSearch(run_of(size, whole), run, passes)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 300), st.integers(3, 400))
def test_the_batch_that_is_found_was_tried_and_no_larger_one_fits_but_less_than_a_multiple_of_eight(
    size: int, mib: int
) -> None:
    def made(batch: int) -> Trace:
        return trace_of(batch, sample=mib * MIB)

    largest = max((batch for batch in range(1, size + 1) if passes([made(batch)])), default=0)
    if size <= largest:
        return
    tried: list[int] = []
    search = search_of(size, made, tried)
    assert search.run()
    assert len(tried) == search.runs <= MOST_RUNS
    if not largest:
        assert search.none_fits and 1 in tried
        return
    assert search.best is not None and search.best.size in tried
    assert search.best.size == rounded(search.best.size) and passes([made(search.best.size)])
    assert search.largest == largest
    assert rounded(largest) <= search.best.size <= largest


def test_where_the_requests_differ_in_more_than_their_sizes_a_line_leads_to_it() -> None:
    search = search_of(512, lambda batch: trace_of(batch, more=batch % 3))
    assert search.run()
    assert search.largest is None
    assert search.best is not None and 180 <= search.best.size <= 200


def test_a_number_that_changes_no_peak_is_not_the_batch() -> None:
    tried: list[int] = []
    assert not search_of(512, lambda _batch: trace_of(512), tried).run()
    assert len(tried) == 1


@pytest.mark.parametrize("is_named", [True, False])
def test_where_weights_alone_are_too_large_a_batch_of_one_says_so_if_its_name_does(is_named: bool) -> None:
    search = search_of(2, lambda _batch: trace_of(2, weights=900 * MIB))
    search.is_named = is_named
    assert search.run() is is_named
    assert search.none_fits is is_named


def test_a_number_that_changes_the_weights_too_is_not_the_batch() -> None:
    assert not search_of(512, lambda batch: trace_of(batch, weights=batch * MIB)).run()


def test_a_dry_run_that_fails_ends_the_search_with_what_had_fitted() -> None:
    assert not search_of(512, lambda batch: trace_of(batch) if batch == 512 else None).run()
    # Without knowing what grows, it begins with the half.
    search = search_of(360, lambda batch: trace_of(batch) if batch in (360, 176) else None)
    search.whole = replace(search.whole, growing_bytes=0)
    assert search.run()
    assert search.best is not None and search.best.size == 176


@pytest.mark.parametrize(("size", "expected"), [(157, 152), (152, 152), (127, 120), (20, 20), (7, 7), (0, 0), (33, 32)])
def test_a_multiple_of_eight_is_preferred_where_it_is_close(size: int, expected: int) -> None:
    assert rounded(size) == expected


def values(folder: Path, *command: str, work: StepWork | None = None) -> list[tuple[str, int]]:
    files = files_of(command or ("python", "train.py"), folder)
    return [(batch.place, batch.value) for batch in batches_of(files, work)]


def test_the_number_is_found_in_the_script_and_in_modules_that_its_modules_import(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("from lib.engine import train\n")
    (tmp_path / "lib" / "engine.py").write_text("from lib import config\n")
    (tmp_path / "lib" / "config.py").write_text("WIDTH = 300\nBATCH = 300\n")
    assert values(tmp_path) == [("config.py:2", 300)]
    assert values(tmp_path, "torchrun", "--nproc_per_node", "2", "train.py") == [("config.py:2", 300)]
    assert values(tmp_path, "python", "-m", "lib.engine") == [("config.py:2", 300)]
    assert values(tmp_path, "python", "train.py", "--batch-size", "64") == [("--batch-size", 64)]


@pytest.mark.parametrize("text", ["batch_size = 64\ndef broken(:\n", "rate = 64\n", "batch_size = size()\n", "\xff"])
def test_without_a_number_in_a_source_that_is_python_there_is_no_batch(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text, encoding="latin-1")
    assert values(tmp_path) == values(tmp_path, "python", "-c", "batch_size = 64") == []


def test_a_size_without_a_name_is_the_batch_where_it_recurs_and_leads_what_the_step_computes(tmp_path: Path) -> None:
    step = "def step():\n    x = torch.randn(256, 512)\n    y = torch.randint(0, 10, (256,))\n"
    (tmp_path / "train.py").write_text(step)
    product = Operation("addmm", PRODUCT, "float32", 1, 1, 1, shape=(1, 256, 512, 512))
    assert values(tmp_path, work=StepWork({product: 1})) == [("train.py:2", 256)]
    assert values(tmp_path, work=StepWork({product._replace(shape=(1, 128, 512, 512)): 1})) == []
    (tmp_path / "train.py").write_text("\n".join(step.splitlines()[:2]))
    assert values(tmp_path, work=StepWork({product: 1})) == []


def test_the_diff_changes_the_batch_alone_and_there_is_none_once_the_file_has_changed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("bs, width = 64, 64\nlayer = Linear(64, width)\n")
    (batch,) = batches_of(files_of(("python", "train.py"), tmp_path), None)
    change = edited(batch, 24, str(tmp_path))
    assert change is not None and change.change == "train.py:1: a batch of 24 in place of 64"
    assert [row for row in change.patch.splitlines() if row[:1] in "+-"] == [
        "--- train.py",
        "+++ train.py",
        "-bs, width = 64, 64",
        "+bs, width = 24, 64",
    ]
    script.write_text("bs, width = 65, 64\nlayer = Linear(64, width)\n")
    assert edited(batch, 24, str(tmp_path)) is None


def followed(trace: Trace, began_s: float = float("inf")) -> FollowedRun:
    card = {"index": 0, "trace": trace.to_json(), "lines": [], "kept": [], "fraction": 1.0}
    answer = {"rank": None, "cards": [card], "assumptions": [], "remark": "", "torch": "2.13.0"}
    return FollowedRun([answer], "unknown", "sandbox", began_s)


class Edited:
    """An attempt of a program whose diff says its batch."""

    held_output = False
    launches: list[Launch]

    def __init__(self, launch: Launch, numbers: str) -> None:
        assert numbers == "unknown"
        self._launch = launch

    def run(self, interrupted: Callable[[], bool]) -> FollowedRun | NotFollowed:
        if interrupted():
            raise KeyboardInterrupt
        if not self._launch.edit:
            return followed(trace_of(512, sample=SAMPLE))
        self.launches.append(self._launch)
        added = next(row for row in self._launch.edit.splitlines() if row.startswith("+") and "batch_size = " in row)
        size = int(added.rpartition("= ")[2])
        if size < 4:
            return NotFollowed(Problem("raised", "Expected more than 1 value per channel."))
        return followed(trace_of(size, sample=SAMPLE))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Attempts that were made."""
    assert program.Attempt
    monkeypatch.setattr(program, "Attempt", Edited)
    Edited.launches = []
    return Edited.launches


def asked(folder: Path, text: str, *, interrupted: bool = False, began_s: float = float("inf")) -> Answer:
    (folder / "train.py").write_text(text)
    question = ProgramQuestion(("python", "train.py"), CARD, folder=folder)
    whole = followed(trace_of(512, sample=SAMPLE), began_s)
    answer = judge_program(question, whole, CARD.architecture)
    notices: list[str] = []
    found = with_largest_batch(question, whole, answer, lambda: interrupted, notices.append)
    assert all(text.startswith("The largest batch of train.py that fits is looked for (") for text in notices)
    return found


def test_a_program_that_does_not_fit_is_told_the_largest_batch_with_its_diff(
    tmp_path: Path, launches: list[Launch]
) -> None:
    estimate = asked(tmp_path, "batch_size = 512\naccumulation_steps = 4\n").estimate
    assert estimate is not None
    first = estimate.alternatives[0]
    assert first.fits is True and first.changes_training
    assert first.change == "train.py:1: a batch of 192 in place of 512"
    assert "+batch_size = 192" in first.patch and first.patch == launches[-1].edit
    assert first.note.startswith("the largest multiple of 8 that fits, by ")
    assert first.note.endswith("; the effective batch becomes 768 in place of 2048, accumulated over 4")
    assert estimate.largest_batch_size == 197
    assert len(launches) <= MOST_RUNS and not any(launch.lets_write for launch in launches)


@pytest.mark.parametrize(
    ("more", "ending"),
    [
        ("", "a step learns from 192 samples in place of 512"),
        ("accumulation_steps = 1024 // batch_size", "a step accumulates is computed by the program"),
        ("Trainer(accumulation_steps=args.accumulation_steps)", "a step learns from 192 samples in place of 512"),
        ("loss_accum = 0.0", "a step learns from 192 samples in place of 512"),
    ],
)
def test_what_a_smaller_batch_does_to_the_training_is_said(
    tmp_path: Path, launches: list[Launch], more: str, ending: str
) -> None:
    estimate = asked(tmp_path, f"batch_size = 512\n{more}\n").estimate
    assert estimate is not None and estimate.alternatives[0].note.endswith(ending)


def test_the_batch_of_an_evaluation_changes_no_training(tmp_path: Path, launches: list[Launch]) -> None:
    estimate = asked(tmp_path, "val_batch_size = 512\n").estimate
    assert estimate is not None
    first = estimate.alternatives[0]
    assert "+val_batch_size = 192" in first.patch and not first.changes_training
    assert "learns" not in first.note


@pytest.mark.parametrize("text", ["rate = 512\n", "batch_size = 512\ndef broken(:\n"])
def test_without_a_number_the_answer_stays_as_it_is(tmp_path: Path, launches: list[Launch], text: str) -> None:
    estimate = asked(tmp_path, text).estimate
    assert estimate is not None and estimate.largest_batch_size is None
    assert not launches and not any(way.patch for way in estimate.alternatives)


@pytest.mark.parametrize(("interrupted", "began_s"), [(True, float("inf")), (False, 0.0)], ids=["left", "changed"])
def test_a_search_that_is_left_and_a_file_that_was_changed_since_the_run_change_no_answer(
    tmp_path: Path, launches: list[Launch], interrupted: bool, began_s: float
) -> None:
    estimate = asked(tmp_path, "batch_size = 512\n", interrupted=interrupted, began_s=began_s).estimate
    assert estimate is not None and estimate.largest_batch_size is None
    assert not any(way.patch for way in estimate.alternatives)


@pytest.mark.parametrize("name", ["batch_size", "rate"])
def test_a_function_of_ones_own_is_edited_in_its_file(
    tmp_path: Path, launches: list[Launch], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"{name} = 512\n")
    question = callable_question(sys.executable, "train.py:build", 3, CARD, 60.0)
    whole = judge_program(question, followed(trace_of(512, sample=SAMPLE)), CARD.architecture).estimate
    assert whole is not None
    estimate = with_batch_of_callable(question, whole, lambda: False)
    if name == "rate":
        assert estimate == whole
        return
    assert estimate.alternatives[0].change == "train.py:1: a batch of 192 in place of 512"
    assert estimate.alternatives[1:] == whole.alternatives
    assert launches[0].command[0] == sys.executable and launches[0].command[2:] == ("train.py:build", "3")
