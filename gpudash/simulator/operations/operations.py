"""Runs torch's operations on tensors of the simulated device: on the CPU, or on sizes alone in a dry run."""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.memory.predicting.architecture import (
    LT_WORKSPACE_VARIABLE,
    WORKSPACE_CACHE_VARIABLE,
    WORKSPACE_VARIABLE,
    keeps_workspaces,
    lt_workspace_bytes,
    passing_lt_workspace_bytes,
    workspace_bytes,
)
from gpudash.simulator.convolutions.backends import layout_of_convolution
from gpudash.simulator.device import autograd, mismatch
from gpudash.simulator.device.naming import DEVICE, naming
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.storage import AS_ON_CPU, Storages, contiguous, extent
from gpudash.simulator.dry_run import missing_numbers
from gpudash.simulator.dry_run.missing_numbers import DataDependentError, KnownIntegers
from gpudash.simulator.faults import UnsupportedError, hands_on
from gpudash.simulator.operations import batch_norm, temporaries
from gpudash.simulator.operations.outcomes import Fresh, Outcomes, adds_bias_by_lt, one_of_each
from gpudash.simulator.operations.scripts import EMPTY_CACHE, HALVES
from gpudash.simulator.step_work.work_log import WAITS, Exchange, WorkLog

_set = torch.ops.aten.set_.source_Storage_storage_offset
_number = torch.ops.aten._local_scalar_dense
_softmax_alone: Callable[..., torch.Tensor] = torch.ops.aten._softmax
_log_softmax_alone: Callable[..., torch.Tensor] = torch.ops.aten._log_softmax
_embedding_bag_alone: Callable[..., tuple[torch.Tensor, ...]] = torch.ops.aten._embedding_bag
_log_sigmoid_alone: Callable[..., tuple[torch.Tensor, torch.Tensor]] = torch.ops.aten.log_sigmoid_forward
_ctc_loss_backward_alone: Callable[..., torch.Tensor] = torch.ops.aten._ctc_loss_backward
_copysign_alone: Callable[..., torch.Tensor] = torch.ops.aten.copysign
_histc_of_floats: Callable[..., torch.Tensor] = torch.ops.aten.histc
_grouped_mm_alone: Callable[..., torch.Tensor] = torch.ops.aten._grouped_mm

MATRIX_PRODUCTS = frozenset(
    (
        "_addmm_activation",
        "_trilinear",
        "addbmm",
        "addbmm_",
        "addmm",
        "addmm_",
        "addmv",
        "addmv_",
        "baddbmm",
        "baddbmm_",
        "bmm",
        "dot",
        "mm",
        "vdot",
    )
)
"""Operations that CUDA passes to cuBLAS, which allocates its workspace at the first of them."""

PRODUCTS_WITH_BIAS = frozenset(("addmm", "_addmm_activation"))
"""Those that CUDA may pass to cuBLASLt, see `adds_bias_by_lt`."""

PRODUCTS_ONE_BY_ONE = frozenset(("addbmm", "addbmm_"))
"""Those that CUDA runs as one product per matrix of the batch."""

_major, _minor = map(int, torch.__version__.split(".")[:2])
TORCH_VERSION = _major, _minor


class Plan:
    """What the schema of an operation says.

    Attributes:
        names: names of its arguments.
        tensors: the arguments that are single tensors, for which Python may pass a number.
        written: the arguments that it writes to.
        writes_each: whether it changes the numbers of one tensor after the other and returns nothing, as the
            ``_foreach_`` operations of optimizers do.
        returned: the written argument that is its result; ``None`` if the result is new.
        is_view: whether the result shares an argument's bytes, so that only sizes and strides are computed.
        is_matrix_product: whether cuBLAS would run it.
        mixes: whether CUDA accepts some of its tensors on the CPU.
        name: of the operation, without its namespace.
        is_question: whether it returns truth values that a dry run may know, see `missing_numbers.note_answer`.
        script_of: what CUDA's kernel allocates besides its results, if anything; see `temporaries`.
        compute: the function that computes it on the CPU, or its sizes.
    """

    __slots__ = (
        "compute",
        "is_matrix_product",
        "is_question",
        "is_view",
        "mixes",
        "name",
        "names",
        "returned",
        "script_of",
        "tensors",
        "writes_each",
        "written",
    )

    def __init__(self, operation: Any) -> None:
        schema = operation._schema
        self.names: list[str] = [argument.name for argument in schema.arguments]
        self.tensors = frozenset(a.name for a in schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]"))
        self.written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        results = [result.alias_info for result in schema.returns]
        # torch's schemas: "(a)" is an alias that is not written to, such as a view; "(a!)" is one that is
        self.is_view = any(alias is not None and not alias.is_write for alias in results)
        self.returned: str | None = None
        # an operation with one written argument and one result returns that argument itself
        if len(results) == 1 and results[0] is not None and results[0].is_write and len(self.written) == 1:
            self.returned = next(iter(self.written))
        name = schema.name.replace("aten::", "")
        self.name = name
        self.writes_each = name.startswith("_foreach_") and name.endswith("_") and not schema.returns
        outputs = {argument.name for argument in schema.arguments if argument.is_out}
        self.is_question = name in missing_numbers.QUESTIONS and self.written <= outputs
        self.is_matrix_product = name in MATRIX_PRODUCTS
        self.mixes = name in mismatch.INDEXING
        full_name = name
        if schema.overload_name:
            full_name += f".{schema.overload_name}"
        self.script_of = temporaries.writer_of(full_name)
        self.compute = _computing(operation)


class Call:
    """One call of an operation, with its simulated tensors replaced by ones that can be computed with."""

    __slots__ = ("device", "engine", "is_mixed", "pairs", "plan")

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self.engine = engine
        self.plan = plan
        self.device: int | None = None
        self.is_mixed = False
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def inward(self, value: Any, name: str) -> Any:
        """``value`` with each simulated tensor replaced by its stand-in."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, (list, tuple)):
            return [self.inward(item, name) for item in value]
        if isinstance(value, torch.device) and value.type == DEVICE:
            if self.device is None:
                self.device = self.engine.index_of(value)
            return self.engine.stand_in
        if name in self.plan.tensors and type(value) in missing_numbers.NUMBERS:
            return missing_numbers.number_as_tensor(value, self.pairs[0][1] if self.pairs else None)
        return value

    def _tensor(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        device = tensor.device
        if device.type != DEVICE:
            # a scalar tensor on the CPU may be combined with tensors on a GPU, and indices may be on the CPU; nothing
            # else
            if tensor.dim() and not (self.plan.mixes and name == "indices" and device.type in ("cpu", "meta")):
                self.is_mixed = True
            if self.engine.computes:
                return tensor
            return tensor.to("meta")
        if self.device is None:
            self.device = device.index
        elif self.device != device.index:
            self.is_mixed = True
        if name in self.plan.written:
            # an argument that is passed twice must have one stand-in, or what is written to the first would be lost
            for known, like in self.pairs:
                if known is tensor:
                    return like
        like = self.engine.like(tensor)
        self.pairs.append((tensor, like))
        return like

    def outward(self, value: Any) -> Any:
        """A result with every tensor moved to the simulated device."""
        if isinstance(value, torch.Tensor):
            # an operation that returns its argument returns the same object, as on CUDA
            for tensor, like in self.pairs:
                if value is like:
                    return tensor
            return self.engine.adopted(value, self.device or 0)
        if isinstance(value, (list, tuple)):
            if isinstance(value, list):
                return list(map(self.outward, value))
            return tuple(map(self.outward, value))
        return value


class Engine:
    """Runs operations for all simulated cards of the process.

    Args:
        cards: the cards, by index.
        computes: whether numbers are computed; otherwise sizes only.

    Attributes:
        trusting: in a run without numbers, whether reading a number returns 0 instead of an error: for code known not
            to depend on it.
        current: index of the device that ``device="sim"`` stands for.
        on_copied_in: called with the `Block` of a tensor that receives numbers from another device.
        integers: in a run without numbers, the known ones; ``None`` if none are needed.
        dropout_states: states of cuDNN's dropout generator by card index; they live as long as the cards.
        echoes: in a run without numbers, whether a copy to the CPU leaves the target's contents unchanged: for code
            that gets back what it sent.
    """

    def __init__(self, cards: Sequence[SimulatedGpu], *, computes: bool = True) -> None:
        self.cards = list(cards)
        self.storages = Storages()
        self.computes = computes
        self.trusting = False
        self.current = 0
        self.stand_in = torch.device("cpu" if computes else "meta")
        self.on_copied_in: list[Callable[[Any], None]] = []
        self.echoes = False
        self.dropout_states: dict[int, torch.Tensor] = {}
        self._plans: dict[Any, Plan] = {}
        self._workspaces: dict[tuple[int, bool], torch.UntypedStorage] = {}
        self._lt_workspaces: dict[tuple[int, bool], torch.UntypedStorage] = {}
        self._outcomes = Outcomes()
        self.integers: KnownIntegers | None = None

    def replace(self, cards: Sequence[SimulatedGpu]) -> None:
        """Replace the current cards with others.

        In a dry run, whatever is left on the current cards, such as in a reference cycle or a cache, stays theirs.

        Raises:
            ValueError: in one sentence, if one of them holds memory, unless in a dry run.
        """
        # first, since the workspaces are blocks of the cards being removed
        self.drop_workspaces()
        if self.computes:
            self._refuse_if_held()
        for card in self.cards:
            card.leave()
        self.cards[:] = cards
        self.current = 0

    def _refuse_if_held(self) -> None:
        if any(map(_held, self.cards)):
            gc.collect()  # objects held only by reference cycles are not in use
        for card in self.cards:
            if held := _held(card):
                raise ValueError(f"{DEVICE}:{card.index} still holds {held} bytes, so that it cannot be replaced.")

    def index_of(self, device: torch.device | None) -> int:
        """The index that a device of this type stands for: the current device's if it has none."""
        if device is None or device.index is None:
            return self.current
        return device.index

    def card(self, index: int) -> SimulatedGpu:
        """The card of ``sim:index``.

        Raises:
            RuntimeError: there is none.
        """
        if index >= len(self.cards):
            count = len(self.cards)
            raise RuntimeError(
                f"There is no {naming.shown}:{index}: {'one GPU is' if count == 1 else f'{count} GPUs are'} simulated."
            )
        return self.cards[index]

    def empty_strided(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, index: int) -> torch.Tensor:
        """A new tensor; sizes and strides in elements."""
        storage = self.storages.new(self.card(index), extent(size, stride) * dtype.itemsize)
        if self.integers is not None:
            self.integers.prepare(storage, extent(size, stride), dtype)
        return self.storages.tensor(storage, size, stride, 0, dtype)

    def empty(
        self, size: Sequence[int], dtype: torch.dtype, index: int, memory_format: torch.memory_format | None
    ) -> torch.Tensor:
        """A new tensor in a memory format.

        Raises:
            RuntimeError: torch's, for a negative size.
        """
        # rare cases are left to torch, including errors; computing the strides of a contiguous tensor here is faster
        if memory_format in (torch.channels_last, torch.channels_last_3d) or any(length < 0 for length in size):
            stride = list(torch.empty(size, device="meta", memory_format=memory_format).stride())
        else:
            stride = contiguous(size)
        return self.empty_strided(size, stride, dtype, index)

    def run_boxed(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """`run`, with the signature that torch uses for the fallback kernel."""
        return self.run(operation, args, kwargs)

    @hands_on
    def run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run ``operation`` as the fallback kernel, for operations that have none of their own."""
        plan = self._plans.get(operation)
        if plan is None:
            plan = self._plans[operation] = Plan(operation)
        # no bytes are touched: torch's CPU kernel computes sizes and strides, and the storage stays the same
        if plan.is_view:
            return operation.redispatch(AS_ON_CPU, *args, **kwargs)
        if plan.script_of is not None:
            result = self._followed(plan, operation, args, kwargs)
        else:
            result = self._results(plan, operation, args, kwargs)
            # after the result is allocated, as in Blas.cpp: cuBLAS requests its workspace when it multiplies
            if plan.is_matrix_product:
                self._take_workspaces(plan, args, kwargs, result)
        return result

    @property
    def work_log(self) -> WorkLog | None:
        """The log of what is done; ``None`` if nothing is logged."""
        return self._outcomes.log

    @work_log.setter
    def work_log(self, log: WorkLog | None) -> None:
        self._outcomes.log = log

    def count(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Count a call of an operation that has its own kernel, which `run` does not see."""
        if self.work_log is not None:
            self.work_log.note_call(operation, args, kwargs, result)

    def counting(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """``kernel`` of the operation ``name``, with its calls counted like those of other operations."""
        operation = getattr(torch.ops.aten, name).default

        def run(*args: Any, **kwargs: Any) -> Any:
            made = kernel(*args, **kwargs)
            self.count(operation, args, kwargs, made)
            return made

        return run

    def note_wait(self) -> None:
        """Record that the host waits for the device, as for a number."""
        if self.work_log is not None:
            self.work_log.note(WAITS)

    def note_exchange(self, size: int) -> None:
        """Record that ranks exchange ``size`` bytes, as in an all-reduce."""
        if self.work_log is not None:
            self.work_log.note(Exchange(size))

    def note_copy(self, source: torch.Tensor, target: torch.Tensor, *, non_blocking: bool = False) -> None:
        """Record a copy with one or both sides on a card."""
        if self.work_log is not None:
            self.work_log.note_copy(source, target, non_blocking=non_blocking)

    @hands_on
    def _counted(self, plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation whose sizes depend on known integers.

        Raises:
            DataDependentError: they are unknown.
        """
        assert self.integers is not None
        if plan.name in missing_numbers.BY_MASKS and (places := self.integers.places(args[1])) is not None:
            return operation(args[0], places, *args[2:], **kwargs)
        if plan.name == "masked_select" and (places := self.integers.places([args[1].expand(_broadcast(args))])):
            return torch.ops.aten.index(args[0].expand(_broadcast(args)), places)
        values = None
        if not plan.written:
            values = self.integers.computed(plan, args, kwargs)
        if values is None and plan.name == "nonzero":
            values = self.integers.picked(args[0])
        if values is None and plan.name == missing_numbers.SUPPRESSION:
            positions = self.integers.picked(args[1])
            if positions is not None:
                values = positions[:, 0]
        if values is None:
            raise missing_numbers.of_operation(plan.name)
        return tree_map_only(torch.Tensor, self._given, values)

    def _given(self, values: torch.Tensor) -> torch.Tensor:
        if values.device.type == DEVICE:
            return values
        made = self.empty_strided(values.shape, values.stride(), values.dtype, self.current)
        return self.copy(values, made)

    def _results(self, plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.computes:
            result = self._work(plan, operation, args, kwargs)
            if self.work_log is not None:
                self.work_log.note_call(operation, args, kwargs, result)
            return result
        work = functools.partial(self._work, plan, operation, args, kwargs)
        # a result also depends on the device that `device="sim"` stands for and on the default dtype
        where = self.current, torch.get_default_dtype()
        try:
            result = self._outcomes.call(work, self._made, operation, args, kwargs, where)
        except DataDependentError:
            if self.integers is None:
                raise
            result = self._counted(plan, operation, args, kwargs)
            # only the device knows the result's size, as for `nonzero`, so torch waits for it
            if self.work_log is not None:
                self.work_log.note_call(operation, args, kwargs, result)
                self.work_log.note(WAITS)
        # even if the outcome was known: the numbers differ at every call
        if self.integers is not None:
            self.integers.follow(plan, args, kwargs, result)
        if plan.is_question and isinstance(result, torch.Tensor) and result.dtype is torch.bool:
            missing_numbers.note_answer(plan.name, args, result)
        return result

    def _followed(self, plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results of an operation whose kernel allocates memory of its own, according to its script."""
        given = {**dict(zip(plan.names, args)), **kwargs}
        card = self.card(self._device_of(given.values()))
        assert plan.script_of is not None
        result: Any = None
        taken = list[Any]()
        # a script in the order of the kernel's source: a positive number allocates bytes, a negative one frees the
        # n-th block, and at 0 the results are allocated
        for step in plan.script_of(given, card.architecture):
            if step > 0:
                taken.append(self.room(step, card.index))
            elif step == EMPTY_CACHE:
                card.empty_cache()
            elif step < 0:
                taken[-step - 1] = None
            else:
                result = self._results(plan, operation, args, kwargs)
        if plan.is_matrix_product:
            self._take_workspaces(plan, args, kwargs, result)
        # in reverse order, as C++ destroys local variables
        while taken:
            taken.pop()
        return result

    def room(self, size: int, index: int) -> torch.UntypedStorage | None:
        """Workspace of ``size`` bytes on a card, freed when it is dropped; ``None`` for none."""
        if not size:
            return None
        card = self.card(index)
        made = self.storages.new(card, size)
        self._label_workspace(card, made)
        return made

    def _device_of(self, values: Iterable[Any]) -> int:
        """Index of the simulated device of the first tensor that is on one."""
        for value in values:
            inner: Iterable[Any] = (value,)
            if isinstance(value, (list, tuple)):
                inner = value
            for one in inner:
                if isinstance(one, torch.Tensor) and one.device.type == DEVICE:
                    return int(one.device.index)
        return self.current

    def _label_workspace(self, card: SimulatedGpu, storage: torch.UntypedStorage) -> None:
        block = self.storages.block(storage)
        if block is not None:
            card.label(block.address, WORKSPACE)

    def _made(self, fresh: Fresh) -> torch.Tensor:
        storage = self.storages.new(self.card(fresh.card), fresh.stored_bytes)
        return self.storages.tensor(storage, fresh.size, fresh.stride, fresh.offset, fresh.dtype)

    @hands_on
    def _work(self, plan: Plan, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        call = Call(self, plan)
        inward = call.inward
        if plan.writes_each and not self.computes:
            args = one_of_each(args)
        inner = [inward(value, name) for value, name in zip(args, plan.names)]
        named = {name: inward(value, name) for name, value in kwargs.items()}
        if call.is_mixed:
            return mismatch.run_or_refuse(operation, args, kwargs)
        index = call.device
        if index is None:
            index = self.current
        card = self.card(index)
        try:
            result = plan.compute(*inner, **named)
        except RuntimeError as error:
            if self.computes or not (isinstance(error, NotImplementedError) or missing_numbers.explains(error)):
                raise
            raise missing_numbers.of_operation(plan.name) from error
        # before the result is returned: resized tensors must have their bytes by then
        if plan.written:
            self._follow(call)
        if plan.returned is not None:
            place = plan.names.index(plan.returned)
            if place < len(args):
                result = args[place]
            else:
                result = kwargs[plan.returned]
        else:
            result = call.outward(result)
        card.timed(began)
        return result

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor to compute with that shares the bytes of ``tensor``; in a dry run, one without bytes."""
        if not self.computes:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        else:
            host = self.storages.host(tensor.untyped_storage())
            made = torch.empty(0, dtype=tensor.dtype)
            made.set_(host, tensor.storage_offset(), tensor.shape, tensor.stride())
        # conjugation and negation are bits of a tensor that torch evaluates lazily: the stand-in needs them as well
        if tensor.is_conj():
            made = torch._conj(made)
        if tensor.is_neg():
            made = torch._neg_view(made)
        return made

    def adopted(self, result: torch.Tensor, index: int) -> torch.Tensor:
        """Move a tensor that the CPU computed, or one of sizes only, to device ``index``."""
        if result.layout is not torch.strided or result.is_quantized:
            if result.is_quantized:
                kind = "quantized"
            else:
                kind = str(result.layout).replace("torch.", "")
            raise UnsupportedError(f"A simulated GPU keeps no {kind} tensors; use device='cpu' for them.")
        # a new tensor on the device has no such bits: they are resolved here
        if result.is_conj():
            result = result.resolve_conj()
        if result.is_neg():
            result = result.resolve_neg()
        if self.computes:
            storage = self._adopted_storage(result.untyped_storage(), index)
        else:
            # the storage may be larger than the result: some losses are reduced within it
            storage = self.storages.new(self.card(index), result.untyped_storage().nbytes())
        return self.storages.tensor(storage, result.shape, result.stride(), int(result.storage_offset()), result.dtype)

    def _adopted_storage(self, host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
        size = host.nbytes()
        if not size:
            return self.storages.new(self.card(index), 0)
        return self.storages.known(index, host) or self.storages.new(self.card(index), size, host)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Copy between any two devices, at least one of them simulated.

        Raises:
            DataDependentError: in a dry run, if the target is on the CPU, where it could be read.
        """
        # before the copy, so that callbacks see the target as it was created
        if target.device.type == DEVICE and source.device != target.device:
            block = self.storages.block(target.untyped_storage())
            for callback in self.on_copied_in if block is not None else ():
                callback(block)
        if self.computes:
            if target.device.type == DEVICE:
                self.like(target).copy_(self.like(source) if source.device.type == DEVICE else source)
            else:
                target.copy_(self.like(source))
        elif self.integers is not None and self.integers.copied(source, target):
            pass
        elif target.device.type not in (DEVICE, "meta"):
            if not self.trusting and not missing_numbers.only_keeps():
                raise DataDependentError(f"{missing_numbers.COPIES}.")
            if not self.echoes:
                target.zero_()
        return target

    def copied(self, tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
        """A copy in a memory format, which counts as workspace; ``tensor`` itself if it already has that format."""
        if tensor.device.type != DEVICE or tensor.is_contiguous(memory_format=layout):
            return tensor
        made = self.empty(tensor.shape, tensor.dtype, tensor.device.index, layout)
        self._label_workspace(self.card(tensor.device.index), made.untyped_storage())
        self.note_copy(tensor, made)
        return self.copy(tensor, made)

    def resize(
        self, tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
    ) -> torch.Tensor:
        """``tensor.resize_``: allocates a larger storage if the old one is too small, as on CUDA."""
        offset = int(tensor.storage_offset())
        if memory_format in (None, torch.contiguous_format, torch.preserve_format):
            stride = contiguous(size)
        else:
            stride = list(torch.empty(size, device="meta", memory_format=memory_format).stride())
        # torch never shrinks a storage: a smaller tensor keeps its bytes
        needed = (extent(size, stride) + offset) * tensor.dtype.itemsize
        storage = tensor.untyped_storage()
        if needed > storage.nbytes():
            old = self.storages.block(storage)
            storage = self.storages.new(self.card(tensor.device.index), needed)
            new = self.storages.block(storage)
            if old is not None and old.host is not None and new is not None and new.host is not None:
                # the old contents stay, as far as they reach
                length = min(old.host.nbytes(), needed)
                _bytes(new.host)[:length].copy_(_bytes(old.host)[:length])
        _set.redispatch(AS_ON_CPU, tensor, storage, offset, list(size), stride)
        return tensor

    def number(self, tensor: torch.Tensor) -> Any:
        """``tensor.item()``.

        Raises:
            DataDependentError: in a dry run.
        """
        self.note_wait()
        if self.computes:
            return _number(self.like(tensor))
        known = None
        if self.integers is not None:
            known = self.integers.of(tensor)
        if known is not None:
            return _number(known)
        if self.trusting:
            if tensor.dtype.is_floating_point:
                return 0.0
            return 0
        answer = missing_numbers.for_known_code()
        if answer is None:
            raise DataDependentError(f"{missing_numbers.READS}.")
        return answer

    def _take_workspaces(self, plan: Plan, args: Sequence[Any], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        """Allocate what a matrix product needs, once the result and its copies are allocated."""
        card = self.card(result.device.index or 0)
        by_lt = False
        if plan.name in PRODUCTS_WITH_BIAS:
            given = {**dict(zip(plan.names, args)), **kwargs}
            by_lt = adds_bias_by_lt(given, result, activates=plan.name == "_addmm_activation")
        products = 1
        if plan.name in PRODUCTS_ONE_BY_ONE:
            products = args[1].shape[0]
        self.take_product_workspaces(card, products, by_lt=by_lt)

    def take_product_workspaces(self, card: SimulatedGpu, products: int = 1, *, by_lt: bool = False) -> None:
        """Allocate what cuBLAS, or cuBLASLt, needs for so many matrix products, one after another."""
        size = workspace_bytes(os.environ.get(WORKSPACE_VARIABLE), card.architecture.capability, TORCH_VERSION)
        for_lt = os.environ.get(LT_WORKSPACE_VARIABLE)
        if keeps_workspaces(os.environ.get(WORKSPACE_CACHE_VARIABLE), TORCH_VERSION):
            self._keep_workspace(self._workspaces, card, size)
            if by_lt:
                self._keep_workspace(self._lt_workspaces, card, lt_workspace_bytes(for_lt, size, TORCH_VERSION))
            return
        for _ in range(products):  # each allocates a workspace and frees it before the next starts
            self.room(passing_lt_workspace_bytes(for_lt) if by_lt else size, card.index)

    def _keep_workspace(
        self, kept: dict[tuple[int, bool], torch.UntypedStorage], card: SimulatedGpu, size: int
    ) -> None:
        """Allocate a library's workspace, as the first matrix product in a thread does, and keep it.

        CUDA's backward passes have a thread, and therefore a workspace, of their own.
        """
        # one for each thread that multiplies: the program's, and the autograd engine's for this card
        place = card.index, autograd.goes_backward()
        if size and place not in kept:
            kept[place] = self.storages.new(card, size, label=WORKSPACE)

    def drop_workspaces(self) -> None:
        """Free what libraries keep: cuBLAS's workspaces and cuDNN's states."""
        self.drop_cublas_workspaces()
        self.dropout_states.clear()

    def drop_cublas_workspaces(self) -> None:
        """Free cuBLAS's workspaces."""
        self._workspaces.clear()
        self._lt_workspaces.clear()

    def _follow(self, call: Call) -> None:
        """Give written tensors the sizes, strides and bytes that their stand-ins now have."""
        for tensor, like in call.pairs:
            if like.shape == tensor.shape and like.stride() == tensor.stride():
                continue
            storage = tensor.untyped_storage()
            if self.computes:
                host = like.untyped_storage()
                if host.nbytes() > storage.nbytes():
                    storage = self.storages.new(self.card(tensor.device.index), host.nbytes(), host)
            else:
                needed = (extent(like.shape, like.stride()) + int(like.storage_offset())) * like.dtype.itemsize
                if needed > storage.nbytes():
                    storage = self.storages.new(self.card(tensor.device.index), needed)
                    if self.integers is not None:
                        self.integers.prepare(storage, like.numel(), like.dtype)
            _set.redispatch(AS_ON_CPU, tensor, storage, like.storage_offset(), list(like.shape), list(like.stride()))


def _broadcast(tensors: Sequence[torch.Tensor]) -> Any:
    shapes: Any = torch.broadcast_shapes
    return shapes(*(tensor.shape for tensor in tensors))


def _held(card: SimulatedGpu) -> int:
    return card.statistics()["allocated_bytes.all.current"]


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _computing(operation: Any) -> Callable[..., Any]:
    """The function that computes ``operation``: itself, unless it, or its overload packet, has a substitute."""
    schema = operation._schema
    name = schema.name.replace("aten::", "")
    compute: Callable[..., Any] = _SUBSTITUTES.get(f"{name}.{schema.overload_name}") or _SUBSTITUTES.get(
        name, operation._op
    )
    if torch.Tag.pointwise in operation.tags and not schema.is_mutable and name != "clone":
        return _contiguous_if_all_are(compute)
    return compute


def _contiguous_if_all_are(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A pointwise operation whose result is contiguous if its operands are and have its shape.

    On CUDA this decides about sizes like (N, C, 1, 1), whose strides fit either layout (``compute_fast_setup_type``,
    aten/src/ATen/TensorIterator.cpp); tensors without bytes keep the strides instead.
    """

    def computed(*args: Any, **named: Any) -> Any:
        made = compute(*args, **named)
        if not isinstance(made, torch.Tensor) or not made.is_meta or not made.is_contiguous():
            return made
        operands = [one for one in (*args, *named.values()) if isinstance(one, torch.Tensor)]
        if all(one.shape == made.shape and one.is_contiguous() for one in operands):
            return torch.empty(made.shape, dtype=made.dtype, device="meta")
        return made

    return computed


def _rms_norm_backward(
    grad: torch.Tensor,
    values: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of ``y = x · rstd · weight`` with ``rstd = (mean(x²) + ε)^-1/2`` over the last dimensions."""
    axes = list(range(values.dim() - len(normalized_shape), values.dim()))
    outer = list(range(values.dim() - len(normalized_shape)))
    normal = values.to(rstd.dtype) * rstd
    inner = grad.to(rstd.dtype)
    for_weight = None
    if output_mask[1] and weight is not None:
        product = inner * normal
        if outer:
            product = product.sum(outer)
        for_weight = product.to(weight.dtype)
    if not output_mask[0]:
        return None, for_weight
    if weight is not None:
        inner = inner * weight.to(rstd.dtype)
    for_values = rstd * (inner - normal * (inner * normal).mean(axes, keepdim=True))
    return for_values.to(values.dtype), for_weight


def _softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Softmax; with ``half_to_float`` the float32 one of a float16 tensor."""
    wide = tensor
    if half_to_float:
        wide = tensor.float()
    return _softmax_alone(wide, dim, False)


def _log_softmax(tensor: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Logarithm of `softmax`."""
    wide = tensor
    if half_to_float:
        wide = tensor.float()
    return _log_softmax_alone(wide, dim, False)


def _grouped_mm(one: torch.Tensor, other: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """Products of groups of rows; also for float32 and float16, which CUDA multiplies one after another (``mm_out``),
    and whose sizes torch does not compute."""
    if one.device.type != "meta" or one.dtype not in (torch.float32, torch.float16):
        return _grouped_mm_alone(one, other, *args, **named)
    made = _grouped_mm_alone(one.bfloat16(), other.bfloat16(), *args, **named)
    return torch.empty_strided(made.shape, made.stride(), dtype=one.dtype, device="meta")


def _embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *args: Any, **named: Any
) -> tuple[torch.Tensor, ...]:
    """Bags, and what CUDA saves for the backward pass in any mode: the bag of each index, and a size for each offset
    (EmbeddingBag.cu). The CPU omits what it does not need."""
    made, bags, sizes, largest = _embedding_bag_alone(weight, indices, offsets, *args, **named)
    if weight.device.type == "meta":
        return made, bags, sizes, largest
    places = torch.arange(len(indices), dtype=offsets.dtype)
    bags = torch.searchsorted(offsets, places, right=True).to(indices.dtype) - 1
    counts = torch.zeros_like(offsets)
    counts[: len(sizes)] = sizes[: len(counts)]
    # only bags that take a maximum save where it was
    if largest.dim() != 2:
        largest = indices.new_empty(0)
    return made, bags, counts, largest


Normalisation = Callable[..., tuple[torch.Tensor, ...]]


def _with_wide_statistics(normalise: Normalisation) -> Normalisation:
    """A normalisation whose statistics for half precision are float32 as on CUDA (``toAccumulateType``)."""

    def compute(*args: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        made, *statistics = normalise(*args, **named)
        wide = []
        for one in statistics:
            if one.dtype in HALVES:
                one = one.float()
            wide.append(one)
        return made, *wide

    return compute


def _with_narrow_statistics(backward: Callable[..., Any], weight: int, first: int) -> Callable[..., Any]:
    """The backward pass of one. The CPU expects them in the dtype of the weights, or of the values if there are none.

    Args:
        weight: index of the weights among its arguments.
        first: index of the first of both statistics.
    """

    def compute(*args: Any, **named: Any) -> Any:
        given = list(args)
        values = args[1]
        wanted = values.dtype
        if given[weight] is not None:
            wanted = given[weight].dtype
        if values.dtype in HALVES and values.device.type == "cpu":
            given[first : first + 2] = (one if one is None else one.to(wanted) for one in given[first : first + 2])
        return backward(*given, **named)

    return compute


def _log_sigmoid(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Like the CPU's, which keeps a buffer for the backward pass; CUDA keeps none (Loss.cpp,
    `log_sigmoid_forward`)."""
    made, buffer = _log_sigmoid_alone(tensor)
    return made, buffer.new_empty(0)


def _log_sigmoid_backward(grad: torch.Tensor, tensor: torch.Tensor, _buffer: torch.Tensor, **out: Any) -> torch.Tensor:
    _, buffer = _log_sigmoid_alone(tensor)
    made: torch.Tensor = torch.ops.aten.log_sigmoid_backward(grad, tensor, buffer, **out)
    return made


def _ctc_loss_backward(grad: torch.Tensor, chances: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """The gradient of the log-probabilities, whose sizes torch does not compute."""
    if chances.device.type == "meta":
        return torch.empty_like(chances, memory_format=torch.contiguous_format)
    return _ctc_loss_backward_alone(grad, chances, *args, **named)


def _copysign(tensor: torch.Tensor, other: torch.Tensor, **out: torch.Tensor) -> torch.Tensor:
    """``tensor`` with the signs of ``other``, which may be a CPU scalar; torch needs that among the sizes too."""
    return _copysign_alone(tensor, other.to(tensor.device), **out)


def _histc(tensor: torch.Tensor, *args: Any, **out: torch.Tensor) -> torch.Tensor:
    """A histogram, also for integers, which CUDA supports and the CPU does not."""
    if tensor.is_floating_point() or out:
        return _histc_of_floats(tensor, *args, **out)
    return _histc_of_floats(tensor.double(), *args).to(tensor.dtype)


def _softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of `softmax` with respect to its argument of ``dtype``."""
    made: torch.Tensor = torch.ops.aten._softmax_backward_data(grad, result, dim, grad.dtype)
    return made.to(dtype)


def _log_softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of `log_softmax` with respect to its argument of ``dtype``."""
    made: torch.Tensor = torch.ops.aten._log_softmax_backward_data(grad.contiguous(), result, dim, grad.dtype)
    return made.to(dtype)


def _convolution(values: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    """A convolution; when computing sizes alone the result has cuDNN's layout, as torch's own is always contiguous."""
    made: torch.Tensor = torch.ops.aten.convolution.default(values, weight, *rest)
    if not made.is_meta:
        return made
    return torch.empty_like(made, memory_format=layout_of_convolution(values, weight))


def _convolution_backward(
    grad: torch.Tensor, values: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of `convolution`, in cuDNN's layout (``cudnn_convolution_backward``, ConvShared.cpp)."""
    made: tuple[torch.Tensor | None, ...] = torch.ops.aten.convolution_backward.default(grad, values, weight, *rest)
    if not grad.is_meta:
        return made
    layouts = layout_of_convolution(grad, weight), layout_of_convolution(values, grad)
    laid = (
        one if one is None else torch.empty_like(one, memory_format=layout)
        for one, layout in zip(made, layouts, strict=False)
    )
    return *laid, made[2]


def _in_wide(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product of half-precision factors with a float32 result (``out_dtype``), for which only CUDA has a kernel: it
    accumulates in float32 anyway, and skips the final rounding."""

    def multiplied(*factors_and_dtype: Any, **named: Any) -> torch.Tensor:
        *factors, dtype = factors_and_dtype
        return multiply(*(factor.to(dtype) for factor in factors), **named)

    return multiplied


def _fused_sgd(weights: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
    """A step of SGD, which needs no further memory."""
    if not weights[0].is_meta:
        torch.ops.aten._fused_sgd_(weights, *args, **kwargs)


def _loss_in_room(loss: Any) -> Callable[..., torch.Tensor]:
    """A loss whose reduced result keeps the storage of the elementwise losses, as in torch (Loss.cpp)."""

    def made(tensor: torch.Tensor, target: torch.Tensor, reduction: int = 1, *rest: Any, **named: Any) -> torch.Tensor:
        result: torch.Tensor = loss(tensor, target, reduction, *rest, **named)
        if not reduction or not tensor.is_meta:
            return result
        sizes = torch.broadcast_shapes(tensor.shape, target.shape)  # type: ignore[no-untyped-call]
        return torch.empty(sizes, dtype=result.dtype, device="meta").as_strided((), ())

    return made


def _binary_cross_entropy(
    tensor: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """Another loss whose reduced result keeps the storage of the elementwise losses (Loss.cu)."""

    def loss(tensor: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten.binary_cross_entropy.default(tensor, target, weight, reduction)
        return made

    return _loss_in_room(loss)(tensor, target, reduction)


def _col2im(tensor: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """``fold``: CUDA allocates its result as large as its input, and shrinks it (Col2Im.cu)."""
    made: torch.Tensor = torch.ops.aten.col2im.default(tensor, *args, **named)
    if not made.is_meta or made.numel() > tensor.numel():
        return made
    room = torch.empty(tensor.numel(), dtype=made.dtype, device="meta")
    return room.as_strided(made.shape, made.stride())


def _logcumsumexp(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    """Like the original, but also for sizes alone, which torch does not compute."""
    if tensor.is_meta:
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)
    made: torch.Tensor = torch.ops.aten._logcumsumexp.default(tensor, *args)
    return made


def _into_given(operation: Any) -> Callable[..., None]:
    """An in-place operation whose sizes torch does not compute: there is nothing to allocate."""

    def write(tensor: torch.Tensor, *args: Any) -> None:
        if not tensor.is_meta:
            operation(tensor, *args)

    return write


_SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "_ctc_loss_backward": _ctc_loss_backward,
    "_cummax_helper": _into_given(torch.ops.aten._cummax_helper.default),
    "_cummin_helper": _into_given(torch.ops.aten._cummin_helper.default),
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "log_sigmoid_forward": _log_sigmoid,
    "native_batch_norm": batch_norm.without_unused_statistics(_with_wide_statistics(torch.ops.aten.native_batch_norm)),
    "native_batch_norm_backward": batch_norm.laid_as_on_cuda(
        _with_narrow_statistics(torch.ops.aten.native_batch_norm_backward, 2, 5)
    ),
    "native_layer_norm": _with_wide_statistics(torch.ops.aten.native_layer_norm),
    "native_layer_norm_backward": _with_narrow_statistics(torch.ops.aten.native_layer_norm_backward, 5, 3),
    "col2im": _col2im,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "_fused_sgd_": _fused_sgd,
    "_grouped_mm": _grouped_mm,
    "copysign": _copysign,
    "histc": _histc,
    "_logcumsumexp": _logcumsumexp,
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "binary_cross_entropy": _binary_cross_entropy,
    "mse_loss": _loss_in_room(torch.ops.aten.mse_loss.default),
    "smooth_l1_loss": _loss_in_room(torch.ops.aten.smooth_l1_loss.default),
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    **{
        f"{multiply.__name__}.{overload}": _in_wide(multiply)
        for multiply in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm)
        for overload in ("dtype", "dtype_out")
    },
}
