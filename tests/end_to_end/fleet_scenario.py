"""A user looks at a fleet in the real window: the overview, one GPU's past, and back."""

from __future__ import annotations

import os

from gpudash.cli.recordings import open as opening
from gpudash.session.addresses import parse_address
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.fleet.gpu_document import GpuDocument
from tests.end_to_end.player import Player, Steps

ADDRESS = "FLEET_ADDRESS"
"""Environment variable: what ``gpudash open`` is given."""


def open_address() -> int:
    """Open the window as ``gpudash open prometheus:...`` does."""
    return opening.open_address(parse_address(os.environ[ADDRESS]))


def fleet(player: Player) -> Steps:
    """Wait for every GPU, open the fullest one's past, and tell what was seen."""
    window, seen = player.window, player.seen
    window.resize(1280, 800)
    documents = window.workspace
    yield lambda: isinstance(documents.front, FleetDocument)
    overview = documents.front
    assert isinstance(overview, FleetDocument)
    expected = int(os.environ["FLEET_GPUS"])
    yield lambda: len(overview.fleet.gpus()) == expected
    seen["gpus"] = [(gpu.uuid, gpu.product, gpu.total_bytes) for gpu in overview.fleet.gpus()]
    yield lambda: len(overview.grid.layout_.keys) == expected
    seen["first"] = overview.grid.layout_.keys[0]
    player.picture("overview")
    overview.open(overview.grid.layout_.keys[0])
    yield lambda: isinstance(documents.front, GpuDocument)
    past = documents.front
    assert isinstance(past, GpuDocument)
    yield lambda: past.view.fetched > 0 and not past.view.loading
    seen["notices"] = past.view.notices
    with past.view.store.lock:
        series = past.view.store.series("gpu", "used_bytes", past.view.gpus[0].uuid)
        seen["samples"] = 0 if series is None else len(series)
    player.picture("past")
