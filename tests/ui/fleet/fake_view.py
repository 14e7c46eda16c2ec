"""A look at a GPU's past without a server: what is asked is written down, and `answer` is what comes."""

from __future__ import annotations

import math

from gpudash.devices.names import Gpu
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.telemetry.records import Sample
from gpudash.telemetry.store import Store
from gpudash.units import GIB
from tests.ui.fake_session import FakeSession


class FakeView(FakeSession):
    """What the tabs of single GPUs need of a `gpudash.session.fleet.FleetView`.

    Attributes:
        ranges: what was asked for: begin, end, points.
        closings: how often it was closed.
        sought: moments that were asked for.
    """

    live = None
    shift_s, grows = 0.0, False

    def __init__(self, gpu: FleetGpu, began_wall_s: float, ended_wall_s: float, points: int = 800) -> None:
        told = Gpu(gpu.index or 0, gpu.uuid, "", gpu.product, gpu.total_bytes, simulated=gpu.simulated)
        super().__init__((told,))
        self.loading = True
        self.notices: list[str] = []
        self.closings = 0
        self.sought: list[float] = []
        self.ranges: list[tuple[float, float, int]] = [(began_wall_s, ended_wall_s, points)]
        self.began_wall_s = began_wall_s  # type: ignore[misc]

    def show_range(self, began_wall_s: float, ended_wall_s: float, points: int) -> None:
        self.ranges.append((began_wall_s, ended_wall_s, points))
        self.loading = True

    def answer(self, *, full: float = 0.5, until: float = 1.0, problem: str = "") -> None:
        """The newest question is answered: a hundred readings over this part of the range, or a problem."""
        self.loading = False
        self.notices = [problem] if problem else []
        if problem:
            return
        self.began_wall_s, ended, _points = self.ranges[-1]  # type: ignore[misc]
        seconds = ended - self.began_wall_s
        fresh, device = Store(), self.gpus[0].uuid
        for step in range(101):
            wave = math.sin(step / 10)
            values = {
                "used_bytes": round(full * 80 * GIB * (1 + 0.1 * wave)),
                "total_bytes": 80 * GIB,
                "gpu_utilisation": 0.5 + 0.4 * wave,
                "temperature_c": 60.0 + 5 * wave,
                "power_w": 300.0 + 50 * wave,
                "sm_clock_hz": 1.7e9 + 1e8 * wave,
                "memory_clock_hz": 2.6e9,
            }
            fresh.apply(Sample(until * seconds * step / 100, "gpu", device, values))
        fresh.rewound = self.store.rewound + 1
        self.store.__dict__.update({name: value for name, value in fresh.__dict__.items() if name != "lock"})

    def seek(self, time_s: float) -> None:
        self.sought.append(time_s)

    def close(self) -> bool:
        self.closings += 1
        return True
