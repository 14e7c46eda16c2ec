"""A recording for experiment trackers: TensorBoard event files, offline runs of Weights & Biases, or an MLflow folder.

The libraries are an optional extra, imported on use.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from gpudash.telemetry.export.points import ScalarPoint, run_facts, scalar_points
from gpudash.telemetry.export.tables import Passing
from gpudash.telemetry.export.writing import CountedRows, OnProgress
from gpudash.telemetry.recording.reading import Recording
from gpudash.telemetry.recording.recorder import RecordingError
from gpudash.telemetry.records import OF_LOSS

TrackerFormat = Literal["tensorboard", "wandb", "mlflow"]

PROJECT = "gpudash"

_MISSING = '{name} needs {package}, which is not installed; run: pip install "gpudash[trackers]"'


MLFLOW_SETTINGS = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Environment variables for MLflow: newer versions refuse a folder by default, and report usage."""

MOST_METRICS = 1000
"""Most metrics that MLflow accepts in one call (mlflow.utils.validation)."""

LONGEST_PARAMETER = 500
"""Longest value of a parameter, in characters, that every version of MLflow accepts."""

_NO_METRIC = re.compile(r"[^\w/.: -]")


def export_to_tracker(recording: Recording, to: TrackerFormat, out: Path, on_progress: OnProgress | None = None) -> str:
    """Write the folder ``out``, whole or not at all.

    tensorboard: a folder with an event file for each run, and one for the machine. wandb: the folder for ``wandb
    sync``, with the same runs. mlflow: a tracking folder, with an experiment of the same runs. For their content see
    `gpudash.telemetry.export.points`.

    Args:
        recording: the recording to write.
        to: the tracker.
        out: a folder that is new or empty.
        on_progress: as in `gpudash.telemetry.export.writing.export`.

    Returns:
        The command that shows or uploads the result, as a sentence.

    Raises:
        RecordingError: if ``out`` is not empty or cannot be written, or a package is missing.
    """
    passing = CountedRows(on_progress).rows
    with _new_folder(out) as part:
        if to == "tensorboard":
            _write_event_files(recording, part, passing)
            return f"tensorboard --logdir {out} shows it."
        if to == "mlflow":
            with _environment(MLFLOW_SETTINGS):
                _write_mlflow_runs(recording, part, out, passing)
            return f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {out} shows it."
        _write_offline_runs(recording, part, passing)
        return f"wandb sync {out}/wandb/offline-run-* sends it; nothing has been sent yet."


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that replaces it when the block succeeds, and is deleted when it fails."""
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
            # Renaming a folder only replaces an empty one.
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise RecordingError(f"{out} cannot be written ({error.strerror or error}); choose another place") from None


def _umask() -> int:
    known = os.umask(0o077)
    os.umask(known)
    return known


def _write_event_files(recording: Recording, folder: Path, passing: Passing) -> None:
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
    except ImportError:
        raise RecordingError(_MISSING.format(name="TensorBoard's event file", package="tensorboardX")) from None
    writers: dict[str, Any] = {}
    try:
        for point in scalar_points(recording, passing):
            writer = writers.get(point.run)
            if writer is None:
                (folder / point.run).mkdir()
                writer = writers[point.run] = EventsWriter(str(folder / point.run / "events"))
            value = Summary.Value(tag=point.tag, simple_value=point.value)
            writer.write_event(Event(wall_time=point.wall_s, step=point.step, summary=Summary(value=[value])))
    finally:
        for writer in writers.values():
            writer.close()


def _write_offline_runs(recording: Recording, folder: Path, passing: Passing) -> None:
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
        for (name, step), points in groupby(scalar_points(recording, passing), _row):
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


def _write_mlflow_runs(recording: Recording, folder: Path, out: Path, passing: Passing) -> None:
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise RecordingError(_MISSING.format(name="A folder of MLflow's", package="mlflow-skinny")) from None
    client = MlflowClient(tracking_uri=folder.as_uri())
    try:
        _fill_mlflow_folder(client, recording, out, passing)
    except MlflowException as error:
        raise RecordingError(f"MLflow refused it ({str(error).splitlines()[0]})") from None
    # MLflow adds a default experiment to every folder, with this folder's temporary name.
    shutil.rmtree(folder / "0", ignore_errors=True)


def _fill_mlflow_folder(client: Any, recording: Recording, out: Path, passing: Passing) -> None:
    # A run stores the path of its files, so use the final name.
    artifacts = (out.absolute() / "artifacts").as_uri()
    experiment = client.create_experiment(recording.path.stem or PROJECT, artifact_location=artifacts)
    facts = run_facts(recording)
    runs: dict[str, _MlflowRun] = {}
    for point in scalar_points(recording, passing):
        if point.run not in runs:
            runs[point.run] = _MlflowRun(client, experiment, point, facts.get(point.run, {}))
        runs[point.run].add(point)
    for run in runs.values():
        run.close()


class _MlflowRun:
    """A run in an MLflow folder, written in batches."""

    def __init__(self, client: Any, experiment: str, first: ScalarPoint, facts: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param

        self._client = client
        self._metric = Metric
        self._waiting: list[Any] = []
        self._last_ms = round(first.wall_s * 1e3)
        created = client.create_run(experiment, start_time=self._last_ms, run_name=first.run)
        self._id = created.info.run_id
        parameters = [Param(mlflow_name(name), str(value)[:LONGEST_PARAMETER]) for name, value in facts.items()]
        client.log_batch(self._id, params=parameters[:100])

    def add(self, point: ScalarPoint) -> None:
        self._last_ms = round(point.wall_s * 1e3)
        self._waiting.append(self._metric(mlflow_name(point.tag), point.value, self._last_ms, point.step))
        if len(self._waiting) == MOST_METRICS:
            self._write()

    def close(self) -> None:
        self._write()
        self._client.set_terminated(self._id, "FINISHED", end_time=self._last_ms)

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._client.log_batch(self._id, metrics=waiting)


def mlflow_name(name: str) -> str:
    """A name that MLflow accepts: a relative path without a folder that has a metric's name.

    The loss of one network, ``loss/gan``, becomes ``losses/gan``: ``loss`` is a file, so it cannot be a folder too.
    """
    if name.startswith(OF_LOSS):
        name = f"losses/{name.removeprefix(OF_LOSS).replace('/', '.')}"
    return "/".join(_NO_METRIC.sub("_", part).strip(". ") or "_" for part in name.split("/"))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the duration of the block."""
    known = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in known.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
