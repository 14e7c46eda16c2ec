"""A recording in place of a live session: the same store, nothing to command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from gpudash.devices import Device, Gpu, shown_name
from gpudash.session.output_log import OutputLine, OutputLog
from gpudash.settings import Settings
from gpudash.specs import Spec
from gpudash.telemetry.reading import open_recording
from gpudash.telemetry.records import Note, Output, RunStarted
from gpudash.telemetry.store import Store


class Replay:
    """Everything a recording holds, in a store.

    Args:
        recording: the file.

    Raises:
        RecordingError: one sentence, when it cannot be read.
    """

    running = False
    torch_ready = True
    gpu_problem: str | None = None
    gpus: tuple[Gpu, ...] = ()

    def __init__(self, recording: Path) -> None:
        self.recording = recording
        self.settings = Settings()
        self.store = Store()
        self.output = OutputLog()
        self._product = "CPU"
        self.host_capacity_source = "RAM"
        with open_recording(recording) as opened:
            self.began_wall_s = _origin(opened.meta.get("wall_clock_origin"), recording)
            self._product = opened.meta.get("host_product", "CPU")
            self.host_capacity_source = opened.meta.get("host_capacity_source", "RAM")
            for record in opened.records():
                self.store.apply(record)
                if isinstance(record, Note) and record.topic == "gpus":
                    self._devices(record)
                elif isinstance(record, Output):
                    self.output.add([OutputLine(record.stream, line) for line in record.lines])
                elif isinstance(record, RunStarted):
                    self.output.begin()

    def _devices(self, note: Note) -> None:
        self.gpus = tuple(_gpu(facts) for facts in note.details.get("gpus", ()))
        for name, uuid in note.details.get("torch_names", {}).items():
            self.store.link(name, uuid)

    def clock(self) -> float:
        """Time of the newest record."""
        return self.store.newest_s

    def devices(self) -> list[Device]:
        """The devices the recording knows of."""
        size = self.store.latest("host", "total_bytes").value
        host = Device("cpu", self._product, int(size) if isinstance(size, (int, float)) else None)
        return [
            host,
            *(
                Device(name, gpu.product, gpu.total_bytes, gpu.uuid)
                for gpu in self.gpus
                if (name := self.store.torch_name(gpu.uuid)) is not None
            ),
        ]

    def default_device(self) -> str:
        """The device of the last run."""
        return self.store.run.device if self.store.run is not None else "cpu"

    def device_words(self, device: str) -> str:
        """How a reading's device is called."""
        return "cpu" if device == "host" else shown_name(self.store.torch_name(device) or device)

    def set_settings(self, settings: Settings) -> None:
        """Look at the recording with other settings."""
        self.settings = settings

    def status(self) -> None:
        """There are no figures of a running session."""

    def forecast(self, device: str) -> None:
        """Nothing grows any more."""

    def start_run(self, spec: Spec, device: str) -> int:
        """Nothing runs in a recording.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("This is a recording; nothing can be run in it.")

    def stop_run(self) -> None:
        """Nothing runs in a recording."""

    def explain(self) -> None:
        """Nothing runs in a recording."""

    def free_cache(self) -> None:
        """A recording holds no memory."""

    def load_torch(self) -> None:
        """A recording needs no torch."""

    def mark(self, label: str, time_s: float | None = None) -> None:
        """A recording is not changed.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("This is a recording; marks are made while a session is recorded.")

    def save_recording(self, target: Path) -> None:
        """Copy the recording.

        Raises:
            OSError: when the target cannot be written.
        """
        target.write_bytes(self.recording.read_bytes())

    def close(self) -> bool:
        """Nothing to close."""
        return True


def _origin(text: str | None, recording: Path) -> float:
    """Seconds since the epoch at session time 0; when the file was last written where it does not say."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return recording.stat().st_mtime


def _gpu(facts: Mapping[str, Any]) -> Gpu:
    known = {field.name: facts[field.name] for field in fields(Gpu) if field.name in facts}
    capability = known.get("cuda_capability")
    return Gpu(**{**known, "cuda_capability": None if capability is None else tuple(capability)})
