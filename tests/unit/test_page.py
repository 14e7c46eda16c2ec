"""A page of HTML: its blocks are plain text, and stay it."""

from __future__ import annotations

import pytest

from gpudash.drawing.page import (
    BarsBlock,
    Block,
    BulletsBlock,
    FactsBlock,
    FigureBlock,
    FoldedBlock,
    HeadingBlock,
    Key,
    ParagraphBlock,
    Phrase,
    TableBlock,
    page,
)
from gpudash.drawing.scene import PlotScene, SceneAxis
from gpudash.drawing.svg import svg
from tests.unit.html_page import Page

EVIL = "</style></title><script>alert(1)</script>{{ 7 * 7 }}{% raw %}\"'&"
SCENE = PlotScene(EVIL, SceneAxis(0, 1), SceneAxis(0, 1), ())


@pytest.mark.parametrize(
    "block",
    [
        HeadingBlock(EVIL, id=EVIL),
        HeadingBlock(Phrase(EVIL, link=EVIL, badge=EVIL, rest=EVIL, code=EVIL), level=1),
        ParagraphBlock(EVIL, EVIL),
        BulletsBlock([EVIL]),
        TableBlock([(EVIL, True)], [[EVIL], [Phrase(EVIL)]]),
        FactsBlock([(EVIL, EVIL)]),
        BarsBlock([(EVIL, EVIL, 1.0)]),
        FoldedBlock(EVIL, [(EVIL, False), (EVIL, True)]),
        FigureBlock(EVIL, [Key(EVIL, EVIL, EVIL)], svg(SCENE)),
    ],
    ids=lambda block: type(block).__name__,
)
def test_a_foreign_text_is_text_in_every_block(block: Block) -> None:
    text = page(EVIL, [block])
    found = Page(text)
    assert found.count("script") == 0
    assert EVIL in found.text
    assert "{{ 7 * 7 }}" in text and "49" not in found.text


def test_lines_of_code_keep_their_breaks_and_nothing_is_added() -> None:
    text = page("", [FoldedBlock("Traceback", [("  one\ntwo", False), ("three", True)])])
    assert '<pre>  one\ntwo\n<span class="library">three</span></pre>' in text


def test_a_table_says_which_columns_are_numbers_and_an_empty_list_of_facts_is_nothing() -> None:
    text = page("", [TableBlock([("name", False), ("count", True)], [["a", "1"]]), FactsBlock([])])
    assert '<th class="number">count</th>' in text and '<td>a</td><td class="number">1</td>' in text
    assert 'class="facts"' not in text


def test_control_characters_are_written_out() -> None:
    text = page("\x1b[2J", [ParagraphBlock("\u202eno")])
    assert "\\x1b[2J" in text and "\\u202eno" in text
    assert "\x1b" not in text and "\u202e" not in text
