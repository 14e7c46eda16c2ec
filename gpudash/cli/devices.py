"""``gpudash devices``: the devices of this machine, and why any are missing."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Column

from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.output import Exit, plain_table, print_json, print_table, stdout
from gpudash.devices.known_gpus import KNOWN_GPUS
from gpudash.devices.names import (
    OF_AN_INSTANCE,
    SHARED,
    Device,
    Simulation,
    cuda_order_here,
    default_device,
    shown_name,
    simulated_device,
    torch_devices,
    unread_gpus,
    why_torch_has_no_gpu,
)
from gpudash.units import format_bytes

if TYPE_CHECKING:
    from gpudash.sources.discovery import GpuSurvey, HostSurvey


def devices(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    known: Annotated[bool, Parameter(negative="")] = False,
    simulated: SimulateOptions | None = None,
) -> int:
    """List every device, what each reports, and why something is missing.

    Parameters
    ----------
    json
        Print one JSON document.
    known
        List the GPUs that --simulate and snapshot --capacity accept by name, instead of the devices of this machine.
    simulated
        GPUs to simulate.
    """
    if known:
        return _list_known(as_json=json)
    document = inventory(Simulation() if simulated is None else simulated.simulation())
    if json:
        print_json(document)
        return Exit.FINISHED
    console = stdout()
    folded = (Column(title, overflow="fold") for title in ("device", "product", "memory"))
    table = plain_table(*folded, Column("identity", overflow="fold", no_wrap=True))
    for device in document["devices"]:
        table.add_row(
            shown_name(device["name"]) if device["name"] else _unnamed(device),
            device["product"],
            format_bytes(device["total_bytes"]) + (f", {SHARED}" if device.get("shared_memory") else ""),
            device["uuid"] or device.get("capacity_source", ""),
        )
    print_table(table, console)
    for device in document["devices"]:
        missing = _missing(device)
        if missing:
            console.print(f"{device['name'] or _unnamed(device)}: {', '.join(missing)}")
        if device.get("remark"):
            console.print(f"{device['remark']}.", soft_wrap=True)
        if device.get("problem"):
            console.print(f"{device['name'] or _unnamed(device)} cannot be used: {device['problem']}", soft_wrap=True)
    console.print(f"{document['torch']['words']}; default device {document['default']}")
    if document["problem"]:
        console.print(document["problem"], soft_wrap=True)
    return Exit.FINISHED


def _missing(device: Mapping[str, Any]) -> list[str]:
    """The metrics that it does not report, and why."""
    if device.get("parent"):
        return [OF_AN_INSTANCE]
    if device["simulated"]:
        return []
    return [f"{metric} {state}" for metric, state in device["states"].items()]


def _unnamed(device: Mapping[str, Any]) -> str:
    """The name the window shows for a GPU that torch does not list."""
    return f"GPU {device['number']}"


def _list_known(*, as_json: bool) -> int:
    if as_json:
        print_json({"known": list(map(asdict, KNOWN_GPUS))})
        return Exit.FINISHED
    folded = (Column(title, overflow="fold") for title in ("product", "memory", "capability", "SMs", "memory as in"))
    table = plain_table(Column("name", overflow="fold", no_wrap=True), *folded)
    for gpu in KNOWN_GPUS:
        major, minor = gpu.capability
        memory, count = format_bytes(gpu.total_bytes), str(gpu.multiprocessors)
        table.add_row(gpu.key, gpu.product, memory, f"{major}.{minor}", count, gpu.source)
    print_table(table, stdout())
    return Exit.FINISHED


def inventory(simulation: Simulation) -> dict[str, Any]:
    """Every device with its newest readings and states, torch's view, and a sentence on what is missing."""
    from gpudash.session.live.simulated_gpus import allocator_settings
    from gpudash.sources.discovery import survey
    from gpudash.workloads.running.installed import quick_torch_report, torch_text

    seen = survey()
    refused = allocator_settings()[1]
    fix = None
    if refused is not None:
        fix = f"{refused} Correct that variable, or unset it."
    report = quick_torch_report(properties=True)
    order = cuda_order_here([answer.gpu for answer in seen.gpus])
    usable = torch_devices(order, report)
    names = {device.uuid: device.name for device in usable}
    free = {answer.gpu.uuid: int(answer.readings.get("free_bytes") or 0) for answer in seen.gpus}
    listed = [
        _host(seen.host),
        *({**_gpu(answer, names.get(answer.gpu.uuid)), "problem": fix} for answer in seen.gpus),
        *({**_without_readings(device), "problem": fix} for device in usable if device.uuid == device.name),
        *_simulated(simulation, offer=not (seen.gpus or usable), problem=fix or report["simulator_problem"]),
    ]
    unread = None
    if seen.problem is not None:
        unread = unread_gpus(report, seen.problem)
    return {
        "devices": [{"simulated": False, **device} for device in listed],
        "default": default_device(usable, free),
        "driver_version": seen.driver_version,
        "nvml_version": seen.nvml_version,
        "cuda_driver_version": seen.cuda_driver_version,
        "torch": {**report, "words": torch_text(report)},
        "problem": unread or why_torch_has_no_gpu(report, order) or order.reason or None,
    }


def _host(host: "HostSurvey") -> dict[str, Any]:
    return {
        "name": "cpu",
        "product": host.product,
        "cores": host.cores,
        "total_bytes": host.total_bytes,
        "capacity_source": host.capacity_source,
        "uuid": None,
        "readings": {"total_bytes": host.total_bytes, "available_bytes": host.available_bytes},
        "states": {},
    }


def _gpu(answer: "GpuSurvey", name: str | None) -> dict[str, Any]:
    from gpudash.telemetry.records import State

    gpu = answer.gpu
    return {
        "name": name,
        "product": gpu.product,
        "nvml_index": gpu.nvml_index,
        "number": gpu.number,
        "parent": gpu.parent or None,
        "total_bytes": gpu.total_bytes,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "memory_version": answer.memory_version,
        "shared_memory": gpu.shared_memory,
        "readings": {metric: value for metric, value in answer.readings.items() if value is not None},
        "states": {name: state.value for name, state in answer.states.items() if state is not State.OK},
        "processes": list(map(dict, answer.processes)),
    }


def _without_readings(device: Device) -> dict[str, Any]:
    facts = {"name": device.name, "product": device.product, "total_bytes": device.total_bytes, "uuid": None}
    return facts | {"readings": {}, "states": {}, "remark": device.remark or None}


def _simulated(simulation: Simulation, *, offer: bool, problem: str | None) -> list[dict[str, Any]]:
    """The simulated GPUs, as a session reports them before anything runs."""
    from gpudash.session.live.simulated_gpus import SimulatedGpus
    from gpudash.sources.simulated_gpus import CardReader
    from gpudash.telemetry.records import Sample

    simulated = SimulatedGpus(simulation)
    simulated.start()
    if offer:
        simulated.offer()
    usable = [simulated_device(gpu, problem) for gpu in simulated.gpus]
    read = CardReader(simulated.cards).read(0.0)
    samples = {found.device: found for found in read if isinstance(found, Sample) and found.table == "gpu"}
    found = []
    for device in usable:
        sample = samples[device.uuid]
        facts = {
            "name": device.name,
            "product": device.product,
            "total_bytes": device.total_bytes,
            "uuid": device.uuid,
            "simulated": True,
            "problem": device.problem,
            "readings": {name: value for name, value in sample.values.items() if value is not None},
            "states": {name: state.value for name, state in sample.states.items()},
        }
        found.append(facts)
    return found
