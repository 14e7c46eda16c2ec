"""Opens fleets, their GPUs or machines, and comparisons as tabs; asks for the addresses of servers and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QInputDialog

from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.ui.features.file import refuse
from gpudash.ui.widgets.file_dialog import FileDialog
from gpudash.ui.widgets.remembered import recall, remember
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.session.addresses import ServerAddress
    from gpudash.session.fleet import Fleet
    from gpudash.session.recordings.replay import Replay
    from gpudash.session.remote import SshQuestion
    from gpudash.session.remote.fleet import SshFleet
    from gpudash.session.remote.machine import RemoteMachine
    from gpudash.system.settings import Settings
    from gpudash.telemetry.fleet_gpu import FleetGpu
    from gpudash.ui.fleet.compare_document import FleetComparison, GpuSide
    from gpudash.ui.fleet.document import FleetDocument
    from gpudash.ui.fleet.gpu_document import GpuDocument
    from gpudash.ui.fleet.header import Range
    from gpudash.ui.fleet.login import LoginDialog
    from gpudash.ui.fleet.machine_document import MachineDocument

REMEMBERED, REMEMBERED_MACHINES = "prometheus_servers", "ssh_machines"
"""Keys under which addresses are remembered."""

MOST_ADDRESSES = 8

SHORTEST_LIVE_S, LONGEST_LIVE_S = 60.0, 900.0
"""A comparison of two machines starts with the time for which they are known, within these limits."""

EXAMPLE = "http://localhost:9090"

ASK = "Address of the Prometheus server, such as http://host:9090:"

ASK_MACHINES = "Machines to log in to, named as for ssh and separated by spaces:"
EXAMPLE_MACHINES = "user@host"


def commands(workspace: Workspace) -> list[Command]:
    """File > Open Prometheus Server, File > Open Machines over SSH, File > Reconnect."""
    return [
        Command(
            "File",
            "Open Prometheus Server…",
            "Show every machine and GPU that a Prometheus server knows, the fullest first",
            partial(ask_for_server, workspace),
            id="file.open_server",
            after="file.open",
        ),
        Command(
            "File",
            "Open Machines over SSH…",
            "Show other machines live, each read over ssh; nothing is installed there",
            partial(ask_for_machines, workspace),
            id="file.open_machines",
            after="file.open_server",
        ),
        Command(
            "File",
            "Reconnect",
            "Reconnect machines over ssh that were lost or refused; ssh may ask for a password",
            partial(link_again, workspace),
            ("Ctrl+R",),
            id="file.reconnect",
            after="file.open_machines",
            why_not=partial(why_not_again, workspace),
        ),
    ]


def ask_for_server(workspace: Workspace) -> None:
    """Ask for a server's address and show its fleet; recent addresses are offered."""
    known = known_addresses(REMEMBERED) or [EXAMPLE]

    def opened(text: str) -> None:
        from gpudash.session.addresses import read_address

        try:
            address = read_address(text)
        except ValueError as error:
            workspace.notice.report(str(error))
            return
        open_fleet(workspace, address)

    _ask(workspace, "Open Prometheus Server", ASK, known, opened)


def ask_for_machines(workspace: Workspace) -> None:
    """Ask for machines and show them; recent ones are offered."""
    known = known_addresses(REMEMBERED_MACHINES) or [EXAMPLE_MACHINES]
    _ask(workspace, "Open Machines over SSH", ASK_MACHINES, known, lambda text: open_machines(workspace, text.split()))


def _ask(workspace: Workspace, title: str, label: str, known: Sequence[str], opened: Callable[[str], object]) -> None:
    dialog = QInputDialog(workspace)
    dialog.setWindowTitle(title)
    dialog.setLabelText(label)
    dialog.setOkButtonText("Open")
    dialog.setComboBoxItems(known)
    dialog.setComboBoxEditable(True)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.textValueSelected.connect(lambda text: opened(text.strip()) if text.strip() else None)
    dialog.resize(460, dialog.sizeHint().height())
    dialog.open()


def known_addresses(remembered: str) -> list[str]:
    """The recent addresses, the newest first."""
    kept = recall(remembered)
    if isinstance(kept, list):
        return [text for text in kept if isinstance(text, str)][:MOST_ADDRESSES]
    return []


def _remember(remembered: str, address: str) -> None:
    others = (other for other in known_addresses(remembered) if other != address)
    remember(remembered, [address, *others][:MOST_ADDRESSES])


def open_fleet(workspace: Workspace, address: ServerAddress) -> FleetDocument | None:
    """Show the fleet of the server at ``address`` in a tab; if it is open already, switch to it.

    A token that cannot be sent to that address is reported in one sentence.
    """
    from gpudash.session.fleet import Fleet
    from gpudash.ui.fleet.document import FleetDocument

    try:
        fleet = Fleet(address, settings=workspace.session.settings)
    except ValueError as error:
        workspace.notice.report(str(error))
        return None
    workspace.notice.dismiss()
    key = f"fleet {fleet.address}"
    if workspace.show_path(key):
        fleet.close()
        return None
    _remember(REMEMBERED, fleet.address)
    document = FleetDocument(
        fleet,
        workspace.colours,
        open_gpu=lambda gpu: open_gpu(workspace, fleet, gpu),
        compare=lambda gpus: compare_gpus(workspace, fleet, gpus),
    )
    fleet.start()
    workspace.add(document, key, document.title)
    return document


def open_machines(workspace: Workspace, given: Sequence[str]) -> FleetDocument | None:
    """Connect to machines ("host", "user@host:2222", with or without "ssh://") and show them in a tab.

    An invalid address is reported in one sentence.
    """
    try:
        fleet = machines(given, workspace.session.settings)
    except (ValueError, OSError, RecordingError) as error:
        workspace.notice.report(str(error))
        return None
    shown = show_machines(workspace, fleet)
    if shown is not None:
        fleet.start()
    return shown


def why_not_again(workspace: Workspace) -> str:
    """Why the current tab has nothing to reconnect, in a sentence; "" if it has."""
    unlinked = None
    if workspace.front is not None:
        unlinked = workspace.front.unlinked
    if unlinked is None:
        return "The current tab has no machine over ssh."
    if unlinked:
        return ""
    return "Every machine in this tab is connected or connecting."


def link_again(workspace: Workspace) -> None:
    """Reconnect the disconnected machines of the current tab."""
    if workspace.front is not None:
        workspace.front.link_again()


def machines(given: Sequence[str], settings: Settings) -> SshFleet:
    """A fleet of these machines, not connected yet.

    Raises:
        ValueError: an address is invalid; the message is one sentence.
        RecordingError, OSError: there is no room to record their readings.
    """
    from gpudash.session.remote.fleet import SshFleet, read_machines

    return SshFleet(read_machines(given), settings)


def show_machines(workspace: Workspace, fleet: SshFleet) -> FleetDocument | None:
    """Show machines in a tab, whose closing disconnects them; if they are shown already, close ``fleet`` and switch."""
    from gpudash.ui.fleet.document import FleetDocument

    workspace.notice.dismiss()
    key = " ".join(map(str, fleet.hosts))
    if workspace.show_path(key):
        fleet.close()
        return None
    _remember(REMEMBERED_MACHINES, " ".join(host.name for host in fleet.hosts))
    document = FleetDocument(
        fleet,
        workspace.colours,
        open_gpu=lambda gpu: open_machine(workspace, fleet, gpu),
        compare=lambda gpus: compare_machines(workspace, fleet, gpus),
        save=lambda: save_machines(workspace, fleet),
    )
    workspace.add(document, key, document.title)
    Logins(workspace, fleet.machines)
    return document


def save_machines(workspace: Workspace, fleet: SshFleet) -> None:
    """Choose a folder, and save the recording of every machine there."""
    chosen = FileDialog.ask_for_folder(workspace, "Save All Recordings", str(Path.home()))
    written: list[Path] = []
    if chosen and workspace.attempt(lambda: written.extend(fleet.save_recordings(Path(chosen)))):
        if len(written) == 1:
            what = written[0].name
        else:
            what = f"{len(written)} recordings"
        workspace.report(f"Saved {what} in {chosen}.")


class Logins(QObject):
    """Shows ssh's questions about some machines, one at a time, until the last user of the machines releases them.

    Args:
        workspace: its window asks, and its timer polls.
        machines: the machines.
    """

    def __init__(self, workspace: Workspace, machines: Sequence[RemoteMachine]) -> None:
        super().__init__(workspace)
        self._workspace, self._machines = workspace, machines
        self._dialog: LoginDialog | None = None
        workspace.refreshed.connect(self._poll)

    def _poll(self) -> None:
        dialog = self._dialog
        if dialog is not None:
            if dialog.question.open:
                return
            self._dialog = None
            dialog.reject()  # ssh has ended or no longer needs an answer
        if all(machine.held <= 0 for machine in self._machines):
            self._workspace.refreshed.disconnect(self._poll)
            self.deleteLater()
            return
        for machine in self._machines:
            question = machine.question
            if question is not None:
                self._ask(machine.name, question)
                return

    def _ask(self, name: str, question: SshQuestion) -> None:
        from gpudash.ui.fleet.login import LoginDialog

        dialog = LoginDialog(name, question, self._workspace.window())
        dialog.finished.connect(self._answered)
        self._dialog = dialog
        dialog.open()

    def _answered(self) -> None:
        self._dialog = None


def open_machine(workspace: Workspace, fleet: SshFleet, gpu: FleetGpu) -> MachineDocument | None:
    """Show a GPU's machine live in a tab, with that GPU selected."""
    from gpudash.ui.fleet.machine_document import MachineDocument

    machine = fleet.machine_of(gpu.key)
    if machine is None:
        return None
    device, key = gpu.uuid or "host", f"machine {machine.host}"
    shown = workspace.document(key)
    if isinstance(shown, MachineDocument):
        shown.show_device(device)
        workspace.show_path(key)
        return None
    document = MachineDocument(machine, workspace.colours, lambda: workspace.session.settings, device)
    document.ready.connect(lambda: workspace.serve(document))
    document.refused.connect(lambda sentence: refuse(workspace, document, sentence))
    workspace.add(document, key, document.title)
    return document


def open_gpu(workspace: Workspace, fleet: Fleet, gpu: FleetGpu) -> GpuDocument | None:
    """Show the past of a GPU in a tab; if it is open already, switch to it."""
    from gpudash.ui.fleet.gpu_document import FIRST, GpuDocument, points_for

    key = f"fleet {fleet.address} {gpu.key}"
    if workspace.show_path(key):
        return None
    try:
        view = fleet.view(gpu.key, *FIRST.at(fleet.now_s()), points_for(workspace.width()))
    except ValueError as error:
        workspace.notice.report(str(error))
        return None
    document = GpuDocument(view, gpu, workspace.colours, workspace.session.settings, wall_clock=fleet.now_s)
    workspace.add(document, key, document.title)
    workspace.serve(document)
    return document


def compare_gpus(workspace: Workspace, fleet: Fleet, gpus: Sequence[FleetGpu]) -> FleetComparison | None:
    """Overlay two GPUs in a tab, or one GPU and its previous day."""
    from gpudash.ui.fleet.compare_document import FleetComparison, GpuSide
    from gpudash.ui.fleet.gpu_document import FIRST, points_for

    a, b = gpus[0], gpus[-1]
    key = f"fleet {fleet.address} {a.key} vs {b.key}"
    if workspace.show_path(key):
        return None
    days = 1
    if a.key != b.key:
        days = 0
    now = fleet.now_s()
    other = FIRST
    if days:
        other = FIRST.days_before(days, now)
    try:
        views = fleet.compare(a.key, FIRST.at(now), b.key, other.at(now), points_for(workspace.width()))
    except ValueError as error:
        workspace.notice.report(str(error))
        return None
    document = FleetComparison(
        (GpuSide(views[0], a), GpuSide(views[1], b)), workspace.colours, chosen=FIRST, days=days, wall_clock=fleet.now_s
    )
    workspace.add(document, key, document.title)
    return document


def compare_machines(workspace: Workspace, fleet: SshFleet, gpus: Sequence[FleetGpu]) -> FleetComparison | None:
    """Overlay two memories of machines in a tab, live; the machines stay connected while it is open."""
    from gpudash.session.remote.memory_views import MemoryView
    from gpudash.ui.fleet.compare_document import GpuSide
    from gpudash.ui.fleet.header import Range

    found = [(gpu, fleet.machine_of(gpu.key)) for gpu in gpus]
    sides = []
    for gpu, machine in found:
        if machine is not None:
            machine.hold()
            problems = partial(_problems, machine)
            sides.append(GpuSide(MemoryView(machine, machine.release, grows=True, problems=problems), gpu))
    seconds = time.time() - min((machine.began_wall_s for _gpu, machine in found if machine is not None), default=0.0)
    return _lay(workspace, sides, Range(min(max(seconds, SHORTEST_LIVE_S), LONGEST_LIVE_S)))


def compare_recordings(workspace: Workspace, replays: Sequence[Replay]) -> FleetComparison | None:
    """Overlay the fullest memories of two recordings in a tab, which closes the recordings.

    Args:
        workspace: receives the tab and reports failures.
        replays: recordings of machines, positioned at their ends.
    """
    from gpudash.session.remote.memory_views import MemoryView, fullest_memory
    from gpudash.ui.fleet.compare_document import GpuSide
    from gpudash.ui.fleet.header import between

    try:
        gpus = [fullest_memory(replay, replay.host_name) for replay in replays]
    except RecordingError as error:
        workspace.notice.report(f"{error}.")
        for replay in replays:
            replay.close()
        return None
    sides = [GpuSide(MemoryView(replay, replay.close), gpu) for replay, gpu in zip(replays, gpus, strict=True)]
    began = min(replay.began_wall_s + replay.extent_s[0] for replay in replays)
    ended = max(replay.began_wall_s + replay.extent_s[1] for replay in replays)
    return _lay(workspace, sides, between(began, ended))


def _lay(workspace: Workspace, sides: Sequence[GpuSide], chosen: Range) -> FleetComparison | None:
    """Overlay two sides over this range."""
    from gpudash.ui.fleet.compare_document import FleetComparison

    if len(sides) != 2:
        return None
    a, b = sides
    key = f"memories {a.gpu.key} vs {b.gpu.key}"
    if workspace.show_path(key):
        for side in sides:
            side.view.close()
        return None
    latest_s = chosen.ended_wall_s or 0.0

    def now_s() -> float:
        return max(time.time(), latest_s)  # the recording computer's clock may be ahead

    document = FleetComparison((a, b), workspace.colours, chosen=chosen, days=None, wall_clock=now_s)
    document.ask()
    workspace.add(document, key, document.title)
    return document


def _problems(machine: RemoteMachine) -> list[str]:
    if machine.problem:
        return [machine.problem]
    return []
