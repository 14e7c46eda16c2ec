"""Runs torch's own module samples on the CPU and on the simulated GPU, and compares: a child of its test.

It writes one JSON object a line: ``{"module": name}`` when it begins one, in training or in evaluation, and then
``{"module", "samples", "wrong"}``, how many it compared and what was other than on the CPU.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves, tree_map

from gpudash.simulator.device.backend import register
from gpudash.simulator.device.simulated_gpu import SimulatedGpu

DEVICE = "sim:0"
TOLERANCE = 1e-4


def outcome(info: Any, sample: Any, training: bool, device: str) -> list[torch.Tensor]:
    """Results and gradients of one sample."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad)

    torch.manual_seed(0)
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
    module.train(training).to(device)
    torch.manual_seed(1)
    given = sample.forward_input
    result = module(*tree_map(moved, given.args), **tree_map(moved, given.kwargs))
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    learns = training or not isinstance(module, torch.nn.RNNBase)  # cuDNN's give no gradients in evaluation
    roots = [leaf.sum() for leaf in results if leaf.grad_fn is not None and learns]
    if roots:
        torch.autograd.backward(roots)
    return [*results, *(weight.grad for weight in module.parameters() if weight.grad is not None)]


def differences(expected: list[torch.Tensor], found: list[torch.Tensor]) -> Iterator[str]:
    if len(expected) != len(found):
        yield f"{len(found)} results and gradients for {len(expected)}"
    for one, other in zip(expected, found, strict=False):
        if other.device != torch.device(DEVICE):
            yield f"a result on {other.device}"
        elif not torch.allclose(one.detach(), other.detach().cpu(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            yield "other numbers"


def tried(info: Any, training: bool) -> dict[str, Any]:
    """What came of one module."""
    report: dict[str, Any] = {"samples": 0, "wrong": None}
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": training}
    for sample in info.module_inputs_func(info, **options):
        if sample.forward_input is None:
            continue
        try:
            expected = outcome(info, sample, training, "cpu")
        except (RuntimeError, ValueError):
            continue  # not for the CPU
        report["samples"] += 1
        try:
            for difference in differences(expected, outcome(info, sample, training, DEVICE)):
                report["wrong"] = difference
        except Exception as error:  # any is a difference
            report["wrong"] = f"{type(error).__name__}: {error}"
    return report


def tell(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register([SimulatedGpu(0, 8 * 2**30)])
    for info in module_db:
        for training in (True, False):
            name = f"{info.name} in {'training' if training else 'evaluation'}"
            tell({"module": name})
            tell({"module": name, **tried(info, training)})


if __name__ == "__main__":
    main()
