"""How the window looks: its theme, the size of its words, presentation mode."""

from __future__ import annotations

from functools import partial
from typing import get_args

from gpudash.settings import save_settings
from gpudash.ui.widgets.remembered import recall, remember
from gpudash.ui.widgets.text_size import SIZES, text_scale
from gpudash.ui.widgets.theme import Choice, restyle
from gpudash.ui.window.menus import Command
from gpudash.ui.window.presentation import Presentation
from gpudash.ui.window.workspace import Workspace

_TEXT_SIZE = "text_size"
"""What the window remembers the chosen size under."""


def commands(workspace: Workspace) -> list[Command]:
    """Draw words in the size that was chosen last; the commands of View that change the look."""
    presentation = Presentation(workspace)
    sizes = _TextSize(workspace)
    return [
        *(
            Command(
                "View/Theme",
                choice.capitalize(),
                f"Use the {choice} look",
                partial(_take_theme, workspace, choice),
                id=f"view.theme.{choice}",
                after="view.panel",
                checked=partial(_has_theme, workspace, choice),
                group="theme",
            )
            for choice in get_args(Choice)
        ),
        *(
            Command(
                "View/Text Size",
                _percent(size),
                f"Draw words at {_percent(size)} of the system's size",
                partial(sizes.take, size),
                id=f"view.text_size.{size:.0%}".removesuffix("%"),
                after="view.panel",
                checked=partial(sizes.has, size),
                group="text size",
            )
            for size in SIZES
        ),
        Command(
            "View",
            "Presentation Mode",
            "Large type and thick lines, with cards, warnings and plots alone; Esc leaves it",
            presentation.set_on,
            ("F10",),
            id="view.presentation",
            after="view.panel",
            checked=lambda: presentation.on,
        ),
    ]


def choose_theme(workspace: Workspace, choice: Choice) -> None:
    """Use the look ``choice`` from now on."""
    workspace.theme = choice
    workspace.theme_chosen.emit(choice)
    workspace.attempt(partial(save_settings, {"theme": choice}))
    workspace.changed.emit()


def _take_theme(workspace: Workspace, choice: Choice, chosen: bool) -> None:
    if chosen and choice != workspace.theme:
        choose_theme(workspace, choice)


def _has_theme(workspace: Workspace, choice: Choice) -> bool:
    return choice == workspace.theme


class _TextSize:
    """The size of the words; presentation mode, which has its own, comes back to it."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.chosen = text_scale()
        size = recall(_TEXT_SIZE)
        if size in SIZES:
            self.take(size, True)

    def has(self, size: float) -> bool:
        """Whether words are drawn ``size`` times as large as the system says."""
        return size == self.chosen

    def take(self, size: float, chosen: bool) -> None:
        """Draw words ``size`` times as large as the system says, from now on, where that was ``chosen``."""
        if chosen and size != self.chosen:
            self.chosen = size
            restyle(self._workspace.window(), self._workspace.colours, size)
            self._workspace.fit_panels()
            remember(_TEXT_SIZE, size)


def _percent(size: float) -> str:
    return f"{size:.0%}".replace("%", " %")
