"""The best change of the program, what it saves, and buttons to run it, copy it, or edit the line."""

from __future__ import annotations

import shlex

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from gpudash.memory.explaining.explanation_text import caveat, reason, remedy_peak
from gpudash.memory.explaining.patches import line_changes
from gpudash.memory.explaining.whole_need import NUMBERLESS, RERUN, variables_of
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.telemetry.runs import RunView
from gpudash.ui.explanation.own_program import Offer
from gpudash.ui.widgets.labels import set_role, worded_button, wrapping_label
from gpudash.ui.widgets.layouts import in_column, in_row, scrolled
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip
from gpudash.ui.widgets.text_size import scaled
from gpudash.units import format_bytes, format_count

TRIED = {
    "replay": "By a replay of the run's requests; your files are unchanged.",
    "dry run": "By a dry run; your files are unchanged.",
    RERUN: "The whole program was run with it; your files are unchanged.",
    NUMBERLESS: "The program was run with it, without numbers; your files are unchanged.",
    "": "Not tried yet.",
}
"""How a change was verified, in words."""

ON_A_COPY = "Run on a copy; your files are unchanged."


class ChangePanel(QFrame):
    """What a change saves, its buttons, and why the program needs it.

    Signals:
        run_wanted: run the program with this `Remedy`.
        stop_wanted: stop that run.
        edit_wanted: open the current line in an editor.
    """

    run_wanted = Signal(object)
    stop_wanted = Signal()
    edit_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self._offer: Offer | None = None
        self._before = ""
        self._trial_on = False
        self.title = PlainLabel(role="title")
        self.figure = PlainLabel(role="figure")
        self.saved = wrapping_label("")
        self.tried = wrapping_label("muted")
        self.setting = wrapping_label("figure-small")
        self.run_button = QPushButton()
        self.run_button.setMinimumHeight(scaled(34))
        self.run_button.clicked.connect(self._press)
        self.why_not = wrapping_label("muted")
        self.copy_button = worded_button("Copy patch", "Copy the change as a unified diff", self._copy)
        self.edit_button = worded_button(
            "Open in editor",
            "Open the line in front with the editor named by VISUAL, else with the desktop's",
            self.edit_wanted.emit,
        )
        self.notice = wrapping_label("muted")
        self._rule = QFrame()
        self._rule.setProperty("role", "rule")
        self._rule.setFixedHeight(1)
        self.why_title = PlainLabel("WHY", role="title")
        self.why = wrapping_label("")
        self.caveat = wrapping_label("muted")
        buttons = in_row((self.copy_button, 1), (self.edit_button, 1), spacing=8)
        parts = (self.title, self.figure, self.saved, self.setting, self.tried, self.run_button, self.why_not)
        rest = (buttons, self.notice, self._rule, self.why_title, self.why, self.caveat, 1)
        contents = QWidget()
        contents.setProperty("role", "scrolled")
        in_column(*parts, *rest, parent=contents, margins=(14, 8, 14, 8), spacing=6)
        scroll = scrolled(contents)  # a low window cannot show all of it
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        in_column(scroll, parent=self, margins=(0, 0, 0, 0))
        self.setMinimumWidth(260)

    def show_offer(self, offer: Offer | None, found: Explanation) -> None:
        """Show a change for what ``found`` explains; without one, only what is known about the cause."""
        self._offer = offer
        self._before = found.peak_without_change
        self._trial_on = False
        self.say("")
        set_role(self.figure, "figure")
        self.title.setText(_title(offer))
        self._show_saving(offer)
        self._show_buttons()
        change = None if offer is None else offer.remedy
        for label, text in ((self.why, reason(found)), (self.caveat, caveat(found, change))):
            label.setText(text)
            label.setVisible(bool(text))
        has_reason = bool(self.why.full_text) and offer is not None
        self.why_title.setVisible(has_reason)
        self._rule.setVisible(has_reason)

    def show_trial(self, run: RunView, steps_before: int) -> None:
        """Show the result of a run with the change.

        Args:
            run: the run with the change.
            steps_before: steps made by the run without it.
        """
        if run.running and not self._trial_on:
            self.say("")
        self._trial_on = run.running
        peak = run.peak_reserved_bytes or 0
        self.figure.setText(format_bytes(peak) if peak else "")
        self.figure.setVisible(peak > 0)
        role, text = _trial_text(run, self._before, steps_before)
        set_role(self.figure, role)
        self.saved.setText(text)
        self.saved.show()
        self.tried.setText(self._tried_text())
        self._show_buttons()

    def say(self, sentence: str) -> None:
        """Show the result of a button; "" hides it."""
        self.notice.setText(sentence)
        self.notice.setVisible(bool(sentence))

    @property
    def sentence(self) -> str:
        """What the change saves, as a full sentence."""
        return f"{self.figure.text()} {self.saved.full_text}".strip()

    def set_startable(self, startable: bool) -> None:
        """Enable running the program, or disable it while another run is going on."""
        self.run_button.setEnabled(startable or self._trial_on)

    def _show_saving(self, offer: Offer | None) -> None:
        peak = ""
        if offer is not None:
            peak = remedy_peak(offer.remedy, failed=True)
        if peak:
            self.figure.setText(peak)
            self.saved.setText(f"{_instead(self._before)}.")
        elif offer is not None:
            self.saved.setText(offer.remedy.change)
        self.figure.setVisible(bool(peak))
        self.saved.setVisible(offer is not None)
        self.tried.setText("" if offer is None else TRIED.get(offer.remedy.verified_by, ""))
        self.tried.setVisible(bool(self.tried.full_text))
        if offer is None:
            setting = ""
        else:
            setting = setting_text(offer.remedy)
        self.setting.setText(setting)
        self.setting.setVisible(bool(setting))

    def _show_buttons(self) -> None:
        offer = self._offer
        self.run_button.setVisible(offer is not None and offer.runs and not offer.why_not)
        self.why_not.setText("" if offer is None else offer.why_not)
        self.why_not.setVisible(bool(self.why_not.full_text))
        self.copy_button.setVisible(offer is not None)
        if offer is None:
            return
        self.copy_button.setText("Copy patch" if offer.remedy.patch else "Copy setting")
        set_role(self.run_button, "danger" if self._trial_on else "primary")
        if self._trial_on:
            self.run_button.setText("Stop")
            self.run_button.setToolTip("Stop the run with the change")
            return
        self.run_button.setText(run_text(offer.remedy))
        tip = "Run the same command once more with it"
        if offer.remedy.patch:
            tip = "Run the same command once more, from a copy that has the change"
        self.run_button.setToolTip(plain_tip(tip))

    def _tried_text(self) -> str:
        if self._offer is None:
            return ""
        remedy = self._offer.remedy
        parts = []
        if remedy.patch:
            parts.append(ON_A_COPY)
        peak = remedy_peak(remedy, failed=True)
        if peak and remedy.verified_by:
            parts.append(f"Before, a {remedy.verified_by} said {peak}.")
        return " ".join(parts)

    def _press(self) -> None:
        if self._trial_on:
            self.stop_wanted.emit()
        elif self._offer is not None:
            self.run_wanted.emit(self._offer.remedy)

    def _copy(self) -> None:
        if self._offer is None:
            return
        remedy = self._offer.remedy
        QGuiApplication.clipboard().setText(remedy.patch or setting_text(remedy))
        if remedy.patch:
            self.say("Copied the change as a patch; apply it with patch -p0 in the program's folder.")
        else:
            self.say("Copied the setting.")


def run_text(remedy: Remedy) -> str:
    """Text of the button that runs the program with a remedy."""
    if remedy.patch:
        return "Run with this change"
    return "Run with this setting"


def setting_text(remedy: Remedy) -> str:
    """A remedy's settings for a shell: variables, and the command if it differs; "" for an edit."""
    text = [f"{name}={shlex.quote(value)}" for name, value in variables_of(remedy).items()]
    return " ".join([*text, *map(shlex.quote, remedy.command)])


def _title(offer: Offer | None) -> str:
    if offer is None:
        return "NO CHANGE OF THE PROGRAM IS KNOWN"
    if not offer.remedy.patch:
        return "THE CHANGE, A SETTING"
    lines = sum(max(len(change.removed), len(change.added)) for change in line_changes(offer.remedy.patch))
    if lines == 1:
        return "THE CHANGE, ONE LINE"
    return f"THE CHANGE, {format_count(lines)} LINES"


def _instead(before: str) -> str:
    """What a peak is compared with, as `Explanation.peak_without_change` has it."""
    return f"reserved at the peak, instead of {before}"


def _trial_text(run: RunView, before: str, steps_before: int) -> tuple[str, str]:
    """Role of the figure, and the text after it."""
    steps = f"{format_count(run.step)} step{'' if run.step == 1 else 's'}"
    if run.running and not run.peak_reserved_bytes:
        return "figure", "The program starts, with the change."
    if run.running:
        return "figure", f"reserved at the peak so far, after {steps} of a run with the change."
    if run.status == "finished":
        stopped = f"without the change it stopped at step {steps_before}"
        return "figure-good", f"{_instead(before)}. It finished after {steps}; {stopped}."
    if run.status == "cancelled":
        return "figure", f"reserved at the peak until it was stopped, after {steps}."
    if run.status == "out_of_memory":
        return "figure-bad", f"reserved at the peak: with the change memory ran out too, after {steps}."
    if run.error is None:
        message = ""
    else:
        message = f": {run.error.message}"
    return "figure-bad", f"reserved at the peak; with the change the program failed{message}"
