"""Whether what the form asks for fits: asked in time, shown in words, and applied."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QScrollArea, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from gpudash.memory.allocator.trace import CATEGORIES
from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.memory.predicting.prediction import CONTEXT, HELD_BACK, Prediction
from gpudash.ui.colours import DARK, LIGHT, Palette
from gpudash.ui.forms.fit_follower import POLL_S
from gpudash.ui.forms.fit_panel import AlternativeRow, FitBar, part_colour
from gpudash.ui.widgets.theme import Choice
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.asked_form import asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import CARD, CHECKPOINTING, EXPANDABLE, FITS, ON_THE_CPU, SHORT, SMALLER_BATCH
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.words import complaints, label, weakest
from tests.unit.clock import Clock


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0)]).feed(1)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, clock: Clock) -> MainWindow:
    return asked_window(open_window, session, clock)


def wait(window: MainWindow, clock: Clock, seconds: float) -> None:
    clock.now_s += seconds
    settle(window)


def emit(window: MainWindow, session: FakeSession, estimate: Estimate, *, final: bool = True) -> None:
    session.estimates.report(estimate, final=final)
    settle(window)


def type_into(window: MainWindow, field: str, text: str) -> None:
    control = window.workspace.dashboard.panel.form.control(field)
    assert isinstance(control, QLineEdit)
    control.setText(text)


def row_of(window: MainWindow, alternative: Alternative) -> AlternativeRow:
    return next(row for row in window.workspace.dashboard.panel.fit.alternatives if row.alternative == alternative)


def open_details(window: MainWindow) -> None:
    if not window.workspace.dashboard.panel.fit._toggle.isChecked():
        window.workspace.dashboard.panel.fit._toggle.click()
    settle(window)


def press(window: MainWindow, alternative: Alternative) -> None:
    open_details(window)
    button = row_of(window, alternative).button
    assert button is not None
    button.click()


def test_what_was_changed_within_a_frame_is_asked_about_once_with_the_next(
    window: MainWindow, session: FakeSession
) -> None:
    emit(window, session, FITS)
    for text in ("1", "12", "128"):
        type_into(window, "batch", text)
    assert len(session.estimates.questions) == 1
    settle(window)
    ((_, _), (spec, device)) = session.estimates.questions
    assert spec.model_dump()["batch"] == 128
    assert device == window.workspace.dashboard.panel.device_name == "cuda:0"


def test_nothing_is_asked_while_a_value_is_not_allowed_or_torch_is_loading(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    type_into(window, "batch", "0")
    wait(window, clock, 10)
    assert len(session.estimates.questions) == 1
    assert window.workspace.dashboard.panel.fit.headline == "Correct Batch first"
    assert window.workspace.dashboard.panel.fit.estimate is None
    emit(window, session, FITS)
    assert window.workspace.dashboard.panel.fit.headline == "Correct Batch first", "an answer that came late"
    session.torch_ready = False
    type_into(window, "batch", "4")
    wait(window, clock, 10)
    assert len(session.estimates.questions) == 1
    session.torch_ready = True
    settle(window)
    assert len(session.estimates.questions) == 2


@pytest.mark.parametrize(
    ("estimate", "headline", "role"),
    [
        (FITS, "✓ fits, 5.00 GiB spare", "good"),
        (SHORT, "✕ does not fit, 3.10 GiB short", "error"),
        (replace(FITS, fits=None, margin_bytes=120 * MIB), "≈ may fit: within the margin of 120 MiB", "warn"),
        (replace(FITS, fits=None, free_bytes=None), "needs 3.00 GiB; what is free is not known", "muted"),
        (replace(SHORT, spare_bytes=None), "✕ runs out of memory, as it is meant to", "error"),
    ],
)
def test_the_verdict_is_told_by_words_sign_and_colour(
    window: MainWindow, session: FakeSession, estimate: Estimate, headline: str, role: str
) -> None:
    emit(window, session, estimate)
    fit = window.workspace.dashboard.panel.fit
    assert fit.headline == headline
    assert fit._headline.property("role") == role
    metrics = fit._headline.fontMetrics()
    assert metrics.horizontalAdvance(headline) <= fit._headline.width()


def test_the_figures_of_other_values_are_withdrawn_and_nothing_moves(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    emit(window, session, SHORT)
    open_details(window)
    fit = window.workspace.dashboard.panel.fit
    before, heights = fit.geometry(), [part.geometry() for part in (fit.bar, fit._lines, fit._toggle, fit._details)]
    type_into(window, "batch", "5")
    settle(window)
    assert fit.headline == "predicting…"
    assert (fit.estimate, fit.figures, fit.bar.parts(), fit.alternatives) == (None, "", [], [])
    settle(window)
    assert fit.geometry() == before
    assert heights == [part.geometry() for part in (fit.bar, fit._lines, fit._toggle, fit._details)]
    emit(window, session, SHORT)
    assert fit.alternatives
    assert fit.geometry() == before


def test_a_reason_takes_the_place_of_the_figures_and_moves_nothing_else(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    emit(window, session, FITS)
    top = window.workspace.dashboard.panel.fit.geometry()
    type_into(window, "batch", "5")
    settle(window)
    session.estimates.fail("The code reads a number out of a tensor.", "Move it out of the step.")
    settle(window)
    fit = window.workspace.dashboard.panel.fit
    assert fit.headline == "– cannot be predicted"
    assert fit._lines.text() == "The code reads a number out of a tensor."
    assert "Move it out of the step." in fit._lines.toolTip()
    assert fit.estimate is None and not fit.bar.isVisible()
    assert fit.geometry() == top
    type_into(window, "batch", "6")
    assert fit.bar.isVisible() and fit._lines.text() == ""


def test_a_question_that_is_refused_is_told_in_its_words(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    session.estimates.refusal = "max_split_size_mb must be at least 20."
    type_into(window, "batch", "5")
    settle(window)
    assert window.workspace.dashboard.panel.fit._lines.text() == "max_split_size_mb must be at least 20."


def test_what_is_needed_free_and_the_largest_batch_stand_below_the_bar(
    window: MainWindow, session: FakeSession
) -> None:
    emit(window, session, replace(SHORT, margin_bytes=100 * MIB))
    assert (
        window.workspace.dashboard.panel.fit._lines.text()
        == "needs 11.10 GiB ± 0.10 GiB of 8.00 GiB free\nlargest batch that fits: 8"
    )


def test_pointing_at_the_figures_says_what_a_margin_is_of(window: MainWindow, session: FakeSession) -> None:
    emit(window, session, replace(SHORT, margin_bytes=100 * MIB))
    lines = window.workspace.dashboard.panel.fit._lines
    assert "± 0.10 GiB: the run was followed on another card" in lines.toolTip()
    emit(window, session, SHORT)
    assert "±" not in lines.toolTip()


def test_what_fits_comes_first_and_what_cannot_be_done_here_has_no_button(
    window: MainWindow, session: FakeSession
) -> None:
    emit(window, session, SHORT)
    assert window.workspace.dashboard.panel.fit._toggle.text() == "What would fit (3)"
    open_details(window)
    rows = window.workspace.dashboard.panel.fit.alternatives
    assert [row.alternative for row in rows] == [SMALLER_BATCH, ON_THE_CPU, CARD, EXPANDABLE, CHECKPOINTING]
    assert row_of(window, CARD).button is None
    assert "needs 11.00 GiB of 14.40 GiB" in row_of(window, CARD).accessibleName()
    assert "+33 % time, from FLOPs of the dry run" in row_of(window, CHECKPOINTING).accessibleName()
    assert "may change convergence" in row_of(window, SMALLER_BATCH).accessibleName()


def test_applying_puts_the_fields_into_the_form_and_asks_anew(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    type_into(window, "width", "64")
    settle(window)
    emit(window, session, SHORT)
    press(window, SMALLER_BATCH)
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None
    assert (spec.model_dump()["batch"], spec.model_dump()["width"]) == (8, 64)
    assert window.workspace.dashboard.panel.fit.headline == "predicting…"
    settle(window)
    assert session.estimates.questions[-1][0] == spec


def test_applying_another_device_selects_it(window: MainWindow, session: FakeSession, clock: Clock) -> None:
    emit(window, session, SHORT)
    press(window, ON_THE_CPU)
    assert window.workspace.dashboard.panel.device_name == "cpu"
    assert window.workspace.dashboard.selected == "host"
    settle(window)
    assert session.estimates.questions[-1][1] == "cpu"


def test_an_allocator_s_setting_is_copied_as_the_command_to_start_with(
    window: MainWindow, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/gpudash", "--simulate", "8GiB"])
    emit(window, session, SHORT)
    press(window, EXPANDABLE)
    started = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True gpudash --simulate 8GiB"
    assert QGuiApplication.clipboard().text() == started


def test_an_edit_of_the_script_is_run_or_copied_with_a_click(window: MainWindow, session: FakeSession) -> None:
    edit = Alternative("train.py:4: a batch of 8 in place of 64", fits=True, patch="--- train.py\n", command=())
    emit(window, session, replace(SHORT, alternatives=(edit,)))
    open_details(window)
    row = row_of(window, edit)
    assert row.button is not None and row.copy_button is not None
    assert (row.button.text(), row.copy_button.text()) == ("Run", "Copy patch")
    row.copy_button.click()
    assert QGuiApplication.clipboard().text() == edit.patch
    given: list[Alternative] = []
    row.applied.connect(given.append)
    row.button.click()
    assert given == [edit]
    assert not session.requested  # there is no script in this form


def test_rows_stay_while_more_alternatives_arrive(window: MainWindow, session: FakeSession) -> None:
    emit(window, session, replace(SHORT, alternatives=(SMALLER_BATCH,)), final=False)
    open_details(window)
    assert window.workspace.dashboard.panel.fit._toggle.text() == "What would fit (1), still searching…"
    row = row_of(window, SMALLER_BATCH)
    emit(window, session, SHORT)
    assert row_of(window, SMALLER_BATCH) is row
    assert window.workspace.dashboard.panel.fit._toggle.text() == "What would fit (3)"
    emit(window, session, FITS)
    assert window.workspace.dashboard.panel.fit.alternatives == []


def test_what_recipes_would_save_has_rows_that_are_applied_and_goes_where_it_does_not_fit(
    window: MainWindow, session: FakeSession
) -> None:
    saving = replace(CHECKPOINTING, fits=True, needed_bytes=GIB, saved_bytes=2 * GIB)
    emit(window, session, replace(FITS, savings=(saving,)))
    fit = window.workspace.dashboard.panel.fit
    assert fit._toggle.text() == "What recipes would save (1)"
    open_details(window)
    assert row_of(window, saving).accessibleName().startswith("activation checkpointing: fits; saves 2.00 GiB · needs")
    press(window, saving)
    assert getattr(window.workspace.dashboard.panel.spec(), "checkpointing", False) is True
    emit(window, session, replace(SHORT, savings=(saving,)))
    assert saving not in [row.alternative for row in fit.alternatives]


def test_a_run_that_does_not_fit_can_be_started_and_the_button_says_so(
    window: MainWindow, session: FakeSession
) -> None:
    emit(window, session, SHORT)
    assert "Start anyway" in window.workspace.dashboard.panel.button.text()
    assert window.workspace.dashboard.panel.button.property("role") == "", "it is not what is advised"
    assert "3.10 GiB short" in window.workspace.dashboard.panel.button.toolTip()
    assert window.workspace.dashboard.panel.button.isEnabled()
    window.workspace.dashboard.panel.button.click()
    assert session.requested[-1] == ("start", "training", "cuda:0")
    session.end()
    settle(window)
    emit(window, session, FITS)
    assert "Start run" in window.workspace.dashboard.panel.button.text()
    assert "Start anyway" not in window.workspace.dashboard.panel.button.toolTip()


def test_during_a_run_its_prediction_stays_beside_what_it_has_reached(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    emit(window, session, SHORT)
    open_details(window)
    window.workspace.dashboard.panel.button.click()
    wait(window, clock, 60)
    assert len(session.estimates.questions) == 1
    button = row_of(window, SMALLER_BATCH).button
    assert button is not None and not button.isEnabled()
    fit = window.workspace.dashboard.panel.fit
    assert (fit.estimate, fit.headline) == (SHORT, "✕ does not fit, 3.10 GiB short")
    run = session.store.run
    assert run is not None
    for reserved, reached in ((2 * GIB, "3.00 GiB"), (4 * GIB, "5.00 GiB")):
        run.memory.raise_to("reserved_bytes", reserved)
        settle(window)
        assert fit.headline == f"reached {reached} of 11.10 GiB predicted"
    session.end()
    settle(window)
    assert (fit.estimate, fit.headline, len(session.estimates.questions)) == (None, "predicting…", 2)
    emit(window, session, SHORT)
    assert fit.headline == "✕ does not fit, 3.10 GiB short"
    button = row_of(window, SMALLER_BATCH).button
    assert button is not None and button.isEnabled()


def test_a_run_of_other_values_is_not_held_against_the_prediction_of_the_form(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    emit(window, session, SHORT)
    session.start("cuda:0")
    run = session.store.run
    assert run is not None
    run.memory.raise_to("reserved_bytes", 2 * GIB)
    wait(window, clock, 60)
    assert window.workspace.dashboard.panel.fit.headline == "✕ does not fit, 3.10 GiB short"


def test_a_run_that_begins_before_its_prediction_gets_it_all_the_same(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    type_into(window, "batch", "5")
    session.start("cuda:0")
    settle(window)
    ((_, _), (spec, _)) = session.estimates.questions
    assert spec.model_dump()["batch"] == 5
    emit(window, session, FITS)
    assert window.workspace.dashboard.panel.fit.headline == "✓ fits, 5.00 GiB spare"


def test_much_more_or_less_free_memory_is_a_new_question_and_a_little_is_not(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    emit(window, session, SHORT)
    session.estimates.free_bytes -= 100 * MIB
    wait(window, clock, POLL_S)
    assert len(session.estimates.questions) == 1
    session.estimates.free_bytes -= GIB
    wait(window, clock, POLL_S)
    assert len(session.estimates.questions) == 2


def scroll_areas(window: MainWindow) -> list[QScrollArea]:
    panel = window.workspace.dashboard.panel
    row = panel.fit.findChild(AlternativeRow)
    assert row is not None
    return [area for area in panel.findChildren(QScrollArea) if area.isAncestorOf(row)]


def shown_in(area: QScrollArea, part: QWidget) -> bool:
    """Whether all of ``part`` is within ``area``."""
    place = QRect(part.mapTo(area, QPoint()), part.size())
    return part.isVisible() and area.viewport().geometry().contains(place)


def test_one_area_scrolls_the_form_and_the_details_and_no_field_is_lower_for_them(
    open_window: OpenWindow, session: FakeSession, clock: Clock
) -> None:
    window = asked_window(open_window, session, clock, (1280, 800))
    panel = window.workspace.dashboard.panel
    panel.form.more.click()
    settle(window)
    heights = [field.size() for field in panel.form.findChildren(QLineEdit)]
    many = tuple(replace(SMALLER_BATCH, fields={"batch": batch}) for batch in range(1, 9))
    emit(window, session, replace(SHORT, alternatives=many))
    open_details(window)
    (area,) = scroll_areas(window)
    assert area.isAncestorOf(panel.form) and area.verticalScrollBar().maximum() > 0
    assert [field.size() for field in panel.form.findChildren(QLineEdit)] == heights


@pytest.mark.parametrize("position", [0.0, 0.5, 1.0])
def test_the_verdict_stays_in_view_wherever_the_form_is_scrolled_to(
    open_window: OpenWindow, session: FakeSession, clock: Clock, position: float
) -> None:
    window = asked_window(open_window, session, clock, (1280, 800))
    panel = window.workspace.dashboard.panel
    panel.form.more.click()
    many = tuple(replace(SMALLER_BATCH, fields={"batch": batch}) for batch in range(1, 9))
    emit(window, session, replace(SHORT, alternatives=many))
    open_details(window)
    (area,) = scroll_areas(window)
    bar = area.verticalScrollBar()
    bar.setValue(round(bar.maximum() * position))
    settle(window)
    for part in (panel.fit._headline, panel.fit.bar, panel.fit._lines, panel.fit._toggle):
        assert shown_in(area, part)


def test_a_field_that_tab_goes_to_is_not_below_the_verdict(
    open_window: OpenWindow, session: FakeSession, clock: Clock
) -> None:
    window = asked_window(open_window, session, clock, (1280, 800))
    panel = window.workspace.dashboard.panel
    panel.form.more.click()
    emit(window, session, SHORT)
    panel.focus_first_field()
    for _stop in range(40):
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
        settle(window)
        field = QApplication.focusWidget()
        if not panel.form.isAncestorOf(field):
            break
        head = panel.fit.head
        place = QRect(field.mapTo(panel, QPoint()), field.size())
        assert not place.intersects(QRect(head.mapTo(panel, QPoint()), head.size())), field.accessibleName()
    assert not panel.form.isAncestorOf(QApplication.focusWidget())


def test_in_a_low_window_the_first_rows_are_whole_and_the_others_are_asked_for(
    open_window: OpenWindow, session: FakeSession, clock: Clock, qtbot: QtBot
) -> None:
    window = asked_window(open_window, session, clock, (1280, 800))
    many = tuple(replace(SMALLER_BATCH, fields={"batch": batch}) for batch in range(1, 9))
    emit(window, session, replace(SHORT, alternatives=many))
    open_details(window)
    (area,) = scroll_areas(window)
    fit = window.workspace.dashboard.panel.fit
    shown = [row for row in fit.alternatives if row.isVisible()]
    others = next(button for button in fit.findChildren(QToolButton) if button.text().endswith(" more"))
    assert others.text() == f"{len(many) - len(shown)} more" and all(shown_in(area, part) for part in (*shown, others))
    others.setFocus()
    qtbot.keyClick(others, Qt.Key.Key_Space)
    settle(window)
    assert all(row.isVisible() for row in fit.alternatives) and not others.isVisible()


@pytest.mark.parametrize("size", [(960, 600), (1280, 800), (1440, 960), (2560, 1440)])
def test_verdict_start_button_and_some_of_the_form_are_seen_at_every_size(
    open_window: OpenWindow, session: FakeSession, clock: Clock, size: tuple[int, int]
) -> None:
    window = asked_window(open_window, session, clock, size)
    emit(window, session, SHORT)
    panel = window.workspace.dashboard.panel
    fit = panel.fit
    assert fit.is_open == (size[1] > 1000)
    open_details(window)
    for part in (fit._headline, fit.bar, fit._lines, fit._toggle, panel.button):
        corner = part.mapTo(panel, QPoint(part.width() - 1, part.height() - 1))
        assert part.isVisible() and panel.rect().contains(corner)
    assert (window.width(), window.height()) == size
    if size[1] >= 800:
        assert fit._details.visibleRegion().boundingRect().height() >= 100
        assert panel._stack.visibleRegion().boundingRect().height() >= 90
    assert fit._details.minimumSizeHint().width() <= fit._details.width()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_no_word_of_an_open_panel_is_cut_covered_or_too_faint(
    open_window: OpenWindow, session: FakeSession, clock: Clock, size: tuple[int, int], theme: Choice
) -> None:
    window = asked_window(open_window, session, clock, size, theme)
    emit(window, session, SHORT)
    open_details(window)
    assert {"✕ does not fit, 3.10 GiB short", "batch 8", "Apply"} <= {word.text for word in label(window)}
    assert complaints(window) == []
    assert [found for found in weakest(window, window.grab().toImage()) if found[0] < 4.5] == []


def test_a_recording_predicts_nothing(open_window: OpenWindow, session: FakeSession) -> None:
    window = open_window(session)
    window.workspace.dashboard.panel.set_commanding(False)
    assert not window.workspace.dashboard.panel.fit.isVisible()


def test_the_details_open_and_close_by_keyboard(window: MainWindow, session: FakeSession, qtbot: QtBot) -> None:
    emit(window, session, SHORT)
    toggle = window.workspace.dashboard.panel.fit._toggle
    assert not toggle.isChecked()
    toggle.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(toggle, Qt.Key.Key_Space)
    assert window.workspace.dashboard.panel.fit._details.isVisible()
    qtbot.keyClick(toggle, Qt.Key.Key_Space)
    assert not window.workspace.dashboard.panel.fit._details.isVisible()


@pytest.fixture(params=[DARK, LIGHT], ids=lambda palette: palette.name)
def bar(request: pytest.FixtureRequest, qtbot: QtBot) -> FitBar:
    found = FitBar(request.param)
    qtbot.addWidget(found)
    found.setFixedWidth(300)
    return found


def colour_at(widget: QWidget, x: float) -> str:
    return str(widget.grab().toImage().pixelColor(round(x), widget.height() // 2).name())


def test_the_bar_reaches_to_what_is_free_and_its_parts_have_their_colours(bar: FitBar) -> None:
    bar.show_prediction(Prediction(FITS), bar._palette)
    assert [(name, round(place.width(), 3)) for name, _, place in bar.parts()] == [
        (CONTEXT, 37.5),
        ("weights", 37.5),
        (HELD_BACK, 37.5),
    ]
    for name, _, place in bar.parts():
        assert colour_at(bar, place.center().x()) == part_colour(name, bar._palette)
    assert colour_at(bar, 280) == bar._palette.window
    assert bar.free_end() is None


def test_the_overhang_of_what_does_not_fit_is_marked_where_free_memory_ends(bar: FitBar) -> None:
    bar.show_prediction(Prediction(SHORT), bar._palette)
    end = bar.free_end()
    assert end == pytest.approx(300 * 8 / 11.1)
    assert colour_at(bar, end) == bar._palette.critical
    beyond = {colour_at(bar, end + step) for step in range(10, 40)}
    assert part_colour("activations", bar._palette) not in beyond
    assert len(beyond) > 1


def test_every_part_of_the_bar_is_named_under_the_pointer_and_to_a_screen_reader(bar: FitBar) -> None:
    assert bar.text_at(10) == "Nothing has been predicted yet"
    bar.show_prediction(Prediction(SHORT), bar._palette)
    for name, _, place in bar.parts():
        assert bar.text_at(place.center().x()).startswith(name)
        assert name in bar.accessibleDescription()
    assert "beyond what is free" in bar.text_at(250)
    bar.show_prediction(Prediction(FITS), bar._palette)
    assert bar.text_at(280) == "left over at the peak: 5.00 GiB"


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_every_part_has_a_colour_of_its_own(palette: Palette) -> None:
    names = (CONTEXT, *CATEGORIES, HELD_BACK)
    assert len({part_colour(name, palette) for name in names}) == len(names)
    assert {name for name, _ in Prediction(SHORT).segments} <= set(names)


@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
def test_open_details_are_as_high_as_what_they_hold(
    open_window: OpenWindow, session: FakeSession, clock: Clock, size: tuple[int, int]
) -> None:
    window = asked_window(open_window, session, clock, size)
    emit(window, session, FITS)
    open_details(window)
    panel = window.workspace.dashboard.panel
    fit = panel.fit
    toggle = fit._toggle.mapTo(window, QPoint())
    roomy = size[1] > 1000
    assert fit._legend.height() <= fit._details.height() <= fit._legend.height() + 12, "no hole below the parts"
    gap = fit.head.y() - panel._stack.geometry().bottom()
    assert 0 < gap < 20, "it follows the form"
    emit(window, session, SHORT)
    assert fit.alternatives and all(row.isVisible() for row in fit.alternatives) is roomy
    if roomy:
        assert fit._toggle.mapTo(window, QPoint()) == toggle, "what is found opens downwards"


def test_what_no_batch_makes_fit_names_the_change_that_does_and_applies_it(
    window: MainWindow, session: FakeSession
) -> None:
    fit = window.workspace.dashboard.panel.fit
    enough = replace(CHECKPOINTING, fits=True, needed_bytes=6 * GIB)
    emit(window, session, replace(SHORT, largest_batch_size=0, alternatives=(CARD, SMALLER_BATCH, enough)))
    assert fit.figures.endswith("\nfits with activation checkpointing")
    assert not fit._details.isVisible() and fit._apply_first.isVisible()
    fit._apply_first.click()
    settle(window)
    assert session.estimates.questions[-1][0].model_dump()["checkpointing"] is True
    assert not fit._apply_first.isVisible(), "the change was offered beside another prediction"
    emit(window, session, SHORT)
    assert not fit._apply_first.isVisible()
