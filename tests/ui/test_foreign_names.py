"""Names full of markup in every field of every record, in the real documents: no widget holds HTML that is not ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QAbstractItemModel, QAbstractListModel, QModelIndex
from PySide6.QtGui import QAction, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QComboBox,
    QLabel,
    QMessageBox,
    QTabBar,
    QTextEdit,
    QWidget,
)
from pytestqt.qtbot import QtBot

from gpudash.memory.explaining.explain import explain
from gpudash.session.watching.attaching.candidates import Candidate
from gpudash.session.watching.output.log import OutputLine
from gpudash.system.settings import Settings, recordings_folder
from gpudash.telemetry.comparing import ComparedRun
from gpudash.telemetry.explanation import explanation_from_json
from gpudash.telemetry.records import EVENTS, Event, Note, RunStarted, Sample, event_from_json
from gpudash.ui.features.run import AttachDialog
from gpudash.ui.fleet.compare_document import FleetComparison, GpuSide
from gpudash.ui.fleet.gpu_document import GpuDocument
from gpudash.ui.fleet.header import Range
from gpudash.ui.recordings.compare.document import CompareDocument
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.ui.widgets.theme import apply_theme
from gpudash.units import MIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.fleet.conftest import Overview
from tests.ui.fleet.fake_fleet import NOW_S, FakeFleet
from tests.ui.fleet.fake_fleet import gpu as fleet_gpu
from tests.ui.fleet.fake_view import FakeView
from tests.ui.recordings import KeptSession, open_recording
from tests.ui.snapshot.conftest import wait_until_ready
from tests.ui.snapshot.opened import FakeOpened
from tests.ui.test_explanation import STATE
from tests.ui.test_operators_tab import note as operators_note
from tests.unit.memory.snapshot.made import Made as MadeSnapshot
from tests.unit.telemetry.comparing.made import MADE

MARKUP = "<img src=gone.png><b>&shown"
"""A name as somebody may give it to a device, a function or a file; it holds no slash, so that a file may have it."""

TAG = "<img"


def marked(value: Any, keys: frozenset[str] = frozenset()) -> Any:
    """``value`` with the markup for every text; where ``keys`` are given, for the texts of those keys alone."""
    if isinstance(value, str):
        return value if keys else MARKUP
    if isinstance(value, dict):
        return {
            key: marked(item) if not keys or (key in keys and isinstance(item, (str, list))) else marked(item, keys)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [marked(item, keys) for item in value]
    return value


ENDS = {"RunFinished": "finished", "RunFailed": "failed", "OutOfMemory": "out_of_memory"}
"""Status of each kind of end."""


def filled(kind: str, time_s: float) -> Event:
    """An event of this kind in JSON with markup in every text, and the smallest of everything else."""

    def value(annotation: str) -> Any:
        if annotation.startswith("Literal"):
            return annotation.split("'")[1]
        if annotation == "Level":
            return "critical"
        if annotation == "RunStatus":
            return ENDS[kind]
        if annotation.startswith("Mapping"):
            return {MARKUP: MARKUP, "message": MARKUP, "explanation": MARKUP, "remedy": MARKUP, "nested": [MARKUP]}
        if annotation.startswith("Sequence"):
            return [MARKUP] if "str" in annotation else [1]
        return {"str": MARKUP, "bool": True}.get(annotation.partition(" ")[0], 1)

    fields = {field.name: value(str(field.type)) for field in dataclasses.fields(EVENTS[kind])}
    fields |= {"time_s": time_s, "run_id": 1}
    if "explanation" in fields:
        fields["explanation"] = explanation_from_json(
            marked(explain(STATE, lambda file, line: MARKUP).to_json(), frozenset({"file", "name", "text", "product"}))
        )
    return EVENTS[kind](**fields)


TOPICS = ("placement", "pitfall", "corpus", "rank", "ranks", "observation", MARKUP)


def feed(session: FakeSession) -> None:
    """Readings and happenings whose every text is markup."""
    session.feed(1.0)
    now = session.now_s
    session.apply(
        RunStarted(time_s=now, run_id=1, workload=MARKUP, device=MARKUP, spec={MARKUP: MARKUP, "script": MARKUP})
    )
    for table, device in (("process", session.gpus[0].uuid), ("process", None), ("allocator", MARKUP)):
        values = {"pid": 7, "name": MARKUP, "user": MARKUP, "memory_bytes": 5, "allocated_bytes": 9, MARKUP: MARKUP}
        session.apply(Sample(now, table, device, values))  # type: ignore[arg-type]
    for kind in EVENTS:
        if kind not in ("RunStarted", *ENDS):
            session.apply(filled(kind, now))
    for topic in TOPICS:
        session.apply(Note(time_s=now, run_id=1, topic=topic, text=MARKUP, details={"message": MARKUP}))
    told = operators_note()
    names = frozenset({"name", "stack", "shapes", "names", "lanes"})
    session.apply(dataclasses.replace(told, time_s=now, run_id=1, text=MARKUP, details=marked(told.details, names)))
    session.feed(1.0)
    session.apply(filled("RunFailed", session.now_s))
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="watch", device="cpu", spec={"script": MARKUP}))
    session.apply(dataclasses.replace(filled("OutOfMemory", session.now_s), run_id=2))
    session.feed(1.0)


def tips(model: QAbstractItemModel | None) -> Iterator[str]:
    if model is None:
        return
    role = Qt.ItemDataRole.ToolTipRole
    nowhere = QModelIndex()
    for column in range(1 if isinstance(model, QAbstractListModel) else model.columnCount(nowhere)):
        yield str(model.headerData(column, Qt.Orientation.Horizontal, role) or "")
        for row in range(min(200, model.rowCount(nowhere))):
            yield str(model.index(row, column, nowhere).data(role) or "")


def texts_of(widget: QWidget) -> Iterator[tuple[str, bool]]:
    """Every text of a widget, and whether Qt lays it out as HTML."""
    guess = Qt.mightBeRichText
    for tip in (widget.toolTip(), widget.whatsThis()):
        yield tip, guess(tip)
    if isinstance(widget, QLabel):
        plain = widget.textFormat() is Qt.TextFormat.PlainText
        yield widget.text(), not plain and (widget.textFormat() is not Qt.TextFormat.AutoText or guess(widget.text()))
    if isinstance(widget, QTextEdit):
        yield widget.toHtml(), True
    if isinstance(widget, QMessageBox):
        yield widget.text(), widget.textFormat() is not Qt.TextFormat.PlainText and guess(widget.text())
    if isinstance(widget, QAbstractItemView):
        yield from ((tip, guess(tip)) for tip in tips(widget.model()))
    if isinstance(widget, QComboBox):
        yield from ((tip, guess(tip)) for tip in tips(widget.model()))
    if isinstance(widget, QTabBar):
        yield from ((widget.tabToolTip(place), guess(widget.tabToolTip(place))) for place in range(widget.count()))
    for action in widget.actions():
        yield action.toolTip(), guess(action.toolTip())


def pressed_words(root: QWidget) -> Iterator[str]:
    """What buttons, tabs and menus say, where one ``&`` underlines what follows."""
    for button in root.findChildren(QAbstractButton):
        yield button.text()
    for bar in root.findChildren(QTabBar):
        yield from (bar.tabText(place) for place in range(bar.count()))
    for action in root.findChildren(QAction):
        yield action.text()


def shown_in(*roots: QWidget) -> int:
    """How many texts hold the markup as it is written; none of them is HTML, and none has lost its ``&``.

    Every one of them is looked at, in whatever tab or menu it is.
    """
    QApplication.processEvents()
    widgets = [widget for root in roots for widget in (root, *root.findChildren(QWidget))]
    found = [(type(widget).__name__, text, rich) for widget in widgets for text, rich in texts_of(widget)]
    assert [entry for entry in found if entry[2] and TAG in entry[1]] == []
    assert [text for root in roots for text in pressed_words(root) if "&shown" in text.replace("&&", "")] == []
    return sum(TAG in text or "&lt;img" in text for _name, text, _rich in found)


@pytest.mark.parametrize("kind", EVENTS)
def test_a_happening_of_every_kind_can_hold_markup_in_every_text(kind: str) -> None:
    event = filled(kind, 1.0)
    plain = [f.name for f in dataclasses.fields(EVENTS[kind]) if str(f.type) in ("str", "str | None")]
    assert all(getattr(event, name) == MARKUP for name in plain)
    assert event_from_json(event.to_json()).kind == kind


def hostile_session(kind: type[FakeSession] = FakeSession) -> Any:
    return kind([gpu(0, MARKUP), gpu(1, f"{MARKUP} 2")])


def test_in_the_live_window(open_window: OpenWindow) -> None:
    session = hostile_session()
    session.settings = Settings()
    window = open_window(session)
    feed(session)
    session.output.begin()
    session.output.add([OutputLine("stdout", MARKUP), OutputLine("stderr", MARKUP)])
    for title in range(window.workspace.dashboard.tabs.bar.count()):
        window.workspace.dashboard.tabs.bar.setCurrentIndex(title)
        settle(window)
    window.workspace.notice.report(MARKUP, button=MARKUP)
    window.workspace.report(MARKUP)
    settle(window)
    assert shown_in(window) > 10


def test_in_a_recording_whose_file_has_such_a_name(open_window: OpenWindow, qtbot: QtBot, tmp_path: Path) -> None:
    session = hostile_session(KeptSession)
    feed(session)
    path = session.save(tmp_path / f"{MARKUP}.gpudash")
    window = open_window(FakeSession())
    document = open_recording(window, path, qtbot)
    assert document.dashboard is not None
    for place in range(document.dashboard.tabs.bar.count()):
        document.dashboard.tabs.bar.setCurrentIndex(place)
        settle(window)
    assert shown_in(window) > 10
    assert MARKUP.replace("&", "&&")[:8] in window.workspace.bar.tabText(1)


def test_in_a_snapshot(qtbot: QtBot, qapp: QApplication) -> None:
    made = MadeSnapshot(256 * MIB)
    made.until_full(8 * MIB, 4 * MIB)
    snapshot = made.snapshot()
    stacks = tuple(tuple((MARKUP, line, MARKUP) for _file, line, _name in stack) for stack in snapshot.stacks)
    devices = tuple(dataclasses.replace(device, stacks=stacks) for device in snapshot.devices)
    snapshot = dataclasses.replace(snapshot, devices=devices, stacks=stacks, warnings=(MARKUP,))
    opened = FakeOpened(Path(f"{MARKUP}.pickle"), snapshot)
    document = SnapshotDocument(opened, apply_theme(qapp, "dark"))  # type: ignore[arg-type]
    qtbot.addWidget(document)
    document.resize(1280, 800)
    document.show()
    wait_until_ready(qtbot, document)
    for place in range(document.page.tabs.count()):
        document.page.tabs.setCurrentIndex(place)
        QApplication.processEvents()
        document.refresh()
    assert shown_in(document) >= 5
    document.close_document()


def test_over_a_fleet_and_in_the_past_of_its_gpus(qapp: QApplication, qtbot: QtBot) -> None:
    told = dataclasses.replace(
        fleet_gpu(MARKUP, 0, full=0.99, product=MARKUP, run=MARKUP, stale=True),
        labels={"pod": MARKUP, MARKUP: MARKUP},
        torch_name=MARKUP,
    )
    palette = apply_theme(qapp, "dark")
    overview = Overview(FakeFleet((told, dataclasses.replace(told, key="b", index=1)), problem=None), palette)
    overview.fleet.problem = MARKUP
    overview.later(1.0)
    overview.document.strip.all.click()
    overview.later(1.0)
    view_of_past = FakeView(told, NOW_S - 60, NOW_S)
    past = GpuDocument(view_of_past, told, palette, Settings())  # type: ignore[arg-type]
    views = [view_of_past, FakeView(told, NOW_S - 60, NOW_S), FakeView(told, NOW_S - 60, NOW_S)]
    sides = tuple(GpuSide(view, told) for view in views[1:])  # type: ignore[arg-type]
    compared = FleetComparison(sides, palette, chosen=Range(), days=0, wall_clock=lambda: NOW_S)  # type: ignore[arg-type]
    for document in (past, compared):
        qtbot.addWidget(document)
        document.show()
    for view in views:
        view.answer(problem=MARKUP)
        past.refresh()
        compared.refresh()
        view.answer()
        past.refresh()
        compared.refresh()
    assert shown_in(overview.document) >= 3
    assert shown_in(past) >= 1 and shown_in(compared) >= 2


def test_in_a_comparison(qtbot: QtBot, qapp: QApplication) -> None:
    made = MADE.but(workload=MARKUP, device=MARKUP, spec={MARKUP: MARKUP}, marks=((MARKUP, 0.5),))
    runs = {f"{letter}.gpudash": made.but(step_s=step).run(MARKUP) for letter, step in (("a", 0.01), ("b", 0.02))}

    def load(path: Path, _number: int | None, _cancelled: object) -> ComparedRun:
        return runs[path.name]

    document = CompareDocument([Path("/runs/a.gpudash"), Path("/runs/b.gpudash")], apply_theme(qapp, "dark"), load)
    qtbot.addWidget(document)
    document.resize(1280, 760)
    document.show()

    def ready() -> bool:
        document.refresh()
        return document.comparison is not None

    qtbot.waitUntil(ready)
    assert shown_in(document) > 3
    document.close_document()


def test_in_the_library(open_window: OpenWindow, qtbot: QtBot, home: Path) -> None:
    session = hostile_session(KeptSession)
    feed(session)
    folder = recordings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    session.save(folder / f"{MARKUP}.gpudash")
    window = open_window(FakeSession())
    window.menus.actions["file.library"].trigger()
    document: Any = window.workspace.front

    def read() -> bool:
        document.refresh()
        return [row.entry.facts is not None for row in document.table.shown()][:1] == [True]

    qtbot.waitUntil(read, timeout=20_000)
    document.table.selectAll()
    settle(window)
    assert shown_in(window) >= 2


def test_in_dialogs(qtbot: QtBot, open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    dialog = AttachDialog(lambda: (Candidate(4711, MARKUP, 5, 6),), lambda _pid: True)
    qtbot.addWidget(dialog)
    dialog.show()
    qtbot.waitUntil(lambda: not dialog._timer.isActive())
    assert shown_in(dialog) >= 1
    dialog.reject()
    boxes: list[QMessageBox] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: boxes.append(box))
    window = open_window(FakeSession())

    def refuse() -> None:
        raise ValueError(MARKUP)

    assert not window.workspace.attempt(refuse)
    assert shown_in(boxes[0]) >= 1
