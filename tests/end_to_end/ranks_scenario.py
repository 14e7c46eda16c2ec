"""Two ranks in the real window: chosen in the form, run by torchrun, and shown while they train."""

from __future__ import annotations

from tests.end_to_end.player import Player, Steps

SMALL = {"model": "mlp", "width": 64, "depth": 2, "batch": 16, "epochs": 1}


def ranks(player: Player) -> Steps:
    """Train with two ranks on the CPU, the second one slowed down; both themes are pictured."""
    window, session, tabs = player.window, player.session, player.window.workspace.dashboard.tabs
    window.resize(1440, 960)
    yield lambda: session.torch_ready
    window.workspace.dashboard.panel.change_fields({**SMALL, "devices": "cpu,cpu", "slow_rank": 1.0, "steps": 400})
    player.seen["device"] = window.workspace.dashboard.panel.device_name
    window.menus.actions["run.start"].trigger()
    yield lambda: session.running
    yield (
        lambda: (
            "2 ranks" in window.workspace.dashboard.panel.progress.label.text()
            and window.workspace.dashboard.plots.plot("rank_share") is not None
        )
    )
    player.seen["progress"] = window.workspace.dashboard.panel.progress.label.text()
    assert tabs.ranks is not None
    tabs.bar.setCurrentIndex([tabs.bar.tabText(place) for place in range(tabs.bar.count())].index("Ranks"))
    yield lambda: tabs.ranks is not None and len(tabs.ranks.model.rows) == 2
    yield player.run_ended
    with session.store.lock:
        assert session.store.run is not None
        player.seen["summary"] = session.store.run.summary()
    yield player.frames(8)
    player.seen["plots"] = [plot.spec.id for plot in window.workspace.dashboard.plots.plots]
    player.seen["curves"] = {plot.spec.id: sorted(plot.points.raw) for plot in window.workspace.dashboard.plots.plots}
    player.seen["states"] = [row.state for row in tabs.ranks.model.rows]
    player.seen["remarks"] = [row.remark for row in tabs.ranks.model.rows]
    player.seen["sentence"] = tabs.ranks.label.text()
    player.seen["banner"] = window.workspace.dashboard.banner.accessibleName()
    window.workspace.dashboard.plots.cover(covered=False)
    window.workspace.dashboard.plots.show_all()
    yield from player.pictures()
