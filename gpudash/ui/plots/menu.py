"""The context menu of a plot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QPoint
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QMenu, QWidget

from gpudash.ui.plots.plot import TimePlot
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.widgets.file_dialog import FileDialog, completed
from gpudash.ui.widgets.plain_text import without_mnemonics

AskForPath = Callable[[QWidget, str, str, str], str]
"""Takes a parent, a title, a proposed file name and a filter; returns the chosen path, or "" if cancelled."""


class PlotMenu:
    """Builds the context menu of a plot of ``stack`` and runs its actions.

    Args:
        stack: the plots.
        ask: asks for the path of a file.
    """

    def __init__(self, stack: PlotStack, ask: AskForPath = FileDialog.ask_to_save) -> None:
        self._stack = stack
        self._ask = ask
        stack.menu_requested.connect(self.open)

    def build(self, plot: TimePlot) -> QMenu:
        """The menu for the current state of ``plot``."""
        stack, menu = self._stack, QMenu(self._stack)
        menu.addAction("Copy values", partial(self._copy_values, plot))
        menu.addAction("Copy graph as image", partial(self._copy_picture, plot))
        menu.addAction("Save picture as PNG…", partial(self._save_picture, plot, "PNG"))
        menu.addAction("Save picture as SVG…", partial(self._save_picture, plot, "SVG"))
        menu.addAction("Export range as CSV…", self._export_csv)
        menu.addSeparator()
        if stack.view.selection is not None:
            menu.addAction("Zoom to selection", stack.view.zoom_to_selection)
            menu.addAction("Clear selection", stack.view.clear_selection)
        menu.addAction("Fit axis to the data", partial(stack.fit, plot))
        if plot.spec.may_log:
            menu.addAction("Linear axis" if plot.log else "Logarithmic axis", partial(stack.toggle_log_of, plot))
        menu.addSeparator()
        for curve in plot.visible_curves:
            menu.addAction(without_mnemonics(f"Hide {curve.name}"), partial(plot.legend.toggle, curve.name))
        if plot.hidden:
            menu.addAction("Show all curves", plot.legend.show_all)
        plots = menu.addMenu("Plots")
        plots.addActions(stack.choice.actions(plots))
        return menu

    def open(self, plot: TimePlot, position: QPoint) -> None:
        """Open the menu at a global position. It is deleted when it closes."""
        menu = self.build(plot)
        menu.aboutToHide.connect(menu.deleteLater)
        menu.popup(position)

    def _copy_values(self, plot: TimePlot) -> None:
        text = self._stack.selection_text(plot)
        QGuiApplication.clipboard().setText(text)
        self._stack.reported.emit(f"Copied {text.count(chr(10)) - 1} rows of values.")

    def _copy_picture(self, plot: TimePlot) -> None:
        QGuiApplication.clipboard().setImage(self._stack.picture(plot))
        self._stack.reported.emit("Copied the graph as an image.")

    def _save_picture(self, plot: TimePlot, kind: Literal["PNG", "SVG"]) -> None:
        suffix = f".{kind.lower()}"
        path = self._wanted(f"Save picture as {kind}", suffix, f"{kind} images (*{suffix})")
        if path is None:
            return
        try:
            self._stack.save_picture(path, plot)
        except OSError as error:
            self._stack.failed.emit(f"{error}; choose another folder.")
        else:
            self._stack.reported.emit(f"Saved the picture to {path}.")

    def _export_csv(self) -> None:
        path = self._wanted("Export range as CSV", ".csv", "CSV files (*.csv)")
        if path is None:
            return
        try:
            count = self._stack.save_csv(path)
        except OSError as error:
            self._stack.failed.emit(f"{path} could not be written ({error.strerror or error}); choose another folder.")
        else:
            self._stack.reported.emit(f"Exported {count} rows to {path}.")

    def _wanted(self, title: str, suffix: str, pattern: str) -> Path | None:
        return completed(self._stack, title, self._ask(self._stack, title, f"gpudash{suffix}", pattern), suffix)
