"""``torch.jit.trace`` on the simulated device records what it does elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gpudash.simulator.as_cuda import answering
from gpudash.simulator.device.backend import Backend


class Recurrent(nn.Module):
    """Sequences through an LSTM, sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 8, batch_first=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(batch, length, 4) to (batch, length · 8)."""
        made: torch.Tensor = self.layer(values)[0]
        return made.sort(-1)[0].reshape(values.shape[0], -1)


def images() -> nn.Module:
    """Of 3×8×8, into four classes."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 8, 2, stride=2),
        nn.GroupNorm(2, 8),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 4),
        nn.Softmax(-1),
    )


def recorded(traced: torch.jit.ScriptModule) -> list[str]:
    """Names of the operations that a trace has, in order."""
    return re.findall(r"aten::\w+", str(traced.inlined_graph))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace.*is deprecated:FutureWarning")  # since torch 2.15
@pytest.mark.parametrize(
    ("make", "size"), [(images, (2, 3, 8, 8)), (Recurrent, (2, 5, 4))], ids=["convolutions", "recurrent"]
)
@pytest.mark.parametrize("device", ["sim", "cuda"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_trace_records_the_operations_of_the_cpu_and_computes_its_numbers(
    make: Callable[[], nn.Module], size: tuple[int, ...], device: str, sim: Backend
) -> None:
    torch.manual_seed(0)
    network, values = make().eval(), torch.rand(size)
    of_cpu = torch.jit.trace(network, values)
    expected, operations = of_cpu(values), recorded(of_cpu)
    if device == "cuda":
        answering.answer_for_cuda(sim)
    try:
        network, on_card = network.to(device), values.to(device)
        traced = torch.jit.trace(network, on_card)
        assert recorded(traced) == operations
        torch.testing.assert_close(traced(on_card).cpu(), expected)
    finally:
        answering.end()
