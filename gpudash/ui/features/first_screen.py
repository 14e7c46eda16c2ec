"""The first screen of a live session without runs: fills its panels and handles its clicks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject

from gpudash.devices.names import Device, badged_name, known_product
from gpudash.session.watching.attaching.candidates import Candidate, CandidatePoll, candidates
from gpudash.session.watching.request import arguments_of, program_name
from gpudash.specs import DEFAULT_WORKLOAD, build, workloads
from gpudash.specs.model_names import NamedModel, cached_models, known_models
from gpudash.telemetry.runs import WATCH, cut_short_text
from gpudash.ui.dashboard.first_screen.page import FirstScreen
from gpudash.ui.dashboard.first_screen.script_panel import LastScript
from gpudash.ui.features.help import play_demo
from gpudash.ui.features.run import attach
from gpudash.ui.forms.attached_page import PID
from gpudash.ui.forms.script_form import Script
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.session.recordings.library import Library, LibraryWatcher

PROGRAMS_S = 2.0
"""How often the programs are listed while they are visible."""

LEAST_S = 3.0
"""How long a program without GPU memory must have run to be listed: shorter ones would appear and disappear."""

FREE_S = 1.0
"""How often free memory is queried."""

MOST_SCRIPTS = 8

JOIN_S = 1.0
"""How long closing waits for a list in progress."""

A_RUN = "A run is in progress; stop it first."


def commands(workspace: Workspace) -> list[Command]:
    """Show the first screen if nothing has run yet; returns the command that brings it back."""
    if not workspace.live:
        return []
    beginnings = Beginnings(workspace)
    with workspace.session.store.lock:
        has_run = bool(workspace.session.store.runs)
    if not has_run:
        beginnings.show()
    return [
        Command(
            "View",
            "First Screen",
            "Start with a script, a model, or a running program",
            beginnings.show,
            ("Ctrl+Home",),
            id="view.first_screen",
            after="view.panel",
            why_not=lambda: A_RUN if workspace.session.running else "",
        )
    ]


class Beginnings(QObject):
    """Fills the first screen and carries out what the user chooses there.

    Args:
        workspace: its live dashboard shows the screen.
        find_programs: lists processes; called in a thread.
        find_models: lists the models in the cache; called in a thread.
        watch: starts watching the recordings folder.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        find_programs: Callable[[], Sequence[Candidate]] | None = None,
        find_models: Callable[[], Sequence[NamedModel]] = cached_models,
        watch: Callable[[], LibraryWatcher] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._find_models = find_models
        self._watch = watch or _watcher
        self._clock = clock
        store = workspace.session.store
        self.programs = CandidatePoll(find_programs or (lambda: candidates(store)))
        self._models: Sequence[NamedModel] | None = None
        self._models_shown = False
        self._models_thread: threading.Thread | None = None
        self._watcher: LibraryWatcher | None = None
        self._library: Library | None = None
        self._scripts: Sequence[LastScript] = ()
        self._programs_due = self._free_due = float("-inf")
        self._free: int | None = None
        self._free_on = ""
        self.screen = FirstScreen(workspace.colours)
        self._connect()

    def _connect(self) -> None:
        workspace = self._workspace
        screen = self.screen
        screen.script.file_chosen.connect(lambda path: workspace.open_dropped([path]))
        screen.script.script_chosen.connect(self._take_script)
        screen.model.chosen.connect(self._take_model)
        screen.program.chosen.connect(self._watch_program)
        screen.program.dialog_wanted.connect(partial(attach, workspace))
        screen.train.clicked.connect(workspace.start_run)
        screen.demo.clicked.connect(lambda: play_demo(workspace))
        screen.form.clicked.connect(lambda: workspace.dashboard.show_form())
        workspace.dashboard.panel.changed.connect(self._show_start)
        workspace.refreshed.connect(self.refresh)
        workspace.colours_changed.connect(lambda: screen.set_palette(workspace.colours))
        workspace.at_close(self._close)

    def show(self) -> None:
        """Switch to the first screen."""
        self._workspace.show_dashboard()
        self._show_start()
        self._workspace.dashboard.show_first_screen(self.screen)
        self._programs_due = self._free_due = float("-inf")

    def refresh(self) -> None:
        """Show what is known now; called by the window's timer. Slow work is left to threads."""
        if self._workspace.dashboard.first_screen is None:
            if self._watcher is not None:
                self._watcher.watch(False)
            return
        now = self._clock()
        seen = self.screen.isVisible()
        if seen and now >= self._programs_due:
            self._programs_due = now + PROGRAMS_S
            self.programs.request()
        found = self.programs.newest
        if found is not None:
            found = [one for one in found if one.gpu_bytes or one.seconds >= LEAST_S]
        self.screen.program.show_programs(found, self.programs.problem)
        # Before the models, whose rows depend on it: otherwise the start would make them twice.
        marked = self._workspace.dashboard.selected
        if now >= self._free_due or marked != self._free_on:
            self._free_due = now + FREE_S
            self._free_on = marked
            self._show_free(marked)
        self._show_models()
        self._show_scripts(seen)

    def _show_start(self) -> None:
        """Say what F5 runs, which is what the form holds: the default training, or what was asked for last."""
        panel = self._workspace.dashboard.panel
        workload = ""
        if panel.watching or panel.spec() != build(workloads()[DEFAULT_WORKLOAD], {}):
            workload = panel.workload.currentText()
        self.screen.show_start(workload, panel.start_text(), ready=panel.ready)

    def _show_models(self) -> None:
        if self._models_thread is None:
            self._models_thread = threading.Thread(target=self._list_models, name="gpudash-models", daemon=True)
            self._models_thread.start()
        if self._models is not None and not self._models_shown:
            self._models_shown = True
            self.screen.model.show_models(self._models, known_models())

    def _list_models(self) -> None:
        self._models = list(self._find_models())

    def _show_scripts(self, seen: bool) -> None:
        live = self._workspace.session.live
        if self._watcher is None and (live is None or not live.torch_ready):
            return  # reading recordings can wait until the window is shown
        if self._watcher is None:
            self._watcher = self._watch()
        self._watcher.watch(seen)
        if self._watcher.library is not self._library and not self.screen.script.list.underMouse():
            self._library = self._watcher.library
            self._scripts = _in_places(last_scripts(self._library), self._scripts)
        self.screen.script.show_scripts(self._scripts, self._free)

    def _show_free(self, marked: str) -> None:
        """Query the free memory of the device whose card or chip is marked, and show it under its name there."""
        session = self._workspace.session
        device = self._workspace.dashboard.shown_device.device
        name = session.device_text(marked)
        if device is not None:
            name = known_product(device.product) if device.simulated else ""
            name = name or badged_name(device.name)
        self._free = self._free_bytes(marked, device)
        self.screen.model.show_free(self._free, name)

    def _free_bytes(self, marked: str, device: Device | None) -> int | None:
        """Bytes that a run's allocator could have on a device, which readings call ``marked``; ``None`` if unknown."""
        live = self._workspace.session.live
        if live is not None and device is not None:
            with suppress(ValueError):  # no run can use it, as a program's own card
                target = live.estimates.target(device.name)
                return None if target.free_bytes is None else max(0, target.free_bytes - target.overhead_bytes)
        # Beside a CPU build of torch a GPU's driver tells what is free all the same.
        store = self._workspace.session.store
        with store.lock:
            return store.latest("gpu", "free_bytes", marked).size

    def _take_script(self, script: LastScript) -> None:
        dashboard = self._workspace.dashboard
        dashboard.panel.take_script_values(Script.from_spec(script.spec))
        dashboard.show_form()

    def _take_model(self, name: str, task: str) -> None:
        dashboard = self._workspace.dashboard
        dashboard.panel.take_model(Path(name), task=task)
        dashboard.show_form()

    def _watch_program(self, pid: int) -> None:
        live = self._workspace.session.live
        if live is not None:
            self._workspace.attempt(lambda: live.attach(pid))

    def _close(self) -> bool:
        ended = self.programs.close(JOIN_S)
        if self._models_thread is not None:
            self._models_thread.join(JOIN_S)
            ended = ended and not self._models_thread.is_alive()
        return (self._watcher is None or self._watcher.close()) and ended


def _watcher() -> LibraryWatcher:
    from gpudash.session.recordings.library import LibraryWatcher

    return LibraryWatcher()


def _in_places(scripts: Sequence[LastScript], listed: Sequence[LastScript]) -> list[LastScript]:
    """``scripts``, of which those that were ``listed`` keep their order: one that runs again does not move."""
    places = {_identity(script): place for place, script in enumerate(listed)}
    new = [script for script in scripts if _identity(script) not in places]
    return [*new, *sorted((script for script in scripts if script not in new), key=lambda one: places[_identity(one)])]


def _identity(script: LastScript) -> tuple[str, ...]:
    """What makes two runs those of one script: its folder and its command."""
    return str(script.spec.get("folder") or ""), *_command(script.spec)


def last_scripts(library: Library) -> list[LastScript]:
    """The scripts run last, each once, the newest first."""
    found: dict[tuple[str, ...], LastScript] = {}
    entries = [entry for entry in library.entries if entry.facts is not None]
    for entry in entries:
        assert entry.facts is not None
        for run in entry.facts.runs:
            command = _command(run.spec)
            if run.workload != WATCH or PID in run.spec or not command:
                continue
            began_s = entry.began_s + run.began_s
            key = (str(run.spec.get("folder") or ""), *command)
            if key in found and found[key].began_s >= began_s:
                continue
            found[key] = LastScript(
                program_name(command),
                arguments_of(command),
                run.spec,
                began_s,
                run.own_peak_bytes,
                run.status == "out_of_memory",
                cut_short_text(run.status, run.spec, run.steps, grew=run.grew),
                run.reserved_peak_bytes,
            )
    return sorted(found.values(), key=lambda script: -script.began_s)[:MOST_SCRIPTS]


def _command(spec: Mapping[str, Any]) -> list[str]:
    given = spec.get("command")
    if isinstance(given, Sequence) and not isinstance(given, str):
        return list(map(str, given))
    return []
