"""A session without threads: the store is filled by hand, and what the window asks for is written down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from gpudash.devices.names import Device, Gpu, SimulatedCard, shown_name, simulated_device, simulated_gpu
from gpudash.devices.simulated_cards import program_card_name
from gpudash.memory.request_log import RequestLogs
from gpudash.memory.watching.growth import Forecast
from gpudash.memory.watching.watch import MemoryWatch
from gpudash.session import Answer, Status
from gpudash.session.live.machine import program_of
from gpudash.session.predicting.measured import MeasuredRun
from gpudash.session.predicting.remedies import SoFar
from gpudash.session.predicting.script_predictions import PredictedScript
from gpudash.session.watching.output.log import OutputLog
from gpudash.session.watching.program import SentSignal, Stopping, StopProgress
from gpudash.session.watching.request import WatchRequest
from gpudash.specs import Spec
from gpudash.system.settings import Settings
from gpudash.telemetry.records import (
    EpochFinished,
    Event,
    Note,
    Record,
    RunEnd,
    RunStarted,
    Sample,
    StageFinished,
    State,
    StepFinished,
    Warning,
)
from gpudash.telemetry.store import Store
from gpudash.units import GIB, MIB
from tests.ui.fake_estimates import FakeEstimates
from tests.unit.telemetry.copies import copied
from tests.unit.telemetry.run_ends import FAILED

PERIOD_S = 0.1
HOST_BYTES = 128 * GIB
GPU_BYTES = 24 * GIB


def gpu(index: int, product: str = "NVIDIA GeForce RTX 4090") -> Gpu:
    """A GPU as NVML lists it."""
    return Gpu(index, f"GPU-{index:08d}", f"00000000:{index + 1:02x}:00.0", product, GPU_BYTES)


LONG_NAMES = (
    "NVIDIA RTX 6000 Ada Generation Laptop GPU",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb Instance",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA GeForce RTX 4090",
)


class FakeRemedies:
    """Nothing is looked for."""

    so_far: SoFar | None = None

    def wait(self, timeout_s: float) -> bool:
        return True


class FakeMeasured:
    """Finds what a test puts into `found`."""

    def __init__(self) -> None:
        self.found: MeasuredRun | None = None
        self.requests: list[WatchRequest] = []

    def request(self, request: WatchRequest) -> None:
        self.requests.append(request)

    def forget(self, request: WatchRequest) -> None:
        self.found = None

    def of(self, request: WatchRequest) -> MeasuredRun | None:
        return self.found


class FakeScripts:
    """Answers a script with what a test puts into `answer`, as the real one does from a thread."""

    def __init__(self) -> None:
        self.following: PredictedScript | None = None
        self.answer: Answer | None = None
        self.begun: list[WatchRequest] = []
        self.refusal = ""
        self.stopped = False

    def begin(self, request: WatchRequest, cards: Sequence[SimulatedCard] = ()) -> None:
        if self.refusal:
            raise ValueError(self.refusal)
        self.begun.append(request)
        self.following = PredictedScript(request, "train.py", time.monotonic())

    def request(self, request: WatchRequest, cards: Sequence[SimulatedCard] = ()) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True
        self.following = None

    def of(self, request: WatchRequest) -> Answer | None:
        return self.answer


class FakeSession:
    """What the window needs of a session, and nothing behind it.

    Attributes:
        now_s: session time; `feed` moves it on.
        asked: the calls the window made, in order.
    """

    host_capacity_source = "RAM"
    began_wall_s = 1_700_000_000.0

    def __init__(
        self,
        gpus: Sequence[Gpu] = (),
        *,
        torch_ready: bool = True,
        gpu_problem: str | None = None,
        recording: Path | None = Path("/tmp/recordings/2026-11-21-101500-session.gpudash"),
        settings: Settings | None = None,
        simulator_problem: str | None = None,
    ) -> None:
        self.store = Store()
        self.simulator_problem = simulator_problem
        self.settings = settings or Settings()
        self.gpus = tuple(gpus)
        self._made: Gpu | None = None
        self.only_offered: frozenset[str] = frozenset()
        self.given: tuple[SimulatedCard, ...] = ()
        self.torch_ready = torch_ready
        self.gpu_problem = gpu_problem
        self.recording_path = recording
        self.titles: dict[int, str] = {}
        self.running = False
        self._stopping = Stopping("train.py", lambda _number: None)
        self.after_end = ""
        self.now_s = 0.0
        self.requested: list[tuple[Any, ...]] = []
        self.isolated: bool | None = None
        self.estimates = FakeEstimates()
        self.forecasts: dict[str, Forecast] = {}
        self.memory_watch = MemoryWatch()
        self.output = OutputLog()
        self.requests = RequestLogs()
        self.refusal: str | None = None
        self.remedies = FakeRemedies()
        self.measured = FakeMeasured()
        self.scripts = FakeScripts()
        for device in self.devices():
            if device.uuid is not None:
                self.store.link(device.name, device.uuid)

    @property
    def live(self) -> FakeSession | None:
        """Itself: runs can be started."""
        return self

    @property
    def machine(self) -> FakeSession:
        """Itself: it says what there is."""
        return self

    @property
    def runs(self) -> FakeSession:
        """Itself: it says how the end comes."""
        return self

    @property
    def simulated(self) -> FakeSession:
        """Itself: it knows which cards were made as they were asked for."""
        return self

    @property
    def chosen(self) -> frozenset[str]:
        return frozenset() if self._made is None else frozenset({self._made.uuid})

    @property
    def unused(self) -> frozenset[str]:
        return self.only_offered

    def simulate(self, card: SimulatedCard) -> str:
        """As the session does: a card that was made so before makes room for this one."""
        if self.refusal is not None:
            raise ValueError(self.refusal)
        self.requested.append(("simulate", card))
        given = tuple(found for found in self.gpus if found is not self._made)
        index = sum(found.simulated for found in given)
        self._made = simulated_gpu(index, card)
        self.gpus = (*given, self._made)
        self.store.link(f"sim:{index}", self._made.uuid)
        return f"sim:{index}"

    def clock(self) -> float:
        return self.now_s

    def devices(self) -> list[Device]:
        host = Device("cpu", "AMD EPYC 9554 64-Core Processor, 16 cores", HOST_BYTES)
        real = [found for found in self.gpus if not found.simulated]
        cuda = (Device(f"cuda:{n}", g.product, g.total_bytes, g.uuid) for n, g in enumerate(real))
        return [host, *cuda, *self._simulated()]

    def _simulated(self) -> Iterator[Device]:
        """The session's own cards, and behind each the programs' that are called as it is."""
        seen: set[str] = set()
        for found in self.gpus:
            device = simulated_device(found, self.simulator_problem)
            if found.simulated and device.name not in seen:
                seen.add(device.name)
                yield device
            elif found.simulated:
                name = program_card_name(found.nvml_index, found.total_bytes or 0)
                yield replace(device, name=name, problem="It is a program's.")

    def gpu_facts(self) -> list[tuple[str, str]]:
        return [("NVML", "Driver Not Loaded"), ("torch", "torch 2.13.0+cpu")]

    def check_gpus(self) -> None:
        self.requested.append(("check_gpus",))

    def default_device(self) -> str:
        return "cuda:0" if any(not found.simulated for found in self.gpus) else "cpu"

    def device_text(self, device: str) -> str:
        return "This computer's memory" if device == "host" else shown_name(self.store.torch_name(device) or device)

    def run_title(self, number: int) -> str:
        return self.titles.get(number, "")

    def program_of(self, spec: Spec, device: str) -> str:
        return program_of(spec, device, self.devices())

    def status(self) -> Status:
        return Status(
            recording=self.recording_path,
            recording_bytes=3 * MIB,
            rate_hz=20.0,
            missed=0,
            own_cpu_ratio=0.004,
            driver="580.159" if self.gpus else None,
            torch="torch 2.13.0+cu130" if self.gpus else "torch 2.13.0+cpu",
        )

    def start_run(self, spec: Spec, device: str, *, isolate: bool | None = None) -> int:
        self.requested.append(("start", spec.name, device))
        self.isolated = isolate
        self.running = True
        fields = spec.model_dump(mode="json")
        self.apply(RunStarted(time_s=self.now_s, run_id=1, workload=spec.name, device=device, spec=fields))
        return 1

    def watch(self, request: WatchRequest) -> int:
        if self.refusal is not None:
            raise ValueError(self.refusal)
        self.requested.append(("watch", request))
        self.watched("sim:0" if request.simulate else "cpu", request.spec())
        return 1

    def watched(self, device: str = "cpu", spec: dict[str, Any] | None = None) -> None:
        """A program of the user's begins."""
        self.running = True
        self._stopping = Stopping("train.py", lambda _number: None)
        self.output.begin()
        self.apply(RunStarted(time_s=self.now_s, run_id=1, workload="watch", device=device, spec=spec or {}))

    def emit(self, *records: Record) -> None:
        """As the session does, without its thread."""
        self.apply(*records)

    def attach(self, pid: int) -> int:
        if self.refusal is not None:
            raise ValueError(self.refusal)
        self.requested.append(("attach", pid))
        return 1

    def save_snapshot(self) -> None:
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        self.requested.append(("save_snapshot",))

    def forecast(self, device: str) -> Forecast | None:
        """What grows is put into `forecasts`, by its memory."""
        return self.forecasts.get(device)

    def standing(self, warning: Warning, ahead: Forecast | None) -> Warning | None:
        """As the session's watch says it, of a memory that it has seen."""
        return self.memory_watch.standing(warning, ahead)

    def set_settings(self, settings: Settings) -> None:
        self.settings = settings

    def stop_run(self, when: str = "", *, shutdown: bool = False) -> None:
        """A program gets the next signal, as of the session's `Stopping`."""
        self.requested.append(("stop",))
        run = self.store.run
        if self.running and run is not None and run.workload == "watch" and "pid" not in run.spec:
            (self._stopping.shut_down if shutdown else self._stopping.request)(when)

    @property
    def signals(self) -> Sequence[SentSignal]:
        """What the program was sent."""
        return self._stopping.sent

    @property
    def stopping(self) -> StopProgress | None:
        return self._stopping.progress if self.running else None

    def free_cache(self) -> None:
        self.requested.append(("free_cache",))

    def save_recording(self, target: Path) -> None:
        self.requested.append(("save", target))

    def mark(self, label: str, time_s: float | None = None) -> None:
        self.requested.append(("mark", label, time_s))

    def unmark(self, label: str, time_s: float) -> None:
        self.requested.append(("unmark", label, time_s))

    def close(self, when: str = "") -> bool:
        self.requested.append(("close",))
        return True

    def apply(self, *records: Record) -> None:
        """Put records into the store, as the session's thread does."""
        for record in records:
            self.store.apply(record)

    def feed(self, seconds: float, *, lost: str | None = None, full: float | None = None) -> Self:
        """Let time pass with readings of every device; the session itself.

        Args:
            seconds: session time.
            lost: UUID of a GPU that does not answer.
            full: how full the first GPU is, 0 to 1; ``None`` for a curve.
        """
        for _ in range(round(seconds / PERIOD_S)):
            self.now_s = round(self.now_s + PERIOD_S, 6)
            self.apply(_host(self.now_s))
            for number, device in enumerate(self.gpus):
                self.apply(_gpu(self.now_s, device.uuid, number, lost=device.uuid == lost, full=full))
        return self

    def start(self, device: str = "cpu", steps: int = 500) -> None:
        """A training run begins."""
        self.running = True
        simulated = device.startswith("sim")
        spec = {"steps": steps}
        self.apply(
            RunStarted(time_s=self.now_s, run_id=1, workload="training", device=device, spec=spec, simulated=simulated),
            Note(time_s=self.now_s, run_id=1, topic="corpus", text="1.0 MiB of text", details={"unigram_entropy": 3.1}),
        )

    def train(self, seconds: float, *, device: str = "cpu", steps: int = 500, loss: float | None = None) -> None:
        """Training steps, ten a second, with readings between them; ``loss`` takes the place of a falling one."""
        first = self.store.run.step if self.store.run is not None else 0
        for number in range(round(seconds / PERIOD_S)):
            self.feed(PERIOD_S)
            step = first + number + 1
            self.apply(*_step(self.now_s, step, steps, device, loss))

    def end(self, event: Event | None = None) -> None:
        """The run ends, well unless another end is given."""
        run = self.store.run
        assert run is not None
        done = RunEnd(
            time_s=self.now_s, run_id=1, status="finished", seconds=self.now_s - run.began_s, steps=run.step, result={}
        )
        self.apply(event if event is not None else done)
        self.running = False

    def failure(self) -> RunEnd:
        """How a run fails."""
        return replace(
            FAILED,
            time_s=self.now_s,
            error="RuntimeError",
            message="mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6).",
            remedy="Give both matrices the same inner size.",
            seconds=3.0,
            steps=12,
        )

    def warn(self, level: Any = "warning", device: str = "host") -> None:
        """Memory crosses a level."""
        self.apply(
            Warning(
                time_s=self.now_s,
                level=level,
                device=device,
                text=f"{self.device_text(device)} is 86 % full (20.6 of 24.0 GiB); this run holds 18.2 GiB. "
                "Stop the run, or give back what is held but not used.",
                ratio=0.86,
                actions=("stop", "free_cache", "save_recording"),
            )
        )


def _host(time_s: float) -> Sample:
    own = round((1.5 + 0.5 * math.sin(time_s / 7)) * GIB)
    return Sample(
        time_s,
        "host",
        None,
        {
            "total_bytes": HOST_BYTES,
            "available_bytes": 116 * GIB,
            "used_bytes": 12 * GIB,
            "free_bytes": 90 * GIB,
            "file_cache_bytes": 26 * GIB,
            "process_bytes": own,
            "swap_used_bytes": 0,
            "swap_total_bytes": 8 * GIB,
            "cpu_utilisation": 0.38 + 0.1 * math.sin(time_s),
            "process_cpu_utilisation": 0.9,
        },
    )


def _gpu(time_s: float, uuid: str, number: int, *, lost: bool, full: float | None) -> Sample:
    used = round(GPU_BYTES * (0.5 + 0.3 * math.sin(time_s / 11 + number) if full is None else full))
    values: dict[str, float | None] = {
        "used_bytes": used,
        "free_bytes": GPU_BYTES - used,
        "total_bytes": GPU_BYTES,
        "driver_reserved_bytes": 400 * MIB,
        "gpu_utilisation": 0.97,
        "memory_utilisation": 0.55,
        "temperature_c": 71.0,
        "power_w": 412.0,
        "pcie_rx_bytes_per_second": 19e9 + 2e9 * math.sin(time_s * 3),
        "pcie_tx_bytes_per_second": 3e9,
        "pcie_generation": 4,
        "pcie_width": 16,
        "process_bytes": round(used * 0.9),
    }
    if lost:
        return Sample(time_s, "gpu", uuid, dict.fromkeys(values), dict.fromkeys(values, State.LOST))
    return Sample(time_s, "gpu", uuid, values)


def _step(time_s: float, step: int, steps: int, device: str, loss: float | None) -> list[Record]:
    falling = 1.6 + 2.8 * math.exp(-step / 60) + 0.1 * math.sin(step * 1.7)
    value = falling if loss is None else loss
    accuracy = min(0.99, 0.6 * (1 - math.exp(-step / 80)))
    records: list[Record] = [
        StepFinished(
            time_s=time_s,
            run_id=1,
            step=step,
            steps=steps,
            seconds=0.1,
            loss=value,
            accuracy=accuracy,
            throughput=9830.0 + 40 * math.sin(step),
        )
    ]
    if step % 5 == 0:
        records += [
            replace(_STAGES[name], time_s=time_s, device=device, seconds=0.05 * share, count=5)
            for name, share in (("batch to device", 0.02), ("forward", 0.36), ("backward", 0.54), ("optimizer", 0.08))
        ]
        if device != "cpu":
            records.append(copied(time_s, 64 * MIB, 0.004, to_device=device))
    if step % 100 == 0:
        records.append(
            EpochFinished(
                time_s=time_s,
                run_id=1,
                epoch=step // 100,
                device=device,
                loss=falling,
                accuracy=accuracy,
                seconds=10.0,
                observation="loss fell by 38 %; accuracy is above the most frequent character's share",
            )
        )
    return records


_STAGES = {
    stage.name: stage
    for stage in (
        StageFinished(
            time_s=0,
            run_id=1,
            name="batch to device",
            seconds=0,
            bytes=192 * 1024,
            from_device="cpu",
            to_device="cpu",
            shape=(16, 64),
            dtype="int64",
            copied=False,
            remark="same device: torch returned the same tensor, 0 bytes copied",
        ),
        StageFinished(time_s=0, run_id=1, name="forward", seconds=0, shape=(16, 64, 128), dtype="float32", flops=4.1e9),
        StageFinished(time_s=0, run_id=1, name="backward", seconds=0, dtype="float32", flops=8.2e9),
        StageFinished(time_s=0, run_id=1, name="optimizer", seconds=0, dtype="float32"),
    )
}
