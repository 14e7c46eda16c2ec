"""The user's script in an explanation: what each line held, the way of a leak, a change and what it is good for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QTextCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QPushButton, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from gpudash.memory.explaining.annotated_source import AnnotatedSource, SourceRow
from gpudash.memory.explaining.patches import unified_diff
from gpudash.session import Replay
from gpudash.telemetry.explanation import Explanation, Remedy, Rewrite
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import RunEnd, RunStarted
from gpudash.ui.colours import DARK, LIGHT, contrast
from gpudash.ui.explanation.page import ExplanationPage
from gpudash.ui.explanation.source_view.highlighting import colours_of, spans_of
from gpudash.ui.explanation.source_view.source import SourceView
from gpudash.ui.plots.legend import LegendEntry
from gpudash.ui.widgets.text_size import SIZES
from gpudash.ui.widgets.theme import restyle
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import MIB
from tests.ui.conftest import OpenWindow, settle
from tests.ui.explanation.program import (
    ALLOCATES,
    FAILS,
    KEEPS,
    LEAKING,
    STEPS,
    change_in,
    ended_well,
    explained,
    failed,
    request_of,
    run_of_steps,
    script_in,
)
from tests.ui.fake_session import FakeSession
from tests.ui.words import complaints, page_complaints

pytestmark = pytest.mark.process

SEGMENTS = Remedy(
    "expandable segments", flags="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", predicted_peak_bytes=160 * MIB
)

Opened = Callable[..., ExplanationPage]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return script_in(tmp_path)


@pytest.fixture
def opened(open_window: OpenWindow) -> Opened:
    """Opens the explanation of a session's last run."""

    def page(
        session: FakeSession | Replay, size: tuple[int, int] = (1280, 800), scale: float = 1.0, **facts: Any
    ) -> ExplanationPage:
        window = open_window(session, size=size, **facts)
        restyle(window, window.workspace.colours, scale)
        window.workspace.dashboard.explanation.explain()
        settle(window)
        return window.workspace.dashboard.explanation.page

    return page


def buttons(part: QWidget) -> list[str]:
    return [button.text() for button in part.findChildren(QPushButton) if button.isVisible()]


def window_of(page: ExplanationPage) -> MainWindow:
    window = page.window()
    assert isinstance(window, MainWindow)
    return window


def again(page: ExplanationPage) -> None:
    settle(window_of(page))


def shown(page: ExplanationPage) -> list[tuple[int, str, str]]:
    source = page.program.source.view.source
    assert source is not None
    return [(row.number, row.kind, row.text) for row in source.rows]


def test_each_line_says_what_it_held_and_what_it_keeps_of_every_step(opened: Opened, script: Path) -> None:
    page = opened(failed(script, [change_in(script)]))
    view = page.program.source.view
    assert view.isVisible() and not page.stack.isVisible()
    source = view.source
    assert source is not None and source.file == str(script)
    assert {row.number: row.bytes // MIB for row in source.rows if row.bytes} == {4: 32, ALLOCATES: 476}
    assert {row.number: row.growth / MIB for row in source.rows if row.growth} == {ALLOCATES: 4.0}
    assert [row.number for row in source.rows if row.remark == "stopped here"] == [FAILS]
    assert "workspace" in page.program.source.foot.text(), "the 8 MiB of the last line are not its own"


def test_the_change_stands_under_its_line_and_the_way_leads_from_what_allocates_to_what_keeps(
    opened: Opened, script: Path
) -> None:
    page = opened(failed(script, [change_in(script)]))
    rows = shown(page)
    assert rows[KEEPS - 1 : KEEPS + 1] == [
        (KEEPS, "removed", "    history.append(loss)"),
        (0, "added", "    history.append(loss.item())"),
    ]
    view = page.program.source.view
    assert view.source is not None and view.source.way == (ALLOCATES - 1, KEEPS - 1)
    assert view.toPlainText().replace("    history.append(loss.item())\n", "") == LEAKING.removesuffix("\n")


def test_the_margin_is_told_in_words_to_who_cannot_see_it(opened: Opened, script: Path) -> None:
    told = opened(failed(script, [change_in(script)])).program.source.view.accessibleDescription()
    assert told == (
        f"line {ALLOCATES} held 476 MiB, 4 MiB more every step; line 4 held 32 MiB; "
        f"line {KEEPS} goes: history.append(loss); comes instead: history.append(loss.item())"
    )


def test_of_several_files_the_one_with_the_change_is_in_front_and_the_others_are_a_choice_away(
    opened: Opened, script: Path
) -> None:
    module = script.with_name("net.py")
    module.write_text("def forward(x):\n    return x.square()\n")
    change = change_in(script)
    found = explained(script, [change])
    other = replace(found.owners[0], file=str(module), line=2, text="return x.square()", bytes=900 * MIB)
    page = opened(failed(script, [change], explanation=replace(found, owners=(other, *found.owners))))
    source = page.program.source
    assert [source.files.itemText(row) for row in range(source.files.count())] == ["leak.py", "net.py"]
    assert source.view.source is not None and source.view.source.file == str(script)
    source.files.setCurrentIndex(1)
    source.files.activated.emit(1)
    assert source.view.source.file == str(module) and source.view.source.way is None
    page.owners.table.select_row(1)
    assert source.view.source.file == str(script), "a row of the table brings its file along"
    assert source.files.currentText() == "leak.py"


@pytest.mark.parametrize(("height", "seen"), [(15, (20, 30, 31)), (8, (30, 31))])
def test_a_low_view_shows_both_ends_of_the_way_or_else_the_line_that_is_changed(
    qtbot: QtBot, height: int, seen: Sequence[int]
) -> None:
    rows = [SourceRow(number, "x = 1") for number in range(1, 90)]
    rows[30] = replace(rows[30], kind="removed")
    rows.insert(31, SourceRow(0, "x = 2", "added"))
    view = SourceView(DARK)
    qtbot.addWidget(view)
    view.show()
    line = view.block_rect(view.document().firstBlock()).height()
    view.resize(400, round(view.height() - view.viewport().height() + line * height) + 1)
    view.show_source(AnnotatedSource("/train.py", tuple(rows), way=(20, 30), front=20))
    for place in seen:
        rect = view.block_rect(view.document().findBlockByNumber(place))
        assert rect.top() >= 0 and rect.bottom() <= view.viewport().height() + 1, place
    assert view.line_in_front() == 31
    view.look_at(20)
    assert view.block_rect(view.document().findBlockByNumber(20)).top() >= 0, "whoever asks for the other sees it"


def test_a_click_on_the_row_that_is_selected_already_shows_its_line(opened: Opened, script: Path, qtbot: QtBot) -> None:
    page = opened(failed(script, [change_in(script)]))
    view = page.program.source.view
    assert view.line_in_front() == KEEPS, "the change is in front, although the row is selected"
    table = page.owners.table
    first = table.view.visualRect(table.model.index(0, 0)).center()
    qtbot.mouseClick(table.view.viewport(), Qt.MouseButton.LeftButton, pos=first)
    assert view.line_in_front() == ALLOCATES


def test_the_first_row_is_selected_whatever_key_is_held(opened: Opened, script: Path, qtbot: QtBot) -> None:
    session = failed(script, [change_in(script)])
    page = opened(session)
    table = page.owners.table
    table.select_row(1)
    qtbot.keyPress(table.view, Qt.Key.Key_A, Qt.KeyboardModifier.ShiftModifier)
    try:
        page.owners.total.toggle()
        assert [index.row() for index in table.view.selectionModel().selectedRows()] == [0]
    finally:
        qtbot.keyRelease(table.view, Qt.Key.Key_A)


def test_what_the_change_saves_is_said_with_what_it_rests_on(opened: Opened, script: Path) -> None:
    change = opened(failed(script, [change_in(script)])).program.change
    assert change.title.text() == "THE CHANGE, ONE LINE"
    assert change.sentence == "162 MiB reserved at the peak, instead of 726 MiB with the refused request."
    assert "By a replay" in change.tried.text()
    assert buttons(change) == ["Run with this change", "Copy patch", "Open in editor"]


def test_the_reason_names_line_and_bytes_and_the_caveat_comes_after_it(opened: Opened, script: Path) -> None:
    remedy = replace(change_in(script), fits=None, puts_off="lasts at least 9 steps more, then it is full again")
    found = explained(script, [remedy])
    found = replace(found, verdict="real capacity", cause="One step is too large.", remedies_note="A rerun said so.")
    change = opened(failed(script, [], explanation=found)).program.change
    assert change.why.text() == f"leak.py:{ALLOCATES} holds 476 MiB (activations). One step is too large."
    assert "A rerun said so." not in change.why.text()
    assert change.caveat.text() == "It lasts at least 9 steps more, then it is full again. A rerun said so."
    assert change.figure.text() == "at least 162 MiB", "as in the list above"
    assert change.caveat.property("role") == "muted" and change.caveat.isVisible()


def test_the_remedies_above_follow_the_change_below_or_it_says_why_it_is_not_the_first(
    opened: Opened, script: Path
) -> None:
    card = Remedy("a card with 4 GiB", fits=True, verified_by="rerun")
    change = replace(change_in(script), fits=None)
    page = opened(failed(script, [change, card]))
    titles = [label.text() for label in page.header.remedies.findChildren(QLabel)]
    assert "Also would have fit:" in titles
    assert "no change" not in page.program.change.caveat.text()
    page = opened(failed(script, [card, replace(change, verified_by="")]))
    titles = [label.text() for label in page.header.remedies.findChildren(QLabel)]
    assert "This would have fit:" in titles
    assert page.program.change.caveat.text() == (
        "The first of the remedies above is no change of the program to run from here."
    )


def test_run_with_this_change_asks_for_the_same_run_with_the_patch_and_proves_it(opened: Opened, script: Path) -> None:
    remedy = change_in(script)
    session = failed(script, [remedy])
    page = opened(session)
    page.program.change.run_button.click()
    [(_what, request)] = [asked for asked in session.requested if asked[0] == "watch"]
    assert request.edit == remedy.patch and request.find_need is False
    assert replace(request, edit="").spec() == request_of(script).spec()

    again(page)
    assert page.isVisible() and page.comparison.isVisible() and not page.middle.isVisible()
    assert page.program.change.run_button.text() == "Stop"
    page.program.change.run_button.click()
    assert session.requested[-1] == ("stop",)
    assert script.read_text() == LEAKING


LOW_SCREEN = (1024, 708)
"""A window on a screen of 1024 × 768, with its frame and a panel."""

LARGER = (1.0, 1.15, 1.3, 1.5)


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize("scale", LARGER)
def test_a_low_window_scrolls_the_page_and_cuts_no_word(opened: Opened, script: Path, scale: float) -> None:
    session = failed(script, [change_in(script)])
    page = opened(session, LOW_SCREEN, scale)
    window = window_of(page)
    assert page_complaints(page) == []
    page.program.change.run_button.click()
    finished_trial(session, page)
    settle(window)
    assert page.comparison.isVisible() and page_complaints(page) == []
    page.program.change.copy_button.setFocus()
    QTest.keyClick(page.program.change.copy_button, Qt.Key.Key_Tab)
    settle(window)
    below = page.program.change.edit_button
    assert below.hasFocus() and below.visibleRegion().boundingRect() == below.rect()


LONG = "history.append(model(x).square().relu().mean())"


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize("scale", LARGER)
def test_what_a_change_writes_is_in_view_in_a_narrow_window(opened: Opened, script: Path, scale: float) -> None:
    script.write_text(LEAKING.replace("history.append(loss)", LONG))
    value, end = "model(x).square().relu().mean()", 4 + len(LONG) - 1
    rewrite = Rewrite(str(script), KEEPS, 19, KEEPS, end, value, f"{value}.item()")
    patch = unified_diff([rewrite], str(script.parent), lambda file: Path(file).read_bytes())
    change = replace(change_in(script), rewrites=(rewrite,), patch=patch)
    view = opened(failed(script, [change]), LOW_SCREEN, scale).program.source.view
    assert view.source is not None
    (added,) = [place for place, row in enumerate(view.source.rows) if row.kind == "added"]
    assert view.source.rows[added].text.endswith(".item())")
    cursor = QTextCursor(view.document().findBlockByNumber(added))
    cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock)
    cursor.movePosition(QTextCursor.MoveOperation.Left)  # to where what is written ends
    assert view.cursorRect(cursor).right() <= view.viewport().width()
    cursor.movePosition(QTextCursor.MoveOperation.Left, n=len(".item()"))
    assert view.cursorRect(cursor).left() >= 0


def finished_trial(session: FakeSession, page: ExplanationPage, **ended: Any) -> None:
    """A run with the change, which comes to its end."""
    view = window_of(page).workspace.dashboard.explanation
    view._trial_id = 2  # the stand-in calls every run its first
    session.running = True
    spec = {"command": ["python", "leak.py"]}
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="watch", device="sim:0", spec=spec))
    run_of_steps(session, 2, 400)
    again(page)
    assert page.program.change.sentence.startswith("162 MiB reserved at the peak so far, after 400 steps")
    if ended:
        session.apply(RunEnd(time_s=session.now_s, run_id=2, seconds=40.0, steps=400, **ended))
        session.running = False
    else:
        ended_well(session, 2, 400, 162 * MIB)
    again(page)


def test_both_peaks_and_both_plots_stand_beside_one_another_afterwards(opened: Opened, script: Path) -> None:
    session = failed(script, [change_in(script)])
    page = opened(session)
    finished_trial(session, page)
    change = page.program.change
    assert change.sentence.startswith(
        "162 MiB reserved at the peak, instead of 726 MiB with the refused request. It finished after"
    )
    assert "400 steps" in change.sentence
    assert change.tried.text().endswith("Before, a replay said 162 MiB.")
    heads = [label.text() for label in page.comparison.findChildren(QLabel)]
    assert "726 MiB with the refused request" in heads and "peak reserved 162 MiB" in heads
    assert change.figure.property("role") == "figure-good" and change.run_button.text() == "Run with this change"
    before, after = page.comparison.before, page.comparison.after
    assert before.accessibleDescription() == "peak reserved 638 MiB of 724 MiB"
    assert after.accessibleDescription() == "peak reserved 162 MiB of 724 MiB"
    assert before.scene is not None and after.scene is not None
    assert (before.scene.left.high, before.scene.across.high) == (after.scene.left.high, after.scene.across.high)
    assert after.scene.across.ticks[-1] == (400, "step 400")
    old = [item for item in after.scene.items if getattr(item, "kind", "") == "before"]
    assert len(old) == 2 and not [item for item in before.scene.items if getattr(item, "kind", "") == "before"]


def test_beside_the_curve_its_lines_are_named_in_a_usual_window(opened: Opened, script: Path) -> None:
    page = opened(failed(script, [change_in(script)]))
    named = [entry.spec.name for entry in page.plots.findChildren(LegendEntry) if entry.isVisible()]
    assert {"reserved", "allocated"} <= set(named), named
    (legend,) = (plot.legend for plot in page.plots.plots)
    assert any(text.startswith("capacity") for text in legend.levels)


def test_whoever_went_back_to_the_plots_finds_the_comparison_again(opened: Opened, script: Path) -> None:
    session = failed(script, [change_in(script)])
    page = opened(session)
    finished_trial(session, page)
    page.leave()
    assert not page.isVisible()
    window_of(page).workspace.dashboard.explanation.explain()
    assert page.comparison.isVisible() and page.program.change.sentence.startswith(
        "162 MiB reserved at the peak, instead"
    )


def test_a_change_that_does_not_do_says_so(opened: Opened, script: Path) -> None:
    session = failed(script, [change_in(script)])
    page = opened(session)
    finished_trial(session, page, status="out_of_memory", result={})
    assert "with the change memory ran out too, after 400 steps." in page.program.change.sentence
    assert page.program.change.figure.property("role") == "figure-bad"


def test_what_cannot_be_started_is_told_in_a_sentence(opened: Opened, script: Path) -> None:
    session = failed(script, [change_in(script)])
    page = opened(session)
    session.refusal = "There is no program python on PATH."
    page.program.change.run_button.click()
    assert page.program.change.notice.text() == "There is no program python on PATH."
    assert page.program.change.notice.isVisible() and not page.comparison.isVisible()


def test_the_patch_can_be_copied(opened: Opened, script: Path) -> None:
    remedy = change_in(script)
    page = opened(failed(script, [remedy]))
    page.program.change.copy_button.click()
    assert QGuiApplication.clipboard().text() == remedy.patch


def test_the_editor_opens_the_line_in_front(
    opened: Opened, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot
) -> None:
    noted = tmp_path / "opened"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\necho "$@" > "{noted}.part"; mv "{noted}.part" "{noted}"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    page = opened(failed(script, [change_in(script)]))
    page.program.change.edit_button.click()
    qtbot.waitUntil(noted.exists)
    assert noted.read_text() == f"+{KEEPS} {script}\n", "the line to be changed, until another is in front"
    noted.unlink()
    page.program.source.view.look_at(3)
    page.program.change.edit_button.click()
    qtbot.waitUntil(noted.exists)
    assert noted.read_text() == f"+4 {script}\n"


def test_a_setting_has_its_button_and_runs_the_same_program(opened: Opened, script: Path) -> None:
    session = failed(script, [SEGMENTS])
    page = opened(session)
    change = page.program.change
    assert (change.title.text(), change.setting.text()) == ("THE CHANGE, A SETTING", SEGMENTS.flags)
    assert buttons(change) == ["Run with this setting", "Copy setting", "Open in editor"]
    change.run_button.click()
    [(_what, request)] = [asked for asked in session.requested if asked[0] == "watch"]
    assert request.environment == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} and not request.edit


def test_other_changes_of_an_own_script_are_buttons_above(opened: Opened, script: Path) -> None:
    session = failed(script, [change_in(script), replace(SEGMENTS, fits=True)])
    page = opened(session)
    [other] = [button for button in page.header.remedies.findChildren(QPushButton) if "expandable" in button.text()]
    assert other.isVisible()
    other.click()
    assert session.requested[-1][1].environment == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert page.isVisible(), "what comes of it is shown here"
    assert page.program.change.setting.text() == SEGMENTS.flags, "and the change is the one that runs"
    shown_above = [button.text() for button in page.header.remedies.findChildren(QPushButton) if button.isVisible()]
    assert any("history.append(loss.item())" in text for text in shown_above)


def test_without_a_change_the_panel_says_what_is_known_and_opens_the_editor(opened: Opened, script: Path) -> None:
    page = opened(failed(script, [Remedy("a card with 4 GiB", fits=True)]))
    change = page.program.change
    assert change.title.text() == "NO CHANGE OF THE PROGRAM IS KNOWN"
    assert change.why.text() == (
        f"leak.py:{ALLOCATES} holds 476 MiB, 4 MiB of every step. It keeps loss, and with it the graph."
    )
    assert not change.caveat.text()
    assert buttons(change) == ["Open in editor"]
    assert not page.header.remedies.note.isVisible(), "it is said once"


@pytest.mark.parametrize(
    ("command", "why"),
    [(["torchrun", "leak.py"], "A copy can only be run of a script"), ([], "It was already running")],
)
def test_where_nothing_can_be_run_a_sentence_says_why(
    opened: Opened, script: Path, command: Sequence[str], why: str
) -> None:
    spec = {**request_of(script).spec(), "command": command}
    change = opened(failed(script, [change_in(script)], spec)).program.change
    assert change.why_not.text().startswith(why)
    assert buttons(change) == ["Copy patch", "Open in editor"]


def test_a_file_that_has_changed_since_says_so_and_the_lines_of_the_run_are_shown(opened: Opened, script: Path) -> None:
    session = failed(script, [change_in(script)])
    script.write_text("import os\n" + LEAKING)
    page = opened(session)
    assert page.program.source.note.text() == (
        "leak.py has changed since the run; these are the lines that the run kept."
    )
    numbers = [number for number, kind, _text in shown(page) if kind != "added"]
    assert numbers == [0, 4, 0, 8, ALLOCATES, 10, KEEPS, FAILS], "gaps stand for what nobody kept"
    texts = {number: text for number, kind, text in shown(page) if kind != "added"}
    assert texts[ALLOCATES] == "    out = model(x)" and texts[4].startswith("model = "), "indented as they were"
    assert page.program.change.why_not.text().startswith("leak.py has other lines than the run had")


def test_a_recording_from_elsewhere_shows_the_lines_that_it_kept(opened: Opened, script: Path, tmp_path: Path) -> None:
    remedy, spec = change_in(script), request_of(script).spec()
    found = explained(script, [remedy])
    script.unlink()
    page = opened(recorded(tmp_path / "elsewhere.gpudash", spec, found))
    assert page.program.source.note.text().startswith(f"{script} is not on this computer")
    assert buttons(page.program.change) == ["Copy patch", "Open in editor"]
    assert not page.program.change.why_not.isVisible()


def test_a_recording_says_how_its_script_is_run_with_the_change(opened: Opened, script: Path, tmp_path: Path) -> None:
    found = explained(script, [change_in(script)])
    change = opened(recorded(tmp_path / "mine.gpudash", request_of(script).spec(), found)).program.change
    sentence = f"Open the script with gpudash open {shlex.quote(str(script))} to run it with this change."
    assert change.why_not.isVisible() and change.why_not.full_text == sentence
    assert buttons(change) == ["Copy patch", "Open in editor"]


def recorded(file: Path, spec: dict[str, Any], found: Explanation) -> Replay:
    """A recording of a program that ran out of memory."""
    recorder = Recorder(file, meta={"wall_clock_origin": "2026-11-21T10:15:00+00:00", "host_product": "x"})
    recorder.add(RunStarted(time_s=1.0, run_id=1, workload="watch", device="sim:0", spec=spec, simulated=True))
    recorder.add(replace(failed_end(), explanation=found))
    recorder.close("closed")
    return Replay(file)


def failed_end() -> RunEnd:
    from tests.unit.telemetry.run_ends import RAN_OUT

    return replace(RAN_OUT, time_s=13.0, run_id=1, seconds=12.0, steps=STEPS)


@pytest.mark.parametrize("kind", ["fifo", "binary"])
def test_a_file_that_is_none_is_not_waited_for_and_never_html(opened: Opened, script: Path, kind: str) -> None:
    session = failed(script, [change_in(script)])
    script.unlink()
    if kind == "fifo":
        os.mkfifo(script)
    else:
        script.write_bytes(b"\xff\x00<img src=x>\xe2\x80\xa8\n" * 3)
    page = opened(session)
    assert [text for number, _kind, text in shown(page) if number == KEEPS] == ["    history.append(loss)"]


def test_a_text_that_looks_like_html_is_shown_as_it_is(opened: Opened, script: Path) -> None:
    line = '    print("<b>\u2028</b>")\x00'
    script.write_text(LEAKING + line + "\n")
    page = opened(failed(script, [change_in(script)]))
    assert page.program.source.view.toPlainText().endswith('    print("<b>\ufffd</b>")\ufffd')


def test_the_stack_is_a_key_away_and_without_a_source_it_is_all_there_is(opened: Opened, script: Path) -> None:
    page = opened(failed(script, [change_in(script)]))
    page.program.source.stack_button.click()
    assert page.stack.isVisible() and f"{script}:{ALLOCATES}" in page.stack.text.toPlainText()
    page.program.source_button.click()
    assert page.program.source.isVisible() and not page.stack.isVisible()


def test_a_run_of_ours_shows_the_stack(opened: Opened, script: Path) -> None:
    session = FakeSession()
    session.feed(1.0)
    session.apply(RunStarted(time_s=1.0, run_id=1, workload="training", device="sim:0", spec={}, simulated=True))
    session.apply(replace(failed_end(), explanation=explained(script)))
    page = opened(session)
    assert page.stack.isVisible() and not page.program.source.isVisible()
    assert not page.program.source_button.isVisible()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_no_word_is_cut_or_covered(open_window: OpenWindow, script: Path, theme: Any, size: tuple[int, int]) -> None:
    session = failed(script, [change_in(script), replace(SEGMENTS, fits=True)])
    window = open_window(session, theme=theme, size=size)
    window.workspace.dashboard.explanation.explain()
    settle(window)
    assert complaints(window) == []
    finished_trial(session, window.workspace.dashboard.explanation.page)
    assert complaints(window) == []


def test_colours_follow_the_theme_and_can_be_read() -> None:
    for palette in (DARK, LIGHT):
        assert all(contrast(colour, palette.field) >= 4.5 for colour in colours_of(palette).values())


def test_python_is_coloured_line_by_line_also_in_a_text_of_several_lines() -> None:
    lines = ['name = """one', "two 🙂", 'three"""', "", "def f(): return 1  # why"]
    kinds = [[(span.begin, span.length, span.kind) for span in line] for line in spans_of(lines)]
    assert kinds[1] == [(0, 6, "string")], "Qt counts in units of UTF-16"
    assert kinds[3] == []
    assert [kind for _begin, _length, kind in kinds[4]] == ["keyword", "keyword", "number", "comment"]


@pytest.mark.usefixtures("usual_size")
@pytest.mark.parametrize("scale", SIZES)
def test_in_every_text_size_all_of_the_page_can_be_read_and_the_change_is_in_view(
    opened: Opened, script: Path, tmp_path: Path, scale: float
) -> None:
    found = explained(script, [change_in(script)])
    page = opened(recorded(tmp_path / "mine.gpudash", request_of(script).spec(), found))
    window = window_of(page)
    restyle(window, window.workspace.colours, scale)
    again(page)
    assert page_complaints(page) == []
    view = page.program.source.view
    place = view.place_of(KEEPS)
    assert place is not None
    changed = view.block_rect(view.document().findBlockByNumber(place))
    assert changed.top() >= 0 and changed.bottom() <= view.viewport().height()
    areas = [area for area in window.findChildren(QScrollArea) if area.accessibleName() == "Explanation"]
    assert areas[0].verticalScrollBar().maximum() == max(0, page.height() - areas[0].viewport().height())
    page.leave()
    again(page)
    assert not page.isVisible() and window.height() == 800
