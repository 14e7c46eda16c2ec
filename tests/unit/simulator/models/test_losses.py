"""Losses without all logits give the loss and the gradients of the whole one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpudash.simulator.models.losses import step_in_backward, without_logits
from gpudash.simulator.refusal import CannotPredictError

TOKENS, WIDTH, WORDS = 12, 8, 32


class Model(nn.Module):
    """A model of transformers, as far as losses know it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.config = SimpleNamespace(final_logit_softcapping=None)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, head: nn.Module) -> None:
        self.head = head


@pytest.mark.parametrize("kind", ["chunked", "fused"])
def test_a_loss_without_all_logits_has_the_value_and_gradients_of_the_whole_one(kind: str) -> None:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, WORDS, bias=False)
    hidden = torch.randn(2, TOKENS, WIDTH, requires_grad=True)
    labels = torch.randint(WORDS, (2, TOKENS))
    logits = head(hidden)[:, :-1].reshape(-1, WORDS)
    whole = functional.cross_entropy(logits, labels[:, 1:].reshape(-1))
    expected = torch.autograd.grad(whole, (hidden, head.weight))
    parts = without_logits(Model(head), kind)(hidden, labels)
    found = torch.autograd.grad(parts, (hidden, head.weight))
    torch.testing.assert_close(parts, whole)
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other)


def test_a_model_without_logits_is_refused_in_a_sentence() -> None:
    with pytest.raises(CannotPredictError, match="no linear layer that makes logits"):
        without_logits(Model(nn.Conv1d(1, 1, 1)), "fused")


def test_no_gradient_outlives_a_backward_pass_that_updates() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = [weight.detach().clone() for weight in layers.parameters()]
    step_in_backward(layers.parameters(), lambda some: torch.optim.SGD(some, lr=0.1))
    layers(torch.ones(1, 4)).sum().backward()
    assert all(weight.grad is None for weight in layers.parameters())
    assert any(not torch.equal(weight, old) for weight, old in zip(layers.parameters(), before, strict=True))
