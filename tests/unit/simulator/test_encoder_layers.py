"""The fast path of attention and encoder layers, and networks laid together for cuDNN: the CPU's results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gpudash.simulator.device.backend import Backend


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    tolerance = 5e-3 if one.dtype == torch.float16 else 1e-5
    torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance)


def masks(kind: str) -> dict[str, torch.Tensor]:
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[1, 9:] = True
    rows = torch.randn(12, 12).gt(0.8) & ~torch.eye(12, dtype=torch.bool)
    return {
        "none": {},
        "padding": {"src_key_padding_mask": padding},
        "rows": {"src_mask": rows},
        "both": {"src_key_padding_mask": padding, "src_mask": rows},
    }[kind]


@pytest.mark.parametrize("kind", ["none", "padding", "rows", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_gives_the_numbers_of_the_cpu(
    kind: str, dtype: torch.dtype, norm_first: bool, sim: Backend
) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first, activation="gelu")
    layer = layer.to(dtype).eval()
    tokens, given = torch.randn(2, 12, 32, dtype=dtype), masks(kind)
    with torch.no_grad():
        expected = layer(tokens, **given)
        there = {name: mask.to("sim") for name, mask in given.items()}
        close(copy.deepcopy(layer).to("sim")(tokens.to("sim"), **there), expected)


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("inputs", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_gives_the_weights_and_numbers_of_the_cpu(
    averaged: bool, inputs: int, dtype: torch.dtype, sim: Backend
) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(32, 4, batch_first=True, dtype=dtype).eval()
    made = [torch.randn(2, 12, 32, dtype=dtype) for _ in range(inputs)]

    def of(one: Any, device: str) -> Any:
        given = [tensor.to(device) for tensor in made]
        return one(*(given * 3 if inputs == 1 else [*given, given[-1]][:3]), average_attn_weights=averaged)

    with torch.no_grad():
        for there, expected in zip(of(copy.deepcopy(attention).to("sim"), "sim"), of(attention, "cpu"), strict=True):
            close(there, expected)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_network_laid_together_keeps_its_numbers_and_learns(kind: Any, sim: Backend) -> None:
    torch.manual_seed(0)
    network = kind(6, 8, 2, batch_first=True, bidirectional=True)
    values = torch.randn(3, 5, 6)
    there = copy.deepcopy(network).to("sim")
    assert len({one.untyped_storage()._cdata for one in there.parameters()}) == 1
    expected, found = network(values)[0], there(values.to("sim"))[0]
    close(found, expected)
    expected.pow(2).sum().backward()
    found.pow(2).sum().backward()
    for one, other in zip(there.parameters(), network.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        close(one.grad, other.grad)
    there.cpu()
    assert all(one.device.type == "cpu" for one in there.parameters())
