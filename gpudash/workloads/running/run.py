"""One run: configures torch as the spec says, calls the workload, and restores everything."""

from __future__ import annotations

import importlib
import logging
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import SPEED_REMARK, Device, kind_of
from gpudash.memory.explaining.call_sites import growth_warning
from gpudash.memory.explaining.memory_state import Surroundings
from gpudash.memory.watching.levels import HOST
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.specs.pressure import fills_memory
from gpudash.system.foreign_files import source_line
from gpudash.system.processes import give_back
from gpudash.telemetry.explanation import Explanation, Growth
from gpudash.telemetry.records import Event, MemoryExplained, RunEnd, RunStarted, Topic
from gpudash.workloads.post_mortem import PostMortem, Wanted, collector_for, explained
from gpudash.workloads.profiling import ProfileRequest
from gpudash.workloads.running import sim_backend as simulated
from gpudash.workloads.running.accelerators import AllocatorProbe, capped, module_of
from gpudash.workloads.running.context import Context, MemoryLevel, Requests
from gpudash.workloads.running.installed import gpu_uuid, way_to_torch
from gpudash.workloads.running.run_errors import Cancelled, Progress, WorkloadError, ending_of

if TYPE_CHECKING:
    import torch

    from gpudash.workloads.running.card_requests import RequestSink

logger = logging.getLogger(__name__)

Probe = Callable[[], Mapping[str, int | None]]
Workload = Callable[[Any, Context], Mapping[str, Any]]

NO_PEAKS: Mapping[str, int | None] = {"peak_allocated_bytes": None, "peak_reserved_bytes": None}

NOT_EXPLAINED = "What the memory of several devices holds is not explained; run on one of them alone for that."

DEVICES_REMEDY = "gpudash devices lists what there is."


@dataclass(frozen=True)
class RunRequest:
    """One run.

    Attributes:
        spec: what to run.
        device: torch's name of the device: "cpu", "cuda:0", "sim:0".
        run_id: its number in the session.
        refuse: called with the bytes of an announced allocation, its memory, "cpu" or `device`, and optionally the
            bytes known to be in use there; returns a sentence to refuse it.
        memory: returns the device's memory use; ``None`` without a reading.
        warn_ratio: memory level for a warning, 0 to 1.
        expected_uuid: the UUID that NVML reports for ``device``; any other ends the run. ``device`` if only torch
            knows it.
        link_bytes_per_second: theoretical rate of the link to the device, if known.
        cards: the simulated GPUs ``sim:0``, ``sim:1`` and so on.
        memory_cap: the most that torch may reserve on the device.
        surroundings: returns what else holds memory of the device, for explaining an out-of-memory.
        energy: reads the energy counter of a device, as `Context.energy` returns it.
        isolate: whether the run has a process of its own.
        profile: steps to profile from the start of the run, or after its first step.
        on_host: called with that process's ID before the run starts there, and with ``None`` once it has ended.
        on_cards: called with that process's ID and the figures of its simulated cards, some 40 times a second; with
            none once it has ended. Each rank of a run on several devices has its own card, whose figures then include
            its ``pid``.
        devices: what is known about the devices of a run on several, one per rank or per half of a split model.
        on_requests: called with a simulated card's name and the requests to it, for a run in a process of its own.
        on_ranks: called with a function that reads its ranks' resident bytes by process ID, and with ``None`` at its
            end.
    """

    spec: Spec
    device: str
    run_id: int
    refuse: Callable[..., str | None] | None = None
    memory: Callable[[], MemoryLevel | None] | None = None
    warn_ratio: float = 0.85
    expected_uuid: str | None = None
    link_bytes_per_second: float | None = None
    cards: tuple[SimulatedGpu, ...] = ()
    memory_cap: MemoryCap | None = None
    surroundings: Callable[[], Surroundings] | None = None
    energy: Callable[[str], tuple[float, float] | str] | None = None
    isolate: bool = False
    profile: ProfileRequest | None = None
    on_host: Callable[[int | None], None] | None = None
    on_cards: Callable[[int, Sequence[Mapping[str, Any]]], None] | None = None
    devices: tuple[Device, ...] = ()
    on_requests: RequestSink | None = None
    on_ranks: Callable[[Callable[[], Mapping[int, int]] | None], None] | None = None


@dataclass(eq=False)
class RequestedRun:
    """A run as the worker's thread performs it, here or in other processes.

    Attributes:
        emit, clock, on_probe: as for `Worker`.
        began_s: session time of its start.
    """

    request: RunRequest
    requests: Requests
    emit: Callable[[Any], None]
    clock: Callable[[], float]
    on_probe: Callable[[str, Probe], None] | None = None
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def _begun(self) -> RunStarted:
        """The run's first event."""
        request = self.request
        return RunStarted(
            time_s=self.began_s,
            run_id=request.run_id,
            workload=request.spec.name,
            device=request.device,
            spec=request.spec.model_dump(mode="json"),
            simulated=kind_of(request.device) == "sim",
        )

    def _stopped(self, progress: Progress) -> Event:
        """The ending of a run that stopped on request."""
        return ending_of(Cancelled(self.requests.because), progress, self.request.spec.name, self.request.device)

    def _killed(self, progress: Progress, patience_s: float) -> Event:
        """The ending of a run whose processes are killed, because it did not stop within so many seconds."""
        text = f"Ended by SIGKILL, sent by gpudash as it had not stopped {patience_s:g} s after it was asked to."
        signals = [{"signal": "SIGKILL", "when": f"{patience_s:g} s after it was asked to stop"}]
        return self._stopped(replace(progress, result={**progress.result, "stop": {"text": text, "signals": signals}}))


class Run(RequestedRun):
    """A run on the worker's thread, from its first event to its ending."""

    _context: Context | None = None
    _post_mortem: PostMortem | None = None
    _peaks: Mapping[str, int | None] = NO_PEAKS

    def perform(self, torch_problem: str | None = None) -> Event:
        """Run the workload; every exception becomes the event that reports it.

        Args:
            torch_problem: why torch is missing, which ends the run at once.

        Returns:
            the ending, not yet emitted: memory may be freed before it is reported.
        """
        self.emit(self._begun())
        try:
            if torch_problem is not None:
                raise WorkloadError("torch", f"{torch_problem.partition(';')[0]}.", f"Run: {way_to_torch()[1]}")
            result = self._run()
        except BaseException as error:  # a workload may raise anything, and every run has an ending
            if not isinstance(error, Cancelled):
                # as text: a handler that keeps the exception would keep the run's tensors
                logger.warning("run %d ended with an exception\n%s", self.request.run_id, traceback.format_exc())
            ending = ending_of(error, self._progress({}), self.request.spec.name, self.request.device)
            return explained(ending, self._post_mortem)
        return RunEnd(status="finished", **self._progress(result).fields())

    def _progress(self, result: Mapping[str, Any]) -> Progress:
        now, context = self.clock(), self._context
        return Progress(
            time_s=now,
            run_id=self.request.run_id,
            seconds=now - self.began_s,
            steps=context.steps_done if context is not None else 0,
            result={**(context.kept if context is not None else {}), **result, "memory": self._peaks},
        )

    def _run(self) -> Mapping[str, Any]:
        import torch

        request = self.request
        problems = request.spec.run_problems(request.device)
        if problems:
            raise WorkloadError("request", f"{'; '.join(problems)}.", DEVICES_REMEDY)
        if kind_of(request.device) == "sim":
            simulated.add(request.cards)
        device = torch.device(request.device)
        # Before anything is allocated: on the wrong GPU the readings would be those of another.
        confirm(device, request.expected_uuid)
        devices = (device, *(torch.device(one.name) for one in request.devices[1:]))
        for other, known in zip(devices[1:], request.devices[1:], strict=True):
            confirm(other, known.uuid)
        workload = resolve(request.spec)
        self._context = context = Context(
            device,
            run_id=request.run_id,
            emit=self.emit,
            clock=self.clock,
            requests=self.requests,
            refuse=request.refuse,
            memory=within(request.memory, request.memory_cap),
            warn_ratio=request.warn_ratio,
            link_bytes_per_second=request.link_bytes_per_second,
        )
        context.devices = devices
        context.energy_counter = request.energy
        remark = Device(request.device, "", None).remark
        if remark:
            context.keep(remark=remark)
        if device.type == "sim":
            context.keep(remark=SPEED_REMARK.format(device=device))
        # In this order, and left in reverse: threads and seeds around everything, memory recording innermost.
        with ExitStack() as stack:
            stack.enter_context(_torch_as_requested(request.spec, device))
            for one in devices:
                stack.enter_context(capped(one, request.memory_cap))
            stack.enter_context(self._probed(devices))
            stack.enter_context(self._followed(devices, context))
            context.check_cancelled()
            try:
                result = workload(request.spec, context)
                context.end_profile()
                context.flush()
            # Also for KeyboardInterrupt and SystemExit: a profiler left on would slow down all later runs.
            except BaseException:
                context.drop_profile()
                self._report_what_was_done(context)
                raise
            return dict(result)

    @staticmethod
    def _report_what_was_done(context: Context) -> None:
        try:
            context.flush()
        except Exception:  # a broken device raises further errors, but the first one is to be reported
            logger.warning("the stages of a run that failed could not be told\n%s", traceback.format_exc())
            context.drop_stages()

    @contextmanager
    def _followed(self, devices: tuple[torch.device, ...], context: Context) -> Iterator[None]:
        """Record who allocates what on a GPU, so that a full memory can be explained; not on several GPUs."""
        if len(devices) > 1:
            context.follow(_Unexplained(self.requests, context))
        collector = None
        if len(devices) == 1:
            collector = collector_for(devices[0], self.clock)
        if collector is None:
            yield
            return
        wanted = Wanted(
            self.request.surroundings,
            self._grows,
            self._is_explained,
            self.requests.take_explain,
            replays=not fills_memory(self.request.spec),
        )
        self._post_mortem = PostMortem(collector, self.clock, wanted)
        context.follow(self._post_mortem)
        with self._post_mortem.following():
            yield

    def _grows(self, growing: Sequence[Growth]) -> None:
        memory = self.request.expected_uuid or (HOST if self.request.device == "cpu" else self.request.device)
        self.emit(growth_warning(growing, memory, self.clock(), self.request.run_id, source_line))

    def _is_explained(self, explanation: Explanation) -> None:
        self.emit(
            MemoryExplained(
                time_s=self.clock(),
                run_id=self.request.run_id,
                text=f"{explanation.headline} {explanation.request_words}",
                explanation=explanation,
            )
        )

    @contextmanager
    def _probed(self, devices: tuple[torch.device, ...]) -> Iterator[None]:
        """Read allocators from the start of the run, and after it too: torch keeps what it has reserved."""
        if devices[0].type == "cpu":
            yield
            return
        by_torch = self.request.expected_uuid == self.request.device  # no other source reads it
        probes = [AllocatorProbe(device, with_memory=by_torch, clock=self.clock) for device in devices]
        if self._context is not None:
            self._context.peaks = probes[0].peaks
        if self.on_probe is not None:
            for device, probe in zip(devices, probes, strict=True):
                self.on_probe(str(device), probe)
        try:
            yield
        finally:
            self._peaks = {**probes[0].peaks()}
            if len(devices) > 1 and self._context is not None:
                rows = zip(devices, probes, strict=True)
                self._context.keep(devices=[{"device": str(device), **probe.peaks()} for device, probe in rows])


class _Unexplained:
    """For a run on several devices: reports that what their memory holds is not explained."""

    stage = ""

    def __init__(self, requests: Requests, context: Context) -> None:
        self._requests = requests
        self._context = context
        self._step = 0

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        if self._requests.take_explain():
            self._context.note(Topic.EXPLANATION, NOT_EXPLAINED)


def resolve(spec: Spec) -> Workload:
    """The function that ``spec.run`` names.

    Raises:
        WorkloadError: in one sentence, if it cannot be imported.
    """
    module, _, function = spec.run.partition(":")
    try:
        found: Workload = getattr(importlib.import_module(module), function)
    except Exception as error:  # a third-party module may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise WorkloadError(
            "workload",
            f"The workload {spec.name} cannot be loaded from {spec.run} ({type(error).__name__}: {first}).",
            "Fix or uninstall the package it comes from.",
        ) from error
    return found


def within(
    memory: Callable[[], MemoryLevel | None] | None, cap: MemoryCap | None
) -> Callable[[], MemoryLevel | None] | None:
    """Wrap ``memory`` to report no more free memory than ``cap`` allows."""
    if memory is None or cap is None:
        return memory

    def capped_level() -> MemoryLevel | None:
        level = memory()
        if level is None:
            return None
        # Computed as in torch: the fraction of the whole, rounded down (torch.cuda.set_per_process_memory_fraction).
        allowed = int(cap.fraction(level.total_bytes) * level.total_bytes)
        return replace(level, free_bytes=min(level.free_bytes, allowed))

    return capped_level


def confirm(device: torch.device, expected_uuid: str | None) -> None:
    """Make sure that torch has ``device``, may use it in this process, and that NVML means the same GPU.

    Raises:
        WorkloadError: in one sentence, if not.
    """
    import torch

    if device.type == "cpu":
        return
    index = device.index or 0
    if device.type in ("sim", "xpu", "mps"):
        module = getattr(torch, device.type)
        count = module.device_count() if module.is_available() else 0
        if index < count:
            return
        text = f"torch has no {device} here."
        if device.type == "sim":
            text = f"There is no {device}: {count} GPUs are simulated."
        raise WorkloadError("device", text, DEVICES_REMEDY)
    simulated.refuse_cuda()
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= there:
        built = torch.version.cuda or torch.version.hip
        build = "a CPU build"
        if built:
            build = f"built for {'CUDA' if torch.version.cuda else 'ROCm'} {built}"
        raise WorkloadError(
            "device", f"torch has no {device}: it sees {there} CUDA devices and is {build}.", DEVICES_REMEDY
        )
    if expected_uuid is None or not expected_uuid.startswith("GPU-"):
        return  # torch itself reported it; for a MIG instance some versions of CUDA report the UUID of its GPU
    found = gpu_uuid(torch.cuda.get_device_properties(device))
    if found is not None and found.partition("-")[2] != expected_uuid.partition("-")[2]:
        raise WorkloadError(
            "device",
            f"torch's {device} is the GPU {found}, not {expected_uuid} as expected.",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID before starting gpudash.",
        )


def release(*, context: bool = False) -> tuple[int | None, int | None]:
    """Free what a run has left: garbage, cuBLAS workspaces, cached segments, the host's freed heap.

    Args:
        context: also free a simulated GPU's context, as the end of a process of its own would.

    Returns:
        bytes torch had and has reserved on all GPUs, including simulated ones; ``None`` if no run has used any, which
        are then not initialised.

    Raises:
        RuntimeError: torch's, if CUDA is broken in this process.
    """
    give_back()
    backend = simulated.in_use()
    # Not imported for this: without a run there is nothing to free.
    if backend is not None:
        return simulated.release(backend, context=context)
    torch = sys.modules.get("torch")
    # Calling CUDA would create a context with hundreds of MiB.
    if torch is None or not torch.cuda.is_initialized():
        return None, None
    before = _reserved_bytes(torch)
    # cuBLAS keeps a workspace for each stream, which counts as allocated until it is cleared.
    clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # noqa: SLF001 - torch has no public name for it
    if clear_workspaces is not None:
        clear_workspaces()
    torch.cuda.empty_cache()
    return before, _reserved_bytes(torch)


def _reserved_bytes(torch: Any) -> int:
    return sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))


@contextmanager
def _torch_as_requested(spec: Spec, device: torch.device) -> Iterator[None]:
    """Set seeds and CPU threads for a run; a workload with large operations may increase the latter."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(spec.threads or 1)
    torch.manual_seed(spec.seed)
    random.seed(spec.seed)
    try:
        with nullcontext() if device.type == "cpu" else module_of(device).device(device):
            yield
    # Other runs in this process, and the window's own figures, must not inherit them.
    finally:
        torch.set_num_threads(threads)
