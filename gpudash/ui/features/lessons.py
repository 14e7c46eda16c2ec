"""Help > Lessons: each lesson on the stage, and the sheet of guesses as a notebook."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpudash.session.lessons.lesson_list import listed_lessons
from gpudash.ui.widgets.file_dialog import FileDialog, completed
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.ui.stage import StageWindow

MENU = "Help/Lessons"

SAVE = "Save the Sheet"


def commands(workspace: Workspace) -> list[Command]:
    """A command for each lesson and one for the sheet; none for a recording, where nothing can run."""
    if not workspace.live:
        return []
    found = [
        Command(
            MENU,
            lesson.title,
            f"{lesson.about}: {lesson.minutes} minutes",
            partial(play_lesson, workspace, lesson.name),
            id=f"help.lesson.{lesson.name}",
            after="help.demo",
            keywords="lesson learn teach",
        )
        for lesson in listed_lessons()
    ]
    save = Command(
        MENU,
        f"{SAVE}…",
        "Save your guesses beside the results as a Jupyter notebook",
        partial(save_sheet, workspace),
        id="help.lessons.sheet",
        after="help.demo",
        separated=True,
    )
    return [*found, save]


def play_lesson(workspace: Workspace, name: str, *, simulate: bool = False) -> StageWindow:
    """Start a lesson by name, or switch to what is on the stage already.

    Raises:
        ValueError: there is no such lesson; the message is one sentence.
    """
    from gpudash.session.lessons.lessons import find_lesson
    from gpudash.session.lessons.sheet import Sheet, with_sheet
    from gpudash.ui.stage import StageWindow

    stage = workspace.window().findChild(StageWindow)
    if stage is not None and not stage.is_over:
        stage.activateWindow()
        return stage
    lesson = find_lesson(name)
    sheet = Sheet()
    stage = StageWindow(
        workspace,
        simulate=simulate,
        scenes=with_sheet(lesson, sheet),
        name=lesson.title,
        on_guess=lambda scene, question, guess, answer: sheet.note(lesson, scene, question, guess, answer),
    )
    stage.begin()
    return stage


def save_sheet(workspace: Workspace) -> None:
    """Choose a file and write the notebook of all lessons to it."""
    chosen = FileDialog.ask_to_save(workspace, SAVE, "sheet.ipynb", "Notebooks (*.ipynb)")
    out = completed(workspace, SAVE, chosen, ".ipynb")
    if out is not None:
        write_sheet(workspace, out)


def write_sheet(workspace: Workspace, out: Path) -> None:
    """Write the notebook, replacing an existing file, and report the outcome."""
    from gpudash.session.lessons.lessons import lessons
    from gpudash.session.lessons.sheet import Sheet
    from gpudash.session.lessons.sheet_notebook import write_notebook
    from gpudash.telemetry.recording.recorder import RecordingError

    sheet = Sheet()
    try:
        write_notebook(out, lessons(), sheet, force=True)
    except RecordingError as error:
        workspace.notice.report(str(error))
    else:
        workspace.notice.report(sheet.problem or f"Wrote {out}", "note")
