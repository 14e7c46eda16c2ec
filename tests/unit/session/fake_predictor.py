"""Stands for the process that predicts: what it does with a request is said by the request's workload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time


def tell(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def hang() -> None:
    threading.Event().wait()


def estimate(peak: int, process: int = 0) -> dict[str, object]:
    method = json.dumps({"pid": os.getpid(), "child": process})
    return {"workload": "training", "device": "sim:0", "peak_allocated_bytes": peak, "fits": True, "method": method}


def answer(asked: dict[str, object]) -> None:
    number, kind = asked["id"], asked["workload"]
    if kind == "hang":
        hang()
    if kind == "half":
        tell(id=number, estimate=estimate(1), final=False)
        hang()
    if kind == "search":
        tell(id=number, estimate=estimate(1), final=False)
        told = json.loads(sys.stdin.readline())
        if not told.get("leave"):
            hang()
        tell(id=told["id"], left=True, final=True)
        return
    if kind == "starved":
        tell(id=number, estimate=estimate(1), final=False)
        threading.Event().wait(0.3)
        return
    if kind == "left":
        tell(id=number, estimate=estimate(1), final=False)
        newer = sys.stdin.readline()
        tell(id=number, left=True, final=True)
        began = time.process_time()
        while time.process_time() < began + 0.3:
            pass
        answer(json.loads(newer))
        return
    if kind == "crash":
        sys.stderr.write("Traceback\nMemoryError: out of it\n")
        sys.stderr.flush()
        os._exit(3)
    if kind == "killed":
        os.kill(os.getpid(), 9)
    if kind == "refuse":
        error = {"kind": "data_dependent", "message": "It needs numbers.", "remedy": "Move it."}
        tell(id=number, error=error, final=True)
        return
    if kind == "nonsense":
        tell(id=number, estimate={"peak_allocated_bytes": "many"}, final=True)
        return
    if kind == "chatter":
        sys.stdout.write("Epoch 1\n[1, 2]\n\n")
    started = subprocess.Popen(["sleep", "1000"]).pid if kind == "parent" else 0
    tell(id=number, estimate=estimate(1, started), final=False)
    tell(id=number, estimate=estimate(2, started), final=True)


if __name__ == "__main__":
    if "--unready" in sys.argv:
        tell(ready=False, problem="torch is missing.")
        sys.exit(1)
    if "--slow" in sys.argv:
        hang()
    tell(ready=True, torch="2.13.0")
    for line in sys.stdin:
        answer(json.loads(line))
