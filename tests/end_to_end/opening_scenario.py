"""A hand on the real window's tabs and statistics: what opens moves nothing that is under the pointer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QPoint, QRect
from PySide6.QtWidgets import QApplication, QWidget

from tests.end_to_end.hand import hand, laid_out
from tests.end_to_end.player import Player, Steps

if TYPE_CHECKING:
    from gpudash.ui.dashboard.dashboard import Dashboard

SIZES = ((1280, 800), (1920, 1080), (2500, 1400))
"""Widths and heights of the window, the last as large as the screen has room for beside the frame."""


def opening(player: Player) -> Steps:
    """After a run, at each size: every tab, the statistics, a range that is dragged, and Esc."""
    window, dashboard = player.window, player.window.workspace.dashboard
    dashboard.panel.workload.setCurrentIndex(dashboard.panel.workload.findData("pipeline"))
    yield lambda: player.session.torch_ready
    window.menus.actions["run.start"].trigger()
    yield player.run_ended
    dashboard.plots.cover(covered=False)
    yield window.isActiveWindow
    player.seen.update(tabs=[], ranges=0, moved=[], hidden=[])
    for width, height in SIZES:
        window.move(0, 0)
        window.resize(width, height)
        yield lambda width=width, height=height: (window.width(), window.height()) == (width, height)
        yield laid_out()
        size = f"{width}×{height}"
        yield from _open_tabs(player, dashboard, size)
        yield from _open_statistics(player, dashboard, size)
        yield from _measure(player, dashboard, size)


def _open_tabs(player: Player, dashboard: Dashboard, size: str) -> Steps:
    tabs, bar = dashboard.tabs, dashboard.tabs.bar
    for position in range(bar.count()):
        pointer = bar.mapToGlobal(bar.tabRect(position).center())
        yield from hand(pointer, [])
        stood = _under(pointer)
        was_shut = tabs.collapsed
        closes = position == bar.currentIndex() and not was_shut
        yield from hand(pointer, ["click", "1"])
        yield lambda closes=closes, position=position: (bar.currentIndex(), tabs.collapsed) == (position, closes)
        yield laid_out()
        name = f"{bar.tabText(position)} at {size}"
        _compare(player, dashboard, name, stood, pointer)
        if bar.tabAt(bar.mapFromGlobal(pointer)) != position:
            player.seen["moved"].append(f"{name}: another tab is under the pointer")
        player.seen["tabs"].append(name)


def _open_statistics(player: Player, dashboard: Dashboard, size: str) -> Steps:
    strip = dashboard.plots.strip
    for opened in (True, False):
        pointer = strip._fold.mapToGlobal(strip._fold.rect().center())
        yield from hand(pointer, [])
        stood = _under(pointer)
        yield from hand(pointer, ["click", "1"])
        yield lambda opened=opened: strip.open is opened
        yield laid_out()
        _compare(player, dashboard, f"statistics {'opened' if opened else 'closed'} at {size}", stood, pointer)


def _measure(player: Player, dashboard: Dashboard, size: str) -> Steps:
    """Drag a range in the last plot, which opens its statistics; Esc clears both."""
    canvas, view = dashboard.plots.plots[-1].canvas, dashboard.view
    area = canvas.area.toRect()
    begin = canvas.mapToGlobal(QPoint(area.left() + area.width() // 2, area.center().y()))
    end = canvas.mapToGlobal(QPoint(area.left() + area.width() * 3 // 4, area.center().y()))
    yield from hand(begin, ["mousedown", "1"])
    stood = _under(begin)
    yield from hand(end, ["mouseup", "1"])
    yield lambda: view.selection is not None and dashboard.plots.strip.card.isVisible()
    yield laid_out()
    _compare(player, dashboard, f"a range at {size}", stood, begin)
    player.seen["ranges"] += 1
    yield from hand(end, ["key", "Escape"])
    yield lambda: not dashboard.plots.strip.card.isVisible()
    yield from hand(end, ["key", "Escape"])
    yield lambda: view.selection is None
    yield laid_out()


def _under(pointer: QPoint) -> tuple[QWidget | None, QRect]:
    """What the pointer is on, and where that is on the screen."""
    widget = QApplication.widgetAt(pointer)
    return widget, QRect() if widget is None else QRect(widget.mapToGlobal(QPoint(0, 0)), widget.size())


def _compare(
    player: Player, dashboard: Dashboard, what: str, stood: tuple[QWidget | None, QRect], pointer: QPoint
) -> None:
    """Note what has moved under the pointer, and a time axis that is not wholly seen."""
    if stood[0] is None or _under(pointer) != stood:
        player.seen["moved"].append(what)
    axis = dashboard.plots.axis
    if not axis.isVisible() or axis.visibleRegion().boundingRect() != axis.rect():
        player.seen["hidden"].append(what)
