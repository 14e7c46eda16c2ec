"""Summaries of a recording: written with its rows, read back as they were, refused where they are damaged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.telemetry.recording.pages import Pages
from gpudash.telemetry.recording.reading import open_recording
from gpudash.telemetry.recording.recorder import width_of
from gpudash.telemetry.records import RunStarted, StepFinished
from gpudash.telemetry.runs import DIGEST_VALUES, RunView
from gpudash.telemetry.series import BucketRow, merged_pairs, summary
from tests.unit.session.recordings import GPU, records, write

VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(-1e12, 1e12)), min_size=1, max_size=300)


def reference(times: np.ndarray, values: np.ndarray) -> list[float]:
    """One bucket, worked out the plain way."""
    there = ~np.isnan(values)
    t, v = times[there], values[there]
    gaps = times[~there]
    gap = gaps[0] if len(gaps) else math.nan
    if not len(v):
        return [times[0], times[-1], *[math.nan] * 8, gap, 0.0, 0]
    low, high = int(v.argmin()), int(v.argmax())
    points = [t[0], v[0], t[-1], v[-1], t[low], v[low], t[high], v[high]]
    return [times[0], times[-1], *points, gap, v.sum(), len(v)]


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(1, 70))
def test_buckets_of_any_number_of_samples_say_what_the_samples_say(found: list[float], width: int) -> None:
    values = np.array(found)
    times = np.arange(len(values)) / 4
    rows = summary(times, values, width)
    for number in range(rows.shape[1]):
        part = slice(number * width, (number + 1) * width)
        assert rows[:, number] == pytest.approx(reference(times[part], values[part]), nan_ok=True)
    pairs = merged_pairs(rows)
    assert pairs.shape[1] == -(-rows.shape[1] // 2)
    assert pairs[BucketRow.COUNT].sum() == rows[BucketRow.COUNT].sum()
    assert np.fmin.reduce(pairs[BucketRow.MIN]) == pytest.approx(np.fmin.reduce(rows[BucketRow.MIN]), nan_ok=True)


@pytest.mark.parametrize(("samples", "width"), [(1, 1), (15, 1), (16, 2), (130, 16), (512, 64), (4096, 64)])
def test_few_samples_are_kept_one_by_one_and_many_in_buckets(samples: int, width: int) -> None:
    assert width_of(samples) == width


def test_what_is_summarised_adds_up_to_what_the_store_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.telemetry.recording.recorder.PAGE_ROWS", 300)
    store, _ = write(tmp_path / "a.gpudash", records(700))
    with open_recording(tmp_path / "a.gpudash") as recording:
        pages = Pages(recording)
        last = pages.pages[-1]
        assert len(pages.pages) > 5
        assert pages.damaged == set()
        assert all(sum(page.rows.values()) <= sum(last.rows.values()) for page in pages.pages)
        for key, series in store.curves():
            rows, count = pages.buckets(recording, key, len(pages.pages))
            times, values = series.newest(len(series))
            assert count <= len(series)
            assert rows[BucketRow.START_T, 0] == times[0]
            assert rows[BucketRow.COUNT].sum() == (~np.isnan(values[:count])).sum()
            assert rows[BucketRow.SUM].sum() == pytest.approx(np.nansum(values[:count]))
        assert ("gpu", "idle_bytes", GPU) in pages.keys


def test_a_recording_without_summaries_has_none(tmp_path: Path) -> None:
    write(tmp_path / "a.gpudash", records(20), summaries=False)
    with open_recording(tmp_path / "a.gpudash") as recording:
        pages = Pages(recording)
    assert (pages.pages, pages.digests, pages.keys) == ([], [], frozenset())


def run(steps: int) -> RunView:
    view = RunView.of(RunStarted(time_s=0.0, run_id=1, workload="training", device="cpu", spec={}))
    for step in range(1, steps + 1):
        loss = math.nan if step == 3 else float(step * 7919 % 1009)
        view.apply(StepFinished(time_s=step, run_id=1, step=step, steps=steps, seconds=1.0, loss=loss))
    return view


@pytest.mark.parametrize("steps", [1, 3, 100, 5000])
def test_a_run_restored_from_its_digest_has_the_same_figures(steps: int) -> None:
    whole, again = run(steps), run(0)
    again.restore(whole.digest())
    assert again.summary() == whole.summary()


def test_the_median_of_a_restored_run_that_goes_on_stays_near_the_true_one() -> None:
    whole, again = run(6000), run(0)
    again.restore(run(5000).digest())
    for step in range(5001, 6001):
        loss = float(step * 7919 % 1009)
        again.apply(StepFinished(time_s=step, run_id=1, step=step, steps=6000, seconds=1.0, loss=loss))
    found, true = again.metrics["loss"], whole.metrics["loss"]
    assert (found.count, found.min, found.max, found.last_20_median) == (
        true.count,
        true.min,
        true.max,
        true.last_20_median,
    )
    assert found.median == pytest.approx(true.median, abs=1009 * 4 * 0.5 / math.sqrt(DIGEST_VALUES))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"step": 1}', '{"stages": 3, "metrics": 4}'])
def test_what_is_no_digest_is_refused_and_changes_nothing(text: str) -> None:
    view = run(10)
    before = view.summary()
    with pytest.raises(ValueError, match="not a run's digest"):
        view.restore(text)
    assert view.summary() == before
