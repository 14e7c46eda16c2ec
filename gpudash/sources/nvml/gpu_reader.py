"""The readings of one GPU: for each metric a value, or the reason why there is none.

Its processes come from the driver's list, with names where they are visible from here. Transfer rates come from PCIe
byte counters that wrap around.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gpudash.devices.names import FASTEST_LINK_BYTES_PER_SECOND, Gpu, pci_address
from gpudash.sources.host import HostReader
from gpudash.sources.nvml import calls as nvml_calls
from gpudash.sources.nvml import nvlink, xid_events
from gpudash.sources.nvml.calls import ByteCounter
from gpudash.sources.nvml.errors import NVML_ERRORS, Fault, NvmlUnavailableError, Scope, classify
from gpudash.sources.nvml.library import Nvml
from gpudash.sources.nvml.nvlink import NvLinks
from gpudash.sources.nvml.xid_events import XidEvents
from gpudash.sources.pci import runtime_status
from gpudash.sources.processes import container_of, user_of
from gpudash.system.files import KeptFile
from gpudash.telemetry.records import Record, Sample, SourceFailed, SourceRecovered, State, Value

MEMORY = ("used_bytes", "free_bytes", "total_bytes", "driver_reserved_bytes")
PCIE = ("pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second")

NO_LINK = frozenset({"pcie_rx_bytes_per_second", "pcie_generation", "pcie_width"})
"""Metrics that are not read of a GPU that shares the computer's memory: it has no link."""

SENSOR_PERIOD_S = 0.25
"""Interval for utilisation, temperature, power and clocks: drivers update them every 1/6 s to 1 s (nvml.h)."""

REACQUIRE_PERIOD_S = 0.5
"""Interval of the search for a lost GPU."""

_DESTROYED = Fault(None, Scope.GPU, State.LOST, "the MIG instance was destroyed")

Answer = dict[str, Value]

_OK = State.OK
"""Looked up once: before Python 3.12 each access to an enum member runs a function."""


@dataclass(frozen=True, slots=True)
class DriverQuestion:
    """Metrics that one driver call provides. NaN means that a value was requested but not available."""

    metrics: tuple[str, ...]
    ask: Callable[[Any], Answer]


SENSORS = (
    DriverQuestion(("gpu_utilisation", "memory_utilisation"), nvml_calls.utilisation),
    DriverQuestion(("temperature_c",), nvml_calls.temperature),
    DriverQuestion(("power_w",), nvml_calls.power),
    DriverQuestion(("sm_clock_hz",), nvml_calls.sm_clock),
    DriverQuestion(("memory_clock_hz",), nvml_calls.memory_clock),
    DriverQuestion(("pcie_generation",), nvml_calls.pcie_generation),
    DriverQuestion(("pcie_width",), nvml_calls.pcie_width),
    DriverQuestion(("slowed_by_heat", "slowed_by_power", "clocks_event_reasons"), nvml_calls.slowdown),
)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A handle and its generation, in one object so that both lanes see them change together."""

    handle: Any
    generation: int


@dataclass(slots=True)
class _Reading:
    values: dict[str, Value] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)

    def gap(self, metrics: Iterable[str], state: State) -> None:
        for metric in metrics:
            self.values[metric] = None
            self.states[metric] = state


class GpuReader:
    """Reads one GPU on two lanes: `read_fast` for memory, counters and sensors, `read_slow` for expensive calls.

    A lost handle is never used again: `read_fast` looks for a new one twice a second. A metric that the driver does
    not support is not read again until then.

    Args:
        gpu: the GPU.
        nvml: the open library.
        root: parent folder of ``sys`` and ``proc``.
        family: PIDs of our own process and its children, for their share of the GPU's memory.
        reacquire_s: interval of the search for a lost GPU.

    Attributes:
        destroyed: whether a MIG instance has been destroyed: it is lost, even if its handle still works.
    """

    def __init__(
        self,
        gpu: Gpu,
        nvml: Nvml,
        *,
        root: Path = Path("/"),
        family: Callable[[], frozenset[int]] | None = None,
        reacquire_s: float = REACQUIRE_PERIOD_S,
    ) -> None:
        self.gpu = gpu
        self.destroyed = False
        self.states: dict[str, State] = {}
        self._nvml = nvml
        self._root = root
        self._family = family
        self._reacquire_s = reacquire_s
        self._held: _Held | None = None
        self._tried_generation = -1
        self._reacquire_at_s = -math.inf
        self._lost = False
        self._unsupported: set[str] = set()
        self._pool: HostReader | None = None
        if gpu.shared_memory:
            self._pool = HostReader(root)
        self._memory_version: int | None = None
        self._memory = DriverQuestion(MEMORY, self._ask_memory)
        self._counters = DriverQuestion(PCIE, self._ask_counters)
        self._throughput = DriverQuestion(PCIE, nvml_calls.pcie_throughput)
        self._slow = (
            DriverQuestion(("energy_j",), nvml_calls.energy),
            DriverQuestion(("ecc_uncorrected_errors",), nvml_calls.ecc_errors),
            DriverQuestion(nvlink.METRICS, self._ask_nvlink),
            DriverQuestion(("process_bytes",), self._ask_processes),
        )
        self._nvlink = _nvlinks()
        self._xids = XidEvents()
        self._xid_question = DriverQuestion(xid_events.METRICS, self._ask_xids)
        self._xid_generation = -1
        self._xid_rows: list[Sample] = []
        self._rates = WrappingRate(), WrappingRate()
        self._link = gpu.link_bytes_per_second or FASTEST_LINK_BYTES_PER_SECOND
        self._period_s = 0.05
        self._counters_refused = False
        self._sensors_due_s = -math.inf
        self._fast_now_s = self._slow_now_s = 0.0
        self._process_rows: list[Sample] = []
        self._runtime_status = _open_runtime_status(root, gpu)

    @property
    def title(self) -> str:
        return f"GPU {self.gpu.number} ({self.gpu.product})"

    @property
    def lost(self) -> bool:
        """Whether it has stopped responding and not come back."""
        return self._lost

    @property
    def memory_version(self) -> int | None:
        """2, or 1 where `used_bytes` includes the driver's reserved memory; ``None`` before the first reading of
        memory."""
        return self._memory_version

    def set_period(self, period_s: float) -> None:
        """Set the interval of `read_fast`, which decides whether counters can be trusted."""
        self._period_s = period_s

    def read_fast(self, now_s: float) -> list[Record]:
        """Memory, PCIe counters and, every quarter of a second, the sensors."""
        self._fast_now_s = now_s
        # Any driver call would wake it.
        asleep = self._asleep()
        records: list[Record] = []
        if not asleep:
            records = self._acquire(now_s)
        records += self._read(self._fast_questions(now_s), now_s, asleep)
        if self._lost and not asleep and self._held is not None:
            self._lost = False
            records.append(SourceRecovered(time_s=now_s, source=self.gpu.uuid, text=f"{self.title} answers again."))
        return records

    def read_slow(self, now_s: float) -> list[Record]:
        """Energy, errors, NVLinks, processes and, without counters, PCIe throughput: 3 to 50 ms."""
        asleep = self._asleep()
        if self._tried_generation < 0 and not asleep:
            return []  # the other lane has not acquired a handle yet
        self._slow_now_s = now_s
        self._process_rows = []
        self._xid_rows = []
        records = self._read(self._slow_questions(), now_s, asleep)
        # Errors first: their rows have earlier times than the reading.
        return [*self._xid_rows, *records, *self._process_rows]

    def stale_fast(self, now_s: float) -> list[Record]:
        """The row for a tick in which `read_fast` does not return."""
        return self._all_gaps((self._memory, *SENSORS, *self._pcie(self._counters)), now_s)

    def stale_slow(self, now_s: float) -> list[Record]:
        """The row for a tick in which `read_slow` does not return."""
        return self._all_gaps(self._slow_questions(), now_s)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._runtime_status is not None:
            self._runtime_status.close()
            self._runtime_status = None

    def _fast_questions(self, now_s: float) -> list[DriverQuestion]:
        questions = [self._memory, *self._pcie(self._counters)]
        if now_s >= self._sensors_due_s:
            # Half a tick early, so that a tick slightly too soon does not delay the sensors by a whole one.
            self._sensors_due_s = now_s + SENSOR_PERIOD_S - self._period_s / 2
            questions += SENSORS
        return questions

    def _slow_questions(self) -> list[DriverQuestion]:
        return [self._xid_question, *self._slow, *self._pcie(self._throughput)]

    def _pcie(self, question: DriverQuestion) -> tuple[DriverQuestion, ...]:
        """``question``, if it is the right one for PCIe: the counters, if the card has them and they are read often
        enough, else the call that samples a window."""
        counting = not self._counters_refused and self._period_s < safe_period_s(self._link)
        if (question is self._counters) == counting:
            return (question,)
        return ()

    def _read(self, questions: Sequence[DriverQuestion], now_s: float, asleep: bool) -> list[Record]:
        reading = _Reading()
        events: list[Record] = []
        # Read once: the other lane may drop the handle meanwhile.
        held = None
        if self._nvml.usable:
            held = self._held
        if held is not None and held.generation != self._nvml.generation:
            held = None
        for question in questions:
            if question is self._xid_question and held is None and not asleep and self._xids_outlive_it():
                self._ask(question, None, reading)
                continue
            if asleep:
                reading.gap(question.metrics, State.ASLEEP)
                continue
            if held is None:
                reading.gap(question.metrics, State.LOST)
                continue
            fault = self._ask(question, held.handle, reading)
            if fault is not None:
                events += self._drop(held, fault, now_s)
                held = None
        self._remember(reading)
        return [*events, Sample(now_s, "gpu", self.gpu.uuid, reading.values, reading.states)]

    def _ask(self, question: DriverQuestion, handle: Any, reading: _Reading) -> Fault | None:
        """Put the answer into ``reading``; returns the fault if the GPU or the library has stopped responding."""
        if question.metrics[0] in self._unsupported:
            reading.gap(question.metrics, State.NOT_SUPPORTED)
            return None
        try:
            answer = question.ask(handle)
        except NVML_ERRORS as error:
            fault = classify(error)
            reading.gap(question.metrics, fault.state)
            # The GPU or the library has stopped responding: skip the rest of this reading.
            if fault.scope is not Scope.METRIC:
                return fault
            if fault.permanent:
                self._refused(question)
            return None
        for metric, value in answer.items():
            # NaN: requested but not available; None: this GPU does not have it.
            if isinstance(value, float) and math.isnan(value):
                reading.gap((metric,), State.STALE)
            elif value is None:
                reading.gap((metric,), State.NOT_SUPPORTED)
            else:
                reading.values[metric] = value
        return None

    def _refused(self, question: DriverQuestion) -> None:
        if question is self._counters:
            self._counters_refused = True
        else:
            self._unsupported.add(question.metrics[0])

    def _acquire(self, now_s: float) -> list[Record]:
        """Get a handle if there is none of this generation; returns the records that report a failure."""
        if self.destroyed:
            return self._drop(self._held, _DESTROYED, now_s)
        generation = self._nvml.generation
        if self._held is not None and self._held.generation == generation:
            return []
        self._held = None
        # Immediately in a new generation, else twice a second: the driver of a lost GPU responds slowly.
        if not self._nvml.usable or (now_s < self._reacquire_at_s and self._tried_generation == generation):
            return []
        self._reacquire_at_s = now_s + self._reacquire_s
        self._tried_generation = generation
        try:
            handle = self._nvml.handle(self.gpu)
        except NvmlUnavailableError as failure:
            return self._drop(None, failure.fault, now_s)
        except NVML_ERRORS as error:
            return self._drop(None, classify(error), now_s)
        # A restarted driver may support what the previous one did not.
        self._unsupported = set(self._meaningless())
        self._counters_refused = False
        self._memory_version = None
        self._rates = WrappingRate(), WrappingRate()
        self._nvlink = _nvlinks()
        self._held = _Held(handle, generation)
        return []

    def _drop(self, held: _Held | None, fault: Fault, now_s: float) -> list[Record]:
        """Drop the handle for good; returns the event that reports it, once."""
        if fault.scope is Scope.LIBRARY:
            self._nvml.abandon(fault)
            return []
        if self._held is not held:
            return []  # the other lane has reported it, and may have a new handle by now
        self._held = None
        self._reacquire_at_s = now_s + self._reacquire_s
        if self._lost:
            return []
        self._lost = True
        text = f"{self.title} stopped answering ({fault.text}); its readings are gaps until it is back."
        return [SourceFailed(time_s=now_s, source=self.gpu.uuid, text=text)]

    def _asleep(self) -> bool:
        if self._runtime_status is None:
            return False
        try:
            return self._runtime_status.read().startswith(b"suspended")
        except OSError:
            return False

    def _all_gaps(self, questions: Iterable[DriverQuestion], now_s: float) -> list[Record]:
        reading = _Reading()
        for question in questions:
            state = State.STALE
            if question.metrics[0] in self._unsupported:
                state = State.NOT_SUPPORTED
            reading.gap(question.metrics, state)
        self._remember(reading)
        return [Sample(now_s, "gpu", self.gpu.uuid, reading.values, reading.states)]

    def _remember(self, reading: _Reading) -> None:
        self.states.update(dict.fromkeys(reading.values, _OK), **reading.states)

    def _meaningless(self) -> Iterable[str]:
        """First metrics of the questions that do not apply to this GPU: a MIG instance has only memory and processes,
        and the processes on a divided GPU are listed with its instances."""
        if self.gpu.parent:
            others = (*SENSORS, self._xid_question, *self._slow[:-1])
            return (PCIE[0], *(question.metrics[0] for question in others))
        if self.gpu.shared_memory:
            return NO_LINK
        if self.gpu.instances:
            return ("process_bytes",)
        return ()

    def _ask_memory(self, handle: Any) -> Answer:
        if self._pool is not None:  # available memory includes the system's file cache
            host = self._pool.read(self._fast_now_s)[0].values
            return {
                "used_bytes": host["used_bytes"],
                "free_bytes": host["available_bytes"],
                "total_bytes": host["total_bytes"],
                "driver_reserved_bytes": None,
            }
        memory = nvml_calls.read_memory(handle, self._memory_version)
        self._memory_version = memory.version
        return {
            "used_bytes": memory.used,
            "free_bytes": memory.free,
            "total_bytes": memory.total,
            "driver_reserved_bytes": memory.reserved,
        }

    def _ask_counters(self, handle: Any) -> Answer:
        counters = nvml_calls.pcie_counters(handle)
        answer: Answer = {}
        for metric, counter, rate in zip(PCIE, counters, self._rates, strict=True):
            value = rate.update(counter, self._fast_now_s, self._link)
            if value is not None:
                answer[metric] = value
        return answer

    def _ask_nvlink(self, handle: Any) -> Answer:
        return self._nvlink.ask(handle, self._slow_now_s)

    def _xids_outlive_it(self) -> bool:
        """Whether a lost GPU can still report the cause: its errors were queued before."""
        return self._xids.registered and self._nvml.usable and self._xid_generation == self._nvml.generation

    def _ask_xids(self, handle: Any) -> Answer:
        """The number of errors and the newest one; each earlier one gets its own row, so that none is missed."""
        # A queue is useless once the library has been opened again.
        if self._xid_generation != self._nvml.generation:
            self._xids.forget()
            self._xid_generation = self._nvml.generation
        try:
            codes = self._xids.take()  # before a GPU that has come back gets a new queue
        except NVML_ERRORS:
            self._xids.release()
            raise
        if handle is not None:
            self._xids.register(handle)
        earlier = codes[:-1]
        for number, code in enumerate(earlier):
            left = len(earlier) - number
            values: Answer = {"xid_errors": self._xids.count - left, "last_xid": code}
            # A microsecond apart and before the reading, to keep the order of the errors.
            self._xid_rows.append(Sample(self._slow_now_s - 1e-6 * left, "gpu", self.gpu.uuid, values))
        return {"xid_errors": self._xids.count, "last_xid": self._xids.last}

    def _ask_processes(self, handle: Any) -> Answer:
        found = nvml_calls.processes(handle)
        ours, self._process_rows = process_rows(found, self.gpu.uuid, self._slow_now_s, self._family)
        return {"process_bytes": ours}


def _nvlinks() -> NvLinks:
    return NvLinks((WrappingRate().update, WrappingRate().update))


def _open_runtime_status(root: Path, gpu: Gpu) -> KeptFile | None:
    domain, bus, device = pci_address(gpu.pci_bus_id)
    try:
        return KeptFile(runtime_status(root, f"{domain:04x}:{bus:02x}:{device:02x}.0"), size=32)
    except OSError:
        return None


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The initial PID namespace of every system (PROC_PID_INIT_INO in the kernel's proc_ns.h)."""


@functools.cache
def pids_are_the_drivers() -> bool:
    """Whether the driver and this process share a PID namespace: false in a container with its own.

    A process never changes its namespace, so this is checked once.
    """
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return not Path("/proc/self/ns").is_dir()


def process_rows(
    found: Mapping[int, int | None],
    device: str,
    now_s: float,
    family: Callable[[], frozenset[int]] | None = None,
    shared: bool | None = None,
) -> tuple[int | None, list[Sample]]:
    """Memory of our own processes in bytes, and a row for each process of a GPU.

    Args:
        found: memory by PID, in the driver's PID namespace.
        device: the GPU's UUID.
        now_s: session time.
        family: our own PIDs; this process by default.
        shared: whether our PIDs are the driver's; detected by default. If not, processes cannot be told apart and our
            own memory is ``None``.
    """
    if shared is None:
        shared = pids_are_the_drivers()
    rows = [_row(pid, memory, device, now_s, shared) for pid, memory in found.items()]
    if not shared:
        return None, rows
    ours = frozenset({os.getpid()})
    if family is not None:
        ours = family()
    mine = [memory for pid, memory in found.items() if pid in ours]
    if any(memory is None for memory in mine):
        return None, rows
    return sum(memory for memory in mine if memory is not None), rows


def _row(pid: int, memory: int | None, device: str, now_s: float, shared: bool) -> Sample:
    name: str | None = None
    user: str | None = None
    container: str | None = None
    if shared:
        name, user, container = _who(pid)
    values: dict[str, Value] = {
        "pid": pid,
        "name": name or f"host pid {pid} (not visible)",
        "user": user,
        "memory_bytes": memory,
        "container": container,
    }
    states = {}
    if memory is None:
        states = {"memory_bytes": State.NOT_SUPPORTED}
    return Sample(now_s, "process", device, values, states)


def _who(pid: int) -> tuple[str | None, str | None, str | None]:
    try:
        process = psutil.Process(pid)
        began = process.create_time()
        return str(process.name()), user_of(pid, began), container_of(pid, began)
    except (psutil.Error, OSError):
        return None, None, None


NARROW = 1 << 32

_TOLERANCE = 2.0
"""Tolerance for readings that are early or late: a rate of more than twice the link's means a counter reset."""


@dataclass(slots=True)
class WrappingRate:
    """The rate of a byte counter.

    nvml.h says the value "can be wrapped". Drivers type it as 64 bits and still wrap it at 2^32, so it counts as 32
    bits wide until a larger value has been seen.
    """

    _value: int = 0
    _time_s: float | None = None
    _wide: bool = False

    def update(self, counter: ByteCounter, time_s: float, limit: float) -> float | None:
        """Bytes per second since the last reading.

        Args:
            counter: the reading.
            time_s: time of the reading.
            limit: bytes per second that the link can carry, which decides whether more than one wrap is possible.

        Returns:
            ``None`` for the first reading. NaN if the counter was reset, or may have wrapped more than once.
        """
        before = self._value
        since_s = self._time_s
        self._value = counter.value
        self._time_s = time_s
        self._wide = self._wide or counter.value >= NARROW
        if since_s is None or time_s <= since_s:
            return None
        modulus = NARROW
        if self._wide:
            modulus = 1 << counter.bits
        elapsed_s = time_s - since_s
        # After one wrap the counter is below the previous value; the modulo gives the difference.
        rate = ((counter.value - before) % modulus) / elapsed_s
        if limit * elapsed_s >= modulus or rate > _TOLERANCE * limit:
            return float("nan")
        return rate


def safe_period_s(limit: float) -> float:
    """The longest period in which a 32-bit counter on a link of ``limit`` bytes per second wraps at most once."""
    return NARROW / limit
