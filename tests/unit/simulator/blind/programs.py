"""The training programs of the blind test, written anew from what their authors published.

``build`` is what ``gpudash estimate --callable`` follows. Which run it is stands in the environment: ``BLIND_RUN`` is
the run as JSON, as `runs.json` has it, with ``"drop"``, where its gradients are dropped. It needs torch alone, and of
the libraries what the run used: transformers for a model of `models.json`, torchvision for an image model.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

TOKENS = 128
"""Of the longest text in a batch: all are cut there, and among a batch's texts one that long is all but certain."""
PIXELS = 86
BEFORE, BETWEEN, AFTER = range(3)
"""Gradients are dropped before the forward pass, between it and the backward pass, or after the step."""

Batch = dict[str, torch.Tensor]


def build(device: torch.device) -> Callable[[], None]:
    """The run that the environment names, on ``device``."""
    run = json.loads(os.environ["BLIND_RUN"])
    if "mlp" in run:
        return _perceptron_training(run, device)
    configs = json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
    if run["model"] in configs:
        return _language_training(run, configs[run["model"]], device)
    return _image_training(run, device)


def _language_training(run: Mapping[str, Any], config: Mapping[str, Any], device: torch.device) -> Callable[[], None]:
    """What a step leaves in its variables is there until the next one puts something else into them."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    family = AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else AutoModelForCausalLM
    settings = {name: value for name, value in config.items() if name != "model_type"}
    model = family.from_config(AutoConfig.for_model(config["model_type"], **settings))
    model.train()
    optimizer = _optimizer(run, model)
    model.to(device)
    kept: dict[str, Any] = {}

    def step() -> None:
        if run["drop"] == BEFORE:
            optimizer.zero_grad()
        kept["batch"] = {name: part.to(device) for name, part in _texts(run["batch"]).items()}
        kept["outputs"] = model(**kept["batch"])
        if run["drop"] == BETWEEN:
            optimizer.zero_grad()
        kept["loss"] = kept["outputs"].loss
        kept["loss"].backward()
        optimizer.step()
        if run["drop"] == AFTER:
            optimizer.zero_grad()

    return step


def _texts(count: int) -> Batch:
    """Texts of several lengths, padded to the longest, on the host."""
    tokens = torch.ones(count, TOKENS, dtype=torch.int64)
    mask = torch.ones(count, TOKENS, dtype=torch.int64)
    mask[1:, TOKENS // 2 :] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def _image_training(run: Mapping[str, Any], device: torch.device) -> Callable[[], None]:
    model = _image_model(run["model"])
    model.to(device)
    model.train()
    optimizer = _optimizer(run, model)
    criterion = nn.CrossEntropyLoss()
    kept: dict[str, Any] = {}

    def step() -> None:
        if run["drop"] == BEFORE:
            optimizer.zero_grad()
        kept["inputs"] = torch.ones(run["batch"], 3, PIXELS, PIXELS).to(device)
        kept["labels"] = torch.zeros(run["batch"], dtype=torch.int64).to(device)
        kept["outputs"] = model(kept["inputs"])
        kept["loss"] = criterion(kept["outputs"], kept["labels"])
        if run["drop"] == BETWEEN:
            optimizer.zero_grad()
        kept["loss"].backward()
        optimizer.step()
        kept["best"] = torch.max(kept["outputs"], 1)
        if run["drop"] == AFTER:
            optimizer.zero_grad()

    return step


def _image_model(name: str) -> nn.Module:
    """torchvision's by the run's name for it; the small mobile networks have ten classes, the others a thousand."""
    from torchvision import models

    if name == "MnasNet":
        return models.MNASNet(alpha=1.0, num_classes=10)
    if name.startswith("MobeNetV3"):
        return models.get_model(f"mobilenet_v3_{name.removeprefix('MobeNetV3').lower()}", num_classes=10)
    if name.startswith("RegNet"):
        return models.get_model(f"regnet_{name[6].lower()}_{name[7:].lower()}")
    if name.startswith("ConvNeXt"):
        return models.get_model(f"convnext_{name.removeprefix('ConvNeXt').lower()}")
    if name == "MobileNetV2":
        return models.mobilenet_v2()
    return models.get_model(name.lower())


def _perceptron_training(run: Mapping[str, Any], device: torch.device) -> Callable[[], None]:
    """The model is shown a batch of two while it is summarised, and trained by Adam on random numbers."""
    model = _perceptron(run["mlp"]).to(device)
    classes = run["mlp"]["outputs"]
    model(torch.ones(2, run["mlp"]["inputs"]).to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    kept: dict[str, Any] = {}

    def step() -> None:
        kept["inputs"] = torch.ones(run["batch"], run["mlp"]["inputs"]).to(device)
        kept["labels"] = torch.randint(0, classes, (run["batch"],)).to(device)
        optimizer.zero_grad()
        kept["outputs"] = model(kept["inputs"])
        kept["loss"] = criterion(kept["outputs"], kept["labels"])
        kept["loss"].backward()
        optimizer.step()

    return step


ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}


def _perceptron(asked: Mapping[str, Any]) -> nn.Module:
    """Layers of ``depth``, as wide as the form makes them, and the probabilities of ``outputs`` classes."""
    inputs, outputs, depth, form = asked["inputs"], asked["outputs"], asked["depth"], asked["architecture"]
    widths = [inputs]
    for _ in range(depth + (form == "bottleneck")):
        if form == "uniform":
            widths.append(widths[-1])
        elif form == "gradual":
            widths.append(max(widths[-1] - (inputs - outputs) // depth, outputs))
        else:
            widths.append(max(widths[-1] // 2, outputs))
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(widths):
        layers.append(nn.Linear(inward, outward))
        if asked["batch_norm"]:
            layers.append(nn.BatchNorm1d(outward))
        layers.append(ACTIVATIONS[asked["activation"]]())
        if asked["dropout"]:
            layers.append(nn.Dropout(0.5))
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs), nn.Softmax(dim=1))


def _optimizer(run: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    family = getattr(torch.optim, run["optimizer"])
    made: torch.optim.Optimizer = family(model.parameters(), lr=0.001)
    return made
