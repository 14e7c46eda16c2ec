"""A session without threads: a store that a test fills, and the devices that it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gpudash.devices.names import Device, Gpu, simulated_gpu
from gpudash.memory.watching.growth import Forecast
from gpudash.session.live.session import Session
from gpudash.session.serving.figures import Figures, Rows
from gpudash.telemetry.records import Record, Sample
from gpudash.telemetry.store import Store

GIB = 1024**3

GPU = Gpu(0, "GPU-0", "00000000:41:00.0", "NVIDIA H200", 141 * GIB)
SIM = simulated_gpu(0, 8 * GIB)


def forecast(seconds: float) -> Forecast:
    """A forecast of so many seconds."""
    return Forecast(seconds / 2, seconds, seconds * 2, "capacity", 141 * GIB, 1e9, 0.9)


class FakeSession:
    """What `Figures` and `Serving` ask of a session. Times are ``now_s`` unless a record says otherwise."""

    def __init__(self) -> None:
        self.store = Store()
        self.store.link("cuda:0", GPU.uuid)
        self.now_s = 100.0
        self.gpus: tuple[Gpu, ...] = (GPU, SIM)
        self.host_capacity_source = "RAM"
        self.forecasts: dict[str, Forecast] = {}
        self.emitted: list[Record] = []
        self.requested: list[tuple[Any, str]] = []
        self.answer: Any = None
        self.estimates = SimpleNamespace(ask=self._ask, newest=lambda: self.answer)

    def clock(self) -> float:
        return self.now_s

    def devices(self) -> list[Device]:
        cpu = Device("cpu", "AMD EPYC, 2 cores", 24 * GIB)
        return [cpu, Device("cuda:0", GPU.product, GPU.total_bytes, GPU.uuid), Device("sim:0", "", 0, SIM.uuid)]

    def forecast(self, memory: str) -> Forecast | None:
        return self.forecasts.get(memory)

    def status(self) -> Any:
        return SimpleNamespace(missed=3, own_cpu_ratio=0.25)

    def emit(self, record: Record) -> None:
        self.emitted.append(record)

    def apply(self, *records: Record) -> None:
        for record in records:
            self.store.apply(record)

    def read(self, table: Any, device: str | None, states: Any = None, **values: Any) -> None:
        """A reading taken now."""
        self.apply(Sample(self.now_s, table, device, values, states or {}))

    def _ask(self, spec: Any, device: str, *, alternatives: bool) -> int:
        self.requested.append((spec, device))
        return 7

    @property
    def session(self) -> Session:
        """This, as what it stands for."""
        return cast(Session, self)


class Gathered:
    """The rows of a session by metric name."""

    def __init__(self, fake: FakeSession) -> None:
        self._figures = Figures(fake.session)

    def rows(self, name: str, predicted: Any = None) -> Rows:
        """What is served of a metric now."""
        found = self._figures.gather(predicted)
        return next((rows for served, rows in found.items() if served.name == name), [])
