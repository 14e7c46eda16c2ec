"""A worker whose events are gathered, and a context without one."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gpudash.specs import Spec, build, workloads
from gpudash.telemetry.records import Event, RunEnd
from gpudash.workloads.running import sim_backend as simulated
from gpudash.workloads.running.context import Context, Requests
from gpudash.workloads.running.run import RunRequest
from gpudash.workloads.running.worker import Worker

PATIENCE_S = 60.0

MakeSpec = Callable[..., Spec]
"""Makes a spec of a function and of values of the spec's fields."""


class Bench:
    """Runs workloads on a real worker and keeps what it tells."""

    def __init__(self, **worker: Any) -> None:
        self.events: list[Event] = []
        self._reported = threading.Condition()
        self._runs = 0
        self.worker = Worker(self._take, time.monotonic, **worker)
        self.worker.start()

    def _take(self, event: Event) -> None:
        with self._reported:
            self.events.append(event)
            self._reported.notify_all()

    def spec(self, workload: str, **values: Any) -> Spec:
        return build(workloads()[workload], values)

    def begin(self, spec: Spec, device: str = "cpu", **request: Any) -> int:
        self._runs += 1
        self.worker.submit(RunRequest(spec, device, self._runs, **request))
        return self._runs

    def run(self, workload: str, *, device: str = "cpu", request: dict[str, Any] | None = None, **values: Any) -> Any:
        """The ending of a whole run."""
        return self.end(self.begin(self.spec(workload, **values), device, **(request or {})))

    def end(self, run_id: int) -> Any:
        return self.wait_for(lambda event: isinstance(event, RunEnd) and event.run_id == run_id)

    def wait_for(self, wanted: Callable[[Event], bool]) -> Any:
        """The first event that is wanted, waiting for it."""
        found: list[Event] = []

        def there() -> bool:
            found[:] = [event for event in self.events if wanted(event)][:1]
            return bool(found)

        with self._reported:
            assert self._reported.wait_for(there, PATIENCE_S), f"not told: {[event.kind for event in self.events]}"
        return found[0]

    def of(self, kind: type[Event], run_id: int | None = None) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and run_id in (None, e.run_id)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    assert bench.worker.close(10.0)


class Reported(list[Event]):
    """The events of a context, and the wishes it obeys."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = Requests()


@pytest.fixture
def told() -> Reported:
    return Reported()


def context_on(device: str = "cpu", reported: Reported | None = None, **known: Any) -> Context:
    """A context whose clock stands still; what it tells is in ``reported``."""
    reported = Reported() if reported is None else reported
    return Context(
        torch.device(device), run_id=1, emit=reported.append, clock=lambda: 0.0, requests=reported.requests, **known
    )


@pytest.fixture
def context(told: Reported) -> Context:
    """A context on the CPU whose clock stands still."""
    return context_on(reported=told)


class Custom(Spec):
    """A third party's workload, whose function the test brings."""

    name = "custom"
    title = "Custom"
    summary = "Does what the test says."
    run = "gpudash_tests_custom:run"


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> MakeSpec:
    """Turns a function into a spec that the worker can run."""

    def make(function: Callable[[Spec, Context], Any], **values: Any) -> Spec:
        module = types.ModuleType("gpudash_tests_custom")
        module.run = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "gpudash_tests_custom", module)
        return Custom(**values)

    return make


@pytest.fixture
def no_simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has run on no simulated GPU, whatever the tests before this one did."""
    monkeypatch.setattr(simulated, "in_use", lambda: None)
