"""torch.profiler around the next steps of a run, on the run's own thread; what it finds is told as one note.

torch's own trace is written beside the recording, for Perfetto or chrome://tracing, whole or not at all.
"""

from __future__ import annotations

import gzip
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.devices.names import shown_name
from gpudash.system.files import written_whole
from gpudash.telemetry.recording.naming import trace_name
from gpudash.telemetry.records import OPERATORS
from gpudash.units import format_duration
from gpudash.workloads.profiling.call_frames import CallFrames
from gpudash.workloads.profiling.operators import operators
from gpudash.workloads.running.installed import variable
from gpudash.workloads.running.stages import Annotate

if TYPE_CHECKING:
    import torch


PLAIN_STEPS = 3
"""Steps without the profiler whose median is what the profiled ones are held against."""

LONGEST_S = 10.0
"""A profile ends after the operation during which so much time has passed: its memory and its reading grow with it."""

MOST_CALLS = 150_000
"""Calls and returns of Python functions after which a profile ends too."""


@dataclass(frozen=True, slots=True)
class ProfileWish:
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
        wish: what to profile.
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
        wish: ProfileWish,
        device: torch.device,
        note: Callable[..., None],
        annotate: Callable[[Annotate | None], None],
        plain: Sequence[float] = (),
    ) -> None:
        self.done = False
        self.on = False
        self._wish = wish
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
        if self.on:
            self._leave_step()
            self._seconds.append(seconds)
            if last or len(self._seconds) >= self._wish.steps or self._is_long:
                self._read()
            else:
                self._enter_step(step + 1)
        elif self._found is not None:
            self._plain.append(seconds)
        elif not (self.done or last):
            self.begin(step + 1)
        if self._found is not None and len(self._plain) >= PLAIN_STEPS:
            self._tell()

    def begin(self, step: int) -> None:
        """Start torch's profiler; ``step`` begins when this returns."""
        began = time.perf_counter()
        try:
            self._profiler = _started(self._device)
        except Exception as error:  # whatever is wrong with a profiler, the run goes on
            self._give_up("The steps could not be profiled", error)
            return
        self.on, self._first = True, step
        self._cost_s += time.perf_counter() - began
        self._ends_s = time.perf_counter() + LONGEST_S
        self._frames.start()
        self._enter_step(step)

    def look(self) -> None:
        """Called between operations: a profile that has become long ends within its step."""
        if self.on and self._is_long:
            self._leave_step()
            self._read()

    def end(self) -> None:
        """The run has reached its end: tell what there is."""
        if self.on and self._seconds:
            self._leave_step()
            self._read()
        self._leave()
        if self._found is not None:
            self._tell()
        elif not self.done:
            self._tell_nothing(f"The run ended before {_count(self._wish.steps)} could be profiled.")

    def drop(self) -> None:
        """The run has been stopped or failed: leave the profiler, and throw away what it has."""
        self._leave()
        if self._found is not None:
            self._tell()
        elif not self.done:
            self._tell_nothing("The run ended while steps of it were to be profiled; there is no profile.")

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
        self._frames.stop()
        self._profiler.stop()

    def _read(self) -> None:
        """Stop, and make of what was recorded what is told."""
        began = time.perf_counter()
        try:
            self._stop()
            origin_ns = self._profiler.profiler.kineto_results.trace_start_ns()
            self._found = operators(self._profiler.events(), self._frames, origin_ns)
        except Exception as error:  # as above
            self._give_up("The profile could not be read", error)
            return
        self._found |= self._trace()
        self._profiler, self._frames = None, CallFrames()
        self._cost_s += time.perf_counter() - began

    def _trace(self) -> dict[str, Any]:
        if not self._wish.stem:
            return {"trace": None, "trace_problem": ""}
        path = trace_name(Path(self._wish.stem), self._first)
        try:
            write_trace(self._profiler, path)
        except Exception as error:  # a full disk, a folder that may not be written, or a profiler without a trace
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error).split("\n")[0]
            return {"trace": None, "trace_problem": f"The trace was not written to {path.parent}: {words}."}
        return {"trace": str(path), "trace_problem": ""}

    def _tell(self) -> None:
        assert self._found is not None
        facts, self._found, self.done = {**self._figures(), **self._found}, None, True
        where = f"The trace is in {facts['trace']}." if facts["trace"] else facts["trace_problem"]
        self._note(OPERATORS, " ".join(part for part in (_words(facts), facts["missing"], where) if part), **facts)

    def _figures(self) -> dict[str, Any]:
        step_s = statistics.fmean(self._seconds) if self._seconds else None
        plain_s = statistics.median(self._plain) if self._plain else None
        return {
            "first_step": self._first,
            "steps": len(self._seconds),
            "wanted_steps": self._wish.steps,
            "device": str(self._device),
            "step_seconds": step_s,
            "plain_step_seconds": plain_s,
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
        self._tell_nothing(f"{trouble} ({type(error).__name__}: {first}); the run goes on.")

    def _tell_nothing(self, text: str) -> None:
        self.done = True
        self._note(OPERATORS, text)


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


def _words(facts: Mapping[str, Any]) -> str:
    """The profile in a sentence or two."""
    first, steps = facts["first_step"], facts["steps"]
    which = f"step {first}" if steps <= 1 else f"steps {first} to {first + steps - 1}"
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
    return "a step" if steps == 1 else f"{steps} steps"


def _top(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no operator ran"
    key = "device_self_seconds" if any(row["device_self_seconds"] for row in rows) else "cpu_self_seconds"
    longest = max(rows, key=lambda row: row[key])
    return f"{longest['name']} took the most time, {format_duration(longest[key])}"


LEVEL = 3
"""Of compression: most of what there is to gain, at a third of the time that the best takes."""


def write_trace(profiler: Any, path: Path) -> None:
    """Write the trace of a `torch.profiler.profile` that has stopped, compressed, to ``path``.

    Raises:
        OSError: when it cannot be written; nothing is left behind.
        RuntimeError: when the profiler has no trace.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpudash-trace-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        with (
            written_whole(path) as part,
            plain.open("rb") as source,
            gzip.open(part, "wb", compresslevel=LEVEL) as target,
        ):
            shutil.copyfileobj(source, target)
