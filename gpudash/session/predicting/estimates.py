"""Predictions for a session's devices, and how much room each has now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from gpudash.devices.names import Device, Gpu, SimulatedCard, kind_of, simulated_gpu, size_of
from gpudash.devices.simulated_cards import exact_text
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import allocator_text
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import CardRequest, Target
from gpudash.memory.predicting.rank_estimates import ranks_on
from gpudash.memory.watching.levels import HOST
from gpudash.session.live.machine import Machine, measured_context
from gpudash.session.predicting.estimator import OWN_CODE_COMMAND, TIME_LIMIT_S, Answer, Estimator
from gpudash.simulator.device.simulated_gpu import A100, CONTEXT_BYTES
from gpudash.specs import Spec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.specs.model import SERVE, ModelSpec
from gpudash.telemetry.store import Store
from gpudash.units import MIB, format_bytes

ASSUMED_CONTEXT_BYTES = 500 * MIB
"""Assumed size of a CUDA context before one exists: 100 to 850 MiB have been seen, by card and driver."""

HOPPER_CONTEXT_BYTES = 758 * MIB
"""The same on Hopper, with the kernels and libraries of a training loaded: an H100 needed 586 MiB for matrix products,
742 MiB for training in float32 and 758 MiB in half precision (torch 2.11 for CUDA 13.0; tests/gpu/recorded)."""

CONTEXT_TEXT = "a simulated context of {size}"

CUDA_MARGIN_RATIO = 0.01
"""How far a peak on CUDA may be off the dry run's: only the kernels know their workspaces."""

CPU_MARGIN_RATIO = 0.2
"""How far a peak on the CPU may be off the sum of the tensors: the heap rounds, caches and has other users."""


class Estimates:
    """Predicts what a run would need on a device in its present state. Any thread may ask; only the newest request
    counts.

    Args:
        machine: the machine's devices.
        store: the devices' newest readings.
        estimator: makes the predictions; starts nothing before the first request.
    """

    def __init__(self, machine: Machine, store: Store, estimator: Estimator | None = None) -> None:
        self._machine = machine
        self._store = store
        self._estimator = estimator or Estimator()

    def target(self, device: str) -> Target:
        """The room on a device.

        Raises:
            ValueError: one sentence, if there is no such device, or torch would refuse its allocator settings.
        """
        return _room_on(self._machine.find(device), self._machine, self._store)

    def capped_target(self, device: str, cap: MemoryCap | None) -> Target:
        """The room on a device for a run that may reserve no more than a cap allows.

        Raises:
            ValueError: as in `target`; also if the cap is too small for the device.
        """
        target = self.target(device)
        if cap is not None and (problems := cap.problems(device, target.capacity_bytes)):
            raise ValueError("; ".join(problems) + ".")
        return _within(target, cap)

    def empty_target(self, card: SimulatedCard) -> Target:
        """The room on an empty simulated card."""
        return empty_target(card, self._machine.simulated.settings)

    def used_bytes(self, device: str) -> int | None:
        """Memory in use on a device, which a workload may size itself by; ``None`` without a reading.

        Raises:
            ValueError: one sentence, if there is no such device.
        """
        level = self._machine.level(self._machine.find(device).memory)
        if level is None:
            return None
        return level.used_bytes

    def ask(
        self,
        spec: Spec,
        device: str,
        *,
        alternatives: bool = True,
        time_limit_s: float = TIME_LIMIT_S,
        longest_s: float | None = None,
        memory_cap: MemoryCap | None = None,
        python: str = sys.executable,
        timeline: bool = False,
        cards: Sequence[SimulatedCard] | None = None,
    ) -> int:
        """Ask whether ``spec`` fits ``device``, cancelling the prediction in progress; returns the request's number.

        Args:
            spec: the run.
            device: "cpu", "cuda:0" or "sim:0"; a run on several devices names the others itself.
            alternatives: whether to look for changes that would fit.
            time_limit_s, longest_s: limits on processor time and on time by the clock, in seconds, as in
                `Estimator.ask`.
            memory_cap: the most that torch may reserve on a GPU.
            python: the Python with the libraries of a model that is given by its config; this one by default.
            timeline: whether the answer should include `Answer.ghost`.
            cards: further cards, taken as empty, to include in `Answer.cards`, with every other device that a run can
                use; ``None`` for none at all.

        Raises:
            ValueError: as in `target`; also if the cap is too small for ``device``, or a model is missing.
            RuntimeError: if the session is closed.
        """
        spec = spec.predicted
        names = spec.device_names
        where = device
        if names:
            where = names[0]
        if isinstance(spec, ModelSpec):
            if spec.missing:
                raise ValueError(spec.missing)
            if spec.task == SERVE:
                return self._ask_server(spec, where, time_limit_s, cards or ())
            model = {"model": spec.model_dump(mode="json"), "alternatives": alternatives, "timeline": timeline}
            command = (*OWN_CODE_COMMAND, python)
            model |= self._cards(where, cards)
            return self._ask(model, where, time_limit_s, memory_cap, names, command, longest_s=longest_s)
        message = {
            "workload": spec.name,
            "spec": spec.model_dump(mode="json", exclude_defaults=True),
            "alternatives": alternatives,
            "timeline": timeline,
            **self._cards(where, cards),
        }
        split = bool(names) and not spec.rank_devices
        return self._ask(message, where, time_limit_s, memory_cap, names, longest_s=longest_s, split=split)

    def ask_callable(
        self,
        name: str,
        steps: int,
        device: str,
        *,
        as_cuda: bool = False,
        alternatives: bool = True,
        time_limit_s: float = TIME_LIMIT_S,
        memory_cap: MemoryCap | None = None,
        python: str = sys.executable,
        timeline: bool = False,
        cards: Sequence[SimulatedCard] | None = None,
    ) -> int:
        """Ask what the function ``package.module:function`` needs; it is called with a device and returns its step.

        Args:
            name: name of the function.
            steps: how many steps are followed.
            as_cuda: whether the code names the device cuda, and should find it by that name.
            device, alternatives, time_limit_s, memory_cap, timeline, cards: as in `ask`.
            python: the Python with the function's libraries, torch included; this one by default.

        Raises:
            ValueError, RuntimeError: as in `ask`.
        """
        message = {
            "callable": name,
            "steps": steps,
            "as_cuda": as_cuda,
            "alternatives": alternatives,
            "timeline": timeline,
            **self._cards(device, cards),
        }
        return self._ask(message, device, time_limit_s, memory_cap, command=(*OWN_CODE_COMMAND, python))

    def ask_card(self, spec: Spec, card: SimulatedCard, *, python: str = sys.executable) -> int:
        """Ask what ``spec`` needs on an empty, hypothetical card; returns the request's number.

        Args:
            spec: the run.
            card: its size, or a known GPU.
            python: as in `ask`.

        Raises:
            RuntimeError: if the session is closed.
        """
        target = _plain(empty_target(card, self._machine.simulated.settings))
        message: dict[str, Any] = {"target": target, "elsewhere": [], "used_bytes": 0, "ranks": []}
        message |= {"alternatives": False, "timeline": False}
        if isinstance(spec, ModelSpec):
            message["model"] = spec.model_dump(mode="json")
            return self._estimator.ask(message, TIME_LIMIT_S, (*OWN_CODE_COMMAND, python))
        message |= {"workload": spec.name, "spec": spec.model_dump(mode="json", exclude_defaults=True)}
        return self._estimator.ask(message, TIME_LIMIT_S)

    def leave(self) -> None:
        """Cancel the prediction in progress: another request is about to follow."""
        self._estimator.leave()

    def on_answer(self, call: Callable[[], object]) -> None:
        """Call this after each answer to the newest request, on the predicting thread; it must not wait."""
        self._estimator.on_answer = call

    def newest(self) -> Answer | None:
        """The latest answer to the newest request; ``None`` before its first answer."""
        return self._estimator.newest()

    def wait(self, timeout_s: float) -> Answer | None:
        """Wait for the final answer to the newest request; after the timeout, returns the latest one."""
        return self._estimator.wait(timeout_s)

    def close(self) -> bool:
        """End the predicting process; false if its thread could not be joined."""
        return self._estimator.close()

    def _ask(
        self,
        message: Mapping[str, Any],
        device: str,
        time_limit_s: float,
        cap: MemoryCap | None,
        names: Sequence[str] = (),
        command: Sequence[str] | None = None,
        *,
        longest_s: float | None = None,
        split: bool = False,
    ) -> int:
        targets = list(map(self.target, names))
        whole = {
            **message,
            "target": _plain(self.capped_target(device, cap)),
            "elsewhere": [_plain(_within(other, cap)) for other in self._elsewhere(device)],
            "used_bytes": self.used_bytes(device),
            # A model split over devices is one process; ranks may share a device, and then its free memory too.
            "ranks": [_plain(_within(rank, cap)) for rank in (targets if split else ranks_on(targets))],
        }
        return self._estimator.ask(whole, time_limit_s, command, longest_s=longest_s)

    def _ask_server(self, spec: ModelSpec, device: str, time_limit_s: float, cards: Sequence[SimulatedCard]) -> int:
        """Ask what serving a model needs: a calculation for each card, without a dry run."""
        own = {"key": device, "target": _plain(self.target(device))}
        others = self._cards(device, cards)["cards"]
        message = {"server": spec.model_dump(mode="json"), "device": device, "cards": [own, *others]}
        return self._estimator.ask(message, time_limit_s)

    def card_requests(self, device: str, cards: Sequence[SimulatedCard]) -> list[CardRequest]:
        """The cards in the request beside ``device``: devices by name, others by their `exact_text`."""
        requested = {}
        for other in self._machine.devices():
            if other.name != device:
                with suppress(ValueError):
                    requested[other.name] = self.target(other.name)
        requested |= {exact_text(card): self.empty_target(card) for card in cards}
        return [CardRequest(key, target) for key, target in requested.items()]

    def _cards(self, device: str, cards: Sequence[SimulatedCard] | None) -> dict[str, Any]:
        if cards is None:
            return {}
        requested = self.card_requests(device, cards)
        return {"cards": [{"key": one.key, "target": _plain(one.target)} for one in requested]}

    def _elsewhere(self, device: str) -> Iterator[Target]:
        """The room on every other device that a run can use; for a simulated one, only on simulated ones."""
        simulated = kind_of(device) == "sim"
        for other in self._machine.devices():
            if other.name != device and (simulated or not other.simulated):
                with suppress(ValueError):
                    yield self.target(other.name)


def _within(target: Target, cap: MemoryCap | None) -> Target:
    """``target`` with its room reduced to what a cap allows the allocator; the context is not under the cap."""
    allowed = None
    if not (cap is None or target.device == "cpu"):
        allowed = cap.allowed_bytes(target.capacity_bytes)
    if allowed is None or target.free_bytes is None:
        return target
    return replace(target, free_bytes=min(target.free_bytes, allowed + target.overhead_bytes))


def _plain(target: Target) -> dict[str, Any]:
    """A target in JSON for the process, the allocator settings in torch's format."""
    found = {field.name: getattr(target, field.name) for field in fields(target) if field.name != "settings"}
    found["architecture"] = asdict(target.architecture)
    return {**found, "settings": "" if target.device == "cpu" else allocator_text()}


def _room_on(device: Device, machine: Machine, store: Store) -> Target:
    """The room for a run on ``device``, by the newest readings.

    Idle memory in torch's cache counts as free, since the next run can use it.

    Raises:
        ValueError: one sentence, if torch would refuse the allocator settings of this environment, or the allocator is
            unknown.
    """
    if device.simulated:
        return _simulated(device, machine)
    if device.kind == "cpu":
        free = machine.latest(HOST, "available_bytes")
        return Target("cpu", device.total_bytes, free, 0, "no context", CPU_MARGIN_RATIO, product=device.product)
    if device.remark:
        raise ValueError(f"What a run takes of {device.name} is not predicted: its allocator is not CUDA's.")
    settings = AllocatorSettings.parse(allocator_text())
    free = machine.latest(device.uuid, "free_bytes")
    with store.lock:
        reserved = store.latest("allocator", "reserved_bytes", device.name).size
        allocated = store.latest("allocator", "allocated_bytes", device.name).size
    idle = 0
    if reserved is not None and allocated is not None:
        idle = reserved - allocated
    own = machine.own_bytes(device.uuid)
    # Either will do: NVML may not report a process's memory, and a run without tensors has a context all the same.
    opened = bool(own) or bool(reserved)  # the context of a run in its own process is gone, and so is what it reserved
    gpu = machine.gpu(device.uuid)
    architecture = architecture_of(gpu)
    pcie = None
    if gpu is not None and gpu.pcie_generation is not None and gpu.pcie_width is not None:
        pcie = (gpu.pcie_generation, gpu.pcie_width)
    if opened:
        overhead, overhead_text = (0, "the CUDA context is there already")
    else:
        overhead, overhead_text = _context(device, architecture)
    return Target(
        device.name,
        device.total_bytes,
        # torch frees the cache's idle blocks before it raises an OutOfMemoryError (c10/cuda).
        None if free is None else free + idle,
        overhead,
        overhead_text,
        CUDA_MARGIN_RATIO,
        settings,
        architecture,
        product=device.product,
        pcie=pcie,
    )


def _context(device: Device, architecture: Architecture) -> tuple[int, str]:
    """Size in bytes of a CUDA context that does not exist yet, and the source of that figure."""
    measured = measured_context(device.uuid)
    if measured is not None:
        return measured, f"a CUDA context of {format_bytes(measured)} as measured on this card"
    assumed = ASSUMED_CONTEXT_BYTES
    if architecture.capability == (9, 0):
        assumed = HOPPER_CONTEXT_BYTES
    return assumed, f"a CUDA context of {format_bytes(assumed)} assumed"


def architecture_of(gpu: Gpu | None) -> Architecture:
    """A GPU's architecture, as far as its driver reports it."""
    if gpu is None:
        return Architecture(A100.capability, A100.multiprocessors)
    return Architecture(gpu.cuda_capability or A100.capability, gpu.multiprocessors or A100.multiprocessors)


def _simulated(device: Device, machine: Machine) -> Target:
    """The room on a simulated GPU, which reports it exactly, so there is no margin."""
    card = next(card for card in machine.simulated.cards if card.uuid == device.uuid)
    # A card that is open counts its context as used already.
    free, capacity = card.free_and_total()
    idle = card.reserved_bytes() - card.statistics()["allocated_bytes.all.current"]
    overhead = 0
    overhead_text = "the context is there already"
    if not card.opened:
        overhead = CONTEXT_BYTES
        overhead_text = CONTEXT_TEXT.format(size=format_bytes(overhead))
    return Target(
        device.name,
        capacity,
        free + idle,
        overhead,
        overhead_text,
        settings=card.settings,
        architecture=card.architecture,
        product=card.product,
    )


def empty_target(card: SimulatedCard, settings: AllocatorSettings) -> Target:
    """The room on a hypothetical simulated card that is empty."""
    size = size_of(card)
    gpu = simulated_gpu(0, card)
    context_text = CONTEXT_TEXT.format(size=format_bytes(CONTEXT_BYTES))
    return Target(
        "sim:0",
        size,
        size,
        CONTEXT_BYTES,
        context_text,
        settings=settings,
        architecture=architecture_of(gpu),
        product=gpu.product,
    )
