"""The panel at the left: which workload to run, on which device, with which values; or those of an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QHBoxLayout,
    QLayout,
    QMenu,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from gpudash.devices.names import Device, names_in
from gpudash.memory.watching.growth import Forecast
from gpudash.session.watching.program import StopProgress
from gpudash.specs import DEFAULT_WORKLOAD, ModelSpec, Spec, flag, workloads
from gpudash.specs.base import StopCaution
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.ui.forms import attached_page
from gpudash.ui.forms.attached_page import PID, AttachedPage
from gpudash.ui.forms.device_forms import OTHERS, ComparisonForm, DeviceChoice, form_of
from gpudash.ui.forms.fit_panel import FitPanel
from gpudash.ui.forms.model_form import ModelForm
from gpudash.ui.forms.parallel_form import ParallelForm
from gpudash.ui.forms.run_progress import READY, RunProgress, asks_nothing, stop_progress
from gpudash.ui.forms.script_form import SUMMARY, TITLE, Script, ScriptForm
from gpudash.ui.forms.script_prediction import ScriptPrediction
from gpudash.ui.forms.spec_form import BAR_PX, LABEL_WIDTH, SpecForm, StillScrollArea, preset_text
from gpudash.ui.forms.start_button import StartButton, name_of_stop
from gpudash.ui.widgets.fields import ChoiceField
from gpudash.ui.widgets.focus_group import FocusGroup
from gpudash.ui.widgets.layouts import in_column, in_row
from gpudash.ui.widgets.plain_text import PlainLabel, plain_tip, without_mnemonics
from gpudash.ui.widgets.text_size import scaled

WIDTH, WIDE = 328, 372
"""Width in logical pixels that fits the longest label beside every choice, every default value and a scroll bar; and
the width in a wide window, for longer names and values."""

WIDE_WINDOW = 1700
"""Width of the window, in logical pixels, from which the panel is wide."""

HEADING = "WORKLOAD"

DEVICE_TEXT = "Where the workload runs"

PRESSED = "after {button} was pressed in the window"

ANYWAY, NOT_READY = "Ready to start anyway", "choose a script first"
INVALID = "correct the form first"
NOTHING_YET = "Nothing to run yet."
"""What is said without a run where the prediction advises against one, and where no script is chosen."""

HAS_ENDED = "The run had just ended, so there was nothing to stop; press again to start another."

STARTS_NEXT = "The search for what would have fit is ended; then the run starts."
IS_STOPPING = "The run is already stopping; another can be started once it has ended."

ROOMY_HEIGHT = 980
"""Height in logical pixels from which the form and the alternatives both fit."""

LEAST_FORM_PX = 96
"""Height in logical pixels of the form that stays in view when the details below it are opened."""


@dataclass(frozen=True)
class FormState:
    """The values of a form: the workload, torch's name of the device, and the fields of the spec."""

    workload: str
    device: str
    values: Mapping[str, Any]


class WorkloadPanel(QFrame):
    """Choose, configure, start and stop a run.

    Args:
        script: the form of the user's own program; created if not given.

    Attributes:
        attached: the process being watched, in place of everything that could be chosen; hidden without one.
        is_on: returns whether a run is going on right now; it may have ended since the last refresh.
        is_isolated: returns whether runs have processes of their own, which Stop need not wait for.

    Signals:
        start_requested: start a run, by the button or F5.
        stop_requested: stop the run; why, in words that follow "sent by gpudash".
        answered: what a press did that neither started nor stopped a run, in a sentence.
        device_chosen: torch's name of the device the user chose in the panel.
        changed: the form changed.
        replaced: values were put into the form for the user: description, `FormState` before and after, and kind of
            step, as in `Undoing.push`.
    """

    start_requested = Signal()
    stop_requested = Signal(str)
    answered = Signal(str)
    snapshot_requested = Signal()
    device_chosen = Signal(str)
    changed = Signal()
    replaced = Signal(str, object, object, str, int)

    def __init__(self, parent: QWidget | None = None, *, script: ScriptForm | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "panel")
        self.setFixedWidth(WIDTH)
        self._forms: dict[str, SpecForm] = {}
        self.script = script or ScriptForm()
        self.script.changed.connect(self._form_changed)
        self.is_on: Callable[[], bool] = lambda: self._running
        self.is_isolated: Callable[[], bool] = lambda: False
        self._running = False
        self._searching = False
        self._starts_next = False
        self._stopping = False
        self._stop: StopProgress | None = None
        self._just_stopped = QTimer(self)
        self._just_stopped.setSingleShot(True)
        self._program = self._outside = False
        self._commanding = True
        self._wanted_device: str | None = None
        self._one_shown = "cpu"
        self._offered: list[tuple[str, str, str | None]] = []
        self._devices: tuple[Device, ...] = ()
        self._preferred = "cpu"
        self._ranks_on: str | None = None
        self._forecast = ""
        self._has_new_workload = False
        self._actions: list[QWidget] = []
        self._build()
        self._choose_workload()

    def _build(self) -> None:
        above = QVBoxLayout()
        above.setContentsMargins(0, 0, BAR_PX, 0)
        above.setSpacing(6)
        self._heading = PlainLabel(HEADING, role="title")
        self._heading_row = in_row(self._heading, 1, margins=(0, 0, 0, 0))
        above.addLayout(self._heading_row)
        self.attached = AttachedPage()
        self.attached.hide()
        above.addWidget(self.attached)
        self.workload = ChoiceField()
        self.workload.setAccessibleName("Workload")
        self._heading.setBuddy(self.workload)  # screen readers read the buddy's label
        self.workload.addItem(TITLE, WATCH)
        self.workload.insertSeparator(self.workload.count())
        for name, spec in workloads().items():
            self.workload.addItem(spec.title, name)
        self.workload.setMaxVisibleItems(self.workload.count())
        self.workload.setCurrentIndex(self.workload.findData(DEFAULT_WORKLOAD))
        self.workload.currentIndexChanged.connect(self._workload_chosen)
        self._presets = QPushButton("Presets")
        self._presets.setMenu(QMenu(self._presets))
        self._presets.setToolTip("Fill the form for a usual case; everything else goes back to its default")
        self._presets.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._heading_buttons = FocusGroup(self, [self._presets])
        above.addLayout(in_row((self.workload, 1), self._presets, margins=(0, 0, 0, 0), spacing=8))
        above.addWidget(self._device_row())
        # Not a stacked widget: that is as high as the highest of its pages once one has lines that wrap.
        self._stack = QWidget()
        self._pages = in_column(self.script, parent=self._stack, margins=(0, 0, 0, 0), spacing=0)
        self.fit = FitPanel()
        self.prediction = ScriptPrediction()
        content = QWidget()
        content.setProperty("role", "scrolled")
        in_column(self._stack, self.fit, self.prediction, 1, parent=content, spacing=6)
        self._scroll = StillScrollArea(content, self.fit.head)
        self._scroll.setAccessibleName("Fields of the workload")
        content.setAutoFillBackground(False)
        # By the next turn of the event loop the details have their height.
        self.fit.folded.connect(lambda: QTimer.singleShot(0, self._scroll, self._show_folded))
        self._caution = PlainLabel(role="warn", wraps=True)
        self.progress = RunProgress()
        self.snapshot = QPushButton("Save snapshot now")
        self.snapshot.setToolTip("Ask the program for a snapshot of its GPU memory, and open it (Ctrl+Shift+M)")
        self.snapshot.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # as for the button below it
        self.snapshot.clicked.connect(self.snapshot_requested)
        self.snapshot.hide()
        self.end_search = QPushButton("End the search")
        self.end_search.setToolTip("Keep what was found so far of what would have fit")
        self.end_search.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.end_search.clicked.connect(self._stop_program)
        self.end_search.hide()
        self.button = StartButton()
        self.button.clicked.connect(self.toggle)
        below = in_column(
            self._caution,
            self.progress,
            self.snapshot,
            self.end_search,
            self.button,
            margins=(0, 0, BAR_PX, 0),
            spacing=6,
        )
        # The scroll bar stands in the margin, so that no field is narrower for it.
        margins = (14, 8, 14 - BAR_PX, 12)
        in_column(above, (self._scroll, 1), 0, below, parent=self, margins=margins, spacing=6)

    def _show_folded(self) -> None:
        """Scroll to the details if they were opened, and back if all is in view without them."""
        if self.fit.is_open:
            self._scroll.show_below_kept(scaled(LEAST_FORM_PX))
        else:
            self._scroll.show_top_if_all_fits()

    def _device_row(self) -> QWidget:
        self._device_choice = QWidget()
        row = QHBoxLayout(self._device_choice)
        row.setContentsMargins(0, 0, 0, 0)
        label = PlainLabel("Device", role="muted")
        self.device = DeviceChoice()
        self.device.currentIndexChanged.connect(self._choice_changed)
        self.device.picked.connect(self._device_picked)
        label.setBuddy(self.device)
        label.setMinimumWidth(LABEL_WIDTH)
        row.setSpacing(10)
        row.addWidget(label)
        row.addWidget(self.device, 1)
        return self._device_choice

    def set_devices(self, devices: Sequence[Device], preferred: str) -> None:
        """Offer ``devices``, with unusable ones disabled; the user's choice is kept while its device exists."""
        offered = [(device.memory, device.name, device.problem) for device in devices]
        if offered == self._offered:
            # Compare first: this runs at every refresh, and refilling a choice moves its focus.
            return
        self._offered = offered
        self._devices, self._preferred = tuple(devices), preferred
        self._offer_to_form()
        # During a run, keep showing the run's device, whatever the user chose before.
        kept = self._one_shown if self._locked else self._wanted_device
        if self._offers(kept):
            self._one_shown = str(kept)
        else:
            self._one_shown = preferred
        self.device.offer(devices, ranks=self._with_ranks)
        self._show_device()
        self._device_changed()

    @property
    def _with_ranks(self) -> bool:
        """Whether the selected workload can run on several devices at once."""
        return not self.watching and isinstance(self._forms.get(self.workload.currentData()), ParallelForm)

    def _offer_to_form(self) -> None:
        """Pass the devices to a form with its own choice: of two devices, or of one per rank."""
        form = self._forms.get(self.workload.currentData())
        if isinstance(form, ComparisonForm) and self._devices and self._commanding:
            form.set_devices(self._devices, self._preferred)
        elif isinstance(form, ParallelForm) and self._devices and self._commanding:
            form.set_devices(self._devices)

    def fit_width(self) -> None:
        """Set the width that the text needs at the current text size; wider in a wide window."""
        width = scaled(WIDE if self.window().width() >= scaled(WIDE_WINDOW) else WIDTH)
        if self.minimumWidth() != width:
            self.setFixedWidth(width)
            # Qt keeps a hidden layout's old size hint, by which the form would be cut when it is shown.
            for layout in self.findChildren(QLayout):  # a form that is not shown has kept the size it had before
                layout.invalidate()
                layout.activate()

    def set_commanding(self, commanding: bool) -> None:
        """Set whether runs can be started here at all, as at first; a recording's panel only shows what was run."""
        if commanding == self._commanding:
            return
        self._commanding = commanding
        self.button.setVisible(commanding)
        self._choose_workload()
        self.workload.setEnabled(commanding)
        self._allow_device()

    def show_spec(self, workload: str, device: str, values: Mapping[str, Any]) -> None:
        """Show the parameters of a recorded run; nothing changes if its workload is not installed."""
        row = self.workload.findData(workload)
        if row < 0:
            return
        # Choosing a workload creates its form; fill it after that.
        self.workload.setCurrentIndex(row)
        if self.watching:
            self.script.show_recorded(values)
            return
        self.choose_device(device)
        self.form.set_values(
            # Leave out fields of another version: the form would reject all values because of them.
            {name: value for name, value in values.items() if name in self.form.spec_type.model_fields}
        )
        self.form.set_locked(True)

    def choose_card(self, name: str) -> None:
        """Select the device whose card was clicked; a run on several devices keeps them if it is among them."""
        if not self.watching and isinstance(self.form, ParallelForm) and not self._locked:
            self.form.leave_ranks_without(name)
        self.choose_device(name)

    def _offers(self, name: str | None) -> bool:
        return any(device.name == name for device in self._devices)

    def choose_device(self, name: str) -> None:
        """Select the device called ``name`` if it is offered; a run on several devices keeps them."""
        if self._offers(name):
            self._wanted_device = self._one_shown = name
            self._show_device()
            self._device_changed()

    def take_device(self, name: str) -> None:
        """Select the device called ``name`` as if the user had; as the first of several it keeps the others."""
        form = None
        if not self.watching:
            form = self.form
        if isinstance(form, ParallelForm) and form.own_device not in (None, name):
            form.devices.clear()
        self.choose_device(name)
        self.device_chosen.emit(self.device_name)

    def change_fields(self, fields: Mapping[str, Any]) -> None:
        """Set some fields of the form."""
        if not self.watching:
            self.form.change_fields(fields)
            self._form_changed()

    @property
    def state(self) -> FormState | None:
        """The values of the form, to restore later; ``None`` while a value is invalid, and for a script."""
        # Store a validated spec, not raw text, so that what is restored is valid.
        spec = self.spec()
        if spec is None or self.watching:
            return None
        return FormState(self.workload.currentData(), self.device_name, spec.model_dump())

    def put_back(self, state: FormState) -> None:
        """Restore values.

        Raises:
            RuntimeError: one sentence, if a run locks the form or the workload no longer exists.
        """
        if self._locked:
            raise RuntimeError("The form is locked until the run has ended.")
        row = self.workload.findData(state.workload)
        if row < 0:
            raise RuntimeError(f"The workload {state.workload} is not there any more.")
        self.workload.setCurrentIndex(row)
        # The device first: values may be checked against it.
        self.choose_device(state.device)
        self.form.set_values(state.values)
        self._form_changed()

    def replace_fields(self, text: str, change: Callable[[], object], *, kind: str = "", drag: int = 0) -> None:
        """Let ``change`` set values in the form, and emit `replaced` for it as one step.

        Args:
            text: description of the step, as in "Apply of batch 8".
            kind: consecutive steps of one kind are merged; "" stands alone.
            drag: number of the drag that the step is part of; 0 for none.
        """
        before = self.state
        change()
        after = self.state
        if before is not None and after is not None and before != after:
            self.replaced.emit(text, before, after, kind, drag)

    def set_forecast(self, text: str) -> None:
        """Show at the button that the run will not fit; "" if it will or nothing is known."""
        if text != self._forecast:
            self._forecast = text
            self._update_button()

    def add_action(self, button: QWidget) -> None:
        """Add a button that acts on the panel's content, at the right of the heading."""
        self._heading_row.addWidget(button)
        # A button that appears and disappears must not move the form below it.
        self._heading.setMinimumHeight(button.sizeHint().height())  # hidden or not
        self._actions.append(button)
        self._heading_buttons.hold([*self._actions, self._presets])
        self._order_tabs()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._order_tabs()

    def _order_tabs(self) -> None:
        """Make Tab go through the panel from top to bottom, including parts that were added later."""
        inputs = (self.workload, *self._actions, self._presets, self._device_choice, self._stack)
        parts = (
            *inputs,
            self.fit.head,
            self.fit,
            self.prediction,
            self.progress,
            self.snapshot,
            self.end_search,
            self.button,
        )
        widgets = [widget for part in parts for widget in (part, *part.findChildren(QWidget))]
        here = (widget for widget in widgets if widget.window() is self.window())  # not the popup of a combo box
        # Any button of the heading may become its group's tab stop later, but Qt orders only current tab stops.
        grouped = {widget: widget.focusPolicy() for widget in (*self._actions, self._presets)}
        for widget in grouped:
            widget.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        stops = [widget for widget in here if widget.focusPolicy() & Qt.FocusPolicy.TabFocus]
        # Qt's default is the order of creation: parts added later would be last.
        for one, other in pairwise(stops):
            self.setTabOrder(one, other)
        for widget, policy in grouped.items():
            widget.setFocusPolicy(policy)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit.set_roomy(self.height() >= scaled(ROOMY_HEIGHT))

    def _summarise(self, text: str) -> None:
        self.workload.setToolTip(plain_tip(text))
        self.workload.setAccessibleDescription(text)

    def _device_picked(self, value: str) -> None:
        if self._offers(value):
            self._wanted_device = value
        self._choice_changed()
        self.device_chosen.emit(self.device_name)

    @property
    def device_name(self) -> str:
        """torch's name of the selected device: of several, the first rank's; of a comparison, the measured one."""
        own = None
        if not self.watching:
            own = self.form.own_device
        return own or self._one_shown

    @property
    def has_chosen_device(self) -> bool:
        """Whether a device was chosen, in place of the one that the session prefers."""
        return self._wanted_device is not None

    @property
    def chosen_memories(self) -> list[str]:
        """What the chosen devices are (`Device.memory`): of a run on several that of each, in their order; empty where
        none was chosen, and where there was nothing but the CPU to choose.
        """
        memories = {device.name: device.memory for device in self._devices}
        names: Sequence[str] = ()
        spec = self.spec()
        if spec is not None and spec.device_names:
            names = spec.device_names
        elif self._wanted_device is not None and (self._wanted_device, self._preferred) != ("cpu", "cpu"):
            names = (self._wanted_device,)
        if not {*names} <= memories.keys():
            return []
        return [memories[name] for name in names]

    @property
    def watching(self) -> bool:
        """Whether the user's own program is selected rather than a workload."""
        return bool(self.workload.currentData() == WATCH)

    def take_script(self, path: Path, arguments: str = "") -> None:
        """Select the user's own program, and fill in its file and its arguments, as typed in a shell."""
        if not self._locked:
            self.workload.setCurrentIndex(self.workload.findData(WATCH))
            self.script.take_file(path, arguments)

    def take_model(self, path: Path, *, task: str | None = None) -> None:
        """Select a model by its config, fill in its folder or name, and choose the task."""
        if self._locked:
            return
        self.workload.setCurrentIndex(self.workload.findData(ModelSpec.name))
        cast(ModelForm, self.form).take_folder(path, task=task)

    def focus_first_field(self) -> None:
        """Focus the first field of the form that can be changed."""
        form: QWidget = self.script if self.watching else self.form
        field = form.nextInFocusChain()
        while field is not None and field is not form:
            can_focus = field.focusPolicy() & Qt.FocusPolicy.TabFocus and field.isEnabled()
            if can_focus and form.isAncestorOf(field) and field.isVisibleTo(form):
                field.setFocus(Qt.FocusReason.OtherFocusReason)
                return
            field = field.nextInFocusChain()

    def take_script_values(self, script: Script) -> None:
        """Select the user's own program, and fill in how it was run."""
        if not self._locked:
            self.workload.setCurrentIndex(self.workload.findData(WATCH))
            self.script.set_script(script)

    @property
    def form(self) -> SpecForm:
        """The form of the selected workload; not available for the user's own program."""
        return self._forms[self.workload.currentData()]

    def spec(self) -> Spec | None:
        """The workload to run; ``None`` while a value is invalid, and for the user's own program."""
        if self.watching:
            return None
        return self.form.spec()

    @property
    def ready(self) -> bool:
        """Whether the form's values can be run."""
        if self.watching:
            return self.script.ready
        return self.form.spec() is not None and not self._refusals()

    def _refusals(self) -> list[str]:
        """Why the form's values cannot be run on the selected device though they can be predicted, and what to do."""
        spec = None
        if not (self.watching or not self._commanding):
            spec = self.form.spec()
        if spec is None:
            return []
        return spec.run_problems(spec.own_device or self.device_name)

    @property
    def correction(self) -> str:
        """What must be corrected before a prediction: "Correct Batch first"; "" if the values are valid."""
        wrong = None
        if not self.watching:
            wrong = next(iter(self.form.errors()), None)
        if wrong is None:
            return ""
        return f"Correct {wrong.replace('_', ' ').capitalize() or 'the values'} first"

    @property
    def _locked(self) -> bool:
        """Whether the form is locked: a program that has ended needs it no longer, though remedies are still sought."""
        return self._running and not self._searching

    @property
    def stopping(self) -> bool:
        """Whether the current run was asked to stop."""
        return self._running and (self._stopping or self._stop is not None)

    # `is_on` is called at the press: the run may have ended since the last refresh.
    def toggle(self) -> None:
        """Press the button: start a run, or stop the current one; a running program gets the next signal."""
        if self._running and not self.is_on():
            self.answered.emit(HAS_ENDED)
        elif self._searching:
            self._start_after_search()
        elif self._running and self._program and not self._outside:
            self._stop_program()
        elif self._running:
            self.stop()
        elif self.button.isEnabled():
            self.start_requested.emit()
        else:
            self.answered.emit(self.start_text())

    def stop(self) -> None:
        """Stop the run, once."""
        if self.stopping:
            self.answered.emit(IS_STOPPING)
        elif self._program and not self._outside:
            self._stop_program()
        else:
            self._stopping = True
            self._update_button()
            self.progress.say("Stopping after this step…")
            self.stop_requested.emit(PRESSED.format(button="Stop"))

    def _start_after_search(self) -> None:
        """End the search for what would have fit, and start what the form holds once it has ended."""
        if not self.ready:
            self.answered.emit(self.start_text())
        elif not self._starts_next:
            self._starts_next = True
            self.answered.emit(STARTS_NEXT)
            self.stop_requested.emit(PRESSED.format(button="Start"))

    def _stop_program(self) -> None:
        """Send the program the next signal; the second click of a double click sends none."""
        if self._just_stopped.isActive():
            # Signals get harsher (SIGTERM, SIGKILL): the second click of a double click must not send the next.
            return
        if self._stop is not None and not self._stop.next:
            self.answered.emit(stop_progress(self._stop))
            return
        self._just_stopped.start(QApplication.doubleClickInterval())
        self.stop_requested.emit(PRESSED.format(button=name_of_stop(self._stop)))

    def show_run(
        self,
        run: RunView | None,
        running: bool,
        loading: str,
        ahead: Forecast | None,
        stop: StopProgress | None = None,
        after_end: str = "",
    ) -> None:
        """Show progress; called at every refresh.

        Args:
            run: the current or last run.
            running: whether it is going on.
            loading: what has to load before the first step, or "".
            ahead: forecast for the memory of its device.
            stop: progress of stopping a program.
            after_end: what is still being done for a program that has ended; "" while it runs.
        """
        # A program counts as one from the press on, before its run has begun.
        watched = running and run is not None and run.running and run.workload == WATCH
        program, outside = watched or (running and self.watching), watched and run is not None and PID in run.spec
        searching = running and bool(after_end)
        can_save = watched and not after_end and run is not None and not asks_nothing(run)
        self.snapshot.setVisible(self._commanding and can_save)
        self.end_search.setVisible(self._commanding and searching)
        states = (self._running, self._program, self._outside, self._searching)
        if (running, program, outside, searching) != states:
            self._running, self._stopping, self._program, self._outside = running, False, program, outside
            self._searching = searching
            focused = QApplication.focusWidget()
            (self.script if self.watching else self.form).set_locked(self._locked)
            for control in (self.workload, self._presets):
                control.setEnabled(not self._locked)
            if focused is not None and self.isAncestorOf(focused) and not focused.isEnabled():
                self.window().setFocus()  # else Qt frames whatever can still be changed
            self._allow_device()
            self._update_button()
            self._show_caution()
        signal_changed = (stop and stop.sent) != (self._stop and self._stop.sent)
        self._stop = stop
        # Only if the signal changed: the seconds waited change at every refresh.
        if signal_changed:
            self._update_button()
        self._show_attached(run if outside else None)
        shown = run
        if running:
            self._has_new_workload = False
        elif self._has_new_workload and run is not None and run.workload != self.workload.currentData():
            shown = None  # how another workload ended is no answer to what the form asks now
        self.progress.show_run(shown, running, "" if self._program else loading, self.stopping, ahead)
        if after_end:
            self.progress.say(f"The program has ended.\n{after_end}.")
        if stop is not None:
            self.progress.say(stop_progress(stop))
        if self._starts_next and not running:
            self._starts_next = False
            # The caller holds the store's lock.
            QTimer.singleShot(0, self, self.start_requested.emit)

    def _show_attached(self, run: RunView | None) -> None:
        """Show the process being watched in place of the form; with ``None``, show the form again."""
        if run is not None:
            self.attached.show_run(run)
        if self.attached.isHidden() == (run is None):
            return
        self.attached.setVisible(run is not None)
        self._heading.setText(HEADING if run is None else attached_page.TITLE)
        self.workload.setVisible(run is None)
        self._scroll.setVisible(run is None)
        if run is None:
            self._choose_workload()
        else:
            for part in (self._presets, self._device_choice, self.fit, self.prediction, self._caution):
                part.hide()
            self.changed.emit()

    def show_fit(self, shown: bool) -> None:
        """Show the verdict; for the user's own program, only once it has been predicted."""
        self.fit.setVisible(shown and self._commanding and self.attached.isHidden())

    @property
    def offers_workload(self) -> bool:
        """Whether the panel holds a workload, rather than the user's own program or a process being watched."""
        return not self.watching and self.attached.isHidden()

    def _workload_chosen(self) -> None:
        self._has_new_workload = self._commanding
        self._choose_workload()

    def _choose_workload(self) -> None:
        watching = self.watching
        self._device_choice.setVisible(not watching)
        self._presets.setVisible(self._commanding and not watching)
        self.show_fit(not watching)
        self.prediction.setVisible(self._commanding and watching)
        if watching:
            self._show_form(self.script)
            self._summarise(SUMMARY)
            self._form_changed()
        else:
            self._choose_spec(self.workload.currentData())

    def _choose_spec(self, name: str) -> None:
        spec = workloads()[name]
        if name not in self._forms:
            form = form_of(spec)
            form.changed.connect(self._form_changed)
            self._forms[name] = form
            form.hide()
            self._pages.addWidget(form)
        self._device_choice.setVisible(not isinstance(self._forms[name], ComparisonForm))
        self._offer_to_form()
        self.device.offer(self._devices, ranks=self._with_ranks)
        self._show_device()
        self._show_form(self._forms[name])
        self._summarise(spec.summary)
        self._presets.setVisible(self._commanding and bool(spec.presets))
        menu = self._presets.menu()
        menu.clear()
        for preset, values in spec.presets.items():
            action = menu.addAction(without_mnemonics(preset))
            action.setStatusTip(preset_text(preset, values))
            action.setToolTip(plain_tip(preset_text(preset, values)))
            action.triggered.connect(lambda _checked=False, values=values: self.take_preset(name, values))
        self._device_changed()

    def _show_form(self, form: QWidget) -> None:
        """Bring a form to the front."""
        for page in (self.script, *self._forms.values()):
            page.setVisible(page is form)
        if self.isVisible():
            self._order_tabs()
        self._scroll.show_top()

    def take_preset(self, workload: str, values: Mapping[str, Any]) -> None:
        """Select a workload, and fill its form with a preset's changes to the defaults."""
        self.workload.setCurrentIndex(self.workload.findData(workload))
        self.form.take_preset(values)
        self._form_changed()

    def _choice_changed(self) -> None:
        """Run on the chosen device, or devices."""
        value = self.device.currentData()
        if not isinstance(value, str) or value == OTHERS:
            return
        one = self._offers(value)
        if one:
            self._one_shown = value
        form = None
        if not self.watching:
            form = self.form
        if isinstance(form, ParallelForm):
            form.devices.setText("" if one else value)
        self._device_changed()

    def _device_changed(self) -> None:
        if not self.watching:
            self.form.set_device(self.device_name)
        self._form_changed()

    def _allow_device(self) -> None:
        self.device.setEnabled(self._commanding and not self._locked)

    def _show_device(self) -> None:
        """Show the form's devices in the choice; emit `device_chosen` if the first of several devices changed."""
        form = None
        if not self.watching:
            form = self.form
        ranks = ""
        if isinstance(form, ParallelForm):
            ranks = form.ranks_on
        self.device.show_choice(ranks or self._one_shown)
        note = ""
        if isinstance(form, ParallelForm):
            note = form.meaning
        self.device.setToolTip(plain_tip(f"{DEVICE_TEXT}\n{note}".strip()))
        own = None
        if isinstance(form, ParallelForm):
            own = form.own_device
        # Emitted when the first of several devices changes: predictions and cards follow it.
        if own != self._ranks_on:
            self._ranks_on = own
            if self._commanding:
                self.device_chosen.emit(self.device_name)

    def _form_changed(self) -> None:
        self._allow_device()
        self._show_device()
        self._show_caution()
        self._update_button()
        self.changed.emit()

    def _show_caution(self) -> None:
        whole = ""
        if not self.watching:
            whole = self._whole_text()
        self._caution.setText(whole)
        self._caution.setVisible(bool(whole) and self.attached.isHidden())

    def _whole_text(self) -> str:
        """What is wrong with the values in combination, or what to be careful about."""
        spec = self.form.spec()
        if spec is not None:
            # What is missing is shown in place of the prediction.
            if spec.missing:
                refusals = []
            else:
                refusals = self._refusals()
            cautions = spec.cautions(self.device_name)
            if not self._running or self.is_isolated() or spec.rank_devices:
                cautions = [text for text in cautions if not isinstance(text, StopCaution)]
            return " ".join([*cautions, *map(_sentence, refusals)])
        errors = self.form.errors()
        text = (errors.get("", "") or errors.get("devices", "")).removeprefix(f"{flag('devices')} ")
        # Longest names first: "--batch" is also the beginning of "--batch-size".
        for name in sorted(self.form.spec_type.model_fields, key=len, reverse=True):  # no flag begins another's name
            text = text.replace(f"{flag(name)} ", f"{self.form.title(name)} ")
        return text

    def _update_button(self) -> None:
        anyway = self.ready and bool(self._forecast)
        self.progress.idle = READY
        if anyway:
            self.progress.idle = ANYWAY
        elif not self.ready:
            self.progress.idle = self._unready_text()
        self.button.show_state(
            running=self._running and not self._searching,
            stopping=self._stopping,
            program=self._program and not self._searching,
            stop=self._stop,
            outside=self._outside,
            ready=self.ready,
            anyway=anyway,
            start_tip=f"Start anyway (F5): {self._forecast}" if anyway else self.start_text(),
        )

    def _unready_text(self) -> str:
        """Why nothing can be started, in a sentence."""
        if self.watching:
            return _sentence(self.script.correction or NOT_READY)
        spec = self.form.spec()
        if spec is not None and spec.missing:
            return NOTHING_YET  # what is missing is shown in place of the prediction
        return _sentence(self.correction or INVALID)

    def start_text(self) -> str:
        """What starting would do, or why nothing can be started."""
        if not self.watching:
            wrong = next(iter(self.form.errors().items()), None)
            if wrong is None:
                refusals = " ".join(map(_sentence, self._refusals()))
                return refusals or "Run the workload on the chosen device (F5)"
            name, why = wrong
            if name:
                return f"{self.form.title(name)}: {why}"
            return why
        problem = next(iter(self.script.script().problems().values()), "")
        return problem or "Run the script and watch it (F5)"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def put_into_panel(run: RunView, panel: WorkloadPanel, devices: Sequence[Device], preferred: str) -> str:
    """Fill the panel with a run.

    Args:
        run: a recorded run.
        panel: panel of the live session.
        devices: devices of this machine.
        preferred: device to select if none matches the run's.

    Returns:
        What could not be adopted as it was, in a sentence each; "" if everything could.
    """
    if run.workload == WATCH and PID in run.spec:
        return "That recording is of a process that was watched from outside; it cannot be started again from here."
    row = panel.workload.findData(run.workload)
    if row < 0:
        return f"The workload {run.workload} is not installed here; nothing was changed."
    panel.workload.setCurrentIndex(row)
    if run.workload == WATCH:
        panel.script.set_script(Script.from_spec(run.spec))
        return ""
    known = {name: value for name, value in run.spec.items() if name in panel.form.spec_type.model_fields}
    left_out = sorted(set(run.spec) - set(known))
    # Ranks of a recording are identified by their devices, some of which may not exist here.
    ranks = names_in(known)
    several = bool(ranks) and isinstance(panel.form, ParallelForm)
    if several:
        said = _missing_ranks(ranks, devices)
    else:
        said = _choose_device(run, panel, devices, preferred)
    # The device first: values are checked against it.
    panel.form.set_values(known)
    panel.change_fields(known)
    if left_out:
        said.append(f"This version does not know {', '.join(left_out)}; the rest was taken.")
    return " ".join(said)


def _missing_ranks(ranks: Sequence[str], devices: Sequence[Device]) -> list[str]:
    """Say which devices of the run's ranks do not exist here; which to use instead is the user's choice."""
    there = {device.name for device in devices}
    missing = list(dict.fromkeys(name for name in ranks if name not in there))
    if not missing:
        return []
    are = "are"
    if len(missing) == 1:
        are = "is"
    return [f"This run had ranks on {', '.join(missing)}, which {are} not here today; choose others under Device."]


def _choose_device(run: RunView, panel: WorkloadPanel, devices: Sequence[Device], preferred: str) -> list[str]:
    """Select the run's device, or one like it; say so if it is a different one."""
    there = {device.name: device for device in devices}
    found = there.get(run.device)
    if found is not None and found.problem is None:
        panel.take_device(found.name)
        return []
    like = next((d.name for d in devices if run.simulated and d.simulated and d.problem is None), preferred)
    panel.take_device(like)
    why = "is not here today"
    if found and found.problem:
        why = f"cannot be used today: {found.problem.rstrip('.')}"
    return [f"This run was on {run.device}, which {why}; the values are kept, and the device is {like}."]
