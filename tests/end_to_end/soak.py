"""Watching at 20 Hz, as fast as it goes: ``python -m tests.end_to_end.soak RECORDING TICKS`` prints what it cost.

Real binding on the stand-in driver, real host readers, store, memory watch, recorder and plots; only the session's
clock is made up, so that no thread is needed to let the time pass.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pynvml
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from gpudash.memory.watching.watch import MemoryWatch
from gpudash.sources.host import HostReader
from gpudash.sources.nvml.gpu_reader import GpuReader
from gpudash.sources.nvml.library import Nvml
from gpudash.sources.processes import ProcessReader
from gpudash.telemetry.plots import plots_for
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Record, Sample, StepFinished
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.ui.plots.stack import PlotStack
from gpudash.ui.plots.view import TimeView
from gpudash.ui.widgets.theme import apply_theme

TICKS_A_REFRESH = 3.6
MARK_EVERY = 3_600
"""Ticks between looks at what the process holds."""

PERIOD_S = 0.05
SLOW_EVERY = 20
"""Ticks between readings of what is dear, once a second as in the monitor."""


class Hour:
    """The parts of a session, moved on by hand."""

    def __init__(self, recording: Path) -> None:
        self.now_s = 0.0
        self.store, self.watch = Store(), MemoryWatch()
        self.recorder = Recorder(recording, meta={})
        self.nvml, self.host, self.processes = Nvml(), HostReader(), ProcessReader()
        self.nvml.open()
        self.gpus = [GpuReader(gpu, self.nvml, family=lambda: self.processes.family) for gpu in self.nvml.gpus()]
        self.app = QApplication([])
        apply_theme(self.app, "dark")
        self.stack = PlotStack(self.store, TimeView(60.0), DARK, clock=lambda: self.now_s)

    def tick(self, number: int) -> None:
        self.now_s = number * PERIOD_S
        records: list[Record] = [*self.host.read(self.now_s)]
        for gpu in self.gpus:
            records += gpu.read_fast(self.now_s)
        if number % SLOW_EVERY == 0:
            records += self.processes.read(self.now_s)
            for gpu in self.gpus:
                records += gpu.read_slow(self.now_s)
            step = number // SLOW_EVERY
            records.append(StepFinished(time_s=self.now_s, step=step, steps=3600, seconds=1.0, loss=4 / (1 + step)))
        for record in records:
            self.store.apply(record)
            self.recorder.add(record)
            if isinstance(record, Sample):
                self.watch.observe(record)
        self.recorder.tick()

    def show(self) -> None:
        uuid = self.gpus[0].gpu.uuid
        with self.store.lock:
            plots = plots_for(self.store, selected=uuid, device_name="GPU 0", allocator=None, warn_ratio=0.85)
        self.stack.set_plots(plots)
        self.stack.resize(240, 60 + 96 * len(plots))
        self.stack.show()

    def refresh(self) -> None:
        self.stack.refresh(force=True)
        self.app.processEvents()

    def close(self) -> None:
        self.stack.close()
        self.recorder.close()
        for gpu in self.gpus:
            gpu.close()
        self.host.close()
        self.nvml.close()


def used(store: Store) -> dict[str, Any]:
    """What the process holds now; ``rss`` without the curves, which take memory as they grow, up to a bound."""
    gc.collect()
    curves = sum(series.nbytes for _key, series in store.curves())
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    calls = pynvml.nvmlLib.nvml_stub_calls
    objects = [1 + len(widget.findChildren(QObject)) for widget in QApplication.topLevelWidgets()]
    return {
        "rss": resident - curves,
        "curves": curves,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "handles": calls(b"nvmlDeviceGetHandleByPciBusId_v2", 0) + calls(b"nvmlInit", -1),
        "objects": sum(objects),
    }


def main() -> None:
    hour, ticks = Hour(Path(sys.argv[1])), int(sys.argv[2])
    marks: list[dict[str, Any]] = []
    refreshes = 0
    for number in range(ticks):
        hour.tick(number)
        if number == SLOW_EVERY:
            hour.show()
        if number % MARK_EVERY == MARK_EVERY - 1:
            marks.append({"ticks": number + 1, **used(hour.store)})
        while refreshes * TICKS_A_REFRESH < number:
            hour.refresh()
            refreshes += 1
    hour.close()
    print(json.dumps({"marks": marks, "refreshes": refreshes, "misuse": pynvml.nvmlLib.nvml_stub_misuse()}))  # noqa: T201


if __name__ == "__main__":
    main()
