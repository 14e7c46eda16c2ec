"""The style sheet of the window, generated from a palette.

Widgets select a style with the property ``role``: card, panel, banner, title, muted, figure, figure-good, figure-bad,
figure-small, good-small, bad-small, headline, verdict, code, error, badge, chip, primary, danger. A banner's
background depends on its property ``level`` (note, forecast, warning, critical, passed).
"""

from __future__ import annotations

import dataclasses
import re
from string import Template

from PySide6.QtGui import QFontDatabase

from gpudash.system.files import resource
from gpudash.ui.colours import Palette
from gpudash.ui.widgets.text_size import text_scale

SMALLEST_CODE_PT = 8
"""Font size of code in points, if the system's fixed font is smaller or sized in pixels."""

_SHEET = Template(
    """
QMainWindow, QDialog, QWidget[role="footer"] { background: $window; }
QWidget { color: $text; }
QToolTip { background: $panel; color: $text; border: 1px solid $border; padding: 4px 6px; }

QFrame[role="card"], QFrame[role="panel"] { background: $panel; border: 1px solid $border; border-radius: 6px; }
QFrame[role="card"]:hover { border-color: $muted; }
QFrame[role="card"][selected="true"] { border-color: $accent; }
QFrame[role="card"]:focus { border: 2px solid $accent; }

QFrame[role="banner"] { border: 1px solid $warn; border-radius: 6px; background: $banner_warn; }
QFrame[role="banner"][level="note"], QFrame[role="banner"][level="passed"] {
    border-color: $accent; background: $banner_note; }
QFrame[role="banner"][level="critical"] { border-color: $critical; background: $banner_critical; }
QFrame[role="banner"] QPushButton { background: transparent; border-color: $warn; }
QFrame[role="banner"][level="note"] QPushButton, QFrame[role="banner"][level="passed"] QPushButton {
    border-color: $accent; }
QFrame[role="banner"][level="critical"] QPushButton { border-color: $critical; }
QFrame[role="banner"] QPushButton:hover { background: $button_hover; }

QLabel { background: transparent; }
QLabel[role="title"] { color: $muted; font-weight: bold; font-size: 8pt; }
QLabel[role="muted"] { color: $muted; }
QLabel[role="legend"] { color: $muted; font-size: 8pt; }
QFrame[role="rule"] { background: $border; }
QLabel[role="figure"], QLabel[role="figure-good"], QLabel[role="figure-bad"] { font-size: 15pt; font-weight: bold; }
QLabel[role="figure-good"] { color: $good; }
QLabel[role="figure-bad"] { color: $critical; }
QWidget[role="remedy"] { border-left: 2px solid transparent; }
QWidget[role="remedy"]:hover { background: $button; border-left-color: $accent; }
QLabel[role="headline"] { font-size: 13pt; font-weight: bold; }
QLabel[role="verdict"] { font-size: 20pt; font-weight: bold; }
QLabel[role="figure-small"] { font-weight: bold; }
QLabel[role="good-small"] { color: $good; font-weight: bold; }
QLabel[role="bad-small"] { color: $critical; font-weight: bold; }
QLabel[role="error"] { color: $critical; }
QLabel[role="group"] { color: $muted; font-weight: bold; padding-top: 4px; }
QLabel[role="good"] { color: $good; }
QLabel[role="warn"] { color: $warn; }
QLabel[role="badge"] { color: $warn; border: 1px solid $warn; border-radius: 4px; padding: 0px 5px;
    font-weight: bold; font-size: 8pt; }

QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QPushButton { background: $button; border: 1px solid $border; border-radius: 5px; padding: 5px 12px; }
QPushButton:hover { background: $button_hover; border-color: $muted; }
QPushButton:pressed { background: $border; }
QPushButton:focus { border: 2px solid $accent; padding: 4px 11px; }
QPushButton:disabled { color: $muted; background: $panel; border-color: $border; }
QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QPushButton[role="primary"] { background: $accent; color: $on_accent; border-color: $accent; font-weight: bold; }
QPushButton[role="primary"]:hover { border-color: $text; }
QPushButton[role="primary"]:focus { border: 2px solid $text; }
QPushButton[role="primary"]:disabled { background: $button; color: $muted; border-color: $border; }
QPushButton[role="danger"] { color: $critical; border-color: $critical; background: $panel; font-weight: bold; }
QPushButton[role="danger"]:hover { background: $banner_critical; }
QPushButton[role="danger"]:focus { border: 2px solid $critical; }
QPushButton[role="chip"], QToolButton[role="chip"] {
    background: $button; border: 1px solid $border; border-radius: 12px; padding: 0px 10px;
    min-height: 22px; font-size: 8pt; }
QPushButton[role="chip"]:hover, QToolButton[role="chip"]:hover { border-color: $accent; }
QPushButton[role="chip"]:checked { background: $accent; color: $on_accent; }
QPushButton[role="chip"]:checked:focus { border-color: $text; }
QPushButton[role="chip"]:focus, QToolButton[role="chip"]:focus { border: 2px solid $accent; padding: 0px 9px; }
QToolButton { background: transparent; border: 1px solid transparent; border-radius: 4px; padding: 3px 6px 2px 6px; }
QToolButton:hover { background: $button_hover; }
QToolButton:focus { border-color: $accent; }
QToolButton:checked { background: $button; }
QToolButton[role="browse"] { background: $button; border-color: $border; padding: 3px 7px 2px 7px; min-height: 17px; }
QToolButton[role="browse"]:hover { background: $button_hover; border-color: $muted; }
QToolButton[role="browse"]:focus { border-color: $accent; }
QToolButton[role="browse"]:disabled { color: $muted; background: $panel; }
QToolButton[role="fold"] { color: $text; padding: 1px 2px; text-align: left; min-height: 22px; }
QToolButton[role="fold"]:checked { background: transparent; }
QToolButton[role="fold"]:disabled { color: $muted; }
QToolButton[role="legend"] { color: $muted; min-height: 16px; padding: 3px 2px; margin: 0px; border-radius: 3px;
    font-size: 8pt; }
QToolButton[role="legend"][popupMode="2"] { padding-right: 14px; }
QToolButton[role="legend"]:checked { background: transparent; }
QToolButton[role="legend"]:hover { background: $button_hover; }
QToolButton[role="only"] { color: $accent; padding: 0px; margin: 0px; border: 0px; font-size: 7pt; }
QGraphicsView { background: transparent; border: 0px; }

QLineEdit, QPlainTextEdit, QTextEdit, QAbstractSpinBox, QComboBox {
    background: $field; border: 1px solid $border; border-radius: 4px; padding: 3px 6px;
    selection-background-color: $accent; selection-color: $on_accent; }
QLineEdit:hover, QAbstractSpinBox:hover, QComboBox:hover { border-color: $muted; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QAbstractSpinBox:focus, QComboBox:focus {
    border: 2px solid $accent; padding: 2px 5px; }
QLineEdit[role="value"] { padding: 3px 4px; }
QLineEdit[role="value"]:focus { padding: 2px 3px; }
QLineEdit[invalid="true"], QAbstractSpinBox[invalid="true"], QComboBox[invalid="true"] { border-color: $critical; }
QLineEdit:disabled, QAbstractSpinBox:disabled, QComboBox:disabled { color: $muted; background: $panel; }
QComboBox { combobox-popup: 0; padding-right: 3px; }
QComboBox:focus { padding-right: 2px; }
QComboBox[role="narrow"] { padding: 3px 1px 3px 5px; }
QComboBox[role="narrow"]:focus { padding: 2px 0px 2px 4px; }
QDateTimeEdit::drop-down { border: 0px; width: 20px; }
QComboBox::drop-down { border: 0px; width: 16px; }
QComboBox[role="narrow"]::drop-down { width: 14px; }
QComboBox::down-arrow, QDateTimeEdit::down-arrow { image: url("$arrow"); width: 12px; height: 12px; }
QComboBox QLineEdit, QAbstractSpinBox QLineEdit { border: 0px; padding: 0px; background: transparent; }
QComboBox QLineEdit:focus, QAbstractSpinBox QLineEdit:focus { border: 0px; padding: 0px; }
QPlainTextEdit[role="code"], QLabel[role="code"] { font-family: "$fixed"; font-size: ${fixed_size}pt; }
QLabel[role="code"] { color: $muted; }
QPlainTextEdit:disabled { color: $muted; background: $panel; }
QPlainTextEdit[invalid="true"] { border-color: $critical; }
QComboBox QAbstractItemView { background: $panel; border: 1px solid $border; outline: 0;
    selection-background-color: $accent; selection-color: $on_accent; }
QComboBox QAbstractItemView::item { min-height: 20px; padding: 0px 6px; }
QCheckBox, QRadioButton { background: transparent; spacing: 6px; border: 1px solid transparent; border-radius: 3px;
    padding: 3px 4px 3px 0px; }
QCheckBox::indicator,
QTableView::indicator { width: 14px; height: 14px; background: $field; border: 1px solid $muted; border-radius: 3px; }
QCheckBox::indicator:hover,
QTableView::indicator:hover { border-color: $accent; }
QCheckBox::indicator:checked,
QTableView::indicator:checked { background: $accent; border-color: $accent; image: url("$check"); }
QCheckBox::indicator:disabled { border-color: $border; background: $panel; }
QCheckBox::indicator:checked:disabled { background: $muted; border-color: $muted; }
QCheckBox:focus, QRadioButton:focus { border-color: $accent; }
QCheckBox:disabled, QRadioButton:disabled { color: $muted; }
QSlider { background: transparent; }
QSlider::groove:horizontal { height: 4px; background: $border; border-radius: 2px; }
QSlider::sub-page:horizontal { height: 4px; background: $accent; border-radius: 2px; }
QSlider::handle:horizontal { width: 12px; height: 12px; margin: -4px 0px; border-radius: 6px; background: $accent; }
QSlider:focus { border: 1px solid $accent; border-radius: 3px; }

QTabWidget::pane { border: 1px solid $border; border-radius: 4px; top: -1px; }
QTabBar { background: transparent; }
QTabBar::tab { background: transparent; color: $muted; padding: 5px 12px; border-bottom: 2px solid transparent; }
QTabBar::tab:selected { color: $text; border-bottom-color: $accent; }
QTabBar::tab:bottom { border-bottom: 0px; border-top: 2px solid transparent; }
QTabBar::tab:bottom:selected { border-top-color: $accent; }
QTabBar::tab:hover { color: $text; }
QTabBar::tab:focus { color: $text; background: $button; }

QTableView, QTreeView, QListView, QTableWidget {
    background: $panel; alternate-background-color: $window; border: 1px solid $panel;
    gridline-color: $grid; outline: 0;
    selection-background-color: $button_hover; selection-color: $text; }
QTableView:focus, QTreeView:focus, QListView:focus { border: 1px solid $accent; }
QTableView::item, QTreeView::item { padding: 1px 6px; }
QListView::item { padding: 3px 6px; }
QHeaderView { background: $panel; }
QHeaderView::section { background: $panel; color: $muted; border: 0px; border-bottom: 1px solid $border;
    padding: 3px 6px 3px 9px; }
QTableCornerButton::section { background: $panel; border: 0px; }

QMenuBar { background: $window; }
QMenuBar::item { background: transparent; padding: 4px 9px; }
QMenuBar::item:selected { background: $button_hover; }
QMenu { background: $panel; border: 1px solid $border; padding: 4px 0px; }
QMenu::item { padding: 5px 26px 5px 22px; background: transparent; }
QMenu::item:selected { background: $accent; color: $on_accent; }
QMenu::item:disabled { color: $muted; background: transparent; }
QMenu::separator { height: 1px; background: $border; margin: 4px 8px; }
QStatusBar { background: $window; color: $muted; }
QStatusBar::item { border: 0px; }
QStatusBar QLabel { color: $muted; }

QScrollArea { background: transparent; border: 0px; }
QScrollArea > QWidget > QWidget[role="scrolled"] { background: transparent; }
QWidget[role="kept"] { background: $panel; }
QScrollBar:vertical { background: transparent; width: 10px; margin: 0px; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0px; }
QScrollBar::handle { background: $border; border-radius: 4px; min-height: 24px; min-width: 24px; margin: 1px; }
QScrollBar::handle:hover { background: $muted; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0px; height: 0px; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QProgressBar { background: $field; border: 1px solid $border; border-radius: 4px; min-height: 6px; max-height: 8px; }
QProgressBar::chunk { background: $accent; border-radius: 3px; }
QSplitter::handle { background: transparent; }
QSplitter::handle:hover { background: $border; }
"""
)


_POINTS = re.compile(r"(\d+)pt\b")


def style_sheet(palette: Palette) -> str:
    """The style sheet for ``palette`` at the current text size."""
    colours = {f.name: getattr(palette, f.name) for f in dataclasses.fields(palette)}
    pictures = {"arrow": "arrow-down", "check": "check-dark" if palette.dark else "check-light"}
    paths = {name: resource("icons", f"{picture}.svg").as_posix() for name, picture in pictures.items()}
    fixed = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    fonts = {"fixed": fixed.family().replace('"', ""), "fixed_size": f"{max(fixed.pointSize(), SMALLEST_CODE_PT)}"}
    return _POINTS.sub(_scaled, _SHEET.substitute(colours, **paths, **fonts))


def _scaled(size: re.Match[str]) -> str:
    return f"{float(size[1]) * text_scale():g}pt"
