"""``gpudash lesson``: a lesson on the stage or, without a display, in the terminal; and the notebook of guesses."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpudash.cli.demo import Ask, print_scenes
from gpudash.cli.qt import is_seen, require_qt, why_unseen
from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.interruption import Interruption
from gpudash.cli.terminal.output import Exit, RequestError, leave, plain_table, print_notice, stdout

if TYPE_CHECKING:
    from gpudash.session.demo.scenes import SceneQuestion
    from gpudash.session.lessons.lessons import Lesson
    from gpudash.session.lessons.sheet import Sheet

POLL_S = 0.1
"""Seconds between checks whether a guess has been typed."""

MOST_TYPED = 4096
"""Maximum number of bytes read of a typed guess; more than a line of a terminal."""


def lesson(
    name: str | None = None,
    /,
    *,
    export: Path | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    simulated: SimulateOptions | None = None,
) -> int:
    """Learn what takes GPU memory: guess first, then see it, in full screen.

    Lessons: move, devices, precision, training, remedies, worth; without a name they are listed. Each has a few scenes
    and ends with lines of your own. No GPU is needed: the lines run on a simulated card, and figures say so. Without a
    display, a lesson runs in the terminal, where you type guesses; without a keyboard, it answers by itself. Guesses
    are kept, readable by you alone. Exit code: 0 if every scene finished, 1 if a run in a scene did not, 130 if
    interrupted.

    Parameters
    ----------
    name
        The lesson.
    Instead of playing, write a notebook (sheet.ipynb) with the guesses beside the results, and cells that run the same
        code; for the named lesson, else for all.
    force
        Replace the notebook if it exists.
    """
    from gpudash.session.lessons.lessons import find_lesson, lessons
    from gpudash.session.lessons.sheet import Sheet

    chosen = None
    if name is not None:
        try:
            chosen = find_lesson(name)
        except ValueError as error:
            raise RequestError(str(error)) from None
    sheet = Sheet()
    if sheet.problem:
        print_notice(sheet.problem)
    if export is not None:
        _export(export, lessons() if chosen is None else (chosen,), sheet, force)
        return Exit.FINISHED
    if force:
        raise RequestError("--force is for --export.", "Leave it out, or add --export sheet.ipynb.")
    if chosen is None:
        _list(sheet)
        return Exit.FINISHED
    simulated = simulated or SimulateOptions()
    if not is_seen():
        print_notice(f"{why_unseen()}, so the lesson is told in the terminal.")
        return _in_terminal(chosen, sheet, simulated)
    require_qt()
    from gpudash.ui.app import run_lesson

    return leave(*run_lesson(simulated.simulation(), chosen.name))


def _list(sheet: Sheet) -> None:
    from gpudash.session.lessons.lessons import lessons

    table = plain_table("Lesson", "Minutes", "What it shows", "Your guesses")
    for one in lessons():
        kept = sheet.of(one).values()
        right = sum(guess.right is True for guess in kept)
        guesses = f"{len(kept)}, {right} right" if kept else "–"
        end = "" if one.title.endswith("?") else "."
        table.add_row(one.name, str(one.minutes), f"{one.title}{end} {one.about}.", guesses)
    console = stdout()
    console.print(table)
    console.print()
    console.print("gpudash lesson move begins the first; gpudash lesson --export sheet.ipynb writes a notebook of all.")


def _export(out: Path, chosen: tuple[Lesson, ...], sheet: Sheet, force: bool) -> None:
    from gpudash.session.lessons.sheet_notebook import write_notebook
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        write_notebook(out, chosen, sheet, force=force)
    except RecordingError as error:
        raise RequestError(str(error)) from None
    print_notice(f"Wrote {out}")


def _in_terminal(chosen: Lesson, sheet: Sheet, simulated: SimulateOptions) -> int:
    from gpudash.session import Session
    from gpudash.session.demo.show import HELD, Show
    from gpudash.session.lessons.sheet import with_sheet
    from gpudash.system.settings import load_settings

    settings, _notices = load_settings()
    session = Session(settings, simulation=simulated.simulation())
    show = Show(
        session,
        simulate=bool(simulated.simulate),
        pace=HELD,
        scenes=with_sheet(chosen, sheet),
        on_guess=lambda scene, question, guess, answer: sheet.note(chosen, scene, question, guess, answer),
    )
    ask: Ask | None = None
    if sys.stdin is not None and sys.stdin.isatty():
        ask = typed_guess
    return print_scenes(session, show, ask=ask)


def typed_guess(question: SceneQuestion, interruption: Interruption, go_on: Callable[[], None]) -> float | None:
    """Ask until the answer is a valid guess; ``None`` for an empty line, at the end of input, and when interrupted."""
    for number, choice in enumerate(question.choices, 1):
        stdout().print(f"   {number}  {choice}")
    unit = f" ({question.unit})" if question.unit else ""
    while True:
        sys.stdout.write(f"   Your guess{unit}, or Enter to see the answer: ")
        sys.stdout.flush()
        line = _typed_line(interruption, go_on)
        if not line.strip():
            if not line:
                sys.stdout.write("\n")
            return None
        try:
            return question.read(line)
        except ValueError as error:
            print_notice(str(error))


def _typed_line(interruption: Interruption, go_on: Callable[[], None]) -> str:
    """A typed line, including its newline; "" at the end of input, or when interrupted."""
    # Not input(): the first Ctrl+C is only a request to stop, and input() would keep waiting.
    while not interruption.requested:
        go_on()
        ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if ready:
            return os.read(sys.stdin.fileno(), MOST_TYPED).decode("utf-8", "replace")
    return ""
