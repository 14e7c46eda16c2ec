"""The settings as a form."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QAbstractButton, QCheckBox, QDialog, QDialogButtonBox, QLabel, QLineEdit
from pytestqt.qtbot import QtBot

from gpudash.system.settings import Settings
from gpudash.ui.features.edit import EMPTY, TITLES, Preferences
from gpudash.ui.features.run import AttachDialog
from tests.ui.conftest import OpenWindow
from tests.ui.fake_session import FakeSession


class Kept:
    """Takes what the dialog wants to keep."""

    def __init__(self, answer: bool = True) -> None:
        self.settings: list[Settings] = []
        self.answer = answer

    def __call__(self, settings: Settings) -> bool:
        self.settings.append(settings)
        return self.answer


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def dialog(qtbot: QtBot, kept: Kept) -> Preferences:
    made = Preferences(Settings(rate_hz=10.0), kept)
    qtbot.addWidget(made)
    made.show()
    return made


def type_into(dialog: Preferences, name: str, text: str) -> None:
    control = dialog.control(name)
    assert isinstance(control, QLineEdit)
    control.setText(text)


def save(dialog: Preferences) -> None:
    dialog.findChild(QDialogButtonBox).button(QDialogButtonBox.StandardButton.Save).click()


def test_every_setting_has_a_title_and_a_control_that_explains_it(dialog: Preferences) -> None:
    assert set(TITLES) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert str(field.description) in dialog.control(name).toolTip()


def test_an_empty_setting_says_what_that_means(dialog: Preferences) -> None:
    for name, words in EMPTY.items():
        control = dialog.control(name)
        assert isinstance(control, QLineEdit) and control.text() == "" and control.placeholderText() == words
        assert control.fontMetrics().horizontalAdvance(words) < control.width() - 16, "all of it is seen"


def test_an_untouched_form_holds_what_is_in_force(dialog: Preferences) -> None:
    assert dialog.settings() == Settings(rate_hz=10.0)


def test_shares_are_written_and_read_in_percent_as_everywhere_else(dialog: Preferences, kept: Kept) -> None:
    shown = {name: dialog.control(name) for name in ("warn_ratio", "critical_ratio", "hysteresis_ratio", "smoothing")}
    assert [control.text() for control in shown.values() if isinstance(control, QLineEdit)] == ["85", "95", "5", "0"]
    assert all("%" in [label.text() for label in control.findChildren(QLabel)] for control in shown.values())
    assert "0 to 50 %" in shown["hysteresis_ratio"].toolTip()
    type_into(dialog, "warn_ratio", "82.5")
    type_into(dialog, "critical_ratio", "97 %")
    save(dialog)
    assert kept.settings == [Settings(rate_hz=10.0, warn_ratio=0.825, critical_ratio=0.97)]


def test_saving_hands_over_what_was_changed_and_closes(dialog: Preferences, kept: Kept) -> None:
    type_into(dialog, "recordings_bytes", "512MiB")
    guard = dialog.control("guard")
    assert isinstance(guard, QCheckBox)
    guard.setChecked(False)
    save(dialog)
    assert kept.settings == [Settings(rate_hz=10.0, recordings_bytes=512 * 2**20, guard=False)]
    assert not dialog.isVisible()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("rate_hz", "1000", "Memory readings a second: 1000: at most 50"),
        ("warn_ratio", "99", "“Warn at” must lie below “Critical at”"),
        ("warn_ratio", "150", "Warn at: 150: below 100 %"),
        ("smoothing", "much", "Smoothing: 'much': give a number"),
    ],
)
def test_a_wrong_value_is_told_and_cannot_be_saved(
    dialog: Preferences, kept: Kept, name: str, text: str, words: str
) -> None:
    type_into(dialog, name, text)
    assert dialog.settings() is None
    assert words in dialog._problem.text()
    save(dialog)
    assert kept.settings == []
    assert dialog.isVisible()


def test_the_dialog_stays_open_when_the_settings_cannot_be_kept(dialog: Preferences, kept: Kept) -> None:
    kept.answer = False
    save(dialog)
    assert dialog.isVisible()


def test_restoring_the_defaults_waits_for_saving(dialog: Preferences, kept: Kept) -> None:
    dialog.restore_defaults()
    assert kept.settings == []
    assert dialog.settings() == Settings()


def test_nothing_is_written_before_it_is_saved(dialog: Preferences, home: Path) -> None:
    type_into(dialog, "rate_hz", "5")
    dialog.reject()
    assert not (home / "settings.toml").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [("somewhere:high", "is not an address to serve on"), ("0.0.0.0:9500", "can be reached from other machines")],
)
def test_an_address_that_cannot_be_served_at_is_told_before_it_is_kept(
    dialog: Preferences, kept: Kept, address: str, words: str
) -> None:
    type_into(dialog, "serve", address)
    assert words in dialog._problem.text()
    save(dialog)
    assert kept.settings == []
    type_into(dialog, "serve", ":9500")
    assert dialog.settings() == Settings(rate_hz=10.0, serve=":9500")


def test_the_look_that_was_chosen_in_the_menu_is_in_the_form_and_stays_when_something_else_is_saved(
    open_window: OpenWindow,
) -> None:
    window = open_window(FakeSession())
    window.menus.actions["view.theme.dark"].trigger()
    for theme in ("light", "dark"):
        window.menus.actions[f"view.theme.{theme}"].trigger()
        window.menus.actions["edit.preferences"].trigger()
        [dialog] = [dialog for dialog in window.findChildren(Preferences) if dialog.isVisible()]
        settings = dialog.settings()
        assert settings is not None and settings.theme == theme
        save(dialog)
        assert window.workspace.theme == theme


def test_the_buttons_of_a_dialog_have_words_and_no_pictures(open_window: OpenWindow) -> None:
    window = open_window(FakeSession())
    for command, kind in (("edit.preferences", Preferences), ("run.attach", AttachDialog), ("help.keys", QDialog)):
        window.menus.actions[command].trigger()
        shown = [dialog for dialog in window.findChildren(kind) if dialog.isVisible()]
        assert shown and all(button.icon().isNull() for dialog in shown for button in buttons_of(dialog))
        for dialog in shown:
            dialog.close()


def buttons_of(dialog: QDialog) -> list[QAbstractButton]:
    found = dialog.findChild(QDialogButtonBox)
    assert found is not None
    return found.buttons()
