"""Whether the form still asks for what it asked for when something began or ended."""

from __future__ import annotations

from dataclasses import replace

from gpudash.ui.forms.workload_panel import WorkloadPanel


class FormChanges:
    """The form, compared with how it was. A changed device alone is no change: finding a card does not start anything.

    Attributes:
        wants_another: whether the form asks for another run than the one that ended last.
    """

    def __init__(self, panel: WorkloadPanel) -> None:
        self._panel = panel
        self.wants_another = False
        self._of_program = ("", "")
        self._of_ended: object = None
        self._of_first_screen: object = None

    def take_start(self) -> None:
        """A run begins."""
        self._of_ended = None
        self.wants_another = False

    def take_program(self) -> None:
        """A program begins that the form asked for."""
        self._of_program = self._program()

    def take_end(self) -> None:
        """A run has ended."""
        self._of_ended = self._values()

    def take_first_screen(self) -> None:
        """The first screen comes."""
        self._of_first_screen = self._values()

    @property
    def has_other_program(self) -> bool:
        """Whether the form asks for another program than the one that began last."""
        return self._program() != self._of_program

    @property
    def has_left_first_screen(self) -> bool:
        """Whether something has been filled in since the first screen came."""
        return self._values() != self._of_first_screen

    def leaves_ended_run(self) -> bool:
        """Whether the form asks for another run than the one that ended, for the first time since it ended."""
        if self._of_ended is None or self._values() == self._of_ended:
            return False
        self._of_ended = None
        self.wants_another = True
        return True

    def _values(self) -> object:
        if self._panel.watching:
            return replace(self._panel.script.script(), simulate="", as_cuda=False)
        values = self._panel.form.values()
        values.pop("devices", None)
        return self._panel.workload.currentData(), values

    def _program(self) -> tuple[str, str]:
        """The workload, and the script if that is the user's own."""
        return str(self._panel.workload.currentData()), self._panel.script.script().file
