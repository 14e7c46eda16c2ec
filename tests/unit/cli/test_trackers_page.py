"""The guide's page on trackers: its commands and its Python, run as they stand there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpudash.cli import run
from gpudash.system.files import resource
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import RunStarted, StepFinished
from tests.unit.memory.profiler_trace.traces import ON_A_GPU, document, written

pytestmark = pytest.mark.process

PAGE = resource("guide", "trackers.md").read_text(encoding="utf-8")

COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]

PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

ORIGIN_NS = 1_795_255_200 * 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's files are: a recording, and a profile of the same time."""
    recorder = Recorder(tmp_path / "run.gpudash", meta={"wall_clock_origin": "2026-11-21T10:00:00+00:00"})
    recorder.add(RunStarted(time_s=0.0, run_id=1, workload="training", device="cpu", spec={}))
    recorder.add(StepFinished(time_s=0.1, run_id=1, step=1, steps=1, seconds=0.1, loss=2.5))
    recorder.close()
    written(tmp_path, document(ON_A_GPU, baseTimeNanoseconds=ORIGIN_NS), "trace.json.gz")
    monkeypatch.chdir(tmp_path)
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def steps() -> Callable[[], None]:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train() -> None:
        weight.sum().backward()
        optimizer.step()

    return train


def test_every_command_of_the_page_does_what_it_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = [shlex.split(line, comments=True)[1:] for line in COMMANDS if line.startswith("gpudash ")]
    assert len(ours) == 8 and {line.split()[0] for line in COMMANDS} == {"gpudash", "pip"}
    printed = ""
    for words in ours:
        if any(name in words and importlib.util.find_spec(name) is None for name in ("wandb", "mlflow")):
            assert run(words) == 2
            assert 'pip install "gpudash[trackers]"' in capsys.readouterr().err
            continue
        if words == ["open", "logs"]:
            assert run(words) == 2 and "no display" in capsys.readouterr().err
            continue
        assert run(words) == 0, words
        printed += capsys.readouterr().out
    assert printed.count("aten::mm") >= 3, "a table, a table and a document"
    assert (folder / "logs" / "run-1-training").is_dir() and (folder / "merged.json.gz").is_file()


@pytest.mark.filterwarnings("default")
def test_the_python_of_the_page_runs(folder: Path, steps: Callable[[], None]) -> None:
    assert len(PYTHON) == 2
    (folder / "trace.json.gz").unlink()
    for code in PYTHON:
        names = {"train_one_step": steps, "train": steps}
        exec(compile(code, "trackers.md", "exec"), names)
        writer = names.get("writer")
        if writer is not None:
            writer.close()  # type: ignore[attr-defined]  # the page made it
    assert (folder / "trace.json.gz").is_file()
    (events,) = (folder / "logs").iterdir()
    assert b"memory/host/process_bytes" in events.read_bytes()
