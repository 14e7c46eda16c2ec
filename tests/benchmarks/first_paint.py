"""Time from the start of the process to the first painted window, with torch installed and with it hidden."""

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
import json, time
import psutil
from PySide6.QtCore import QEvent, QObject, QTimer
from gpudash.ui import app, main_window
began = psutil.Process().create_time()
class Watch(QObject):
    def eventFilter(self, watched, event):
        if event.type() == QEvent.Type.Paint and isinstance(watched, main_window.MainWindow):
            app.application().removeEventFilter(self)
            print(json.dumps(time.time() - began))
            QTimer.singleShot(0, watched.close)
        return False
watch = Watch()
app.application().installEventFilter(watch)
app.run()
"""


def measure() -> dict[str, float]:
    """Median seconds to the first paint, with and without torch, and their ratio."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for _round in range(ROUNDS):
        for hide in found:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM.format(hide=hide)], capture_output=True, text=True, check=True
            )
            found[hide].append(json.loads(done.stdout.splitlines()[0]))
    with_torch, without = statistics.median(found[False]), statistics.median(found[True])
    return {"with_torch_s": with_torch, "without_torch_s": without, "with_torch_over_without": with_torch / without}
