"""What listing ten thousand recordings costs that were read before: nothing of a file but its name and its stamp.

``folder_ms`` is what the thread of the library takes from its beginning until every recording is known, ``rows_ms``
what the window takes to make rows of them and to paint the list; ``listing_s`` both together. All is processor time.
``scan_ms`` is the yardstick of the run: `os.scandir` and a stat for each file.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from pathlib import Path

from gpudash.session.recordings.library import Kept, LibraryWatcher, Stamp, save_cache
from gpudash.specs import workloads
from gpudash.telemetry.recording.facts import Facts, RunFacts
from gpudash.telemetry.recording.schema import SUFFIX
from gpudash.ui.colours import DARK
from gpudash.ui.recordings.runs_list import RunsList, rows_of
from gpudash.units import GIB
from tests.benchmarks.frame import application

RECORDINGS = 10_000
LONGEST_S, POLL_S = 60.0, 0.005


def measure() -> dict[str, float]:
    """The figure that is held, and what it is made of."""
    app = application()
    workloads()  # the window's form has looked for those of plug-ins by then
    gc.disable()  # as the window does, which looks for garbage between its frames
    home = Path(tempfile.mkdtemp())
    os.environ["GPUDASH_HOME"] = str(home)
    folder = home / "recordings"
    folder.mkdir()
    save_cache({str(path): Kept(stamp, _facts(number)) for number, (path, stamp) in enumerate(_made(folder))})
    shown = RunsList(DARK)
    shown.resize(320, 900)
    shown.show()
    app.processEvents()

    began = time.process_time()
    with os.scandir(folder) as files:
        for file in files:
            file.stat()
    scan_ms = (time.process_time() - began) * 1e3

    began = time.process_time()
    watcher = LibraryWatcher(folder)
    until = time.monotonic() + LONGEST_S
    while watcher.library.reading and time.monotonic() < until:
        time.sleep(POLL_S)  # its thread works meanwhile; waiting costs no processor time, which is what is measured
    folder_ms = (time.process_time() - began) * 1e3
    library = watcher.library
    assert watcher.close()
    assert len(library.entries) == RECORDINGS

    began = time.process_time()
    rows = rows_of(library.entries)
    shown.runs.show_rows(rows)
    shown.viewport().repaint()
    rows_ms = (time.process_time() - began) * 1e3
    assert shown.runs.rowCount() == RECORDINGS
    shown.close()
    times = {"scan_ms": scan_ms, "folder_ms": folder_ms, "rows_ms": rows_ms}
    return {**times, "listing_s": (folder_ms + rows_ms) / 1e3}


def _made(folder: Path) -> list[tuple[Path, Stamp]]:
    """Files that nobody opens, since their stamps are known."""
    found = []
    for number in range(RECORDINGS):
        path = folder / f"2026-01-01 {number:05}{SUFFIX}"
        path.touch()
        status = path.stat()
        found.append((path, Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_size)))
    return found


def _facts(number: int) -> Facts:
    spec = {"model": "transformer", "batch": 16, "width": 256, "depth": 4, "precision": "bf16", "optimizer": "adamw"}
    run = RunFacts(
        1,
        "training",
        device="cuda:0",
        spec=spec,
        status="finished",
        seconds=60.0,
        peak_bytes=2 * GIB + number,
        own_peak_bytes=GIB,
        loss=1.5,
        outline=tuple(range(40)),
    )
    return Facts(began_wall_s=1.76e9 + number, runs=(run,), duration_s=65.0)
