"""torch.profiler around the next steps of a run, on the run's own thread; the findings become one note.

The note is small enough to live in a recording: a table of operators, and a picture of the time. torch's own trace is
written beside the recording, for Perfetto or chrome://tracing, whole or not at all. torch's own recorder of stacks
follows every thread of the process, the window's too; `CallFrames` follows its own alone.
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
from gpudash.telemetry.recording.schema import trace_name
from gpudash.telemetry.records import Topic
from gpudash.units import format_duration
from gpudash.workloads.running.installed import variable
from gpudash.workloads.running.stages import Annotate

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


PLAIN_STEPS = 3
"""Steps without the profiler whose median is what the profiled ones are held against."""

LONGEST_S = 10.0
"""A profile ends after the operation during which so much time has passed: its memory and its reading grow with it."""

MOST_CALLS = 150_000
"""Calls and returns of Python functions after which a profile ends too."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The next steps of a run are to be profiled.

    Attributes:
        steps: how many.
        stem: path of the trace without ``-step-N.trace.json.gz``; "" writes none.
        from_start: begin with the first step, not after the step that is on: where there is one step only.
    """

    steps: int
    stem: str = ""
    from_start: bool = False


class Profiling:
    """One profile, from the wish to the note. Used by the run's thread only.

    Args:
        request: what to profile.
        device: where the run computes.
        note: tells a fact in words, with its details.
        annotate: given what opens a stage's span in the profile while that is on, and ``None`` when it ends.
        plain: seconds of steps before, without the profiler.

    Attributes:
        done: whether everything has been told.
        on: whether torch's profiler is recording now.
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
        """The run has ended ``step``, which took ``seconds``; the next begins when this returns.

        Args:
            last: no other step follows.
        """
        # The step that just ended is the profiled one; those behind it are again without the profiler.
        if self.on:
            self._leave_step()
            self._seconds.append(seconds)
            if last or len(self._seconds) >= self._request.steps or self._is_long:
                self._read()
            else:
                self._enter_step(step + 1)
        # After the profile: some steps without it, where there were too few before.
        elif self._found is not None:
            self._plain.append(seconds)
        elif not (self.done or last):
            self.begin(step + 1)
        if self._found is not None and len(self._plain) >= PLAIN_STEPS:
            self._report()

    def begin(self, step: int) -> None:
        """Start torch's profiler; ``step`` begins when this returns."""
        began = time.perf_counter()
        try:
            self._profiler = _started(self._device)
        except Exception as error:  # whatever is wrong with a profiler, the run goes on
            logger.exception("torch's profiler could not be started")
            self._give_up("The steps could not be profiled", error)
            return
        self.on, self._first = True, step
        self._cost_s += time.perf_counter() - began
        self._ends_s = time.perf_counter() + LONGEST_S
        # After torch's own: what starting it calls is no part of the step.
        self._frames.start()
        self._enter_step(step)

    def end_if_long(self) -> None:
        """Called between operations: a profile that has become long ends within its step."""
        if self.on and self._is_long:
            self._leave_step()
            self._read()

    def end(self) -> None:
        """The run has reached its end: tell what there is."""
        # A step that has not ended is no profile of a step, unless it is all there is.
        if self.on and self._seconds:
            self._leave_step()
            self._read()
        self._leave()
        if self._found is not None:
            self._report()
        elif not self.done:
            self._report_nothing(f"The run ended before {_count(self._request.steps)} could be profiled.")

    def drop(self) -> None:
        """The run has been stopped or failed: leave the profiler, and throw away what it has."""
        self._leave()
        if self._found is not None:
            self._report()
        elif not self.done:
            self._report_nothing("The run ended while steps of it were to be profiled; there is no profile.")

    # Also on the way out after an error: a profiler that stays on would follow every later run.
    def _leave(self) -> None:
        if self.on:
            self._leave_step()
            with suppress(Exception):  # the run's own error is the one worth telling
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
        # Ours first: stopping torch's calls Python functions too.
        self._frames.stop()
        self._profiler.stop()

    def _read(self) -> None:
        """Stop, and make the note from what was recorded."""
        began = time.perf_counter()
        try:
            self._stop()
            # torch's own zero, by which its events' times count; `CallFrames` has times since 1970.
            origin_ns = self._profiler.profiler.kineto_results.trace_start_ns()
            self._found = operators(self._profiler.events(), self._frames, origin_ns)
        except Exception as error:  # as above
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
        except Exception as error:  # a full disk, a folder that may not be written, or a profiler without a trace
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
            # Only where it is a slowdown: with noise a profiled step may come out faster.
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
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        self._report_nothing(f"{trouble} ({type(error).__name__}: {first}); the run goes on.")

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
    with variable("KINETO_LOG_LEVEL", "99"):  # else its library tells the terminal when it starts and stops
        profiler.start()
    return profiler


def _text(facts: Mapping[str, Any]) -> str:
    """The profile in a sentence or two."""
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
"""Of compression: most of what there is to gain, at a third of the time that the best takes."""


def _write_trace(profiler: Any, path: Path) -> None:
    """Write the trace of a `torch.profiler.profile` that has stopped, compressed, to ``path``.

    Raises:
        OSError: when it cannot be written; nothing is left behind.
        RuntimeError: when the profiler has no trace.
    """
    make_private_folder(path.parent)
    # Compressed afterwards: the profiler writes plain text, and may fail half way.
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
"""Operators kept of each ranking: own time on the CPU, own time on the device, own memory."""

MOST_FRAMES = 8
"""Functions kept of a stack, the innermost first."""

MOST_SPANS = 1500
"""Operators drawn on the timeline: the longest."""

MOST_DEPTH = 5
"""Operators within operators that the timeline shows."""

LONGEST_NAME = 120
"""Characters kept of an operator's name: a kernel's may fill pages."""


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
    """One operator, added up over its calls. Times in µs, as torch has them."""

    calls: int = 0
    figures: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_FIGURES, 0.0))
    shapes: Counter[str] = field(default_factory=Counter)
    stacks: Counter[tuple[Frame, ...]] = field(default_factory=Counter)


def operators(events: Sequence[Any], frames: CallFrames, origin_ns: int) -> dict[str, Any]:
    """The operators of a profile, ranked.

    Args:
        events: torch's `FunctionEvent`; their times are µs since ``origin_ns``.
        frames: the Python functions that were on meanwhile.
        origin_ns: Unix time of the events' zero.

    Returns:
        ``operators``: rows of ``name, calls``, own and total seconds and bytes on CPU and device, ``shapes`` and
        ``stack`` (the most frequent of each; the user's own functions, else all, innermost first), by own time.
        ``operators_left_out``: how many are missing. ``timeline``: as `timeline` returns.
    """
    # Ascending, as `CallFrames.at` wants the moments.
    on_cpu = sorted((event for event in events if _on_cpu(event)), key=lambda event: event.time_range.start)
    moments = (origin_ns + int(event.time_range.start * 1e3) for event in on_cpu)
    tallies: dict[str, _Tally] = {}
    for event, stack in zip(on_cpu, frames.at(moments), strict=True):
        # Stages and steps are spans of ours, and no operators.
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
    # An operator that calls itself (aten::copy_ in itself) would have its inner time counted twice.
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
    """Whether an operator has called itself: the outer call's total holds the inner one's already."""
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
        # By magnitude: memory given back is negative, and as telling.
        for row in sorted(rows, key=lambda row: -abs(row[key]))[:MOST_ROWS]:
            if row[key]:
                # Without a key of its own a row stands in several rankings: by identity it is kept once.
                chosen[id(row)] = row
    by_time = ("device_self_seconds", "cpu_self_seconds")
    return sorted(chosen.values(), key=lambda row: [-row[key] for key in by_time])


def stack_lines(stack: Sequence[Frame]) -> list[str]:
    """Functions as ``file:line function``, innermost first: the user's and the workload's own, else all there are."""
    own = [frame for frame in stack if frames.is_own(_line_of(frame))]
    return [_frame_text(frame) for frame in list(reversed(own or list(stack)))[:MOST_FRAMES]]


def _line_of(frame: Frame) -> frames.Frame:
    code, line = frame
    return frames.Frame(code.co_filename, line, code.co_name)


def _frame_text(frame: Frame) -> str:
    code, line = frame
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{line} {code.co_qualname}"[:LONGEST_NAME]


def timeline(events: Sequence[Any]) -> dict[str, Any]:
    """When which operator ran, for a picture: the longest `MOST_SPANS`.

    Returns:
        ``lanes`` (threads of the CPU, then the device), ``names``, ``spans`` (``lane, depth, name, start µs,
        duration µs``, whole numbers; lane and name are places in their lists; by start), ``seconds`` from the first to
        the last and ``left_out``, how many are not there.
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
            # Whole microseconds since the first: the note lives in a recording.
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
    """The lanes in order, the busiest thread of the CPU first, and what each is called."""
    found = Counter(_lane(event) for event, _depth in drawn)
    threads = [lane for lane, _count in found.most_common() if lane[0] == "CPU"]
    names = {lane: "CPU" if number == 1 else f"CPU thread {number}" for number, lane in enumerate(threads, 1)}
    return names | {lane: f"{lane[0].lower()}:{lane[1]}" for lane in sorted(found) if lane[0] != "CPU"}


Frame = tuple[CodeType, int]
"""A function, and the line in it from which the newest call was made."""

_CALL_OF_C = None
"""In place of a function's code: a call of something that is not written in Python."""


class CallFrames:
    """Records calls and returns of the thread that starts it, until `stop`."""

    def __init__(self) -> None:
        self._times = array("q")
        self._codes: list[CodeType | bool | None] = []
        self._lines = array("l")
        self._first: list[Frame] = []
        self._before: Any = None

    def __len__(self) -> int:
        return len(self._codes)

    def start(self) -> None:
        """Begin to record on this thread, from the functions on that are on now."""
        # The functions that are on already have no call that could be recorded.
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - there is no public name for it
        while frame is not None:
            self._first.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._first.reverse()
        self._before = sys.getprofile()
        # `sys.setprofile` is of this thread alone, unlike torch's own stacks.
        sys.setprofile(self._recorder())

    def stop(self) -> None:
        """Record no more; the thread's former profiler is put back."""
        sys.setprofile(self._before)

    # Bound once: this runs at every call and return of Python.
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
        """The functions on at each of the ascending moments (Unix time in ns), the innermost last."""
        stack = list(self._first)
        found: tuple[Frame, ...] | None = None
        place, count = 0, len(self._codes)
        for moment in moments_ns:
            # Moments ascend, so that the record is gone through once for all events.
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
        # The caller's line is known only now: a call tells from where it was made.
        if stack:
            stack[-1] = (stack[-1][0], line)
        if isinstance(code, CodeType):
            stack.append((code, code.co_firstlineno))
