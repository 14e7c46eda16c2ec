"""Compiles the stand-in for libnvidia-ml and writes what it plays.

In the same process::

    library = build(tmp_path)
    scenario = Scenario(gpus=[StubGpu(0)])
    with playing(library, tmp_path / "scenario", scenario):
        ...  # pynvml talks to the stub
        scenario.gpus[0].used = 8 * GIB
        scenario.write(tmp_path / "scenario")

In another process: set the `variables`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from tests.programs import program

GIB = 1024**3
MIB = 1024**2
SONAME = "libnvidia-ml.so.1"

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


@dataclass
class StubGpu:
    """A GPU of the stub. Bytes, watts and the like are what the driver would answer.

    Attributes:
        number: its identity: faults name it, UUID and PCI address come from it. Not its index (see `Scenario.order`).
        used: bytes, or steps ``[(seconds since the epoch, bytes), ...]``.
        processes: (pid, bytes or ``None`` for "not available", "C" or "G").
        counter_bits: where the PCIe byte counters wrap; 0: the card has none.
        counter_type: the ``nvmlValueType_t`` it claims for them.
        refuses: functions that it does not support.
        bus: its PCI address, where it is not made of its number.
        mig: whether it is divided into instances.
        instance_of: number of the GPU that this is a MIG instance of, at ``instance`` there; behind all whole ones.
        profile: of an instance: slices, MiB.
        xids: the XID errors so far; whoever registered before they were written is given them.
        links: NVLinks, of which `links_down` are not active.
        link_rate: KiB a second that come over all of them; half as much goes.
        link_errors: of each link, or where `errors_of_all_links` of all of them.
    """

    number: int
    name: str = "NVIDIA H200"
    total: int = 141 * GIB
    reserved: int = 600 * MIB
    used: int | Sequence[tuple[float, int]] = 2 * GIB
    processes: Sequence[tuple[int, int | None, str]] = ()
    utilisation: int = 37
    memory_utilisation: int = 12
    temperature: int = 41
    power_mw: int = 120_500
    clock_reasons: int = 0
    ecc_errors: int = 0
    sm_mhz: int = 1980
    memory_mhz: int | None = 3201
    generation: int = 5
    width: int = 16
    throughput_kb: int = 1000
    capability: tuple[int, int] = (9, 0)
    counter_bits: int = 32
    counter_type: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    counter_base: int = 0
    receive_rate: float = 0.0
    send_rate: float = 0.0
    cores: int = 132 * 128  # of an H100 (SXM)
    refuses: Sequence[str] = ()
    bus: str = ""
    mig: bool = False
    instance_of: int | None = None
    instance: int = 0
    profile: tuple[int, int] = (0, 0)
    xids: Sequence[int] = ()
    links: int = 18
    links_down: int = 0
    link_rate: float = 0.0
    link_errors: int = 0
    errors_of_all_links: bool = False

    @property
    def uuid(self) -> str:
        kind = "GPU" if self.instance_of is None else "MIG"
        return f"{kind}-{self.number:08x}-1111-2222-3333-444444444444"

    @property
    def pci(self) -> str:
        return self.bus or f"00000000:{0x41 + self.number:02X}:00.0"

    def lines(self) -> Iterator[str]:
        steps = [(0.0, self.used)] if isinstance(self.used, int) else self.used
        answers: Mapping[str, object] = {
            "uuid": self.uuid,
            "pci": self.pci if self.instance_of is None else "",
            "mig": int(self.mig),
            "parent": -1 if self.instance_of is None else self.instance_of,
            "instance": self.instance,
            "slices": self.profile[0],
            "profile_mib": self.profile[1],
            "name": self.name,
            "total": self.total,
            "reserved": self.reserved,
            "used": " ".join(f"{since}:{used}" for since, used in steps),
            "processes": " ".join(
                f"{pid}:{'na' if used is None else used}:{kind}" for pid, used, kind in self.processes
            ),
            "utilisation": self.utilisation,
            "memory_utilisation": self.memory_utilisation,
            "temperature": self.temperature,
            "power_mw": self.power_mw,
            "clock_reasons": self.clock_reasons,
            "ecc_errors": self.ecc_errors,
            "sm_mhz": self.sm_mhz,
            "memory_mhz": self.memory_mhz or 0,
            "cores": self.cores,
            "generation": self.generation,
            "width": self.width,
            "max_generation": self.generation,
            "max_width": self.width,
            "throughput_kb": self.throughput_kb,
            "capability": f"{self.capability[0]}.{self.capability[1]}",
            "counters": int(self.counter_bits > 0),
            "counter_type": self.counter_type,
            "counter_base": self.counter_base,
            "counter_modulus": 2**self.counter_bits if self.counter_bits else 0,
            "receive_rate": self.receive_rate,
            "send_rate": self.send_rate,
            "xids": " ".join(map(str, self.xids)),
            "links": self.links,
            "links_down": self.links_down,
            "link_rate": self.link_rate,
            "link_errors": self.link_errors,
            "errors_of_all_links": int(self.errors_of_all_links),
        }
        for key, value in answers.items():
            yield f"gpu.{self.number}.{key}={value}"
        for function in self.refuses:
            yield f"fault={self.number} {function} code {NOT_SUPPORTED} 0 inf"


def gb10(number: int = 0, **answers: Any) -> StubGpu:
    """The GPU of a DGX Spark: as far as users show it, its driver tells of no memory, link or memory clock."""
    return StubGpu(
        number,
        name="NVIDIA GB10",
        capability=(12, 1),
        cores=48 * 128,
        bus="0000000F:01:00.0",
        sm_mhz=2418,
        memory_mhz=None,
        power_mw=12_400,
        memory_utilisation=0,
        refuses=(
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetPcieThroughput",
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetTotalEccErrors",
        ),
        links=0,
        **{"counter_bits": 0, **answers},
    )


def h100_in_halves(**answers: Any) -> list[StubGpu]:
    """An H100 with two MIG instances 3g.40gb, of which the driver tells memory and processes.

    Args:
        answers: of both instances.
    """
    name = "NVIDIA H100 80GB HBM3"
    whole = StubGpu(0, name=name, total=81_559 * MIB, mig=True, refuses=("nvmlDeviceGetUtilizationRates",))
    not_of_instances = (
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetPciInfo_v3",
    )
    return [
        whole,
        *(
            StubGpu(
                number,
                name=f"{name} MIG 3g.40gb",
                total=40_448 * MIB,
                reserved=0,
                cores=60,
                instance_of=0,
                instance=number - 1,
                profile=(3, 40_448),
                refuses=not_of_instances,
                **{"used": number * GIB, **answers},
            )
            for number in (1, 2)
        ),
    ]


@dataclass
class Scenario:
    """What the stub plays. Times are seconds since `epoch` (monotonic); without one, since the first call.

    Attributes:
        gpus: with numbers from 0 up.
        order: index → number of the GPU, where they differ.
        faults: as `fault`, `hang` and `delay` write them.
    """

    gpus: list[StubGpu] = field(default_factory=list)
    driver: str = "580.65.06"
    cuda: int = 13000
    order: Sequence[int] | None = None
    epoch: float | None = None
    faults: list[str] = field(default_factory=list)

    def fault(
        self, function: str, code: int, gpu: int | None = None, *, begin: float = 0.0, end: float = math.inf
    ) -> Scenario:
        """``function`` answers ``code`` for ``gpu`` (``None``: for all) while the time is in [begin, end).

        "*" is every function that takes this GPU; of the library's own there is "nvmlInit" and those named in full.
        """
        self.faults.append(f"{_which(gpu)} {function} code {code} {begin} {end}")
        return self

    def hang(self, function: str, gpu: int | None = None, *, begin: float = 0.0, end: float = math.inf) -> Scenario:
        """``function`` does not return while the time is in [begin, end) and the scenario says so."""
        self.faults.append(f"{_which(gpu)} {function} hang 0 {begin} {end}")
        return self

    def delay(self, function: str, milliseconds: int, gpu: int | None = None) -> Scenario:
        """``function`` takes so long."""
        self.faults.append(f"{_which(gpu)} {function} delay {milliseconds} 0 inf")
        return self

    def lose(self, gpu: int, *, begin: float = 0.0, end: float = math.inf) -> Scenario:
        """The GPU falls off the bus at ``begin`` and can be found again from ``end`` on."""
        return self.fault("*", LOST, gpu, begin=begin, end=end)

    def mend(self) -> Scenario:
        """Takes all faults back; calls that hang return."""
        self.faults.clear()
        return self

    def begin_now(self) -> Scenario:
        self.epoch = time.monotonic()
        return self

    def write(self, path: Path) -> None:
        """Puts the scenario in force at once, whole."""
        whole = sum(gpu.instance_of is None for gpu in self.gpus)
        lines = [f"driver={self.driver}", f"cuda={self.cuda}", f"gpus={whole}"]
        if self.epoch is not None:
            lines.append(f"epoch={self.epoch!r}")
        if self.order is not None:
            lines.append("order=" + " ".join(map(str, self.order)))
        for gpu in self.gpus:
            lines += gpu.lines()
        lines += [f"fault={fault}" for fault in self.faults]
        draft = path.with_suffix(f".{time.monotonic_ns()}")
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.replace(path)


def _which(gpu: int | None) -> str:
    return "*" if gpu is None else str(gpu)


def build(folder: Path, hide: Sequence[str] = ()) -> Path:
    """Compiles the stub into ``folder`` under its real name and returns its path; skips where nothing compiles C.

    Args:
        folder: where to.
        hide: functions that this library lacks, as an older driver's does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / SONAME
    library.write_bytes(_compiled(program("gcc", "cc"), tuple(hide)))
    return library


@functools.cache
def _compiled(compiler: str, hide: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, SONAME)
        command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{SONAME}"]
        if hide:
            script = Path(folder, "symbols")
            script.write_text("{ local: " + " ".join(f"{name};" for name in hide) + " };", encoding="utf-8")
            command.append(f"-Wl,--version-script={script}")
        source = Path(__file__).with_name("stub.c")
        subprocess.run([*command, "-o", str(library), str(source), "-lm"], check=True)
        return library.read_bytes()


def variables(library: Path, scenario: Path) -> dict[str, str]:
    """Variables under which another process finds the stub and plays ``scenario``."""
    found = os.environ.get("LD_LIBRARY_PATH")
    folders = [str(library.parent), *([found] if found else [])]
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders), "NVML_STUB_SCENARIO": str(scenario)}


def without_driver(folder: Path) -> dict[str, str]:
    """Variables under which another process finds no library of the driver's, also where there is one."""
    (folder / SONAME).write_text("none", encoding="utf-8")
    return {"LD_LIBRARY_PATH": str(folder)}


class Playing:
    """The stub while pynvml of this process talks to it."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self._library = library
        self.path = path

    def play(self, scenario: Scenario) -> None:
        scenario.write(self.path)

    def calls(self, function: str, gpu: int | None = None) -> int:
        """How often ``function`` was called (for ``gpu``) since the stub began to play here."""
        counted = self._library.nvml_stub_calls
        counted.restype = ctypes.c_long
        return int(counted(function.encode(), -1 if gpu is None else gpu))

    @property
    def misuse(self) -> int:
        """How often a handle was used after its GPU was lost or the library shut down."""
        counted = self._library.nvml_stub_misuse
        counted.restype = ctypes.c_long
        return int(counted())


@contextlib.contextmanager
def playing(library: Path, path: Path, scenario: Scenario) -> Iterator[Playing]:
    """Makes pynvml of this process talk to the stub, and undoes it."""
    scenario.write(path)
    loaded = ctypes.CDLL(str(library))
    loaded.nvml_stub_scenario(str(path).encode())
    former = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = loaded
    try:
        yield Playing(loaded, path)
    finally:
        pynvml.nvmlLib = former
        pynvml._nvmlGetFunctionPointer_cache.clear()
