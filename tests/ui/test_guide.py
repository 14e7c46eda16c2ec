"""Help > Guide: the pages of the guide in the window."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QTextDocument
from pytestqt.qtbot import QtBot

from gpudash.ui.colours import Palette
from gpudash.ui.window.guide import DARK_PICTURE, LIGHT_PICTURE, ORDER, Guide, hits, pages
from tests.end_to_end.guide_pictures import GUIDE, PICTURES
from tests.end_to_end.window_driver import SCENARIOS
from tests.ui.conftest import IN_BOTH_THEMES


@pytest.fixture
def guide(qtbot: QtBot) -> Guide:
    made = Guide()
    made.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
    qtbot.addWidget(made)
    made.show()
    return made


def shown(guide: Guide) -> list[str]:
    rows = [guide.titles.item(row) for row in range(guide.titles.count())]
    return [item.text() for item in rows if not item.isHidden()]


def test_every_page_is_listed_in_the_order_in_which_they_are_read(guide: Guide) -> None:
    assert [page.file.stem for page in pages()] == list(ORDER)
    assert shown(guide) == [page.title for page in pages()]
    assert guide.text.toPlainText().startswith("The window")


def test_the_list_is_narrowed_to_the_pages_that_have_all_words(guide: Guide, qtbot: QtBot) -> None:
    qtbot.keyClicks(guide.search, "straggler DistributedDataParallel")
    assert shown(guide) == ["Several GPUs"]
    assert guide.text.toPlainText().startswith("Several GPUs")
    assert guide.text.textCursor().selectedText().lower() == "straggler"


def test_enter_goes_from_place_to_place_and_begins_anew_after_the_last(guide: Guide, qtbot: QtBot) -> None:
    qtbot.keyClicks(guide.search, "sawtooth")
    first = guide.text.textCursor().position()
    seen = {first}
    for _ in range(hits(pages()[guide.titles.currentRow()], "sawtooth")):
        qtbot.keyClick(guide.search, Qt.Key.Key_Return)
        seen.add(guide.text.textCursor().position())
    assert guide.text.textCursor().position() == first or len(seen) > 1
    assert guide.text.textCursor().selectedText().lower() == "sawtooth"


def test_words_that_are_nowhere_are_said_to_be(guide: Guide, qtbot: QtBot) -> None:
    qtbot.keyClicks(guide.search, "zeppelin")
    assert shown(guide) == [] and guide._none.isVisible()
    guide.search.clear()
    assert len(shown(guide)) == len(ORDER) and not guide._none.isVisible()


def test_a_page_is_there_once_whatever_its_length_and_the_window_s_width(guide: Guide) -> None:
    for page in pages():
        guide.show_page(page.file.name)
        guide.resize(guide.width() + 60, guide.height())
        assert guide.text.toPlainText().splitlines().count(page.title) == 1, page.title


def test_a_link_leads_to_the_page_it_names(guide: Guide) -> None:
    guide.text.anchorClicked.emit(QUrl("speed.md"))
    assert guide.text.toPlainText().startswith("How fast it is")
    guide.text.anchorClicked.emit(QUrl("https://example.org/fit.md"))
    assert guide.text.toPlainText().startswith("How fast it is")


def test_every_title_is_read_whole_and_the_guide_is_on_the_screen(guide: Guide) -> None:
    assert guide.titles.sizeHintForColumn(0) <= guide.titles.viewport().width()
    assert not guide.titles.horizontalScrollBar().isVisible()
    room = guide.screen().availableSize()
    assert guide.width() <= room.width() and guide.height() <= room.height()


def test_on_a_dense_screen_a_picture_is_as_large_and_has_more_pixels(
    guide: Guide, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide.show_page("out-of-memory.md")
    asked = QTextDocument.ResourceType.ImageResource.value, QUrl("../readme/explained.png")
    plain = guide.text.loadResource(*asked)
    monkeypatch.setattr(guide.text, "devicePixelRatioF", lambda: 1.5)
    dense = guide.text.loadResource(*asked)
    assert plain.width() < dense.width() <= 1.5 * plain.width() + 1
    assert abs(dense.deviceIndependentSize().width() - plain.width()) <= 1


@IN_BOTH_THEMES
def test_the_window_is_pictured_in_the_look_in_which_the_guide_is_read(palette: Palette, guide: Guide) -> None:
    guide.show_page("window.md")
    asked = QTextDocument.ResourceType.ImageResource.value, QUrl("../readme/light.png")
    picture = guide.text.loadResource(*asked)
    assert (picture.pixelColor(2, picture.height() // 2).lightness() > 128) != palette.dark


def test_pictures_are_no_wider_than_the_page_and_come_from_nowhere_else(guide: Guide) -> None:
    guide.show_page("out-of-memory.md")
    picture = guide.text.loadResource(QTextDocument.ResourceType.ImageResource.value, QUrl("../readme/explained.png"))
    assert picture is not None and 0 < picture.width() <= guide.text.viewport().width()
    for elsewhere in ("file:///etc/passwd", "https://example.org/a.png", "../../../../etc/hostname"):
        assert guide.text.loadResource(QTextDocument.ResourceType.ImageResource.value, QUrl(elsewhere)) is None


def test_the_pictures_that_a_command_draws_are_those_of_scenarios_and_are_shown_by_the_guide_or_readme() -> None:
    text = "".join(page.read_text() for page in (*Path("resources/guide").glob("*.md"), Path("README.md")))
    for name, drawn in GUIDE.items():
        assert drawn.scenario in SCENARIOS and (PICTURES / f"{name}.png").is_file()
        # A page names the light one; in the dark theme the other is shown in its place.
        shown = f"{name}.png".replace(DARK_PICTURE, LIGHT_PICTURE)
        assert f"/readme/{shown})" in text
