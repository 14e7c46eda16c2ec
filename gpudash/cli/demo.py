"""``gpudash demo``: the demo, in the window or, without a display, in the terminal."""

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
    from gpudash.session.demo import Show

TICK_S = 0.05
"""How often the terminal's demo looks whether it can go on."""


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
    from gpudash.session.demo import SCENES, Show, ShowPace
    from gpudash.system.settings import load_settings

    settings, _notices = load_settings()
    session = Session(settings, simulation=simulated.simulation())
    scenes = SCENES if scene is None else SCENES[scene - 1 : scene]
    show = Show(
        session,
        auto=True,
        guesses=False,
        simulate=bool(simulated.simulate),
        pace=ShowPace(step=0.0, wrong=0.0, end=0.0),
        scenes=scenes,
    )
    with interruptible("Stopping after this step…") as interruption:
        session.start()
        try:
            with suppress(KeyboardInterrupt):
                _wait_until_ready(session, interruption)
                _print_scenes(show, interruption, 1 if scene is None else scene)
        finally:
            show.leave()
            joined = session.close()
    if interruption.requested:
        return leave(Exit.INTERRUPTED, joined)
    return leave(Exit.FAILED if show.failures else Exit.FINISHED, joined)


def _wait_until_ready(session: Session, interruption: Interruption) -> None:
    session.load_torch()
    deadline = time.monotonic() + TORCH_IMPORT_S
    while not session.wait_ready(0.1):
        if interruption.requested or time.monotonic() > deadline:
            raise KeyboardInterrupt


def _print_scenes(show: Show, interruption: Interruption, first: int) -> None:
    """Play every scene and print the code of each step and what is said of it."""
    console = stdout()
    show.start()
    scene, code, sentence = -1, "", ""
    while not show.ended and not interruption.requested:
        picture = show.picture
        if show.position != scene:
            scene, code, sentence = show.position, "", ""
            console.print()
            console.print(f"{first + scene}  {picture.title}", style="bold")
            console.print(_indented(picture.question, 3))
        lines = [line for line in picture.code if line.state in ("now", "wrong")]
        now = f"{lines[0].number:>2}  {lines[0].text}" if lines else ""
        if now and now != code:
            console.print(_indented(now, 3))
        code = now
        remark = f"  ({picture.remark})" if picture.remark else ""
        text = f"{picture.sentence}{remark}"
        if text != sentence:
            console.print(_indented(text, 8))
        sentence = text
        show.tick(time.monotonic())
        if not show.follows:
            time.sleep(TICK_S)


def _indented(text: str, columns: int) -> Padding:
    """``text`` as it stands, every line of it moved in."""
    return Padding(Text(text), (0, 0, 0, columns))
