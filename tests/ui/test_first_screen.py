"""The first screen: a script, a model or a running program to begin with, over the live monitor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from gpudash.devices.names import simulated_gpu
from gpudash.session.recordings.library import Library, LibraryEntry, LibraryWatcher
from gpudash.session.watching.attaching.candidates import Candidate
from gpudash.specs import ModelSpec
from gpudash.specs.model_names import NamedModel, known_models
from gpudash.telemetry.recording.facts import Facts, RunFacts
from gpudash.ui.dashboard.first_screen.model_panel import CACHED, USUAL, ModelPanel, least_bytes
from gpudash.ui.dashboard.first_screen.page import FirstScreen
from gpudash.ui.dashboard.first_screen.program_panel import NONE, SEARCHING, ProgramsPanel
from gpudash.ui.dashboard.first_screen.script_panel import LastScript, ScriptPanel
from gpudash.ui.features.first_screen import Beginnings, last_scripts
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.parts import part

PROGRAMS = (
    Candidate(4711, "python serve.py", GIB, 6 * GIB, "serve.py", 725.0, inside=True),
    Candidate(5120, "python -m ipykernel_launcher", GIB, None, "jupyter kernel", 3 * 3600.0),
)


@pytest.fixture
def session() -> FakeSession:
    """Ten seconds of nothing, on a machine with a GPU."""
    return FakeSession([gpu(0)]).feed(10)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession) -> MainWindow:
    return open_window(session, first_screen=True)


def screen_of(window: MainWindow) -> FirstScreen:
    return part(window, Beginnings).screen


def is_shown(window: MainWindow) -> bool:
    dashboard = window.workspace.dashboard
    shown = screen_of(window).isVisible()
    assert (dashboard.left.isVisible(), dashboard.tabs.isVisible(), dashboard.busy.isVisible()) == (
        not shown,
        not shown,
        shown,
    )
    return shown


def texts(rows: Sequence[QWidget]) -> list[str]:
    return [row.accessibleName() for row in rows]


def test_a_window_that_has_run_nothing_shows_three_beginnings_over_the_live_monitor(window: MainWindow) -> None:
    dashboard = window.workspace.dashboard
    assert is_shown(window)
    assert [plot.spec.id for plot in dashboard.plots.plots] == ["memory"]
    assert [plot.spec.id for plot in dashboard.busy.plots] == ["utilisation"]
    assert dashboard.prediction.ghost is None, "nothing was asked, so nothing is predicted"


def test_a_window_over_a_session_with_a_run_does_not_show_it(open_window: OpenWindow, session: FakeSession) -> None:
    session.start()
    session.train(2)
    session.end()
    assert not is_shown(open_window(session, first_screen=True))


def test_nothing_is_predicted_before_something_is_asked(window: MainWindow, session: FakeSession) -> None:
    session.feed(3)
    settle(window)
    assert session.estimates.questions == []
    chip = window.workspace.dashboard.chooser.shown[0]
    assert (chip.content.text.standing, chip.content.detail) == ("unasked", "ask what would fit")


def test_it_goes_when_a_run_begins_and_comes_back_by_its_command(window: MainWindow, session: FakeSession) -> None:
    session.start()
    settle(window)
    assert not is_shown(window)
    action = window.menus.actions["view.first_screen"]
    assert not action.isEnabled() and "in progress" in action.toolTip()
    session.end()
    settle(window)
    action.trigger()
    settle(window)
    assert is_shown(window)


def test_the_focus_goes_into_the_first_field_of_the_form_and_not_to_a_card(window: MainWindow, tmp_path: Path) -> None:
    panel, screen = window.workspace.dashboard.panel, screen_of(window)
    screen.model.chosen.emit(str(tmp_path), "train")
    settle(window)
    focused = QApplication.focusWidget()
    assert focused is not None and panel.form.isAncestorOf(focused)
    assert focused.accessibleName() == "Path"
    window.menus.actions["view.first_screen"].trigger()
    settle(window)
    part(window, Beginnings).screen.form.click()
    settle(window)
    focused = QApplication.focusWidget()
    assert focused is not None and panel.form.isAncestorOf(focused)


def test_a_device_that_is_chosen_leaves_it_and_a_value_of_the_form_takes_it_away(
    window: MainWindow, session: FakeSession
) -> None:
    dashboard = window.workspace.dashboard
    dashboard.chooser.shown[0].click()
    settle(window)
    assert [entry[0] for entry in session.requested] == ["simulate"]
    assert is_shown(window)
    dashboard.panel.change_fields({"batch": 99})
    settle(window)
    assert not is_shown(window)


def answers_of(window: MainWindow) -> str:
    """What the figures beside the models are of."""
    return screen_of(window).model._what.text()


def marked_in(window: MainWindow) -> list[str]:
    """The cards and chips that are marked, by their keys."""
    dashboard = window.workspace.dashboard
    cards = [key for key, card in dashboard.cards._cards.items() if card.property("selected")]
    return [*cards, *(chip.content.key for chip in dashboard.chooser.shown if chip.content.selected)]


def test_the_answers_are_of_the_card_that_is_marked_at_once(window: MainWindow) -> None:
    beginnings = part(window, Beginnings)
    beginnings._clock = lambda: float("-inf")  # it is never time to look again
    assert (marked_in(window), answers_of(window)) == (["GPU-00000000"], "weights, GiB left on cuda:0")
    window.workspace.dashboard.select_device("host")
    settle(window)
    assert (marked_in(window), answers_of(window)) == (["host"], "weights, GiB left on cpu")


@pytest.mark.parametrize("workload", ["training", "watch"])
def test_a_chip_that_is_clicked_is_the_only_one_marked_and_what_the_answers_are_of(
    window: MainWindow, workload: str
) -> None:
    dashboard = window.workspace.dashboard
    dashboard.leave_first_screen()
    dashboard.panel.workload.setCurrentIndex(dashboard.panel.workload.findData(workload))
    window.menus.actions["view.first_screen"].trigger()
    settle(window)
    chip = dashboard.chooser.shown[0]
    chip.click()
    settle(window)
    assert is_shown(window), "a card asks for nothing yet"
    assert (marked_in(window), answers_of(window)) == (
        [chip.content.key],
        f"weights, GiB left on {chip.content.name}",
    )
    card = dashboard.panel.script.script().simulate
    assert card == (chip.content.key if workload == "watch" else "")


def test_a_gpu_that_torch_cannot_use_is_answered_by_what_its_driver_has_free(
    open_window: OpenWindow, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = session.devices()[:1]
    monkeypatch.setattr(session, "devices", lambda: host)
    monkeypatch.setattr(session, "default_device", lambda: "cpu")
    session.estimates.refusal = "There is no such device."
    window = open_window(session, first_screen=True)
    window.workspace.dashboard.select_device("GPU-00000000")
    settle(window)
    free = session.store.latest("gpu", "free_bytes", "GPU-00000000").value
    assert marked_in(window) == ["GPU-00000000"]
    assert answers_of(window) == f"weights, GiB left on {session.device_text('GPU-00000000')}"
    assert part(window, Beginnings)._free == free


def test_a_programs_own_card_is_called_as_on_its_card(open_window: OpenWindow) -> None:
    own, other = simulated_gpu(0, 2 * GIB), simulated_gpu(0, 24 * GIB)
    window = open_window(FakeSession([own, other]).feed(2), first_screen=True)
    window.workspace.dashboard.select_device(other.uuid)
    settle(window)
    assert answers_of(window) == "weights, GiB left on sim:0 · 24 GiB"


@pytest.mark.parametrize("button", ["train", "form"])
def test_the_default_training_and_the_form_are_one_click_away(
    window: MainWindow, session: FakeSession, button: str
) -> None:
    getattr(screen_of(window), button).click()
    settle(window)
    if button == "train":
        assert [entry[0] for entry in session.requested][-1] == "start"
    else:
        assert not is_shown(window) and window.workspace.dashboard.left.isVisible()


def test_a_script_is_chosen_with_the_button_or_dropped(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    monkeypatch.setattr(FileDialog, "ask_to_open", lambda *_: str(script))
    screen_of(window).script.choose.click()
    settle(window)
    panel = window.workspace.dashboard.panel
    assert panel.watching and panel.script.script().file == str(script)
    assert not is_shown(window)


def test_a_model_that_is_named_opens_the_form_with_its_task(window: MainWindow) -> None:
    model = screen_of(window).model
    next(button for button in model.tasks.buttons() if button.text() == "QLoRA").click()
    model.line.setText("qwen2.5-7b")
    model.line.returnPressed.emit()
    settle(window)
    spec = window.workspace.dashboard.panel.spec()
    assert isinstance(spec, ModelSpec)
    assert (spec.path, spec.task, spec.missing) == ("qwen2.5-7b", "qlora", "")
    assert not is_shown(window)


def test_a_model_that_there_is_not_is_answered_below_the_field(window: MainWindow, tmp_path: Path) -> None:
    model = screen_of(window).model
    model.line.setText("lama-3.1-8b")
    model.choose_typed()
    assert model.problem.isVisible()
    assert model.problem.text() == "There is no model lama-3.1-8b here. Did you mean Llama-3.1-8B?"
    model.line.setText(str(tmp_path))
    model.choose_typed()
    assert model.problem.text().endswith("has no config.json. Choose the folder of a model, or its config.json.")
    assert is_shown(window)
    QTest.keyClicks(model.line, "x")
    assert not model.problem.isVisible()


def test_the_folder_of_a_model_is_browsed_for(
    window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr(FileDialog, "ask_for_folder", lambda *_: str(tmp_path))
    screen_of(window).model.browse.click()
    spec = window.workspace.dashboard.panel.spec()
    assert isinstance(spec, ModelSpec) and (spec.path, spec.task) == (str(tmp_path), "infer")


def test_a_program_that_is_clicked_is_watched(window: MainWindow, session: FakeSession) -> None:
    program = screen_of(window).program
    program.show_programs(PROGRAMS)
    program.list.shown[1].click()
    assert session.requested == [("attach", 5120)]


def test_rows_that_come_move_nothing(window: MainWindow) -> None:
    screen = screen_of(window)
    before = screen.height()
    screen.program.show_programs([Candidate(pid, "python a.py", 1, None, "a.py", 5.0) for pid in range(1, 60)])
    screen.model.show_models([], known_models())
    settle(window)
    assert screen.height() == before


@pytest.mark.parametrize("size", [(1280, 800), (1440, 960), (2560, 1440)])
def test_nothing_is_cut_from_the_smallest_window_to_the_largest(
    open_window: OpenWindow, session: FakeSession, size: tuple[int, int]
) -> None:
    window = open_window(session, first_screen=True, size=size)
    screen = screen_of(window)
    screen.program.show_programs(PROGRAMS)
    settle(window)
    assert window.size().toTuple() == size
    for panel in (screen.script, screen.model, screen.program):
        for child in panel.findChildren(QWidget):
            if child.isVisible():
                place = child.rect().translated(child.mapTo(panel, child.rect().topLeft()))
                assert panel.rect().contains(place), (panel.accessibleName(), child, place)
                assert child.width() >= min(child.minimumSizeHint().width(), child.sizeHint().width())
    plot = window.workspace.dashboard.plots.plot("memory")
    assert plot is not None and plot.height() >= 120
    assert len(screen.model.list.shown) >= 5


def test_few_stops_of_tab_reach_all_of_it_and_each_has_a_name(window: MainWindow) -> None:
    screen = screen_of(window)
    screen.program.show_programs(PROGRAMS)
    settle(window)
    stops = [
        widget
        for part_ in (screen, screen.bottom)
        for widget in part_.findChildren(QWidget)
        if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus and not widget.focusProxy()
    ]
    names = {getattr(widget, "text", str)() or widget.accessibleName() for widget in stops}
    assert len(stops) <= 9 and "" not in names, names


def test_the_arrow_keys_go_through_a_list_and_enter_chooses(window: MainWindow, session: FakeSession) -> None:
    program = screen_of(window).program
    program.show_programs(PROGRAMS)
    first = program.list.shown[0]
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_Down)
    focused = QApplication.focusWidget()
    assert focused is program.list.shown[1]
    QTest.keyClick(focused, Qt.Key.Key_Return)
    assert session.requested == [("attach", 5120)]


def test_lists_come_from_threads_that_nobody_waits_for(
    open_window: OpenWindow, session: FakeSession, qtbot: QtBot
) -> None:
    window = open_window(session)
    beginnings = Beginnings(window.workspace, find_programs=lambda: PROGRAMS, find_models=list)
    beginnings.show()
    settle(window)
    assert beginnings.programs.wait(10)
    settle(window)
    assert len(beginnings.screen.program.list.shown) == 2
    qtbot.waitUntil(lambda: (settle(window), beginnings.screen.model.list.shown)[1] != [])


@pytest.mark.usefixtures("qapp")
class TestPanels:
    """A panel by itself."""

    def test_programs_say_how_they_are_seen_what_they_hold_and_how_long_they_run(self, qtbot: QtBot) -> None:
        from gpudash.ui.colours import LIGHT

        panel = ProgramsPanel(LIGHT)
        qtbot.addWidget(panel)
        panel.resize(360, 400)
        panel.show()
        assert panel.none.text() == SEARCHING
        panel.show_programs(PROGRAMS)
        assert texts(panel.list.shown) == [
            "Watch serve.py, PID 4711, runs for 12 min, 6.00 GiB of GPU memory, seen from inside",
            "Watch jupyter kernel, PID 5120, runs for 3 h, no GPU memory, seen from outside",
        ]
        panel.show_programs([])
        assert panel.none.text() == NONE and not panel.list.shown
        many = [Candidate(pid, "python a.py", 1, None, "a.py", 5.0) for pid in range(1, 40)]
        panel.show_programs(many)
        assert panel.more.text() == f"and {39 - len(panel.list.shown)} more" and panel.list.shown

    def test_the_least_of_qlora_counts_what_is_not_packed_as_the_prediction_does(self) -> None:
        model = next(model for model in known_models() if model.name == "Llama-3.1-8B")
        size = least_bytes(model, "qlora")
        # The prediction has 7.76 GiB of weights, of which 0.16 GiB are adapters.
        assert size is not None and 7.5 * GIB < size < 7.6 * GIB

    def test_models_of_the_cache_come_before_the_usual_ones_and_say_the_least_that_they_take(
        self, qtbot: QtBot
    ) -> None:
        from gpudash.ui.colours import LIGHT

        panel = ModelPanel(LIGHT)
        qtbot.addWidget(panel)
        panel.resize(400, 480)
        panel.show()
        panel.show_free(10 * GIB)
        panel.show_models([], known_models())
        assert panel._title.text() == USUAL
        assert texts(panel.list.shown)[:2] == [
            "gpt2, 124 M, at least 475 MiB, 9.5 left",
            "Llama-3.2-1B, 1.2 B, at least 2.30 GiB, 7.7 left",
        ]
        cached = NamedModel("tiny", "me/tiny", Path("/nowhere"), 4 * 10**9, 8 * GIB, cached=True)
        panel.show_models([cached], known_models())
        assert panel._title.text() == CACHED
        assert texts(panel.list.shown) == ["tiny, 4.0 B, at least 8.00 GiB, 2.0 left"]
        next(button for button in panel.tasks.buttons() if button.text() == "training").click()
        assert texts(panel.list.shown) == ["tiny, 4.0 B, at least 32.0 GiB, ✕ 22.0 short"]
        chosen: list[tuple[str, str]] = []
        panel.chosen.connect(lambda name, task: chosen.append((name, task)))
        panel.list.shown[0].click()
        assert chosen == [("me/tiny", "train")]

    def test_scripts_say_when_they_ran_what_they_took_and_what_would_be_left(self, qtbot: QtBot) -> None:
        from gpudash.ui.colours import LIGHT

        panel = ScriptPanel(LIGHT)
        qtbot.addWidget(panel)
        panel.resize(400, 480)
        panel.show()
        scripts = [
            LastScript("train.py", "--lr 0.1", {}, 1000.0, 3 * GIB),
            LastScript("leak.py", "", {}, 400.0, 9 * GIB, ran_out=True),
            LastScript("prepare.py", "", {}, 400.0, None),
            LastScript("long.py", "", {}, 400.0, 2 * GIB, cut_short="stopped after 0 steps"),
        ]
        panel.show_scripts(scripts, 4 * GIB, 1000.0 + 7200)
        assert texts(panel.list.shown) == [
            "train.py --lr 0.1, 2 h ago, peak 3.00 GiB",
            "leak.py, 2 h ago, peak 9.00 GiB, ran out of memory",
            "prepare.py, 2 h ago",
            "long.py, 2 h ago, stopped after 0 steps, at least 2.00 GiB",
        ]
        stopped = panel.list.shown[3].content.cells
        assert [cell.text for cell in stopped[2:]] == ["≥ 2.00 GiB", "stopped"]
        assert stopped[3].colour == "muted", "what a stopped run held is no green answer"


@pytest.mark.parametrize(("free", "left"), [(8, "✓ 3.0 spare"), (4, "≈ 2.0 spare"), (1, "✕ 4.0 short")])
def test_what_a_script_would_leave_counts_what_its_allocator_keeps(free: int, left: str) -> None:
    script = LastScript("frag.py", "", {}, 0.0, 2 * GIB, reserved_bytes=5 * GIB)
    assert script.left_cell(free * GIB).text == left


def test_a_script_that_was_stopped_while_it_grew_has_no_peak_as_yet() -> None:
    growing = replace(run_of(1, ["python", "leak.py"], MIB), status="cancelled", steps=25, grew=True)
    library = Library((LibraryEntry(Path("1.gpudash"), Facts(began_wall_s=100.0, runs=(growing,)), 1, 1.0, False),))
    assert [script.cut_short for script in last_scripts(library)] == ["stopped after 25 steps, still growing"]


def run_of(number: int, command: list[str], peak: int | None = None, **spec: object) -> RunFacts:
    return RunFacts(
        number, "watch", "sim:0", {"command": command, **spec}, status="finished", began_s=number, own_peak_bytes=peak
    )


def test_the_last_scripts_are_those_of_the_recordings_each_once_the_newest_first() -> None:
    train = ["python", "train.py", "--lr", "0.1"]
    old = Facts(began_wall_s=100.0, runs=(run_of(1, train, MIB), run_of(2, ["python", "leak.py"])))
    new = Facts(
        began_wall_s=900.0,
        runs=(run_of(1, train, 2 * MIB), run_of(2, ["python", "x.py"], pid=7), RunFacts(3, "training")),
    )
    entries = [LibraryEntry(Path(f"{n}.gpudash"), facts, 1, 1.0, False) for n, facts in enumerate((new, old))]
    found = last_scripts(Library(tuple(entries)))
    assert [(script.name, script.arguments, script.began_s, script.peak_bytes) for script in found] == [
        ("train.py", "--lr 0.1", 901.0, 2 * MIB),
        ("leak.py", "", 102.0, None),
    ]


class Recordings:
    """The recordings of a folder, as a watcher of it has them."""

    def __init__(self) -> None:
        self.library: Library | None = None

    def watch(self, seen: bool) -> None:
        """Nothing is read here."""

    def close(self) -> bool:
        return True

    def show(self, **began_s: float) -> None:
        """Scripts by their names, with when they ran last."""
        runs = [replace(run_of(1, ["python", f"{name}.py"]), began_s=at) for name, at in began_s.items()]
        self.library = Library(
            (LibraryEntry(Path("a.gpudash"), Facts(began_wall_s=0.0, runs=tuple(runs)), 1, 1.0, False),)
        )


def test_a_last_script_that_runs_again_does_not_move_and_a_new_one_comes_first(window: MainWindow) -> None:
    recordings = Recordings()
    beginnings = Beginnings(
        window.workspace, find_programs=tuple, find_models=list, watch=lambda: cast(LibraryWatcher, recordings)
    )
    beginnings.show()
    recordings.show(train=100.0, leak=50.0)
    beginnings.refresh()
    assert [row.content.key for row in beginnings.screen.script.list.shown] == ["0", "1"]
    recordings.show(train=100.0, leak=900.0, other=800.0)
    beginnings.refresh()
    names = [text.partition(",")[0] for text in texts(beginnings.screen.script.list.shown)]
    assert names == ["other.py", "train.py", "leak.py"]


@pytest.mark.parametrize(
    ("status", "steps", "cut_short"),
    [
        ("finished", 0, ""),
        ("cancelled", 2, ""),
        ("cancelled", 1, "stopped after 1 step"),
        ("failed", 0, "failed after 0 steps"),
        ("running", 0, "unfinished after 0 steps"),
    ],
)
def test_a_last_script_says_whether_it_ended_before_its_peak(status: str, steps: int, cut_short: str) -> None:
    run = replace(run_of(1, ["python", "train.py"], MIB), status=status, steps=steps)
    entry = LibraryEntry(Path("1.gpudash"), Facts(began_wall_s=1.0, runs=(run,)), 1, 1.0, False)
    (script,) = last_scripts(Library((entry,)))
    assert script.cut_short == cut_short
