"""Time from the start of ``gpudash`` to the first painted window, with torch installed and with it hidden."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

ROUNDS = 3

PROGRAM = """
import sys
if {hide}:
    sys.modules["torch"] = None
import gc, json, os, time
gc.disable()  # as the command does, which would only do so below
from PySide6.QtCore import QTimer
from gpudash.ui.main_window import MainWindow

def tell(window, event):
    del MainWindow.paintEvent
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    running_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    print(json.dumps({{"s": running_s, "cpu_s": time.thread_time()}}), flush=True)
    QTimer.singleShot(0, window.close)

MainWindow.paintEvent = tell
from gpudash.cli import run
run([])
"""


def measure() -> dict[str, float]:
    """Median seconds to the first paint, with and without torch, and their ratio; with torch the GUI thread's CPU."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _round in range(ROUNDS):
        for hide in found:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM.format(hide=hide)], capture_output=True, text=True, check=True
            )
            found[hide].append(json.loads(done.stdout.splitlines()[0]))
    with_torch, without = (statistics.median(told["s"] for told in found[hide]) for hide in (False, True))
    return {
        "with_torch_s": with_torch,
        "without_torch_s": without,
        "with_torch_over_without": with_torch / without,
        "gui_cpu_s": statistics.median(told["cpu_s"] for told in found[False]),
    }
