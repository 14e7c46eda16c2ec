"""The NVML library: opening it once, its GPUs and their handles. Calls that may hang run on their own threads. Besides
`calls`, the only module that uses pynvml."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import pynvml

from gpudash.devices.known_gpus import is_integrated
from gpudash.devices.names import Gpu, pci_address
from gpudash.memory.predicting.architecture import multiprocessors_of
from gpudash.sources.host import HostReader
from gpudash.sources.nvml.calls import Instance, fullest_link, instances, optional, read_memory
from gpudash.sources.nvml.errors import NVML_ERRORS, Fault, NvmlUnavailableError, Scope, classify
from gpudash.sources.pci import PciDisplay, displays
from gpudash.system.threads import started
from gpudash.telemetry.records import State

T = TypeVar("T")

_WRONG_MODULE = Fault(
    None,
    Scope.LIBRARY,
    State.LOST,
    "the installed module pynvml is not nvidia-ml-py; run: pip install --force-reinstall nvidia-ml-py",
)

_NOT_BY_ADDRESS = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
"""Codes that say nothing about the GPU itself: another one is at that address now, or this driver cannot search by
address."""

_CLOSED = Fault(pynvml.NVML_ERROR_UNINITIALIZED, Scope.LIBRARY, State.LOST, "Uninitialized")


class PendingCall(Generic[T]):
    """Runs ``call`` on a daemon thread, immediately."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._result: T | None = None
        self._error: Exception | None = None
        self._began_s = time.monotonic()
        self._thread = started(f"gpudash {name}", self._run)

    @property
    def answered(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    @property
    def age_s(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._began_s

    def answer(self) -> T | None:
        """The result of the call; ``None`` while it is running.

        Raises:
            Exception: the call's own.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout_s: float) -> None:
        self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # raised again by `answer`
            self._error = error


def wait_for(calls: Iterable[PendingCall[T]], timeout_s: float) -> None:
    """Wait until all have returned, at most ``timeout_s`` altogether."""
    deadline = time.monotonic() + timeout_s
    for call in calls:
        call.wait(deadline - time.monotonic())


WSL_LIBRARY = "usr/lib/wsl/lib/libnvidia-ml.so.1"
"""Where the Windows driver puts NVML in every WSL 2."""


def _load_library_of_wsl(root: Path) -> None:
    """Load NVML from WSL's folder, whatever the linker's search path.

    WSL adds the folder to the search path in /etc/ld.so.conf.d/ld.wsl.conf, which is missing in a chroot and on
    systems with ``ldconfig=false`` in wsl.conf (MicrosoftDocs/WSL#1301). The linker returns a loaded library to
    everyone who asks for its name, as pynvml does next; if this one cannot be loaded, pynvml searches elsewhere.
    """
    library = root / WSL_LIBRARY
    if library.exists():
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library))


class Nvml:
    """A session with the NVML library, shared by the lanes of all GPUs.

    Handles belong to one `generation`: opening the library again invalidates all earlier ones, which must not be
    passed to the driver. Only one thread may call `open` and `close`, while no other is inside a call.

    Args:
        root: parent folder of ``sys``, ``proc`` and WSL's libraries.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._initialised = False
        self._fault: Fault | None = _CLOSED
        self._pending: dict[str, PendingCall[list[Gpu]]] = {}
        self._never_divided: set[str] = set()
        self.generation = 0

    @property
    def usable(self) -> bool:
        """Whether calls may be made."""
        return self._fault is None

    @property
    def fault(self) -> Fault | None:
        """Why it is not usable."""
        return self._fault

    def abandon(self, fault: Fault = _CLOSED) -> None:
        """Allow no more calls until it is opened again; running ones end by themselves."""
        with self._lock:
            # The first fault is the cause of the later ones.
            self._fault = self._fault or fault

    def open(self) -> None:
        """Initialise the library, after shutting down an earlier initialisation.

        Raises:
            NvmlUnavailableError: if the library or driver is missing or does not fit.
        """
        self._shut()
        if not hasattr(pynvml, "nvmlMemory_v2"):
            self._fault = _WRONG_MODULE
            raise NvmlUnavailableError(_WRONG_MODULE)
        _load_library_of_wsl(self._root)
        try:
            pynvml.nvmlInit()
        except NVML_ERRORS as error:
            self._fault = classify(error)
            raise NvmlUnavailableError(self._fault) from error
        with self._lock:
            self._initialised = True
            self._fault = None
            # From here on, old handles can be told from new ones.
            self.generation += 1

    def close(self) -> None:
        """Shut the library down; safe to call twice."""
        with self._lock:
            self._fault = _CLOSED
        self._shut()

    def gpus(self, patience_s: float = 1.0) -> list[Gpu]:
        """The GPUs that identify themselves within ``patience_s``, in NVML's order; `latecomers` returns the rest.

        Each is asked on its own thread, so that one that hangs hides no other. A GPU that is asleep is listed without
        waking it.

        Raises:
            NvmlUnavailableError: if the library has stopped responding.
        """
        try:
            for key, describe in self._descriptions():
                # Do not ask again before the first answer: that thread is still inside the driver.
                if key not in self._pending:
                    self._pending[key] = PendingCall(describe, f"describe GPU {key}")
            wait_for(self._pending.values(), patience_s)
        except NVML_ERRORS as error:
            raise NvmlUnavailableError(classify(error)) from error
        return self.latecomers()

    def latecomers(self) -> list[Gpu]:
        """GPUs that have identified themselves since the last call of `gpus` or of this.

        Raises:
            NvmlUnavailableError: if the library has stopped responding.
        """
        # First which have answered, then the answers: those arriving in between wait for the next call.
        answered = [key for key, question in self._pending.items() if question.answered]
        try:
            found = [self._pending.pop(key).answer() for key in answered]
        except NVML_ERRORS as error:
            raise NvmlUnavailableError(classify(error)) from error
        gpus: list[Gpu] = []
        for several in found:
            gpus += several or ()
        return sorted(gpus, key=lambda gpu: (gpu.nvml_index, gpu.parent, gpu.instance))

    def divided_now(self, wholes: Iterable[Gpu], patience_s: float = 1.0) -> list[Gpu]:
        """These GPUs as they are divided into MIG instances now, each followed by its instances.

        Omits GPUs that cannot be divided, and those that do not answer within ``patience_s``, which `latecomers`
        returns.

        Raises:
            NvmlUnavailableError: if the library has stopped responding.
        """
        questions = []
        for whole in wholes:
            key = str(whole.nvml_index)
            if key not in self._pending and whole.uuid not in self._never_divided:
                self._pending[key] = PendingCall(partial(self._divided, whole), f"divide GPU {key}")
                questions.append(self._pending[key])
        wait_for(questions, patience_s)
        return self.latecomers()

    def _divided(self, whole: Gpu) -> list[Gpu]:
        try:
            handle = self.handle(whole)
            if optional(lambda: pynvml.nvmlDeviceGetMigMode(handle)) is None:
                self._never_divided.add(whole.uuid)
                return []
            parts = instances(handle)
            return [replace(whole, instances=len(parts)), *(_instance(whole, part) for part in parts)]
        except NvmlUnavailableError:
            return []  # the GPU's reader reports it
        except NVML_ERRORS:
            return []

    def silent(self, since_s: float = 0.0) -> list[str]:
        """GPUs that have not identified themselves ``since_s`` seconds after the request, by index or PCI address."""
        pending = list(self._pending.items())
        return sorted(key for key, question in pending if not question.answered and question.age_s >= since_s)

    def handle(self, gpu: Gpu) -> Any:
        """A new handle for ``gpu``, found by PCI address and checked by UUID. If the address finds nothing, or for a
        MIG instance, which has its GPU's address, found by UUID.

        Raises:
            NvmlUnavailableError: if the GPU does not respond.
        """
        try:
            if not gpu.parent:
                handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
                # Another GPU may have been installed at that address, so compare the UUIDs.
                if not gpu.uuid.startswith("GPU-") or str(pynvml.nvmlDeviceGetUUID(handle)) == gpu.uuid:
                    return handle
        except NVML_ERRORS as error:
            fault = classify(error)
            # For a GPU that fell off the bus, the search by UUID is slow and in vain.
            if fault.code not in _NOT_BY_ADDRESS:
                raise NvmlUnavailableError(fault) from error
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        except NVML_ERRORS as error:
            raise NvmlUnavailableError(classify(error)) from error

    def driver_version(self) -> str | None:
        """Version of the driver, such as "580.65.06"."""
        return _version(pynvml.nvmlSystemGetDriverVersion)

    def library_version(self) -> str | None:
        """NVML's own version, such as "13.580.65.06"."""
        return _version(pynvml.nvmlSystemGetNVMLVersion)

    def cuda_version(self) -> str | None:
        """The newest CUDA version that the driver supports, such as "13.0".

        Not by the call's second version, which loads libcuda.
        """
        version = _version(pynvml.nvmlSystemGetCudaDriverVersion)
        if version is None:
            return None
        return f"{int(version) // 1000}.{int(version) % 1000 // 10}"

    def _descriptions(self) -> list[tuple[str, Callable[[], list[Gpu]]]]:
        """For each GPU a name, and the call that describes it and its MIG instances.

        Lookup by index wakes every GPU on the way; if one is asleep, PCI addresses are used instead.
        """
        cards = [card for card in displays(self._root) if card.is_nvidia]
        if any(card.asleep for card in cards):
            cards.sort(key=lambda card: pci_address(card.address))
            return [(card.address, partial(self._describe_card, index, card)) for index, card in enumerate(cards)]
        count = int(pynvml.nvmlDeviceGetCount())
        return [(str(index), partial(self._describe_index, index)) for index in range(count)]

    def _describe_index(self, index: int) -> list[Gpu]:
        try:
            return self._describe(index, pynvml.nvmlDeviceGetHandleByIndex(index))
        except NVML_ERRORS as error:
            if classify(error).scope is Scope.LIBRARY:
                raise
            return []  # one GPU that does not respond hides no other

    def _describe(self, index: int, handle: Any) -> list[Gpu]:
        product = str(pynvml.nvmlDeviceGetName(handle))
        parts = instances(handle)
        total, shared = self._capacity(handle, product, divided=bool(parts))
        version = optional(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        capability = None
        if version is not None:
            capability = (int(version[0]), int(version[1]))
        cores = optional(lambda: pynvml.nvmlDeviceGetNumGpuCores(handle))
        multiprocessors = None
        if cores and capability is not None:
            multiprocessors = multiprocessors_of(int(cores), capability)
        generation: int | None = None
        width: int | None = None
        if not shared:
            generation, width = fullest_link(handle)
        whole = Gpu(
            nvml_index=index,
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            pci_bus_id=_text(pynvml.nvmlDeviceGetPciInfo_v3(handle).busId),
            product=product,
            total_bytes=total,
            cuda_capability=capability,
            pcie_generation=generation,
            pcie_width=width,
            multiprocessors=multiprocessors,
            shared_memory=shared,
            instances=len(parts),
        )
        return [whole, *(_instance(whole, part) for part in parts)]

    def _capacity(self, handle: Any, product: str, *, divided: bool) -> tuple[int | None, bool]:
        """A GPU's memory in bytes, and whether it is the computer's, as it is if the driver reports none.

        Other errors, such as a missing permission, do not imply that; nor does a GPU ``divided`` into MIG instances.
        """
        total: int | None = None
        try:
            total = read_memory(handle).total
            shared = is_integrated(product)
        except NVML_ERRORS as error:
            fault = classify(error)
            if fault.scope is not Scope.METRIC:
                raise
            shared = not divided and fault.code == pynvml.NVML_ERROR_NOT_SUPPORTED
        if shared:
            return self._host_capacity(), True
        return total, False

    def _host_capacity(self) -> int:
        reader = HostReader(self._root)
        try:
            return reader.capacity_bytes
        finally:
            reader.close()

    def _describe_card(self, index: int, card: PciDisplay) -> list[Gpu]:
        if card.asleep:
            product, uuid = card.driver_facts()
            return [Gpu(index, uuid or f"PCI-{card.address}", card.address, product or "NVIDIA GPU")]
        try:
            return self._describe(index, _handle_of(card))
        except NVML_ERRORS as error:
            if classify(error).scope is Scope.LIBRARY:
                raise
            return []

    def _shut(self) -> None:
        with self._lock:
            initialised = self._initialised
            self._initialised = False
        # Outside the lock: the call may hang with the driver.
        if initialised:
            with contextlib.suppress(*NVML_ERRORS):
                pynvml.nvmlShutdown()


def _instance(whole: Gpu, part: Instance) -> Gpu:
    """A MIG instance as a GPU of its own; some drivers give it the whole GPU's name, others its profile's."""
    memory = optional(lambda: read_memory(part.handle))
    total = None
    if memory is not None:
        total = memory.total
    product = str(pynvml.nvmlDeviceGetName(part.handle))
    if "MIG" not in product:
        product = f"{product} MIG {part.profile}".rstrip()
    return replace(
        whole,
        uuid=str(pynvml.nvmlDeviceGetUUID(part.handle)),
        product=product,
        total_bytes=total,
        multiprocessors=part.multiprocessors,
        instances=0,
        parent=whole.uuid,
        instance=part.number,
    )


def _handle_of(card: PciDisplay) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByPciBusId(card.address)
    except pynvml.NVMLError_FunctionNotFound:
        _product, uuid = card.driver_facts()
        if uuid is None:
            raise
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _version(call: Callable[[], Any]) -> str | None:
    try:
        return str(call())
    except NVML_ERRORS:
        return None


def _text(value: bytes | str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value
