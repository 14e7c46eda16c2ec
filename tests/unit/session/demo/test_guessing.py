"""Guesses: how one is read, judged and told, and what a show does with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.session.demo.demo_scenes import SCENES
from gpudash.session.demo.scenes import SceneQuestion
from gpudash.session.demo.show import HELD, Show
from gpudash.units import MIB
from tests.unit.session.demo.fake_playing import FakeLines, FakePlaying
from tests.unit.session.demo.traces import three_lines

CHOICE = SceneQuestion("Which?", ("a", "b", "c"))
NUMBER = SceneQuestion("How much?", unit="MiB", why="For a reason.")
TIMES = SceneQuestion("How often?", unit="times", near=0.5)


@pytest.mark.parametrize(
    ("question", "text", "guess"),
    [
        (CHOICE, " 2 ", 1),
        (NUMBER, "128", 128),
        (NUMBER, "12,5", 12.5),
        (NUMBER, "0.5 GiB", 512),
        (NUMBER, "64 MiB", 64),
        (TIMES, "30 times", 30),
        (TIMES, "30×", 30),
        (TIMES, "0", 0),
    ],
)
def test_a_guess_is_read_as_it_is_written(question: SceneQuestion, text: str, guess: float) -> None:
    assert question.read(text) == guess


@pytest.mark.parametrize("question", [CHOICE, NUMBER, TIMES])
@pytest.mark.parametrize("text", ["", "much", "-1", "nan", "inf", "1e999", "9" * 400, "4", "64 miles", "١", "1\n2"])
def test_what_is_no_guess_is_refused_in_a_short_sentence(question: SceneQuestion, text: str) -> None:
    if text in ("4", "١") and not question.choices:
        assert question.read(text) in (4, 1)
        return
    with pytest.raises(ValueError, match=r"[Ww]rite|outside") as refused:
        question.read(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 120


def test_a_number_near_the_answer_is_right_and_a_choice_only_if_it_is_the_same() -> None:
    assert NUMBER.is_right(120, 128) and not NUMBER.is_right(96, 128)
    assert TIMES.is_right(400, 300) and not TIMES.is_right(100, 300)
    assert CHOICE.is_right(1, 1) and not CHOICE.is_right(0, 1)


@pytest.mark.parametrize(
    ("guess", "verdict"),
    [
        (192.0, "Right: 192 MiB."),
        (190.0, "Right: 192 MiB. You said 190 MiB."),
        (64.0, "192 MiB. You said 64 MiB."),
        (None, "What came: 192 MiB."),
    ],
)
def test_a_guess_is_kept_shown_in_the_plot_and_told_beside_what_came(guess: float | None, verdict: str) -> None:
    noted: list[tuple[float, float | None]] = []
    scene = replace(SCENES[-1], questions=(NUMBER,), answer=lambda _results: 192.0)
    lines = FakeLines()
    show = Show(
        FakePlaying(),  # type: ignore[arg-type]  # as much as a show asks
        scenes=[scene],
        pace=HELD,
        lines=lines,  # type: ignore[arg-type]  # as much as a show asks
        on_guess=lambda _scene, _question, taken, answer: noted.append((taken, answer)),
    )
    show.start()
    show.tick(1.0)
    assert show.asking and show.picture.unit == "MiB" and not show.picture.choices
    show.take_guess(guess)
    lines.answer = three_lines()
    show.tick(2.0)
    assert noted == ([] if guess is None else [(guess, None), (guess, 192.0)])
    while not show.at_end:
        show.forward()
    chart = show.picture.chart
    assert chart is not None and chart.guess == (None if guess is None else guess * MIB)
    assert show.picture.verdict == verdict and show.picture.sentence == "For a reason."


def test_a_changed_line_is_guessed_anew() -> None:
    scene = replace(SCENES[-1], questions=(NUMBER,), answer=lambda _results: 192.0)
    lines = FakeLines()
    show = Show(FakePlaying(), scenes=[scene], pace=HELD, lines=lines)  # type: ignore[arg-type]
    show.start()
    show.take_guess(1.0)
    lines.answer = three_lines()
    show.tick(1.0)
    show.edit("a = 1", MIB)
    assert show.asking and show.guess is None
