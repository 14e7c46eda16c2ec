"""Runs made by hand: every number is known, so every difference is too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpudash.telemetry.comparing import ComparedRun, Curve, RunMark, StepColumns
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Event, Marker, RunEnd, RunStarted, StageFinished, StepFinished
from gpudash.telemetry.runs import RunView
from gpudash.units import MIB

STAGES = 20
"""How often a stage is told in a run."""

Ending = Literal["finished", "cancelled", "failed", "out_of_memory", "running"]


@dataclass(frozen=True)
class Made:
    """A run of ``steps`` equal steps on ``device``; `wobble` is the share by which every other step differs."""

    workload: str = "training"
    device: str = "cuda:0"
    simulated: bool = False
    spec: Mapping[str, Any] = field(default_factory=lambda: {"model": "mlp", "precision": "fp32"})
    steps: int = 200
    step_s: float = 0.01
    items: int = 16
    wobble: float = 0.0
    loss: float | None = 0.5
    accuracy: float | None = 0.75
    allocated: int | None = 100 * MIB
    began_s: float = 2.0
    run_id: int = 1
    ending: Ending = "finished"
    result: Mapping[str, Any] = field(default_factory=dict)
    marks: Sequence[tuple[str, float]] = ()

    def but(self, **changes: Any) -> Made:
        return replace(self, **changes)

    @property
    def seconds(self) -> float:
        return self.steps * self.step_s

    def events(self) -> list[Event]:
        """What a session would have recorded of it."""
        run, began = self.run_id, self.began_s
        events: list[Event] = [
            RunStarted(
                time_s=began,
                run_id=run,
                workload=self.workload,
                device=self.device,
                spec=self.spec,
                simulated=self.simulated,
            )
        ]
        for step in range(1, self.steps + 1):
            seconds = self.step_s * (1 + self.wobble * (step % 2))
            events.append(
                StepFinished(
                    time_s=began + step * self.step_s,
                    run_id=run,
                    step=step,
                    steps=self.steps,
                    seconds=seconds,
                    loss=self.loss,
                    accuracy=self.accuracy,
                    throughput=self.items / seconds,
                )
            )
        for number in range(1, STAGES + 1 if self.steps else 1):
            share = self.seconds / STAGES
            events.append(
                StageFinished(
                    time_s=began + number * share, run_id=run, name="forward", seconds=share / 2, count=self.steps
                )
            )
        events.extend(Marker(time_s=began + after, run_id=run, label=label) for label, after in self.marks)
        return sorted([*events, *self._end()], key=lambda event: event.time_s)

    def _end(self) -> list[Event]:
        if self.ending == "running":
            return []
        memory = {"peak_allocated_bytes": self.allocated, "peak_reserved_bytes": self.allocated}
        told: dict[str, Any] = {
            "time_s": self.began_s + self.seconds,
            "run_id": self.run_id,
            "seconds": self.seconds,
            "steps": self.steps,
            "result": {"memory": memory, **self.result},
        }
        if self.ending == "failed":
            return [RunEnd(status="failed", error="nan", message="The loss is NaN.", remedy="", **told)]
        if self.ending == "out_of_memory":
            return [RunEnd(status="out_of_memory", error="cuda", message="Full.", remedy="", **told)]
        return [RunEnd(status=self.ending, **told)]

    def run(self, label: str = "a", **known: Any) -> ComparedRun:
        """The run as it is compared, without a file."""
        events = self.events()
        assert isinstance(events[0], RunStarted)
        view = RunView.of(events[0])
        for event in events[1:]:
            view.apply(event)
        steps = [event for event in events if isinstance(event, StepFinished)]
        columns = {
            name: np.array(
                [np.nan if getattr(step, source) is None else getattr(step, source) for step in steps], float
            )
            for name, source in (
                ("number", "step"),
                *((same, same) for same in ("time_s", "seconds", "loss", "accuracy", "throughput")),
            )
        }
        stages = [event.seconds / event.count for event in events if isinstance(event, StageFinished)]
        times = np.linspace(self.began_s, self.began_s + self.seconds, 50)
        memory = {} if self.allocated is None else {"allocated": Curve(times, np.full(50, float(self.allocated)))}
        marks = [RunMark(label, self.began_s + after) for label, after in self.marks]
        return ComparedRun(
            label,
            f"{label}.gpudash",
            view,
            StepColumns(**columns),
            {"forward": np.array(stages)},
            memory,
            marks,
            **known,
        )

    def record(self, path: Path, *more: Made, meta: Mapping[str, Any] | None = None) -> Path:
        """Write it, and ``more`` runs behind it, as a recording."""
        recorder = Recorder(path, meta={"host": "lab", "host_product": "a CPU, 2 cores", **(meta or {})})
        for made in (self, *more):
            for event in made.events():
                recorder.add(event)
        recorder.close()
        return path


MADE = Made()
