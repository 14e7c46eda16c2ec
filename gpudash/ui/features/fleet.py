"""Opens fleets, single GPUs of them and comparisons as tabs; asks for a server's address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QInputDialog

from gpudash.ui.widgets.remembered import recall, remember
from gpudash.ui.window.menus import Command
from gpudash.ui.window.workspace import Workspace

if TYPE_CHECKING:
    from gpudash.session.fleet import Fleet, FleetGpu
    from gpudash.ui.fleet.compare_document import FleetComparison
    from gpudash.ui.fleet.document import FleetDocument
    from gpudash.ui.fleet.gpu_document import GpuDocument

REMEMBERED = "prometheus_servers"
"""What the window remembers the addresses under."""

MOST_ADDRESSES = 8

EXAMPLE = "http://localhost:9090"

ASK = "Address of the Prometheus server, such as http://host:9090:"


def commands(workspace: Workspace) -> list[Command]:
    """File > Open Prometheus Server."""
    return [
        Command(
            "File",
            "Open Prometheus Server…",
            "Show every machine and GPU that a Prometheus server knows, the fullest first",
            partial(ask_for_server, workspace),
            id="file.open_server",
            after="file.open",
        )
    ]


def ask_for_server(workspace: Workspace) -> None:
    """Ask for a server's address and show its fleet; the addresses used last are offered."""
    dialog = QInputDialog(workspace)
    dialog.setWindowTitle("Open Prometheus Server")
    dialog.setLabelText(ASK)
    dialog.setOkButtonText("Open")
    dialog.setComboBoxItems(known_servers() or [EXAMPLE])
    dialog.setComboBoxEditable(True)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.textValueSelected.connect(lambda text: open_fleet(workspace, text.strip()) if text.strip() else None)
    dialog.resize(460, dialog.sizeHint().height())
    dialog.open()


def known_servers() -> list[str]:
    """The addresses used last, the newest first."""
    kept = recall(REMEMBERED)
    return [text for text in kept if isinstance(text, str)][:MOST_ADDRESSES] if isinstance(kept, list) else []


def open_fleet(workspace: Workspace, address: str) -> FleetDocument | None:
    """Show the fleet that the server at ``address`` knows in a tab; one that is open already comes to the front.

    An address that can be none is told in one sentence.
    """
    from gpudash.session.fleet import Fleet
    from gpudash.ui.fleet.document import FleetDocument

    try:
        fleet = Fleet(address, settings=workspace.session.settings)
    except ValueError as error:
        workspace.notice.tell(str(error))
        return None
    workspace.notice.dismiss()
    key = f"fleet {fleet.address}"
    if workspace.show_path(key):
        fleet.close()
        return None
    others = (other for other in known_servers() if other != fleet.address)
    remember(REMEMBERED, [fleet.address, *others][:MOST_ADDRESSES])
    document = FleetDocument(
        fleet,
        workspace.colours,
        open_gpu=lambda gpu: open_gpu(workspace, fleet, gpu),
        compare=lambda gpus: compare_gpus(workspace, fleet, gpus),
        wall_clock=fleet.now_s,
    )
    fleet.start()
    workspace.add(document, key, document.title)
    return document


def open_gpu(workspace: Workspace, fleet: Fleet, gpu: FleetGpu) -> GpuDocument | None:
    """Show the past of a GPU in a tab; one that is open already comes to the front."""
    from gpudash.ui.fleet.gpu_document import FIRST, GpuDocument, points_for

    key = f"fleet {fleet.address} {gpu.key}"
    if workspace.show_path(key):
        return None
    try:
        view = fleet.look(gpu.key, *FIRST.at(fleet.now_s()), points_for(workspace.width()))
    except ValueError as error:
        workspace.notice.tell(str(error))
        return None
    document = GpuDocument(view, gpu, workspace.colours, workspace.session.settings, wall_clock=fleet.now_s)
    workspace.add(document, key, document.title)
    workspace.serve(document)
    return document


def compare_gpus(workspace: Workspace, fleet: Fleet, gpus: Sequence[FleetGpu]) -> FleetComparison | None:
    """Lay two GPUs over one another in a tab, or one over the day before."""
    from gpudash.ui.fleet.compare_document import FleetComparison, GpuSide
    from gpudash.ui.fleet.gpu_document import FIRST, points_for

    a, b = gpus[0], gpus[-1]
    key = f"fleet {fleet.address} {a.key} vs {b.key}"
    if workspace.show_path(key):
        return None
    days = 0 if a.key != b.key else 1
    now = fleet.now_s()
    other = FIRST.days_before(days, now) if days else FIRST
    try:
        views = fleet.compare(a.key, FIRST.at(now), b.key, other.at(now), points_for(workspace.width()))
    except ValueError as error:
        workspace.notice.tell(str(error))
        return None
    document = FleetComparison(
        (GpuSide(views[0], a), GpuSide(views[1], b)), workspace.colours, chosen=FIRST, days=days, wall_clock=fleet.now_s
    )
    workspace.add(document, key, document.title)
    return document
