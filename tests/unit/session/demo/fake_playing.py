"""A session, a process of lines and an estimator without anything behind them, for the show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from gpudash.devices.names import Device
from gpudash.session.predicting.estimator import Answer, Problem
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Event, RunEnd, RunStarted
from gpudash.telemetry.store import Store
from gpudash.units import GIB
from gpudash.workloads.lines.trace import LinesTrace
from tests.unit.session.demo.summaries import estimate
from tests.unit.telemetry.run_ends import FAILED

CPU = Device("cpu", "EPYC", 16 * GIB)
SIM = Device("sim:0", "Simulated GPU", 8 * GIB, "SIM-0")
CUDA = Device("cuda:0", "NVIDIA H200", 141 * GIB, "GPU-0")


class FakePlaying:
    """A session without a worker.

    Attributes:
        started: workload and device of each run, in order.
        stops: how often a stop was asked for.
    """

    def __init__(self, *devices: Device, torch_ready: bool = True) -> None:
        self.store = Store()
        self.torch_ready = torch_ready
        self.running = False
        self.refusal: str | None = None
        self.started: list[tuple[str, str]] = []
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
        self.started.append((spec.name, device))
        return self.begin(spec.name, device, spec.model_dump())

    def begin(self, workload: str = "training", device: str = "cpu", spec: dict[str, Any] | None = None) -> int:
        """A run begins, the user's unless the show asked for it."""
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

    @property
    def _id(self) -> int:
        return len(self.store.runs)

    def clock(self) -> float:
        return self._now_s

    def emit(self, *events: Event) -> None:
        for event in events:
            self.store.apply(event)

    def _end(self, event: Event) -> None:
        self._apply(event)
        self.running = False

    def _apply(self, event: Event) -> None:
        self._now_s += 1.0
        self.store.apply(event)


class FakeLines:
    """A process of lines that answers when it is told to.

    Attributes:
        requested: source and limit of each request.
        answer: what the next poll returns, once.
        stops, closed, warmed_up: what was asked of it.
    """

    def __init__(self) -> None:
        self.requested: list[tuple[str, int]] = []
        self.answer: LinesTrace | None = None
        self.stops = 0
        self.warmed_up = 0
        self.closed = False
        self.loading = False

    def ask(self, source: str, limit: int) -> None:
        self.requested.append((source, limit))

    def poll(self) -> LinesTrace | None:
        answer, self.answer = self.answer, None
        return answer

    def warm_up(self) -> str:
        self.warmed_up += 1
        return ""

    def stop(self) -> None:
        self.stops += 1

    def close(self) -> None:
        self.closed = True


class FakeRungs:
    """An estimator that needs a MiB less for every rung, or has a problem."""

    def __init__(self, problem: Problem | None = None) -> None:
        self.problem = problem
        self.requested: list[Spec] = []
        self.closed = False
        self.is_predicting = False

    def ask_card(self, spec: Spec, card: int) -> int:
        self.requested.append(spec)
        return len(self.requested)

    def newest(self) -> Answer | None:
        number = len(self.requested)
        if self.is_predicting:
            return None
        if self.problem is not None:
            return Answer(number, None, self.problem, final=True)
        return Answer(number, estimate(12 * GIB // number), None, final=True)

    def close(self) -> bool:
        self.closed = True
        return True
