"""Time from the start of ``gpudash`` to the first painted window, with torch installed and with it hidden; its CPU time
beside that of importing what it is drawn with.

Python's bytecode is kept, as it is where gpudash is installed: a start before the measured ones compiles it.
"""

from __future__ import annotations

import json
import statistics

from tests.benchmarks.compiled import compiled_python

ROUNDS = 3

PROGRAM = """
import sys
if {hide}:
    sys.modules["torch"] = None
import json, os, time
from gpudash.cli.loading import load_window
load_window()  # as the command does, which would only do so below
from PySide6.QtCore import QTimer
from gpudash.ui.window.main_window import MainWindow

told = []

def tell(window, event):
    if told:
        return
    told.append(window)
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    running_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    print(json.dumps({{"s": running_s, "cpu_s": time.thread_time(), "all_cpu_s": time.process_time()}}), flush=True)
    QTimer.singleShot(0, window.close)

MainWindow.paintEvent = tell
from gpudash.cli import run
run([])
"""

IMPORTS = """
import PySide6, pyqtgraph
import time
print(time.process_time())
"""


def measure() -> dict[str, float]:
    """Median seconds to the first paint, with and without torch, and their ratio; with torch the GUI thread's CPU, that
    of the process, and the latter over that of its imports.
    """
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    imports = []
    start(hide=True)
    for _round in range(ROUNDS):
        for hide in found:
            found[hide].append(start(hide))
        imports.append(float(_printed(IMPORTS)))
    with_torch, without = (statistics.median(told["s"] for told in found[hide]) for hide in (False, True))
    cpu_s = statistics.median(told["all_cpu_s"] for told in found[False])
    return {
        "with_torch_s": with_torch,
        "without_torch_s": without,
        "with_torch_over_without": with_torch / without,
        "gui_cpu_s": statistics.median(told["cpu_s"] for told in found[False]),
        "cpu_s": cpu_s,
        "cpu_over_imports": cpu_s / statistics.median(imports),
    }


def start(hide: bool) -> dict[str, float]:
    """Start ``gpudash`` and close its window at once: seconds to the first paint, and CPU seconds of the GUI thread."""
    told: dict[str, float] = json.loads(_printed(PROGRAM.format(hide=hide)).splitlines()[0])
    return told


def _printed(code: str) -> str:
    return compiled_python("-c", code, check=True).stdout
