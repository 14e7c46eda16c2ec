"""The NVML library: opening it once, its GPUs, their handles; a question that may never be answered is asked on a
thread of its own. Beside `calls`, what talks to pynvml."""

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
from gpudash.telemetry.records import State

T = TypeVar("T")

_WRONG_MODULE = Fault(
    None,
    Scope.LIBRARY,
    State.LOST,
    "the installed module pynvml is not nvidia-ml-py; run: pip install --force-reinstall nvidia-ml-py",
)

_NOT_BY_ADDRESS = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
"""Codes that say nothing of the GPU itself: another lies at the address now, or this driver finds none by address."""

_CLOSED = Fault(pynvml.NVML_ERROR_UNINITIALIZED, Scope.LIBRARY, State.LOST, "Uninitialized")


class PendingCall(Generic[T]):
    """Calls ``call`` on a daemon thread, at once."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._result: T | None = None
        self._error: Exception | None = None
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"gpudash {name}", daemon=True)
        self._thread.start()

    @property
    def answered(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    @property
    def age_s(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._began_s

    def answer(self) -> T | None:
        """What the call returned; ``None`` while it has not.

        Raises:
            Exception: what the call raised.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout_s: float) -> None:
        self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # handed to whoever asks for the answer
            self._error = error


def wait_for(calls: Iterable[PendingCall[T]], timeout_s: float) -> None:
    """Waits until all are answered, at most ``timeout_s`` in all."""
    deadline = time.monotonic() + timeout_s
    for call in calls:
        call.wait(deadline - time.monotonic())


WSL_LIBRARY = "usr/lib/wsl/lib/libnvidia-ml.so.1"
"""Where Windows's driver puts NVML into every WSL 2."""


def _load_library_of_wsl(root: Path) -> None:
    """Load NVML from WSL's folder, wherever the linker looks for libraries.

    WSL names the folder to the linker in /etc/ld.so.conf.d/ld.wsl.conf, which a chroot does not have, nor a system with
    ``ldconfig=false`` in its wsl.conf (MicrosoftDocs/WSL#1301). The linker gives a library that is loaded already to
    whoever asks for its name, as pynvml does next; where this one cannot be loaded, pynvml looks elsewhere.
    """
    library = root / WSL_LIBRARY
    if library.exists():
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library))


class Nvml:
    """One session with the NVML library, shared by the lanes of all GPUs.

    Handles belong to one `generation`: opening anew makes all earlier ones worthless, and none of them may be passed
    to the driver again. `open` and `close` are for one thread alone, while no other is inside a call.

    Args:
        root: where ``sys``, ``proc`` and WSL's libraries are found.
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
        """Lets no further calls be made until it is opened anew; those under way end by themselves."""
        with self._lock:
            # the first fault is the cause; later ones follow from it
            self._fault = self._fault or fault

    def open(self) -> None:
        """Initialises the library, after giving back an earlier initialisation.

        Raises:
            NvmlUnavailableError: when the library or driver is not there or does not fit.
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
            # from here on handles of before are told apart from new ones
            self.generation += 1

    def close(self) -> None:
        """Gives the library back; safe to call twice."""
        with self._lock:
            self._fault = _CLOSED
        self._shut()

    def gpus(self, patience_s: float = 1.0) -> list[Gpu]:
        """The GPUs in NVML's order that describe themselves within ``patience_s``; `latecomers` gives the others.

        Each is asked on a thread of its own, so that one that hangs hides no other. A sleeping one is listed without
        being woken.

        Raises:
            NvmlUnavailableError: when the library stopped answering.
        """
        try:
            for key, describe in self._descriptions():
                # one that has not answered is not asked a second time: its thread still waits in the driver
                if key not in self._pending:
                    self._pending[key] = PendingCall(describe, f"describe GPU {key}")
            wait_for(self._pending.values(), patience_s)
        except NVML_ERRORS as error:
            raise NvmlUnavailableError(classify(error)) from error
        return self.latecomers()

    def latecomers(self) -> list[Gpu]:
        """GPUs that have described themselves since `gpus` or this was last called.

        Raises:
            NvmlUnavailableError: when the library stopped answering.
        """
        # first who has answered, then the answers: what comes in between waits for the next call
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
        """These GPUs as they are divided into MIG instances by now, each followed by its instances.

        Left out are those that cannot be divided, and those that do not answer within ``patience_s``, which
        `latecomers` gives.

        Raises:
            NvmlUnavailableError: when the library stopped answering.
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
            return []  # whoever reads it says so
        except NVML_ERRORS:
            return []

    def silent(self, since_s: float = 0.0) -> list[str]:
        """GPUs asked ``since_s`` seconds ago who they are that have not answered, by index or PCI address."""
        pending = list(self._pending.items())
        return sorted(key for key, question in pending if not question.answered and question.age_s >= since_s)

    def handle(self, gpu: Gpu) -> Any:
        """A fresh handle of ``gpu``, found by PCI address and confirmed by UUID; by UUID where the address finds none,
        and of a MIG instance, which has its GPU's.

        Raises:
            NvmlUnavailableError: when the GPU does not answer.
        """
        try:
            if not gpu.parent:
                handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
                # another GPU may have been put in its place: the address alone does not say that it is the
                # same
                if not gpu.uuid.startswith("GPU-") or str(pynvml.nvmlDeviceGetUUID(handle)) == gpu.uuid:
                    return handle
        except NVML_ERRORS as error:
            fault = classify(error)
            # a GPU that fell off the bus would be looked for by UUID in vain, and slowly
            if fault.code not in _NOT_BY_ADDRESS:
                raise NvmlUnavailableError(fault) from error
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        except NVML_ERRORS as error:
            raise NvmlUnavailableError(classify(error)) from error

    def driver_version(self) -> str | None:
        """Such as "580.65.06"."""
        return _version(pynvml.nvmlSystemGetDriverVersion)

    def library_version(self) -> str | None:
        """NVML's own version, such as "13.580.65.06"."""
        return _version(pynvml.nvmlSystemGetNVMLVersion)

    def cuda_version(self) -> str | None:
        """The newest CUDA the driver serves, such as "13.0".

        The call's second version is not used: it loads libcuda.
        """
        version = _version(pynvml.nvmlSystemGetCudaDriverVersion)
        if version is None:
            return None
        return f"{int(version) // 1000}.{int(version) % 1000 // 10}"

    def _descriptions(self) -> list[tuple[str, Callable[[], list[Gpu]]]]:
        """For each GPU a name and the call that describes it and its MIG instances.

        Asking by index wakes every GPU on the way, so where one sleeps they are asked by their PCI addresses.
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
            return []  # one GPU that does not answer hides no other

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
        """Bytes of a GPU's memory, and whether they are the computer's, as they are where the driver knows of none.

        Any other error, such as a missing permission, says nothing of the kind, and neither does a GPU that is
        ``divided`` into MIG instances.
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
        # outside of the lock: the call may hang with the driver
        if initialised:
            with contextlib.suppress(*NVML_ERRORS):
                pynvml.nvmlShutdown()


def _instance(whole: Gpu, part: Instance) -> Gpu:
    """A MIG instance as a GPU of its own; drivers name its profile, or only the whole GPU."""
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
