"""What the window shows while the demo plays, and what it showed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtWidgets import QScrollArea, QWidget

from gpudash.session.demo.scenes import Place
from gpudash.specs import Spec
from gpudash.ui.dashboard import Dashboard

TABLES: dict[Place, str] = {"stages": "Stages", "result": "Result"}
"""Place → title of its tab."""


class Showing:
    """Puts what is played into the dashboard's panel and opens the table that is spoken of; `restore` takes it back.

    Args:
        dashboard: the live one.
        presenting: whether presentation mode hides the tables; they are shown while they are spoken of.
    """

    def __init__(self, dashboard: Dashboard, presenting: Callable[[], bool] = lambda: False) -> None:
        self._dashboard = dashboard
        self._presenting = presenting
        panel, tabs = dashboard.panel, dashboard.tabs
        self._workload = panel.workload.currentIndex()
        self._device = panel.device_name
        self._fields: dict[str, dict[str, Any]] = {}
        self._tab, self._collapsed = tabs.bar.currentIndex(), tabs.collapsed
        self._played: tuple[Spec, str] | None = None

    def play(self, spec: Spec, device: str) -> None:
        """Show ``spec`` in the panel, and the device it runs on in the plots."""
        panel = self._dashboard.panel
        row = panel.workload.findData(spec.name)
        if row < 0 or self._played == (spec, device):
            return
        self._played = spec, device
        panel.workload.setCurrentIndex(row)
        before = panel.spec()
        if spec.name not in self._fields and before is not None:
            self._fields[spec.name] = before.model_dump()
        panel.take_device(device)
        panel.change_fields(spec.model_dump())

    def look_at(self, place: Place) -> QWidget | None:
        """Open what ``place`` names, and return it; ``None`` where it is not there."""
        dashboard = self._dashboard
        if place == "explanation":
            if not dashboard.explanation.open:
                dashboard.explanation.show_newest()
            return dashboard.explanation.page if dashboard.explanation.open else None
        if dashboard.explanation.open:
            dashboard.explanation.close_page()
        self._reveal_tables(place in TABLES)
        if place in TABLES:
            self._open_table(TABLES[place])
            return dashboard.tabs
        if dashboard.tabs.collapsed != self._collapsed:
            dashboard.toggle_tables()  # where there is little room the plots have it
        plot = dashboard.cards if place == "cards" else dashboard.plots.plot(place)
        if plot is not None:
            _scroll_to(plot)
        return plot

    def _reveal_tables(self, wanted: bool) -> None:
        tabs = self._dashboard.tabs
        if self._presenting() and tabs.isHidden() == wanted:
            tabs.setVisible(wanted)
            self._dashboard.rebalance()
            half = self._dashboard.splitter.height() // 2
            self._dashboard.splitter.setSizes([half, half])  # what is spoken of has room

    def _open_table(self, title: str) -> None:
        tabs = self._dashboard.tabs
        row = next((row for row in range(tabs.bar.count()) if tabs.bar.tabText(row) == title), None)
        if row is None:
            return
        tabs.bar.setCurrentIndex(row)
        if tabs.collapsed:
            self._dashboard.toggle_tables()

    def restore(self) -> None:
        """Show what was shown before."""
        panel, tabs = self._dashboard.panel, self._dashboard.tabs
        if self._dashboard.explanation.open:
            self._dashboard.explanation.close_page()
        for workload, fields in self._fields.items():
            panel.workload.setCurrentIndex(panel.workload.findData(workload))
            panel.change_fields(fields)
        panel.workload.setCurrentIndex(self._workload)
        if self._played is not None:
            panel.take_device(self._device)
        self._reveal_tables(False)
        tabs.bar.setCurrentIndex(self._tab)
        if tabs.collapsed != self._collapsed:
            self._dashboard.toggle_tables()


def _scroll_to(target: QWidget) -> None:
    """Bring ``target`` into sight where it lies in something that scrolls."""
    holder = target.parentWidget()
    while holder is not None and not isinstance(holder, QScrollArea):
        holder = holder.parentWidget()
    if holder is not None and target.visibleRegion().boundingRect().height() < target.height():
        holder.ensureWidgetVisible(target, 0, 0)
