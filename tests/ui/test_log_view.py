"""Help > Log: what has been logged, as plain text."""

from __future__ import annotations

import logging
import os

import pytest
from PySide6.QtGui import QColor, QDesktopServices, QGuiApplication, QPalette
from PySide6.QtWidgets import QPushButton

from gpudash.system.folders import log_file
from gpudash.system.log import start_log
from gpudash.ui.colours import Palette
from gpudash.ui.window.log_view import EMPTY, LogView
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import IN_BOTH_THEMES, settle

logger = logging.getLogger("gpudash.part")


@pytest.fixture
def view(window: MainWindow) -> LogView:
    """The log, in which there is a record that looks like HTML."""
    start_log(str(log_file()))
    logger.error("<b>bold</b> & <img src='/dev/zero'>")
    window.menus.actions["help.log"].trigger()
    settle(window)
    found = window.findChild(LogView)
    assert isinstance(found, LogView)
    return found


def press(view: LogView, title: str) -> None:
    (button,) = [button for button in view.findChildren(QPushButton) if button.text() == title]
    button.click()


def test_the_command_shows_the_log_as_it_is_and_logs_itself(view: LogView) -> None:
    assert view.isVisible() and view.text.isReadOnly()
    assert "ERROR gpudash.part: <b>bold</b> & <img src='/dev/zero'>" in view.text.toPlainText()
    assert view.text.toPlainText().endswith("INFO gpudash.ui.window.menus: command help.log")
    assert not view.problem.isVisible()


def test_what_is_logged_later_is_shown_after_a_refresh(view: LogView) -> None:
    logger.info("later")
    assert "later" not in view.text.toPlainText()
    press(view, "Refresh")
    assert view.text.toPlainText().endswith("later")
    assert view.text.textCursor().blockNumber() == view.text.blockCount() - 1


def test_all_of_it_can_be_copied(view: LogView) -> None:
    press(view, "Copy All")
    assert QGuiApplication.clipboard().text() == view.text.toPlainText()


def test_its_folder_can_be_shown(view: LogView, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toLocalFile()))
    press(view, "Show in Folder")
    assert opened == [str(log_file().parent)]


def test_a_log_that_cannot_be_read_is_one_sentence(view: LogView) -> None:
    log_file().unlink()
    os.mkfifo(log_file())
    press(view, "Refresh")
    assert view.problem.isVisible() and view.text.toPlainText() == ""
    assert view.problem.text() == "The log cannot be read: it is a FIFO, not a regular file."


def test_without_a_record_it_says_so(window: MainWindow) -> None:
    view = LogView(window)
    view.show()
    assert view.text.placeholderText() == EMPTY and view.text.toPlainText() == ""


@IN_BOTH_THEMES
def test_it_is_in_the_colours_of_the_theme(view: LogView, window: MainWindow, palette: Palette) -> None:
    window.set_palette(palette)
    settle(window)
    drawn = view.text.viewport().grab().toImage()
    shown = {drawn.pixelColor(x, drawn.height() - 2).name() for x in range(0, drawn.width(), 7)}
    assert shown == {view.text.palette().color(QPalette.ColorRole.Base).name()}
    assert (QColor(shown.pop()).lightness() < 128) == (QColor(palette.panel).lightness() < 128)
