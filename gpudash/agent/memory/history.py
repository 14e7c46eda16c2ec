"""The program's memory history, if requested: records it, and summarises live memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ..attach.lasting import Lasting
from ..sampler import Rest
from ..stepping.steps import Steps
from ..wire import Message
from . import simulating, snapshots

DIGEST_PERIOD_S = 0.5

DIGEST_SHARE = 0.003
"""Part of a core that the summaries may use."""

REQUESTS_PERIOD_S = 0.25

LONGEST_REQUESTS_S = 3.0

REQUESTS_SHARE = 0.006
"""Part of a core for reporting all requests, unless the pause would exceed `LONGEST_REQUESTS_S`."""

MOST_REQUESTS = 10_000
"""Most requests reported together, the newest; of a faster program, some are missed."""

MOST_HOLDINGS = 2000
"""Most entries of a summary, the largest."""

MOST_NUMBERED = 20_000
"""Most stacks known by number; a program that generates code has no end of them."""

Holding = tuple[int, int, int, Any]
"""Bytes, count, step, stack."""

MOST_LIVE = 20_000
"""Most live blocks reported after missed requests, the newest."""

Line = tuple[str, int, str]

Live = tuple[int, int, Any]
"""Address, bytes and stack of a block."""

Request = tuple[int, int, int, Any]
"""Microseconds since 1970, address, requested bytes, stack; 0 bytes if the address is freed."""

ENDS = ("free_requested", "free_completed")
"""torch's actions at the end of a block: the second follows later if another stream still uses it."""


class AgentHistory:
    """Records the history and summarises it.

    Args:
        entries: number of events kept for each device.
        post: sends a message that must arrive.
        steps: provides the current step.
        lasting: hooks that torch cannot remove.

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
        self._requests_s = 0.0
        self._requests_rest = Rest(REQUESTS_SHARE)
        self._reported: dict[str, int] = {}
        self._numbers: dict[Any, int] = {}
        self._numbered = 0
        self._born: dict[tuple[int, int], tuple[Any, int]] = {}

    def start(self, torch: Any) -> str | None:
        """Start to record as soon as there is a device; returns why that is impossible, in one sentence, or
        ``None``."""
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
        """Stop recording, unless the program itself records."""
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
        """Report all requests and live memory, if it is time."""
        if not self.on:
            return
        if time.monotonic() >= self._requests_s:
            began = time.thread_time()
            self._report_simulated_requests()
            rest_s = self._requests_rest.after(time.thread_time() - began)
            self._requests_s = time.monotonic() + min(max(REQUESTS_PERIOD_S, rest_s), LONGEST_REQUESTS_S)
        if time.monotonic() < self._next_s:
            return
        began = time.thread_time()
        for device, holdings in self._held():
            self._report_holdings(device, holdings)
        cost = time.thread_time() - began
        self._next_s = time.monotonic() + max(DIGEST_PERIOD_S, self._rest.after(cost))

    def forked(self) -> None:
        """In a forked child: report all stacks again, on its own connection; earlier requests are the parent's."""
        self._numbers.clear()
        backend = simulating.backend()
        if backend is not None and hasattr(backend.module.memory.history, "since"):
            for card in backend.cards:
                self._reported[f"sim:{card.index}"] = backend.module.memory.history.since(card, 0)[1]

    def _start_cuda(self, torch: Any) -> None:
        """Called by torch when it initialises CUDA; must not raise."""
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        try:
            if enabled is None or not enabled():
                record_cuda(torch.cuda.memory._record_memory_history, self._entries)
                self._ours.add("cuda")
        except Exception as error:
            # For example, an allocator other than torch's own.
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
            snapshot = snapshots.take(torch)
            yield from self._cuda_held(snapshot)
            self._report_cuda_requests(snapshot)

    def _cuda_held(self, snapshot: Any) -> list[tuple[str, list[Holding]]]:
        """From torch's snapshot; a block's step follows from the time of its allocation in the trace."""
        traces = snapshot.get("device_traces") or []
        found: dict[int, dict[tuple[Any, int], list[int]]] = {}
        known, self._born = self._born, {}
        times: dict[tuple[int, int], int] = {}
        for device, trace in enumerate(traces):
            for event in trace:
                if event["action"] == "alloc":
                    times[device, event["addr"]] = event.get("time_us", 0)
        for device, (address, size, stack) in _cuda_blocks(snapshot):
            step = self._step_of(times.get((device, address)), known.get((device, address)), stack)
            self._born[device, address] = stack, step
            tally = found.setdefault(device, {}).setdefault((stack, step), [0, 0])
            tally[0] += size
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
        numbers = self._numbers_of([stack for _size, _count, _step, stack in holdings])
        rows = [[size, count, step, number] for (size, count, step, _), number in zip(holdings, numbers)]
        self._post({"type": "held", "device": device, "step": self._steps.label, "holdings": rows})

    def _numbers_of(self, stacks: list[Any]) -> list[int]:
        """Numbers of stacks; new ones are reported first."""
        if len(self._numbers) > MOST_NUMBERED:
            self._numbers.clear()
        fresh: dict[str, list[Line]] = {}
        found = []
        for stack in stacks:
            if stack == ():
                # Unknown origin, for which 0 is reserved.
                found.append(0)
                continue
            number = self._numbers.get(stack)
            if number is None:
                self._numbered += 1
                number = self._numbers[stack] = self._numbered
                fresh[str(number)] = _lines(stack)
            found.append(number)
        if fresh:
            self._post({"type": "stacks", "stacks": fresh})
        return found

    def _report_simulated_requests(self) -> None:
        backend = simulating.backend()
        if backend is None:
            return
        history = backend.module.memory.history
        # The program's own simulator may be older, and not provide its events.
        if not hasattr(history, "since"):
            return
        for card in backend.cards:
            device = f"sim:{card.index}"
            before = self._reported.get(device, 0)
            events, seen = history.since(card, before)
            self._reported[device] = seen
            requests = [
                (time_ns // 1000, address, size if action == "alloc" else 0, stack)
                for action, address, size, _stream, time_ns, stack in events
                if action == "alloc" or action in ENDS
            ]
            missed = seen - before > len(events)
            self._report_requests(device, requests, partial(history.live_blocks, card), missed=missed)

    def _report_cuda_requests(self, snapshot: Any) -> None:
        """New events in the trace of torch's snapshot, which has times since torch 2.1."""
        for index, trace in enumerate(snapshot.get("device_traces") or []):
            device = f"cuda:{index}"
            before = self._reported.get(device, 0)
            newer = []
            for event in reversed(trace):
                if event.get("time_us", 0) <= before:
                    break
                newer.append(event)
            if not newer:
                continue
            self._reported[device] = newer[0]["time_us"]
            requests = []
            for event in reversed(newer):
                if event["action"] == "alloc":
                    requests.append((event["time_us"], event["addr"], event["size"], _stack_of(event)))
                elif event["action"] in ENDS:
                    requests.append((event["time_us"], event["addr"], 0, ()))
            missed = bool(before) and len(newer) == len(trace)
            self._report_requests(device, requests, partial(_cuda_live, snapshot, index), missed=missed)

    def _report_requests(
        self, device: str, requests: list[Request], live: Callable[[], list[Live]], *, missed: bool
    ) -> None:
        """Report requests in order; ``missed``: some before them are unknown, so report the live blocks too."""
        if not requests:
            return
        part = requests[-MOST_REQUESTS:]
        numbers = iter(self._numbers_of([stack for _time, _address, size, stack in part if size]))
        # One flat list of integers: a list for each request would take three times as long to write.
        rows: list[int] = []
        for time_us, address, size, _stack in part:
            rows += (time_us, address, size, next(numbers) if size else 0)
        missed = missed or len(part) < len(requests)
        message = {"type": "requests", "device": device, "rows": rows}
        if missed:
            blocks = live()[-MOST_LIVE:]
            numbers = iter(self._numbers_of([stack for _address, _bytes, stack in blocks]))
            message["live"] = [number for address, size, _ in blocks for number in (address, size, next(numbers))]
        self._post(message)


def record_cuda(record: Callable[..., None], entries: int) -> None:
    """Start a history that any thread may end.

    Since 2.8, torch also records the program's annotations. Unless it does so for all threads, it looks for the
    callback on the thread that ends the history, and prints a warning on the program's standard error if another
    thread started it.
    """
    options = {"context": "alloc", "stacks": "python", "max_entries": entries}
    try:
        record("all", global_record_annotations=True, **options)
    except TypeError:
        record("all", **options)


def observe_cuda(torch: Any, full: Callable[[int, int, int, int], None], lasting: Lasting) -> str | None:
    """Have ``full`` called at every out-of-memory of CUDA; returns why that is impossible, or ``None``."""
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
            # For example, an allocator other than torch's own, which has no observers.
            return

    _when_initialised(torch, lasting, "observer", attached)
    return None


def _when_initialised(torch: Any, lasting: Lasting, name: str, then: Callable[[], None]) -> None:
    """Call ``then`` once torch has initialised CUDA, or now; torch never removes callbacks for that."""
    if torch.cuda.is_initialized():
        then()
        return
    lasting.call(name, then)
    lasting.given(name, torch.cuda._lazy_call)


def _cuda_live(snapshot: Any, device: int) -> list[Live]:
    """The live blocks of a device in torch's snapshot."""
    return [block for index, block in _cuda_blocks(snapshot) if index == device]


def _cuda_blocks(snapshot: Any) -> Iterator[tuple[int, Live]]:
    """The live blocks in torch's snapshot, each with its device's index."""
    for segment in snapshot["segments"]:
        place = segment["address"]
        for block in segment["blocks"]:
            place, address = place + block["size"], block.get("address", place)
            if block["state"] == "active_allocated":
                yield segment["device"], (address, block["size"], _stack_of(block))


def _stack_of(entry: Any) -> tuple[Line, ...]:
    """The stack of a block or an event in torch's snapshot."""
    return tuple((frame["filename"], frame["line"], frame["name"]) for frame in entry.get("frames") or ())


def _size(holding: Holding) -> int:
    return holding[0]


def _lines(stack: Any) -> list[Line]:
    if isinstance(stack, tuple):
        return list(stack)
    return [(frame["filename"], frame["line"], frame["name"]) for frame in stack.frames()]
