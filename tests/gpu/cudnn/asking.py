"""Measurements in processes of their own: cuDNN asked with the card hidden and in sight, and what torch takes.

Those that answer take ``set``, of `questions.SETS`, ``capability``, and ``seconds`` after which they stop; they report
``answers`` as they go, `None` where there is none.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpudash.simulator.convolutions.cudnn_client import CudnnClient, cudnn_path
from gpudash.simulator.convolutions.cudnn_process import (
    CHAR,
    DEVICE,
    DEVICE_JSON,
    CudnnLibrary,
    CudnnRefusedError,
    DevicelessCard,
    properties_of,
)
from tests.gpu.child import Report
from tests.gpu.cudnn import questions

DEVICE_ID, INT32 = 2700, 23
"""``CUDNN_ATTR_DEVICEPROP_DEVICE_ID`` and ``CUDNN_TYPE_INT32``."""

EVERY_S = 2.0
"""How often what has been found is reported."""

CLUSTERED = (9, 0)
"""The first capability whose kernels may have clusters of thread blocks, which lie in one GPC each."""

CLUSTERS, LAUNCHES = (8, 4, 2), 24

PLACES = """extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) places(unsigned int *found) {
    unsigned int multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    found[blockIdx.x] = multiprocessor;
    for (long long began = clock64(); clock64() - began < 20000;) {}
}
"""
"""Blocks of a cluster say on which multiprocessor they are, and stay so long that the whole card is full of them."""


def tell_properties(device: torch.device, _argument: None, tell: Report) -> None:
    """The card in cuDNN's own words, and what gpudash says in their place."""
    torch.empty(1, device=device)  # makes the context
    about = torch.cuda.get_device_properties(device)
    library = CudnnLibrary(str(cudnn_path()))
    tell("cudnn", library.version)
    real = card_in_sight(library, device.index or 0)
    described = properties_of(f"{about.major}.{about.minor}")
    tell("properties", real)
    tell("described_otherwise", {name: told for name, told in described.items() if real.get(name) != told})
    tell("not_described", sorted(set(real) - set(described)))


def card_in_sight(library: CudnnLibrary, number: int) -> dict[str, Any]:
    """The properties that cuDNN writes of a card.

    Raises:
        CudnnRefusedError: when it does not.
    """
    described = library.make(DEVICE)
    described.numbers(DEVICE_ID, INT32, number)
    described.finalize()
    size = library.get(described.handle, DEVICE_JSON, CHAR, 0, None)
    text = ctypes.create_string_buffer(size)
    library.get(described.handle, DEVICE_JSON, CHAR, size, text)
    found: dict[str, Any] = json.loads(text.raw.rstrip(b"\0"))
    return found


def tell_gpcs(device: torch.device, _argument: None, tell: Report) -> None:
    """Multiprocessors that were met in one cluster: groups of them are GPCs, or parts where too few were launched.

    Raises:
        RuntimeError: one sentence, on a card without clusters.
    """
    about = torch.cuda.get_device_properties(device)
    if (about.major, about.minor) < CLUSTERED:
        raise RuntimeError("Cards before capability 9.0 have no clusters by which to find their GPCs.")
    multiprocessors = about.multi_processor_count
    together: list[set[int]] = []
    for size in CLUSTERS:
        kernel = torch.cuda._compile_kernel(PLACES.replace("SIZE", str(size)), "places")
        found = torch.zeros(4 * multiprocessors // size * size, dtype=torch.int32, device=device)
        for _ in range(LAUNCHES):
            kernel((len(found), 1, 1), (32, 1, 1), [found])
            together += [set(cluster) for cluster in found.view(-1, size).tolist()]
    groups: list[set[int]] = []
    for cluster in together:
        met = [group for group in groups if group & cluster]
        groups = [group for group in groups if not group & cluster] + [cluster.union(*met)]
    tell("sizes", sorted(map(len, groups)))
    tell("multiprocessors", sorted(map(sorted, groups)))


def ask_hidden(_device: None, argument: Mapping[str, Any], tell: Report) -> None:
    """Answers as gpudash gets them, by a process that sees no card."""
    card = CudnnClient(tuple(argument["capability"]))

    def answer(case: dict[str, Any]) -> dict[str, Any] | None:
        found = card.ask(questions.question(case))
        if found is None:
            return None
        return {"workspace": found.workspace, "clusters": found.clusters}

    _report_all(answer, argument, tell)
    if card.problem:
        raise RuntimeError(f"{card.problem}.")
    card.close()


def ask_in_sight(device: torch.device, argument: Mapping[str, Any], tell: Report) -> None:
    """Answers of a process that has the card, and cuBLASLt: of the card that is described, or as cuDNN sees it."""
    torch.empty(1, device=device)  # makes the context
    library = CudnnLibrary(str(cudnn_path()))
    properties = properties_of(".".join(map(str, argument["capability"])))
    if argument["own"]:
        properties = card_in_sight(library, device.index or 0)
    card = DevicelessCard(library, properties)

    def answer(case: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return card.workspace(questions.question(case))
        except CudnnRefusedError:
            return None

    _report_all(answer, argument, tell)


def take(device: torch.device, argument: Mapping[str, Any], tell: Report) -> None:
    """What torch's allocator is asked for beside the result, in bytes."""

    def taken(case: dict[str, Any]) -> dict[str, Any] | None:
        given = questions.arguments(case, str(device))
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = _requested(device, "current")
        try:
            result = questions.call(given, case["part"])
        except RuntimeError:  # torch.OutOfMemoryError is one, and so is what cuDNN refuses
            return None
        kept = _requested(device, "current") - before
        peak = _requested(device, "peak") - before
        del result
        return {"workspace": peak - kept}

    _report_all(taken, argument, tell)


def _requested(device: torch.device, which: str) -> int:
    """As it was asked for, not as blocks are rounded up."""
    return int(torch.cuda.memory_stats(device)[f"requested_bytes.all.{which}"])


def _report_all(
    answer: Callable[[dict[str, Any]], dict[str, Any] | None], argument: Mapping[str, Any], tell: Report
) -> None:
    found: list[dict[str, Any] | None] = []
    reported = time.monotonic()
    until = reported + argument["seconds"]
    for case in questions.SETS[argument["set"]](tuple(argument["capability"])):
        now = time.monotonic()
        if now > until:
            break
        if now > reported + EVERY_S:
            tell("answers", found)
            reported = now
        found.append(answer(case))
    tell("answers", found)
