"""Runs torch.profiler around the next steps of a run, in the run's own thread, and summarises them in one note.

The note is small enough for a recording: a table of operators, and a picture of the time. torch's own trace is written
beside the recording, for Perfetto or chrome://tracing, completely or not at all. torch's own stack recorder follows
every thread of the process, including the window's; `CallFrames` follows only its own.
"""

from __future__ import annotations

import gzip
import logging
import shutil
import statistics
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import shown_name
from gpudash.memory import frames
from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.foreign_text import error_text
from gpudash.telemetry.recording.schema import trace_name
from gpudash.telemetry.records import Topic
from gpudash.units import format_duration
from gpudash.workloads.running.installed import variable
from gpudash.workloads.running.stages import Annotate

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


PLAIN_STEPS = 3
"""How many steps without the profiler give the median for comparison."""

LONGEST_S = 10.0
"""A profile ends after the operation that exceeds these seconds: its memory and reading time grow with it."""

MOST_CALLS = 150_000
"""Calls and returns of Python functions after which a profile ends too."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A request to profile the next steps of a run.

    Attributes:
        steps: how many.
        stem: path of the trace without ``-step-N.trace.json.gz``; "" for no trace.
        from_start: whether to start with the first step rather than after the current one, for runs with a single
            step.
    """

    steps: int
    stem: str = ""
    from_start: bool = False


class Profiling:
    """One profile, from the request to the note. Used by the run's thread only.

    Args:
        request: what to profile.
        device: where the run computes.
        note: reports a fact as text with details.
        annotate: called with the function that opens a stage's span while the profiler is on, and with ``None`` at its
            end.
        plain: seconds of earlier steps, without the profiler.

    Attributes:
        done: whether everything has been reported.
        on: whether torch's profiler is recording.
    """

    def __init__(
        self,
        request: ProfileRequest,
        device: torch.device,
        note: Callable[..., None],
        annotate: Callable[[Annotate | None], None],
        plain: Sequence[float] = (),
    ) -> None:
        self.done = False
        self.on = False
        self._request = request
        self._device = device
        self._note = note
        self._annotate = annotate
        self._plain = list(plain)
        self._profiler: Any = None
        self._frames = CallFrames()
        self._step: Any = None
        self._first = 0
        self._seconds: list[float] = []
        self._cost_s = 0.0
        self._found: dict[str, Any] | None = None
        self._ends_s = 0.0

    def step_ended(self, step: int, seconds: float, *, last: bool = False) -> None:
        """Handle the end of ``step``, which took ``seconds``; the next starts when this returns.

        Args:
            last: whether no other step follows.
        """
        # The step that just ended is the profiled one; later ones run without the profiler again.
        if self.on:
            self._leave_step()
            self._seconds.append(seconds)
            if last or len(self._seconds) >= self._request.steps or self._is_long:
                self._read()
            else:
                self._enter_step(step + 1)
        # After the profile: some steps without it, if there were too few before.
        elif self._found is not None:
            self._plain.append(seconds)
        elif not (self.done or last):
            self.begin(step + 1)
        if self._found is not None and len(self._plain) >= PLAIN_STEPS:
            self._report()

    def begin(self, step: int) -> None:
        """Start torch's profiler; ``step`` starts when this returns."""
        began = time.perf_counter()
        try:
            self._profiler = _started(self._device)
        except Exception as error:  # the run continues whatever fails in the profiler
            logger.exception("torch's profiler could not be started")
            self._give_up("The steps could not be profiled", error)
            return
        self.on, self._first = True, step
        self._cost_s += time.perf_counter() - began
        self._ends_s = time.perf_counter() + LONGEST_S
        # After torch's own profiler: the calls that start it are not part of the step.
        self._frames.start()
        self._enter_step(step)

    def end_if_long(self) -> None:
        """Called between operations: ends a long profile within its step."""
        if self.on and self._is_long:
            self._leave_step()
            self._read()

    def end(self) -> None:
        """Handle the end of the run: report what there is."""
        # An unfinished step is not a profile of a step, unless it is all there is.
        if self.on and self._seconds:
            self._leave_step()
            self._read()
        self._leave()
        if self._found is not None:
            self._report()
        elif not self.done:
            self._report_nothing(f"The run ended before {_count(self._request.steps)} could be profiled.")

    def drop(self) -> None:
        """Handle a stopped or failed run: leave the profiler and discard its results."""
        self._leave()
        if self._found is not None:
            self._report()
        elif not self.done:
            self._report_nothing("The run ended while steps of it were to be profiled; there is no profile.")

    # Also after an error: a profiler left on would follow every later run.
    def _leave(self) -> None:
        if self.on:
            self._leave_step()
            with suppress(Exception):  # the run's own error is the one to report
                self._stop()

    @property
    def _is_long(self) -> bool:
        return time.perf_counter() > self._ends_s or len(self._frames) > MOST_CALLS

    def _enter_step(self, step: int) -> None:
        import torch

        self._annotate(torch.profiler.record_function)
        self._step = torch.profiler.record_function(f"step {step}")
        self._step.__enter__()

    def _leave_step(self) -> None:
        self._annotate(None)
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _stop(self) -> None:
        self.on = False
        # `CallFrames` first: stopping torch's profiler calls Python functions too.
        self._frames.stop()
        self._profiler.stop()

    def _read(self) -> None:
        """Stop, and create the note from what was recorded."""
        began = time.perf_counter()
        try:
            self._stop()
            # torch's own origin for its events' times; `CallFrames` has times since 1970.
            origin_ns = self._profiler.profiler.kineto_results.trace_start_ns()
            self._found = operators(self._profiler.events(), self._frames, origin_ns)
        except Exception as error:  # as above, the run continues
            logger.exception("the profile could not be read")
            self._give_up("The profile could not be read", error)
            return
        self._found |= self._trace()
        # Both hold a whole profile in memory, tens to hundreds of MB.
        self._profiler, self._frames = None, CallFrames()
        self._cost_s += time.perf_counter() - began

    def _trace(self) -> dict[str, Any]:
        if not self._request.stem:
            return {"trace": None, "trace_problem": ""}
        path = trace_name(Path(self._request.stem), self._first)
        try:
            _write_trace(self._profiler, path)
        except Exception as error:  # a full disk, a read-only folder, or a profiler without a trace
            logger.warning("the profile's trace was not written", exc_info=True)
            if isinstance(error, OSError) and error.strerror:
                text = error.strerror
            else:
                text = str(error).split("\n")[0]
            return {"trace": None, "trace_problem": f"The trace was not written to {path.parent}: {text}."}
        return {"trace": str(path), "trace_problem": ""}

    def _report(self) -> None:
        assert self._found is not None
        facts, self._found, self.done = {**self._figures(), **self._found}, None, True
        if facts["trace"]:
            where = f"The trace is in {facts['trace']}."
        else:
            where = facts["trace_problem"]
        text = " ".join(filter(None, (_text(facts), facts["missing"], where)))
        self._note(Topic.OPERATORS, text, **facts)

    def _figures(self) -> dict[str, Any]:
        step_s = None
        if self._seconds:
            step_s = statistics.fmean(self._seconds)
        plain_s = None
        if self._plain:
            plain_s = statistics.median(self._plain)
        return {
            "first_step": self._first,
            "steps": len(self._seconds),
            "wanted_steps": self._request.steps,
            "device": str(self._device),
            "step_seconds": step_s,
            "plain_step_seconds": plain_s,
            # Only if it is a slowdown: with noise a profiled step may be faster.
            "slowdown": step_s / plain_s if step_s and plain_s and step_s > plain_s else None,
            "cost_seconds": self._cost_s,
            "missing": self._missing(),
        }

    def _missing(self) -> str:
        assert self._found is not None
        if self._device.type == "sim":
            return (
                f"{shown_name(str(self._device))} computes on the CPU: times are the CPU's, and its memory is not in "
                "the profile; the plots have it."
            )
        on_device = any(row["device_self_seconds"] for row in self._found["operators"])
        if self._device.type != "cpu" and not on_device:
            return f"torch recorded no kernels of {self._device}: its driver may not let this user trace them (CUPTI)."
        return ""

    def _give_up(self, trouble: str, error: Exception) -> None:
        self.on, self._profiler = False, None
        self._report_nothing(f"{trouble} ({error_text(error)}); the run goes on.")

    def _report_nothing(self, text: str) -> None:
        self.done = True
        self._note(Topic.OPERATORS, text)


def _started(device: torch.device) -> Any:
    """torch's profiler, recording."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
    with variable("KINETO_LOG_LEVEL", "99"):  # otherwise its library prints when it starts and stops
        profiler.start()
    return profiler


def _text(facts: Mapping[str, Any]) -> str:
    """The profile in one or two sentences."""
    first, steps = facts["first_step"], facts["steps"]
    if steps <= 1:
        which = f"step {first}"
    else:
        which = f"steps {first} to {first + steps - 1}"
    if steps == 0:
        which = f"the first {format_duration(facts['timeline']['seconds'])} of step {first}"
    elif steps < facts["wanted_steps"]:
        which += f" ({facts['wanted_steps']} were asked for)"
    parts = [f"Profiled {which}: {_top(facts['operators'])}."]
    if facts["slowdown"] is not None:
        parts.append(
            f"With the profiler a step took {format_duration(facts['step_seconds'])}, without it "
            f"{format_duration(facts['plain_step_seconds'])}; starting and reading it took "
            f"{format_duration(facts['cost_seconds'])}."
        )
    elif facts["step_seconds"] and facts["plain_step_seconds"]:
        parts.append("What the profiler cost the steps is not known: those before it were no faster.")
    return " ".join(parts)


def _count(steps: int) -> str:
    if steps == 1:
        return "a step"
    return f"{steps} steps"


def _top(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no operator ran"
    key = "cpu_self_seconds"
    if any(row["device_self_seconds"] for row in rows):
        key = "device_self_seconds"
    longest = max(rows, key=lambda row: row[key])
    return f"{longest['name']} took the most time, {format_duration(longest[key])}"


LEVEL = 3
"""Compression level: most of the possible gain, in a third of the time of the highest."""


def _write_trace(profiler: Any, path: Path) -> None:
    """Write the trace of a stopped `torch.profiler.profile`, compressed, to ``path``.

    Raises:
        OSError: it cannot be written; nothing is left behind.
        RuntimeError: when the profiler has no trace.
    """
    make_private_folder(path.parent)
    # Compressed afterwards: the profiler writes plain text, and may fail in the middle.
    with tempfile.TemporaryDirectory(prefix="gpudash-trace-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        with (
            written_whole(path, private=True) as part,
            plain.open("rb") as source,
            gzip.open(part, "wb", compresslevel=LEVEL) as target,
        ):
            shutil.copyfileobj(source, target)


MOST_ROWS = 40
"""The most operators in each ranking: self CPU time, self device time, self memory."""

MOST_FRAMES = 8
"""The most functions kept of a stack, innermost first."""

MOST_SPANS = 1500
"""The most operators on the timeline, the longest ones."""

MOST_DEPTH = 5
"""The most levels of nested operators that the timeline shows."""

LONGEST_NAME = 120
"""The most characters kept of an operator's name: a kernel's may fill pages."""


_FIGURES = (
    "cpu_self_seconds",
    "cpu_total_seconds",
    "device_self_seconds",
    "device_total_seconds",
    "cpu_self_bytes",
    "cpu_total_bytes",
    "device_self_bytes",
    "device_total_bytes",
)


@dataclass(slots=True)
class _Tally:
    """One operator, summed over its calls. Times in µs, as in torch."""

    calls: int = 0
    figures: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_FIGURES, 0.0))
    shapes: Counter[str] = field(default_factory=Counter)
    stacks: Counter[tuple[Frame, ...]] = field(default_factory=Counter)


def operators(events: Sequence[Any], frames: CallFrames, origin_ns: int) -> dict[str, Any]:
    """The operators of a profile, ranked.

    Args:
        events: torch's `FunctionEvent`; their times are µs since ``origin_ns``.
        frames: the Python functions that were running meanwhile.
        origin_ns: Unix time in ns of the events' origin.

    Returns:
        ``operators``: rows of ``name, calls``, self and total seconds and bytes on CPU and device, ``shapes`` and
        ``stack`` (the most frequent of each; the user's own functions if any, innermost first), by self time.
        ``operators_left_out``: how many are missing. ``timeline``: the result of `timeline`.
    """
    # Ascending, as `CallFrames.at` requires.
    on_cpu = sorted(filter(_on_cpu, events), key=lambda event: event.time_range.start)
    moments = (origin_ns + int(event.time_range.start * 1e3) for event in on_cpu)
    tallies: dict[str, _Tally] = {}
    for event, stack in zip(on_cpu, frames.at(moments), strict=True):
        # Stages and steps are our own spans, not operators.
        if not event.is_user_annotation:
            _add(tallies.setdefault(event.name, _Tally()), event, stack)
    rows = [_row(name, tally) for name, tally in tallies.items()]
    kept = _ranked(rows)
    return {"operators": kept, "operators_left_out": len(rows) - len(kept), "timeline": timeline(events)}


def _on_cpu(event: Any) -> bool:
    return str(event.device_type) == "DeviceType.CPU" and event.name != "[memory]"


def _add(tally: _Tally, event: Any, stack: tuple[Frame, ...]) -> None:
    tally.calls += 1
    own: dict[str, float] = {
        "cpu_self_seconds": event.self_cpu_time_total / 1e6,
        "device_self_seconds": event.self_device_time_total / 1e6,
        "cpu_self_bytes": event.self_cpu_memory_usage,
        "device_self_bytes": event.self_device_memory_usage,
    }
    # The inner time of an operator that calls itself (aten::copy_ in itself) would count twice.
    if not _within_itself(event):
        own |= {
            "cpu_total_seconds": event.cpu_time_total / 1e6,
            "device_total_seconds": event.device_time_total / 1e6,
            "cpu_total_bytes": event.cpu_memory_usage,
            "device_total_bytes": event.device_memory_usage,
        }
    for name, value in own.items():
        tally.figures[name] += value
    tally.shapes[_shapes(event.input_shapes)] += 1
    tally.stacks[stack] += 1


def _within_itself(event: Any) -> bool:
    """Whether an operator has called itself: the outer call's total already includes the inner one's."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == event.name:
            return True
        parent = parent.cpu_parent
    return False


def _shapes(shapes: Sequence[Any] | None) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes or () if shape)[:LONGEST_NAME]


def _row(name: str, tally: _Tally) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for key, value in tally.figures.items():
        figures[key] = round(value, 9)
        if key.endswith("bytes"):
            figures[key] = int(value)
    return {
        "name": name[:LONGEST_NAME],
        "calls": tally.calls,
        **figures,
        "shapes": tally.shapes.most_common(1)[0][0],
        "stack": stack_lines(tally.stacks.most_common(1)[0][0]),
    }


def _ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    chosen: dict[int, dict[str, Any]] = {}
    for key in ("cpu_self_seconds", "device_self_seconds", "cpu_self_bytes", "device_self_bytes"):
        # By magnitude: freed memory is negative, and just as relevant.
        for row in sorted(rows, key=lambda row: -abs(row[key]))[:MOST_ROWS]:
            if row[key]:
                # Rows have no key and may be in several rankings: by identity each is kept once.
                chosen[id(row)] = row
    by_time = ("device_self_seconds", "cpu_self_seconds")
    return sorted(chosen.values(), key=lambda row: [-row[key] for key in by_time])


def stack_lines(stack: Sequence[Frame]) -> list[str]:
    """Functions as ``file:line function``, innermost first: the user's and the workload's own, otherwise all."""
    own = [frame for frame in stack if frames.is_own(_line_of(frame))]
    return list(map(_frame_text, list(reversed(own or list(stack)))[:MOST_FRAMES]))


def _line_of(frame: Frame) -> frames.Frame:
    code, line = frame
    return frames.Frame(code.co_filename, line, code.co_name)


def _frame_text(frame: Frame) -> str:
    code, line = frame
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{line} {code.co_qualname}"[:LONGEST_NAME]


def timeline(events: Sequence[Any]) -> dict[str, Any]:
    """When each operator ran, for a picture: the longest `MOST_SPANS`.

    Returns:
        ``lanes`` (CPU threads, then the device), ``names``, ``spans`` (``lane, depth, name, start µs, duration µs``,
        integers; lane and name are indices into their lists; by start), ``seconds`` from the first to the last and
        ``left_out``, the number of missing operators.
    """
    drawn = [(event, depth) for event in events if (depth := _depth(event)) <= MOST_DEPTH and event.name != "[memory]"]
    if not drawn:
        return {"lanes": [], "names": [], "spans": [], "seconds": 0.0, "left_out": 0}
    began = min(event.time_range.start for event, _depth in drawn)
    ended = max(event.time_range.end for event, _depth in drawn)
    # Longest first, by negative duration.
    longest = sorted(drawn, key=lambda item: item[0].time_range.start - item[0].time_range.end)[:MOST_SPANS]
    longest.sort(key=lambda item: item[0].time_range.start)
    lanes = _lanes(drawn)
    names: dict[str, int] = {}
    spans = [
        [
            list(lanes).index(_lane(event)),
            depth,
            names.setdefault(event.name[:LONGEST_NAME], len(names)),
            # Whole microseconds since the first, because the note is stored in a recording.
            round(event.time_range.start - began),
            max(1, round(event.time_range.end - event.time_range.start)),
        ]
        for event, depth in longest
    ]
    return {
        "lanes": list(lanes.values()),
        "names": list(names),
        "spans": spans,
        "seconds": (ended - began) / 1e6,
        "left_out": len(drawn) - len(longest),
    }


def _depth(event: Any) -> int:
    depth, parent = 0, event.cpu_parent
    while parent is not None:
        depth, parent = depth + 1, parent.cpu_parent
    return depth


def _lane(event: Any) -> tuple[str, Any]:
    kind = str(event.device_type).rpartition(".")[2]
    return kind, event.thread if kind == "CPU" else event.device_index


def _lanes(drawn: Sequence[tuple[Any, int]]) -> Mapping[tuple[str, Any], str]:
    """The lanes in order, the busiest CPU thread first, and their names."""
    found = Counter(_lane(event) for event, _depth in drawn)
    threads = [lane for lane, _count in found.most_common() if lane[0] == "CPU"]
    names = {lane: "CPU" if number == 1 else f"CPU thread {number}" for number, lane in enumerate(threads, 1)}
    return names | {lane: f"{lane[0].lower()}:{lane[1]}" for lane in sorted(found) if lane[0] != "CPU"}


Frame = tuple[CodeType, int]
"""A function, and its line that made the latest call."""

_CALL_OF_C = None
"""In place of a function's code: a call of a function not written in Python."""


class CallFrames:
    """Records calls and returns in the thread that starts it, until `stop`."""

    def __init__(self) -> None:
        self._times = array("q")
        self._codes: list[CodeType | bool | None] = []
        self._lines = array("l")
        self._first: list[Frame] = []
        self._before: Any = None

    def __len__(self) -> int:
        return len(self._codes)

    def start(self) -> None:
        """Start recording in this thread, from the functions that are currently running."""
        # The calls of the running functions are over and cannot be recorded.
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - there is no public name for it
        while frame is not None:
            self._first.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._first.reverse()
        self._before = sys.getprofile()
        # `sys.setprofile` applies to this thread only, unlike torch's own stacks.
        sys.setprofile(self._recorder())

    def stop(self) -> None:
        """Stop recording; the thread's previous profile function is restored."""
        sys.setprofile(self._before)

    # Bound once: this runs at every call and return in Python.
    def _recorder(self) -> Callable[[FrameType, str, Any], None]:
        now, put_time = time.time_ns, self._times.append
        put_code, put_line = self._codes.append, self._lines.append

        def record(frame: FrameType, kind: str, _arg: Any) -> None:
            if kind == "call":
                caller = frame.f_back
                put_time(now())
                put_code(frame.f_code)
                put_line(caller.f_lineno if caller is not None else 0)
            elif kind == "return":
                put_time(now())
                put_code(True)
                put_line(0)
            elif kind == "c_call":
                put_time(now())
                put_code(_CALL_OF_C)
                put_line(frame.f_lineno)

        return record

    def at(self, moments_ns: Iterable[int]) -> Iterator[tuple[Frame, ...]]:
        """The functions running at each of the ascending moments (Unix time in ns), innermost last."""
        stack = list(self._first)
        found: tuple[Frame, ...] | None = None
        place, count = 0, len(self._codes)
        for moment in moments_ns:
            # Moments ascend, so the record is traversed once for all events.
            while place < count and self._times[place] <= moment:
                self._follow(stack, self._codes[place], self._lines[place])
                place += 1
                found = None
            if found is None:
                found = tuple(stack)
            yield found

    @staticmethod
    def _follow(stack: list[Frame], code: CodeType | bool | None, line: int) -> None:
        if code is True:
            if stack:
                stack.pop()
            return
        # The caller's line is known only now, from the call that it made.
        if stack:
            stack[-1] = (stack[-1][0], line)
        if isinstance(code, CodeType):
            stack.append((code, code.co_firstlineno))
