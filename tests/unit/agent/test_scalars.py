"""Losses that a program writes for Weights & Biases and MLflow, on stand-ins with their methods.

The real libraries were run under the agent (wandb 0.31 offline, mlflow-skinny 3.17 with files): what is logged by
``wandb.log``, ``run.log``, ``mlflow.log_metric`` and ``mlflow.log_metrics`` arrives as in these tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gpudash.agent.guest import take_faults
from gpudash.agent.stepping.scalars import MOST_IN_A_ROW, MOST_WAITING, Scalars, follow_mlflow, follow_wandb
from tests.unit.agent.dashboard import Dashboard
from tests.unit.agent.test_trainers import written


class Run:
    """As a run of wandb."""

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> str:
        if not isinstance(data, dict):
            raise TypeError("wandb.log must be passed a dictionary")
        return "logged"


class MlflowClient:
    """As the client of mlflow."""

    def log_metric(
        self, run_id: str, key: str, value: float, timestamp: int | None = None, step: int | None = None
    ) -> str:
        return "logged"

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> str:
        return "logged"


def library(kind: type) -> Any:
    """A module with a class of its own, that a test may change."""
    module = ModuleType(kind.__name__)
    setattr(module, kind.__name__, type(kind.__name__, (), dict(vars(kind))))
    return module


def rows(scalars: Scalars) -> list[tuple[str, int | None, float]]:
    return [(tag, step, value) for tag, step, _time_us, value in scalars.take()]


@pytest.fixture(autouse=True)
def no_fault_of_the_agent() -> Any:
    take_faults()
    yield
    assert take_faults() == []


def test_losses_of_a_row_of_wandb_are_heard_and_nothing_else() -> None:
    module = library(Run)
    scalars = Scalars()
    follow_wandb(module, scalars)
    run = module.Run()
    graph = torch.tensor([0.5], requires_grad=True)
    row = {"train": {"loss": graph, "lr": 0.1, "deep": {"acc": 1}}, "loss_hist": object(), "loss": "low"}
    assert run.log(row) == "logged"
    run.log({"val/loss": torch.tensor(2.0)}, 7)
    run.log(data={"val/acc": 0.25, "loss_each": torch.ones(3)}, step=8, commit=True)
    with pytest.raises(TypeError, match="must be passed a dictionary"):
        run.log(["loss"])
    assert rows(scalars) == [
        ("train.loss", None, 0.5),
        ("train.deep.acc", None, 1.0),
        ("val/loss", 7, 2.0),
        ("val/acc", 8, 0.25),
    ]
    assert scalars.tracker == "wandb"


def test_a_metric_of_mlflow_that_has_no_step_stands_at_none() -> None:
    module = library(MlflowClient)
    scalars = Scalars()
    follow_mlflow(module, scalars)
    client = module.MlflowClient()
    assert client.log_metric("run", "loss", 0.5, 1234, 0) == "logged"
    client.log_metric("run", key="loss", value=0.25, step=3)
    client.log_metric("run", "lr", 1.0)
    of_two_models = [SimpleNamespace(key="val_loss", value=2.0, step=4) for _model in range(2)]
    assert client.log_batch("run", [*of_two_models, SimpleNamespace(key="lr", value=1.0, step=4)]) == "logged"
    client.log_batch("run", params=["p"])
    with pytest.raises(TypeError, match="missing 2 required"):
        client.log_metric("run")
    assert rows(scalars) == [("loss", None, 0.5), ("loss", 3, 0.25), ("val_loss", 4, 2.0)]
    assert scalars.tracker == "mlflow"


def test_of_two_trackers_the_first_that_a_loss_is_written_for_is_heard() -> None:
    one = library(Run)
    other = library(MlflowClient)
    scalars = Scalars()
    follow_wandb(one, scalars)
    follow_mlflow(other, scalars)
    other.MlflowClient().log_metric("run", "lr", 0.1)
    one.Run().log({"loss": 1.0})
    other.MlflowClient().log_metric("run", "loss", 1.0)
    assert rows(scalars) == [("loss", None, 1.0)]


def test_when_it_leaves_all_methods_are_the_library_s_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = library(Run)
    before = module.Run.log
    package = ModuleType("wandb")
    monkeypatch.setitem(sys.modules, "wandb", package)
    run = module.Run()
    package.log = run.log  # type: ignore[attr-defined]  # as wandb.init does
    scalars = Scalars()
    undo = follow_wandb(module, scalars)
    kept = run.log
    package.log({"loss": 1.0})
    assert rows(scalars) == [("loss", None, 1.0)]
    undo()
    scalars.leave()
    assert module.Run.log is before
    assert package.log.__func__ is before
    assert package.log.__self__ is run
    kept({"loss": 1.0})
    assert scalars.take() == []

    clients = library(MlflowClient)
    own = dict(vars(clients.MlflowClient))
    follow_mlflow(clients, Scalars())()
    assert dict(vars(clients.MlflowClient)) == own


@pytest.mark.parametrize("follow", [follow_wandb, follow_mlflow])
def test_a_library_that_is_built_otherwise_is_left_alone(follow: Any) -> None:
    module: Any = ModuleType("other")
    module.MlflowClient = SimpleNamespace(log_metric=None)
    follow(module, Scalars())()
    assert vars(module.MlflowClient) == {"log_metric": None}


def test_of_endless_rows_a_bounded_number_waits() -> None:
    module = library(Run)
    scalars = Scalars()
    follow_wandb(module, scalars)
    endless: dict[str, Any] = {"loss": 1.0}
    endless["within"] = endless
    module.Run().log(endless)
    assert len(rows(scalars)) == 4
    module.Run().log({f"loss {number}": number for number in range(2 * MOST_IN_A_ROW)})
    assert len(scalars.take()) == MOST_IN_A_ROW
    for number in range(3):
        module.Run().log({f"loss {number} {name}": name for name in range(MOST_IN_A_ROW)})
    assert len(scalars.take()) == MOST_WAITING


REAL = [
    ("wandb.sdk.wandb_run", "Run", "log", ["data", "step"], Run),
    (
        "mlflow.tracking.client",
        "MlflowClient",
        "log_metric",
        ["run_id", "key", "value", "timestamp", "step"],
        MlflowClient,
    ),
    ("mlflow.tracking.client", "MlflowClient", "log_batch", ["run_id", "metrics"], MlflowClient),
]


@pytest.mark.parametrize(("module", "kind", "method", "parameters", "stand_in"), REAL, ids=[row[2] for row in REAL])
def test_the_methods_are_those_of_the_real_library_where_it_is_installed(
    module: str, kind: str, method: str, parameters: list[str], stand_in: type
) -> None:
    known = [getattr(stand_in, method)]
    if importlib.util.find_spec(module.split(".")[0]) is not None:
        known.append(getattr(getattr(importlib.import_module(module), kind), method))
    for function in known:
        names = [*inspect.signature(function).parameters]
        assert names[1 : 1 + len(parameters)] == parameters


PROGRAM = {
    "wandb/__init__.py": "from wandb.sdk.wandb_run import Run; log = Run().log",
    "wandb/sdk/__init__.py": "",
    "wandb/sdk/wandb_run.py": """
class Run:
    def log(self, data, step=None, commit=None):
        print(data, step, commit)
""",
    "mlflow/__init__.py": "from mlflow.tracking.client import MlflowClient",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/client.py": """
class MlflowClient:
    def log_metric(self, run_id, key, value, timestamp=None, step=None): print(key, value)
    def log_batch(self, run_id, metrics=(), params=(), tags=()): pass
""",
    "script.py": """
import wandb, mlflow
wandb.log({"train": {"loss": 0.5}}, commit=False)
mlflow.MlflowClient().log_metric("run", "loss", 0.5)
""",
}


@pytest.mark.process
def test_a_watched_program_s_trackers_are_followed_as_it_imports_them(dashboard: Dashboard, tmp_path: Path) -> None:
    done = dashboard.run(written(tmp_path / "a", PROGRAM))
    assert (done.stdout, done.stderr) == ("{'train': {'loss': 0.5}} None False\nloss 0.5\n", "")
    (message,) = dashboard.of("scalars")
    assert message["tracker"] == "wandb"
    assert [(tag, step, value) for tag, step, _time_us, value in message["scalars"]] == [("train.loss", None, 0.5)]
