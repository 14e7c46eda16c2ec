"""Runs the GPU tests and measures the program on a machine with a GPU; writes what it found as JSON.

    python -m tests.gpu.collect OUT [--device cuda:0] [--only NAME ...] [--budget SECONDS]

Needs torch with CUDA, nvidia-ml-py, psutil, NumPy, pydantic and what the command line needs; no Qt. Each measurement
runs in processes of its own under a time limit, the most telling ones first, and OUT/measurements.json is written anew
after each. The first five (`tests.gpu.cudnn.steps`) each have a file of their own, too. Snapshots are kept compact and
without stacks in OUT/recorded.zip. A measurement that the budget leaves no time for is named in the file.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import functools
import json
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.gpu import (
    cost,
    hardware,
    isolation,
    model_peaks,
    operations,
    out_of_memory,
    prediction,
    refusal_text,
    runs,
    scaling,
    snapshots,
    speed,
)
from tests.gpu.child import ROOT, asked, stop_at
from tests.gpu.cudnn import steps

BUDGET_S = 540.0

GRACE_S = 25.0
"""How far beyond the budget the last measurement may go before it is stopped."""

TESTS_LIMIT_S = 200.0

ABOUT = ("product", "capability", "total_bytes", "cudnn", "torch")
"""What a file of its own repeats of the hardware."""

PYTEST_INI = """[pytest]
pythonpath = {root}
addopts = --strict-markers -ra --import-mode=importlib -p no:cacheprovider
timeout = 120
timeout_method = thread
markers =
    gpu: needs a CUDA device
    values(why): needs what a GPU computes, or how fast it is
"""
"""The project's own settings ask for Qt's plugin, and refuse every warning, also one that a machine's own packages
give."""


class Collection:
    """Measures one device and keeps the findings in a file.

    Args:
        small: measure only what a simulated GPU, whose arithmetic is the CPU's, can do in a moment.
    """

    def __init__(self, out: Path, device: str, *, budget_s: float = BUDGET_S, small: bool = False) -> None:
        self._out = out
        self._device = device
        self._small = small
        self._until = time.monotonic() + budget_s
        stop_at(self._until + GRACE_S)
        self._capacity = 0
        self.found: dict[str, Any] = {"device": device, "date": datetime.datetime.now(datetime.UTC).isoformat()}

    def run(self, only: list[str] | None = None) -> None:
        """Take every measurement, or those named, as far as the time goes."""
        self._out.mkdir(parents=True, exist_ok=True)
        for name, measurement in self.plan().items():
            if only is None or name in only or name == "hardware":
                self._take(name, measurement)

    def plan(self) -> dict[str, Callable[[], Any]]:
        """The measurements, the most telling first."""
        device, small = self._device, self._small
        cases = tuple(out_of_memory.SMALL_CASES) if small else tuple(out_of_memory.CASES)
        specs = prediction.SMALL_SPECS if small else prediction.SPECS
        verdict_specs = {n: s for n, s in specs.items() if small or n in prediction.VERDICT_SPECS}
        cudnn = {name: functools.partial(steps.measure, name, device, lambda: self._card) for name in steps.STEPS}
        rates = {"runs": cost.TINY_RUNS, "pairs": 1} if small else {"runs": cost.RUNS, "pairs": cost.PAIRS}
        names = speed.SMALL_OPERATIONS if small else list(speed.OPERATIONS)
        timed = speed.SMALL_STEPS if small else list(speed.STEPS)
        plan: dict[str, Callable[[], Any]] = {
            "hardware": self._hardware,
            **cudnn,
            "context": lambda: asked(hardware.context, device, limit_s=60),
            "operation_times": lambda: asked(speed.measure, device, names, limit_s=150),
            "step_times": lambda: asked(speed.measure_steps, device, timed, limit_s=150),
            "predictions": lambda: prediction.measure(device, self._capacity, specs),
            "operations": lambda: operations.measure(device, operations.OPERATIONS),
            "attention": lambda: operations.measure(device, operations.ATTENTION),
            "snapshots": self._snapshots,
            "refusal_text": lambda: refusal_text.measure(device),
            "out_of_memory": lambda: out_of_memory.measure(device, cases),
            "memory_cap": lambda: asked(out_of_memory.largest, device, {"cap": out_of_memory.CAP_BYTES}),
            "isolation": lambda: asked(isolation.measure, device, limit_s=110),
            "commands": lambda: out_of_memory.commands(device, ("leak",) if small else tuple(out_of_memory.COMMANDS)),
            "scaling": self._scaling,
            "tests": self._tests,
            "cost": lambda: asked(cost.rates, device, rates, limit_s=90),
            "verdicts": lambda: prediction.verdicts(device, self._capacity, verdict_specs),
        }
        if not small:
            plan["small_models"] = lambda: model_peaks.small(self._card)
            plan["real_models"] = lambda: model_peaks.real(device, self._card, range(len(model_peaks.REAL)))
            plan["matrix"] = lambda: model_peaks.matrix(".".join(map(str, self._card["capability"])))
            plan["runs"] = lambda: asked(runs.measure_runs, device, limit_s=150)
            plan["copies"] = lambda: asked(hardware.measure_copies, device, limit_s=40)
            plan["monitor"] = cost.monitor
        return plan

    def _take(self, name: str, measurement: Callable[[], Any]) -> None:
        began = time.monotonic()
        if began > self._until:
            self.found[name] = {"error": "there was no time left for it"}
        else:
            try:
                self.found[name] = measurement()
            except Exception as error:  # one measurement that fails must not lose the others
                self.found[name] = {"error": "".join(traceback.format_exception(error))[-2000:]}
        took = time.monotonic() - began
        self.found.setdefault("took_s", {})[name] = round(took, 1)
        file = self._out / "measurements.json"
        whole = file.with_suffix(".new")
        whole.write_text(json.dumps(self.found, indent=1))
        whole.replace(file)
        if name in steps.STEPS:
            hardware = self.found.get("hardware", {})
            about = {"date": self.found["date"], "hardware": {key: hardware.get(key) for key in ABOUT}}
            (self._out / f"{name}.json").write_text(json.dumps({**about, name: self.found[name]}, indent=1))
        problem = self.found[name].get("error") if isinstance(self.found[name], dict) else None
        sys.stdout.write(f"{name}: {took:.1f} s{'' if problem is None else f', {problem.strip().splitlines()[-1]}'}\n")
        sys.stdout.flush()

    def _hardware(self) -> dict[str, Any]:
        found = asked(hardware.describe, self._device, limit_s=120)
        self._capacity = int(found.get("total_bytes", 0))
        return found

    @functools.cached_property
    def _card(self) -> dict[str, Any]:
        """Compute capability and multiprocessors."""
        return prediction.card_of(self._device) or {}

    def _scaling(self) -> dict[str, Any]:
        """Over every GPU of the machine; tried on two ranks of the CPU."""
        if self._small:
            return scaling.measure(("cpu", "cpu"), values=scaling.TINY)
        import torch

        return scaling.measure([f"cuda:{index}" for index in range(torch.cuda.device_count())])

    def _snapshots(self) -> dict[str, Any]:
        """The figures; the snapshots themselves, as columns, go into the archive."""
        found = snapshots.measure(self._device)
        with zipfile.ZipFile(self._out / "recorded.zip", "w") as archive:
            for name, told in found.items():
                packed = told.pop("npz", None)
                if packed is not None:
                    archive.writestr(f"cuda-{name}.npz", base64.b64decode(packed))
            expected = {f"cuda-{name}": told["replay"] for name, told in found.items() if "replay" in told}
            archive.writestr("expected.json", json.dumps(expected, indent=1))
        return {"right": sum(told["right"] for told in found.values()), "of": len(found), **found}

    def _tests(self) -> dict[str, Any]:
        """Every test marked gpu but the long ones, by pytest in a process of its own."""
        with tempfile.TemporaryDirectory() as folder:
            settings, report = Path(folder, "pytest.ini"), Path(folder, "report.xml")
            settings.write_text(PYTEST_INI.format(root=ROOT))
            command = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(ROOT)]
            command += ["-m", "gpu and not long", "-q"]
            limit_s = min(TESTS_LIMIT_S, max(30.0, self._until - time.monotonic()))
            try:
                done = subprocess.run(
                    [*command, f"--junitxml={report}", str(ROOT / "tests" / "gpu")],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=limit_s,
                    check=False,
                )
                said, code = done.stdout, done.returncode
            except subprocess.TimeoutExpired as late:
                output = late.stdout or b""
                said, code = output.decode(errors="replace") if isinstance(output, bytes) else output, -1
            return {"exit": code, **_results(report), "said": said[-6000:]}


def _results(report: Path) -> dict[str, Any]:
    """Counts and failures of pytest's report."""
    if not report.exists():
        return {}
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    failed = [
        case.get("name") for case in suite.iter("testcase") if list(case.iter("failure")) + list(case.iter("error"))
    ]
    return {**{key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}, "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the files")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or sim:0 for trying the measurements themselves")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measurements to take; left out: all")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds after which none is begun")
    given = parser.parse_args()
    simulated = given.device.startswith("sim")
    if not simulated:
        import torch

        if not torch.cuda.is_available():
            sys.stderr.write("There is no CUDA device here; try --device sim:0.\n")
            return 2
    collection = Collection(given.out, given.device, budget_s=given.budget, small=simulated)
    unknown = sorted(set(given.only or ()) - set(collection.plan()))
    if unknown:
        sys.stderr.write(f"There is no measurement {', '.join(unknown)}; there are {', '.join(collection.plan())}.\n")
        return 2
    collection.run(given.only)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
