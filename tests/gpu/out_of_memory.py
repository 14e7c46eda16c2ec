"""Running out of memory under a cap: how it is explained, what is left behind, and whether the next run works."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.explanation import site_name
from gpudash.units import GIB, MIB
from tests.gpu.child import ROOT, Report, asked, limited

CAP_BYTES = 2 * GIB

Cases = Mapping[str, tuple[str, dict[str, Any]]]

CASES: Cases = {
    "ramp": ("pressure", {"pattern": "ramp", "until": "oom", "rate": 200}),
    "leak": ("pressure", {"pattern": "leak", "until": "oom", "rate": 200}),
    "fragmentation": ("pressure", {"pattern": "fragmentation", "until": "oom", "rate": 200}),
    "sawtooth": ("pressure", {"pattern": "sawtooth", "until": "oom", "rate": 200}),
    "spike": ("pressure", {"pattern": "spike", "until": "oom", "rate": 200, "hold": 0.1}),
    "training": ("training", {"width": 1024, "depth": 12, "batch": 8, "sequence": 512, "steps": 4, "epochs": 1}),
    "kept": ("training", {"width": 256, "batch": 64, "steps": 2000, "epochs": 1, "keep_intermediates": True}),
    "pipeline": ("pipeline", {"size": "3GiB", "fill": "ones"}),
}

SMALL_CASES: Cases = {name: CASES[name] for name in ("ramp", "leak")}

SHOWN = 5

PLAIN = (
    "headline",
    "request_words",
    "verdict",
    "requested_bytes",
    "segment_bytes",
    "missing_bytes",
    "capacity_bytes",
    "allowed_bytes",
    "beyond_bytes",
    "largest_free_block_bytes",
    "by_category",
    "evidence",
    "step",
    "rest_owners",
    "rest_bytes",
    "remedies_note",
)
"""Parts of an explanation that are kept as they are."""


def run_out(device: Any, argument: Mapping[str, Any], tell: Report) -> None:
    """Run the cases named in ``argument["names"]`` in one process, each followed by a small run."""
    from gpudash.workloads.running.sim_backend import in_use
    from tests.gpu.readings import used_bytes
    from tests.gpu.runs import Runner

    backend = in_use()
    runner = Runner(str(device), () if backend is None else tuple(backend.cards))
    try:
        runner.run("pipeline", {})
        for name in argument["names"]:
            workload, values = CASES[name]
            before = runner.level() | {"used_bytes": used_bytes(device)}
            began = time.perf_counter()
            ending = runner.run(workload, values, memory_cap=MemoryCap(size=argument["cap"]))
            found = {
                "kind": ending.kind,
                "run_s": time.perf_counter() - began,
                "steps": ending.steps,
                "error": getattr(ending, "error", None),
                "message": getattr(ending, "message", None),
                "requested_bytes": getattr(ending, "requested_bytes", None),
                "peaks": ending.result["memory"],
                "explanation": in_short(_told(ending)),
                "warnings": [event.text for event in runner.events if event.kind == "Warning"][:4],
                "before": before,
                "after": runner.level() | {"used_bytes": used_bytes(device)},
            }
            found["next_run"] = runner.run("pipeline", {}).kind
            found["after_next_run"] = runner.level()
            tell(name, found)
    finally:
        tell("closed", runner.close())


def _told(ending: Any) -> Mapping[str, Any] | None:
    explanation = getattr(ending, "explanation", None)
    return None if explanation is None else explanation.to_json()


def in_short(explanation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An explanation without its stacks and folders."""
    if explanation is None:
        return None
    found: dict[str, Any] = {name: explanation.get(name) for name in PLAIN}
    found["parts"] = [{key: part[key] for key in ("kind", "name", "bytes")} for part in explanation["parts"]]
    found["where"] = _place(explanation["where"])
    found["owners"] = [
        {"place": _place(owner), **{key: owner[key] for key in ("category", "bytes", "count", "growth_per_step")}}
        for owner in explanation["owners"][:SHOWN]
    ]
    found["growing"] = [
        {"place": _place(line), "bytes_per_step": line["bytes_per_step"], "steps": line["steps"]}
        for line in explanation["growing"][:SHOWN]
    ]
    found["remedies"] = [
        {key: remedy[key] for key in ("change", "flags", "predicted_peak_bytes", "fits", "verified_by")}
        for remedy in explanation["remedies"]
    ]
    return found


def _place(line: Mapping[str, Any]) -> str:
    return site_name(line.get("file"), line.get("line"), line.get("text", ""))


def measure(device: str, names: Sequence[str] = tuple(CASES), *, limit_s: float = 120.0) -> dict[str, Any]:
    """Every case under a cap of `CAP_BYTES`, in one process: what one leaves behind the next would meet."""
    return asked(run_out, device, {"names": list(names), "cap": CAP_BYTES}, limit_s=limit_s)


def largest(device: Any, argument: Mapping[str, int], tell: Report) -> None:
    """The largest single request that is served under a cap, in steps of 2 MiB."""
    import torch

    module: Any = getattr(torch, device.type)
    cap, total = argument["cap"], module.get_device_properties(device).total_memory
    module.set_per_process_memory_fraction(MemoryCap(size=cap).fraction(total), device)
    served, refused = 0, 2 * cap // (2 * MIB)
    while refused - served > 1:
        tried = (served + refused) // 2
        try:
            torch.empty(tried * 2 * MIB, dtype=torch.uint8, device=device)
            served = tried
        except torch.OutOfMemoryError:
            refused = tried
        module.empty_cache()
    tell("cap_bytes", cap)
    tell("largest_bytes", served * 2 * MIB)


def run_command(*arguments: str, limit_s: float = 90.0) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON document of ``gpudash ... --json``."""
    command = [sys.executable, "-m", "gpudash", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limited(limit_s), check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        document = {"status": "no document", "stdout": done.stdout[-500:], "stderr": done.stderr[-1500:]}
    return done.returncode, document


COMMANDS: dict[str, tuple[str, ...]] = {
    "ramp": ("run", "pressure", "--pattern", "ramp", "--until", "oom", "--rate", "20", "--step", "64MiB"),
    "leak": ("run", "pressure", "--pattern", "leak", "--until", "oom", "--rate", "20"),
    "training": (
        *("run", "training", "--width", "1024", "--depth", "12", "--batch", "8", "--sequence", "512"),
        *("--steps", "4", "--epochs", "1"),
    ),
}

MOST_APPLIED = 2


def commands(device: str, names: Sequence[str] = tuple(COMMANDS), *, limit_s: float = 90.0) -> dict[str, Any]:
    """The same by the command line, with its warnings and remedies; the first remedies are applied."""
    where = ("--simulate", "2GiB") if device.startswith("sim") else ("--memory-cap", "2GiB")
    found: dict[str, Any] = {}
    for name in names:
        whole = (*COMMANDS[name], "--device", device, *where, "--no-record")
        try:
            code, document = run_command(*whole, limit_s=limit_s)
            error = document.get("error") or {}
            explanation = in_short(error.get("explanation"))
            found[name] = {
                "exit": code,
                "status": document.get("status"),
                "message": error.get("message"),
                "warnings": document.get("warnings"),
                "explanation": explanation,
                "memory": document.get("memory"),
                **{key: document[key] for key in ("stdout", "stderr") if key in document},
            }
            flags = [remedy["flags"] for remedy in (explanation or {}).get("remedies", []) if remedy["flags"]]
            found[name]["applied"] = {
                flag: _applied(whole, flag, limit_s) for flag in flags[:MOST_APPLIED] if not flag.startswith("PYTORCH")
            }
        except (OSError, subprocess.TimeoutExpired, KeyError, TypeError) as error:
            found[name] = {"problem": f"{type(error).__name__}: {error}"[:400]}
    return found


def _applied(whole: Sequence[str], flags: str, limit_s: float) -> dict[str, Any]:
    code, document = run_command(*without(whole, shlex.split(flags)), *shlex.split(flags), limit_s=limit_s)
    return {"exit": code, "status": document.get("status"), "memory": document.get("memory")}


def without(command: Sequence[str], flags: Sequence[str]) -> list[str]:
    """``command`` without the options that ``flags`` gives anew."""
    given = {flag for flag in flags if flag.startswith("--")}
    found: list[str] = []
    left_out = False
    for word in command:
        if word.startswith("--"):
            left_out = word in given
        if not left_out:
            found.append(word)
    return found
