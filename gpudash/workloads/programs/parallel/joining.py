"""What the ranks tell, as the records of one run: joined steps, epochs, readings, notes, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpudash.agent.wire import Message
from gpudash.devices.names import Device
from gpudash.specs import TrainingSpec
from gpudash.telemetry.ranks import RankFindings, RankMemory, Ranks, RankStep, findings
from gpudash.telemetry.records import EpochFinished, Note, Record, StepFinished, event_from_json
from gpudash.units import format_bytes
from gpudash.workloads.programs.epochs import Epochs
from gpudash.workloads.programs.parallel.standing import Standing

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_NAMES = {"gloo": "Gloo", "nccl": "NCCL"}


class Joining:
    """Belongs to one thread.

    Args:
        spec: of the run.
        devices: what is known of them, by rank; empty where nothing is.
        run_id: the run's number.
        emit: takes every record.
        clock: session time in seconds.

    Attributes:
        standings: where each rank stands, by its number.
        steps: newest joined step.
        restarts: how often torchrun has started all ranks anew.
        done: rank → what it told at its end.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        devices: tuple[Device, ...],
        run_id: int,
        emit: Callable[[Record], None],
        clock: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._devices = devices
        self._run_id = run_id
        self._emit = emit
        self._clock = clock
        self._ranks = Ranks(spec.world_size)
        self._items: int | None = None
        self._facts: dict[str, Any] = {}
        self._run = ""
        self._findings = RankFindings(clock())
        self._began_s = self._step_ended_s = 0.0
        self.restarts = 0
        self.begin_again(0)

    def begin_again(self, restart: int) -> None:
        """All ranks are being started; ``restart`` counts from 0."""
        names = self._spec.device_names
        self.standings = [Standing(rank, name) for rank, name in enumerate(names)]
        self.done: dict[int, Mapping[str, Any]] = {}
        self.steps, self.restarts = 0, restart
        self._epochs = Epochs(self)
        self._epoch = 0
        self._rows: list[dict[str, Any]] = []
        if restart:
            self._ranks.begin_again()

    def take(self, rank: int, message: Message) -> None:
        """Take in what a rank tells."""
        kind, standing = message["type"], self.standings[rank]
        if kind == "hello":
            standing.pid, standing.host = message["pid"], str(message.get("host", ""))
            standing.stands(0, "starting", "", self._clock())
            self._run = str(message.get("run", ""))
            if all(one.pid is not None for one in self.standings):
                self._introduce()
        elif kind == "beat":
            self._beat(standing, message)
        elif kind == "ready":
            standing.ready, self._items = True, message["items"]
            self._facts.update(message["facts"])
            standing.memory.update(message["memory"])
            self._began_s = self._step_ended_s = self._clock()
        elif kind == "step":
            self._step(rank, message)
        elif kind == "event":
            self._event(message["event"])
        elif kind == "done":
            self.done[rank] = message

    def resident_bytes(self) -> dict[int, int]:
        """Resident bytes of the ranks by their processes' numbers; any thread may ask."""
        return {one.pid: one.memory.get("used_bytes") or 0 for one in self.standings if one.pid is not None}

    def note(self, topic: str, text: str, **details: Any) -> None:
        """Tell a fact in words, with its figures."""
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))

    def epoch(self, epoch: int, **facts: Any) -> None:
        """Tell that an epoch is over."""
        self._emit(EpochFinished(time_s=self._clock(), run_id=self._run_id, epoch=epoch, **facts))

    def look(self, *, at_end: bool = False) -> None:
        """Name a straggler or the rank that holds more than the others, when there is one that was not named yet."""
        seen = self._findings.at_end(self._ranks) if at_end else self._findings.look(self._ranks, self._clock())
        for finding in seen:
            self.note(finding.topic, finding.text, **finding.details)

    def result(self) -> dict[str, Any]:
        """What is known of the run until now, as its result."""
        rows = self._ranks.summary()
        seconds = self._step_ended_s - self._began_s
        result: dict[str, Any] = {**self._facts, "epochs": self._rows}
        if self.steps and seconds > 0:
            result["steps_per_second"] = self.steps / seconds
            result["items_per_second"] = self.steps * (self._items or 0) / seconds
        result |= {
            "ranks": [{**row, **self._identity(self.standings[row["rank"]])} for row in rows],
            **findings(self._ranks),
            **self._agreement(),
            **self._kind(),
            "restarts": self.restarts,
        }
        peaks = {name: [row[name] for row in rows if row[name] is not None] for name in _PEAKS}
        result["memory"] = {name: max(found, default=None) for name, found in peaks.items()}
        return result

    def _agreement(self) -> dict[str, Any]:
        digests = [told.get("digest") for told in self.done.values()]
        if len(digests) < self._spec.world_size or None in digests:
            return {"parameters_equal": None, "parameters_sha256": None, "largest_difference": None}
        equal = len(set(digests)) == 1
        largest = max(told.get("difference", 0.0) for told in self.done.values())
        return {
            "parameters_equal": equal,
            "parameters_sha256": digests[0] if equal else None,
            "largest_difference": largest,
        }

    def _kind(self) -> dict[str, Any]:
        names = self._spec.device_names
        backend = BACKENDS[names[0].partition(":")[0]]
        return {"world_size": len(names), "strategy": self._spec.parallel, "backend": backend}

    def _identity(self, standing: Standing) -> dict[str, Any]:
        known = self._devices[standing.rank] if standing.rank < len(self._devices) else None
        return {
            "device": standing.device,
            "host": standing.host,
            "pid": standing.pid,
            "capacity_bytes": None if known is None else known.total_bytes,
        }

    def _introduce(self) -> None:
        kind = self._kind()
        ranks = [{"rank": one.rank, "local_rank": one.rank, **self._identity(one)} for one in self.standings]
        count, name = kind["world_size"], {"ddp": "DistributedDataParallel", "fsdp": "FSDP2"}[kind["strategy"]]
        text = f"{count} ranks on {self._spec.devices.replace(',', ', ')}: {name} over {_NAMES[kind['backend']]}"
        batch = self._spec.rank_batch
        text = f"{text}, batch {batch} on each, {batch * count} together{self._unequal()}."
        self.note("ranks", text, **kind, run=self._run, ranks=ranks)

    def _unequal(self) -> str:
        """The words for devices that do not hold as much: the smallest decides."""
        known = [(device.total_bytes, device.name) for device in self._devices if device.total_bytes is not None]
        if not known or min(known)[0] == max(known)[0]:
            return ""
        total, name = min(known)
        return f"; {name} is the smallest with {format_bytes(total)} and decides what fits"

    def _beat(self, standing: Standing, message: Message) -> None:
        standing.stands(message["step"], message["phase"], message["where"], self._clock())
        figures = {name: message[name] for name in ("used_bytes", "allocated_bytes", "reserved_bytes")}
        for name, value in figures.items():
            if value is not None:
                standing.memory[name] = value
                standing.memory[f"peak_{name}"] = max(value, standing.memory.get(f"peak_{name}", value))
        for sample in self._ranks.take_memory(RankMemory(standing.rank, message["time_s"], **figures)):
            self._emit(sample)

    def _step(self, rank: int, message: Message) -> None:
        self.standings[rank].steps = message["step"]
        figures = {name: message[name] for name in ("step", "time_s", "step_s", "compute_s", "blocked_s", "accuracy")}
        joined = self._ranks.take_step(RankStep(rank, loss=float(message["loss"]), **figures))
        if joined is None:
            return
        self.steps, self._step_ended_s = joined.step, joined.time_s
        for sample in joined.samples:
            self._emit(sample)
        loss = math.nan if joined.loss is None else joined.loss
        self._emit(
            StepFinished(
                time_s=joined.time_s,
                run_id=self._run_id,
                step=joined.step,
                steps=self._spec.steps,
                seconds=joined.seconds,
                loss=loss,
                accuracy=joined.accuracy,
                throughput=None if not self._items or joined.seconds <= 0 else self._items / joined.seconds,
            )
        )
        self._count(joined.step, loss, joined.accuracy or 0.0)
        self.look()

    def _count(self, step: int, loss: float, accuracy: float) -> None:
        """Put a step into its epoch."""
        epoch = (step - 1) // self._spec.batches_per_epoch + 1
        if epoch != self._epoch:
            self._epoch = epoch
            self._epochs.begin(epoch, ", ".join(self._spec.device_names))
        self._epochs.add(loss, accuracy)
        if step == self._spec.steps or step % self._spec.batches_per_epoch == 0:
            self._rows = self._epochs.end()

    def _event(self, text: str) -> None:
        event = event_from_json(text)
        if self.restarts and isinstance(event, Note):
            return  # it was told at the first start
        self._emit(replace(event, run_id=self._run_id))


_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")
