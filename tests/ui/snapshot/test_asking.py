"""What-if questions, a second snapshot, and the editor."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gpudash.memory.snapshot.history.model import Snapshot
from gpudash.memory.snapshot.replay.what_if import WhatIfAnswer
from gpudash.ui.explanation.source_view.editor import editor_command, open_in_editor
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.ui.snapshot.page import text_of
from gpudash.ui.snapshot.rows import ChangeRow, Holder, change_text, changes, signed
from gpudash.ui.snapshot.what_if_pane import NO_TRACE, WhatIfPane
from gpudash.units import GIB, MIB
from tests.ui.snapshot.conftest import OpenDocument
from tests.ui.snapshot.opened import FakeOpened


@pytest.fixture
def oracle() -> FakeOpened:
    return FakeOpened()


@pytest.fixture
def pane(qtbot: QtBot, oracle: FakeOpened) -> WhatIfPane:
    pane = WhatIfPane(oracle)
    qtbot.addWidget(pane)
    pane.show_device(3, True)
    pane.show()
    return pane


def answer(words: str) -> WhatIfAnswer:
    return WhatIfAnswer(23 * GIB, None, words, True, None, None, 1, GIB, GIB, None, 0.1)


def test_a_question_is_asked_of_the_device_and_answered_in_words(pane: WhatIfPane, oracle: FakeOpened) -> None:
    pane.capacity.setCurrentText("23GiB")
    pane.settings.setCurrentText("expandable_segments:True")
    pane.button.click()
    assert oracle.requested == [(3, 23 * GIB, "expandable_segments:True")]
    assert pane.table.model.rows == [("23.0 GiB", "expandable_segments:True", "looking…")]
    oracle.answers[1] = answer("23 GiB: fits after one retry.")
    pane.refresh()
    assert pane.table.model.rows[0][2] == "23 GiB: fits after one retry."


def test_an_empty_card_asks_for_one_without_end(pane: WhatIfPane, oracle: FakeOpened) -> None:
    pane.capacity.setCurrentText("")
    pane.button.click()
    assert oracle.requested == [(3, None, None)]


@pytest.mark.parametrize(
    ("capacity", "settings", "words"),
    [
        ("23 bananas", "", "'23 bananas' is not a size"),
        ("0", "", "A card needs more than 0 bytes."),
        ("8GiB", "expandable:maybe", "expandable"),
    ],
)
def test_a_wrong_field_is_told_and_nothing_is_asked(
    pane: WhatIfPane, oracle: FakeOpened, capacity: str, settings: str, words: str
) -> None:
    pane.capacity.setCurrentText(capacity)
    pane.settings.setCurrentText(settings)
    pane.button.click()
    assert words in pane.problem.text() and pane.problem.isVisible()
    assert oracle.requested == []
    pane.capacity.setCurrentText("8GiB")
    pane.settings.setCurrentText("")
    pane.button.click()
    assert not pane.problem.isVisible() and len(oracle.requested) == 1


def test_a_question_that_was_overtaken_says_so(pane: WhatIfPane, oracle: FakeOpened) -> None:
    pane.button.click()
    pane.button.click()
    oracle.answers[2] = answer("fits.")
    pane.refresh()
    assert [row[2] for row in pane.table.model.rows] == ["fits.", "not answered: replaced by a newer question"]


def test_why_there_is_no_answer_is_told(pane: WhatIfPane, oracle: FakeOpened) -> None:
    pane.button.click()
    oracle.answers[1] = "The process that read run7.pickle ended (killed)."
    pane.refresh()
    assert pane.table.model.rows[0][2] == oracle.answers[1]


def test_the_smallest_card_is_asked_for_once_when_the_tab_is_first_seen(
    leaking: Snapshot, open_document: OpenDocument
) -> None:
    page = open_document(leaking).page
    oracle = page.what_if._truth_table
    assert isinstance(oracle, FakeOpened) and oracle.requested == []
    for tab in (page.what_if, page.who, page.what_if):
        page.tabs.setCurrentWidget(tab)
    assert oracle.requested == [(0, None, None)]
    page.what_if.settings.setCurrentText("expandable_segments:True")
    page.what_if.smallest.click()
    assert oracle.requested[1:] == [(0, None, "expandable_segments:True")]


def test_without_history_nothing_can_be_asked(pane: WhatIfPane) -> None:
    pane.show_device(0, False)
    pane.ask_smallest()
    assert pane._truth_table.requested == []  # type: ignore[attr-defined]
    assert pane.problem.text() == NO_TRACE and not pane.button.isEnabled()


def compared(
    document: SnapshotDocument, qtbot: QtBot, snapshot: Snapshot | None, refusal: str = ""
) -> tuple[SnapshotDocument, FakeOpened]:
    other = FakeOpened(Path("other.pickle"), snapshot)
    other.refusal = refusal
    document.page.compare._opener = lambda _path: other  # type: ignore[assignment,return-value]
    document.page.tabs.setCurrentWidget(document.page.compare)
    document.page.compare.compare_with(Path("other.pickle"))

    def done() -> bool:
        document.refresh()
        return bool(other.closings)

    qtbot.waitUntil(done)
    return document, other


def test_two_snapshots_are_compared_row_by_row_and_in_words(
    healthy: Snapshot, leaking: Snapshot, open_document: OpenDocument, qtbot: QtBot
) -> None:
    document, _other = compared(open_document(healthy), qtbot, leaking)
    rows = {row[5]: row for row in document.page.compare.table.model.rows}
    assert rows["train.py:10 build"][4] == "same"
    assert rows["train.py:44 step"][0].startswith("+") and rows["train.py:44 step"][4] in ("grew", "new")
    words = document.page.compare.label.text()
    assert words.startswith("A is run7.pickle, B is other.pickle.") and "train.py:44 step" in words


def test_a_snapshot_against_itself_is_the_same_everywhere(
    leaking: Snapshot, open_document: OpenDocument, qtbot: QtBot
) -> None:
    document, _other = compared(open_document(leaking), qtbot, leaking)
    assert {row[4] for row in document.page.compare.table.model.rows} == {"same"}


def test_a_second_file_that_is_refused_leaves_the_first(
    leaking: Snapshot, open_document: OpenDocument, qtbot: QtBot
) -> None:
    document, _other = compared(open_document(leaking), qtbot, None, "other.pickle is empty.")
    assert document.page.compare.label.text() == "other.pickle is empty."
    assert document.ready and document.page.who.table.model.rows


def test_while_the_second_file_is_read_its_numbers_are_told(leaking: Snapshot, open_document: OpenDocument) -> None:
    other = FakeOpened(Path("other.pickle"))
    document = open_document(leaking, opener=lambda _path: other)
    document.page.compare.compare_with(Path("other.pickle"))
    other.progress = (40_000_000, 80_000_000)
    document.refresh()
    assert document.page.compare.label.text() == "Reading other.pickle: 40 of 80 MB"
    document.close_document()
    assert other.closings == 1


def holder(name: str, own: int) -> Holder:
    return Holder(name, own, 1, own, ("weights",), 0, (0,))


def test_changes_are_ordered_by_how_much_changed() -> None:
    found = changes(
        [holder("a", 10), holder("b", 20), holder("c", 5)], [holder("a", 30), holder("d", 6), holder("c", 5)]
    )
    assert [(c.name, c.grown, c.word) for c in found] == [
        ("a", 20, "grew"),
        ("b", -20, "gone"),
        ("d", 6, "new"),
        ("c", 0, "same"),
    ]
    assert changes([holder("a", 3)], [holder("a", 2)])[0].word == "shrank"


def test_the_sentence_names_what_changed_most() -> None:
    found = changes([holder("a", 0)], [holder("a", 3 * MIB), holder("b", 2 * MIB), holder("c", MIB)])
    assert change_text(found, "event 1", "event 2") == (
        "From event 1 to event 2 live bytes grew by 6 MiB: +3 MiB a, +2 MiB b and 1 more."
    )
    assert change_text([], "event 1", "event 2") == "The same is live at event 1 and at event 2."
    assert isinstance(found[0], ChangeRow) and signed(0) == "same" and signed(-MIB) == "−1 MiB"


@pytest.mark.parametrize(
    ("visual", "expected"),
    [
        ("", None),
        ("'", None),
        ("code -w", ["code", "-w", "--goto", "/x/train.py:41"]),
        ("/usr/bin/subl", ["/usr/bin/subl", "/x/train.py:41"]),
        ("gvim", ["gvim", "+41", "/x/train.py"]),
    ],
)
def test_the_editor_is_the_one_named_by_visual(
    monkeypatch: pytest.MonkeyPatch, visual: str, expected: list[str] | None
) -> None:
    monkeypatch.setenv("VISUAL", visual)
    assert editor_command("/x/train.py", 41) == expected


def test_a_file_that_is_not_here_is_not_opened() -> None:
    assert open_in_editor("/nowhere/train.py", 41) == "/nowhere/train.py is not on this computer."


def test_settings_are_told_in_words() -> None:
    assert [text_of(value) for value in (True, False, 20000, "", None, {"a": 1}, {}, 0.5)] == [
        "on",
        "off",
        "20\u202f000",
        "not set",
        "not set",
        "a: 1",
        "none",
        "0.5",
    ]
