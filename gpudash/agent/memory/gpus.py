"""Watches torch's memory from its import on: figures, memory history, out-of-memory errors, simulated GPUs.

`Allocators` reads the figures without creating, changing or resetting anything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ..attach.lasting import Lasting
from ..guest import note_fault
from ..stepping.batch_shapes import BatchShapes
from ..stepping.steps import Steps
from ..wire import Message
from . import history, simulating
from .request_trace import RequestTraces
from .snapshots import Snapshots

HEARTBEAT_S = 1.0
"""Interval after which unchanged figures are sent again: silence means that they are unknown."""

HISTORY_ENTRIES = 100_000

Post = Callable[[Message], None]


class Gpus:
    """Watches the memory of the program's devices.

    Args:
        torch: the torch module.
        config: the dashboard's settings.
        post, keep: send a message.
        steps: provides the current step.
        report_steps: sends the steps completed so far.
        lasting: hooks that torch cannot remove.
        shapes: provides the shapes of batches.
    """

    def __init__(
        self,
        torch: Any,
        config: dict[str, Any],
        post: Post,
        keep: Post,
        steps: Steps,
        report_steps: Callable[[], Any],
        lasting: Lasting,
        shapes: BatchShapes,
    ) -> None:
        self._torch = torch
        self._config = config
        self._post = post
        self._keep = keep
        self._allocators = Allocators()
        self._snapshots = Snapshots(config.get("report"), keep, lambda: steps.present, report_steps, shapes)
        self._lasting = lasting
        entries = int(config.get("history_entries") or HISTORY_ENTRIES)
        self._history = history.AgentHistory(entries, keep, steps, lasting)
        traced = config.get("trace")
        self._traces: RequestTraces | None = None
        if isinstance(traced, dict):
            self._traces = RequestTraces(traced["folder"], traced["capacity"])
        self._steps = steps
        self._problems: list[str] = []
        self._failed = False
        self._followed: Any = None
        self._cards: tuple[Any, ...] = ()
        self._last: dict[str, Any] = {}
        self._reported_s = 0.0
        self._said = 0

    def attach(self) -> None:
        """Apply the settings to this torch, and report what was possible."""
        try:
            self._attach()
        except Exception as error:
            note_fault(error)
            self._note(f"Not everything can be watched in this program: {type(error).__name__}: {error}.")
        self._report_torch()

    def detach(self) -> None:
        """Undo all changes; hooks that torch cannot remove are inert once the agent has gone."""
        self._failed = True
        self._history.stop(self._torch)
        if self._followed is not None:
            waiting = self._followed.engine.storages.on_full
            if self._snapshots.on_simulated_full in waiting:
                waiting.remove(self._snapshots.on_simulated_full)

    def report(self) -> bool:
        """Report figures and live memory; returns whether a device is in use."""
        if self._failed:
            return False
        try:
            # The program may have created or replaced cards since the last check.
            if simulating.cards() != self._cards:
                self._follow_simulated()
                self._report_torch()
            self._say()
            used = self._figures()
            self._history.report()
            if self._history.problem is not None and self._history.problem not in self._problems:
                self._note(self._history.problem)
                self._report_torch()
        except Exception as error:
            note_fault(error)
            self._failed = True
            self._note(f"The allocator's figures can no longer be read: {type(error).__name__}: {error}.")
            self._report_torch()
            return False
        return used

    @property
    def figures(self) -> dict[str, Any]:
        """The allocators' last figures, by device."""
        return self._last

    def snapshot(self, path: str, reason: str) -> None:
        """Write a memory snapshot, and report the result."""
        self._snapshots.write_on_request(path, reason)

    def write_traces(self) -> None:
        """Write the requests to simulated cards so far, if they are recorded, and report the path."""
        if self._traces is None:
            return
        path = None
        problem = ""
        try:
            path = self._traces.write()
        except OSError as error:
            problem = error.strerror or type(error).__name__
        self._keep({"type": "trace", "path": path, "step": self._steps.present, "problem": problem})

    def forked(self) -> None:
        """In a forked child: start over, on a separate connection."""
        if self._traces is not None:
            self._traces.forked()
        self._history.forked()
        self._snapshots.forked()
        self._allocators.forked()
        self._last = {}
        self._report_torch()

    def _attach(self) -> None:
        capacities = self._config.get("simulate") or []
        if capacities:
            folder = str(self._config.get("gpudash"))
            others = int(self._config.get("simulate_others") or 0)
            as_cuda = bool(self._config.get("as_cuda"))
            self._note(simulating.simulate(folder, capacities, others, as_cuda=as_cuda))
        if not simulating.answers_for_cuda():
            self._note(history.observe_cuda(self._torch, self._snapshots.on_cuda_full, self._lasting))
        if self._config.get("history"):
            self._note(self._history.start(self._torch))
        if simulating.backend() is not None:
            self._follow_simulated()

    def _follow_simulated(self) -> None:
        """Observe when a simulated card is full; the program may have created the cards itself, or new ones."""
        found = simulating.backend()
        self._cards = simulating.cards()
        if found is not self._followed:
            self._followed = found
            found.engine.storages.on_full.append(self._snapshots.on_simulated_full)
        if self._traces is not None:
            self._traces.follow(self._cards)
        if self._config.get("history"):
            self._history.start_simulated(found)

    def _report_torch(self) -> None:
        # A simulated GPU that stands in for CUDA reports a build with CUDA.
        cuda = None
        if not simulating.answers_for_cuda() and self._torch.version.cuda is not None:
            cuda = str(self._torch.version.cuda)
        facts = {
            "version": str(self._torch.__version__),
            "cuda": cuda,
            "simulated": simulating.backend() is not None,
            "history": self._history.on,
            "problem": " ".join(self._problems) or None,
        }
        self._keep({"type": "torch", **facts})

    def _say(self) -> None:
        """Report once each what a simulated device does not support."""
        said = simulating.notices()
        for sentence in said[self._said :]:
            self._keep({"type": "said", "text": sentence})
        self._said = len(said)

    def _note(self, sentence: str | None) -> None:
        if sentence is not None and sentence not in self._problems:
            self._problems.append(sentence)

    def _figures(self) -> bool:
        found = self._allocators.read()
        now_s = time.monotonic()
        # Unchanged figures are still news: they show that the process is alive.
        if found and (found != self._last or now_s - self._reported_s >= HEARTBEAT_S):
            self._post({"type": "allocator", "devices": found})
            self._reported_s = now_s
        self._last = found
        return bool(found)


Figures = dict[str, Any]


class Allocators:
    """Reads the allocators' figures; a device without a context is left alone."""

    def __init__(self) -> None:
        self._cards: dict[int, Figures] = {}
        self._at_fork: dict[str, int] = {}
        self._inherited: dict[str, tuple[Any, Figures]] = {}

    def forked(self) -> None:
        """In a forked child: the parent's allocations on a simulated card are not this process's."""
        self._at_fork = {device: counted(card) for device, card in simulated()}
        self._inherited = {device: (card, _card(card)) for device, card in simulated()}

    def read(self) -> dict[str, Figures]:
        """Figures in bytes by device; empty if no device is in use."""
        found = {f"cuda:{index}": self._cuda(index) for index in range(devices_of("cuda"))}
        found.update((f"xpu:{index}", intel(sys.modules["torch"].xpu, index)) for index in range(devices_of("xpu")))
        for device, card in simulated():
            # Nothing was allocated since the fork: until then, the card is the parent's.
            if device in self._at_fork and counted(card) == self._at_fork[device]:
                continue
            self._at_fork.pop(device, None)
            found[device] = self._own(device, card)
        return found

    def _own(self, device: str, card: Any) -> Figures:
        """Figures of a simulated card without what a forked child has inherited."""
        figures = _card(card)
        inherited, at_fork = self._inherited.get(device, (None, {}))
        if inherited is card:
            figures.update((key, max(0, figures[key] - at_fork[key.replace("peak_", "")])) for key in _OF_ALLOCATOR)
        return figures

    def _cuda(self, index: int) -> Figures:
        torch: Any = sys.modules["torch"]
        if index not in self._cards:
            # Read once, since they never change.
            properties = torch.cuda.get_device_properties(index)
            identity = getattr(properties, "uuid", None)
            if identity is not None:
                identity = f"GPU-{identity}"
            self._cards[index] = {
                "capacity_bytes": int(properties.total_memory),
                "product": str(properties.name),
                "uuid": identity,
            }
        # The source of torch.cuda.memory_stats's flat dictionary.
        stats = torch._C._cuda_memoryStats(index)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        return {
            "allocated_bytes": allocated["current"],
            "reserved_bytes": reserved["current"],
            "peak_allocated_bytes": allocated["peak"],
            "peak_reserved_bytes": reserved["peak"],
            "allocation_retries": stats["num_alloc_retries"],
            "ooms": stats["num_ooms"],
            **self._cards[index],
        }


def devices_of(kind: str) -> int:
    """Number of "cuda" or "xpu" devices to read: 0 until the program initialises them, and in children forked
    afterwards.

    Apple's are not read: torch does not say whether the program uses them, and asking would initialise them.
    """
    module: Any = getattr(sys.modules.get("torch"), kind, None)
    answered = kind == "cuda" and simulating.answers_for_cuda()
    if module is None or answered or not module.is_initialized():
        return 0
    return int(module.device_count())


def intel(xpu: Any, index: int) -> Figures:
    """Figures of an Intel GPU from ``torch.xpu``, including the whole card's: no driver is read for it."""
    stats = xpu.memory_stats(index)
    free, total = xpu.mem_get_info(index)
    return {
        "allocated_bytes": stats.get("allocated_bytes.all.current", 0),
        "reserved_bytes": stats.get("reserved_bytes.all.current", 0),
        "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "allocation_retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
        "free_bytes": free,
        "capacity_bytes": total,
    }


def simulated() -> list[tuple[str, Any]]:
    """Names and cards of the simulated devices."""
    return [(f"sim:{card.index}", card) for card in simulating.cards()]


def counted(card: Any) -> int:
    """Number of allocations since the process began."""
    return int(card.statistics()["allocation.all.allocated"])


_OF_ALLOCATOR = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


def _card(card: Any) -> Figures:
    # The program's own environment may have an older simulator, whose cards belong to single processes.
    is_shared = getattr(card, "is_shared", False)
    if is_shared:
        # Other processes of the program report themselves: here they would count twice.
        used = card.held_bytes
        others = card.simulated_others
    else:
        used = card.used_bytes()
        others = card.others
    stats = card.statistics()
    return {
        "allocated_bytes": stats["allocated_bytes.all.current"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "allocation_retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "capacity_bytes": card.capacity,
        "used_bytes": used,
        "context_bytes": card.context_bytes,
        "others_bytes": sum(others.values()),
        "shared": int(is_shared),
        "busy_s": card.busy_s,
        "uuid": card.uuid,
        "product": card.product,
    }
