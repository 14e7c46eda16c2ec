"""A user looks at machines over ssh in the real window: the overview, one of them live, and back."""

from __future__ import annotations

import os
from pathlib import Path

from gpudash.cli.open import open_file
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.machine_document import MachineDocument
from tests.end_to_end.player import Player, Steps

MACHINES = "MACHINES"
"""Environment variable: addresses that ``gpudash open`` is given, with spaces between them."""

READINGS = 40
"""Readings of the GPU that are waited for."""


def open_machines() -> int:
    """Open the window as ``gpudash open ssh://a ssh://b`` does."""
    return open_file(*map(Path, os.environ[MACHINES].split()))


def machines(player: Player) -> Steps:
    """Wait for every GPU, open the machine of the fullest one, and tell what was seen."""
    window, seen = player.window, player.seen
    window.resize(*map(int, os.environ.get("MACHINES_SIZE", "1280 800").split()))
    workspace = window.workspace
    yield lambda: isinstance(workspace.front, FleetDocument)
    overview = workspace.front
    assert isinstance(overview, FleetDocument)
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
