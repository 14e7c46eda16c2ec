"""What the guide's pictures show that no other scenario does: the sample report, and a fleet of generated machines."""

from __future__ import annotations

import os

from gpudash.session.recordings.samples import sample
from gpudash.ui.fleet.document import FleetDocument
from gpudash.ui.snapshot.document import SnapshotDocument
from tests.end_to_end.player import Player, Steps


def sample_report(player: Player) -> Steps:
    """Open the out-of-memory report among the samples."""
    window = player.window
    window.resize(1440, 960)
    window.workspace.open(sample("out-of-memory").path.with_suffix(""))
    yield lambda: isinstance(window.workspace.front, SnapshotDocument) and window.workspace.front.ready
    yield from player.pictures("snapshot")


def generated_fleet(player: Player) -> Steps:
    """Open the overview of every GPU of a server, of which there are ``FLEET_GPUS``."""
    window = player.window
    window.resize(1280, 800)
    yield lambda: isinstance(window.workspace.front, FleetDocument)
    overview = window.workspace.front
    assert isinstance(overview, FleetDocument)
    yield lambda: len(overview.grid.layout_.keys) == int(os.environ["FLEET_GPUS"])
    yield from player.pictures("fleet")
