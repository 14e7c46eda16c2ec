"""Comparisons in the real window: of two devices, with the verdict in the Result tab, and of two recorded runs."""

from __future__ import annotations

from gpudash.session.recordings.samples import sample
from gpudash.ui.features.recordings import open_comparison
from tests.end_to_end.player import Player, Steps


def comparison(player: Player) -> Steps:
    """Compare the CPU with itself; the verdict is pictured in both themes."""
    window, session = player.window, player.session
    window.resize(1440, 960)
    yield lambda: session.torch_ready
    window.workspace.dashboard.panel.workload.setCurrentIndex(
        window.workspace.dashboard.panel.workload.findData("comparison")
    )
    small = {"model": "mlp", "batch": 8}
    window.workspace.dashboard.panel.change_fields(
        {"devices": "cpu,cpu", "limit": 25.0, "half_width": 0.03, "fields": small}
    )
    window.menus.actions["run.start"].trigger()
    yield lambda: session.running
    yield player.run_ended
    yield lambda: window.workspace.dashboard.result.verdict.isVisible()
    player.seen["headline"] = window.workspace.dashboard.result.verdict.headline.text()
    yield from player.pictures()


def compared(player: Player) -> Steps:
    """Lay the two runs among the samples over one another; they are pictured in both themes."""
    window = player.window
    window.resize(1440, 960)
    yield lambda: player.session.torch_ready
    document = open_comparison(window.workspace, [sample(f"two-runs-{name}").path for name in ("fp32", "bf16")])
    assert document is not None
    yield lambda: bool(document.runs)
    player.seen["headline"] = document.headline.text()
    yield from player.pictures()
