"""``gpudash.log_to``: this process's memory in the user's own tracker, known by its methods."""

from __future__ import annotations

import importlib.util
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tensorboardX import SummaryWriter

import gpudash
from gpudash.session.api.tracking import MetricsLogger, RunLogger, ScalarWriter

HOST = "memory/host/process_bytes"

Written = list[tuple[dict[str, float], int | None]]


class Writer:
    def __init__(self, written: Written) -> None:
        self.written = written

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        if tag == HOST:  # of a card only where something before this test has used one
            self.written.append(({tag: scalar_value}, global_step))


class Run:
    def __init__(self, written: Written) -> None:
        self.written = written

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert commit is False and step is None, "the run's step is the user's"
        self.written.append((data, step))


def module(written: Written) -> ModuleType:
    made = ModuleType("mlflow")

    def log_metrics(metrics: dict[str, float], step: int | None = None) -> None:
        written.append((metrics, step))

    made.log_metrics = log_metrics  # type: ignore[attr-defined]  # a module is given its function
    return made


@pytest.fixture
def train() -> Callable[[int], None]:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def steps(count: int) -> None:
        for _step in range(count):
            weight.sum().backward()
            optimizer.step()

    return steps


@pytest.mark.parametrize("make", [Writer, module])
def test_what_is_written_stands_at_the_optimizer_s_step(
    make: Callable[[Written], Any], train: Callable[[int], None]
) -> None:
    written: Written = []
    with gpudash.log_to(make(written), every_s=0) as log:
        train(3)
    train(2)
    assert [step for _readings, step in written] == [1, 2, 3] and log.step == 3
    assert all(readings[HOST] > 2**20 for readings, _step in written)


def test_into_a_run_of_weights_and_biases_it_goes_with_the_user_s_next_row(train: Callable[[int], None]) -> None:
    written: Written = []
    with gpudash.log_to(Run(written), every_s=0):
        train(2)
    assert len(written) == 2 and all(HOST in readings for readings, _step in written)


def test_it_writes_seldom_unless_it_is_asked_to_and_has_no_thread(train: Callable[[int], None]) -> None:
    written: Written = []
    threads = threading.active_count()
    log = gpudash.log_to(Writer(written), every_s=3600)
    train(5)
    assert [step for _readings, step in written] == [1]
    log.log()
    log.log(step=70)
    assert [step for _readings, step in written] == [1, 5, 70]
    assert threading.active_count() == threads
    log.stop()
    log.stop()
    log.log()
    train(1)
    assert len(written) == 3 and not log.active


def test_a_tracker_that_fails_is_told_once_and_the_training_goes_on(train: Callable[[int], None]) -> None:
    class Closed:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
            raise OSError("the disk is full")

    log = gpudash.log_to(Closed(), every_s=0)
    with pytest.warns(UserWarning, match=r"no more memory: Closed refused it \(the disk is full\)"):
        train(3)
    assert not log.active and log.step == 1


def test_anything_else_is_refused_in_a_sentence(train: Callable[[int], None]) -> None:
    with pytest.raises(TypeError, match="object has none of add_scalar, log_metrics and log: give"):
        gpudash.log_to(object())  # type: ignore[arg-type]  # what it refuses
    with pytest.raises(ValueError, match="every_s is -1"):
        gpudash.log_to(Writer([]), every_s=-1)
    train(1)


@pytest.mark.filterwarnings("default")
def test_a_real_summary_writer_takes_it(tmp_path: Path, train: Callable[[int], None]) -> None:
    writer = SummaryWriter(str(tmp_path), write_to_disk=False)
    with gpudash.log_to(writer, every_s=0) as log:
        train(2)
        assert log.active, "it took everything"
    writer.close()


REAL = [
    ("tensorboardX", "SummaryWriter", "add_scalar", ("tag", "scalar_value", "global_step"), ScalarWriter),
    ("wandb", "Run", "log", ("data", "step", "commit"), RunLogger),
    ("mlflow", "", "log_metrics", ("metrics", "step"), MetricsLogger),
]


@pytest.mark.parametrize(("library", "kind", "method", "parameters", "protocol"), REAL, ids=[row[0] for row in REAL])
def test_the_methods_are_those_of_the_real_library_where_it_is_installed(
    library: str, kind: str, method: str, parameters: tuple[str, ...], protocol: type
) -> None:
    asked = inspect.signature(getattr(protocol, method)).parameters
    assert set(parameters) <= set(asked)
    if importlib.util.find_spec(library) is None:
        return
    real = importlib.import_module(library)
    owner = getattr(real, kind) if kind else real
    assert set(parameters) <= set(inspect.signature(getattr(owner, method)).parameters)
