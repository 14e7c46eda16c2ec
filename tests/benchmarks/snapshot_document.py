"""The snapshot document over a million events: how long the slowest act of each kind keeps the window waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from PySide6.QtWidgets import QApplication

from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.ui.app import application
from gpudash.ui.snapshot.document import SnapshotDocument
from gpudash.ui.snapshot.page import SnapshotPage
from gpudash.ui.widgets.theme import apply_theme
from tests.benchmarks.generated_snapshot import generated

PATIENCE_S = 60.0

TURNS = 4
"""Moments that are picked with each view in front."""


def measure() -> dict[str, float]:
    """Milliseconds of the slowest selection, zoom and filter, and of the slowest refresh while the file is opened."""
    app = application()
    document = SnapshotDocument(OpenedSnapshot(generated()), apply_theme(app, "dark"))
    document.resize(1280, 800)
    document.show()
    began = time.perf_counter()
    opening = 0.0
    try:
        while not document.ready and time.perf_counter() - began < PATIENCE_S:
            opening = max(opening, _timed(document.refresh))
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        page = document.page
        return {
            "page_s": seconds,
            "opening_ms": opening,
            "selection_ms": max(_selections(page)),
            "zoom_ms": max(_zooms(page)),
            "filter_ms": max(_filters(page)),
        }
    finally:
        document.close_document()
        document.close()


def _timed(act: Callable[[], object]) -> float:
    """Milliseconds until an act is done and drawn."""
    began = time.perf_counter()
    act()
    QApplication.processEvents()
    return (time.perf_counter() - began) * 1e3


def _selections(page: SnapshotPage) -> Iterable[float]:
    """A moment, two moments and a category, with each view in front."""
    assert page.study is not None
    count = page.study.history.count
    for view in (page.who, page.treemap, page.icicle, page.blocks, page.events):
        page.tabs.setCurrentWidget(view)
        QApplication.processEvents()
        for turn in range(TURNS):
            moment = (turn + 1) * count // (TURNS + 2)
            yield _timed(lambda moment=moment: page.selector.change(moment=moment, compared=None))
            yield _timed(lambda moment=moment: page.selector.change(moment=moment, compared=moment // 2))
        yield _timed(lambda: page.selector.change(category="activations"))
        yield _timed(page.selector.clear)


def _zooms(page: SnapshotPage) -> Iterable[float]:
    timeline = page.timeline
    for by_time in (True, False):
        timeline.set_by_time(by_time)
        for _turn in range(12):
            yield _timed(lambda: timeline.zoom(0.5))
        yield _timed(timeline.show_all)


def _filters(page: SnapshotPage) -> Iterable[float]:
    page.tabs.setCurrentWidget(page.events)
    for text in ("forward", "linear", ""):
        yield _timed(lambda text=text: page.events.text.setText(text))
    page.tabs.setCurrentWidget(page.who)
    for text in ("forward", "model", ""):
        yield _timed(lambda text=text: page.chips.search.setText(text))
