"""A user looks at machines over ssh in the real window: the overview, one of them live, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from gpudash.cli.recordings.open import open_address
from gpudash.session.addresses import parse_address
from gpudash.ui.fleet.compare_document import FleetComparison
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.login import LoginDialog
from gpudash.ui.fleet.machine_document import MachineDocument
from tests.end_to_end.player import Player, Steps

MACHINES = "MACHINES"
"""Environment variable: addresses that ``gpudash open`` is given, with spaces between them."""

READINGS = 40
"""Readings of the GPU that are waited for."""

ANSWERS = "MACHINES_ANSWERS"
"""Environment variable: what is typed where ssh asks, with line ends between answers; an empty one is Cancel."""


def open_machines() -> int:
    """Open the window as ``gpudash open ssh://a ssh://b`` does."""
    return open_address(*map(parse_address, os.environ[MACHINES].split()))


def overview_in_front(player: Player) -> Generator[Callable[[], bool], None, FleetDocument]:
    """Give the window its size, and wait for the overview."""
    window = player.window
    window.resize(*map(int, os.environ.get("MACHINES_SIZE", "1280 800").split()))
    yield lambda: isinstance(window.workspace.front, FleetDocument)
    overview = window.workspace.front
    assert isinstance(overview, FleetDocument)
    return overview


def machines(player: Player) -> Steps:
    """Wait for every GPU, open the machine of the fullest one, and tell what was seen."""
    workspace, seen = player.window.workspace, player.seen
    overview = yield from overview_in_front(player)
    expected = int(os.environ["MACHINES_GPUS"])
    yield lambda: len([gpu for gpu in overview.fleet.gpus() if not gpu.stale]) == expected
    overview.sort_now()  # it rests for a while after the first that came
    yield lambda: list(overview.grid.layout_.keys) == [gpu.key for gpu in overview.fleet.gpus()]
    seen["gpus"] = [(gpu.host, gpu.uuid, gpu.product, gpu.is_host) for gpu in overview.fleet.gpus()]
    seen["words"] = [overview.header.total.text(), overview.detail.text()]
    yield from player.pictures("overview")
    overview.open(overview.grid.layout_.keys[0])
    yield lambda: isinstance(workspace.front, MachineDocument) and workspace.front.dashboard is not None
    document = workspace.front
    assert isinstance(document, MachineDocument)
    page, replay = document.dashboard, document.replay
    assert page is not None and replay is not None

    def read() -> int:
        with replay.store.lock:
            series = replay.store.series("gpu", "used_bytes", page.selected)
            return 0 if series is None else len(series)

    yield lambda: read() >= READINGS
    yield lambda: bool(page.banner.accessibleName())
    seen["selected"], seen["head"] = page.selected, document.head.accessibleName()
    seen["banner"], seen["panel"] = page.banner.accessibleName(), page.panel.isVisible()
    seen["notices"] = replay.notices
    yield from player.pictures("machine")
    workspace.show_path(os.environ[MACHINES])
    first, second = overview.grid.layout_.keys[:2]
    overview.grid.make_current(first)
    overview.grid.toggle(second)
    overview.controls.compare.click()
    yield lambda: isinstance(workspace.front, FleetComparison) and len(workspace.front.plots) > 0
    compared = workspace.front
    assert isinstance(compared, FleetComparison)
    seen["compared"] = (compared.title, [metric.title for metric in compared.plots])
    yield from player.pictures("compared")


def login(player: Player) -> Steps:
    """Answer what ssh asks, press Reconnect where that leads to nothing, and tell what was seen."""
    window, seen = player.window, player.seen
    overview = yield from overview_in_front(player)
    seen["asked"], seen["problems"] = [], []

    def dialogs() -> list[LoginDialog]:
        return window.findChildren(LoginDialog)

    for number, answer in enumerate(os.environ[ANSWERS].split("\n")):
        yield lambda: bool(dialogs()) or overview.reconnect.isVisible()
        if overview.reconnect.isVisible():
            seen["problems"].append(overview.label.text())
            yield from player.pictures("refused")
            overview.reconnect.setFocus()
            QTest.keyClick(overview.reconnect, Qt.Key.Key_Space)
            yield lambda: bool(dialogs())
        [dialog] = dialogs()
        seen["asked"].append((dialog.windowTitle(), dialog.label.text(), dialog.again.isVisible()))
        yield player.frames(8)
        dialog.grab().save(str(player.folder / f"dialog-{number}.png"))
        if answer:
            QTest.keyClicks(dialog.field, answer)
            QTest.keyClick(dialog.field, Qt.Key.Key_Return)
        else:
            QTest.keyClick(dialog.field, Qt.Key.Key_Escape)
        question = dialog.question
        yield lambda question=question: all(other.question is not question for other in dialogs())
    yield lambda: bool(overview.fleet.gpus()) and not overview.fleet.gpus()[0].stale
    yield from player.pictures("linked")
    seen["reconnect"] = overview.reconnect.isVisible() or overview.controls.reconnect.isVisible()
