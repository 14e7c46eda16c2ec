"""Runs torch's own operator samples on the CPU and on the simulated GPU, and compares: a child of its test.

    python operator_samples.py FIRST LAST SAMPLES

runs the operators FIRST to LAST (not included) of torch's list with up to SAMPLES samples each (0: all of them), and
writes one JSON object a line: ``{"operator": name}`` when it begins one and then what came of it.

    python -m tests.unit.simulator.operator_samples cuda

with a CUDA build writes what the first sample of each asks of that build's allocator, which
``recorded/operators.json`` keeps.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from gpudash.simulator.device.backend import register, registered
from gpudash.simulator.device.simulated_gpu import SimulatedGpu

DEVICE = "sim:0"
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
TOLERANCE = 1e-4
TOLERANCES = {"nn.functional.scaled_dot_product_attention": 1e-3}
"""Of operators that the CPU does in another order of additions."""

WORKSPACES = 2 * 8_519_680


def on_cpu(value: Any) -> Any:
    """The same argument on the CPU, laid out in its storage as before."""
    if value == torch.device(DEVICE) or value == DEVICE:
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    plain = value.detach()
    storage = plain.untyped_storage().cpu()
    made = torch.empty(0, dtype=value.dtype).set_(storage, plain.storage_offset(), plain.shape, plain.stride())
    return made.requires_grad_(value.requires_grad)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def asked_of_cuda(operator: Any) -> list[int] | None:
    """Sizes that the first sample and its backward pass ask for, in order of size; ``None`` where it cannot run."""
    try:
        given = operator.sample_inputs("cuda", torch.float32, requires_grad=operator.supports_autograd)
        sample = next(iter(given))
        there = sample.input, sample.args, sample.kwargs
        outcome(operator, sample, there)
        torch.cuda.memory._record_memory_history(context=None, clear_history=True)
        outcome(operator, sample, there)
    except (RuntimeError, StopIteration):
        return None
    traces = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return sorted(event["size"] for event in traces if event["action"] == "alloc")


def outcome(operator: Any, sample: Any, arguments: Any) -> tuple[Any, Any]:
    """Result and gradients of one sample."""
    torch.manual_seed(0)
    values, args, kwargs = arguments
    result = operator(values, *args, **kwargs)
    if not operator.supports_autograd:
        return result, []
    shown = sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result
    roots = [tensor for tensor in tensors(shown) if tensor.grad_fn is not None]
    leaves = [tensor for tensor in tensors(arguments) if tensor.requires_grad]
    if not roots or not leaves:
        return result, []
    total = sum((root.abs() if root.is_complex() else root).sum() for root in roots)
    return result, torch.autograd.grad(total, leaves, allow_unused=True)


def home(arguments: Any) -> torch.device:
    """Where the results have to be."""
    asked = arguments[2].get("device")
    if asked is not None:
        return torch.device(asked)
    devices = {leaf.device for leaf in tensors(arguments)}
    return torch.device(DEVICE if torch.device(DEVICE) in devices else "cpu")


def differences(expected: Any, found: Any, device: torch.device, tolerance: float | None) -> Iterator[str]:
    """What is other than expected; numbers are compared within ``tolerance``, if at all."""
    left, right = tree_leaves(expected), tree_leaves(found)
    if [type(leaf) for leaf in left] != [type(leaf) for leaf in right]:
        yield "other kinds of results"
        return
    for one, other in zip(left, right, strict=True):
        if not isinstance(one, torch.Tensor):
            continue
        if other.device != device:
            yield f"a result on {other.device}"
        elif one.shape != other.shape or one.dtype != other.dtype:
            yield f"{other.shape} of {other.dtype} for {one.shape} of {one.dtype}"
        elif tolerance is not None:
            there = other.detach().cpu()
            if not torch.allclose(one.detach(), there, rtol=tolerance, atol=tolerance, equal_nan=True):
                yield f"other numbers, by up to {(one.detach() - there).abs().max()}"


def tried(operator: Any, samples: int) -> dict[str, Any]:
    """What came of one operator: how many samples were compared, and what was refused, wrong or left in memory."""
    report: dict[str, Any] = {"samples": 0, "refused": None, "wrong": None, "left": 0, "asked": None}
    backend = registered()
    assert backend is not None
    card = backend.cards[0]
    tolerance = None if operator.name in UNINITIALISED else TOLERANCES.get(operator.name, TOLERANCE)
    given = operator.sample_inputs(DEVICE, torch.float32, requires_grad=operator.supports_autograd)
    for sample in itertools.islice(given, samples or None):
        there = sample.input, sample.args, sample.kwargs
        try:
            expected = outcome(operator, sample, tree_map(on_cpu, there))
        except (RuntimeError, ValueError):
            continue  # not for the CPU
        before = torch.sim.memory_allocated()
        asked = list[int]()

        def happened(action: str, _address: int, size: int, _stream: int, asked: list[int] = asked) -> None:
            if action == "alloc":
                asked.append(size)

        card.observe(happened)
        try:
            found = outcome(operator, sample, there)
        except (RuntimeError, NotImplementedError) as error:
            report["refused"] = str(error).splitlines()[0]
            continue
        finally:
            card.unobserve(happened)
        if not report["samples"]:
            report["asked"] = sorted(asked)
        draws = 0 < sample.kwargs.get("dropout_p", 0) < 1  # inside of one operation: the CPU draws in another order
        for difference in differences(expected, found, home(there), None if draws else tolerance):
            report["wrong"] = difference
        report["samples"] += 1
        del found
        report["left"] += max(0, torch.sim.memory_allocated() - before) % WORKSPACES
    return report


def tell(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main(first: int, last: int, samples: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register([SimulatedGpu(0, 8 * 2**30)])
    # so that no workspace is taken for something left
    torch.autograd.backward(
        (torch.ones(2, 2, device=DEVICE, requires_grad=True) @ torch.ones(2, 2, device=DEVICE)).sum()
    )
    for operator in op_db[first:last]:
        if torch.float32 not in operator.supported_dtypes("cpu") or operator.name.startswith("jiterator"):
            continue
        name = f"{operator.name} {operator.variant_test_name}".strip()
        tell({"operator": name})
        try:
            report = tried(operator, samples)
        except NotImplementedError as error:
            report = {"samples": 0, "refused": str(error).splitlines()[0], "wrong": None, "left": 0, "asked": None}
        tell(report)
    tell({"operators": len(op_db)})


def record() -> None:
    """Write what torch asks CUDA's allocator for, an operator a line."""
    warnings.simplefilter("ignore")
    on_its_threads = torch.ones(2, 2, device="cuda", requires_grad=True) @ torch.ones(2, 2, device="cuda")
    torch.autograd.backward(on_its_threads.sum())
    found = {}
    for operator in op_db:
        if torch.float32 in operator.supported_dtypes("cpu") and not operator.name.startswith("jiterator"):
            found[f"{operator.name} {operator.variant_test_name}".strip()] = asked_of_cuda(operator)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["cuda"]:
        record()
    else:
        main(*map(int, sys.argv[1:4]))
