"""What a dashboard shows: the live session, a recording, or one GPU's past as a server tells it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpudash.devices.names import Device

if TYPE_CHECKING:
    from gpudash.devices.names import Gpu
    from gpudash.memory.watching.growth import Forecast
    from gpudash.session.live.session import Session, Status
    from gpudash.session.watching.output_log import OutputLog
    from gpudash.settings import Settings
    from gpudash.telemetry.records import Warning
    from gpudash.telemetry.store import Store


class DashboardSource(Protocol):
    """Readings and runs on one time axis, and the devices they are of; `Session`, `Replay` and `FleetView` are one.

    What only a live session can do (run, watch, profile, predict, mark) is asked of `live`, so that nothing here has to
    pretend. Attributes are read on the window's thread; `store` is read under its lock.
    """

    @property
    def live(self) -> Session | None:
        """The session itself where one is on, to be commanded; ``None`` where a past is looked at."""

    @property
    def store(self) -> Store:
        """What is drawn and listed."""

    @property
    def settings(self) -> Settings:
        """Those in force."""

    @property
    def recording(self) -> Path | None:
        """The file it is recorded in, or comes from; ``None`` without one."""

    @property
    def output(self) -> OutputLog:
        """What a watched program printed, the newest lines."""

    @property
    def began_wall_s(self) -> float:
        """Seconds since the epoch at session time 0."""

    @property
    def running(self) -> bool:
        """Whether a run is on that can be stopped here."""

    @property
    def torch_ready(self) -> bool:
        """Whether torch needs no more waiting for."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that readings are of."""

    @property
    def gpu_problem(self) -> str | None:
        """One line saying why no GPU can be used, or why some are missing; ``None`` when all is well."""

    @property
    def host_capacity_source(self) -> str:
        """What limits host memory: "RAM", or the name of a container's limit."""

    def clock(self) -> float:
        """Session time of what is shown as the newest, in seconds."""

    def devices(self) -> list[Device]:
        """The CPU, then the GPUs that torch can use."""

    def default_device(self) -> str:
        """The device a run is put on, or was."""

    def device_text(self, device: str) -> str:
        """How a reading's device (a GPU's UUID or "host") is called in a sentence."""

    def run_title(self, number: int) -> str:
        """What the user has called the run ``number``, counted from 1; "" where nothing."""

    def set_settings(self, settings: Settings) -> None:
        """Put other settings in force."""

    def status(self) -> Status | None:
        """Figures for the status line; ``None`` where nothing is measured."""

    def forecast(self, device: str) -> Forecast | None:
        """When a memory ("host" or a GPU's UUID) reaches its capacity; ``None`` where it does not, or is past."""

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """A warning that stands with the newest figures, and what can be done now; ``None`` where nothing is newer.

        Args:
            warning: of a memory.
            ahead: what `forecast` has told of that memory.
        """

    def save_recording(self, target: Path) -> None:
        """Write a copy of what is recorded.

        Raises:
            ValueError: when there is nothing that is recorded.
            RecordingError: when the target cannot be written.
        """

    def close(self) -> bool:
        """Let go of files, threads and processes; false when a thread did not end in time."""


class PastSource:
    """What is the same of every `DashboardSource` in which nothing can be run, for it is past.

    Attributes:
        settings: it is looked at with.
    """

    live = None
    running = False
    torch_ready = True
    gpu_problem: str | None = None
    settings: Settings
    store: Store

    def clock(self) -> float:
        """The position in session time."""
        return self.store.newest_s

    def run_title(self, number: int) -> str:
        """Nobody has called any."""
        return ""

    def set_settings(self, settings: Settings) -> None:
        """Look at the past with other settings."""
        self.settings = settings

    def status(self) -> None:
        """There are no figures of a running session."""

    def forecast(self, device: str) -> Forecast | None:
        """Nothing grows any more."""
        return None

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """What was said then stands."""
        return None

    def _host(self, product: str) -> Device:
        """The machine, whose memory is as large as it was read to be."""
        size = self.store.latest("host", "total_bytes", at=math.inf).value
        return Device("cpu", product, int(size) if isinstance(size, (int, float)) else None)
