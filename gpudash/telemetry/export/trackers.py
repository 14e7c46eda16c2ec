"""A recording for trackers of experiments: event files of TensorBoard, or runs of Weights & Biases kept offline.

Both libraries are an extra, imported as they are used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from gpudash.telemetry.export.points import ScalarPoint, run_facts, scalar_points
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.recorder import RecordingError

TrackerFormat = Literal["tensorboard", "wandb"]

PROJECT = "gpudash"

_MISSING = '{name} needs {package}, which is not installed; run: pip install "gpudash[trackers]"'


def export_to_tracker(recording: Recording, to: TrackerFormat, out: Path) -> str:
    """Write the folder ``out``, whole or not at all.

    tensorboard: a folder with an event file for each run, and one for the machine. wandb: the folder that
    ``wandb sync`` takes, of the same runs. `gpudash.telemetry.export.points` says what is in them.

    Returns:
        The command that shows or sends what was written, as a sentence.

    Raises:
        RecordingError: when ``out`` holds something or cannot be written, or a package is missing.
    """
    with _new_folder(out) as part:
        if to == "tensorboard":
            _write_event_files(recording, part)
            return f"tensorboard --logdir {out} shows it."
        _write_offline_runs(recording, part)
        return f"wandb sync {out}/wandb/offline-run-* sends it; nothing has been sent yet."


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out``, which takes its place when the block ends well and goes when it does not."""
    try:
        if out.is_symlink() or (out.exists() and not out.is_dir()) or (out.is_dir() and any(out.iterdir())):
            raise RecordingError(f"{out} exists already; name a folder that is new or empty")
        target = out.absolute()
        if not target.parent.is_dir():
            raise RecordingError(f"{out} cannot be written (the folder {target.parent} does not exist)")
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:40]}."))
        try:
            part.chmod(0o777 & ~_umask())
            yield part
            # Renaming a folder replaces an empty one, and no other.
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise RecordingError(f"{out} cannot be written ({error.strerror or error}); choose another place") from None


def _umask() -> int:
    known = os.umask(0o077)
    os.umask(known)
    return known


def _write_event_files(recording: Recording, folder: Path) -> None:
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
    except ImportError:
        raise RecordingError(_MISSING.format(name="TensorBoard's event file", package="tensorboardX")) from None
    writers: dict[str, Any] = {}
    try:
        for point in scalar_points(recording, iter):
            writer = writers.get(point.run)
            if writer is None:
                (folder / point.run).mkdir()
                writer = writers[point.run] = EventsWriter(str(folder / point.run / "events"))
            value = Summary.Value(tag=point.tag, simple_value=point.value)
            writer.write_event(Event(wall_time=point.wall_s, step=point.step, summary=Summary(value=[value])))
    finally:
        for writer in writers.values():
            writer.close()


def _write_offline_runs(recording: Recording, folder: Path) -> None:
    try:
        import wandb
    except ImportError:
        raise RecordingError(_MISSING.format(name="An offline run", package="wandb")) from None
    facts = run_facts(recording)
    runs: dict[str, Any] = {}
    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_save_requirements=False
    )
    try:
        for (name, step), points in groupby(scalar_points(recording, iter), _row):
            if name not in runs:
                runs[name] = wandb.init(
                    project=PROJECT,
                    name=name,
                    group=recording.path.stem,
                    config=facts.get(name, {}),
                    dir=str(folder),
                    mode="offline",
                    reinit="create_new",
                    settings=settings,
                )
            found = list(points)
            row = {point.tag: point.value for point in found}
            runs[name].log({**row, "_timestamp": found[-1].wall_s}, step=step)
    finally:
        for run in runs.values():
            run.finish()


def _row(point: ScalarPoint) -> tuple[str, int]:
    return point.run, point.step
