"""``gpudash demo``: the scripted tour, in the window or, without a display, in the terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from gpudash.cli.qt import has_display, require_qt
from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.output import Exit, RequestError, leave, print_notice, stdout
from gpudash.system.processes import TORCH_IMPORT_S

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.demo import Tour

TICK_S = 0.05
"""How often the terminal's tour looks whether it can go on."""


def demo(
    *,
    scene: Annotated[int | None, Parameter(name=["--scene", "-s"])] = None,
    auto: bool = False,
    simulated: SimulateOptions | None = None,
) -> int:
    """Show what tensors do to memory, scene by scene, each run for real.

    Scenes: 1 move a tensor; 2 what can go wrong; 3 copy once, or every step; 4 train on the CPU, then on the GPU; 5 run
    out of memory, and fix it. Without a GPU a simulated one takes its place and is marked SIMULATED; of its speed
    nothing is said. Without a display the scenes are told in the terminal. Exit code: 0 when every scene came to its
    end, 1 when a run of one did not, 130 when it was interrupted.

    Parameters
    ----------
    scene
        Play this scene alone; left out, all of them.
    auto
        Go on without being asked, and close at the end.
    """
    from gpudash.session.demo import SCENES

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
    from gpudash.session.demo import SCENES, Tour
    from gpudash.session.demo.tour import TourPace
    from gpudash.system.settings import load_settings

    settings, _notices = load_settings()
    session = Session(settings, simulation=simulated.simulation())
    scenes = SCENES if scene is None else SCENES[scene - 1 : scene]
    tour = Tour(
        session,
        auto=True,
        guesses=False,
        simulate=bool(simulated.simulate),
        pace=TourPace(ask=0.0, act=0.0, read=0.0, measured=0.0),
        scenes=scenes,
    )
    with interruptible("Stopping after this step…") as interruption:
        session.start()
        try:
            with suppress(KeyboardInterrupt):
                _wait_until_ready(session, interruption)
                _print_scenes(tour, interruption, 1 if scene is None else scene)
        finally:
            tour.leave()
            joined = session.close()
    if interruption.requested:
        return leave(Exit.INTERRUPTED, joined)
    return leave(Exit.FAILED if tour.failures else Exit.FINISHED, joined)


def _wait_until_ready(session: Session, interruption: Interruption) -> None:
    session.load_torch()
    deadline = time.monotonic() + TORCH_IMPORT_S
    while not session.wait_ready(0.1):
        if interruption.requested or time.monotonic() > deadline:
            raise KeyboardInterrupt


def _print_scenes(tour: Tour, interruption: Interruption, first: int) -> None:
    """Play every scene and print what it says as it says it."""
    console = stdout()
    tour.start()
    shown, act, lines = -1, None, 0
    while tour.state != "ended" and not interruption.requested:
        if tour.position != shown:
            shown, act, lines = tour.position, None, 0
            console.print()
            console.print(f"{first + shown}  {tour.said(tour.scene.title)}", style="bold")
            console.print(_indented(tour.said(tour.scene.read), 3))
        state, position = tour.state, tour.position
        tour.tick(time.monotonic())
        if tour.position == position and tour.act is not act and tour.act is not None:
            act = tour.act
            console.print(_indented(f"· {tour.act_text}", 3))
        for line in tour.log[lines:] if tour.position == position else ():
            console.print(_indented(line, 5))
            lines += 1
        if tour.state == "told" and state != "told" and tour.measured is not None:
            console.print(_indented(f"→ {tour.measured.sentence}", 3))
        time.sleep(TICK_S)


def _indented(text: str, columns: int) -> Padding:
    """``text`` as it stands, every line of it moved in."""
    return Padding(Text(text), (0, 0, 0, columns))
