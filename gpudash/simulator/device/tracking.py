"""Tracks what each block of a simulated card is for, and which code allocated it.

torch's hooks report which modules, backward passes and optimizers are running, so code needs no annotations.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from gpudash.memory.allocator.trace import (
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    WEIGHTS,
)
from gpudash.simulator.device import autograd
from gpudash.simulator.device.naming import DEVICE, device_of
from gpudash.simulator.device.storage import unwrapped
from gpudash.simulator.operations.operations import Engine
from gpudash.simulator.step_work.work_log import PASSES, Stepped, WorkLog

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

MOST_FRAMES = 48
"""How many frames of a stack are kept; outer frames beyond that belong to the program's start."""


class TrackedFrame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    name: str


class Tag:
    """Which code allocated a block, and when.

    Attributes:
        step: number of the step, from 1; 0 before the first.
        phase: "forward", "backward", "optimizer" or "".
        stage: name the program set for its current activity; "" if none.
        module: dotted class names of the running modules, innermost last; "" outside of them.
    """

    __slots__ = ("module", "phase", "stack", "stage", "step")

    def __init__(self, step: int, phase: str, stage: str, module: str, stack: tuple[tuple[CodeType, int], ...]) -> None:
        self.step = step
        self.phase = phase
        self.stage = stage
        self.module = module
        self.stack = stack

    def frames(self) -> list[TrackedFrame]:
        """The stack, innermost line first."""
        return [TrackedFrame(code.co_filename, line_of(code, place), code.co_name) for code, place in self.stack]


class Tracker:
    """Tracks what code on the simulated cards does, between `start` and `stop`.

    Args:
        engine: runs the operations.
        stacks: whether to keep each allocation's stack.
        log: receives phases and steps.

    Attributes:
        step: number of the current step; setting it starts the step.
        stage: name of the program's current activity, set from outside.
        finished: whether later events are to be ignored, see `finish`.
        on_roots: called when weights, gradients and optimizer state can be determined: when a model starts to run, and
            at the end of a backward pass and of an optimizer's step.
        on_gradients: called when only gradients are new: when a layer of such a model runs again within a backward
            pass, as checkpointing does. A program may release them before the pass ends.
    """

    def __init__(self, engine: Engine, *, stacks: bool = True, log: WorkLog | None = None) -> None:
        self._step = 0
        self._log = log
        self.stage = ""
        self.finished = False
        self.on_roots: list[Callable[[], None]] = []
        self.on_gradients: list[Callable[[], None]] = []
        self._engine = engine
        self._stacks = stacks
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._layers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._trained: list[weakref.ref[torch.Tensor]] = []
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._running: list[str] = []
        self._forward = False
        self._backward = 0
        self._optimizing = False
        self._handles: list[Any] = []

    @property
    def step(self) -> int:
        """Number of the current step."""
        return self._step

    @step.setter
    def step(self, number: int) -> None:
        if self._log is not None and number > 1:
            self._log.end_step()
        elif self._log is not None:
            self._log.begin_steps()
        self._step = number

    @property
    def phase(self) -> str:
        """The current phase."""
        if self._backward:
            return BACKWARD
        if self._optimizing:
            return OPTIMIZER
        if self._forward:
            return FORWARD
        return ""

    def start(self) -> None:
        """Start tracking, and tag every allocation."""
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
            optimizer_hooks.register_optimizer_step_pre_hook(self._optimizer_begins),
            optimizer_hooks.register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        autograd.watchers.append(self._backward_changes)
        self._engine.on_copied_in.append(self._copied_in)
        for card in self._engine.cards:
            card.tagger = self._tag

    def stop(self) -> None:
        """Stop tracking; allocated blocks keep their tags."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._backward_changes in autograd.watchers:
            autograd.watchers.remove(self._backward_changes)
        if self._copied_in in self._engine.on_copied_in:
            self._engine.on_copied_in.remove(self._copied_in)
        for card in self._engine.cards:
            card.tagger = None

    def end_pass(self) -> None:
        """Report the end of a forward pass in a program without optimizers, where it counts as a step."""
        if self._log is not None:
            self._log.end_step(PASSES)

    def divide_steps(self) -> None:
        """Report that what counted as one step was a whole training, with the optimizer's steps as its own."""
        if self._log is not None:
            self._log.divide_by_optimizer()

    def finish(self, *, whole: bool = True) -> None:
        """Report that what follows, the release of everything, is to be ignored.

        Args:
            whole: whether the current step was completed.
        """
        self._report_roots()
        self.finished = True
        if self._log is not None:
            self._log.finish(whole=whole)

    def categories(self) -> dict[tuple[int, int], str]:
        """(card, address) → category, for everything that belongs to a module or optimizer that has run."""
        return self._by_address(self.roots())

    def gradients(self) -> dict[tuple[int, int], str]:
        """(card, address) → category, for the gradients of the weights that `categories` found last."""
        weights = [reference() for reference in self._trained]
        gradients = [weight.grad for weight in weights if weight is not None and weight.grad is not None]
        return self._by_address((tensor, GRADIENTS) for tensor in tensors_in(gradients))

    def _by_address(self, roots: Iterable[tuple[torch.Tensor, str]]) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        for root, category in roots:
            if device_of(root).type != DEVICE:
                continue
            block = self._engine.storages.block(root.untyped_storage())
            if block is not None:
                found[block.card.index, block.address] = category
        return found

    def roots(self) -> Iterator[tuple[torch.Tensor, str]]:
        """Tensors with storages that belong to a module or optimizer that has run, and what each is for."""
        for found, category in self._owned():
            for tensor in tensors_in(found):
                if not nn.parameter.is_lazy(tensor):  # it has no size yet
                    yield tensor, category

    def _owned(self) -> Iterator[tuple[Any, str]]:
        # weights and gradients come last: if a tensor is found several times, the last category counts
        weights: list[torch.Tensor] = []
        for optimizer in list(self._optimizers):
            for group in optimizer.param_groups:
                weights += group["params"]
            for state in list(optimizer.state.values()):
                yield state, OPTIMIZER_STATE
        for module in list(self._modules):
            # a weak set may lose members during iteration: the list keeps them alive
            weights += module.parameters()
            for buffer in module.buffers():
                yield buffer, WEIGHTS
        # Weakly, so that the program's weights are freed when it frees them.
        self._trained = [weakref.ref(weight) for weight in weights if weight.requires_grad]
        for weight in weights:
            yield weight, WEIGHTS
            if weight.is_leaf and weight.grad is not None:
                yield weight.grad, GRADIENTS

    def _tag(self) -> Tag:
        stack: tuple[tuple[CodeType, int], ...] = ()
        if self._stacks:
            stack = _stack()
        return Tag(self.step, self.phase, self.stage, ".".join(self._running), stack)

    def _copied_in(self, block: Any) -> None:
        if _is_moving_a_module():
            block.card.label(block.address, WEIGHTS)
        else:
            block.card.label(block.address, INPUTS)

    def _enter(self, module: nn.Module, _args: Any) -> None:
        # a module that no other module calls is a model
        if not self._running:
            self._note_root(module)
            # a checkpointed layer runs forward within the backward pass, and counts as part of it
            if not self._backward:
                self._forward = True
                self._note_phase()
        self._running.append(type(module).__name__)

    def _note_root(self, module: nn.Module) -> None:
        if module in self._modules:
            return
        # Everything of a large model would be walked once for each of its layers.
        if self._backward and module in self._layers:
            for callback in self.on_gradients:
                callback()
            return
        self._modules.add(module)
        self._layers.update(module.modules())
        self._report_roots()

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        if self._running:
            self._running.pop()

    def _backward_changes(self, begins: bool) -> None:
        # a backward pass may start another one, as checkpointing does
        if begins:
            self._backward += 1
        else:
            self._backward -= 1
        self._forward = False
        self._note_phase()
        if not self._backward:
            self._report_roots()

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        self._optimizing = True
        self._forward = False
        self._note_phase()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._report_roots()
        self._optimizing = False
        self._note_phase()
        if self._log is not None:
            self._log.note(Stepped(id(optimizer)))

    def _report_roots(self) -> None:
        for callback in self.on_roots:
            callback()

    def _note_phase(self) -> None:
        if self._log is not None:
            self._log.note_phase(self.phase)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with storages of their own in ``value``: in dictionaries and sequences, and the parts that a tensor
    consists of, such as the codes and scales of 8-bit state, or the local shard of a DTensor.
    """
    if isinstance(value, torch.Tensor):
        value = unwrapped(value)
        # the protocol of traceable wrapper subclasses, which names the attributes with the inner tensors
        names: Any = ()
        if hasattr(value, "__tensor_flatten__"):
            names = value.__tensor_flatten__()[0]
        if not names:
            yield value
        for name in names:
            yield from tensors_in(getattr(value, name))
    elif isinstance(value, dict):
        for part in list(value.values()):
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


_MOVING = nn.Module._apply.__code__
"""The code of what ``Module.to`` does with every parameter and buffer."""


def _is_moving_a_module() -> bool:
    # the caller that copied is two frames up; walk outwards from there
    frame = sys._getframe(2)
    found: Any | None = frame
    while found is not None and found.f_code is not _MOVING:
        found = found.f_back
    return found is not None


def _stack() -> tuple[tuple[CodeType, int], ...]:
    frame = sys._getframe(3)
    stack: list[tuple[CodeType, int]] = []
    found: Any | None = frame
    while found is not None and len(stack) < MOST_FRAMES:
        stack.append((found.f_code, found.f_lasti))
        found = found.f_back
    return tuple(stack)


def line_of(code: CodeType, place: int) -> int:
    """The line of the instruction at ``place`` (``f_lasti``) in ``code``."""
    line = code.co_firstlineno
    # ascending: take the last line that starts at or before the instruction
    for start, number in dis.findlinestarts(code):
        if start > place:
            break
        if number is not None:
            line = number
    return line
