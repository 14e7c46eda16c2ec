"""cuBLAS's workspaces, which torch takes from its own allocator: one a thread, and a backward pass has its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import (
    HOPPER_WORKSPACE_BYTES,
    LT_WORKSPACE_VARIABLE,
    USUAL_WORKSPACE_BYTES,
    WORKSPACE_CACHE_VARIABLE,
    WORKSPACE_VARIABLE,
    Architecture,
)
from gpudash.simulator.device import autograd
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.operations import operations
from gpudash.specs import TrainingSpec
from gpudash.units import GIB
from gpudash.workloads.predicting import dry_run
from gpudash.workloads.running.context import Context


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces are kept by any torch, as they are by default before 2.15."""
    monkeypatch.setenv(WORKSPACE_CACHE_VARIABLE, "1")


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.15, where each product allocates its workspace and frees it."""
    monkeypatch.setattr(operations, "TORCH_VERSION", (2, 15))
    monkeypatch.delenv(WORKSPACE_CACHE_VARIABLE)
    monkeypatch.delenv(LT_WORKSPACE_VARIABLE, raising=False)


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
        def record_each(self, run: Any, _architectures: Any, **_options: Any) -> list[Trace]:
            run(Tracker(sim.engine, stacks=False))
            return [Trace()]

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


MIB = 2**20


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11, where products with a bias have a workspace of their own."""
    monkeypatch.setattr(operations, "TORCH_VERSION", (2, 11))
    monkeypatch.delenv(LT_WORKSPACE_VARIABLE, raising=False)


def requested(sim: Backend, act: Callable[[], object]) -> list[int]:
    """Bytes of each request that ``act`` makes on the first card, when no workspace is there yet."""
    happened: list[int] = []

    def note(action: str, _address: int, size: int, _stream: int) -> None:
        if action == "alloc":
            happened.append(size)

    sim.engine.drop_workspaces()
    sim.cards[0].observe(note)
    try:
        act()
    finally:
        sim.cards[0].unobserve(note)
    return happened


def zeros(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device="sim")


WITH_BIAS: dict[str, tuple[Callable[[], object], bool]] = {
    "a row": (lambda: torch.addmm(zeros(32), zeros(16, 64), zeros(64, 32)), True),
    "a row of float16": (lambda: torch.addmm(*halves((32,), (16, 64), (64, 32))), True),
    "a matrix of one row": (lambda: torch.addmm(zeros(1, 32), zeros(16, 64), zeros(64, 32)), True),
    "one row of inputs": (lambda: torch.addmm(zeros(32), zeros(1, 64), zeros(64, 32)), True),
    "scaled products": (lambda: torch.addmm(zeros(32), zeros(16, 64), zeros(64, 32), alpha=2), True),
    "transposed weights": (lambda: torch.addmm(zeros(32), zeros(16, 64), zeros(32, 64).t()), True),
    "a linear layer": (lambda: functional.linear(zeros(4, 16, 64), zeros(32, 64), zeros(32)), True),
    "an activation": (lambda: _activated(zeros(32), zeros(16, 64), zeros(64, 32)), True),
    "an activation of a matrix": (lambda: _activated(zeros(16, 32), zeros(16, 64), zeros(64, 32)), True),
    "a linear layer without": (lambda: functional.linear(zeros(16, 64), zeros(32, 64)), False),
    "complex numbers": (lambda: torch.addmm(*complexes((32,), (16, 64), (64, 32))), False),
    "a matrix": (lambda: torch.addmm(zeros(16, 32), zeros(16, 64), zeros(64, 32)), False),
    "a column": (lambda: torch.addmm(zeros(16, 1), zeros(16, 64), zeros(64, 32)), False),
    "one number": (lambda: torch.addmm(zeros(1), zeros(16, 64), zeros(64, 32)), False),
    "no dimension": (lambda: torch.addmm(zeros(), zeros(16, 64), zeros(64, 32)), False),
    "every second number": (lambda: torch.addmm(zeros(64)[::2], zeros(16, 64), zeros(64, 32)), False),
    "one column of weights": (lambda: torch.addmm(zeros(1), zeros(16, 64), zeros(64, 1)), False),
    "one row of weights": (lambda: torch.addmm(zeros(32), zeros(16, 1), zeros(1, 32)), False),
    "a scaled bias": (lambda: torch.addmm(zeros(32), zeros(16, 64), zeros(64, 32), beta=2), False),
    "a result by columns": (
        lambda: torch.addmm(zeros(32), zeros(16, 64), zeros(64, 32), out=zeros(32, 16).t()),
        False,
    ),
}
"""Products, and whether torch 2.11 asks for a workspace for cuBLASLt at the first of them, on the stand-in for CUDA."""

_activated: Callable[..., torch.Tensor] = torch.ops.aten._addmm_activation


def halves(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [zeros(*size, dtype=torch.float16) for size in sizes]


def complexes(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [zeros(*size, dtype=torch.complex64) for size in sizes]


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("name", WITH_BIAS)
def test_an_older_torch_takes_another_workspace_for_a_product_with_a_bias(sim: Backend, name: str) -> None:
    product, by_lt = WITH_BIAS[name]
    assert requested(sim, product)[-1:] == [MIB if by_lt else USUAL_WORKSPACE_BYTES]


@pytest.mark.parametrize("name", WITH_BIAS)
def test_from_torch_2_12_on_a_product_with_a_bias_takes_no_other(
    sim: Backend, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(operations, "TORCH_VERSION", (2, 12))
    assert requested(sim, WITH_BIAS[name][0])[-1] == USUAL_WORKSPACE_BYTES


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize("name", WITH_BIAS)
def test_from_torch_2_15_on_a_product_has_one_workspace_which_it_frees(sim: Backend, name: str) -> None:
    """The last request of each product is what torch 2.15 asks for on the stand-in for CUDA."""
    product, by_lt = WITH_BIAS[name]
    assert requested(sim, product)[-1] == (MIB if by_lt else USUAL_WORKSPACE_BYTES)
    assert workspaces(sim) == 0


@pytest.mark.usefixtures("passing")
def test_a_sum_of_products_then_has_one_after_the_other(sim: Backend) -> None:
    matrices = torch.zeros(4, 64, 64, device="sim")
    asked = requested(sim, lambda: torch.addbmm(matrices[0], matrices, matrices))
    assert asked == [64 * 64 * 4, *[USUAL_WORKSPACE_BYTES] * 4]


@pytest.mark.usefixtures("older")
def test_the_other_workspace_is_taken_once_by_each_thread(sim: Backend) -> None:
    layer = torch.nn.Linear(64, 32, device="sim")
    x = torch.zeros(16, 64, device="sim", requires_grad=True)

    def step() -> None:
        result: torch.Tensor = checkpoint(layer, layer(x)[:, :1].expand(16, 64), use_reentrant=True)
        result.sum().backward()  # type: ignore[no-untyped-call]  # which runs the layer again

    assert requested(sim, lambda: [step() for _ in range(2)]).count(MIB) == 2


@pytest.mark.usefixtures("older")
def test_the_environment_says_how_large_the_other_one_is(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LT_WORKSPACE_VARIABLE, "2048")
    assert requested(sim, WITH_BIAS["a row"][0])[-1] == 2 * MIB
    monkeypatch.setenv(WORKSPACE_VARIABLE, ":16:8")  # which it does not exceed
    assert requested(sim, WITH_BIAS["a row"][0])[-2:] == [128 * 1024] * 2


def test_a_thread_is_known_to_go_backward_until_the_pass_ends(sim: Backend) -> None:
    told: list[bool] = []
    x = torch.ones(4, device="sim", requires_grad=True)
    y = x * 2
    y.register_hook(lambda _gradient: told.append(autograd.goes_backward()))
    y.sum().backward()
    assert [*told, autograd.goes_backward()] == [True, False]
