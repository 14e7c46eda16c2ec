"""The command palette, and that every command has a name, a place and a key one can look up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit
from pytestqt.qtbot import QtBot

from gpudash.session.recordings.library import Kept, Stamp, load_cache, save_cache
from gpudash.specs import TrainingSpec
from gpudash.system.settings import recordings_folder
from gpudash.telemetry.recording.facts import Facts, RunFacts, set_run_text
from gpudash.ui.colours import DARK
from gpudash.ui.features.help import keys_page
from gpudash.ui.features.palette import MOST_RUNS
from gpudash.ui.widgets.remembered import add_recent
from gpudash.ui.window.main_window import MainWindow
from gpudash.ui.window.menus import PLOT_KEYS
from gpudash.ui.window.palette import ROWS, CommandPalette, PaletteEntry
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import palette_over
from tests.unit.telemetry.recordings import record

Key = Qt.Key
CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def session() -> FakeSession:
    return FakeSession().feed(20)


@pytest.fixture
def in_window(window: MainWindow, qtbot: QtBot) -> CommandPalette:
    """Over a window, with its commands."""
    palette = palette_over(window)
    qtbot.waitUntil(palette.field.hasFocus)
    return palette


@pytest.fixture
def ran() -> list[str]:
    """What the palette did."""
    return []


@pytest.fixture
def palette(ran: list[str], qtbot: QtBot) -> Iterator[CommandPalette]:
    """With commands of its own, one of which is not available."""
    entries = [PaletteEntry(f"Command {number}", "File", partial(ran.append, str(number))) for number in range(20)]
    grey = PaletteEntry("Zoom to Selection", "View", lambda: ran.append("zoom"), why_not="No range is selected.")
    palette = CommandPalette([*entries, grey], DARK)
    palette.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, on=False)
    palette.show()
    palette.activateWindow()
    palette.field.setFocus()
    qtbot.waitUntil(palette.field.hasFocus)
    yield palette
    palette.close()
    palette.deleteLater()


def entry(palette: CommandPalette, name: str) -> PaletteEntry:
    return next(entry for entry in palette.shown if entry.name == name)


def test_a_dozen_whole_rows_are_seen_and_do_not_change_while_typing(open_window: OpenWindow) -> None:
    palette = palette_over(open_window(FakeSession()))
    QApplication.processEvents()
    room = palette.list.viewport().height()

    def row_px() -> int:
        return palette.list.visualItemRect(palette.list.topLevelItem(0)).height()

    before = row_px()
    assert ROWS * before <= room < (ROWS + 1) * before
    QTest.keyClicks(palette.field, "o")
    assert row_px() == before
    palette.reject()


def test_every_command_of_the_menus_is_in_the_palette_with_its_key(
    window: MainWindow, in_window: CommandPalette
) -> None:
    shown = {(entry.name.removesuffix("✓").strip(), entry.keys) for entry in in_window.shown}
    for action in window.menus.actions.values():
        assert (action.text().replace("&", ""), action.shortcut().toString()) in shown, action.text()


def test_every_command_says_what_it_does(window: MainWindow) -> None:
    for name, action in window.menus.actions.items():
        tip = action.toolTip().partition("\n")[0]
        assert action.text().strip(), name
        assert len(tip) > len("Use it") and tip != action.text(), name
        if not action.isEnabled():
            assert action.toolTip().partition("\n")[2], f"{name} does not say why it is grey"


def test_every_key_means_one_thing_in_one_context(window: MainWindow) -> None:
    actions = window.menus.actions.values()
    keys = Counter(key.toString() for action in actions for key in action.shortcuts())
    assert [key for key, count in keys.items() if count > 1] == []
    for action in actions:
        for key in (key.toString() for key in action.shortcuts()):
            if len(key) == 1 and key != "?":  # a field takes that one as text
                assert action.shortcutContext() is PLOT_KEYS, f"{key} acts while something is typed"


def test_every_key_is_on_the_sheet(window: MainWindow) -> None:
    page = keys_page(window.workspace.commands)
    for action in window.menus.actions.values():
        for key in action.shortcuts():
            assert key.toString().replace("<", "&lt;") in page


def test_the_sheet_tells_what_each_key_does_and_not_why_it_does_nothing_now(window: MainWindow) -> None:
    page = keys_page(window.workspace.commands)
    assert "Undo the last change" in page
    assert "nothing to undo" not in page
    for title in ("File", "Edit", "Run", "View", "Help", "Mouse, in a plot", "In the session library"):
        assert f"<h3>{title}</h3>" in page
    assert "drop a file on the window" in page


def use(window: MainWindow, words: str, place: str) -> None:
    """Find an entry by typing, and choose it."""
    palette = palette_over(window)
    palette.field.setText(words)
    found = palette.chosen
    assert found is not None and place in found.place, [(entry.name, entry.place) for entry in palette.shown[:3]]
    palette.run_chosen()
    settle(window)


def test_it_knows_tables_plots_workloads_presets_and_devices(open_window: OpenWindow) -> None:
    window = open_window(FakeSession([gpu(0)]).feed(5))
    dashboard, panel = window.workspace.dashboard, window.workspace.dashboard.panel
    use(window, "events", "Table")
    assert dashboard.tabs.bar.tabText(dashboard.tabs.bar.currentIndex()) == "Events" and not dashboard.tabs.collapsed
    use(window, "matrix product", "Workload")
    assert panel.workload.currentData() == "matmul"
    use(window, "training: MLP", "Preset")
    spec = panel.spec()
    assert isinstance(spec, TrainingSpec) and spec.model == "mlp"
    use(window, "cpu epyc", "Device")
    assert panel.device_name == "cpu"
    shown = len(dashboard.plots.plots)
    use(window, "utilisation", "Plots")
    assert len(dashboard.plots.plots) == shown - 1


def test_it_knows_the_runs_of_the_session_and_goes_to_their_time(window: MainWindow) -> None:
    session = window.workspace.session
    session.start()  # type: ignore[attr-defined]  # the fake session plays a run
    session.train(5)  # type: ignore[attr-defined]
    session.end()  # type: ignore[attr-defined]
    settle(window)
    use(window, "training on cpu", "Run of this session")
    begin, end = window.workspace.dashboard.view.range()
    run = session.store.runs[0]
    assert (begin, end) == pytest.approx((run.began_s, run.ended_s))


def test_it_knows_every_recorded_run_by_its_name_in_the_library_read_while_one_types(
    window: MainWindow, qtbot: QtBot
) -> None:
    folder = recordings_folder()
    for number in range(3):
        record(folder / f"{number}.gpudash", workload="transfer", meta={"run 1 tags": f"tag{number}"})
    set_run_text(folder / "1.gpudash", 1, "title", "the baseline")
    assert not load_cache()
    palette = palette_over(window)
    palette.field.setText("transfer on cpu")
    chosen = palette.chosen
    qtbot.waitUntil(lambda: len(recorded(palette)) == 2)
    assert [entry.name for entry in recorded(palette)] == ["transfer on cpu", "transfer on cpu"]
    assert palette.chosen is not None and (chosen is None or palette.chosen.is_as(chosen))
    palette.field.setText("tag1")
    assert palette.chosen is not None and palette.chosen.name == "the baseline"
    palette.run_chosen()
    assert window.workspace.is_open(folder / "1.gpudash")
    window.workspace.show_dashboard()
    record(folder / "later.gpudash", workload="matmul")
    palette = palette_over(window)
    assert len(recorded(palette)) == 3, "what was read before is there at once"
    qtbot.waitUntil(lambda: len(recorded(palette)) == 4)
    palette.reject()


def recorded(palette: CommandPalette) -> list[PaletteEntry]:
    return [entry for entry in palette.shown if entry.place.startswith("Recorded ")]


def test_of_thousands_of_runs_a_hundred_are_listed_and_words_find_the_others(window: MainWindow, qtbot: QtBot) -> None:
    runs = tuple(RunFacts(number, "training", "cpu", {"steps": number}) for number in range(1, 3001))
    path = record(recordings_folder() / "many.gpudash")
    status = path.stat()
    stamp = Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_size)
    save_cache({str(path): Kept(stamp, Facts(began_wall_s=1e9, runs=runs))})
    palette = palette_over(window)
    qtbot.waitUntil(lambda: len(recorded(palette)) == MOST_RUNS)
    palette.field.setText("steps 2718")
    assert [entry.name for entry in recorded(palette)] == ["training steps 2718 on cpu"]
    palette.reject()


def test_during_a_run_its_form_is_left_alone_and_it_says_so(window: MainWindow) -> None:
    window.workspace.session.start()  # type: ignore[attr-defined]
    settle(window)
    palette = palette_over(window)
    for place in ("Workload", "Preset", "Device"):
        entries = [entry for entry in palette.shown if entry.place == place]
        assert entries and all("in progress" in entry.why_not for entry in entries)
    palette.reject()


@pytest.mark.parametrize("keys", [(Key.Key_K, CTRL), (Key.Key_P, CTRL | SHIFT)])
def test_both_keys_open_it_also_from_a_field(window: MainWindow, keys: tuple[Key, Qt.KeyboardModifier]) -> None:
    field = window.workspace.dashboard.panel.form.control("steps")
    assert isinstance(field, QLineEdit)
    field.setFocus()
    before = field.text()
    QTest.keyClick(field, *keys)
    (palette,) = window.findChildren(CommandPalette)
    assert palette.isVisible()
    assert field.text() == before
    palette.reject()


def test_enter_does_what_is_found_and_leaves(window: MainWindow, in_window: CommandPalette) -> None:
    QTest.keyClicks(in_window.field, "hide tables")
    collapsed = window.workspace.dashboard.tabs.collapsed
    QTest.keyClick(in_window.field, Key.Key_Return)
    assert window.workspace.dashboard.tabs.collapsed is not collapsed
    assert not in_window.isVisible()


def test_esc_leaves_and_does_nothing(palette: CommandPalette, ran: list[str]) -> None:
    QTest.keyClicks(palette.field, "command")
    QTest.keyClick(palette.field, Key.Key_Escape)
    assert not palette.isVisible()
    assert ran == []


def test_a_click_does_it_too(palette: CommandPalette, ran: list[str]) -> None:
    item = palette.list.topLevelItem(3)
    assert item is not None
    palette.list.itemClicked.emit(item, 0)
    assert palette.chosen is not None
    assert ran == [palette.chosen.name.removeprefix("Command ")]


def test_arrows_move_and_go_round(palette: CommandPalette) -> None:
    first = palette.chosen
    QTest.keyClick(palette.field, Key.Key_Down)
    assert palette.chosen is not first
    QTest.keyClick(palette.field, Key.Key_Up)
    QTest.keyClick(palette.field, Key.Key_Up)
    assert palette.chosen == palette.shown[-1]
    QTest.keyClick(palette.field, Key.Key_Down)
    assert palette.chosen == first
    QTest.keyClick(palette.field, Key.Key_PageDown)
    assert palette.chosen == palette.shown[11]


def test_a_disabled_command_says_why_and_stays(palette: CommandPalette, ran: list[str]) -> None:
    QTest.keyClicks(palette.field, "zoom sel")
    assert palette.chosen == entry(palette, "Zoom to Selection")
    assert "Not available: No range is selected." in [label.text().strip() for label in palette.findChildren(QLabel)]
    QTest.keyClick(palette.field, Key.Key_Return)
    assert palette.isVisible()
    assert ran == []


def test_letters_that_nothing_has_are_answered(palette: CommandPalette) -> None:
    QTest.keyClicks(palette.field, "qqqq")
    assert palette.shown == []
    QTest.keyClick(palette.field, Key.Key_Down)
    QTest.keyClick(palette.field, Key.Key_Return)
    assert palette.isVisible()


def test_files_opened_last_are_found_too(window: MainWindow, tmp_path: Path) -> None:
    there = tmp_path / "there.gpudash"
    there.touch()
    add_recent(tmp_path / "gone.gpudash")
    add_recent(there)
    palette = palette_over(window)
    assert entry(palette, "there.gpudash").why_not == ""
    assert entry(palette, "gone.gpudash").why_not == "The file no longer exists."
    palette.reject()


def test_a_checked_command_shows_its_state(in_window: CommandPalette) -> None:
    names = [entry.name for entry in in_window.shown]
    assert "Workload Panel  ✓" in names
    assert "Full Screen" in names


def test_twelve_rows_are_seen_whole(palette: CommandPalette) -> None:
    assert palette.list.viewport().height() == 12 * palette.list.sizeHintForRow(0)


def test_a_run_is_started_marked_measured_copied_and_stopped_by_keyboard_alone(
    window: MainWindow, session: FakeSession, qtbot: QtBot
) -> None:
    def press(key: Qt.Key, modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
        QTest.keyClick(QApplication.focusWidget() or window, key, modifiers)
        settle(window, 4)

    def command(letters: str) -> None:
        press(Key.Key_K, CTRL)
        (palette,) = [found for found in window.findChildren(CommandPalette) if found.isVisible()]
        QTest.keyClicks(palette.field, letters)
        QTest.keyClick(palette.field, Key.Key_Return)
        qtbot.waitUntil(window.isActiveWindow)
        settle(window, 4)

    press(Key.Key_F5)
    assert session.requested[-1][0] == "start"
    session.train(5)
    settle(window)
    for _ in range(200):
        if window.workspace.dashboard.plots.focused is not None:
            break
        press(Key.Key_Tab)
    assert window.workspace.dashboard.plots.focused is not None
    press(Key.Key_Left)
    assert window.workspace.dashboard.view.cursor_s is not None
    press(Key.Key_M)
    QTest.keyClicks(window.workspace.dashboard.plots.mark_field, "here")
    press(Key.Key_Return)
    assert session.requested[-1] == ("mark", "here", window.workspace.dashboard.view.cursor_s)
    press(Key.Key_O)
    for _ in range(3):
        press(Key.Key_Left, SHIFT)
    press(Key.Key_I)
    assert window.workspace.dashboard.view.selection is not None
    assert window.workspace.dashboard.view.selection[1] - window.workspace.dashboard.view.selection[0] == pytest.approx(
        3.0, abs=0.2
    )
    command("copy val")
    lines = QGuiApplication.clipboard().text().split("\n")
    assert lines[0].startswith("time")
    assert len(lines) > 10
    press(Key.Key_F5)
    assert session.requested[-1] == ("stop",)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("matmul", "Matrix product"),
        ("screenshot", "Copy Graph as Image"),
        ("oom", "Explain Memory"),
        ("shortcuts", "Keys"),
    ],
)
def test_what_people_call_a_thing_finds_it(in_window: CommandPalette, typed: str, name: str) -> None:
    in_window.field.setText(typed)
    assert name in [entry.name for entry in in_window.shown[:3]]
