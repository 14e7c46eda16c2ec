"""The chooser of cards: what each chip says of the run in the form, and what a click on it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QMenu, QWidget
from pytestqt.qtbot import QtBot

from gpudash.devices.known_gpus import find
from gpudash.devices.names import OFFERED_BYTES, SimulatedCard, simulated_gpu
from gpudash.memory.predicting.card_text import CardsAnswer
from gpudash.memory.predicting.estimate import CardEstimate
from gpudash.session import Answer
from gpudash.session.predicting.estimator import Problem
from gpudash.system.settings import Settings, load_settings
from gpudash.telemetry.records import Sample
from gpudash.telemetry.runs import WATCH
from gpudash.ui.colours import DARK, LIGHT, Palette
from gpudash.ui.dashboard.card_chips import OFFERED, CardChip, CardChooser, ChipContent
from gpudash.ui.dashboard.own_size import OwnSizeDialog
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.ui.asked_form import ask_again, asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import FITS
from tests.ui.fake_session import FakeSession, gpu
from tests.unit.clock import Clock
from tests.unit.speed.made_up_times import made_up_time

NEEDED = 10 * GIB


def on(key: str, spare: int, *, fits: bool | None = True, batch: int | None = None) -> CardEstimate:
    """The answer of a card that has so much more than the run takes."""
    return CardEstimate(
        "sim:0",
        capacity_bytes=NEEDED + spare,
        free_bytes=NEEDED + spare,
        peak_allocated_bytes=NEEDED,
        peak_reserved_bytes=NEEDED,
        fits=fits,
        spare_bytes=spare,
        key=key,
        largest_batch_size=batch,
        by_line=batch is not None,
    )


ANSWERS = (
    on("rtx3060", GIB // 2, fits=None),
    on("rtx4060", -round(3.1 * GIB), fits=False, batch=11),
    on("rtx4090", round(12.8 * GIB), batch=36),
    CardEstimate("sim:0", key="l4", reason="fp8 layers need one step."),
)
KNOWN = CardsAnswer({card.key: card for card in ANSWERS}, requested=True)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([simulated_gpu(0, OFFERED_BYTES)]).feed(1)


@pytest.fixture
def window(open_window: OpenWindow, session: FakeSession, clock: Clock) -> MainWindow:
    return asked_window(open_window, session, clock)


def chip(window: MainWindow, key: str) -> CardChip:
    return window.workspace.dashboard.chooser._chips[key]


def said(window: MainWindow, key: str) -> tuple[str, str, str]:
    """Sign, verdict and last line of a chip."""
    content = chip(window, key).content
    return content.text.sign, content.text.verdict, content.detail


def chooser(qtbot: QtBot, width: int, height: int = 46) -> CardChooser:
    made = CardChooser(DARK)
    qtbot.addWidget(made)
    made.resize(width, height)
    made.show()
    made.show_answers(KNOWN, {}, {}, "")
    return made


def test_every_chip_answers_the_form_in_sign_words_and_figures(window: MainWindow, session: FakeSession) -> None:
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    assert said(window, "rtx3060") == ("≈", "0.5 GiB spare", "")
    assert said(window, "rtx4060") == ("✕", "3.1 GiB short", "up to batch ≈ 11")
    assert said(window, "rtx4090") == ("✓", "12.8 GiB spare", "up to batch ≈ 36")
    assert said(window, "l4") == ("–", "no answer", "fp8 layers need one step.")
    assert chip(window, "rtx4060").accessibleName() == "Simulated RTX 4060, 7.75 GiB"
    assert chip(window, "rtx4060").accessibleDescription() == "does not fit, 3.1 GiB short, up to batch ≈ 11"


def test_cards_and_chips_have_the_colours_of_another_theme_before_their_next_figures(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    dashboard = window.workspace.dashboard

    def pictures() -> list[QImage]:
        return [part.grab().toImage() for part in (dashboard.cards, dashboard.chooser)]

    dark = pictures()
    dashboard.set_palette(LIGHT)
    at_once = pictures()
    dashboard.refresh_figures()
    assert at_once == pictures()
    assert not any(one == before for one, before in zip(at_once, dark, strict=True))


def test_a_card_has_the_same_answer_when_another_is_chosen(window: MainWindow, session: FakeSession) -> None:
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    # Another card was chosen, and this one is only judged by that card's run.
    borrowed = replace(ANSWERS[1], fits=None, spare_bytes=-2 * GIB, borrowed=True, margin_bytes=3 * GIB)
    session.estimates.report(FITS, cards=[borrowed])
    settle(window)
    assert said(window, "rtx4060")[:2] == ("✕", "3.1 GiB short")
    window.workspace.dashboard.panel.change_fields({"batch": 7})
    settle(window)
    session.estimates.report(FITS, cards=[borrowed])
    settle(window)
    assert said(window, "rtx4060")[:2] == ("≈", "2.0 GiB short"), "that is another question"


def test_a_card_that_is_not_followed_yet_has_no_verdict_and_says_at_the_end_why_it_is_unsure(
    window: MainWindow, session: FakeSession
) -> None:
    borrowed = replace(on("rtx4060", -2 * GIB, fits=None), borrowed=True, margin_bytes=3 * GIB)
    session.estimates.report(FITS, cards=[borrowed], final=False)
    settle(window)
    assert said(window, "rtx4060") == ("…", "2.0 GiB short", "predicting…")
    session.estimates.report(FITS, cards=[borrowed])
    settle(window)
    assert said(window, "rtx4060")[:2] == ("≈", "2.0 GiB short")
    tip = " ".join(chip(window, "rtx4060").toolTip().split())
    assert "as followed on another card, whose kernels may take 3.00 GiB more or less" in tip


def test_a_chip_says_how_long_a_step_is_predicted_to_take_where_the_run_fits(
    window: MainWindow, session: FakeSession
) -> None:
    times = {"rtx4090": made_up_time(), "rtx4060": made_up_time(), "sim:0": made_up_time(median_s=0.9)}
    session.estimates.report(FITS, cards=ANSWERS, times=times)
    settle(window)
    content = chip(window, "rtx4090").content
    assert content.last_line(lambda text: True) == ("up to batch ≈ 36", "0.31 s · 206 images/s")
    assert "predicted 0.31 s a step (0.26 to 0.38), 206 images/s, compute-bound" in " ".join(
        chip(window, "rtx4090").toolTip().split()
    )
    assert chip(window, "rtx4060").content.last_line(lambda text: True) == ("up to batch ≈ 11", "")
    assert "predicted 0.31 s" not in chip(window, "rtx4060").toolTip()


def test_the_details_of_the_fit_say_how_long_a_step_is_predicted_to_take(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(FITS, cards=ANSWERS, times={FITS.device: made_up_time()})
    settle(window)
    fit = window.workspace.dashboard.panel.fit
    fit._toggle.click()
    assert "predicted 0.31 s a step (0.26 to 0.38), 206 images/s\ncompute-bound" in fit.notes
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    assert "predicted 0.31 s" not in fit.notes


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (60, ("up to batch ≈ 36", "0.31 s · 206 images/s")),
        (38, ("batch ≈ 36", "0.31 s · 206 images/s")),
        (24, ("batch ≈ 36", "0.31 s")),
        (12, ("0.31 s", "")),
    ],
)
def test_a_narrow_chip_keeps_the_time_of_a_step_longest(room: int, shown: tuple[str, str]) -> None:
    card = find("rtx4090")
    assert card is not None
    known = replace(KNOWN, times={"rtx4090": made_up_time()})
    content = ChipContent(card, known.of("rtx4090"))
    assert content.last_line(lambda text: len(text) <= room) == shown


def test_all_cards_are_asked_about_with_the_one_question_of_the_form(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    before = len(session.estimates.questions)
    ask_again(window)
    requested = session.estimates.cards
    assert requested is not None
    assert [getattr(card, "key", card) for card in requested] == list(OFFERED)
    assert len(session.estimates.questions) == before + 1


def test_while_it_is_predicted_the_answers_before_stay_with_another_sign(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    assert said(window, "rtx4090") == ("…", "", "predicting…")
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    ask_again(window)
    assert said(window, "rtx4090") == ("…", "12.8 GiB spare", "predicting…")
    session.estimates.report(FITS, cards=ANSWERS, final=False)
    settle(window)
    assert said(window, "rtx4090")[0] == "✓"


def test_answers_to_other_values_are_marked_while_the_form_holds_none_that_can_be_asked(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    control = window.workspace.dashboard.panel.form.control("width")
    assert isinstance(control, QLineEdit)
    control.setText("wide")
    settle(window)
    assert said(window, "rtx4090") == ("↻", "12.8 GiB spare", "for other values")


def test_what_another_workload_needs_is_no_earlier_answer_for_this_one(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(FITS, cards=ANSWERS)
    settle(window)
    chooser = window.workspace.dashboard.panel.workload
    chooser.setCurrentIndex(chooser.findData("pressure"))
    ask_again(window)
    assert said(window, "rtx4090") == ("…", "", "predicting…")
    session.estimates.report(FITS, cards={})
    settle(window)
    assert said(window, "rtx4090") == ("–", "no answer", "its own devices only")


def test_where_nothing_can_be_predicted_every_chip_says_why_and_none_is_coloured(
    window: MainWindow, session: FakeSession, clock: Clock
) -> None:
    session.estimates.answer = Answer(1, None, Problem("request", "The loss needs numbers."), final=True)
    settle(window)
    for one in window.workspace.dashboard.chooser.shown:
        assert said(window, one.content.key) == ("–", "no answer", "The loss needs numbers.")


def edges(made: CardChooser) -> list[tuple[str, int, int]]:
    """Key, left and right edge of the chips that are seen."""
    return [(one.content.key, one.x(), one.x() + one.width()) for one in made.shown]


def drawn_frames(made: CardChooser) -> int:
    """How many frames the chips that are seen have, by the ground between them in the line of their verdicts."""
    picture = made.grab().toImage()
    ground = QColor(DARK.window)
    row = [picture.pixelColor(x, made.height() // 2) == ground for x in range(made.more.x())]
    return sum(here and not before for before, here in zip([False, *row], row, strict=False))


def test_neighbours_of_one_size_share_one_frame_with_one_verdict_and_no_name_moves(
    qtbot: QtBot, palette: Palette
) -> None:
    made = chooser(qtbot, 900)
    made.set_own("rtx4070")
    made.sort_by("memory")
    spare = {"rtx4060": on("rtx4060", GIB), "rtx3060": on("rtx3060", 2 * GIB), "rtx4070": on("rtx4070", 3 * GIB)}
    made.show_answers(CardsAnswer(spare, requested=True), {}, {}, "")
    alone = edges(made)
    assert [key for key, _left, _right in alone] == ["rtx4060", "rtx3060", "rtx4070", "l4", "rtx4090"]
    assert drawn_frames(made) == 4, "the last two have the reason in common"
    spare["rtx4070"] = on("rtx4070", 2 * GIB)
    made.show_answers(CardsAnswer(spare, requested=True), {}, {}, "")
    joined = edges(made)
    assert [one[:2] for one in joined] == [one[:2] for one in alone]
    assert joined[1][2] == joined[2][1] and alone[1][2] < alone[2][1]
    assert drawn_frames(made) == 3
    assert all(one.accessibleDescription() == "fits, 2.0 GiB spare" for one in made.shown[1:3])


def test_a_chosen_card_and_one_in_use_have_frames_of_their_own(qtbot: QtBot, palette: Palette) -> None:
    made = chooser(qtbot, 900)
    refused = CardsAnswer(requested=True, reason="The loss needs numbers.")
    made.show_answers(refused, {}, {}, "")
    assert drawn_frames(made) == 1
    made.show_answers(refused, {}, {"rtx4060": MIB}, "")
    assert drawn_frames(made) == 3
    made.show_answers(refused, {}, {}, "rtx4060")
    assert drawn_frames(made) == 3


def test_cards_are_joined_by_their_answer_and_not_by_the_wait_for_one(qtbot: QtBot, palette: Palette) -> None:
    made = chooser(qtbot, 900)
    for unanswered in (CardsAnswer(), CardsAnswer(requested=True, awaited=True)):
        made.show_answers(unanswered, {}, {}, "")
        assert drawn_frames(made) == len(made.shown)


def test_a_shared_frame_is_clicked_card_by_card(qtbot: QtBot) -> None:
    made = chooser(qtbot, 900)
    made.show_answers(CardsAnswer(requested=True, reason="The loss needs numbers."), {}, {}, "")
    chosen: list[SimulatedCard] = []
    made.chosen.connect(chosen.append)
    for one in made.shown:
        QTest.mouseClick(made.childAt(one.geometry().center()), Qt.MouseButton.LeftButton)
    assert chosen == made.cards[: len(made.shown)]


def test_every_card_without_an_answer_says_why_where_it_is_seen_and_in_its_tooltip(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.answer = Answer(1, None, Problem("request", "No numbers."), final=True)
    settle(window)
    dashboard = window.workspace.dashboard
    cards = [card for card in dashboard.cards.findChildren(QWidget) if card.property("role") == "card"]
    assert len(cards) == 2
    for card in cards:
        assert "– No numbers." in [label.text() for label in card.findChildren(QLabel)]
        assert "No numbers." in card.toolTip()
    assert all("No numbers." in one.toolTip() for one in dashboard.chooser.shown)
    listed = [action.text() for action in dashboard.chooser.menu().actions() if "\t" in action.text()]
    assert listed and all(text.endswith("\t– No numbers.") for text in listed)


def test_a_reason_that_is_too_long_for_a_card_begins_there_and_ends_in_the_tooltip(
    window: MainWindow, session: FakeSession
) -> None:
    reason = "The loss needs numbers, which nothing here can compute."
    session.estimates.answer = Answer(1, None, Problem("request", reason), final=True)
    settle(window)
    cards = window.workspace.dashboard.cards
    for card in [card for card in cards.findChildren(QWidget) if card.property("role") == "card"]:
        assert [text for label in card.findChildren(QLabel) if (text := label.text()).startswith("– The")]
        assert reason in card.toolTip()


def test_a_card_of_which_no_run_was_predicted_has_the_reason_of_the_one_that_was_asked_for(
    window: MainWindow, session: FakeSession
) -> None:
    refused = replace(FITS, peak_allocated_bytes=None, fits=None, spare_bytes=None, reason="A compiled model.")
    session.estimates.report(refused, cards={})
    settle(window)
    assert said(window, "rtx4090") == ("–", "no answer", "A compiled model.")


def test_a_card_whose_free_memory_nobody_knows_says_so() -> None:
    unread = replace(on("rtx4090", GIB, fits=None), free_bytes=None, spare_bytes=None)
    text = CardsAnswer({"rtx4090": unread}, requested=True).of("rtx4090")
    assert text.headline == "– its free memory is not known"


def test_devices_of_this_machine_say_whether_the_run_fits_them_beside_what_is_in_use(
    window: MainWindow, session: FakeSession
) -> None:
    session.estimates.report(replace(FITS, device="cpu"), cards=[replace(on("sim:0", -GIB, fits=False))])
    settle(window)
    cards = window.workspace.dashboard.cards._cards
    assert cards["host"].accessibleDescription().startswith("fits, 5.0 GiB spare")
    assert cards[session.gpus[0].uuid].accessibleDescription() == "does not fit, 1.0 GiB short"


def test_a_click_simulates_the_card_and_makes_it_the_device_of_the_form(
    window: MainWindow, session: FakeSession
) -> None:
    card = find("rtx4060")
    chip(window, "rtx4060").click()
    settle(window)
    dashboard = window.workspace.dashboard
    assert ("simulate", card) in session.requested
    assert dashboard.panel.device_name == "sim:1" and dashboard.selected == "SIM-1-rtx4060"
    assert chip(window, "rtx4060").isChecked() and not chip(window, "rtx4090").isChecked()
    assert list(dashboard.cards._cards) == ["host", session.gpus[0].uuid], "its chip is the card"


def test_of_two_cards_that_were_looked_at_the_second_is_the_device(window: MainWindow, session: FakeSession) -> None:
    chip(window, "rtx4060").click()
    settle(window)
    chip(window, "rtx4090").click()
    settle(window)
    assert [gpu.uuid for gpu in session.gpus] == ["SIM-0-8GiB", "SIM-1-rtx4090"]
    assert window.workspace.dashboard.selected == "SIM-1-rtx4090"
    assert chip(window, "rtx4090").isChecked() and not chip(window, "rtx4060").isChecked()


def test_a_chip_whose_card_is_in_use_says_how_much(window: MainWindow, session: FakeSession) -> None:
    chip(window, "rtx4060").click()
    settle(window)
    session.now_s += 0.1
    values = {"used_bytes": 700 * MIB, "free_bytes": 7 * GIB, "total_bytes": 8 * GIB}
    session.apply(Sample(session.now_s, "gpu", "SIM-1-rtx4060", values))
    settle(window)
    assert said(window, "rtx4060")[2] == "700 MiB in use"


def test_a_card_cannot_be_chosen_while_a_run_is_on_and_that_is_said(window: MainWindow, session: FakeSession) -> None:
    session.start("cpu")
    settle(window)
    chip(window, "rtx4060").click()
    settle(window)
    assert not any(request[0] == "simulate" for request in session.requested)


def test_for_the_users_own_program_a_chip_sets_the_gpu_that_it_runs_on(window: MainWindow) -> None:
    panel = window.workspace.dashboard.panel
    panel.workload.setCurrentIndex(panel.workload.findData(WATCH))
    settle(window)
    assert said(window, "h100" if "h100" in window.workspace.dashboard.chooser._chips else "l4") == ("", "", "")
    chip(window, "rtx4090").click()
    settle(window)
    assert panel.script.script().simulate == "rtx4090"
    assert panel.script.simulate.text == "RTX 4090, simulated"
    assert chip(window, "rtx4090").isChecked()
    chip(window, "rtx4090").click()
    settle(window)
    assert panel.script.simulate.text == "RTX 4090, simulated", "a second click keeps it"
    panel.script.simulate.none.click()
    settle(window)
    assert panel.script.script().simulate == "" and not panel.script.simulate.none.isVisible()


def test_the_card_of_the_command_line_is_the_one_of_a_script_until_it_is_given_another(
    open_window: OpenWindow, clock: Clock
) -> None:
    card = find("rtx4060")
    assert card is not None
    session = FakeSession([gpu(0), simulated_gpu(0, card), simulated_gpu(1, card)]).feed(1)
    session.given = (card,)
    window = asked_window(open_window, session, clock)
    dashboard = window.workspace.dashboard
    panel, device = dashboard.panel, session.gpus[1].uuid
    panel.workload.setCurrentIndex(panel.workload.findData(WATCH))
    settle(window)
    assert panel.script.simulate.text == "RTX 4060, simulated"
    cards = dashboard.cards._cards
    assert cards[device].property("selected") and "rtx4060" not in dashboard.chooser._chips, "one card, not two"
    panel.script.simulate.none.click()
    settle(window)
    assert panel.script.simulate.text == "this machine"
    dashboard.select_device(device)
    settle(window)
    assert panel.script.simulate.text == "RTX 4060, simulated"
    dashboard.select_device(session.gpus[0].uuid)
    settle(window)
    assert panel.script.simulate.text == "this machine"
    chip(window, "rtx3060").click()
    settle(window)
    assert chip(window, "rtx3060").isChecked()
    assert not any(one.property("selected") for one in cards.values()), "one is outlined"


def test_a_recording_has_no_chips(qtbot: QtBot) -> None:
    made = chooser(qtbot, 60)
    assert made.shown == [] and made.more.isVisible()


@pytest.mark.parametrize("width", [400, 776, 1300, 2400])
def test_as_many_chips_as_have_room_are_shown_in_their_order_and_the_menu_has_the_rest(
    qtbot: QtBot, width: int
) -> None:
    made = chooser(qtbot, width)
    shown = [chip.content.key for chip in made.shown]
    assert shown == list(OFFERED)[: len(shown)] and shown
    assert made.more.geometry().right() <= width
    listed = [action.text() for action in made.menu().actions() if "\t" in action.text()]
    assert len(listed) == len(OFFERED) - len(shown)


def test_the_chosen_card_is_seen_also_where_its_chip_would_have_no_room(qtbot: QtBot) -> None:
    made = chooser(qtbot, 400)
    made.show_answers(KNOWN, {}, {}, "b200")
    assert [chip.content.key for chip in made.shown][-1] == "b200"
    assert made.shown[-1].isChecked()


def test_the_chips_are_one_stop_of_tab_and_arrows_go_through_them_to_the_menu_and_around(qtbot: QtBot) -> None:
    made = chooser(qtbot, 400)
    made.activateWindow()
    qtbot.waitUntil(made.isActiveWindow)
    stops = [part for part in (*made.shown, made.more) if part.focusPolicy() & Qt.FocusPolicy.TabFocus]
    assert stops == made.shown[:1]
    made.shown[0].setFocus()
    for _ in made.shown:
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Right)
    assert QApplication.focusWidget() is made.more
    QTest.keyClick(made.more, Qt.Key.Key_Right)
    assert QApplication.focusWidget() is made.shown[0]
    QTest.keyClick(made.shown[0], Qt.Key.Key_Left)
    assert QApplication.focusWidget() is made.more


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Space])
def test_return_and_space_choose_the_card_of_a_chip(qtbot: QtBot, key: Qt.Key) -> None:
    made = chooser(qtbot, 400)
    chosen: list[SimulatedCard] = []
    made.chosen.connect(chosen.append)
    QTest.keyClick(made.shown[1], key)
    assert chosen == [find(OFFERED[1])]
    assert all(one.height() >= 24 for one in made.shown)


def test_an_own_size_gets_a_chip_is_chosen_and_is_told_for_the_settings(qtbot: QtBot) -> None:
    made = chooser(qtbot, 2400)
    chosen: list[SimulatedCard] = []
    made.chosen.connect(chosen.append)
    kept: list[str] = []
    made.own_changed.connect(kept.append)
    made.ask = lambda: 12 * GIB
    made._add_size()
    assert chosen == [12 * GIB] and made.cards[-1] == 12 * GIB
    made.ask = lambda: find("rtx5090")
    made._add_size()
    assert kept == ["12GiB", "rtx5090, 12GiB"]
    again = chooser(qtbot, 2400)
    again.set_own("no card, h100, 12GiB")
    again.show_answers(CardsAnswer(), {}, {}, "")
    assert again.shown[-1].content.key == "12GiB" and again.shown[-1].content.name == "Own size"


def test_the_cards_of_the_settings_are_offered_and_those_that_are_added_are_kept_there(
    open_window: OpenWindow,
) -> None:
    session = FakeSession(settings=Settings(cards="12GiB"))
    window = open_window(session, size=(2400, 1000))
    made = window.workspace.dashboard.chooser
    assert made.cards[-1] == 12 * GIB
    made.choose(16 * GIB)
    assert session.settings.cards == "16GiB, 12GiB"
    assert load_settings()[0].cards == "16GiB, 12GiB"
    window.workspace.apply_settings(Settings(cards="20GiB"))
    assert made.cards[-1] == 20 * GIB and len(made.cards) == len(OFFERED) + 1


def keys(made: CardChooser) -> list[str]:
    """Of the chips that are seen, from the left."""
    return [one.content.key for one in made.shown]


def test_cards_are_sorted_by_name_by_memory_and_by_predicted_time_and_tab_goes_the_same_way(qtbot: QtBot) -> None:
    made = chooser(qtbot, 2400)
    times = {"rtx4090": made_up_time(median_s=0.2), "rtx3060": made_up_time(median_s=0.9)}
    made.show_answers(replace(KNOWN, times=times), {}, {}, "")
    assert keys(made) == list(OFFERED)
    made.sort_by("name")
    assert keys(made)[:3] == ["a100-40gb", "a100-80gb", "b200"]
    made.sort_by("memory")
    assert keys(made)[0] == "rtx4060" and keys(made)[-1] == "b200"
    made.sort_by("time")
    assert keys(made)[:3] == ["rtx4090", "rtx3060", "rtx4060"]
    assert list(made._chips)[:2] == keys(made)[:2]
    made.show_answers(CardsAnswer(requested=True, awaited=True), {}, {}, "")
    assert keys(made)[:2] == ["rtx4090", "rtx3060"]


def test_the_order_is_chosen_in_the_menu_and_kept_in_the_settings(open_window: OpenWindow) -> None:
    session = FakeSession(settings=Settings(cards_order="name"))
    window = open_window(session, size=(2400, 1000))
    made = window.workspace.dashboard.chooser
    settle(window)
    assert keys(made)[0] == "a100-40gb"
    sorts = next(action.menu() for action in made.menu().actions() if action.text() == "Sort Cards")
    assert [action.text() for action in sorts.actions() if action.isChecked()] == ["By Name"]
    next(action for action in sorts.actions() if action.text() == "By Memory").trigger()
    assert keys(made)[0] == "rtx4060"
    assert session.settings.cards_order == load_settings()[0].cards_order == "memory"


def test_a_typing_error_in_an_own_size_is_said_in_the_dialog_which_keeps_the_text(qtbot: QtBot) -> None:
    dialog = OwnSizeDialog()
    qtbot.addWidget(dialog)
    dialog.show()
    dialog.field.setText("12")
    QTest.keyClick(dialog.field, Qt.Key.Key_Return)
    assert dialog.isVisible() and dialog.card is None and dialog.field.text() == "12"
    assert dialog.hint.text() == "12 without a unit is a count of bytes; did you mean 12GiB?"
    dialog.field.setText("12 GB")
    assert dialog.hint.text() == "12 GB = 11.2 GiB"
    QTest.keyClick(dialog.field, Qt.Key.Key_Return)
    assert not dialog.isVisible() and dialog.card == 12 * 10**9


def test_an_own_size_in_decimal_units_is_kept_as_it_was_typed(qtbot: QtBot) -> None:
    made = chooser(qtbot, 2400)
    kept: list[str] = []
    made.own_changed.connect(kept.append)
    made.choose(12 * 10**9)
    assert kept == ["12GB"]
    again = chooser(qtbot, 2400)
    again.set_own("12GB")
    assert again.cards[-1] == 12 * 10**9


def test_the_other_known_cards_are_listed_by_family_and_memory(qtbot: QtBot) -> None:
    made = chooser(qtbot, 400)
    others = next(menu for menu in made.menu().findChildren(QMenu) if menu.title() == "Other known cards")
    listed = [action.text().partition("\t")[0] for action in others.actions()]
    ends = [place for place, name in enumerate(listed) if not name]
    first, last = listed[: ends[0]], listed[ends[-1] + 1 :]
    assert len(ends) == 3 and "T4" in first and "H100 PCIe" in first
    assert all("Laptop" in name for name in last) and not any("Laptop" in name for name in listed[: ends[-1]])
    sizes = [card.total_bytes for name in first if (card := find(name)) is not None]
    assert len(sizes) == len(first) and sizes == sorted(sizes)


def test_the_tooltip_of_a_chip_has_several_short_lines(window: MainWindow, session: FakeSession) -> None:
    session.estimates.report(FITS, cards=ANSWERS, times={"rtx4090": made_up_time()})
    settle(window)
    lines = chip(window, "rtx4090").toolTip().splitlines()
    assert len(lines) > 2 and all(len(line) <= 80 for line in lines)


def test_the_narrowest_chip_has_room_for_a_whole_verdict(qtbot: QtBot) -> None:
    made = chooser(qtbot, 520)
    shown = [chip for chip in made.findChildren(CardChip) if chip.isVisible()]
    bold = QFont(shown[0].font())
    bold.setBold(True)
    assert len(shown) == 3
    for chip in shown:
        assert QFontMetrics(bold).horizontalAdvance("✓ 139.4 GiB spare") <= chip.width() - 20


def test_a_compact_card_gives_up_the_name_of_its_memory_before_the_word_of_its_verdict(
    window: MainWindow, session: FakeSession
) -> None:
    window.resize(1280, 800)
    session.estimates.report(replace(FITS, device="cpu"), cards=ANSWERS)
    settle(window)
    card = window.workspace.dashboard.cards._cards["host"]
    assert card._fit_verdict_text.text() == "✓ 5.0 GiB spare"


def test_the_plots_and_the_form_call_a_chosen_card_by_what_its_chip_says(
    window: MainWindow, session: FakeSession
) -> None:
    chip(window, "rtx4090").click()
    settle(window)
    dashboard = window.workspace.dashboard
    name = dashboard.panel.device_name
    assert any(plot.title.startswith(f"MEMORY {name} · RTX 4090") for plot in dashboard.layout_key)
    assert dashboard.panel.device.currentText().startswith(f"{name} · RTX 4090")
