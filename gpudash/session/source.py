"""What a dashboard shows: the live session, a recording, or one GPU's past as a server tells it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpudash.devices.names import Device

if TYPE_CHECKING:
    from gpudash.devices.names import Gpu
    from gpudash.memory.request_log import RequestLogs
    from gpudash.session.live.session import Session
    from gpudash.session.watching.output.log import OutputLog
    from gpudash.system.settings import Settings
    from gpudash.telemetry.store import Store


class PlotSource(Protocol):
    """Readings on one time axis, of which plots are drawn; a `Session`, a `Replay` or a `FleetView`.

    What only a live session has (runs to command, forecasts, figures of its own) is asked of `live`, so that nothing
    here has to pretend. Attributes are read on the window's thread; `store` is read under its lock.
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
    def recording_path(self) -> Path | None:
        """The file it is recorded in, or comes from; ``None`` without one."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that readings are of."""

    def save_recording(self, target: Path) -> None:
        """Write a copy of what is recorded.

        Raises:
            ValueError: when there is nothing that is recorded.
            RecordingError: when the target cannot be written.
        """


class DashboardSource(PlotSource, Protocol):
    """What a dashboard shows: readings and runs, and the devices they are of; a `Session` or a `Replay`."""

    @property
    def output(self) -> OutputLog:
        """What a watched program printed, the newest lines."""

    @property
    def requests(self) -> RequestLogs:
        """What programs and runs asked of their allocators, as far as that is known."""

    @property
    def began_wall_s(self) -> float:
        """Seconds since the epoch at session time 0."""

    @property
    def running(self) -> bool:
        """Whether a run is on that can be stopped here."""

    @property
    def host_capacity_source(self) -> str:
        """What limits host memory: "RAM", or the name of a container's limit."""

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

    def close(self) -> bool:
        """Let go of files, threads and processes; false when a thread did not end in time."""
