"""The weights of a model as a server holds them, for any family that transformers knows: read from the model that it
builds on torch's device ``meta``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from gpudash.memory.serving.served_model import Matrix
from gpudash.simulator.models.building import build
from gpudash.simulator.models.config import ModelConfig

OPTIONS = {"precision": "auto", "attention": "auto", "quantisation": "", "trust_remote_code": False}

ROWS = ("o_proj", "out_proj", "down_proj", "c_proj", "dense", "dense_4h_to_h", "fc2", "wo", "w2")
"""Suffixes of layers that ranks split by their inputs."""

ROUTERS = ("gate", "router", "router.proj", "shared_expert_gate")


def matrices_of(config: ModelConfig) -> tuple[Matrix, ...]:
    """Every parameter of a config's model, each once.

    Raises:
        CannotPredictError: in one sentence, if transformers is missing or does not know the model.
    """
    # The server determines what is packed, and how: the model is built unquantised.
    plain = {name: value for name, value in config.values.items() if name != "quantization_config"}
    model = build(replace(config, values=plain), torch.device("meta"), OPTIONS, places=False)
    return tuple(_matrices(model))


def _matrices(model: nn.Module) -> Iterator[Matrix]:
    output = getattr(model, "get_output_embeddings", lambda: None)()
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) in seen:
                continue
            seen.add(id(weight))
            yield _matrix(f"{path}.{name}".removesuffix(".weight"), module, weight, is_output=module is output)


def _matrix(name: str, module: nn.Module, weight: nn.Parameter, *, is_output: bool) -> Matrix:
    shape = tuple(weight.shape)
    if len(shape) == 2 and (isinstance(module, nn.Embedding) or is_output):
        return Matrix(name, shape[1], shape[0], "vocabulary", quantisable=False)
    if name.endswith(ROUTERS):
        return Matrix(name, 1, weight.numel(), "whole", quantisable=False)
    # The experts of a layer are one parameter: use the outputs and inputs of each.
    if len(shape) == 3 and "experts" in name:
        return Matrix(name, shape[2], shape[1], "rows" if name.endswith(ROWS) else "columns", shape[0])
    if len(shape) == 2 and isinstance(module, nn.Linear):
        return Matrix(name, shape[1], shape[0], "rows" if name.endswith(ROWS) else "columns")
    return Matrix(name, 1, weight.numel(), "whole", quantisable=False)
