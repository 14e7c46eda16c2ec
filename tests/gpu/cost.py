"""What following a run costs: torch's memory history, the program's own following, and watching the machine."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.gpu.child import Report
from tests.gpu.out_of_memory import run_command

PAIRS = 4

RUNS: Mapping[str, dict[str, Any]] = {
    "small": {"steps": 150, "epochs": 1},
    "large": {"width": 1024, "depth": 12, "batch": 8, "sequence": 512, "steps": 15, "epochs": 1},
}

TINY_RUNS: Mapping[str, dict[str, Any]] = {"tiny": {"width": 16, "depth": 1, "batch": 2, "sequence": 8, "steps": 20}}


def rates(device: Any, argument: Mapping[str, Any], tell: Report) -> None:
    """Steps per second of the same training: bare, under torch's history alone, and as followed by the program."""
    import torch

    from gpudash.workloads.running import run as running
    from gpudash.workloads.running.sim_backend import in_use
    from tests.gpu.recording import History
    from tests.gpu.runs import Runner

    backend = in_use()
    runner = Runner(str(device), () if backend is None else tuple(backend.cards))
    collector_for = running.collector_for

    def rate(values: Mapping[str, Any], *, followed: bool) -> float:
        running.collector_for = collector_for if followed else (lambda *_given: None)
        try:
            return float(runner.run("training", values).result["steps_per_second"])
        finally:
            running.collector_for = collector_for

    def recorded(values: Mapping[str, Any]) -> float:
        with History(torch.device(device)):
            return rate(values, followed=False)

    try:
        for name, values in argument["runs"].items():
            ways: dict[str, Callable[[], float]] = {
                "bare": lambda values=values: rate(values, followed=False),
                "history": lambda values=values: recorded(values),
                "followed": lambda values=values: rate(values, followed=True),
            }
            ways["bare"]()
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(argument["pairs"]):
                for way, run in ways.items():
                    found[way].append(run())
            told: dict[str, Any] = {"steps_per_second": found}
            for way in ("history", "followed"):
                ratios = [bare / other for bare, other in zip(found["bare"], found[way], strict=True)]
                told[f"{way}_cost_percent"] = 100 * (statistics.median(ratios) - 1)
            tell(name, told)
    finally:
        tell("closed", runner.close())


def monitor(seconds: tuple[float, float] = (2.0, 12.0)) -> dict[str, Any]:
    """The share of a core that ``gpudash monitor`` takes: a longer watch less a shorter one, so without its start."""
    short, long = (_watched(length) for length in seconds)
    share = (long["cpu_s"] - short["cpu_s"]) / (long["seconds"] - short["seconds"])
    return {"share_of_a_core": share, "short": short, "long": long}


def _watched(seconds: float) -> dict[str, Any]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code, document = run_command("monitor", "--seconds", f"{seconds:g}", "--no-record", limit_s=seconds + 40)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"exit": code, "seconds": took, "cpu_s": cpu, "document": str(document)[:1500]}
