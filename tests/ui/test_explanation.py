"""The page that explains a full memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from gpudash.devices.names import simulated_gpu
from gpudash.memory.allocator.trace import ACTIVATIONS, INPUTS, OPTIMIZER_STATE, WEIGHTS, WORKSPACE
from gpudash.memory.explaining.annotated_source import read_source
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.explanation_text import GROWTH, report
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest, other_process
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.report_html import OWNERS
from gpudash.session import Replay
from gpudash.session.predicting.remedies import SoFar
from gpudash.telemetry.explanation import Evidence, Explanation, Findings, Remedy
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import MemoryExplained, Record, RemediesFound, RunEnd, RunStarted, Sample, Warning
from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.explanation.bar import PartsBar
from gpudash.ui.explanation.header import RemediesView, remedy_text
from gpudash.ui.explanation.page import COLUMNS, Choice, ExplanationPage, owner_rows
from gpudash.ui.explanation.source_view.source import spoken
from gpudash.ui.explanation.stack import folded
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB, format_bytes
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession
from tests.ui.words import complaints
from tests.unit.memory.test_explain import leaking, state
from tests.unit.telemetry.run_ends import RAN_OUT

CARD = simulated_gpu(0, 2 * GIB)
TORCH = Frame("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward")
MODEL = Frame("/home/mia/project/model.py", 88, "forward")
TRAIN = Frame("/home/mia/project/train.py", 41, "train_step")
MAIN = Frame("/home/mia/project/train.py", 90, "main")

STATE = MemoryState(
    device="sim:0",
    product="Simulated GPU",
    simulated=True,
    capacity=2 * GIB,
    device_free=20 * MIB,
    reserved=1500 * MIB,
    context_bytes=300 * MIB,
    processes=(other_process(228 * MIB, 4711, "python", "mia"),),
    groups=(
        *(
            AllocationGroup(40 * MIB, 3, ACTIVATIONS, n, "forward", "", "Net.Linear", (TORCH, MODEL, MAIN))
            for n in range(1, 25)
        ),
        AllocationGroup(300 * MIB, 30, WEIGHTS, 0, "", "", "", (TORCH, TRAIN, MAIN)),
        AllocationGroup(120 * MIB, 60, OPTIMIZER_STATE, 1, "optimizer", "", "", (TORCH, TRAIN, MAIN)),
        AllocationGroup(2 * MIB, 2, INPUTS, 24, "", "", "", (MAIN,)),
    ),
    idle=60 * MIB,
    usable_idle=60 * MIB,
    largest_free_block=18 * MIB,
    request=RefusedRequest(64 * MIB, 64 * MIB, 24, "forward", "forward", "Net.Linear", (TORCH, MODEL, MAIN)),
    step=25,
    time_s=6.0,
    recorded=Evidence(41_203, 41_203, 0.9),
)
REMEDIES = (
    Remedy("batch 24", {"batch": 24}, flags="--batch 24", predicted_peak_bytes=GIB, fits=True, verified_by="dry run"),
    Remedy("bf16 autocast", {"precision": "bf16"}, predicted_peak_bytes=GIB, fits=True, changes_training=True),
    Remedy("activation checkpointing", {"checkpointing": True}, predicted_peak_bytes=900 * MIB, fits=True),
    Remedy("on cpu", device="cpu", predicted_peak_bytes=2 * GIB, fits=True),
    Remedy("expandable segments", allocator="expandable_segments:True", predicted_peak_bytes=GIB, fits=True),
    Remedy("a card with 4 GiB", predicted_peak_bytes=3 * GIB, fits=True),
)


class Session(FakeSession):
    """A session with a simulated card, which writes down what it was asked to start and to explain."""

    def __init__(self) -> None:
        self.kept: list[Record] = []
        super().__init__([CARD])

    def apply(self, *records: Record) -> None:
        super().apply(*records)
        self.kept.extend(records)

    def explain(self) -> None:
        self.requested.append(("explain",))


def reported(explanation: Explanation) -> RunEnd:
    return replace(
        RAN_OUT, time_s=6.0, message="The memory of sim:0 ran out.", seconds=5.0, steps=24, explanation=explanation
    )


def failed(session: Session, explanation: Explanation | None = None) -> Session:
    """A training run on the card that ran out of memory."""
    session.feed(1.0)
    session.apply(
        RunStarted(time_s=1.0, run_id=1, workload="training", device="sim:0", spec={"batch": 64}, simulated=True)
    )
    for number in range(50):
        time_s = 1.0 + number / 10
        values = {"allocated_bytes": number * 30 * MIB, "reserved_bytes": number * 31 * MIB}
        session.apply(Sample(time_s, "allocator", "sim:0", values))
    session.apply(reported(explanation or explain(STATE, lambda file, line: "hidden = self.fc1(hidden)")))
    return session


def remedies(*found: Remedy, note: str = "") -> RemediesFound:
    told = explain(STATE, lambda file, line: "hidden = self.fc1(hidden)")
    findings = Findings(told.verdict, told.headline, found, note)
    return RemediesFound(time_s=7.0, run_id=1, text="Found.", found=findings)


def test_under_a_cap_the_bar_ends_where_the_cap_does(qtbot: QtBot) -> None:
    card = simulated_gpu(0, 8 * GIB)
    capped = MemoryState(
        device="sim:0",
        product=card.product,
        simulated=True,
        capacity=8 * GIB,
        device_free=6 * GIB,
        reserved=1536 * MIB,
        context_bytes=300 * MIB,
        groups=(AllocationGroup(1536 * MIB, 9, WEIGHTS),),
        allowed=2 * GIB,
        request=RefusedRequest(600 * MIB, 600 * MIB),
    )
    bar = PartsBar(DARK)
    qtbot.addWidget(bar)
    found = explain(capped)
    bar.show_parts(found)
    assert "free under the memory cap 512 MiB" in bar.accessibleDescription()
    assert "barred" not in bar.accessibleDescription()
    session = failed(Session(), found)
    page = ExplanationPage(session.store, DARK)
    qtbot.addWidget(page)
    page.show_explanation(found, 1.0, None, commanding=False, searching=False)
    page.resize(1280, 760)
    page.show()
    page.plots.refresh(force=True)
    assert page.plots.plots[0].y_range[1] < 3 * GIB, "the curve that climbs to the cap is not flat under the card's"
    assert page.plots.plots[0].legend.levels == ["memory cap 2.00 GiB", "↑ capacity 8.00 GiB"]


@pytest.fixture
def session() -> Session:
    return failed(Session())


@pytest.fixture
def window(open_window: OpenWindow, session: Session) -> MainWindow:
    """The page in front, at the size everything has to be seen at."""
    session.apply(remedies(*REMEDIES))
    window = open_window(session, size=(1280, 800))
    window.workspace.dashboard.explanation.explain()
    settle(window)
    return window


def buttons(window: MainWindow) -> list[str]:
    """The words of those in the header, as they are read."""
    header = window.workspace.dashboard.explanation.page.header
    return in_reading_order([button for button in header.findChildren(QPushButton) if button.isVisible()], header)


def in_reading_order(widgets: Sequence[QLabel | QPushButton], whole: QWidget) -> list[str]:
    """The words of widgets, from the top, and from the left in a row."""

    def place(widget: QWidget) -> tuple[int, int]:
        middle = widget.mapTo(whole, widget.rect().center())
        return middle.y() // 8, middle.x()

    return [widget.text() for widget in sorted(widgets, key=place)]


def labels(window: MainWindow) -> str:
    page = window.workspace.dashboard.explanation.page
    return "\n".join(label.text() for label in page.findChildren(QLabel) if label.isVisible())


def test_the_banner_names_the_cause_and_opens_the_explanation(open_window: OpenWindow, session: Session) -> None:
    window = open_window(session)
    button = next(b for b in window.workspace.dashboard.banner.findChildren(QPushButton) if b.text() == "Explain")
    assert button.isVisible() and not window.workspace.dashboard.explanation.open
    assert "hidden = self.fc1(hidden)" in " ".join(
        label.text() for label in window.workspace.dashboard.banner.findChildren(QLabel)
    )
    button.click()
    assert window.workspace.dashboard.explanation.open


def test_what_grows_is_named_while_the_run_is_on_and_no_longer(open_window: OpenWindow) -> None:
    session = Session()
    session.feed(1.0)
    session.start("sim:0")
    text = "train.py:41 (losses.append(loss)) keeps 64 MiB of every step."
    session.apply(Warning(time_s=1.0, run_id=1, level="note", device="SIM-0", text=text, cause="train.py:41"))
    window = open_window(session)
    assert window.workspace.dashboard.banner.isVisible() and text in window.workspace.dashboard.banner.accessibleName()
    session.end()
    settle(window)
    assert not window.workspace.dashboard.banner.isVisible()


def test_the_cause_comes_first_and_everything_else_is_on_the_page(window: MainWindow) -> None:
    words = labels(window)
    assert words.index("model.py:88") < words.index("The last request was 64 MiB")
    for part in ("OUT OF MEMORY AT 0:06 · sim:0 (SIMULATED 2 GiB)", "WHAT FILLED IT", "WHO ALLOCATED IT", "STACK"):
        assert part in words
    assert "Evidence: 41\u202f203 of 41\u202f203 events" in words


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_no_word_of_the_page_is_cut_or_covered(
    open_window: OpenWindow, session: Session, theme: Any, size: tuple[int, int]
) -> None:
    session.apply(remedies(*REMEDIES))
    window = open_window(session, theme=theme, size=size)
    window.workspace.dashboard.explanation.explain()
    settle(window)
    assert not [complaint for complaint in complaints(window) if "self.fc1" not in complaint]


def test_every_part_is_named_in_the_bar(window: MainWindow) -> None:
    bar = window.workspace.dashboard.explanation.page.bar
    words = [words for row in bar._rows(bar.width(), bar.fontMetrics()) for _part, words, _width in row]
    assert words[0] == "weights 300 MiB" and words[-1] == "asked for 64 MiB"
    assert "python (pid 4711) 228 MiB" in words and "idle inside PyTorch 118 MiB" in words
    assert "weights 300 MiB" in bar.accessibleDescription()


def test_the_request_hangs_over_the_capacity(window: MainWindow) -> None:
    bar = window.workspace.dashboard.explanation.page.bar
    asked = bar._pieces()[-1]
    assert asked.part is None and asked.right > bar._capacity * bar._scale() + 1
    assert asked.right <= bar.width()


def test_a_small_tensor_is_drawn_as_the_segment_that_it_needs_beyond_the_capacity(qtbot: QtBot) -> None:
    bar = PartsBar(DARK)
    qtbot.addWidget(bar)
    bar.resize(1000, bar.heightForWidth(1000))
    bar.show_parts(explain(replace(STATE, request=RefusedRequest(8 * MIB, 22 * MIB))))
    assert bar.accessibleDescription().endswith("; asked for 8 MiB, which needs a segment of 22 MiB")
    image = bar.grab().toImage()
    line = [x for x in range(image.width()) if image.pixelColor(x, 0).name() == DARK.text]
    box = [x for x in range(image.width()) if image.pixelColor(x, 3).name() == DARK.critical]
    assert line and box and max(box) > max(line) + 8


def test_choosing_a_category_narrows_the_table_and_esc_widens_it_before_it_leaves(
    window: MainWindow, qtbot: QtBot
) -> None:
    page = window.workspace.dashboard.explanation.page
    piece = next(p for p in page.bar._pieces() if p.part is not None and p.part.name == WEIGHTS)
    qtbot.mouseClick(page.bar, Qt.MouseButton.LeftButton, pos=_middle(piece.left, piece.right))
    assert [row[4] for row in page.owners.table.model.rows] == ["weights"]
    assert page.owners.chip.isVisible() and page.owners.chip.text().startswith("weights")
    qtbot.keyClick(page.owners.table.view, Qt.Key.Key_Escape)
    assert len(page.owners.table.model.rows) == 4 and window.workspace.dashboard.explanation.open
    qtbot.keyClick(page.owners.table.view, Qt.Key.Key_Escape)
    assert not window.workspace.dashboard.explanation.open


def _middle(left: float, right: float) -> Any:
    from PySide6.QtCore import QPoint

    return QPoint(round((left + right) / 2), 12)


def test_the_stack_shown_is_that_of_the_row_with_library_lines_folded(window: MainWindow) -> None:
    page = window.workspace.dashboard.explanation.page
    text = page.stack.text.toPlainText()
    assert text.startswith("    … 1 library line\n/home/mia/project/model.py:88 in forward")
    page.stack.library.setChecked(True)
    assert "torch/nn/modules/linear.py:134" in page.stack.text.toPlainText()
    page.stack.copy()
    assert QGuiApplication.clipboard().text().count("\n") == 2


def test_keys_reach_every_pane_and_the_search(window: MainWindow, qtbot: QtBot) -> None:
    page = window.workspace.dashboard.explanation.page
    for key, pane in (("1", page.bar), ("4", page.stack.text), ("2", page.owners.table.view)):
        qtbot.keyClick(QApplication.focusWidget(), key)
        assert QApplication.focusWidget() is pane
    qtbot.keyClick(page.owners.table.view, Qt.Key.Key_T)
    assert page.owners.total.isChecked()
    qtbot.keyClick(page.owners.table.view, "/")
    qtbot.keyClicks(QApplication.focusWidget(), "optimizer")
    assert [row[5] for row in page.owners.table.model.rows] == ["train.py:41 train_step  hidden = self.fc1(hidden)"]


def test_arrow_keys_choose_a_part(window: MainWindow, qtbot: QtBot) -> None:
    page = window.workspace.dashboard.explanation.page
    page.bar.setFocus()
    qtbot.keyClick(page.bar, Qt.Key.Key_Right)
    assert {row[4] for row in page.owners.table.model.rows} == {"weights"}
    qtbot.keyClick(page.bar, Qt.Key.Key_Left)
    assert len(page.owners.table.model.rows) == 4


def test_what_would_have_fitted_is_a_row_of_buttons_with_their_peaks(window: MainWindow) -> None:
    shown = buttons(window)
    assert shown[:2] == ["Copy report", "Back to the plots   Esc"]
    assert shown[2:] == [
        "batch 24 (1.00 GiB)",
        "bf16 autocast (1.00 GiB)",
        "activation checkpointing (900 MiB)",
        "on cpu (2.00 GiB)",
        "2 more",
    ]


def test_a_remedys_button_puts_it_into_the_form_and_starts_the_run(window: MainWindow, session: Session) -> None:
    header = window.workspace.dashboard.explanation.page.header
    button = next(b for b in header.findChildren(QPushButton) if b.text().startswith("batch 24"))
    button.click()
    assert not window.workspace.dashboard.explanation.open
    assert ("start", "training", "sim:0") in session.requested
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None and spec.model_dump()["batch"] == 24


def test_until_remedies_are_there_the_page_says_that_they_are_looked_for(
    open_window: OpenWindow, session: Session
) -> None:
    window = open_window(session, size=(1280, 800))
    window.workspace.dashboard.explanation.explain()
    assert "Looking for what would have fitted…" in labels(window)
    session.apply(remedies(REMEDIES[0]))
    settle(window)
    assert "batch 24 (1.00 GiB)" in buttons(window)
    assert "Looking" not in labels(window)


def test_that_no_remedy_was_found_is_told(open_window: OpenWindow, session: Session) -> None:
    session.apply(remedies(note="No change was found."))
    window = open_window(session, size=(1280, 800))
    window.workspace.dashboard.explanation.explain()
    settle(window)
    assert "No change was found." in labels(window)


def test_a_recording_is_explained_too_and_offers_no_buttons_to_run(
    open_window: OpenWindow, session: Session, tmp_path: Path
) -> None:
    session.apply(remedies(*REMEDIES[:1]))
    path = tmp_path / "run.gpudash"
    recorder = Recorder(path, meta={"wall_clock_origin": "2026-11-21T10:15:00+00:00", "host_product": "x"})
    for record in session.kept:
        recorder.add(record)
    recorder.close("closed")
    window = open_window(Replay(path), size=(1280, 800))
    window.workspace.dashboard.explanation.explain()
    settle(window)
    assert window.workspace.dashboard.explanation.open
    assert buttons(window) == ["Copy report", "Back to the plots   Esc"]
    assert "batch 24 (1.00 GiB)" in labels(window)


def test_while_a_run_is_on_a_gpu_the_session_is_asked_and_the_answer_opens(open_window: OpenWindow) -> None:
    session = Session()
    session.feed(1.0)
    session.start("sim:0")
    window = open_window(session, size=(1280, 800))
    window.workspace.dashboard.explanation.explain()
    assert ("explain",) in session.requested and not window.workspace.dashboard.explanation.open
    now = explain(MemoryState("sim:0", 2 * GIB, GIB, GIB, 0, groups=STATE.groups[:9], step=9))
    session.apply(MemoryExplained(time_s=2.0, run_id=1, text="Now.", explanation=now))
    settle(window)
    assert window.workspace.dashboard.explanation.open
    assert "MEMORY AT 0:00" in labels(window) and "is still free" in labels(window)


def test_without_anything_to_explain_the_status_line_says_so(open_window: OpenWindow) -> None:
    session = Session()
    session.feed(1.0)
    window = open_window(session)
    window.workspace.dashboard.explanation.explain()
    assert not window.workspace.dashboard.explanation.open
    assert "nothing to explain" in " ".join(
        label.text() for label in window.workspace.dashboard.status_line.findChildren(QLabel)
    )


def test_beside_a_run_that_did_not_run_out_of_memory_the_last_that_did_is_explained_and_named(
    open_window: OpenWindow,
) -> None:
    session = Session()
    failed(session)
    session.start("sim:0")
    session.train(3)
    session.end()
    window = open_window(session, size=(1280, 800))
    window.menus.actions["view.explain"].trigger()
    settle(window)
    assert window.workspace.dashboard.explanation.open
    assert "RUN 1, OUT OF MEMORY AT" in labels(window)


def test_the_report_is_copied_as_text(window: MainWindow) -> None:
    window.workspace.dashboard.explanation.page.copy_report()
    text = QGuiApplication.clipboard().text()
    assert text.splitlines()[0] == window.workspace.dashboard.explanation.page.explanation.headline  # type: ignore[union-attr]
    assert "This would have fit" in text and "--batch 24" in text


def test_the_page_follows_the_theme(window: MainWindow) -> None:
    bar = window.workspace.dashboard.explanation.page.bar
    piece = next(p for p in bar._pieces() if p.part is not None and p.part.name == ACTIVATIONS)
    seen = []
    for palette in (DARK, LIGHT):
        window.set_palette(palette)
        settle(window)
        image = bar.grab().toImage()
        ratio = image.devicePixelRatio()
        seen.append(image.pixelColor(round((piece.right - 12) * ratio), round(20 * ratio)).name())
    assert seen == [DARK.curves[ACTIVATIONS], LIGHT.curves[ACTIVATIONS]]


def test_rows_can_stand_for_modules_files_and_categories() -> None:
    found = explain(STATE)
    assert [row.cells[5] for row in owner_rows(found, Choice("category"))] == [
        "activations",
        "weights",
        "optimizer state",
        "inputs",
    ]
    assert [row.cells[5] for row in owner_rows(found, Choice("file"))] == ["model.py", "train.py"]
    assert owner_rows(found, Choice("module"))[0].cells[5] == "Net.Linear"
    own = [row.cells[0] for row in owner_rows(found, Choice())]
    total = [row.cells[1] for row in owner_rows(found, Choice(by_total=True))]
    assert own[0] == "960 MiB" and total[0] == "1.35 GiB"


def test_the_table_has_the_rows_of_the_report() -> None:
    groups = (
        AllocationGroup(500 * MIB, 75, ACTIVATIONS, stack=(TRAIN, MAIN)),
        AllocationGroup(100 * MIB, 25, INPUTS, stack=(TRAIN, MAIN)),
    )
    found = explain(replace(STATE, groups=groups))
    rows = [row.cells for row in owner_rows(found, Choice())]
    assert [(own, count, what) for own, _total, count, _growth, what, _where in rows] == [
        ("500 MiB", "75", ACTIVATIONS),
        ("100 MiB", "25", INPUTS),
    ]
    lines = report(found)
    for row, line in zip(rows, lines[lines.index("Who allocated it") + 2 :], strict=False):
        assert line.split()[:2] == row[0].split() and row[4] in line


def test_what_a_line_keeps_of_every_tenth_step_is_told_alike_in_headline_table_report_and_source() -> None:
    groups = tuple(AllocationGroup(48 * MIB, 1, ACTIVATIONS, step, stack=(TRAIN, MAIN)) for step in range(10, 131, 10))
    found = explain(replace(STATE, groups=groups, step=140), lambda _file, line: f"line {line}")
    assert "keeps 48 MiB alive every 10 steps" in found.headline
    assert owner_rows(found, Choice())[0].cells[3] == "+48 MiB every 10 steps"
    assert any("+48 MiB every 10 steps" in line for line in report(found))
    source = read_source(found, TRAIN.file, None, "")
    assert source is not None and "48 MiB more every 10 steps" in spoken(source)


def test_the_title_of_growths_says_no_interval_and_every_growth_does() -> None:
    tenth = (AllocationGroup(48 * MIB, 1, ACTIVATIONS, step, stack=(TRAIN, MAIN)) for step in range(10, 131, 10))
    for groups, step, growth in (
        (leaking(60), 60, "+64 MiB every step"),
        (tuple(tenth), 140, "+48 MiB every 10 steps"),
    ):
        found = explain(replace(STATE, groups=groups, step=step))
        assert owner_rows(found, Choice())[0].cells[3] == growth
        lines = report(found)
        titles, row = lines[lines.index("Who allocated it") + 1 :][:2]
        assert GROWTH in titles and growth in row
    for titles in (*(column.title for column in COLUMNS), *(title for title, _right in OWNERS)):
        assert "step" not in titles


def test_folded_lines_are_counted_between_the_users_own() -> None:
    stack = explain(STATE).owners[0].stack
    assert folded(stack) == [
        "    … 1 library line",
        "/home/mia/project/model.py:88 in forward",
        "/home/mia/project/train.py:90 in main",
    ]


CHANGES = [Remedy(f"batch {number}", {"batch": number}, predicted_peak_bytes=GIB, fits=True) for number in range(6)]
NOTE = "train.py:46 (history += loss) keeps loss, and with it the graph that made it: keep loss.item() instead. " * 3


@pytest.fixture
def row(qtbot: QtBot) -> RemediesView:
    found = RemediesView()
    qtbot.addWidget(found)
    found.resize(1200, 80)
    found.show()
    QApplication.processEvents()
    return found


def seen(row: RemediesView, kind: type[QLabel | QPushButton] = QPushButton) -> list[str]:
    QApplication.processEvents()
    return in_reading_order([widget for widget in row.findChildren(kind) if widget.isVisible() and widget.text()], row)


def test_it_is_resized_before_anything_is_shown(row: RemediesView) -> None:
    row.resize(300, 60)
    assert seen(row) == []


@pytest.mark.parametrize("width", [1200, 800, 500, 250])
def test_as_many_as_fit_are_seen_and_the_others_are_in_the_menu(row: RemediesView, width: int) -> None:
    row.show_remedies(CHANGES, commanding=True)
    row.resize(width, 80)
    *shown, more = seen(row)
    menu = [action.text() for action in row.more.menu().actions()]
    assert more == f"{len(menu)} more"
    assert [*shown, *menu] == [remedy_text(remedy) for remedy in CHANGES]
    assert 1 <= len(shown) <= 4 and (len(shown) == 4) == (width >= 800)
    if width >= 500:
        assert row.more.geometry().right() <= row.width()


@pytest.mark.parametrize("commanding", [True, False])
def test_one_that_is_too_long_for_the_line_wraps_on_a_button_too_and_is_in_one_line_again_with_room(
    row: RemediesView, commanding: bool
) -> None:
    long = Remedy("let go of what train.py:16 (losses.append(loss); ...) keeps at every step", {"batch": 1}, fits=True)
    row.show_remedies([long, CHANGES[0]], commanding=commanding)
    row.resize(400, 80)
    kind = QPushButton if commanding else QLabel
    words = next(text for text in seen(row, kind) if text.startswith("let go"))
    alone = next(widget for widget in row.findChildren(kind) if widget.text() == words)
    assert " ".join(words.split()) == remedy_text(long), "nothing of it is left out"
    if isinstance(alone, QLabel):
        assert row.heightForWidth(400) > row.heightForWidth(1200)
        assert alone.width() > 150 and alone.heightForWidth(alone.width()) <= row.heightForWidth(400)
    else:
        assert "\n" in words and alone.sizeHint().width() <= alone.width()
        assert row.sizeHint().height() >= alone.sizeHint().height()
    row.resize(1200, 80)
    assert remedy_text(long) in seen(row, kind)


def test_one_below_the_other_they_are_as_wide_as_there_is_room_and_read_whole(row: RemediesView) -> None:
    long = Remedy("checkpointing, and the gradients of two batches are added up", {"accumulate": 2}, fits=True)
    card = Remedy("a card with 4 GiB", predicted_peak_bytes=3 * GIB, fits=True, verified_by="dry run")
    row.show_remedies([CHANGES[0], long, card], commanding=True)
    row.set_stacked(True)
    row.resize(210, 200)
    QApplication.processEvents()
    shown = [widget for widget in (*row.findChildren(QPushButton), *row.findChildren(QLabel)) if widget.isVisible()]
    assert {" ".join(widget.text().split()) for widget in shown} >= {
        remedy_text(remedy) for remedy in (CHANGES[0], long, card)
    }
    for widget in shown:
        assert widget.geometry().right() < 210, widget.text()
        needed = widget.heightForWidth(widget.width()) if widget.hasHeightForWidth() else widget.sizeHint().height()
        assert needed <= widget.height(), widget.text()
    row.set_stacked(False)
    row.resize(1200, 80)
    assert remedy_text(long) in seen(row)


def test_a_remedy_of_the_menu_is_applied(row: RemediesView, qtbot: QtBot) -> None:
    row.show_remedies(CHANGES, commanding=True)
    with qtbot.waitSignal(row.applied) as applied:
        row.more.menu().actions()[-1].trigger()
    assert applied.args == [CHANGES[-1]]


def test_what_cannot_be_applied_here_is_words_and_no_button(row: RemediesView) -> None:
    row.show_remedies(
        [CHANGES[0], Remedy("a card with 4 GiB", predicted_peak_bytes=3 * GIB, fits=True, verified_by="dry run")],
        commanding=False,
    )
    assert seen(row) == []
    assert seen(row, QLabel) == ["This would have fit:", "batch 0 (1.00 GiB)", "a card with 4 GiB (3.00 GiB)"]


def test_a_long_note_wraps_below_and_asks_for_no_width(row: RemediesView) -> None:
    row.show_remedies(CHANGES, NOTE)
    row.resize(600, row.sizeHint().height())
    QApplication.processEvents()
    assert row.note.isVisible() and row.note.width() <= 600
    assert row.note.heightForWidth(600) > 2 * row.note.fontMetrics().height()
    assert row.minimumSizeHint().width() == 0


def test_nothing_to_say_takes_no_room(row: RemediesView) -> None:
    row.show_remedies(CHANGES, NOTE)
    row.show_remedies([], "")
    assert row.isHidden()
    row.show_remedies([], NOTE, searching=True)
    assert seen(row, QLabel) == ["Looking for what would have fitted…"]


def test_what_a_search_has_found_is_shown_at_once_and_how_far_it_is(row: RemediesView) -> None:
    row.show_remedies([], commanding=True, searching=True)
    row.show_so_far(SoFar(seconds=4))
    assert seen(row, QLabel) == ["Looking for what would have fitted: following the run itself, 4 s…"]
    row.show_so_far(SoFar(CHANGES[:1], 3, predicted=True, seconds=12))
    assert "Looking further for what would have fitted: 3 changes tried, 12 s…" in seen(row, QLabel)
    assert any(CHANGES[0].change in words for words in (*seen(row, QLabel), *seen(row, QPushButton)))
    row.show_remedies(CHANGES, NOTE)
    row.show_so_far(SoFar(CHANGES[:1], 9, predicted=True, seconds=20))
    assert NOTE in seen(row, QLabel)


def test_a_workspace_that_no_line_asked_for_has_no_line_that_used_it_first() -> None:
    found = explain(state(groups=(AllocationGroup(16 * MIB, 1, WORKSPACE),)))
    assert [row.cells[-1] for row in owner_rows(found, Choice())] == ["workspace of cuBLAS"]


def test_what_a_growing_line_holds_is_one_figure_in_the_sentence_the_bar_and_the_table() -> None:
    """Also with what the step that failed had left already, and with the workspace that the line was first to need."""
    groups = (*leaking(61), AllocationGroup(16 * MIB, 1, WORKSPACE, 1, "forward", "", "Net", leaking(2)[0].stack))
    found = explain(state(groups=groups, step=60, reserved=60 * 64 * MIB + 16 * MIB))
    assert "per step: 3.75 of 8.00 GiB after" in found.headline
    parts = {part.name: format_bytes(part.bytes) for part in found.parts}
    assert (parts[ACTIVATIONS], parts[WORKSPACE]) == ("3.75 GiB", "16 MiB")
    rows = [row.cells for row in owner_rows(found, Choice())]
    assert [(own, total, where.split("  ")[0]) for own, total, *_, where in rows] == [
        ("3.75 GiB", "3.75 GiB", "train.py:41 step"),
        ("16 MiB", "16 MiB", "workspace of cuBLAS, first used at train.py:41 step"),
    ]
