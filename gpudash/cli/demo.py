"""``gpudash demo``: the demo in the window or, without a display, in the terminal; and printing scenes there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from gpudash.cli.qt import has_display, is_seen, require_qt, why_unseen
from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.output import Exit, RequestError, leave, print_notice, stdout
from gpudash.system.processes import TORCH_IMPORT_S

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.demo.pictures import CodeLine, StagePicture
    from gpudash.session.demo.scenes import SceneQuestion
    from gpudash.session.demo.show import Show

TICK_S = 0.1
"""Seconds between checks whether a scene can go on."""

Ask = Callable[["SceneQuestion", Interruption, Callable[[], None]], float | None]
"""Asks for a guess, and meanwhile calls the function that advances the scene. ``None``: no guess."""


def demo(
    *,
    scene: Annotated[int | None, Parameter(name=["--scene", "-s"])] = None,
    auto: bool = False,
    simulated: SimulateOptions | None = None,
) -> int:
    """Show what tensors do to memory, scene by scene, in full screen.

    Scenes: 1 move a tensor; 2 what can go wrong; 3 copy once, or every step; 4 train on the CPU, then on the GPU; 5
    run out of memory, and fix it; 6 three precisions; 7 the ladder of remedies; 8 my three lines, which are yours to
    change. Lines of code and the ladder have simulated cards of their own sizes; --simulate is for the trainings.
    Without a GPU those are simulated too, and nothing is said about speed. Without a display, the scenes are printed in
    the terminal. Exit code: 0 if every scene finished, 1 if a run in a scene did not, 130 if interrupted.

    Parameters
    ----------
    scene
        Play only this scene; default: all.
    auto
        Advance without waiting for you, and close at the end.
    """
    from gpudash.session.demo.demo_scenes import SCENES

    if scene is not None and not 1 <= scene <= len(SCENES):
        raise RequestError(f"There is no scene {scene}.", f"There are scenes 1 to {len(SCENES)}.")
    simulated = simulated or SimulateOptions()
    simulation = simulated.simulation()
    # With --auto it finishes even if nobody can see it.
    if not (is_seen() or (auto and has_display())):
        print_notice(f"{why_unseen()}, so the demo runs in the terminal.")
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


def print_scenes(session: Session, show: Show, *, first: int = 1, ask: Ask | None = None) -> int:
    """Play all scenes and print the code and the explanation of each step.

    Args:
        session: not yet started; closed at the end.
        show: show whose scenes wait to be advanced.
        first: number of the first scene.
        ask: asks for a guess; without it, questions are answered at once.

    Returns:
        The exit code.
    """
    with interruptible("Stopping after this step…") as interruption:
        session.start()
        try:
            with suppress(KeyboardInterrupt):
                show.warm_up()
                if show.runs_workloads:
                    _wait_until_ready(session, interruption)
                show.start()
                while not show.ended and not interruption.requested:
                    _print_scene(show, interruption, first + show.position, ask)
                    show.next_scene()
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


def _print_scene(show: Show, interruption: Interruption, number: int, ask: Ask | None) -> None:
    console = stdout()
    console.print()
    console.print(f"{number}  {show.picture.title}", style="bold")
    console.print(_indented(show.picture.question, 3))
    question = show.question
    if question is not None:
        for line in show.picture.code:
            console.print(_indented(f"{line.number:>2}  {line.text}", 6))
        console.print(_indented(question.text, 3), style="bold")
        guess = None
        if ask is not None:
            guess = ask(question, interruption, lambda: show.tick(time.monotonic()))
        show.take_guess(guess)
    steps = _Steps()
    while not show.complete and not interruption.requested:
        show.tick(time.monotonic())
        steps.print(show.pictures, complete=show.complete)
        if not show.complete:
            time.sleep(TICK_S)
    steps.print(show.pictures, complete=show.complete)
    if show.complete and show.verdict:
        console.print(_indented(show.verdict, 3), style="bold")


class _Steps:
    """Prints the steps of a scene as they become known, each once."""

    def __init__(self) -> None:
        self._printed = 0
        self._sentence = ""
        self._source: tuple[str, ...] = ()
        self._reached = 0
        self._now: int | None = None

    def print(self, pictures: Sequence[StagePicture], *, complete: bool) -> None:
        """Print new steps. In an incomplete scene, the last step is the current one and may still change."""
        known = len(pictures) if complete else len(pictures) - 1
        for picture in pictures[self._printed : known]:
            self._step(picture)
        self._printed = max(self._printed, known)
        if not complete and pictures:
            self._step(replace(pictures[-1], remark=""))  # how far a run has come would be a line a step

    def _step(self, picture: StagePicture) -> None:
        console = stdout()
        self._code(picture.code)
        remark = f"  ({picture.remark})" if picture.remark else ""
        sentence = f"{picture.sentence}{remark}"
        if sentence != self._sentence:
            console.print(_indented(sentence, 8))
        self._sentence = sentence
        for row in picture.rows:
            console.print(_indented(f"{row.question}: {row.guess or 'no guess'}; came: {row.came or '–'}", 8))

    def _code(self, lines: Sequence[CodeLine]) -> None:
        """Print the current line, and those before it that had no step of their own."""
        source = tuple(line.text for line in lines)
        if source != self._source:
            self._source, self._reached, self._now = source, 0, None
        now = next((place for place, line in enumerate(lines) if line.state in ("now", "wrong")), None)
        for place, line in enumerate(lines):
            again = place == now and now != self._now
            if (place >= self._reached and line.state != "coming") or again:
                stdout().print(_indented(f"{line.number:>2}  {line.text}", 3))
                self._reached = max(self._reached, place + 1)
        self._now = now


def _indented(text: str, columns: int) -> Padding:
    """``text`` with every line indented."""
    return Padding(Text(text), (0, 0, 0, columns))
