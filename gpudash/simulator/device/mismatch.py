"""Refuses tensors on different devices in one operation, with torch's error message for CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from gpudash.simulator.device.naming import naming
from gpudash.simulator.device.storage import CPU

INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"))
"""Operations whose CUDA kernels accept indices on the CPU."""

ITERATED = frozenset(
    [
        "add",
        "addcdiv",
        "addcmul",
        "atan2",
        "binary_cross_entropy",
        "bitwise_and",
        "bitwise_left_shift",
        "bitwise_or",
        "bitwise_right_shift",
        "bitwise_xor",
        "clamp",
        "clamp_max",
        "clamp_min",
        "copysign",
        "div",
        "elu_backward",
        "eq",
        "fill",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "gcd",
        "ge",
        "gelu_backward",
        "glu",
        "gt",
        "hardshrink_backward",
        "hardsigmoid_backward",
        "heaviside",
        "hypot",
        "igamma",
        "igammac",
        "index_fill",
        "lcm",
        "le",
        "leaky_relu_backward",
        "lerp",
        "logaddexp",
        "logaddexp2",
        "logical_and",
        "logical_or",
        "logical_xor",
        "logit_backward",
        "lt",
        "masked_fill",
        "max",
        "maximum",
        "min",
        "minimum",
        "mse_loss",
        "mul",
        "ne",
        "nextafter",
        "normal",
        "polar",
        "pow",
        "remainder",
        "rsub",
        "sigmoid_backward",
        "silu_backward",
        "smooth_l1_loss",
        "softplus_backward",
        "softshrink_backward",
        "special_xlog1py",
        "special_zeta",
        "sub",
        "tanh_backward",
        "threshold_backward",
        "where",
        "xlogy",
        "__lshift__",
        "__rshift__",
        "__ilshift__",
        "__irshift__",
    ]
)
"""Operations that CUDA runs through torch's tensor iterator, which raises an error of its own (``device_check:
NoCheck`` and ``TensorIteratorBase`` in torch's native_functions.yaml)."""

COMPOSITE = "CompositeExplicitAutogradNonFunctional"
"""Where torch registers the kernels that it generates for structured operations."""


def run_or_refuse(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation on lists of tensors one by one, as CUDA does for different devices; refuse any other.

    Raises:
        RuntimeError: torch's.
    """
    if operation._schema.name.startswith("aten::_foreach_") and not operation._schema.name.endswith("out"):
        return operation._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    return refuse(operation, args, kwargs)


def refuse(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> NoReturn:
    """Raise torch's error for arguments on different devices.

    Raises:
        RuntimeError: always.
    """
    schema = operation._schema
    name = schema.name.replace("aten::", "")
    tensors = list(_tensors(schema, args, kwargs))
    if name in INDEXING:
        home = next(tensor.device for argument, tensor in tensors if argument == "self")
        if any(argument == "indices" and tensor.device not in (home, CPU) for argument, tensor in tensors):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({home})")
    common = tensors[0][1].device
    if name.rstrip("_") in ITERATED or name in ITERATED:
        common = next((tensor.device for _name, tensor in tensors if tensor.device.type != "cpu"), common)
        other = next(t.device for _name, t in tensors if t.device != common and (t.dim() or t.device.type != "cpu"))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {common} and {other}!"
        )
    argument, tensor = next((argument, tensor) for argument, tensor in tensors if tensor.device != common)
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {tensor.device}, different from "
        f"other tensors on {common} (when checking argument in method {_method(operation, name)})"
    )


def _tensors(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its argument's name, in the order in which CUDA's kernels check them: outputs first."""
    given = dict(zip([argument.name for argument in schema.arguments], args))
    given.update(kwargs)
    outputs: list[str] = [argument.name for argument in schema.arguments if argument.is_out]
    for name in sorted(given, key=lambda name: name not in outputs):
        value = given[name]
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield name, tensor


def _method(operation: Any, name: str) -> str:
    """The name of the CUDA kernel that torch generates (torchgen/dest/register_dispatch_key.py)."""
    overload = operation._schema.overload_name
    full = name
    if any(argument.is_out for argument in operation._schema.arguments):
        full = f"{name}_out"
    if torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), COMPOSITE):
        return f"wrapper_{naming.shown.upper()}_{full}" + (f"_{overload}" if overload else "")
    return f"wrapper_{naming.shown.upper()}_{overload}_{full}"
