"""Autocast on the simulated GPU: CUDA's dtypes, and the cast weights that are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("sim")

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOW: list[Operation] = [
    lambda low, full: full @ full,
    lambda low, full: torch.einsum("ij,jk->ik", full, full),
    lambda low, full: functional.linear(full, full),
    lambda low, full: functional.conv1d(full[None], torch.ones(2, 4, 2, device="sim")),
    lambda low, full: functional.scaled_dot_product_attention(full[None], full[None], full[None]),
    lambda low, full: functional.prelu(full, torch.ones(1, device="sim")),
    lambda low, full: torch.nn.LSTMCell(4, 4, device="sim")(full)[0],
    lambda low, full: torch.baddbmm(full[None], full[None], full[None]),
    lambda low, full: functional.gelu(low),
    lambda low, full: low + low,
    lambda low, full: torch.addcmul(low, low, low),
]
FULL: list[Operation] = [
    lambda low, full: low.exp(),
    lambda low, full: low.pow(2),
    lambda low, full: 2**low,
    lambda low, full: functional.softmax(low, -1),
    lambda low, full: low.log_softmax(0),
    lambda low, full: functional.layer_norm(low, (4,)),
    lambda low, full: torch.nn.GroupNorm(2, 4, device="sim")(low),
    lambda low, full: torch.nn.RMSNorm(4, device="sim")(low),
    lambda low, full: functional.cross_entropy(low, torch.zeros(4, dtype=torch.long, device="sim")),
    lambda low, full: functional.mse_loss(low, low),
    lambda low, full: low.sum(),
    lambda low, full: low.sum(0),
    lambda low, full: low.prod(),
    lambda low, full: low.cumsum(0),
    lambda low, full: low.norm(),
    lambda low, full: low.norm(2, 1),
    lambda low, full: low.norm(dim=1, keepdim=True),
    lambda low, full: torch.linalg.vector_norm(low),
    lambda low, full: torch.cdist(low, low),
    lambda low, full: torch.addcmul(full, low, low),
    lambda low, full: torch.dot(low[0], full[0]),
    lambda low, full: low + full,
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_operations_give_the_dtypes_of_cuda(dtype: torch.dtype) -> None:
    full = torch.randn(4, 4, device="sim")
    with torch.autocast("sim", dtype=dtype):
        assert torch.is_autocast_enabled("sim") and torch.get_autocast_dtype("sim") == dtype
        low = full @ full
        assert [place for place, run in enumerate(LOW) if run(low, full).dtype != dtype] == []
        assert [place for place, run in enumerate(FULL) if run(low, full).dtype != torch.float32] == []
        assert torch.nn.LSTM(4, 4, device="sim")(full[None])[0].dtype == torch.float16  # by cuDNN, whatever is asked
        assert (full.double() @ full.double()).dtype == torch.float64
        assert low.softmax(0, dtype=torch.float64).dtype == torch.float64
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        with torch.autocast("sim", enabled=False):
            assert (full @ full).dtype == torch.float32
    assert (full @ full).dtype == torch.float32


def test_what_is_unsafe_is_refused_in_the_words_of_torch() -> None:
    shares = torch.full((2,), 0.5, device="sim")
    with torch.autocast("sim", dtype=torch.float16), pytest.raises(RuntimeError, match="are unsafe to autocast"):
        functional.binary_cross_entropy(shares, shares)


def test_a_cast_weight_is_kept_once_until_the_outermost_autocast_ends() -> None:
    weight = torch.randn(512, 512, device="sim", requires_grad=True)
    values = torch.zeros(1, 512, device="sim", dtype=torch.bfloat16)
    values @ values.t()
    before = torch.sim.memory_allocated()
    with torch.autocast("sim", dtype=torch.bfloat16):
        for _ in range(3):
            with torch.autocast("sim", dtype=torch.bfloat16):
                functional.linear(values, weight)
            assert torch.sim.memory_allocated() - before == weight.numel() * 2
    assert torch.sim.memory_allocated() == before


def test_a_cast_made_without_gradients_is_kept_and_used_where_they_are_wanted() -> None:
    weight = torch.randn(512, 512, device="sim", requires_grad=True)
    values = torch.zeros(1, 512, device="sim", dtype=torch.bfloat16)
    values @ values.t()
    before = torch.sim.memory_allocated()
    with torch.autocast("sim", dtype=torch.bfloat16):
        with torch.no_grad():
            functional.linear(values, weight)
        assert torch.sim.memory_allocated() - before == weight.numel() * 2
        assert functional.linear(values, weight).requires_grad
        assert torch.sim.memory_allocated() - before == weight.numel() * 2


@pytest.mark.parametrize("kind", ["inference", "not wanted", "not a leaf", "disabled"])
def test_other_casts_are_not_kept(kind: str) -> None:
    weight = torch.randn(512, 512, device="sim", requires_grad=kind != "not wanted")
    used = weight * 1 if kind == "not a leaf" else weight
    values = torch.zeros(1, 512, device="sim", dtype=torch.bfloat16)
    values @ values.t()
    before = torch.sim.memory_allocated()
    with torch.autocast("sim", dtype=torch.bfloat16, cache_enabled=kind != "disabled"):
        with torch.inference_mode(kind == "inference"):
            functional.linear(values, used)
        assert torch.sim.memory_allocated() == before
        torch.clear_autocast_cache()


def test_a_backward_pass_gives_full_precision_gradients_after_autocast() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to("sim")
    with torch.autocast("sim", dtype=torch.bfloat16):
        loss = module(torch.randn(4, 8, device="sim")).sum()
    loss.backward()
    assert {parameter.grad.dtype for parameter in module.parameters()} == {torch.float32}


def test_a_scaler_steps_and_skips_steps_with_infinite_gradients() -> None:
    scaler = torch.amp.GradScaler("sim", init_scale=1024.0)
    weight = torch.ones(2, device="sim", requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.5)
    for factor, expected in ((1.0, 0.5), (float("inf"), 0.5)):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.detach().tolist() == [expected] * 2
    assert scaler.get_scale() == 512.0


def test_own_functions_are_cast_as_they_ask() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="sim", cast_inputs=torch.float16)
        def forward(context, values):  # type: ignore[no-untyped-def]
            return values * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="sim")
        def backward(context, grad):  # type: ignore[no-untyped-def]
            return grad * 2

    values = torch.ones(2, device="sim", requires_grad=True)
    with torch.autocast("sim", dtype=torch.bfloat16):
        doubled = Doubled.apply(values)
    assert doubled.dtype == torch.float16
    doubled.sum().backward()
    assert values.grad.tolist() == [2, 2]
