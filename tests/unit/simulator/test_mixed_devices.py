"""Tensors of several devices in one operation: torch's words for CUDA, with the simulated device's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("sim")

HERE, THERE, BESIDE = torch.ones(2, 2), "sim:0", "sim:1"


def there() -> torch.Tensor:
    return torch.ones(2, 2, device=THERE)


def argument(name: str, where: str, common: str, method: str) -> str:
    """torch's words for an argument of one operation."""
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {where}, different from other tensors on "
        f"{common} (when checking argument in method wrapper_SIM_{method})"
    )


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: there() @ HERE,
        argument("mat2", "cpu", "sim:0", "mm"),
    ),
    (
        lambda: HERE @ there(),
        argument("mat2", "sim:0", "cpu", "mm"),
    ),
    (
        lambda: there() @ torch.ones(2, 2, device=BESIDE),
        argument("mat2", "sim:1", "sim:0", "mm"),
    ),
    (
        lambda: torch.nn.functional.linear(there(), HERE, torch.ones(2)),
        argument("mat1", "sim:0", "cpu", "addmm"),
    ),
    (
        lambda: torch.nn.functional.embedding(torch.tensor([0]), there()),
        argument("index", "cpu", "sim:0", "_index_select"),
    ),
    (
        lambda: torch.cat([there(), HERE]),
        argument("tensors", "cpu", "sim:0", "cat"),
    ),
    (
        lambda: torch.nn.functional.cross_entropy(there(), torch.tensor([0, 1])),
        argument("target", "cpu", "sim:0", "nll_loss_forward"),
    ),
    (
        lambda: there() + HERE,
        "Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu!",
    ),
    (
        lambda: HERE.mul(there()),
        "Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu!",
    ),
    (
        lambda: there().add_(torch.ones(2, 2, device=BESIDE)),
        "Expected all tensors to be on the same device, but found at least two devices, sim:0 and sim:1!",
    ),
    (
        lambda: torch.where(there() > 0, HERE, there()),
        "Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu!",
    ),
    (
        lambda: HERE[torch.tensor([0], device=THERE)],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    (
        lambda: there()[torch.tensor([0], device=BESIDE)],
        "indices should be either on cpu or on the same device as the indexed tensor (sim:0)",
    ),
]


@pytest.mark.parametrize(("run", "words"), REFUSED, ids=[words[-40:] for _run, words in REFUSED])
def test_two_devices_are_refused_in_the_words_of_torch(run: Callable[[], Any], words: str) -> None:
    with pytest.raises(RuntimeError) as refusal:
        run()
    assert str(refusal.value) == words


def test_indices_and_single_numbers_may_lie_on_the_cpu() -> None:
    values = torch.arange(4.0, device=THERE)
    assert values[torch.tensor([3, 0])].tolist() == [3, 0]
    values[torch.tensor([1])] = torch.tensor(9.0)
    assert (values * torch.tensor(2.0)).tolist() == [0, 18, 4, 6]
    assert torch.where(values > 5, torch.tensor(0.0), values).tolist() == [0, 0, 2, 3]


def test_lists_of_tensors_may_be_of_several_devices() -> None:
    values = [torch.ones(2, device=THERE), torch.ones(2, device=BESIDE), torch.ones(2)]
    torch._foreach_add_(values, 1.0)
    assert [value.tolist() for value in values] == [[2, 2]] * 3


def test_modules_and_gradients_pass_from_one_device_to_the_next() -> None:
    first, second = torch.nn.Linear(3, 3).to(THERE), torch.nn.Linear(3, 3).to(BESIDE)
    second(first(torch.ones(1, 3, device=THERE)).to(BESIDE)).cpu().sum().backward()
    assert (first.weight.grad.device, second.weight.grad.device) == (torch.device(THERE), torch.device(BESIDE))
