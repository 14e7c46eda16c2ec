"""The verdict screen, from the result alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from gpudash.ui.colours import DARK, LIGHT
from gpudash.ui.dashboard.tabs.verdict_page import VerdictPage
from gpudash.ui.widgets.theme import apply_theme


def side(label: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "device": label,
        "label": label,
        "product": f"the {label}",
        "step_seconds": seconds,
        "step_seconds_quartiles": [seconds * part for part in (0.9, 0.98, 1.0, 1.02, 1.2)],
        "compute_only_seconds": seconds * 0.4,
        "shares": {"compute": 0.3, "transfer": 0.6, "waiting": 0.1},
        "peak_used_bytes": 512 << 20,
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": None,
        "energy_j": None,
        "energy": "not measurable here: nothing reads it",
        **more,
    }


RESULT: dict[str, Any] = {
    "ratio": 10 / 12,
    "interval": [0.82, 0.85],
    "confidence": 0.99,
    "outcome": "slower",
    "cause": "transfers",
    "verdict": "The GPU is not worth it here: the CPU is 1.2× faster. The GPU spends 60 % of its step copying data.",
    "headline": "The GPU is not worth it here: the CPU is 1.2× faster.",
    "because": "The GPU spends 60 % of its step copying data.",
    "number": {"times": "1.2×", "interval": "1.18 – 1.22", "of": "the CPU"},
    "workload": "training",
    "what": "Training · mlp · batch 8",
    "compute_only": {"ratio": 2.1, "interval": [2.0, 2.2]},
    "sides": [side("cpu", 0.010), side("cuda:0", 0.012, peak_allocated_bytes=1 << 28, peak_reserved_bytes=1 << 29)],
    "agreement": {"agrees": True, "words": "The losses match."},
    "resident": {"ratio": 1.9, "interval": [1.8, 2.0], "device": "cuda:0"},
    "sweep": None,
    "repetitions": 30,
    "measured_steps": 40,
    "notes": ["Other programs had the cores for 12 % of the time."],
}
SWEEP = {
    "field": "batch",
    "points": [{"size": 8, "seconds": [0.01, 0.02]}, {"size": 32, "seconds": [0.04, 0.02]}],
    "crossing": 16.0,
    "ended": "",
}


@pytest.fixture
def page(qtbot: QtBot) -> VerdictPage:
    page = VerdictPage()
    qtbot.addWidget(page)
    page.resize(1100, 360)
    return page


def test_the_sentence_the_interval_and_how_sure_it_is_are_said_first(page: VerdictPage) -> None:
    assert page.show_result(RESULT)
    assert page.headline.text() == RESULT["headline"]
    assert page.because.text() == RESULT["because"]
    assert page.trust.text() == "1.18 – 1.22  ·  99 % sure, 30 runs of 40 steps each"


def test_the_outcome_stands_over_a_sentence_that_does_not_begin_with_it(page: VerdictPage) -> None:
    def seen(word: str) -> bool:
        return any(label.text() == word for label in page.findChildren(QLabel) if label.isVisibleTo(page))

    page.show_result(RESULT)
    assert seen("NOT WORTH IT")
    page.show_result({**RESULT, "outcome": "close", "headline": "Too close to call, needs 18 more runs."})
    assert not seen("TOO CLOSE TO CALL") and not seen("NOT WORTH IT")
    page.show_result(RESULT)
    assert seen("NOT WORTH IT")


def test_any_other_result_is_left_to_the_table(page: VerdictPage) -> None:
    assert not page.show_result({})
    assert not page.show_result({"steps_per_second": 3.0})
    assert not page.show_result({"verdict": "a workload's own", "sides": ["left", "right"]})


PREDICTED: dict[str, Any] = {
    "predicted": True,
    "outcome": "faster",
    "verdict": "An RTX 4090 is predicted to be 95× as fast as this CPU (63× to 127×). Measured 1.9 s on it.",
    "headline": "An RTX 4090 is predicted to be 95× as fast as this CPU (63× to 127×).",
    "because": "Measured 1.9 s a step on this CPU.",
    "what": "Training · mlp · batch 8",
    "measured": side("cpu", 1.9),
    "card": {"name": "RTX 4090", "time": {"median_s": 0.02, "low_s": 0.015, "high_s": 0.03}},
}


def test_a_card_that_is_predicted_has_its_verdict_and_none_of_the_figures_of_a_measured_one(page: VerdictPage) -> None:
    page.show_result(RESULT)
    assert page.show_result(PREDICTED)
    assert page.headline.text() == PREDICTED["headline"]
    assert page.trust.text() == "the CPU is measured, the card is predicted"
    assert "RTX 4090, a step, predicted: 20.0 ms (15.0 ms to 30.0 ms)" in page.notes.text()
    assert page._cells[1]["whole"].isVisibleTo(page) is False
    assert page.text().startswith(f"verdict: {PREDICTED['verdict']}")
    page.show_result(RESULT)
    assert page._cells[1]["whole"].isVisibleTo(page)


def test_a_predicted_verdict_whose_figures_make_no_sense_is_shown_without_them(page: VerdictPage) -> None:
    assert page.show_result({**PREDICTED, "measured": 7, "card": None})
    assert page.headline.text() == PREDICTED["headline"]


def test_a_result_that_has_been_through_a_recording_looks_the_same(page: VerdictPage, qtbot: QtBot) -> None:
    page.show_result(RESULT)
    again = VerdictPage()
    qtbot.addWidget(again)
    again.show_result(json.loads(json.dumps(RESULT)))
    assert again.text() == page.text()


def test_without_an_interval_it_says_so(page: VerdictPage) -> None:
    result = {**RESULT, "interval": [None, None], "number": {**RESULT["number"], "interval": "no interval yet"}}
    page.show_result(result)
    assert "too few repetitions" in page.text()
    assert page._ratios["whole"].text() == "undecided"


@pytest.mark.parametrize(
    ("ratio", "interval", "words"),
    [
        (1 / 1.25, [0.7, 0.9], "1.2× slower"),
        (1.25, [1.2, 1.3], "1.2× as fast"),
        (14.4, [14, 15], "14× as fast"),
        (0.8, [0.6, 1.1], "undecided"),
        (1.01, [0.98, 1.04], "about as fast"),
    ],
)
def test_the_table_names_no_winner_while_the_interval_holds_one(
    page: VerdictPage, ratio: float, interval: list[float], words: str
) -> None:
    page.show_result({**RESULT, "compute_only": {"ratio": ratio, "interval": interval}})
    assert page._ratios["compute"].text() == words
    assert page._ratios["whole"].text() == "1.2× slower"


def test_copy_puts_verdict_and_figures_on_the_clipboard(page: VerdictPage) -> None:
    page.show_result(RESULT)
    page.copy_button.click()
    copied = QGuiApplication.clipboard().text()
    assert copied.startswith("verdict: The GPU is not worth it here")
    assert "cuda:0, a step: 12.0 ms = 3.60 ms computing (30 %) + 7.20 ms copying (60 %)" in copied
    assert "not measurable here" in copied


def test_run_again_asks_for_it(page: VerdictPage, qtbot: QtBot) -> None:
    page.show_result(RESULT)
    with qtbot.waitSignal(page.again, timeout=1000):
        page.again_button.click()


def test_the_bars_say_in_words_what_they_show(page: VerdictPage) -> None:
    page.show_result(RESULT)
    spread, share = page._bars[1]
    assert "median 12.0 ms" in spread.accessibleDescription()
    assert "copying 60 %" in share.accessibleDescription()
    places = spread.places()
    assert places == sorted(places)


def test_the_sizes_are_drawn_only_where_there_were_some(page: VerdictPage) -> None:
    page.show()
    page.show_result(RESULT)
    assert not page.graph.isVisible()
    page.show_result({**RESULT, "sweep": SWEEP})
    assert page.graph.isVisible()
    assert "batch 32: 40.0 ms against 20.0 ms" in page.graph.accessibleDescription()


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_the_bars_have_the_colours_of_the_theme(page: VerdictPage, qapp: QApplication, palette: Any) -> None:
    apply_theme(qapp, palette.name)
    page.show_result({**RESULT, "sweep": SWEEP})
    page.show()
    share = page._bars[1][1]
    picture = share.grab().toImage()
    colours = {picture.pixelColor(x, picture.height() // 2).name() for x in range(picture.width())}
    assert palette.curves["h2d"] in colours
    assert not page.graph.grab().isNull()
