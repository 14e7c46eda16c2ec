"""The strip that says what needs attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from gpudash.telemetry.records import Level, Note, RunStarted, Topic, Warning
from gpudash.ui.dashboard.banner import PASSED_SHOWN_S, Banner
from tests.unit.telemetry.run_ends import RAN_OUT


@pytest.fixture
def banner(qtbot: QtBot) -> Banner:
    made = Banner()
    qtbot.addWidget(made)
    return made


def warning(level: Level, device: str = "host", time_s: float = 1.0) -> Warning:
    return Warning(time_s=time_s, level=level, device=device, text=f"{device} {level}", actions=("stop", "free_cache"))


def words(banner: Banner) -> str:
    return banner.accessibleName()


def test_nothing_is_shown_while_all_is_well(banner: Banner) -> None:
    assert banner.isHidden()


def test_a_warning_shows_its_words_and_only_the_buttons_it_offers(banner: Banner) -> None:
    banner.take(warning("warning"))
    assert not banner.isHidden()
    assert words(banner) == "warning: host warning"
    offered = {button.text() for button in banner.findChildren(QPushButton) if not button.isHidden()}
    assert offered == {"Stop run", "Free cache", "×"}


def test_the_gravest_of_several_warnings_is_shown(banner: Banner) -> None:
    banner.take(warning("critical", "GPU-a"))
    banner.take(warning("warning", "host"))
    assert "critical" in words(banner)


def test_memory_that_ran_out_is_told_in_place_of_the_warning_that_foretold_it(banner: Banner) -> None:
    banner.take(warning("critical", "SIM-0"))
    words_of_it = {"message": "20 MiB were asked for.", "remedy": "Keep less."}
    banner.take(replace(RAN_OUT, time_s=2.0, result={"report": "/reports/one"}, **words_of_it))
    assert words(banner) == "critical: 20 MiB were asked for. Keep less."
    offered = {button.text() for button in banner.findChildren(QPushButton) if not button.isHidden()}
    assert offered == {"Open report", "×"}
    banner.take(warning("critical", "GPU-b", time_s=3.0))
    assert "20 MiB" in words(banner), "no warning covers what a program ran out of"


def test_no_card_that_was_full_before_covers_a_report_of_memory_that_ran_out(banner: Banner) -> None:
    banner.take(warning("critical", "SIM-0"))
    written = Note(time_s=2.0, topic=Topic.REPORT, text="Written.", details={"folder": "/reports/one"})
    banner.take(written)
    assert banner.shown is written
    banner.take(warning("critical", "GPU-b", time_s=3.0))
    assert banner.shown is written, "until its program has ended nothing else says why"
    offered = {button.text() for button in banner.findChildren(QPushButton) if not button.isHidden()}
    assert offered == {"Open report", "×"}


def test_of_a_failed_run_and_a_full_memory_the_newer_is_told(banner: Banner) -> None:
    banner.take(warning("critical"))
    banner.take(replace(RAN_OUT, time_s=2.0, status="failed", error="guard", message="It ended.", remedy=""))
    assert words(banner) == "critical: It ended."
    banner.take(warning("critical", "GPU-b", time_s=3.0))
    assert words(banner) == "critical: GPU-b critical"


def test_a_forecast_does_not_take_the_place_of_a_warning_of_the_same_device(banner: Banner) -> None:
    banner.take(warning("warning"))
    banner.take(warning("forecast"))
    assert words(banner) == "warning: host warning"


def test_passed_is_told_and_then_the_strip_closes(banner: Banner) -> None:
    banner.take(warning("warning"))
    banner.take(warning("passed", time_s=10.0))
    assert words(banner) == "passed: host passed"
    banner.tick(10.0 + PASSED_SHOWN_S / 2)
    assert not banner.isHidden()
    banner.tick(10.1 + PASSED_SHOWN_S)
    assert banner.isHidden()


def test_a_warning_that_stands_says_and_offers_what_is_the_case_now(banner: Banner) -> None:
    told = warning("critical", "GPU-a")
    banner.take(told)
    banner.say_now(told, replace(told, text="No run is on.", actions=("free_cache",)))
    assert words(banner) == "critical: No run is on."
    offered = {button.text() for button in banner.findChildren(QPushButton) if not button.isHidden()}
    assert offered == {"Free cache", "×"}


def test_a_button_asks_for_its_action(qtbot: QtBot, banner: Banner) -> None:
    banner.take(warning("warning"))
    stop = next(button for button in banner.findChildren(QPushButton) if button.text() == "Stop run")
    with qtbot.waitSignal(banner.action) as asked:
        stop.click()
    assert asked.args == ["stop"]


def test_dismissing_closes_the_strip_until_something_new_happens(banner: Banner) -> None:
    banner.take(warning("warning"))
    next(button for button in banner.findChildren(QPushButton) if button.text() == "×").click()
    assert banner.isHidden()
    banner.take(warning("critical"))
    assert not banner.isHidden()


def test_a_failed_run_stays_told_until_the_next_begins(banner: Banner) -> None:
    banner.take(replace(RAN_OUT, error="guard", message="The guard stopped it.", remedy="Less."))
    assert "The guard stopped it. Less." in words(banner)
    banner.take(RunStarted(time_s=2.0, workload="matmul", device="cpu", spec={}))
    assert banner.isHidden()
