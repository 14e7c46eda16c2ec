"""What lies beside a report's snapshot: read with it, and left aside where it is damaged or something else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.explaining.explanation_text import report
from gpudash.memory.explaining.whole_need import NUMBERLESS, is_bound, with_need, with_reruns_of
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.memory.snapshot.report_html import report as page
from gpudash.memory.snapshot.sidecar import NOTHING
from gpudash.memory.snapshot.summary import studied
from gpudash.session.recordings.report_folder import (
    SHAPES_NAME,
    STEPS_NAME,
    shapes_of,
    sidecar_of,
    write_json,
    write_shapes,
    write_steps,
)
from gpudash.session.watching.out_of_memory import explanation_of
from gpudash.telemetry.explanation import Explanation, Need, explanation_from_json
from gpudash.units import GIB, MIB
from tests.unit.session.reports import leaking, refused

LEFT = "beside the snapshot was left aside: "


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Of a report: beside it lies what may be known."""
    return tmp_path / "snapshot.pickle"


def found(snapshot: Snapshot, path: Path) -> Explanation:
    return studied(snapshot, known=sidecar_of(path))[0].found


def test_a_report_tells_what_the_dashboard_told(snapshot: Path) -> None:
    read, steps = leaking()
    told = explanation_of(read, refused(steps))
    assert told.verdict == "leak" and sum(part.bytes for part in told.parts) == told.capacity_bytes == 600 * MIB
    assert studied(read)[0].found.verdict != "leak", "the file alone knows no steps"
    write_steps(snapshot.parent, steps)
    write_json(snapshot.with_name("explanation.json"), told.to_json())
    again = found(read, snapshot)
    assert report(again) == report(told)
    assert again.parts == told.parts and again.device == "sim:0"
    assert explanation_from_json(told.to_json()) == told
    assert "keeps 6 MiB alive per step" in page(read, "run", known=sidecar_of(snapshot))


def test_a_report_tells_what_reruns_had_found_and_leaves_out_what_they_refuted(snapshot: Path) -> None:
    read, steps = leaking()
    write_steps(snapshot.parent, steps)
    fresh = explanation_of(read, refused(steps))
    open_, *others = [remedy for remedy in fresh.remedies if not is_bound(remedy)]
    tried = replace(open_, fits=True, verified_by="rerun without numbers", predicted_peak_bytes=7 * MIB)
    need = Need(900 * MIB, 600 * MIB, 590 * MIB, 600 * MIB, 8, is_whole=True, seconds=4.0, found_by=NUMBERLESS)
    told = with_need(fresh.with_remedies((tried, *others)), need)
    write_json(snapshot.with_name("explanation.json"), told.to_json())
    again = found(read, snapshot)
    assert again.need == need and again.remedies_note == told.remedies_note
    assert [remedy.change for remedy in again.remedies] == [remedy.change for remedy in told.remedies]
    assert (again.remedies[0].fits, again.remedies[0].predicted_peak_bytes) == (True, 7 * MIB)
    assert "by rerun without numbers" in "\n".join(report(again))
    refuted = replace(open_, change="another edit", verified_by="", patch="--- a\n")
    assert with_reruns_of(fresh.with_remedies((refuted, *others)), told).remedies == again.remedies
    assert with_reruns_of(fresh, fresh) == fresh, "where nothing was run again nothing is known of it"


def test_shapes_of_batches_are_kept_with_a_report_and_those_of_an_earlier_one_are_not(snapshot: Path) -> None:
    row = [1, "/home/mia/train.py", "train", "x", [8, 128], 8192, 8192]
    write_shapes(snapshot.parent, shapes_of([row]))
    (kept,) = sidecar_of(snapshot).shapes
    assert kept == SeenTensor(1, "/home/mia/train.py", "train", "x", (8, 128), 8192, 8192)
    write_shapes(snapshot.parent, ())
    assert sidecar_of(snapshot).shapes == ()


@pytest.mark.parametrize(
    "written", ["{}", "[[1]]", '[[1, "a", "b", "c", [8, "128"], 1, 1]]', '[[1, "a", "b", "c", [-8], 1, 1]]', "[" * 9999]
)
def test_damaged_shapes_are_left_aside_with_a_warning(snapshot: Path, written: str) -> None:
    snapshot.with_name(SHAPES_NAME).write_text(written, encoding="utf-8")
    known = sidecar_of(snapshot)
    assert known.shapes == () and known.warnings[0].startswith(
        "shapes.json beside the snapshot was left aside: it is no "
    )


def test_with_the_steps_alone_the_growth_is_named(snapshot: Path) -> None:
    read, steps = leaking()
    write_steps(snapshot.parent, steps)
    assert found(read, snapshot).growing[0].bytes_per_step == 6 * MIB


def test_another_card_is_a_what_if_that_leaves_the_recorded_state_alone(snapshot: Path) -> None:
    read, steps = leaking()
    write_json(snapshot.with_name("explanation.json"), explanation_of(read, refused(steps)).to_json())
    as_it_was, asked = (studied(read, capacity, known=sidecar_of(snapshot))[0] for capacity in (None, GIB))
    assert asked.found.capacity_bytes == as_it_was.found.capacity_bytes == 600 * MIB
    assert asked.found.parts == as_it_was.found.parts
    assert asked.outcome is not None and as_it_was.outcome is None


def test_a_snapshot_that_is_not_of_a_report_is_known_by_itself(tmp_path: Path) -> None:
    write_steps(tmp_path, ((1, 1),))
    assert sidecar_of(tmp_path / "run7.pickle") is NOTHING
    assert sidecar_of(tmp_path / "none" / "snapshot.pickle") == NOTHING


def test_a_report_without_steps_keeps_none_of_the_one_before(tmp_path: Path) -> None:
    write_steps(tmp_path, ((1, 1), (2, 2)))
    write_steps(tmp_path, ())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b"[[1]]",
        b"[[1, 2, 3]]",
        b'[["1", 2]]',
        b"[[1.5, 2]]",
        b"[[-1, 2]]",
        b"[[true, 2]]",
        b"[[NaN, 2]]",
        b"[[99999999999999999999999, 2]]",
        b"[" * 100_000,
        json.dumps([[1, 2]] * 100_001).encode(),
    ],
)
def test_steps_that_are_damaged_or_something_else_are_left_aside(snapshot: Path, content: bytes) -> None:
    snapshot.with_name(STEPS_NAME).write_bytes(content)
    known = sidecar_of(snapshot)
    assert known.steps == ()
    assert known.warnings == (f"steps.json {LEFT}it is no list of times and numbers of steps.",)
    read, _ = leaking()
    assert known.warned(read).warnings[-1:] == known.warnings


def _changed(**figures: Any) -> bytes:
    read, steps = leaking()
    return json.dumps({**explanation_of(read, refused(steps)).to_json(), **figures}).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no explanation of memory."),
        (b"[1]", "it is no explanation of memory."),
        (b"[" * 100_000, "it is no explanation of memory."),
        (b'{"device": "sim:0"}', "it is no explanation of memory."),
        (_changed(capacity_bytes=-1), "its figures cannot be those of a device."),
        (_changed(capacity_bytes=2**70), "its figures cannot be those of a device."),
        (_changed(device="sim:first"), "its figures cannot be those of a device."),
    ],
)
def test_an_explanation_that_is_damaged_or_something_else_is_left_aside(
    snapshot: Path, content: bytes, why: str
) -> None:
    snapshot.with_name("explanation.json").write_bytes(content)
    known = sidecar_of(snapshot)
    assert known.cards == {} and known.warnings == (f"explanation.json {LEFT}{why}",)


def test_what_cannot_be_read_is_said(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot.with_name(STEPS_NAME).mkdir()
    assert sidecar_of(snapshot).warnings == (f"steps.json {LEFT}it cannot be read: it is a folder, not a file.",)
    snapshot.with_name(STEPS_NAME).rmdir()
    write_steps(snapshot.parent, ((1, 1),))
    monkeypatch.setattr("gpudash.session.recordings.report_folder.MOST_BYTES", 3)
    assert sidecar_of(snapshot).warnings == (f"steps.json {LEFT}it is larger than 0 MiB.",)

    def forbidden(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    assert sidecar_of(snapshot).warnings == (f"steps.json {LEFT}it cannot be read: Permission denied.",)


@given(steps=st.lists(st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1)), max_size=20))
def test_steps_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]) -> None:
    folder = tmp_path_factory.mktemp("report")
    write_steps(folder, steps)
    assert sidecar_of(folder / "snapshot.pickle").steps == tuple(sorted(steps))
