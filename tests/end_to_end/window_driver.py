"""Plays a user in the real window: started as a process of its own, on a screen or offscreen.

``python -m tests.end_to_end.window_driver SCENARIO FOLDER`` opens the window as ``gpudash`` does, plays the scenario,
writes what it saw to FOLDER/seen.json (pictures beside it) and leaves as ``gpudash`` leaves.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QMessageBox

from gpudash.cli.recordings import open as cli_open
from gpudash.cli.terminal.output import leave
from gpudash.devices.names import Simulation
from gpudash.session.addresses import StandardInput
from gpudash.specs import PressureSpec, Spec
from gpudash.telemetry.explanation import Remedy
from gpudash.ui import app as app_module
from gpudash.ui.app import SAME_PRESS_S
from gpudash.ui.dashboard.banner import report_of
from gpudash.ui.window.leaving import UNASKED_S
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB, MIB
from tests.end_to_end.comparison_scenario import compared, comparison
from tests.end_to_end.demo_scenario import demo, demo_of_remedies
from tests.end_to_end.design_scenario import (
    designed_explanation,
    designed_first_screen,
    designed_running,
    designed_short,
    designed_stage,
    designed_states,
)
from tests.end_to_end.film_scenario import film
from tests.end_to_end.first_screen_scenario import first_screen
from tests.end_to_end.fleet_scenario import fleet, open_address
from tests.end_to_end.form_scenario import form
from tests.end_to_end.guide_scenario import (
    generated_fleet,
    pictured_first_screen,
    pictured_leak,
    pictured_prediction,
    sample_report,
)
from tests.end_to_end.machines_scenario import login, machines, open_machines
from tests.end_to_end.model_scenario import model
from tests.end_to_end.opening_scenario import opening
from tests.end_to_end.player import Player, Steps
from tests.end_to_end.ranks_scenario import ranks
from tests.end_to_end.reopened_scenario import piped, reopened
from tests.end_to_end.story_scenario import story
from tests.end_to_end.strip_scenario import strip

PATIENCE_S = float(os.environ.get("PLAY_PATIENCE_S", "230"))
"""Only a hang takes as long, on a slow and busy machine too."""


class BlockingSpec(Spec):
    """An operation that nothing interrupts for a minute."""

    name: ClassVar[str] = "blocking"
    title: ClassVar[str] = "Blocking"
    summary: ClassVar[str] = "Blocks."
    run: ClassVar[str] = "tests.end_to_end.window_driver:block"


def block(_spec: Spec, context: Any) -> Mapping[str, Any]:
    context.progress(1, 2)
    ctypes.CDLL(None).sleep(60)
    return {}


def press_start(window: MainWindow) -> None:
    """What F5 does; without a window manager no window is active, so no key would reach it."""
    window.menus.actions["run.start"].trigger()


def ended_early_and_again(player: Player) -> Steps:
    """Stop a run after some steps, have the guard stop a ramp, then run something else in the same window."""
    window, session, panel = player.window, player.session, player.window.workspace.dashboard.panel
    yield lambda: session.torch_ready
    press_start(window)
    yield lambda: session.store.run is not None and session.store.run.step > 3
    press_start(window)
    player.seen["button"] = panel.button.text()
    yield player.run_ended
    player.seen["stopped"] = session.store.run.status
    session.start_run(PressureSpec(step=64 * MIB, rate=8.0), "cpu", guard_bytes=512 * MIB)
    yield lambda: len(session.store.runs) == 2 and player.run_ended()
    player.seen["guarded"] = session.store.run.summary()
    banner, ended_s = window.workspace.dashboard.banner, session.clock()
    yield lambda: "guard" in banner.accessibleName() or session.clock() - ended_s > 5
    player.seen["banner"] = banner.accessibleName()
    yield player.frames(10)
    panel.workload.setCurrentIndex(panel.workload.findData("pipeline"))
    press_start(window)
    yield lambda: len(session.store.runs) == 3 and player.run_ended()
    player.seen["last"] = session.store.run.status


def close_during_a_run(player: Player) -> Steps:
    """Close while the default run is on."""
    yield lambda: player.session.torch_ready
    press_start(player.window)
    yield lambda: player.session.store.run is not None and player.session.store.run.step > 3
    player.seen["would_take_s"] = player.session.store.run.seconds_left


def close_while_blocked(player: Player) -> Steps:
    """Close while an operation blocks for a minute: asked whether to, leave all the same."""
    window = player.window
    yield lambda: player.session.torch_ready
    player.session.start_run(BlockingSpec(), "cpu")
    yield lambda: player.session.store.run is not None and player.session.store.run.step == 1
    yield lambda: player.session.clock() - player.session.store.run.began_s > UNASKED_S
    window.close()
    yield lambda: any(box.isVisible() for box in window.findChildren(QMessageBox))
    (box,) = window.findChildren(QMessageBox)
    player.seen["asked"], player.seen["stays"] = box.text(), window.isVisible()
    box.grab().save(str(player.folder / "asked.png"))


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("training", flush=True)
while True:
    signal.pause()
"""
"""A program that ends by SIGKILL alone."""

SAVES = """
import signal, sys
print("training", flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    print("saving", flush=True)
    open(sys.argv[0] + ".fifo").read()
    print("saved", flush=True)
"""
"""A program that saves on KeyboardInterrupt until its FIFO has been written."""


def closed_while_a_program_saves(player: Player) -> Steps:
    """Stop a program of the user's, and close the window before it has saved."""
    script = player.folder / "train.py"
    script.write_text(SAVES)
    fifo = player.folder / "train.py.fifo"
    os.mkfifo(fifo)
    session, panel = player.session, player.window.workspace.dashboard.panel

    def printed() -> list[str]:
        return [line.text for line in session.output.since(0)[0]]

    panel.take_script(script)
    press_start(player.window)
    yield lambda: printed() == ["training"]
    yield lambda: panel.button.text().startswith("■")
    press_start(player.window)
    yield lambda: printed() == ["training", "saving"]
    yield lambda: "SIGINT sent to train.py" in panel.progress.label.text()
    player.seen["words"], player.seen["button"] = panel.progress.label.text(), panel.button.text()
    player.picture("saving")

    def let_it_save() -> None:
        while session.runs.stopping is None or session.runs.stopping.left_s is None:
            session.runs.wait(0.02)
        fifo.write_text("")

    threading.Thread(target=let_it_save, daemon=True).start()


def left_by_two_ctrl_c(player: Player) -> Steps:
    """Leave while a program of the user's goes on saving, and press Ctrl+C in the terminal twice."""
    script = player.folder / "train.py"
    script.write_text(STUBBORN)
    session, panel = player.session, player.window.workspace.dashboard.panel
    panel.take_script(script)
    press_start(player.window)
    yield lambda: [line.text for line in session.output.since(0)[0]] == ["training"]

    def press() -> None:
        for sent in ("SIGINT", "SIGTERM"):
            while session.runs.stopping is None or session.runs.stopping.sent != sent:
                session.runs.wait(0.02)
            session.runs.wait(2 * SAME_PRESS_S)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def warnings_while_blocked(player: Player) -> Steps:
    """The GUI thread hangs for two seconds while memory crosses its levels."""
    window = player.window
    yield lambda: bool(player.session.gpus)
    yield player.frames(3)
    window.workspace.dashboard.select_device(player.session.gpus[0].uuid)
    yield lambda: any(event.level == "warning" for event in player.warnings())
    yield lambda: any(event.level == "critical" for event in player.warnings())
    ctypes.CDLL(None).sleep(2)  # the GUI thread answers nobody, and holds no lock
    player.seen["gui_back_s"] = player.session.clock()
    yield lambda: any(event.level == "passed" for event in player.warnings())
    shown = player.session.clock()
    yield lambda: "passed" in window.workspace.dashboard.banner.accessibleName() or player.session.clock() - shown > 5
    player.seen["banner_s"] = player.session.clock()
    player.seen["banner"] = window.workspace.dashboard.banner.accessibleName()
    yield player.frames(3)
    player.seen["marks"] = [mark.label for mark in window.workspace.dashboard.plots.marks]
    player.picture("warnings")


def run_without_torch(player: Player) -> Steps:
    """Start where torch is not installed."""
    yield lambda: player.session.torch_ready
    press_start(player.window)
    yield player.run_ended
    player.seen["summary"] = player.session.store.run.summary()
    yield player.frames(8)
    player.seen["banner"] = player.window.workspace.dashboard.banner.accessibleName()
    player.seen["why"] = player.window.workspace.dashboard.result.ending.text
    player.picture("without_torch")


def look(player: Player) -> Steps:
    """Only look, for a few seconds, at the first GPU where there is one."""
    began = time.monotonic()
    yield lambda: bool(player.session.gpus) or time.monotonic() - began > 3.0
    if player.session.gpus:
        player.window.workspace.dashboard.select_device(player.session.gpus[0].uuid)
    yield lambda: time.monotonic() - began > 8.0
    player.picture("look")


def out_of_memory_and_again(player: Player) -> Steps:
    """See that a run will not fit, run it all the same, be warned, read why it ended, apply what fits, and finish."""
    window, session, fit = player.window, player.session, player.window.workspace.dashboard.panel.fit
    window.resize(1440, 960)
    yield lambda: session.torch_ready and "sim:0" in {device.name for device in session.devices()}
    window.workspace.dashboard.panel.take_device("sim:0")
    window.workspace.dashboard.panel.change_fields(KEEPS_TOO_MUCH)
    yield lambda: fit.estimate is not None and fit.estimate.fits is False and len(fit.estimate.alternatives) > 2
    player.seen["headline"] = fit.headline
    yield from player.pictures("predicted")
    press_start(window)
    yield lambda: any(warning.level == "forecast" for warning in player.warnings())
    player.seen["forecast"] = next(warning.text for warning in player.warnings() if warning.level == "forecast")
    yield from player.pictures("warned")
    yield player.run_ended
    yield lambda: window.workspace.dashboard.banner.isVisible()
    window.workspace.dashboard.explanation.show_newest()
    yield (
        lambda: (
            window.workspace.dashboard.explanation.open and any(remedy.fields == FIX for remedy in _remedies(window))
        )
    )
    player.seen["explanation"] = _explanation(window)
    yield from player.pictures("explained")
    with session.store.lock:
        failed = session.store.run
    assert failed is not None
    remedy = next(remedy for remedy in _remedies(window) if remedy.fields == FIX)
    window.workspace.dashboard.explanation.apply(failed, remedy)
    yield lambda: session.running
    yield player.run_ended
    with session.store.lock:
        assert session.store.run is not None
        player.seen["status"] = session.store.run.summary()["status"]
    yield from player.pictures("finished")


KEEPS_TOO_MUCH = {
    "width": 16,
    "depth": 1,
    "batch": 1024,
    "sequence": 32,
    "steps": 100,
    "epochs": 1,
    "keep_intermediates": True,
}
"""A training that keeps 12 MiB of every step: few steps until the card is full, and little work in each."""

FIX = {"keep_intermediates": False}


LEAK = """
import logging
import time
import torch

device = torch.accelerator.current_accelerator()
weight = torch.nn.Parameter(torch.zeros(1024, 1024, device=device))
kept = []
for step in range(400):
    loss = (weight * 2).sum()
    kept.append(torch.ones(1024, 1024, device=device) + loss)
    print("step", step, flush=True)
    logging.getLogger("gpudash").info("step", extra={"step": step, "loss": float(step)})
    time.sleep(0.05)
"""
"""A script that keeps 4 MiB of every step."""


def watched_until_full(player: Player) -> Steps:
    """Watch a script that leaks: be warned of its line, see it run out of memory, open the report and look around."""
    window, session, panel = player.window, player.session, player.window.workspace.dashboard.panel
    window.resize(1440, 960)
    script = player.folder / "leak.py"
    script.write_text(LEAK)
    yield lambda: session.torch_ready
    panel.take_script(script)
    panel.script.python.setText(sys.executable)
    panel.script.simulate.set_card("768 MiB")
    press_start(window)
    yield lambda: any("leak.py:" in warning.text for warning in player.warnings())
    player.seen["warning"] = next(warning.text for warning in player.warnings() if "leak.py:" in warning.text)
    yield (
        lambda: (
            "leak.py:" in window.workspace.dashboard.banner.accessibleName()
            and "step 1" in window.workspace.dashboard.tabs.output.text.toPlainText()
        )
    )
    player.seen["selected"] = session.device_text(window.workspace.dashboard.selected)
    yield from player.pictures("watched")
    yield player.run_ended
    yield lambda: report_of(window.workspace.dashboard.banner.shown) is not None
    with session.store.lock:
        assert session.store.run is not None
        player.seen["summary"] = session.store.run.summary()
    player.seen["banner"] = window.workspace.dashboard.banner.accessibleName()
    window.workspace.dashboard.banner.action.emit("explain")
    yield lambda: window.workspace.dashboard.explanation.open
    player.seen["explanation"] = _explanation(window)
    yield from player.pictures("explained")
    window.workspace.dashboard.banner.action.emit("open_report")
    yield lambda: window.workspace.front is not None and window.workspace.front.ready
    document = window.workspace.front
    assert document is not None
    player.seen["title"] = window.windowTitle()
    assert document.page.study is not None
    player.seen["opened"] = document.page.study.explanation.to_json()
    yield from player.pictures("opened")
    page = document.page
    page.go("peak")
    page.selector.change(moment=page.selector.now.moment, compared=0)
    yield from player.pictures("compared")
    document.copy_values()
    player.seen["compared"] = QGuiApplication.clipboard().text()
    window.workspace.close_front()
    player.seen["behind"] = window.workspace.dashboard.explanation.page.isVisible()


def _remedies(window: MainWindow) -> tuple[Remedy, ...]:
    shown = window.workspace.dashboard.explanation.page.explanation
    return () if shown is None else tuple(remedy for remedy in shown.remedies if remedy.fits)


def _explanation(window: MainWindow) -> dict[str, Any]:
    shown = window.workspace.dashboard.explanation.page.explanation
    assert shown is not None
    return shown.to_json()


SIMULATIONS = {
    "designed_running": Simulation((GIB,)),
    "film": Simulation((GIB,)),
    "model": Simulation((4 * GIB,)),
    "out_of_memory_and_again": Simulation((GIB,)),
    "pictured_prediction": Simulation((8 * GIB,)),
    "strip": Simulation((512 * MIB,)),
}
"""Scenario → GPUs that are simulated for it."""

STARTS: dict[str, Callable[[], int]] = {
    "piped": lambda: cli_open.open_address(StandardInput()),
    "fleet": open_address,
    "generated_fleet": open_address,
    "login": open_machines,
    "machines": open_machines,
}
"""Scenario → how the window is opened, where that is not as ``gpudash`` alone does it."""

SCENARIOS: dict[str, Callable[[Player], Steps]] = {
    scenario.__name__: scenario
    for scenario in (
        ended_early_and_again,
        close_during_a_run,
        close_while_blocked,
        closed_while_a_program_saves,
        left_by_two_ctrl_c,
        warnings_while_blocked,
        run_without_torch,
        look,
        out_of_memory_and_again,
        watched_until_full,
        reopened,
        piped,
        film,
        story,
        strip,
        fleet,
        login,
        machines,
        comparison,
        compared,
        ranks,
        demo,
        demo_of_remedies,
        designed_explanation,
        designed_first_screen,
        designed_running,
        designed_short,
        designed_stage,
        designed_states,
        form,
        model,
        opening,
        first_screen,
        sample_report,
        generated_fleet,
        pictured_first_screen,
        pictured_leak,
        pictured_prediction,
    )
}

FROM_THE_FIRST_SCREEN = {
    "designed_first_screen",
    "film",
    "first_screen",
    "look",
    "pictured_first_screen",
    "story",
}
"""Scenarios that begin where a user does; the others where "All workloads" leads."""


def _play(name: str, folder: Path) -> None:
    window = next(widget for widget in QApplication.topLevelWidgets() if isinstance(widget, MainWindow))
    player = Player(window, folder)
    if name not in FROM_THE_FIRST_SCREEN:
        window.workspace.dashboard.leave_first_screen()
    steps = SCENARIOS[name](player)
    waiting: list[Callable[[], bool]] = [lambda: True]
    began = time.monotonic()
    timer = QTimer(window)

    def tick() -> None:
        late = time.monotonic() - began > PATIENCE_S
        if not late and not waiting[0]():
            return
        try:
            if late:
                player.picture("late")
                raise TimeoutError(f"{name} never came past {waiting[0]}")
            waiting[0] = next(steps)
        except StopIteration:
            timer.stop()
            player.finish()
        except Exception as error:  # the test wants to know, and the process must end
            timer.stop()
            player.seen["error"] = repr(error)
            player.finish()

    timer.timeout.connect(tick)
    timer.start(30)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    application = app_module.application()
    QTimer.singleShot(0, application, lambda: _play(name, folder))
    start = STARTS.get(name, lambda: leave(*app_module.run(SIMULATIONS.get(name))))
    sys.exit(start())


if __name__ == "__main__":
    main()
