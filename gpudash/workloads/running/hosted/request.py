"""Converts a run's request to plain data for the run's own process, and back."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from gpudash.devices.names import Device
from gpudash.memory.explaining.memory_state import Surroundings
from gpudash.specs import Spec, build, workloads
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.explanation import Part
from gpudash.workloads.running.context import MemoryLevel
from gpudash.workloads.running.run import RunRequest
from gpudash.workloads.running.run_errors import WorkloadError
from gpudash.workloads.running.sim_backend import card_fields, card_from

Ask = Callable[..., Any]
"""Sends a question with facts to the parent process, and returns the answer; ``None`` if there is none."""


def message_of(request: RunRequest, clock: Callable[[], float]) -> dict[str, Any]:
    """``request`` as a message. Its callbacks are answered by this process during the run.

    Args:
        clock: session time in seconds, of the system's monotonic clock, which is the same in every process.
    """
    spec = request.spec
    return {
        "type": "request",
        "spec_type": [type(spec).__module__, type(spec).__qualname__],
        "workload": spec.name,
        # `exclude_unset`: a field that was left out may mean something else than one that was set to its default.
        "fields": spec.model_dump(mode="json", exclude_unset=True),
        "device": request.device,
        "run_id": request.run_id,
        "origin_s": time.monotonic() - clock(),
        "guarded": request.refuse is not None,
        "warn_ratio": request.warn_ratio,
        "expected_uuid": request.expected_uuid,
        "devices": [[device.name, device.uuid] for device in request.devices],
        "link_bytes_per_second": request.link_bytes_per_second,
        "cards": list(map(card_fields, request.cards)),
        "follows_requests": request.on_requests is not None and request.device.startswith("sim"),
        "memory_cap": None if request.memory_cap is None else asdict(request.memory_cap),
    }


def request_from(message: Mapping[str, Any], ask: Ask) -> RunRequest:
    """The request that `message_of` wrote, in the process that runs it.

    Raises:
        WorkloadError: in one sentence, if the workload is not available there.
    """

    cards = tuple(map(card_from, message["cards"]))
    in_use = {f"sim:{card.index}": card.used_bytes for card in cards}

    def refuse(size: int, device: str) -> str | None:
        # A simulated card's readings are sent, so they arrive late; those of NVML and the host do not.
        used = None
        if device in in_use:
            used = in_use[device]()
        refused: str | None = ask("refuse", size=size, device=device, used=used)
        return refused

    def level() -> MemoryLevel | None:
        found = ask("memory")
        if found is None:
            return None
        return MemoryLevel(**found)

    def energy(device: str) -> tuple[float, float] | str:
        found = ask("energy", device=device)
        if found is None:
            return "nothing reads it"
        if isinstance(found, str):
            return found
        return (found[0], found[1])

    cap = message["memory_cap"]
    return RunRequest(
        spec=_spec(message),
        device=message["device"],
        run_id=message["run_id"],
        refuse=refuse if message["guarded"] else None,
        memory=level,
        warn_ratio=message["warn_ratio"],
        expected_uuid=message["expected_uuid"],
        devices=tuple(Device(name, "", None, uuid=uuid) for name, uuid in message["devices"]),
        link_bytes_per_second=message["link_bytes_per_second"],
        cards=cards,
        memory_cap=None if cap is None else MemoryCap(**cap),
        surroundings=lambda: surroundings_from(ask("surroundings")),
        energy=energy,
    )


def answer(request: RunRequest, question: Mapping[str, Any], host_pid: int) -> Any:
    """Answer a question of a run's own process.

    Args:
        host_pid: its process ID; what it holds does not belong to its surroundings.
    """
    what = question.get("what")
    if what == "refuse" and request.refuse is not None:
        size, device, used = question["size"], question["device"], question["used"]
        if used is None:
            return request.refuse(size, device)
        return request.refuse(size, device, used)
    if what == "memory" and request.memory is not None:
        level = request.memory()
        if level is None:
            return None
        return asdict(level)
    if what == "surroundings" and request.surroundings is not None:
        found = request.surroundings()
        # The run's own process is the run itself, not another process on the card.
        others = [asdict(process) for process in found.processes if process.pid != host_pid]
        return {"processes": others, "context_bytes": found.context_bytes}
    if what == "energy" and request.energy is not None:
        return request.energy(question["device"])
    return None


def surroundings_from(answered: Mapping[str, Any] | None) -> Surroundings:
    """The surroundings in the form of `answer`; unknown without an answer."""
    if answered is None:
        return Surroundings()
    return Surroundings(tuple(Part(**process) for process in answered["processes"]), answered["context_bytes"])


def _spec(message: Mapping[str, Any]) -> Spec:
    module, name = message["spec_type"]
    try:
        found = workloads().get(message["workload"])
        # First by the workload's name; a class with another name is imported from the parent's module.
        if found is None or [found.__module__, found.__qualname__] != [module, name]:
            found = getattr(importlib.import_module(module), name)
        return build(found, message["fields"])
    except Exception as error:  # a third-party module may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise WorkloadError(
            "workload",
            f"The workload {message['workload']} cannot be had in a process of its own ({type(error).__name__}: "
            f"{first}).",
            "Run it with --no-isolate, or install the package it comes from.",
        ) from error
