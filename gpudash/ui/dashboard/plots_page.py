"""The plots of one source on one time axis: the core of a dashboard, and the whole of a GPU's history."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QVBoxLayout, QWidget

from gpudash.session.source import PlotSource
from gpudash.telemetry.plots import PlotSpec, reaches_to_capacity
from gpudash.ui.colours import Palette
from gpudash.ui.dashboard.status_line import StatusLine
from gpudash.ui.plots.menu import PlotMenu
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView

SLOW_REFRESH = 4
"""Figures beside the plots are refreshed once in this many frames: nobody reads figures at 15 Hz."""


class PlotsPage(QWidget):
    """Plots with a status line for messages about them; commands on plots act on it. Subclasses lay out the parts.

    Args:
        session: session to show; it is not closed here.
        palette: colours at the start.

    Attributes:
        live: whether the session accepts commands; a recording does not.
        palette_: current colours.
        rows: from top to bottom; whoever shows the page may insert rows.

    Signals:
        refreshed: figures and text were updated.
    """

    refreshed = Signal()

    def __init__(self, session: PlotSource, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.session = session
        self.palette_ = palette
        self.live = session.live is not None
        self.view = TimeView(session.settings.window_s, self)
        self.view.live = self.live
        self.plots = PlotStack(session.store, self.view, palette)
        self.plots.caption = self.captions
        self._plot_menu = PlotMenu(self.plots)
        self.plots.set_smoothing(session.settings.smoothing)
        self.status_line = StatusLine()
        self.rows = QVBoxLayout()
        self.rows.setContentsMargins(12, 4, 12, 0)
        self.rows.setSpacing(6)
        self.layout_key: object = None
        self._shown_topic: str | None = None
        self._to_capacity = False
        self._frame = 0
        self.plots.reported.connect(self.status_line.report)
        self.plots.failed.connect(self.status_line.report)

    @property
    @abstractmethod
    def selected(self) -> str:
        """The device shown: "host", or a GPU's UUID."""

    @abstractmethod
    def wanted_plots(self) -> Sequence[PlotSpec]:
        """The plots that the session calls for now."""

    @abstractmethod
    def captions(self) -> tuple[str, str]:
        """The caption of a picture of the plots: a title, and the device."""

    def refresh(self, *, front: bool = True) -> None:
        """Process what is new and draw it.

        Args:
            front: whether the page is visible; otherwise nothing is drawn.
        """
        with self.session.store.lock:
            newest = self.session.store.newest_s
        self.view.set_now(newest)
        if self._frame % SLOW_REFRESH == 0:
            self.refresh_figures()
        self._choose_plots()
        if front:
            self._draw()
        self._frame += 1

    def refresh_figures(self) -> None:
        """Update figures and text."""
        self.refreshed.emit()

    def memory_to_capacity(self) -> bool:
        """Whether the memory axis reaches to the capacity. The caller holds the store's lock."""
        self._to_capacity = reaches_to_capacity(self.session.store, self.selected, self._to_capacity)
        return self._to_capacity

    @property
    def topic(self) -> str | None:
        """The workload for which the chosen plots and their heights are remembered; ``None`` for none."""
        return None

    def _choose_plots(self) -> None:
        specs, topic = self.wanted_plots(), self.topic
        if specs != self.layout_key or topic != self._shown_topic:
            self.layout_key, self._shown_topic = specs, topic
            self.plots.set_plots(specs, topic)

    def _draw(self) -> None:
        self.plots.refresh()

    def set_palette(self, palette: Palette) -> None:
        """Redraw in other colours."""
        self.palette_ = palette
        self.plots.set_palette(palette)

    def dismiss(self) -> None:
        """Esc: close what covers the plots; if nothing does, clear the selection and close its statistics."""
        self.plots.dismiss()

    def copy_values(self) -> None:
        """Copy the selection of the plots."""
        QGuiApplication.clipboard().setText(self.plots.selection_text())

    def copy_picture(self) -> None:
        """Copy a picture of the plots."""
        QGuiApplication.clipboard().setImage(self.plots.picture())

    def reset_layout(self) -> None:
        """Reset plots and curves to their defaults."""
        self.plots.reset_layout()
