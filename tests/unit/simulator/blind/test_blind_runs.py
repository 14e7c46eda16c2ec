"""What was predicted of other people's runs, held against the peaks that they state."""

from __future__ import annotations

import statistics
import sys

import pytest
import torch

from tests.unit.simulator.blind.runs import BEGIN, END, MISS, made_with, notes, page, predict, results, tables

LANGUAGE_MODELS = [result for result in results() if result.run.set == "xMem"]


def test_there_are_runs_enough_each_with_its_source() -> None:
    assert len(results()) >= 40
    assert len({result.run.source for result in results()}) == len(results())
    assert all(result.run.source.startswith("https://github.com/") and result.peak > 0 for result in results())


def test_language_models_are_predicted_within_one_percent_in_the_middle_and_better_than_by_others() -> None:
    ended = [result for result in LANGUAGE_MODELS if not result.ran_out]
    ours = statistics.median(abs(result.error) for result in ended)
    assert ours <= MISS
    for other in ("xMem", "DNNMem", "SchedTune", "LLMem"):
        asked = [result for result in ended if other in result.others]
        assert ours < statistics.median(abs(result.others[other] / result.peak - 1) for result in asked)


def test_whether_a_run_fits_was_said_rightly_of_each() -> None:
    assert [result.run for result in results() if result.predicted["fits"] == result.ran_out] == []


def test_every_miss_has_a_note_and_nothing_else_has() -> None:
    for result in results():
        missed = not result.ran_out and abs(result.error) > MISS
        assert bool(result.note) == missed, result.run
    assert {result.note for result in results() if result.note} == set(notes())


def test_the_guide_has_the_tables_that_the_code_makes() -> None:
    written = page().partition(BEGIN)[2].partition(END)[0]
    assert written == tables(), "python -m tests.unit.simulator.blind.runs writes them"


@pytest.mark.process
def test_a_run_is_predicted_today_as_it_was() -> None:
    if torch.__version__.split("+")[0] != made_with()["torch"]:
        pytest.skip(f"the predictions were made with torch {made_with()['torch']}")
    smallest = min(results(), key=lambda result: result.reserved)
    assert smallest.run.mlp is not None, "which needs no library but torch"
    assert predict(sys.executable, [smallest.run]) == [dict(smallest.predicted)]
