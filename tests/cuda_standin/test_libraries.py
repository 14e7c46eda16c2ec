"""What torch asks of CUDA's other libraries: their choices as on a card, their results in the right shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.simulator import kernel_samples, own_convolutions

CUDNN, FLASH = "ScaledDotProductCudnnAttentionBackward0", "ScaledDotProductFlashAttentionBackward0"


def test_attention_is_chosen_as_on_a_card_and_has_a_backward_pass() -> None:
    """torch prefers cuDNN's on Hopper and on Blackwell's large cards: check_prefer_cudnn_attention in sdp_utils.cpp."""
    query = torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    result = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert result.grad_fn is not None
    assert result.grad_fn.name() == (CUDNN if torch.cuda.get_device_capability() in ((9, 0), (10, 0)) else FLASH)
    result.sum().backward()
    assert query.grad is not None and query.grad.shape == query.shape


def sequence() -> torch.Tensor:
    return torch.randn(3, 4, 8, device="cuda", requires_grad=True)


def square() -> torch.Tensor:
    return torch.randn(5, 5, device="cuda")


RESULTS: dict[str, tuple[Callable[[], torch.Tensor], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(8, 16, 2, bidirectional=True).cuda()(sequence())[0], (3, 4, 32)),
    "projected lstm": (lambda: nn.LSTM(8, 16, proj_size=4).cuda()(sequence())[0], (3, 4, 4)),
    "gru": (lambda: nn.GRU(8, 16).cuda()(sequence())[0], (3, 4, 16)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32, device="cuda")), (2, 8, 30, 30)),
    "batch norm": (lambda: nn.BatchNorm2d(3).cuda()(torch.randn(2, 3, 4, 4, device="cuda")), (2, 3, 4, 4)),
    "inverse": (lambda: torch.linalg.inv(square()), (5, 5)),
    "singular values": (lambda: torch.linalg.svd(square())[1], (5,)),
    "eigenvalues": (lambda: torch.linalg.eigh(square())[0], (5,)),
    "cholesky": (lambda: torch.linalg.cholesky(torch.eye(5, device="cuda")), (5, 5)),
    "sparse product": (lambda: torch.sparse.mm(torch.eye(5).to_sparse().cuda(), square()), (5, 5)),
    "fourier": (lambda: torch.fft.fft(square()), (5, 5)),
    "sort": (lambda: torch.sort(torch.randn(100_000, device="cuda"))[0], (100_000,)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_its_shape(name: str) -> None:
    compute, shape = RESULTS[name]
    assert compute().shape == shape
    torch.cuda.synchronize()


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="CUB of another torch has other tiles")
def test_kernels_ask_for_what_was_recorded() -> None:
    recorded = Path(kernel_samples.__file__).parent / "recorded" / "kernels.json"
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    expected = json.loads(recorded.read_text(encoding="utf-8"))[capability]
    asked = {name: kernel_samples.on_cuda(run) for name, run in kernel_samples.cases("cuda").items()}
    assert asked == expected


def test_convolutions_by_torchs_own_kernels_ask_for_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    recorded = Path(kernel_samples.__file__).parent / "recorded" / "convolutions.json"
    expected = json.loads(recorded.read_text(encoding="utf-8"))
    assert {name: own_convolutions.requests("cuda", name) for name in own_convolutions.samples()} == expected
