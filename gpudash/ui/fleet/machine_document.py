"""A machine over ssh in a tab: the dashboard of its readings, live, and back through what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from gpudash.session.recordings.opener import OpenedRecording
from gpudash.ui.recordings.document import RecordingDocument

if TYPE_CHECKING:
    from gpudash.session import Replay
    from gpudash.session.remote.machine import RemoteMachine
    from gpudash.system.settings import Settings
    from gpudash.ui.colours import Palette
    from gpudash.ui.dashboard.dashboard import Dashboard

JOIN_S = 2.0
"""Seconds that closing waits for the reader of the recording to stop."""

STATES = {"linked": "live over ssh", "linking": "linking…", "waiting": "link lost, retrying", "given up": "no link"}


class MachineDocument(RecordingDocument):
    """One machine. It stays linked while this tab is open, even after the overview is closed.

    Args:
        machine: the machine; held until the document closes.
        palette: the window's colours.
        settings: returns the current settings; called once the recorded readings are loaded.
        device: device selected at first: UUID of a GPU, or "host".
    """

    def __init__(
        self, machine: RemoteMachine, palette: Palette, settings: Callable[[], Settings], device: str = "host"
    ) -> None:
        machine.hold()
        self._machine = machine
        self._device = device
        self._reader = OpenedRecording(
            machine.recording, machine.name, read=lambda _path, progress: machine.replay(progress)
        )
        super().__init__(self._reader, palette, settings)
        self.setAccessibleName(f"Machine {machine.name}")

    def show_device(self, device: str) -> None:
        """Select a device: UUID of a GPU, or "host"."""
        self._device = device
        if self.dashboard is not None:
            self.dashboard.select_device(device)

    def _add_parts(self, replay: Replay, dashboard: Dashboard) -> None:
        super()._add_parts(replay, dashboard)
        dashboard.leave_out_runs(f"{self._machine.name} over ssh")
        dashboard.select_device(self._device)

    def _show_text(self, replay: Replay, dashboard: Dashboard) -> None:
        super()._show_text(replay, dashboard)
        machine = self._machine
        if machine.greeting is None:
            product = ""
        else:
            product = machine.greeting.processor
        text = STATES[machine.state]
        if machine.state == "linked":
            text += f" since {datetime.fromtimestamp(machine.began_wall_s).astimezone():%H:%M:%S}"
        self.head.show_machine(machine.name, text, product)

    def _report_notices(self, text: str) -> None:
        button = ""
        if self.unlinked:
            button = "Reconnect"
        self.notice.report(text, button=button, run=self.link_again)

    @property
    def unlinked(self) -> tuple[str, ...] | None:
        if self._machine.problem is None:
            return ()
        return (self._machine.name,)

    def link_again(self) -> None:
        self._machine.link_again()

    def close_document(self) -> None:
        """Stop reading and release the machine."""
        super().close_document()
        self._reader.join(JOIN_S)
        self._machine.release()
