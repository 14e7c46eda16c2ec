"""One training step of some of the scripts, for a prediction without a number: ``gpudash estimate --callable``.

What a script keeps from one step to the next is kept here too, as it is in the peak.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

Step = Callable[[], object]


def mnist(device: torch.device) -> Step:
    from mnist import Net

    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    kept: dict[str, Any] = {}

    def step() -> object:
        kept["data"], kept["target"] = torch.randn(64, 1, 28, 28).to(device), torch.randint(0, 10, (64,)).to(device)
        optimizer.zero_grad()
        kept["output"] = model(kept["data"])
        kept["loss"] = functional.nll_loss(kept["output"], kept["target"])
        kept["loss"].backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():  # its batches are larger, and with them the peak
            kept["tested"] = torch.randn(128, 1, 28, 28).to(device), torch.randint(0, 10, (128,)).to(device)
            kept["tested output"] = model(kept["tested"][0])
        model.train()
        return kept["loss"]

    return step


def recurrent(device: torch.device) -> Step:
    from word_language_model import RNNModel, repackage_hidden

    corpus = torch.randint(0, 1000, (20, 281)).t().contiguous().to(device)
    held = torch.randint(0, 1000, (10, 80)).t().contiguous().to(device)
    model = RNNModel("LSTM", 1000, 64, 64, 2, 0.2).to(device)
    kept: dict[str, Any] = {"hidden": model.init_hidden(20), "held": held}

    def step() -> object:
        kept["data"], kept["targets"] = corpus[:35], corpus[1:36].view(-1)
        model.zero_grad()
        kept["hidden"] = repackage_hidden(kept["hidden"])
        kept["output"], kept["hidden"] = model(kept["data"], kept["hidden"])
        kept["loss"] = nn.NLLLoss()(kept["output"], kept["targets"])
        return _by_hand(model, kept["loss"])

    return step


def transformer(device: torch.device) -> Step:
    from word_language_model import TransformerModel

    corpus = torch.randint(0, 1000, (20, 281)).t().contiguous().to(device)
    held = torch.randint(0, 1000, (10, 80)).t().contiguous().to(device)
    model = TransformerModel(1000, 64, 4, 64, 2, 0.2).to(device)
    kept: dict[str, Any] = {"held": held}

    def step() -> object:
        kept["data"], kept["targets"] = corpus[:35], corpus[1:36].view(-1)
        model.zero_grad()
        kept["output"] = model(kept["data"]).view(-1, 1000)
        kept["loss"] = nn.NLLLoss()(kept["output"], kept["targets"])
        return _by_hand(model, kept["loss"])

    return step


def _by_hand(model: nn.Module, loss: torch.Tensor) -> object:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-5.0)
    return loss


def vae(device: torch.device) -> Step:
    from vae import VAE, loss_function

    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept: dict[str, Any] = {}

    def step() -> object:
        kept["data"] = torch.rand(128, 1, 28, 28).to(device)
        optimizer.zero_grad()
        kept["made"] = model(kept["data"])
        kept["loss"] = loss_function(kept["made"][0], kept["data"], *kept["made"][1:])
        kept["loss"].backward()
        optimizer.step()
        return kept["loss"]

    return step


def nanogpt(device: torch.device) -> Step:
    from nanogpt import GPT

    model = GPT(block_size=64)
    model.to(device)
    optimizer = model.configure_optimizers(1e-1, 1e-3, (0.9, 0.95), "cuda")

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 256, (8, 64)).to(device), torch.randint(0, 256, (8, 64)).to(device)

    kept: dict[str, Any] = {"batch": batch()}

    def step() -> object:
        for _micro_step in range(2):
            kept["logits"], loss = model(*kept["batch"])
            kept["loss"] = loss / 2
            del loss
            kept["batch"] = batch()
            kept["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return kept["loss"]

    return step
