"""Opening a snapshot of a million events in a child process, beside the bare unpickling of the same file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from gpudash.session.recordings.snapshot_opener import OpenedSnapshot
from gpudash.units import MIB
from tests.benchmarks.generated_snapshot import generated

EVENTS = 1_000_000
PATIENCE_S = 120.0

BARE = """
import gc, json, pickle, sys, time
gc.disable()
began = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    kept = pickle.load(file)
print(json.dumps(time.perf_counter() - began))
sys.stdout.flush()
import os; os._exit(0)
"""
"""Without what a reader has to do besides; for a file of our own only."""


def measure() -> dict[str, float]:
    """Seconds until the columns are there, memory of the child and what came to this process, and the yardstick."""
    path = generated(EVENTS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    opened = OpenedSnapshot(path)
    opened.start()
    found = opened.wait(PATIENCE_S)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened.close()
    if found is None or found.warnings or found.events_in_file < EVENTS:
        raise RuntimeError(f"The generated snapshot was not read as a whole: {found}")
    child_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MIB
    done = subprocess.run([sys.executable, "-c", BARE, str(path)], capture_output=True, text=True, check=True)
    bare = json.loads(done.stdout)
    return {
        "seconds": seconds,
        "yardstick_seconds": bare,
        "over_unpickling": seconds / bare,
        "child_mib": child_mib,
        "parent_mib": (after - before) * 1024 / MIB,
    }
