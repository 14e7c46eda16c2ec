"""``gpudash demo`` with a display: the window with the demo in it."""

from __future__ import annotations

from PySide6.QtCore import QTimer

from gpudash.devices.names import Simulation
from gpudash.session.demo import SCENES
from gpudash.ui import app
from gpudash.ui.demo.demo import Demo
from gpudash.ui.window.workspace import Workspace


def show(simulation: Simulation | None, scene: int | None, *, auto: bool) -> tuple[int, bool]:
    """Open the window and play the demo.

    Args:
        simulation: GPUs to simulate.
        scene: number of the one scene that is played; ``None``: all.
        auto: go on without being asked, and close the window at the end.

    Returns:
        The exit code, and whether every thread could be joined.
    """
    demos: list[Demo] = []

    def begin(workspace: Workspace) -> None:
        demo = Demo(
            workspace,
            auto=auto,
            simulate=simulation is not None and bool(simulation.sizes),
            scenes=SCENES if scene is None else SCENES[scene - 1 : scene],
            first=scene or 1,
        )
        demos.append(demo)
        if auto:
            demo.over.connect(lambda: QTimer.singleShot(0, workspace, lambda: workspace.window().close()))
        demo.start()

    code, joined = app.run(simulation, begin=begin)
    failed = any(demo.tour.failures for demo in demos)
    return code or int(auto and failed), joined
