"""The table of events: a million rows, of which only those in sight are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.memory.snapshot.history.groups import Sites
from gpudash.memory.snapshot.history.model import Columns, Snapshot
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.ui.snapshot.events_pane import EventsModel, EventsPane, Filter, matching
from gpudash.ui.snapshot.rows import Places
from gpudash.units import MIB
from tests.ui.snapshot.conftest import OpenDocument
from tests.unit.memory.snapshot.made import STACKS, WEIGHTS


def many(count: int) -> Columns:
    """Allocations of growing size by the stacks in turn, a millisecond apart."""
    number = np.arange(count, dtype=np.int64)
    absent = np.full(count, -1, dtype=np.int32)
    return Columns(
        action=np.zeros(count, dtype=np.uint8),
        address=number * 512 + 2**30,
        size=number * 512,
        stream=np.zeros(count, dtype=np.int64),
        time_us=10**15 + number * 1000,
        stack=(number % len(STACKS)).astype(np.int32),
        pool=absent,
        device_free=np.full(count, -1, dtype=np.int64),
        context=absent,
        metadata=absent,
    )


PLACES = Places(STACKS, Sites(STACKS))


def test_only_cells_that_are_asked_for_are_made(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    cells = EventsModel.cells

    def counted(model: EventsModel, row: np.int64) -> tuple[str, ...]:
        made.append(int(row))
        return cells(model, row)

    monkeypatch.setattr(EventsModel, "cells", counted)
    pane = EventsPane()
    qtbot.addWidget(pane)
    pane.resize(800, 400)
    pane.show_events(many(1_000_000), PLACES)
    pane.show()
    QApplication.processEvents()
    assert pane.model is not None and pane.model.rowCount() == 1_000_000
    pane.show_moment(777_777)
    QApplication.processEvents()
    assert 777_777 in made and len(set(made)) < 100


def test_the_cells_say_what_the_event_is() -> None:
    model = EventsModel(many(10), PLACES.labels)
    assert model.cells(np.int64(3)) == ("3", "3.000", "alloc", "1.50 KiB", "0x40000600", "0", "train.py:10 build")
    titles = [model.headerData(place, Qt.Orientation.Horizontal) for place in range(model.columnCount())]
    assert titles == ["event", "time (ms)", "action", "size", "address", "stream", "where"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(), list(range(12))),
        (Filter(action="alloc", least_bytes=5120), [10, 11]),
        (Filter(action="oom"), []),
        (Filter(action="segments"), []),
        (Filter(text="BUILD"), [3, 6, 10]),
        (Filter(text="nowhere"), []),
    ],
)
def test_filters_let_through_what_they_say(wanted: Filter, expected: list[int]) -> None:
    assert matching(many(12), STACKS, wanted).tolist() == expected


def test_segments_are_what_the_device_was_asked_for(leaking: Snapshot) -> None:
    columns = leaking.devices[0].trace.columns
    found = matching(columns, STACKS, Filter(action="segments"))
    assert len(found) and {columns.actions[code] for code in columns.action[found].tolist()} == {"segment_alloc"}


def test_without_a_stack_an_event_matches_no_text(leaking: Snapshot) -> None:
    columns = leaking.devices[0].trace.columns
    without = replace(columns, stack=np.full_like(columns.stack, -1))
    assert not len(matching(without, STACKS, Filter(text="train")))


@pytest.fixture
def document(leaking: Snapshot, open_document: OpenDocument) -> SnapshotDocument:
    document = open_document(leaking)
    document.page.tabs.setCurrentWidget(document.page.events)
    return document


def test_the_selected_event_is_the_moment_and_shows_its_stack(document: SnapshotDocument) -> None:
    page = document.page
    page.events.view.setFocus()
    page.events.view.selectRow(3)
    assert page.selector.now.moment == 3
    assert "train.py" in page.stack.text.toPlainText()


def test_a_moment_picked_elsewhere_comes_into_sight(document: SnapshotDocument) -> None:
    document.page._pick((7, None))
    assert document.page.events.view.currentIndex().row() == 7
    assert document.page.selector.now.moment == 7


def test_a_size_that_is_none_is_marked_and_shows_all(document: SnapshotDocument) -> None:
    events = document.page.events
    events.least.setText("8 MiB")
    assert events.model is not None and (events.model.trace.size[events.model.rows] >= 8 * MIB).all()
    events.least.setText("8 bananas")
    assert events.least.property("invalid") == "true"
    assert events.model.rowCount() == len(events.model.trace)


def test_the_events_in_front_are_what_is_copied(document: SnapshotDocument) -> None:
    document.page.events.text.setText(WEIGHTS[1][2])
    document.copy_values()
    lines = [line.split("\t") for line in QGuiApplication.clipboard().text().split("\n")]
    assert lines[0][:3] == ["event", "time (ms)", "action"]
    model = document.page.events.model
    assert model is not None and len(lines) == 1 + model.rowCount()
    assert [tuple(line) for line in lines[1:]] == [model.cells(row) for row in model.rows]
