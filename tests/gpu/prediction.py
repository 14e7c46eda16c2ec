"""Predicted peaks against those of the same runs."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpudash.memory.allocator.device_memory import GRANULE
from gpudash.session.predicting.estimator import Estimator
from gpudash.specs import build, workloads
from tests.cuda_standin.machine import is_here
from tests.gpu.child import Report, architecture_of, asked
from tests.gpu.recording import History, allocations, differences, packed, peak, unpacked

MARGIN_RATIO = 0.01

LARGE = {"width": 1024, "depth": 12, "batch": 8, "sequence": 512, "steps": 6, "epochs": 1}
CNN = {"model": "cnn", "width": 128, "depth": 6, "batch": 512, "steps": 6, "epochs": 1}

Specs = Mapping[str, tuple[str, dict[str, Any]]]

SPECS: Specs = {
    "transformer_fp32": ("training", LARGE),
    "transformer_bf16": ("training", {**LARGE, "precision": "bf16"}),
    "transformer_fp16": ("training", {**LARGE, "precision": "fp16"}),
    "transformer_checkpointing": ("training", {**LARGE, "checkpointing": True}),
    "transformer_sgd": ("training", {**LARGE, "optimizer": "sgd"}),
    "transformer_momentum_accumulation": ("training", {**LARGE, "optimizer": "momentum", "accumulation": 2}),
    "transformer_adam_bf16_checkpointing": (
        "training",
        {**LARGE, "optimizer": "adam", "precision": "bf16", "checkpointing": True},
    ),
    "transformer_inference": ("training", {**LARGE, "mode": "inference"}),
    "transformer_small": ("training", {"steps": 20}),
    "transformer_kept": ("training", {"steps": 20, "epochs": 1, "width": 512, "keep_intermediates": True}),
    "mlp_fp32": ("training", {"model": "mlp", "width": 4096, "depth": 8, "batch": 4096, "steps": 6, "epochs": 1}),
    "cnn_fp32": ("training", CNN),
    "cnn_bf16": ("training", {**CNN, "precision": "bf16"}),
    "cnn_inference": ("training", {**CNN, "mode": "inference"}),
    "matmul_fp32": ("matmul", {"size": 8192, "repeat": 4}),
    "matmul_bf16": ("matmul", {"size": 8192, "repeat": 4, "dtype": "bfloat16"}),
    "pipeline": ("pipeline", {"size": "200MiB", "repeat": 3}),
    "leak": ("pressure", {"pattern": "leak", "rate": 1000, "cap": "1GiB", "hold": 0}),
    "fragmentation": ("pressure", {"pattern": "fragmentation", "rate": 1000, "cap": "1GiB", "hold": 0}),
    "sawtooth": ("pressure", {"pattern": "sawtooth", "rate": 1000, "cap": "1GiB", "hold": 0}),
}

SMALL_SPECS: Specs = {
    "transformer_fp32": ("training", {"width": 32, "depth": 2, "batch": 2, "sequence": 16, "steps": 4, "epochs": 1}),
    "leak": ("pressure", {"pattern": "leak", "rate": 1000, "step": "2MiB", "cap": "16MiB", "hold": 0}),
}

AT_ONCE = 3
"""Runs at a time on a GPU: what one takes does not depend on another."""


def predict(specs: Specs, target: Mapping[str, Any], limit_s: float = 60.0) -> dict[str, dict[str, Any]]:
    """The estimate of each spec as JSON, by the process that predicts; what went wrong is in ``problem``."""
    estimator = Estimator()
    found: dict[str, dict[str, Any]] = {}
    try:
        for name, (workload, values) in specs.items():
            spec = build(workloads()[workload], values).model_dump(mode="json")
            estimator.ask({"workload": workload, "spec": spec, "target": dict(target), "alternatives": False}, limit_s)
            answer = estimator.wait(limit_s + 120)
            if answer is None or answer.estimate is None:
                problem = "no answer" if answer is None or answer.problem is None else answer.problem.message
                found[name] = {"problem": problem}
            else:
                found[name] = answer.estimate.to_json()
    finally:
        estimator.close(5.0)
    return found


def target(device: str, capacity: int) -> dict[str, Any]:
    """An empty device, as the process that predicts is told of it."""
    return {
        "device": device,
        "capacity_bytes": capacity,
        "free_bytes": capacity,
        "overhead_bytes": 0,
        "overhead_words": "the context left out",
        "margin_ratio": 0.0 if device.startswith("sim") else MARGIN_RATIO,
        "settings": "",
        "architecture": card_of(device) or {},
    }


def card_of(device: str) -> dict[str, Any] | None:
    """What of the device's design decides how much memory kernels take; ``None`` of a simulated GPU, an A100's.

    Raises:
        RuntimeError: it could not be asked.
    """
    if not device.startswith("cuda"):
        return None
    told = asked(tell_architecture, device)
    if "error" in told:
        raise RuntimeError(told["error"])
    return {
        "capability": told["capability"],
        "multiprocessors": told["multiprocessors"],
        "cudnn_converts": not is_here(),
    }


def tell_architecture(device: Any, _argument: None, tell: Report) -> None:
    """Compute capability and multiprocessors."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    tell("capability", [properties.major, properties.minor])
    tell("multiprocessors", properties.multi_processor_count)


def run_for_real(device: Any, argument: Mapping[str, Any], tell: Report) -> None:
    """Run a spec as the program does, following the allocator.

    Args:
        argument: ``workload``, ``values``; ``stacks``: torch's word for the stacks to keep; ``cap``: bytes that torch
            may reserve.
    """
    import torch

    from gpudash.specs.memory_cap import MemoryCap
    from gpudash.telemetry.records import Event
    from gpudash.workloads.running import run as running
    from gpudash.workloads.running.context import Requests
    from gpudash.workloads.running.sim_backend import in_use
    from tests.gpu.readings import has_context, process_bytes

    if device.type == "cuda":
        torch.cuda.init()
    running.collector_for = lambda *_given: None  # this measurement keeps torch's history
    spec = build(workloads()[argument["workload"]], argument["values"])
    events: list[Event] = []
    backend = in_use()
    cap = argument.get("cap")
    request = running.RunRequest(
        spec,
        str(device),
        1,
        cards=() if backend is None else tuple(backend.cards),
        memory_cap=None if cap is None else MemoryCap(size=cap),
    )
    with History(device, argument.get("stacks", "python")) as history:
        began = time.perf_counter()
        ending = running.Run(request, Requests(), events.append, time.monotonic).perform()
        tell("run_s", time.perf_counter() - began)
        tell("ended", {"kind": ending.kind, "message": getattr(ending, "message", ""), **_peaks(ending)})
        tell("process_bytes", process_bytes(device))
        tell("has_context", has_context())
        tell("reserved_bytes", getattr(torch, device.type).memory_reserved(device))
        entries = history.entries()
    highest, at_peak = peak(entries)
    tell("requested_peak_bytes", highest)
    tell("at_peak", sorted(at_peak.items(), reverse=True))
    tell("requests", packed(allocations(entries)))


def _peaks(ending: Any) -> dict[str, Any]:
    memory = ending.result["memory"]
    return {key: memory[key] for key in ("peak_allocated_bytes", "peak_reserved_bytes")}


def follow_on_sizes(_device: None, argument: Mapping[str, Any], tell: Report) -> None:
    """What the dry run of a spec asks for on ``argument["card"]``, with the lines that ask."""
    import torch

    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.workloads.predicting import dry_run
    from tests.gpu.readings import has_context

    torch.set_num_threads(1)
    spec = build(workloads()[argument["workload"]], argument["values"])
    short, wanted = dry_run.shortened(spec, dry_run.STEPS)
    limit = dry_run.STEPS if wanted is not None else dry_run.MOST_STEPS
    program = dry_run._Program(short, limit, None, alike=wanted is not None)

    def watched(tracker: Any) -> None:
        with History(torch.device("sim", 0)) as history:
            program(tracker)
            entries = history.entries()
        highest, at_peak = peak(entries)
        tell("requested_peak_bytes", highest)
        tell("at_peak", sorted(at_peak.items(), reverse=True))
        tell("requests", packed(allocations(entries)))

    DryRun().record(watched, trusting=True, architecture=architecture_of(argument["card"]))
    tell("cuda_initialised", torch.cuda.is_initialized())
    tell("has_context", has_context())


def compared(estimate: Mapping[str, Any], real: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """One spec: what was predicted, what it took, and where the two sequences of requests part."""
    ended = real.get("ended", {})
    found: dict[str, Any] = {"ended": ended.get("kind"), "message": ended.get("message")}
    for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
        predicted, measured = estimate.get(figure), ended.get(figure)
        told: dict[str, Any] = {"predicted": predicted, "measured": measured}
        if predicted is not None and measured:
            told |= {"error_bytes": predicted - measured, "error_percent": 100 * (predicted - measured) / measured}
        found[figure] = told
    found["by_category"] = estimate.get("by_category")
    found["predicting_s"] = estimate.get("seconds")
    found["dry_run_initialised_cuda"] = sizes.get("cuda_initialised")
    found["has_context"] = {"run": real.get("has_context"), "dry_run": sizes.get("has_context")}
    found["process_bytes"] = real.get("process_bytes")
    found["reserved_bytes"] = real.get("reserved_bytes")
    found["problems"] = [text for text in (estimate.get("problem"), real.get("error"), sizes.get("error")) if text]
    if "requests" in real and "requests" in sizes:
        ours, theirs = unpacked(real["requests"]), unpacked(sizes["requests"])
        parted = differences(ours, theirs)
        found["requests"] = {"real": len(ours), "predicted": len(theirs), "differences": len(parted)}
        found["first_difference"] = parted[:1]
        largest = sorted(parted, key=lambda part: -abs(part["real_bytes"] - part["predicted_bytes"]))
        found["largest_differences"] = largest[:4]
        found["libraries"] = of_libraries(real["requests"])
        found["at_peak"] = at_peak_differences(real["at_peak"], sizes["at_peak"])
    return found


LIBRARIES = ("cublas", "cudnn", "workspace", "cub::", "cusparse", "cufft", "cusolver")


def of_libraries(requests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Requests whose stack names a library of CUDA: sizes, how often, and the name that told, the largest first."""
    found: Counter[tuple[int, str]] = Counter()
    for request in unpacked(requests):
        names = [name for name in request.frames if any(word in name.lower() for word in LIBRARIES)]
        if names:
            found[request.size, names[0]] += 1
    return [{"size": size, "count": count, "by": name} for (size, name), count in sorted(found.items(), reverse=True)][
        :12
    ]


def at_peak_differences(real: Sequence[Any], predicted: Sequence[Any]) -> list[dict[str, int]]:
    """Sizes of which more or fewer blocks lived at the peak than predicted, by the bytes that makes."""
    surplus = Counter(dict(map(tuple, real)))
    surplus.subtract(dict(map(tuple, predicted)))
    parts = [{"size": size, "more": more, "bytes": size * more} for size, more in surplus.items() if more]
    return sorted(parts, key=lambda part: -abs(part["bytes"]))[:10]


def summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Errors in percent over all specs that ran: median and worst size of them, and the share of under-estimates."""
    told: dict[str, Any] = {"specs": len(found)}
    for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
        known = {name: spec[figure] for name, spec in found.items() if "error_percent" in spec.get(figure, {})}
        errors = {name: told["error_percent"] for name, told in known.items()}
        if errors:
            worst = max(errors, key=lambda name: abs(errors[name]))
            told[figure] = {
                "specs": len(errors),
                "median_percent": statistics.median(abs(error) for error in errors.values()),
                "worst_percent": errors[worst],
                "worst": worst,
                "under": sum(error < 0 for error in errors.values()) / len(errors),
                "under_beyond_margin": sum(error < -100 * MARGIN_RATIO for error in errors.values()) / len(errors),
            }
    return told


def measure(device: str, capacity: int, specs: Specs, *, stacks: str = "all", limit_s: float = 60.0) -> dict[str, Any]:
    """Predict every spec, run it and follow its dry run, all beside one another, and compare."""
    at_once = AT_ONCE if device.startswith("cuda") else 1
    with (
        ThreadPoolExecutor(1) as predicting,
        ThreadPoolExecutor(at_once) as running,
        ThreadPoolExecutor(at_once) as dry,
    ):
        told = target(device, capacity)
        estimates = predicting.submit(predict, specs, told, limit_s)
        common = {"stacks": stacks, "card": told["architecture"]}
        given = {n: {"workload": workload, "values": values, **common} for n, (workload, values) in specs.items()}
        real = {n: running.submit(asked, run_for_real, device, one, limit_s=limit_s) for n, one in given.items()}
        sizes = {n: dry.submit(asked, follow_on_sizes, "none", one, limit_s=limit_s) for n, one in given.items()}
        found = {n: compared(estimates.result()[n], real[n].result(), sizes[n].result()) for n in specs}
    return {"summary": summary(found), "specs": found}


VERDICT_SPECS = ("transformer_fp32", "transformer_bf16", "cnn_fp32", "fragmentation")


def verdicts(device: str, capacity: int, specs: Specs, *, limit_s: float = 60.0) -> dict[str, Any]:
    """Each run under a cap of the smallest capacity predicted and the margin, and under one short of twice that."""
    estimates = predict(specs, target(device, capacity), limit_s)

    def one(case: tuple[str, str]) -> dict[str, Any]:
        name, word = case
        least = estimates[name].get("minimum_capacity_bytes")
        if least is None:
            return estimates[name]
        margin = max(GRANULE, int(least * MARGIN_RATIO))
        cap = least + margin if word == "fits" else least - 2 * margin
        workload, values = specs[name]
        told = asked(run_for_real, device, {"workload": workload, "values": values, "cap": cap}, limit_s=limit_s)
        return {"minimum_capacity_bytes": least, "cap_bytes": cap, **{k: told.get(k) for k in ("ended", "error")}}

    cases = [(name, word) for name in specs for word in ("fits", "short")]
    with ThreadPoolExecutor(AT_ONCE if device.startswith("cuda") else 1) as pool:
        found = list(pool.map(one, cases))
    return {f"{name} {word}": told for (name, word), told in zip(cases, found, strict=True)}
