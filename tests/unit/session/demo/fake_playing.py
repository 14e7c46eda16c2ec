"""What the tour needs of a session: runs end when the test says so, with a result that the test gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from gpudash.devices.names import Device
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.explanation import Evidence, Explanation, Remedy, Where
from gpudash.telemetry.records import Event, RunEnd, RunStarted
from gpudash.telemetry.store import Store
from gpudash.units import GIB
from tests.unit.telemetry.run_ends import FAILED, RAN_OUT

CPU = Device("cpu", "EPYC", 16 * GIB)
SIM = Device("sim:0", "Simulated GPU", 8 * GIB, "SIM-0")
CUDA = Device("cuda:0", "NVIDIA H200", 141 * GIB, "GPU-0")


class Remedies:
    """Has found what it looks for unless `looking`."""

    looking = False

    def wait(self, timeout_s: float) -> bool:
        return not self.looking


class FakePlaying:
    """A session without a worker.

    Attributes:
        started: workload, device and cap of each run, in order.
        stops: how often a stop was asked for.
    """

    def __init__(self, *devices: Device, torch_ready: bool = True) -> None:
        self.store = Store()
        self.remedies = Remedies()
        self.torch_ready = torch_ready
        self.running = False
        self.refusal: str | None = None
        self.started: list[tuple[str, str, MemoryCap | None]] = []
        self.specs: list[Spec] = []
        self.stops = 0
        self._devices = list(devices) or [CPU, SIM]
        self._now_s = 0.0

    @property
    def runs(self) -> Self:
        return self

    def devices(self) -> list[Device]:
        return self._devices

    def default_device(self) -> str:
        return next((device.name for device in self._devices if device.kind == "cuda"), "cpu")

    def start_run(
        self,
        spec: Spec,
        device: str,
        guard_bytes: int | None = None,
        memory_cap: MemoryCap | None = None,
        isolate: bool | None = None,
    ) -> int:
        if self.refusal is not None:
            raise ValueError(self.refusal)
        assert not self.running, "two runs at once"
        self.started.append((spec.name, device, memory_cap))
        self.specs.append(spec)
        return self.begin(spec.name, device, spec.model_dump())

    def begin(self, workload: str = "training", device: str = "cpu", spec: dict[str, Any] | None = None) -> int:
        """A run begins, the user's unless the tour asked for it."""
        self.running = True
        run_id = len(self.store.runs) + 1
        self._apply(RunStarted(time_s=self._now_s, run_id=run_id, workload=workload, device=device, spec=spec or {}))
        return run_id

    stopping = None

    def stop_run(self, when: str = "") -> None:
        self.stops += 1

    def finish(self, status: Any = "finished", **result: Any) -> None:
        """The run that is on ends."""
        self._end(RunEnd(time_s=self._now_s, run_id=self._id, status=status, seconds=1.0, steps=3, result=result))

    def fail(self, message: str = "It broke.") -> None:
        """The run that is on fails."""
        failed = replace(FAILED, time_s=self._now_s, run_id=self._id, error="E", message=message, remedy="Mend it.")
        self._end(failed)

    def run_out(self, *remedies: Remedy) -> None:
        """The run that is on runs out of memory, with these remedies."""
        ended = replace(
            RAN_OUT, time_s=self._now_s, run_id=self._id, message="Memory ran out.", explanation=explained(*remedies)
        )
        self._end(ended)

    @property
    def _id(self) -> int:
        return len(self.store.runs)

    def _end(self, event: Event) -> None:
        self._apply(event)
        self.running = False

    def _apply(self, event: Event) -> None:
        self._now_s += 1.0
        self.store.apply(event)


def remedy(change: str, device: str | None = None, changes_training: bool = False, **fields: Any) -> Remedy:
    """A change that fits."""
    return Remedy(
        change,
        fields,
        device,
        predicted_peak_bytes=1,
        fits=True,
        verified_by="dry run",
        changes_training=changes_training,
    )


def explained(*remedies: Remedy) -> Explanation:
    """An explanation with nothing in it but what the tour reads."""
    return Explanation(
        device="sim:0",
        product="Simulated GPU",
        simulated=True,
        time_s=1.0,
        step=3,
        headline="A line keeps memory.",
        request_words="",
        verdict="leak",
        requested_bytes=None,
        segment_bytes=None,
        missing_bytes=0,
        where=Where(),
        capacity_bytes=GIB,
        parts=(),
        beyond_bytes=0,
        largest_free_block_bytes=0,
        by_category={"activations": GIB},
        owners=(),
        rest_owners=0,
        rest_bytes=0,
        growing=(),
        evidence=Evidence(events=0, of_events=0, began_s=None, live_bytes=0, without_stack_bytes=0),
        remedies=remedies,
    )
