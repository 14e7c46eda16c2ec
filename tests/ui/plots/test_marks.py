from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from gpudash.telemetry.records import (
    EpochFinished,
    Event,
    Marker,
    Note,
    RunStarted,
    SourceFailed,
    SourceRecovered,
    StageFinished,
    Topic,
    Warning,
)
from gpudash.telemetry.store import Store
from gpudash.ui.plots import overlay as marks_module
from gpudash.ui.plots.overlay import CATEGORIES, Mark, Marks, place
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from tests.ui.plots.conftest import Feed, refresh


def _epoch(time_s: float, epoch: int = 1) -> EpochFinished:
    return EpochFinished(time_s=time_s, epoch=epoch, device="cpu", loss=1, accuracy=0, seconds=1, observation="")


def _every_kind(time_s: float) -> list[Event]:
    return [
        Marker(time_s=time_s, label="here"),
        RunStarted(time_s=time_s, run_id=1, workload="training", device="cpu", spec={}),
        _epoch(time_s),
        StageFinished(time_s=time_s, run_id=1, name="move model", seconds=0.1),
        Warning(time_s=time_s, level="warning", device="host", text="memory"),
        SourceFailed(time_s=time_s, source="GPU-1", text="gone"),
        SourceRecovered(time_s=time_s, source="GPU-1", text=""),
        Note(time_s=time_s, topic="other", text="no mark"),
    ]


def test_every_category_that_can_be_hidden_is_one_that_something_makes(store: Store) -> None:
    for event in _every_kind(1.0):
        store.apply(event)
    marks = Marks(store)
    marks.follow()
    assert {mark.category for mark in marks.shown} == set(CATEGORIES)
    assert [mark.label for mark in marks.shown if mark.category == "source"] == ["GPU lost", "GPU back"]


class _Counted(deque[Any]):
    """A deque that counts what is taken out of it from its end."""

    taken = 0

    def __reversed__(self) -> Any:
        for item in super().__reversed__():
            self.taken += 1
            yield item


def test_only_new_events_are_looked_at(store: Store) -> None:
    for i in range(500):
        store.apply(_epoch(float(i), i))
        store.apply(Marker(time_s=float(i), label="m"))
    marks = Marks(store)
    marks.follow()
    store.end.events, store.end.markers = _Counted(store.events), _Counted(store.markers)
    store.apply(Marker(time_s=3.5, label="late"))
    marks.follow()
    marks.follow()
    assert store.events.taken == 1 and store.markers.taken == 2
    assert len(marks.shown) == 1001 and [m.time_s for m in marks.shown] == sorted(m.time_s for m in marks.shown)
    assert marks.shown[8] == Mark(3.5, "late", "user")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.floats(0, 100), st.booleans()), max_size=60))
def test_marks_taken_one_by_one_are_those_taken_at_once(happened: list[tuple[int, float, bool]]) -> None:
    store = Store()
    followed = Marks(store)
    followed.hide({"epoch"})
    for kind, time_s, look in happened:
        store.apply(_every_kind(time_s)[kind])
        if look:
            followed.follow()
    followed.follow()
    whole = Marks(store)
    whole.follow()
    whole.hide({"epoch"})
    assert Counter(followed.shown) == Counter(whole.shown)
    assert [mark.time_s for mark in followed.shown] == [mark.time_s for mark in whole.shown]
    followed.hide(())
    unbounded = [mark for mark in followed.shown if mark.category != "warning"]
    assert len(unbounded) == sum(kind not in (4, 7) for kind, _, _ in happened)


def test_marks_are_as_bounded_as_the_events_of_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.end.events, store.end.markers = deque(maxlen=10), deque(maxlen=10)
    monkeypatch.setattr(marks_module, "MOST", 40)
    marks = Marks(store)
    store.apply(Marker(time_s=0.0, label="kept"))
    for i in range(300):
        store.apply(_epoch(float(i)))
        marks.follow()
        assert len(marks.shown) <= 41
    assert marks.shown[0].label == "kept" and marks.shown[-1].time_s == 299.0


def test_the_mark_of_a_program_follows_it_to_its_device(store: Store) -> None:
    store.apply(_epoch(0.0))
    store.apply(RunStarted(time_s=1.0, run_id=1, workload="watch", device="cpu", spec={}))
    marks = Marks(store)
    marks.follow()
    assert [mark.label for mark in marks.shown] == ["epoch 1", "program on cpu"]
    store.apply(Note(time_s=2.0, run_id=1, topic=Topic.DEVICE, text="", details={"device": "cuda:0"}))
    marks.follow()
    assert [mark.label for mark in marks.shown] == ["epoch 1", "program on cuda:0"]


def test_hidden_categories_are_told_and_come_back(drawn: PlotStack, feed: Feed) -> None:
    feed.store.apply(Marker(time_s=15.0, label="m"))
    feed.store.apply(_epoch(16.0))
    drawn.set_hidden_marks({"user", "nothing of that kind"})
    refresh(drawn)
    assert drawn.hidden_marks == {"user"} and [mark.category for mark in drawn.marks] == ["epoch"]
    drawn.set_hidden_marks(())
    refresh(drawn)
    assert [mark.category for mark in drawn.marks] == ["user", "epoch"]


def test_marks_outside_the_plot_are_not_placed() -> None:
    marks = [Mark(float(i), f"m{i}", "user") for i in range(100)]
    asked: list[float] = []

    def x_of(time_s: float) -> float:
        asked.append(time_s)
        return time_s * 10

    placed = place(marks, x_of, 500.0, 520.0, lambda text: 5.0, lambda text, width: text)
    assert [item.mark.time_s for item in placed] == [50.0, 51.0, 52.0]
    assert len(asked) < 30


@pytest.mark.parametrize("others", [[("passed", "warning")], [("critical", "warning"), ("mine", "user")]])
def test_that_memory_ran_out_is_readable_whatever_is_marked_beside_it(others: list[tuple[str, str]]) -> None:
    full = Mark(10.0, "out of memory", "run")
    marks = [full, *(Mark(10.0 + 0.1 * n, label, category) for n, (label, category) in enumerate(others))]
    placed = place(marks, lambda t: 40 * t, 0.0, 500.0, lambda text: 8.0 * len(text), lambda text, width: text)
    assert {one.mark.label: one.text for one in placed}["out of memory"] == "out of memory"
    passed = [one for one in placed if one.mark.label == "passed"]
    assert [one.text for one in passed] in ([], [""]), "that a warning passed gives way"


def test_where_there_is_room_for_one_label_a_run_s_beginning_is_named_and_not_the_end_of_another() -> None:
    marks = [Mark(9.0, "finished", "run"), Mark(10.0, "matmul on cpu", "run"), Mark(11.5, "finished", "run")]
    placed = place(marks, lambda t: 20 * t, 60.0, 240.0, lambda text: 8.0 * len(text), lambda text, width: text)
    named = [one.text for one in placed if one.text]
    assert "matmul on cpu" in named and named.count("finished") <= 1


def test_marks_of_a_run_are_drawn_on_every_plot_and_labelled_on_the_first(drawn: PlotStack, store: Store) -> None:
    store.apply(RunStarted(time_s=12.0, run_id=1, workload="training", device="cpu", spec={}))
    store.apply(Warning(time_s=15.0, level="warning", device="host", text="memory"))
    refresh(drawn)
    assert [(m.time_s, m.category) for m in drawn.marks] == [(12.0, "run"), (15.0, "warning")]
    for position, plot in enumerate(drawn.plots):
        texts = [label.text for label in plot.labels()]
        assert len(plot.canvas.overlay._content.marks) == 2
        assert ("training on cpu" in texts) == (position == 0)
    drawn.set_hidden_marks({"warning"})
    refresh(drawn)
    assert [m.category for m in drawn.marks] == ["run"]


def test_no_mark_s_line_goes_through_a_label(drawn: PlotStack, store: Store) -> None:
    store.apply(RunStarted(time_s=15.0, run_id=1, workload="training", device="cuda:0", spec={}))
    for time_s in (13.9, 14.2, 15.3, 15.6):
        store.apply(_epoch(time_s))
    refresh(drawn)
    plot = drawn.plots[0]
    overlay, geometry = plot.canvas.overlay, plot.geometry_now
    assert geometry is not None and "training on cuda:0" in [label.text for label in overlay.labels]
    lines = [overlay.line_of(placed, geometry) for placed in overlay._content.marks]
    assert len(lines) == 5 and len({line.y1() for line in lines}) == 2, "some reach up to their labels"
    for line in lines:
        assert not [label.text for label in overlay.labels if label.rect.contains(line.p1())]


def test_brackets_jump_between_marks(drawn: PlotStack, store: Store, view: TimeView, qtbot: QtBot) -> None:
    for time_s in (2.0, 12.0, 18.0):
        store.apply(Marker(time_s=time_s, label="m"))
    refresh(drawn)
    drawn.jump_mark(-1)
    assert view.cursor_s == 18.0 and view.following
    drawn.jump_mark(-1)
    drawn.jump_mark(-1)
    assert view.cursor_s == 2.0 and not view.following
    start, end = view.range()
    assert start <= 2.0 <= end
    drawn.jump_mark(-1)
    assert view.cursor_s == 2.0
    drawn.jump_mark(1)
    assert view.cursor_s == 12.0


def test_a_mark_is_named_in_its_place_and_no_key_means_anything_else_meanwhile(
    drawn: PlotStack, view: TimeView, qtbot: QtBot
) -> None:
    named: list[tuple[str, float]] = []
    drawn.mark_named.connect(lambda name, time_s: named.append((name, time_s)))
    drawn.name_mark(15.0)
    refresh(drawn)
    field, plot = drawn.mark_field, drawn.plots[0]
    geometry = plot.geometry_now
    assert geometry is not None and field.isVisible() and field.hasFocus()
    assert field.x() == pytest.approx(plot.canvas.mapTo(drawn, QPoint(0, 0)).x() + geometry.x_of(15.0), abs=4)
    qtbot.keyClicks(field, "my [m] mark")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    assert named == [("my [m] mark", 15.0)] and not field.isVisible() and plot.canvas.hasFocus()
    drawn.name_mark(2.0)
    assert view.range()[0] <= 2.0, "what is out of view is brought there"
    qtbot.keyClick(field, Qt.Key.Key_Escape)
    assert len(named) == 1 and not field.isVisible()


def test_of_the_crossings_of_a_level_in_a_run_the_first_and_the_last_have_a_mark(store: Store) -> None:
    marks = Marks(store)
    for time_s in range(10):
        store.apply(Warning(time_s=float(time_s), level="critical", device="sim:0", text="99 % full"))
        store.apply(Warning(time_s=time_s + 0.5, level="passed", device="sim:0", text="passed"))
        marks.follow()
    assert [(mark.time_s, mark.label) for mark in marks.shown] == [
        (0.0, "critical"),
        (0.5, "passed"),
        (9.0, "critical"),
        (9.5, "passed"),
    ]
    store.apply(RunStarted(time_s=20.0, run_id=2, workload="training", device="sim:0", spec={}))
    store.apply(Warning(time_s=21.0, level="critical", device="sim:0", text="99 % full"))
    marks.follow()
    assert [mark.time_s for mark in marks.shown if mark.label == "critical"] == [0.0, 9.0, 21.0]
    fresh = Marks(store)
    fresh.follow()
    assert fresh.shown == marks.shown
