"""Measurements in processes of their own, so that none harms another: what runs there, and asking for it.

``python -m tests.gpu.child MEASUREMENT DEVICE FILE ARGUMENT CARD`` with ARGUMENT and CARD in JSON. DEVICE is "cuda:0";
"sim:0" for a simulated GPU; "dry" for one without numbers, of the design of CARD; "none" for a measurement that makes
its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

SIMULATED_BYTES = 64 * 2**30

Report = Callable[[str, Any], None]
"""Adds a finding, by name, to what the measurement has found; all of them survive its end, however it ends."""

Measurement = Callable[[Any, Any, Report], None]
"""Given the ``torch.device``, the argument, and how to tell."""

LAST_WORDS = 2000

SYMBOLS = {"TORCH_SYMBOLIZE_MODE": "dladdr"}
"""With this torch names C++ frames by the libraries' own tables, in seconds instead of minutes."""


_until: list[float] = []


def stop_at(moment: float) -> None:
    """Let no child process go on beyond ``moment`` of `time.monotonic`."""
    _until[:] = [moment]


def limited(limit_s: float) -> float:
    """``limit_s``, or what is left until `stop_at`."""
    return min([limit_s, *(max(1.0, moment - time.monotonic()) for moment in _until)])


def asked(
    measurement: Callable[..., None],
    device: str,
    argument: Any = None,
    *,
    card: Mapping[str, Any] | None = None,
    limit_s: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a measurement in a child process and return what it told.

    A ``card``, as `tests.gpu.prediction.card_of` tells of it, gives "dry" its design; without one it is an A100's.
    What went wrong is there as ``error``; ``seconds`` is what the whole process took.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, errors = Path(folder, "told.json"), Path(folder, "errors.txt")
        name = f"{measurement.__module__}:{measurement.__name__}"
        command = [sys.executable, "-m", "tests.gpu.child", name, device, str(file)]
        command += [json.dumps(argument), json.dumps(card)]
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **SYMBOLS, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        problem = _ended(process, limited(limit_s))
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if problem and "error" not in found:
            said = errors.read_text(errors="replace").strip()[-LAST_WORDS:]
            found["error"] = f"{problem}\n{said}".strip()
    found["seconds"] = round(time.monotonic() - began, 2)
    return found


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Wait for a process, and say how it ended; "" when well."""
    try:
        code = process.wait(limit_s)
        return "" if code == 0 else f"exit status {code}"
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:g} s"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    name, where, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    argument, card = json.loads(sys.argv[4]), json.loads(sys.argv[5])
    told: dict[str, Any] = {}

    def tell(key: str, value: Any) -> None:
        told[key] = value
        whole = file.with_suffix(".new")
        whole.write_text(json.dumps(told))
        whole.replace(file)

    try:
        measured(name, where, argument, tell, card)
    except BaseException as error:
        tell("error", "".join(traceback.format_exception(error))[-LAST_WORDS:])
        return 1
    return 0


def measured(name: str, where: str, argument: Any, tell: Report, card: Mapping[str, Any] | None) -> None:
    """Run the measurement ``module:function`` in this process."""
    module, _, function = name.partition(":")
    measurement: Measurement = getattr(importlib.import_module(module), function)
    if where == "none":
        measurement(None, argument, tell)
        return
    import torch

    torch.set_num_threads(1)
    if where == "dry":
        from gpudash.simulator.dry_run.dry_run import DryRun

        DryRun().record(
            lambda _tracker: measurement(torch.device("sim", 0), argument, tell),
            trusting=True,
            architecture=architecture_of(card),
        )
        return
    if where.startswith("sim"):
        from gpudash.simulator.device.simulated_gpu import SimulatedGpu
        from gpudash.workloads.running import sim_backend as simulated

        simulated.add((SimulatedGpu(0, SIMULATED_BYTES),))
    measurement(torch.device(where), argument, tell)


def architecture_of(card: Mapping[str, Any] | None) -> Any:
    """The `Architecture` of a card that `tests.gpu.prediction.card_of` has told of; an A100's without one."""
    from gpudash.memory.predicting.architecture import Architecture

    return Architecture(**{**card, "capability": tuple(card["capability"])}) if card else Architecture()


if __name__ == "__main__":
    # What was found is told. Python's own end may meet torch's threads: `tests.gpu.watched_programs.settle`.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
