"""A script that leaks runs out of memory, and once more from a copy that has the change: the peak is lower, and the
user's files are as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpudash.memory.explaining.annotated_source import change_of, read_source, source_files
from gpudash.memory.explaining.whole_need import room_of
from gpudash.session import Session
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.runs import RunView
from gpudash.units import MIB

PATIENCE_S = 150.0

TRAINING = """\
import torch


def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(512, 512).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        inputs = torch.randn(2048, 512, device="cuda")
        found = model(inputs).relu()
        loss = found.square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss)
        print(f"step {step} loss {loss.item():.6f}", flush=True)
"""
STARTING = """\
train(24)
open("written.txt", "a").write(__file__)
"""
WITH_MODULE = {"train.py": f"from training import train\n\n{STARTING}", "training.py": TRAINING}


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session()
    session.start(worker=False)
    yield session
    session.close()


def ran(session: Session, request: WatchRequest) -> RunView:
    session.watch(request)
    assert session.runs.wait(PATIENCE_S)
    run = session.store.run
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("files", "changed"),
    [({"train.py": f"{TRAINING}\n\n{STARTING}"}, "train.py"), (WITH_MODULE, "training.py")],
    ids=["script", "module"],
)
def test_the_change_of_a_leak_is_proved_on_a_copy(
    session: Session, tmp_path: Path, files: Mapping[str, str], changed: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = tmp_path / "train.py"
    before = python_files(tmp_path)
    request = WatchRequest([sys.executable, str(script)], tmp_path, simulate=(420 * MIB,), as_cuda=True)
    failed = ran(session, request)
    assert failed.status == "out_of_memory" and failed.error is not None
    found = failed.error.explanation
    assert found is not None and found.verdict == "leak"
    change = change_of(found)
    assert change is not None and change.fits and change.patch.startswith(f"--- {changed}\n")

    assert source_files(found, change, str(tmp_path))[0] == str(tmp_path / changed)
    source = read_source(found, str(tmp_path / changed), change, str(tmp_path))
    assert source is not None and not source.note
    grows = [row.text.strip() for row in source.rows if row.growth]
    assert "found = model(inputs).relu()" in grows

    fixed = ran(session, WatchRequest.from_spec(failed.spec).with_remedy(change))
    assert (fixed.status, fixed.step) == ("finished", 24)
    assert fixed.peak_reserved_bytes is not None and failed.peak_reserved_bytes is not None
    assert fixed.peak_reserved_bytes < failed.peak_reserved_bytes <= room_of(found) < found.refused_total_bytes
    assert fixed.peak_reserved_bytes == change.predicted_peak_bytes, "the replay had said so"
    assert python_files(tmp_path) == before
    assert (tmp_path / "written.txt").read_text() == str(script), "it ran where it always does, as what it is"


def python_files(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.py")}
