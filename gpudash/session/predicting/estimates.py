"""Predictions for the devices of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from gpudash.devices.names import kind_of
from gpudash.memory.allocator.settings import allocator_text
from gpudash.memory.predicting.estimate import Target
from gpudash.memory.predicting.rank_estimates import ranks_on
from gpudash.session.live.machine import Machine
from gpudash.session.predicting.contexts import remember_context
from gpudash.session.predicting.estimator import OWN_CODE_COMMAND, TIME_LIMIT_S, Answer, Estimator
from gpudash.session.predicting.targets import room_on
from gpudash.specs import Spec, TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.store import Store


class Estimates:
    """Asks what a run would take on a device as it is now. Any thread may ask; only the newest question matters.

    Args:
        machine: the devices.
        store: their newest readings.
        estimator: makes the predictions; nothing is started before the first question.
    """

    def __init__(self, machine: Machine, store: Store, estimator: Estimator | None = None) -> None:
        self._machine = machine
        self._store = store
        self._estimator = estimator or Estimator()

    def target(self, device: str) -> Target:
        """What there is room for on a device.

        Raises:
            ValueError: one sentence, when there is no such device, or torch would refuse its allocator's settings.
        """
        return room_on(self._machine.find(device), self._machine, self._store)

    def used_bytes(self, device: str) -> int | None:
        """How much of a device is in use, by which a workload may choose its size; ``None`` without a reading.

        Raises:
            ValueError: one sentence, when there is no such device.
        """
        level = self._machine.level(self._machine.find(device).memory)
        return None if level is None else level.used_bytes

    def ask(
        self,
        spec: Spec,
        device: str,
        *,
        alternatives: bool = True,
        time_limit_s: float = TIME_LIMIT_S,
        memory_cap: MemoryCap | None = None,
    ) -> int:
        """Ask whether ``spec`` fits ``device``, in place of what is being predicted; the question's number.

        Args:
            spec: the run.
            device: "cpu", "cuda:0" or "sim:0"; a run on several devices names them itself.
            alternatives: whether changes that would fit are looked for.
            time_limit_s: seconds after which predicting is given up.
            memory_cap: the most that torch may reserve on a GPU.

        Raises:
            ValueError: as `target`, and when ``device`` cannot bear the cap.
            RuntimeError: when the session is closed.
        """
        spec = spec.predicted
        names = spec.device_names if isinstance(spec, TrainingSpec) else ()
        message = {
            "workload": spec.name,
            "spec": spec.model_dump(mode="json", exclude_defaults=True),
            "alternatives": alternatives,
        }
        return self._ask(message, names[0] if names else device, time_limit_s, memory_cap, names)

    def ask_callable(
        self,
        name: str,
        steps: int,
        device: str,
        *,
        alternatives: bool = True,
        time_limit_s: float = TIME_LIMIT_S,
        memory_cap: MemoryCap | None = None,
        python: str = sys.executable,
    ) -> int:
        """Ask what the function ``package.module:function`` takes, which is given a device and returns its step.

        Args:
            name: of the function.
            steps: how many are followed.
            device, alternatives, time_limit_s, memory_cap: as of `ask`.
            python: the Python that has the function's libraries, torch among them; this one unless given.

        Raises:
            ValueError, RuntimeError: as `ask`.
        """
        message = {"callable": name, "steps": steps, "alternatives": alternatives}
        return self._ask(message, device, time_limit_s, memory_cap, command=(*OWN_CODE_COMMAND, python))

    def newest(self) -> Answer | None:
        """What is known of the newest question; ``None`` before its first answer."""
        return self._estimator.newest()

    def wait(self, timeout_s: float) -> Answer | None:
        """Wait for the whole answer of the newest question; what is known when that has come or the time is over."""
        return self._estimator.wait(timeout_s)

    def cancel(self, *, warm: bool = True) -> None:
        """Predict nothing; as `Estimator.cancel`."""
        self._estimator.cancel(warm=warm)

    def close(self) -> bool:
        """End the process that predicts; false when its thread could not be joined."""
        closed = self._estimator.close()
        self._remember_contexts()
        return closed

    def _remember_contexts(self) -> None:
        """Keep what the contexts that this process has made took, where the driver tells."""
        for device in self._machine.devices():
            if device.kind != "cuda" or device.uuid is None:
                continue
            taken = self._machine.context_bytes(device.uuid)
            with self._store.lock:
                # Where nothing is reserved any more, a run's own process has taken its context with it.
                opened = bool(self._store.latest("allocator", "reserved_bytes", device.name).value)
            if opened and taken is not None:
                remember_context(device.uuid, taken)

    def _ask(
        self,
        message: Mapping[str, Any],
        device: str,
        time_limit_s: float,
        cap: MemoryCap | None,
        names: Sequence[str] = (),
        command: Sequence[str] | None = None,
    ) -> int:
        target = self.target(device)
        if cap is not None and (problems := cap.problems(device, target.capacity_bytes)):
            raise ValueError("; ".join(problems) + ".")
        whole = {
            **message,
            "target": _plain(_within(target, cap)),
            "elsewhere": [_plain(_within(other, cap)) for other in self._elsewhere(device)],
            "used_bytes": self.used_bytes(device),
            "ranks": [_plain(_within(rank, cap)) for rank in ranks_on([self.target(name) for name in names])],
        }
        return self._estimator.ask(whole, time_limit_s, command)

    def _elsewhere(self, device: str) -> Iterator[Target]:
        """What there is room for on every other device that a run can use; simulated ones help simulated ones only."""
        simulated = kind_of(device) == "sim"
        for other in self._machine.devices():
            if other.name != device and (simulated or not other.simulated):
                with suppress(ValueError):
                    yield self.target(other.name)


def _within(target: Target, cap: MemoryCap | None) -> Target:
    """``target`` with no more room than a cap leaves the allocator; the context lies beside it."""
    allowed = None if cap is None or target.device == "cpu" else cap.allowed_bytes(target.capacity_bytes)
    if allowed is None or target.free_bytes is None:
        return target
    return replace(target, free_bytes=min(target.free_bytes, allowed + target.overhead_bytes))


def _plain(target: Target) -> dict[str, Any]:
    """A target as the process reads it: the allocator's settings as torch takes them."""
    found = {field.name: getattr(target, field.name) for field in fields(target) if field.name != "settings"}
    found["architecture"] = asdict(target.architecture)
    return {**found, "settings": "" if target.device == "cpu" else allocator_text()}
