"""Recordings for the window's tests, and opening them there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gpudash.devices.names import Gpu
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Marker, Note, Record
from gpudash.ui.recordings.document import RecordingDocument
from gpudash.ui.window.main_window import MainWindow
from tests.ui.conftest import settle
from tests.ui.fake_session import FakeSession

MARK_S = 9.123456


class KeptSession(FakeSession):
    """Keeps what it applies, for a recording."""

    def __init__(self, gpus: Sequence[Gpu] = ()) -> None:
        self.kept: list[Record] = []
        super().__init__(gpus)
        if gpus:
            facts = [
                {"nvml_index": g.nvml_index, "uuid": g.uuid, "pci_bus_id": g.pci_bus_id, "product": g.product}
                | {"total_bytes": g.total_bytes, "simulated": g.simulated}
                for g in gpus
            ]
            names = {device.name: device.uuid for device in self.devices() if device.uuid}
            self.apply(Note(time_s=0.0, topic="gpus", text="GPUs", details={"gpus": facts, "torch_names": names}))

    def apply(self, *records: Record) -> None:
        super().apply(*records)
        self.kept.extend(records)

    def save(self, path: Path, ending: str | None = "closed") -> Path:
        """Write what was applied as a recording."""
        recorder = Recorder(
            path,
            meta={
                "wall_clock_origin": datetime.fromtimestamp(self.began_wall_s, UTC).isoformat(),
                "host_product": self.devices()[0].product,
                "rate_hz": 10,
            },
        )
        for record in self.kept:
            recorder.add(record)
        if ending is not None:
            recorder.close(ending)
        return path


def trained(gpus: Sequence[Gpu] = (), seconds: float = 12.0, device: str = "cpu") -> KeptSession:
    """A session with a training run, a mark of the user's and a warning in it."""
    session = KeptSession(gpus)
    session.feed(3.0)
    session.start(device, steps=round(seconds * 10))
    session.train(seconds, device=device, steps=round(seconds * 10))
    session.apply(Marker(time_s=MARK_S, label="here it began", category="user"))
    session.warn()
    session.end()
    session.feed(0.3)
    return session


def open_recording(window: MainWindow, path: Path, qtbot: QtBot) -> RecordingDocument:
    """Open a recording and wait until it is shown."""
    window.workspace.open(path)
    document = window.workspace.front
    assert isinstance(document, RecordingDocument)
    wait_until_shown(window, document, qtbot)
    return document


def wait_until_shown(window: MainWindow, document: RecordingDocument, qtbot: QtBot) -> None:
    def shown() -> bool:
        window.workspace.refresh()
        return document.replay is not None

    qtbot.waitUntil(shown, timeout=20_000)
    settle(window)
    QApplication.processEvents()
