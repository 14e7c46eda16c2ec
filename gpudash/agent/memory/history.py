"""Memory history of the program, when it is wanted: recording it, and a digest of what is live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..attach.lasting import Lasting
from ..sampler import Rest
from ..steps import Steps
from ..wire import Message
from . import simulating, snapshots

DIGEST_PERIOD_S = 0.5

DIGEST_SHARE = 0.003
"""Part of a core that the digests may take."""

MOST_HOLDINGS = 2000
"""Of one digest, the largest."""

MOST_NUMBERED = 20_000
"""Stacks that are known by their numbers; a program that makes code as it goes has no end of them."""

Holding = tuple[int, int, int, Any]
"""Bytes, count, step, stack."""

Line = tuple[str, int, str]


class AgentHistory:
    """Records and digests.

    Args:
        entries: events that are kept per device.
        post: sends a message that must arrive.
        steps: tells the present step.
        lasting: what torch cannot be made to forget.

    Attributes:
        on: whether a history is recorded for the dashboard.
        problem: why torch refused to record one, in a sentence.
    """

    def __init__(self, entries: int, post: Callable[[Message], None], steps: Steps, lasting: Lasting) -> None:
        self.on = False
        self.problem: str | None = None
        self._entries = entries
        self._post = post
        self._steps = steps
        self._lasting = lasting
        self._ours: set[str] = set()
        self._next_s, self._rest = 0.0, Rest(DIGEST_SHARE)
        self._numbers: dict[Any, int] = {}
        self._numbered = 0
        self._born: dict[tuple[int, int], tuple[Any, int]] = {}

    def start(self, torch: Any) -> str | None:
        """Begin to record as soon as there is a device; why that cannot be, in one sentence, or ``None``."""
        found = simulating.backend()
        if found is None and not hasattr(torch._C, "_cuda_record_memory_history"):
            return "No memory history is recorded: this torch is built without CUDA, and no GPU is simulated."
        if found is not None:
            self.start_simulated(found)
        if hasattr(torch._C, "_cuda_record_memory_history") and not simulating.answers_for_cuda():
            _when_initialised(torch, self._lasting, "history", lambda: self._start_cuda(torch))
        self.on = True
        return None

    def stop(self, torch: Any) -> None:
        """Record no longer what is not recorded for the program itself."""
        self.on = False
        backend = simulating.backend()
        if backend is not None:
            self._steps.on_label = None
            if "sim" in self._ours:
                backend.module.memory._record_memory_history(None)
        if "cuda" in self._ours:
            torch.cuda.memory._record_memory_history(None)
        self._ours.clear()

    def start_simulated(self, backend: Any) -> None:
        """Record the simulated cards, unless the program does."""
        memory = backend.module.memory
        if not memory.history.recording:
            memory._record_memory_history("all", context="alloc", stacks="python", max_entries=self._entries)
            self._ours.add("sim")
        self._steps.on_label = lambda label: setattr(memory.history, "step", label)

    def report(self) -> None:
        """Tell what is live, if it is time to."""
        if not self.on or time.monotonic() < self._next_s:
            return
        began = time.thread_time()
        for device, holdings in self._held():
            self._report_holdings(device, holdings)
        cost = time.thread_time() - began
        self._next_s = time.monotonic() + max(DIGEST_PERIOD_S, self._rest.after(cost))

    def forked(self) -> None:
        """In a child: tell every stack again, on its own connection."""
        self._numbers.clear()

    def _start_cuda(self, torch: Any) -> None:
        """Called by torch when it initialises CUDA; must not raise."""
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        try:
            if enabled is None or not enabled():
                _record_cuda(torch.cuda.memory._record_memory_history, self._entries)
                self._ours.add("cuda")
        except Exception as error:
            # such as an allocator other than torch's own
            self.on = False
            why = next(iter(str(error).splitlines()), "torch refused").rstrip(".")
            self.problem = f"No memory history is recorded: {why}."

    def _held(self) -> Iterable[tuple[str, list[Holding]]]:
        backend = simulating.backend()
        if backend is not None:
            history = backend.module.memory.history
            for card in backend.cards:
                yield f"sim:{card.index}", list(history.held(card))
        torch: Any = sys.modules["torch"]
        if torch.cuda.is_initialized() and not simulating.answers_for_cuda():
            yield from self._cuda_held(snapshots.take(torch))

    def _cuda_held(self, snapshot: Any) -> list[tuple[str, list[Holding]]]:
        """From torch's snapshot: the step of a block's birth by the time of its allocation in the trace."""
        traces = snapshot.get("device_traces") or []
        found: dict[int, dict[tuple[Any, int], list[int]]] = {}
        known, self._born = self._born, {}
        times: dict[tuple[int, int], int] = {}
        for device, trace in enumerate(traces):
            for event in trace:
                if event["action"] == "alloc":
                    times[device, event["addr"]] = event.get("time_us", 0)
        for segment in snapshot["segments"]:
            place, device = segment["address"], segment["device"]
            for block in segment["blocks"]:
                place, address = place + block["size"], block.get("address", place)
                if block["state"] != "active_allocated":
                    continue
                frames = block.get("frames") or ()
                stack = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)
                step = self._step_of(times.get((device, address)), known.get((device, address)), stack)
                self._born[device, address] = stack, step
                tally = found.setdefault(device, {}).setdefault((stack, step), [0, 0])
                tally[0] += block["size"]
                tally[1] += 1
        return [
            (f"cuda:{device}", [(size, count, step, stack) for (stack, step), (size, count) in tallies.items()])
            for device, tallies in found.items()
        ]

    def _step_of(self, time_us: int | None, known: tuple[Any, int] | None, stack: Any) -> int:
        if time_us is not None:
            return self._steps.label_at(time_us)
        if known is not None and known[0] == stack:
            return known[1]
        return 0

    def _report_holdings(self, device: str, holdings: list[Holding]) -> None:
        holdings = sorted(holdings, key=_size, reverse=True)[:MOST_HOLDINGS]
        if len(self._numbers) > MOST_NUMBERED:
            self._numbers.clear()
        fresh: dict[str, list[Line]] = {}
        rows = []
        for size, count, step, stack in holdings:
            number = self._numbers.get(stack)
            if number is None:
                self._numbered += 1
                number = self._numbers[stack] = self._numbered
                fresh[str(number)] = _lines(stack)
            rows.append([size, count, step, number])
        if fresh:
            self._post({"type": "stacks", "stacks": fresh})
        self._post({"type": "held", "device": device, "step": self._steps.label, "holdings": rows})


def _record_cuda(record: Callable[..., None], entries: int) -> None:
    """Begin a history that any thread may end.

    From 2.8 on torch notes what the program annotates, too. Unless it does so for all threads, it looks for the
    callback of that in the thread that ends the history, and complains on the program's standard error where another
    thread began it.
    """
    options = {"context": "alloc", "stacks": "python", "max_entries": entries}
    try:
        record("all", global_record_annotations=True, **options)
    except TypeError:
        record("all", **options)


def observe_cuda(torch: Any, full: Callable[[int, int, int, int], None], lasting: Lasting) -> str | None:
    """Let ``full`` be called at every out-of-memory of CUDA; why that cannot be, or ``None``."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        if torch.version.cuda is None:
            return None
        return "This torch does not report when a GPU's memory is full."
    lasting.call("full", full)

    def attached() -> None:
        """Called by torch when it initialises CUDA; must not raise."""
        try:
            lasting.given("full", attach)
        except Exception:
            # such as an allocator other than torch's own, which knows no observers
            return

    _when_initialised(torch, lasting, "observer", attached)
    return None


def _when_initialised(torch: Any, lasting: Lasting, name: str, then: Callable[[], None]) -> None:
    """Call ``then`` once torch has initialised CUDA, or now: what torch keeps for that moment it keeps for good."""
    if torch.cuda.is_initialized():
        then()
        return
    lasting.call(name, then)
    lasting.given(name, torch.cuda._lazy_call)


def _size(holding: Holding) -> int:
    return holding[0]


def _lines(stack: Any) -> list[Line]:
    if isinstance(stack, tuple):
        return list(stack)
    return [(frame["filename"], frame["line"], frame["name"]) for frame in stack.frames()]
