"""Convolutions that torch leaves to kernels of its own: which they are, what they request, what they compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from gpudash.memory.predicting.architecture import WORKSPACE_CACHE_VARIABLE, Architecture
from gpudash.simulator.convolutions.workspaces import scratch
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from tests.unit.simulator.own_convolutions import LAYERS, requests, samples

RECORDED = json.loads((Path(__file__).parent / "recorded" / "convolutions.json").read_text(encoding="utf-8"))

T4 = Architecture((7, 5), 40)
A100 = Architecture((8, 0), 108)


@pytest.fixture
def dry(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The simulated device without numbers; cuBLAS's workspaces are kept by any torch."""
    monkeypatch.setattr(sim.engine, "computes", False)
    monkeypatch.setenv(WORKSPACE_CACHE_VARIABLE, "1")
    return sim


def peak(backend: Backend, architecture: Architecture, layer: nn.Module, values: torch.Tensor) -> int:
    """By how many bytes a forward pass raises the memory of a card of this design."""
    backend.engine.replace([SimulatedGpu(0, 2**40, context=0, computes=False, architecture=architecture)])
    layer, values = layer.to("sim"), values.to("sim")
    with torch.no_grad():
        torch.ones(2, 2, device="sim") @ torch.ones(2, 2, device="sim")
        statistics = backend.engine.cards[0].statistics
        before = statistics()["allocated_bytes.all.current"]
        layer(values)
    return int(statistics()["allocated_bytes.all.peak"] - before)


def test_all_samples_are_recorded() -> None:
    assert list(RECORDED) == list(samples())


@pytest.mark.parametrize("name", RECORDED)
def test_a_kernel_requests_and_frees_what_it_does_on_cuda_in_the_same_order(name: str, dry: Backend) -> None:
    assert requests("sim", name) == RECORDED[name]


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_and_gradients_are_those_of_the_cpu(name: str, sim: Backend) -> None:
    make, size = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    values = torch.randn(size)
    expected = layer(values)
    incoming = torch.randn(expected.shape)
    expected_gradients = torch.autograd.grad(expected, list(layer.parameters()), incoming)
    layer = layer.to("sim")
    with torch.backends.cudnn.flags(enabled=False):
        found = layer(values.to("sim"))
        gradients = torch.autograd.grad(found, list(layer.parameters()), incoming.to("sim"))
    torch.testing.assert_close(found.cpu(), expected)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_bfloat16_takes_columns_before_ampere_and_float16_does_not(dry: Backend) -> None:
    sizes = 16, 24, 24
    columns = 16 * 9 * 24 * 24 * 2
    taken = {}
    for dtype in (torch.bfloat16, torch.float16):
        layer = nn.Conv2d(16, 16, 3, padding=1, dtype=dtype)
        taken[dtype] = [peak(dry, card, layer, torch.ones(4, *sizes, dtype=dtype)) for card in (T4, A100)]
    result = 4 * 16 * 24 * 24 * 2
    assert taken[torch.bfloat16] == [result + columns, result]
    assert taken[torch.float16] == [result, result]


def test_what_cudnn_cannot_compute_and_torch_leaves_to_it_ends_with_torchs_error(dry: Backend) -> None:
    layer = nn.Conv2d(16, 16, 3, groups=16, dtype=torch.bfloat16)
    images = torch.ones(4, 16, 24, 24, dtype=torch.bfloat16)
    last = images.contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match=r"^GET was unable to find an engine to execute this computation$"):
        peak(dry, T4, layer, last)
    assert peak(dry, T4, layer, images) > 0
    assert peak(dry, A100, layer, last) > 0


def test_nothing_is_unknown_of_what_torchs_own_kernels_take(dry: Backend) -> None:
    layer = nn.Conv2d(16, 16, 3, dtype=torch.bfloat16)
    images = torch.ones(4, 16, 24, 24, dtype=torch.bfloat16)
    found = []
    for card in (T4, A100):
        scratch.begin()
        peak(dry, card, layer, images)
        found.append(scratch.found().unknown_bytes)
    assert found[0] == 0 < found[1]
