"""The menu of a right click in a plot, and which of the plots that there are the user wants to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QFileDialog, QMenu, QWidget

from gpudash.telemetry.plots import PlotSpec
from gpudash.ui.widgets.file_name import completed
from gpudash.ui.widgets.plain_text import without_mnemonics
from gpudash.ui.widgets.remembered import recall_of, remember_of

if TYPE_CHECKING:
    from gpudash.ui.plots.plot import TimePlot
    from gpudash.ui.plots.stack import PlotStack


_CHOSEN = "plots"


class PlotChoice:
    """What was chosen by hand, by a plot's id; without a choice those are shown that are no extras.

    Args:
        show: called with `offered` when something was chosen.

    Attributes:
        offered: all plots there are now, shown or not.
    """

    def __init__(self, show: Callable[[Sequence[PlotSpec]], object]) -> None:
        self._show = show
        self.offered: Sequence[PlotSpec] = ()
        self._topic: str | None = None
        self._chosen: dict[str, bool] = {}

    def turn_to(self, topic: str | None) -> None:
        """Go by what was chosen for ``topic``, a workload, in this session or an earlier one.

        ``None`` remembers nothing and forgets nothing.
        """
        if topic is not None and topic != self._topic:
            kept = recall_of(_CHOSEN, topic)
            self._chosen = {name: shown for name, shown in kept.items() if isinstance(shown, bool)}
        self._topic = topic

    def of(self, specs: Sequence[PlotSpec]) -> list[PlotSpec]:
        """Those of ``specs`` that are wanted, which are at least one."""
        self.offered = specs
        return [spec for spec in specs if self.wanted(spec)] or list(specs[:1])

    def wanted(self, spec: PlotSpec) -> bool:
        """Whether a plot shall be shown."""
        return self._chosen.get(spec.id, not spec.extra)

    def choose(self, name: str, shown: bool) -> None:
        """Show the plot with this id from now on, whenever there is one, or do without it."""
        self._chosen[name] = shown
        self._keep()

    def begin_again(self) -> None:
        """Forget what was chosen."""
        self._chosen.clear()
        self._keep()

    def _keep(self) -> None:
        if self._topic is not None:
            remember_of(_CHOSEN, self._topic, dict(self._chosen))
        self._show(self.offered)

    def actions(self, menu: QMenu) -> list[QAction]:
        """One checkable action a plot, for ``menu``; the last plot that is shown cannot be left out."""
        shown = self.of(self.offered)
        found = []
        for spec in self.offered:
            action = QAction(spec.title.partition(" · ")[0].removesuffix(" (solid)"), menu)
            action.setCheckable(True)
            action.setChecked(spec in shown)
            action.setEnabled(shown != [spec])
            action.toggled.connect(partial(self.choose, spec.id))
            found.append(action)
        return found


AskForPath = Callable[[QWidget, str, str, str], str]
"""Parent, title, proposed file name and filter to the chosen path, or "" when the user left."""


def ask_for_path(parent: QWidget, title: str, name: str, pattern: str) -> str:
    """The platform's own dialog for saving."""
    return QFileDialog.getSaveFileName(parent, title, name, pattern)[0]


class PlotMenu:
    """Builds the menu of a plot and does what its entries say."""

    def __init__(self, stack: PlotStack, ask: AskForPath = ask_for_path) -> None:
        self._stack = stack
        self._ask = ask

    def build(self, plot: TimePlot) -> QMenu:
        """The menu of ``plot`` as it is now."""
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
        """Open the menu at a global position; it goes when it closes."""
        menu = self.build(plot)
        menu.aboutToHide.connect(menu.deleteLater)
        menu.popup(position)

    def _copy_values(self, plot: TimePlot) -> None:
        text = self._stack.selection_text(plot)
        QGuiApplication.clipboard().setText(text)
        self._stack.told.emit(f"Copied {text.count(chr(10)) - 1} rows of values.")

    def _copy_picture(self, plot: TimePlot) -> None:
        QGuiApplication.clipboard().setImage(self._stack.picture(plot))
        self._stack.told.emit("Copied the graph as an image.")

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
            self._stack.told.emit(f"Saved the picture to {path}.")

    def _export_csv(self) -> None:
        path = self._wanted("Export range as CSV", ".csv", "CSV files (*.csv)")
        if path is None:
            return
        try:
            count = self._stack.save_csv(path)
        except OSError as error:
            self._stack.failed.emit(f"{path} could not be written ({error.strerror or error}); choose another folder.")
        else:
            self._stack.told.emit(f"Exported {count} rows to {path}.")

    def _wanted(self, title: str, suffix: str, pattern: str) -> Path | None:
        return completed(self._stack, title, self._ask(self._stack, title, f"gpudash{suffix}", pattern), suffix)
