"""``gpudash demo``: the demo, in the window or, without a display, in the terminal."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from gpudash.cli.qt import has_display, require_qt
from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.output import RequestError, leave, print_notice
from gpudash.cli.terminal.scenes import print_scenes


def demo(
    *,
    scene: Annotated[int | None, Parameter(name=["--scene", "-s"])] = None,
    auto: bool = False,
    simulated: SimulateOptions | None = None,
) -> int:
    """Show what tensors do to memory, scene by scene, on the whole screen.

    Scenes: 1 move a tensor; 2 what can go wrong; 3 copy once, or every step; 4 train on the CPU, then on the GPU; 5 run
    out of memory, and fix it; 6 three precisions; 7 the ladder of remedies; 8 my three lines, which are yours to
    change. Lines of code run on a simulated card; without a GPU so do the trainings, and of its speed nothing is said.
    Without a display the scenes are told in the terminal. Exit code: 0 when every scene came to its end, 1 when a run
    of one did not, 130 when it was interrupted.

    Parameters
    ----------
    scene
        Play this scene alone; left out, all of them.
    auto
        Go on without being requested, and close at the end.
    """
    from gpudash.session.demo.demo_scenes import SCENES

    if scene is not None and not 1 <= scene <= len(SCENES):
        raise RequestError(f"There is no scene {scene}.", f"There are scenes 1 to {len(SCENES)}.")
    simulated = simulated or SimulateOptions()
    simulation = simulated.simulation()
    if not has_display():
        print_notice("There is no display, so the demo runs in the terminal.")
        return _in_terminal(scene, simulated)
    require_qt()
    from gpudash.ui.app import run_demo

    return leave(*run_demo(simulation, scene, auto=auto))


def _in_terminal(scene: int | None, simulated: SimulateOptions) -> int:
    from gpudash.session import Session
    from gpudash.session.demo.demo_scenes import SCENES
    from gpudash.session.demo.show import HELD, Show
    from gpudash.system.settings import load_settings

    settings, _notices = load_settings()
    session = Session(settings, simulation=simulated.simulation())
    scenes = SCENES if scene is None else SCENES[scene - 1 : scene]
    show = Show(session, guesses=False, simulate=bool(simulated.simulate), pace=HELD, scenes=scenes)
    return print_scenes(session, show, first=scene or 1)
