"""cuBLAS's workspaces, which torch takes from its own allocator: one a thread, and a backward pass has its own."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import (
    HOPPER_WORKSPACE_BYTES,
    USUAL_WORKSPACE_BYTES,
    WORKSPACE_VARIABLE,
    Architecture,
)
from gpudash.simulator.device import autograd
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.tracking import Tracker
from gpudash.specs import TrainingSpec
from gpudash.units import GIB
from gpudash.workloads.predicting import dry_run
from gpudash.workloads.running.context import Context


def workspaces(backend: Backend, index: int = 0) -> int:
    """Blocks of a workspace's size on a card."""
    blocks = [block for segment in backend.cards[index].segments() for block in segment.blocks]
    return sum(b.requested_size == USUAL_WORKSPACE_BYTES and b.state == "active_allocated" for b in blocks)


def test_what_needs_no_matrix_product_takes_no_workspace(sim: Backend) -> None:
    x = torch.ones(4, 4, device="sim", requires_grad=True)
    (x * 2).sum().backward()
    assert workspaces(sim) == 0


def test_products_of_a_thread_share_a_workspace(sim: Backend) -> None:
    x = torch.ones(4, 4, device="sim")
    products = [x @ x, torch.einsum("ij,jk->ik", x, x), torch.addmm(x, x, x)]
    assert workspaces(sim) == 1
    assert all(product.shape == (4, 4) for product in products)


def test_the_workspace_lies_behind_the_first_result(sim: Backend) -> None:
    happened: list[int] = []
    sim.cards[0].observe(lambda action, _address, size, _stream: happened.append(size) if action == "alloc" else None)
    x = torch.ones(4, 4, device="sim")
    product = x @ x
    assert happened == [x.nbytes, product.nbytes, USUAL_WORKSPACE_BYTES]


def test_the_environment_says_how_large_it_is(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, ":4096:8")
    x = torch.ones(4, 4, device="sim")
    before = sim.cards[0].statistics()["allocated_bytes.all.current"]
    product = x @ x
    after = sim.cards[0].statistics()["allocated_bytes.all.current"]
    assert after - before == 4096 * 8 * 1024 + 512 and product.nbytes < 512


def test_from_hopper_on_it_is_larger(sim: Backend) -> None:
    sim.engine.replace([SimulatedGpu(0, GIB, architecture=Architecture((9, 0), 132))])
    x = torch.ones(4, 4, device="sim")
    before = sim.cards[0].statistics()["allocated_bytes.all.current"]
    product = x @ x
    after = sim.cards[0].statistics()["allocated_bytes.all.current"]
    assert after - before == HOPPER_WORKSPACE_BYTES + 512 and product.nbytes < 512


def test_the_backward_pass_takes_another_one_and_only_once(sim: Backend) -> None:
    x = torch.ones(4, 4, device="sim", requires_grad=True)
    for _ in range(2):
        (x @ x).sum().backward()
        assert workspaces(sim) == 2


def test_what_a_dry_run_sets_for_cublas_is_over_with_it(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def workload(_spec: TrainingSpec, context: Context) -> dict[str, Any]:
        os.environ[WORKSPACE_VARIABLE] = ":4096:8"
        context.progress(1, 5)
        return {}

    class Recorded:
        def record(self, run: Any, **_options: Any) -> Trace:
            run(Tracker(sim.engine, stacks=False))
            return Trace()

    monkeypatch.delenv(WORKSPACE_VARIABLE, raising=False)
    monkeypatch.setattr(dry_run, "resolve", lambda _spec: workload)
    dry: Any = Recorded()
    assert dry_run.trace_of(TrainingSpec(), dry, steps=1).followed == 1
    assert WORKSPACE_VARIABLE not in os.environ


def test_each_card_has_its_own(sim: Backend) -> None:
    for device in ("sim:0", "sim:1"):
        x = torch.ones(4, 4, device=device, requires_grad=True)
        (x @ x).sum().backward()
    assert (workspaces(sim, 0), workspaces(sim, 1)) == (2, 2)


def test_dropping_them_frees_all(sim: Backend) -> None:
    x = torch.ones(4, 4, device="sim", requires_grad=True)
    (x @ x).sum().backward()
    sim.engine.drop_workspaces()
    assert workspaces(sim) == 0


def test_a_thread_is_known_to_go_backward_until_the_pass_ends(sim: Backend) -> None:
    told: list[bool] = []
    x = torch.ones(4, device="sim", requires_grad=True)
    y = x * 2
    y.register_hook(lambda _gradient: told.append(autograd.goes_backward()))
    y.sum().backward()
    assert [*told, autograd.goes_backward()] == [True, False]
