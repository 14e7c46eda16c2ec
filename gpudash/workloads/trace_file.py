"""Writes torch's own trace of a profile, for Perfetto or chrome://tracing, whole or not at all."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path
from typing import Any

LEVEL = 3
"""Of compression: most of what there is to gain, at a third of the time that the best takes."""


def write_trace(profiler: Any, path: Path) -> None:
    """Write the trace of a `torch.profiler.profile` that has stopped, compressed, to ``path``.

    Raises:
        OSError: when it cannot be written; nothing is left behind.
        RuntimeError: when the profiler has no trace.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpudash-trace-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        partial = path.with_name(f"{path.name}.part")
        try:
            with plain.open("rb") as source, gzip.open(partial, "wb", compresslevel=LEVEL) as target:
                shutil.copyfileobj(source, target)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
