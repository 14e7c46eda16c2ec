"""A verdict never contradicts its own numbers: in the window, in the terminal and in the document."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QCoreApplication, QEvent
from pytestqt.qtbot import QtBot

from gpudash.cli.terminal.estimates.estimate_report import print_estimate
from gpudash.memory.predicting.estimate import Estimate, Target, fits
from gpudash.specs import TrainingSpec
from gpudash.ui.forms.fit_panel import FitPanel
from gpudash.units import GIB, KIB, MIB, TIB
from tests.unit.workloads.made_up_predictions import CARDS, EDGES, SPECS, made_up, predicted, training

pytestmark = pytest.mark.long

__all__ = ["made_up"]

CASES = int(os.environ.get("GPUDASH_CASES_OF_FIGURES", "500"))

UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}

SIZE = r"([\d.]+ [KMGT]?i?B)"

ELSEWHERE = Target("sim:1", 16 * GIB, 3 * GIB - 1, 100 * MIB)


@dataclass
class Read:
    """What a person reads of a prediction, in bytes as they are written.

    Attributes:
        headline: the verdict.
        need, free: of the run.
        margin: "" where the prediction has none.
        largest: the line about the largest batch; ``None`` where a change that fits is named instead.
        ways: what each change would need, of how much where that is said beside it, and whether it is said to fit.
    """

    headline: str
    need: str
    free: str
    margin: str
    largest: str | None
    ways: list[tuple[str, str, str | None, str]]


def size(words: str) -> Fraction:
    number, unit = words.split()
    return Fraction(number) * UNITS[unit]


def rounding(words: str) -> Fraction:
    """How far a size may lie from what is written of it."""
    number, unit = words.split()
    return Fraction(UNITS[unit], 2 * 10 ** len(number.partition(".")[2]))


def figures(lines: Iterable[str]) -> tuple[str, str, str, str]:
    text = "\n".join(lines)
    told = re.search(rf"^needs {SIZE}(?: ± {SIZE})? of {SIZE} free$", text, re.MULTILINE)
    largest = re.search(r"^(largest batch that fits: \d+|even a batch of 1 does not fit)$", text, re.MULTILINE)
    assert told is not None, text
    return told[1], told[3], told[2] or "", "" if largest is None else largest[1]


def read_window(panel: FitPanel) -> Read:
    need, free, margin, largest = figures(panel.figures.splitlines())
    ways = []
    for row in panel.alternatives:
        told = re.fullmatch(rf"(.*): (.*?); needs {SIZE}(?: of {SIZE})?(?: · .*)?", row.accessibleName())
        assert told is not None, row.accessibleName()
        ways.append((told[1], told[3], told[4], told[2]))
    named = re.search(r"^fits with (.*)$", panel.figures, re.MULTILINE)
    if named is not None:
        assert (named[1], "fits") in [(change, fit) for change, _needs, _of, fit in ways]
    return Read(panel.headline.lstrip("✓✕≈ "), need, free, margin, None if named else largest, ways)


def read_terminal(found: Estimate) -> Read:
    written = io.StringIO()
    with contextlib.redirect_stdout(written), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "220")
        print_estimate(found)
    lines = [line.strip() for line in written.getvalue().splitlines()]
    need, free, margin, largest = figures(lines)
    ways = []
    for line in lines[lines.index("") + 1 :] if "" in lines else ():
        told = re.match(rf"(.*?)  +{SIZE}(?: of {SIZE})?  +(fits|does not fit|may fit)\b", line)
        if told is not None:
            ways.append((told[1], told[2], told[3], told[4]))
    assert len(ways) == len(found.alternatives)
    return Read(lines[0].partition(": ")[2], need, free, margin, largest, ways)


def check(read: Read, found: Estimate) -> None:
    """What is read agrees with itself, and with the figures of the document."""
    need, free = size(read.need), size(read.free)
    apart = re.search(rf"{SIZE} (spare|short)", read.headline)
    if "does not fit" in read.headline:
        assert need > free
        assert apart is not None and size(apart[1]) > 0
    elif "may" in read.headline:
        assert ("may not fit" in read.headline) is (need > free)
        assert abs(need - free) <= size(read.margin) + rounding(read.margin) + rounding(read.need) + rounding(read.free)
    else:
        assert "fits" in read.headline and need <= free
        assert apart is not None or need == free or "only after releasing" in read.headline
    if apart is not None:
        assert abs(size(apart[1]) - abs(free - need)) <= rounding(apart[1])
        assert apart[2] == ("short" if need > free else "spare")
    document = found.to_json()
    assert document["fits"] is {"does": False, "may": None}.get(read.headline.split()[0], True)
    for written, true in ((read.need, document["needed_bytes"]), (read.free, document["free_bytes"])):
        assert abs(size(written) - true) <= rounding(written)
    assert document["spare_bytes"] == document["free_bytes"] - document["needed_bytes"]
    assert (document["needed_bytes"] > document["free_bytes"]) is (need > free)
    told = {way["change"].removesuffix(" (SIMULATED)"): way for way in document["alternatives"]}
    assert len(read.ways) == len(told)
    for change, needs, of, fit in read.ways:
        way = told[change.removesuffix(" (SIMULATED)")]
        assert fit == {True: "fits", False: "does not fit", None: "may fit"}[way["fits"]]
        beside = free if of is None else size(of)
        if fit != "may fit":
            assert (size(needs) <= beside) is (fit == "fits"), (change, needs, of, read)
        assert abs(size(needs) - way["needed_bytes"]) <= rounding(needs)
        if way["card_bytes"] is not None:
            assert beside - rounding(of or read.free) <= way["card_bytes"]
    largest = document["largest_batch_size"]
    if read.largest is None:
        assert not largest, "a change was named in place of a batch that fits"
        return
    assert read.largest == (
        ""
        if largest is None
        else f"largest batch that fits: {largest}"
        if largest
        else "even a batch of 1 does not fit"
    )


def check_largest(spec: TrainingSpec, target: Target, found: Estimate) -> None:
    """The largest batch fits, one more does not, and where it is less than what was asked it is among the changes."""
    largest = found.largest_batch_size
    if largest is None:
        return
    assert not largest or fits(training(spec.model_copy(update={"batch": largest})), target) is True
    assert fits(training(spec.model_copy(update={"batch": largest + 1})), target) is not True
    assert (largest >= spec.batch) is (found.fits is True)
    named = [way for way in found.alternatives if way.change == f"batch {largest}"]
    assert bool(named) is (0 < largest < spec.batch and not found.has_room)
    assert all(way.fits for way in named)


@pytest.mark.timeout(600)
def test_no_figure_of_a_prediction_contradicts_another(made_up: None, qtbot: QtBot) -> None:
    panel = FitPanel()
    qtbot.addWidget(panel)
    panel.resize(300, 400)
    panel.open_details()
    cases = 0

    @settings(max_examples=CASES, deadline=None, database=None, derandomize=True)
    @given(SPECS, st.one_of(CARDS, EDGES))
    def agree(spec: TrainingSpec, target: Target) -> None:
        nonlocal cases
        cases += 1
        found = predicted(spec, target, (ELSEWHERE,) if target.device == "sim:0" else ())
        panel.show_estimate(found, whole=True)
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)  # rows of the case before
        for read in (read_window(panel), read_terminal(found)):
            check(read, found)
        check_largest(spec, target, found)
        assert sum(part for _name, part, _place in panel.bar.parts()) == found.needed_bytes
        assert (panel.bar.free_end() is not None) is ((found.needed_bytes or 0) > (found.free_bytes or 0))
        assert not (found.has_room and found.alternatives)

    agree()
    assert cases >= CASES
