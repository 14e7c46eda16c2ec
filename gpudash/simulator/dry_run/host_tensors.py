"""Host tensors without numbers: what a dry run builds on the CPU takes addresses there, but no memory.

A model built on the CPU and then moved would need as much host memory as its weights have bytes, and time to
initialise them. Here its tensors are CPU tensors over untouched pages, and operations on them compute sizes alone.
Small tensors keep their numbers, because the lengths, masks and rates that code reads are small.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_map_only

from gpudash.simulator.device.storage import PINNED, WITHOUT_NUMBERS, lacks_numbers
from gpudash.simulator.dry_run import missing_numbers
from gpudash.simulator.dry_run.missing_numbers import MOST_INTEGERS, is_fractional, tensors_among
from gpudash.simulator.faults import hands_on
from gpudash.simulator.operations.kernels import passed
from gpudash.simulator.operations.operations import Plan

MOST_FLOATS = 4096
"""Number of elements up to which a new floating-point tensor is computed."""

COUNTING = ("randperm", "arange")
"""Operations that are always computed: samplers use them to order data sets of any length."""

_META = torch.device("meta")

_Mode: Any = _python_dispatch.TorchDispatchMode


class HostTensors(_Mode):  # type: ignore[misc]
    """While active, CPU operations on large tensors compute nothing.

    Raises:
        DataDependentError: by an operation whose result is unknown without the numbers.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False; otherwise torch would import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``operation``, on sizes alone if the result would be large or depends on what was not computed."""
        passed.modes += 1
        try:
            return _run(operation, args, kwargs or {})
        finally:
            passed.modes -= 1


class HostCopy(torch.Tensor):
    """A dry run's copy on the CPU: a CPU tensor without numbers, and so are all results computed from it.

    It may be kept, sent back, and used together with tensors that have numbers.
    """

    _plain: torch.Tensor

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def like(sized: torch.Tensor) -> HostCopy:
        """A copy with the sizes and strides of ``sized``."""
        return _copy_of(_without_numbers(sized))

    def data_ptr(self) -> int:
        """Refuse, because the caller would read the memory there.

        Raises:
            DataDependentError: always.
        """
        raise missing_numbers.DataDependentError(f"{missing_numbers.TAKES_OUT}.")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run ``operation`` on sizes alone.

        Raises:
            DataDependentError: its result depends on numbers, or it is written to a tensor with readable numbers.
        """
        kwargs = kwargs or {}
        copies: dict[int, HostCopy] = {}

        def inward(value: Any) -> Any:
            # By identity: an in-place operation returns the tensor it was given, and so the same copy.
            if not isinstance(value, HostCopy):
                return value
            copies[id(value._plain)] = value
            return value._plain

        def outward(value: torch.Tensor) -> torch.Tensor:
            if id(value) in copies:
                return copies[id(value)]
            if _is_plain(value) and lacks_numbers(value):
                return _copy_of(value)
            return value

        plan = _plan(operation)
        # Writing a copy without numbers into a tensor with numbers would silently invalidate those.
        if any(map(_is_plain, _written(plan, args, kwargs))):
            raise missing_numbers.DataDependentError(f"{missing_numbers.COPIES}.")
        inner, named = tree_map_only(torch.Tensor, inward, (tuple(args), dict(kwargs)))
        return tree_map_only(torch.Tensor, outward, _run(operation, inner, named))


def _copy_of(plain: torch.Tensor) -> HostCopy:
    made: HostCopy = torch.Tensor._make_subclass(HostCopy, plain)
    made._plain = plain
    return made


def _as_tensors(operation: Any, args: Sequence[Any]) -> list[Any]:
    """Turn numbers into the tensors that an operation expects: torch passes a tensor that stands for a number on as a
    number, which few operations accept, and passes over the graph of ``torch.jit.trace`` compare such constants.
    """
    wanted = operation._schema.arguments
    return [
        torch.tensor(value) if isinstance(value, int | float) and str(argument.type) == "Tensor" else value
        for value, argument in zip(args, wanted, strict=False)
    ]


@hands_on
def _run(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if not isinstance(operation, torch._ops.OpOverload):
        return operation(*args, **kwargs)
    plan = _plan(operation)
    tensors = list(tensors_among((*args, *kwargs.values())))
    if not tensors:
        args = _as_tensors(operation, args)
    if not all(map(_is_plain, tensors)):
        return _between_devices(plan, operation, args, kwargs)
    # Tensors that share bytes with a view keep their numbers, or their lack of them.
    if plan.is_view or torch.Tag.inplace_view in operation.tags or not _is_the_cpu(kwargs.get("device")):
        return operation(*args, **kwargs)
    if plan.name == "_pin_memory":
        setattr(args[0].untyped_storage(), PINNED, True)
        return args[0]  # it stands for a pinned one
    lacking = any(map(lacks_numbers, tensors))
    work = _make
    if plan.written:
        work = _write
    return work(plan, operation, args, kwargs, lacking)


@hands_on
def _write(plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], lacking: bool) -> Any:
    """Run an operation that writes to its arguments."""
    written = _written(plan, args, kwargs)
    # Small and known: computed, so that lengths and masks stay correct.
    if not lacking and all(map(_is_small, written)):
        return operation(*args, **kwargs)
    returns = operation._schema.returns
    made: Sequence[Any] = ()
    # Sizes are computed only if something new is returned or may be resized.
    if kwargs.keys() & plan.written or any(result.alias_info is None for result in returns):
        sized, likes = _on_sizes(plan, operation, args, kwargs)
        if isinstance(sized, tuple):
            made = sized
        else:
            made = (sized,)
        for tensor, like in likes:
            if tensor.shape != like.shape:
                tensor.resize_(like.shape)
    for tensor in written:
        setattr(tensor.untyped_storage(), WITHOUT_NUMBERS, True)
    given = iter(written)
    results = [
        next(given) if result.alias_info is not None else tree_map_only(torch.Tensor, _without_numbers, made[place])
        for place, result in enumerate(returns)
    ]
    if len(results) == 1:
        return results[0]
    if results:
        return tuple(results)
    return None


@hands_on
def _make(plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], lacking: bool) -> Any:
    """Run an operation whose results are new tensors."""
    # The order of a sampler is needed as numbers, however long it is.
    if plan.name in COUNTING:
        return operation(*args, **kwargs)
    try:
        sized, _likes = _on_sizes(plan, operation, args, kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if not lacking:
            return operation(*args, **kwargs)  # its numbers decide, or it raises an error of its own
        if isinstance(error, NotImplementedError) or missing_numbers.explains(error):
            raise missing_numbers.of_operation(plan.name) from error
        raise
    # No tensor among the results, or small ones with known numbers: computed after all.
    made = list(tensors_among((sized,)))
    if not made or (not lacking and all(map(_is_small, made))):
        return operation(*args, **kwargs)
    result = tree_map_only(torch.Tensor, _without_numbers, sized)
    # An unknown truth value may still have an expected answer (`note_answer`).
    if plan.is_question and isinstance(result, torch.Tensor) and result.dtype is torch.bool:
        missing_numbers.note_answer(plan.name, args, result)
    return result


@hands_on
def _between_devices(plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation that also has tensors of other devices; what it brings to the CPU has no numbers."""
    try:
        return operation(*args, **kwargs)
    except missing_numbers.DataDependentError:
        if plan.name != "copy_" or not _is_plain(args[0]):
            raise
        setattr(args[0].untyped_storage(), WITHOUT_NUMBERS, True)
        return args[0]


@hands_on
def _on_sizes(
    plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The result for tensors without numbers in place of those given, and which replaced which."""
    likes: list[tuple[torch.Tensor, torch.Tensor]] = []

    def like(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
        likes.append((tensor, made))
        return made

    inner = tree_map_only(torch.Tensor, like, tuple(args))
    named = tree_map_only(torch.Tensor, like, dict(kwargs))
    makes = "dtype" in plan.names and "device" in plan.names
    # Factories take the device as an argument; all others follow their operands.
    named.update({"device": _META} if makes else {})
    named.update({name: None for name in ("pin_memory", "generator") if name in named})
    return operation(*inner, **named), likes


def _without_numbers(like: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    setattr(made.untyped_storage(), WITHOUT_NUMBERS, True)
    return made


@functools.cache
def _plan(operation: Any) -> Plan:
    return Plan(operation)


def _written(plan: Plan, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation writes to."""
    given = (*zip(plan.names, args), *kwargs.items())
    return list(tensors_among(value for name, value in given if name in plan.written))


def _is_plain(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    return kind in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _is_the_cpu(device: torch.device | None) -> bool:
    return device is None or torch.device(device).type == "cpu"


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= (MOST_FLOATS if is_fractional(tensor.dtype) else MOST_INTEGERS)
