"""``gpudash devices``: what there is, and why something is missing."""

import os
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from gpudash.cli.output import Exit, print_json, stdout
from gpudash.devices import cuda_devices, cuda_order, default_device, why_torch_has_no_gpu
from gpudash.telemetry.records import State
from gpudash.units import format_bytes


def devices(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List every device, what each reports, and why something is missing.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    document = inventory()
    if json:
        print_json(document)
        return Exit.FINISHED
    console = stdout()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "product", "memory", "identity"):
        table.add_column(title, overflow="fold", no_wrap=title == "identity")
    for device in document["devices"]:
        table.add_row(
            device["name"] or f"GPU {device['nvml_index']}",
            device["product"],
            format_bytes(device["total_bytes"]),
            device["uuid"] or device.get("capacity_source", ""),
        )
    console.print(table)
    for device in document["devices"]:
        missing = [f"{metric} {state}" for metric, state in device["states"].items()]
        if missing:
            console.print(f"{device['name'] or device['uuid']}: {', '.join(missing)}")
    console.print(f"{document['torch']['words']}; default device {document['default']}")
    if document["problem"]:
        console.print(document["problem"], soft_wrap=True)
    return Exit.FINISHED


def inventory() -> dict[str, Any]:
    """Every device with its newest readings and states, torch's view, and one line on what is missing."""
    from gpudash.sources.discovery import survey
    from gpudash.workloads import torch_report, torch_words

    seen = survey()
    report = torch_report(properties=True)
    order = cuda_order(
        [answer.gpu for answer in seen.gpus],
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        os.environ.get("CUDA_DEVICE_ORDER"),
    )
    usable = cuda_devices(order, report)
    names = {device.uuid: device.name for device in usable}
    free = {answer.gpu.uuid: int(answer.readings.get("free_bytes") or 0) for answer in seen.gpus}
    listed: list[dict[str, Any]] = [
        {
            "name": "cpu",
            "product": seen.host.product,
            "cores": seen.host.cores,
            "total_bytes": seen.host.total_bytes,
            "capacity_source": seen.host.capacity_source,
            "uuid": None,
            "readings": {"total_bytes": seen.host.total_bytes, "available_bytes": seen.host.available_bytes},
            "states": {},
        }
    ]
    for answer in seen.gpus:
        gpu = answer.gpu
        listed.append(
            {
                "name": names.get(gpu.uuid),
                "product": gpu.product,
                "nvml_index": gpu.nvml_index,
                "total_bytes": gpu.total_bytes,
                "uuid": gpu.uuid,
                "pci_bus_id": gpu.pci_bus_id,
                "memory_version": answer.memory_version,
                "readings": dict(answer.readings),
                "states": {name: state.value for name, state in answer.states.items() if state is not State.OK},
                "processes": [dict(row) for row in answer.processes],
            }
        )
    listed += [
        {"name": device.name, "product": device.product, "total_bytes": device.total_bytes, "uuid": None}
        | {"readings": {}, "states": {}}
        for device in usable
        if device.uuid is None
    ]
    return {
        "devices": listed,
        "default": default_device(usable, free),
        "driver_version": seen.driver_version,
        "nvml_version": seen.nvml_version,
        "cuda_driver_version": seen.cuda_driver_version,
        "torch": {**report, "words": torch_words(report)},
        "problem": seen.problem or why_torch_has_no_gpu(report, order) or order.reason or None,
    }
