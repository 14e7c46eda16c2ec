"""Tables below the plots."""

from __future__ import annotations

from PySide6.QtCore import QItemSelectionModel, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from gpudash.telemetry.records import (
    EpochFinished,
    Event,
    Marker,
    RunEnd,
    RunStarted,
    Sample,
    StageFinished,
    Transfer,
    Warning,
)
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.dashboard.cards import device_rows
from gpudash.ui.dashboard.tabs.lower_tabs import LowerTabs
from gpudash.ui.dashboard.tabs.rows import epoch_rows, stage_rows
from gpudash.ui.dashboard.tabs.step_parts_row import BAR_SHARE
from gpudash.ui.widgets.tables import SLIVER_PX, Column, Table
from gpudash.ui.widgets.theme import restyle


def stored(*events: Event) -> Store:
    store = Store()
    for event in events:
        store.apply(event)
    return store


def run_with_stages() -> Store:
    return stored(
        RunStarted(time_s=0.0, run_id=1, workload="pipeline", device="cpu", spec={}),
        StageFinished(time_s=1.0, run_id=1, name="create", seconds=0.25, bytes=4000, shape=(10, 100), dtype="float32"),
        StageFinished(time_s=2.0, run_id=1, name="move", seconds=0.75, bytes=4000, copied=False),
        StageFinished(time_s=3.0, run_id=1, name="move", seconds=0.75, bytes=4000, copied=True),
    )


def test_copied_rows_can_be_pasted_into_a_spreadsheet(qtbot: QtBot) -> None:
    table = Table("Things", [Column("thing"), Column("bytes")], "none yet")
    qtbot.addWidget(table)
    table.show_rows([("a\tb", "1"), ("c", "2")])
    table.copy()
    assert QGuiApplication.clipboard().text() == "thing\tbytes\na b\t1\nc\t2"
    chosen = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
    table.view.selectionModel().select(table.model.index(1, 0), chosen)  # whichever keys are still held
    assert table.text() == "thing\tbytes\nc\t2"


def test_an_empty_table_says_what_will_appear(qtbot: QtBot) -> None:
    table = Table("Things", [Column("thing")], "Things appear here.")
    qtbot.addWidget(table)
    table.show()
    assert not table.view.isVisible()
    table.show_rows([("a",)])
    assert table.view.isVisible()


def test_columns_never_shrink_while_rows_come_and_go(qtbot: QtBot) -> None:
    table = Table("Things", [Column("thing"), Column("", wide=True)], "")
    qtbot.addWidget(table)
    table.show_rows([("a rather long cell of text", "")])
    width = table.view.columnWidth(0)
    table.show_rows([("a", "")])
    assert table.view.columnWidth(0) == width


def test_the_rate_of_a_stage_counts_only_what_was_copied() -> None:
    rows = stage_rows(run_with_stages().run)
    by_name = {row[0]: row for row in rows}
    assert by_name["create"][2] == "10 × 100"
    assert by_name["move"][7] == "5.33 kB/s"
    assert by_name["move"][4] == "2"


def told(qtbot: QtBot, store: Store, selection: tuple[float, float] | None = None) -> list[list[str]]:
    """The rows of the events table over ``store``."""
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.show()
    tabs.bar.setCurrentIndex(tabs.bar.count() - 1)
    tabs.take(store.events, 0.0)
    tabs.refresh(store, selection, [])
    assert tabs.current() is tabs.events
    return [list(row) for row in tabs.events.model.rows]


def test_a_selection_filters_stages_epochs_and_events(qtbot: QtBot) -> None:
    store = run_with_stages()
    store.apply(
        EpochFinished(
            time_s=4.0, run_id=1, epoch=1, device="cpu", loss=1.0, accuracy=0.5, seconds=4.0, observation="first"
        )
    )
    store.apply(Marker(time_s=5.0, label="here"))
    assert [row[0] for row in stage_rows(store.run, (0.5, 1.5))] == ["create"]
    assert epoch_rows(store.run, (0.0, 3.9)) == []
    assert len(epoch_rows(store.run, (3.9, 4.1))) == 1
    assert [row[2] for row in told(qtbot, store)] == ["mark", "epoch", "run"]
    assert [row[2] for row in told(qtbot, store, (3.9, 4.1))] == ["epoch"]


def test_events_are_told_newest_first_and_leave_steps_to_the_plots(qtbot: QtBot) -> None:
    store = run_with_stages()
    store.apply(Warning(time_s=4.0, level="passed", device="host", text="It passed."))
    store.apply(
        Transfer(time_s=4.5, from_device="cpu", to_device="cpu", memory="pageable", blocking=True, bytes=1, seconds=1.0)
    )
    store.apply(RunEnd(time_s=5.0, run_id=1, status="cancelled", seconds=5.0, steps=7, result={}))
    assert [row[3] for row in told(qtbot, store)] == [
        "stopped after 7 steps, 5.0 s",
        "It passed.",
        "pipeline started on cpu",
    ]


def test_clicking_the_open_tab_collapses_the_tables_and_any_tab_opens_them(qtbot: QtBot) -> None:
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.show()
    tabs.bar.tabBarClicked.emit(0)
    assert tabs.collapsed
    assert tabs.height() == tabs.bar.sizeHint().height()
    tabs.bar.tabBarClicked.emit(2)
    assert not tabs.collapsed


def test_every_tab_can_be_opened_over_a_live_store(qtbot: QtBot) -> None:
    store = run_with_stages()
    store.apply(Sample(5.0, "host", None, {"used_bytes": 2**30, "total_bytes": 2**34, "cpu_utilisation": 0.5}))
    store.apply(Sample(5.0, "process", None, {"pid": 1, "name": "init", "user": "root", "memory_bytes": 2**20}))
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.show()
    for position in range(tabs.bar.count()):
        tabs.bar.setCurrentIndex(position)
        tabs.take(store.events, 0.0)
        tabs.refresh(store, None, device_rows(store, [("cpu", "host", None)]))
    for table in (tabs.stages, tabs.processes, tabs.devices, tabs.events):
        assert table.model.rows, table.accessibleName()


def test_of_the_tables_of_one_tab_those_with_rows_can_be_chosen(qtbot: QtBot) -> None:
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.show()
    chips = tabs.steps.findChildren(QPushButton)

    def offered() -> list[str]:
        return [chip.text() for chip in chips if chip.isVisible()]

    tabs.refresh(stored(), None, [])
    assert tabs.current() is tabs.stages and offered() == []
    begun = RunStarted(time_s=0.0, run_id=1, workload="training", device="cpu", spec={})
    step = StageFinished(time_s=0.5, run_id=1, name="forward", seconds=0.25)
    epoch = EpochFinished(
        time_s=1.0, run_id=1, device="cpu", epoch=1, loss=1.0, accuracy=0.5, seconds=1.0, observation=""
    )
    ended = RunEnd(time_s=2.0, run_id=1, status="finished", seconds=2.0, steps=3, result={"final_loss": 1.0})
    tabs.refresh(stored(begun, step), None, [])
    assert tabs.current() is tabs.stages and offered() == []
    tabs.refresh(stored(begun, step, epoch, ended), None, [])
    assert tabs.current() is tabs.stages and offered() == ["Stages", "Epochs", "Result"]
    next(chip for chip in chips if chip.text() == "Epochs").click()
    assert tabs.current() is tabs.epochs and tabs.epochs.isVisible()
    tabs.refresh(stored(begun, step), None, [])
    assert tabs.current() is tabs.stages


def test_a_stage_shows_what_the_pipeline_learned_of_its_tensor(qtbot: QtBot) -> None:
    store = stored(
        RunStarted(time_s=0.0, run_id=1, workload="pipeline", device="cpu", spec={}),
        StageFinished(
            time_s=1.0, run_id=1, name="move", seconds=0.25, same_object=True, is_leaf=True, first_values=(1.0, 2.0)
        ),
    )
    assert stage_rows(store.run)[0][-1] == "same object; leaf; first values 1, 2"


def test_a_column_without_a_value_in_any_row_is_not_shown(qtbot: QtBot) -> None:
    table = Table("t", (Column("a"), Column("b"), Column("c", wide=True)), "empty")
    qtbot.addWidget(table)
    table.show_rows([("1", "", ""), ("2", "", "x")])
    assert [table.view.isColumnHidden(place) for place in range(3)] == [False, True, False]
    table.show_rows([("1", "now", ""), ("2", "", "x")])
    assert not table.view.isColumnHidden(1) and table.view.columnWidth(1) > 20
    assert table.text().splitlines()[0] == "a\tb\tc", "what is copied has every column"


def test_after_a_run_without_stages_what_it_found_is_in_front(qtbot: QtBot) -> None:
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.show()
    tabs.refresh(Store(), None, ())
    assert tabs.stages._empty.text().startswith("The stages of a run appear here")
    began = RunStarted(time_s=0.0, run_id=1, workload="transfer", device="cpu", spec={})
    ended = RunEnd(time_s=1.0, run_id=1, status="finished", seconds=1.0, steps=3, result={})
    tabs.refresh(stored(began, ended), None, ())
    assert tabs.current() is tabs.result


def test_a_remark_that_is_longer_than_its_column_goes_on_in_a_line_below(qtbot: QtBot) -> None:
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.resize(640, 300)
    tabs.show()
    store = run_with_stages()
    tabs.refresh(store, None, ())
    view, remark = tabs.stages.view, len(tabs.stages.model.columns) - 1
    one_line = view.rowHeight(1)
    long = "same device: torch returned the same tensor and copied nothing; same object; not is_cuda; leaf"
    store.apply(StageFinished(time_s=4.0, run_id=1, name="return", seconds=0.1, copied=False, remark=long))
    tabs.refresh(store, None, ())
    place = [row[0] for row in tabs.stages.model.rows].index("return")
    room, words = view.columnWidth(remark) - 8, tabs.stages.model.rows[place][remark]
    needed = view.fontMetrics().boundingRect(0, 0, room, 1000, Qt.TextFlag.TextWordWrap, words)
    assert view.rowHeight(0) == view.rowHeight(1) == one_line < needed.height() <= view.rowHeight(place)
    tabs.resize(2400, 300)
    qtbot.waitUntil(lambda: view.columnWidth(remark) > 1000)
    assert view.rowHeight(place) == one_line


def test_a_table_that_is_too_low_for_all_its_rows_ends_with_a_whole_one(qtbot: QtBot) -> None:
    table = Table("t", (Column("a"), Column("b", wide=True)), "empty")
    qtbot.addWidget(table)
    table.show()
    table.show_rows([(str(number), "x") for number in range(20)])
    row = table.view.verticalHeader().defaultSectionSize()
    for height in range(100, 160):
        table.resize(300, height)
        QApplication.sendPostedEvents(table)
        seen = table.view.viewport().height() % row
        assert seen <= SLIVER_PX or seen >= row - SLIVER_PX, height
    table.show_rows([("1", "x")])
    assert table.contentsMargins().bottom() == 0


def test_columns_have_room_for_words_that_became_larger_and_rows_become_low_again(qtbot: QtBot) -> None:
    table = Table("t", (Column("clock"), Column("what", wide=True)), "empty")
    qtbot.addWidget(table)
    table.show()
    table.show_rows([("17:35:25", "x")])
    row = table.view.rowHeight(0)
    try:
        restyle(table, DARK, 1.5)
        qtbot.waitUntil(lambda: table.view.rowHeight(0) > row)
        assert table.view.columnWidth(0) > table.view.fontMetrics().horizontalAdvance("17:35:25")
    finally:
        restyle(table, DARK, 1.0)
    qtbot.waitUntil(lambda: table.view.rowHeight(0) == row)


def test_the_parts_of_a_step_stand_beside_the_tabs_and_only_where_they_are_known(qtbot: QtBot) -> None:
    tabs = LowerTabs()
    qtbot.addWidget(tabs)
    tabs.resize(1200, 200)
    tabs.show()
    tabs.refresh(run_with_stages(), None, [])
    assert not tabs.step_parts.isVisible()
    taken = {"input": 6.0, "forward": 2.0, "backward": 2.0}
    store = stored(
        RunStarted(time_s=0.0, run_id=1, workload="watch", device="cpu", spec={}),
        *(StageFinished(time_s=1.0, run_id=1, name=name, seconds=seconds) for name, seconds in taken.items()),
    )
    tabs.refresh(store, None, [])
    row = tabs.step_parts
    assert row.isVisible()
    assert "input 60 % · forward 20 % · backward 20 %. 60 % of the step waits" in row.accessibleDescription()
    drawn = row.grab().toImage()
    bar = [drawn.pixelColor(round(share * BAR_SHARE * row.width()), 1).name() for share in (0.2, 0.7, 0.9)]
    assert bar == [DARK.curves[name] for name in ("inputs", "activations", "gradients")]
    tabs.set_collapsed(True)
    assert row.isVisible(), "the bar stays"
    tabs.refresh(run_with_stages(), None, [])
    assert not row.isVisible()
