"""Runs a few lines one by one, and records how each changes the memory of a simulated card."""

from __future__ import annotations

import ast
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import nn

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.allocator.trace import WORKSPACE
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.naming import DEVICE, device_of, naming
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.tracking import tensors_in
from gpudash.units import summed_bytes
from gpudash.workloads.lines.trace import LineBlock, LineFailure, LineMoment, LinesTrace

logger = logging.getLogger(__name__)

FILE = "<your lines>"

MOST_MOMENTS = 400
"""How many moments are kept; of a longer program the last ones are left out, which is reported."""

LONGEST_NAME, LONGEST_TITLE = 22, 14
"""The most characters of an expression used as a name, and of one used as a title."""

ALIKE = 2
"""From this many blocks with one origin on, they are shown together."""

Where = tuple[int, int, int, int]
"""Position of an expression: first line, last line, from 1, first column, and the column after its end."""


@dataclass(slots=True)
class _Block:
    """A block that is, or was, on the card."""

    size: int
    where: Where | None
    workspace: bool
    names: dict[int, str] = field(default_factory=dict)
    """The variable that referred to it after each statement, by the statement's number."""


@dataclass(slots=True)
class _Change:
    """An event of the allocator: a block is allocated or freed."""

    block: _Block
    made: bool


OnLine = Callable[[int, Sequence[LineMoment]], None]


class LineRunner:
    """Runs lines on a card of its own.

    Args:
        backend: the simulated device of this process.
        limit: bytes of the card, without a context: what is shown is the memory of tensors.
        on_gpu: whether a tensor without a given device is created on the card.
        on_line: called when a statement starts, with its line and the moments since the last call.
    """

    def __init__(
        self, backend: Backend, limit: int, *, on_gpu: bool = True, on_line: OnLine = lambda _line, _moments: None
    ) -> None:
        self._card = SimulatedGpu(0, limit, context=0)
        self._engine = backend.engine
        self._engine.replace([self._card])
        self._limit = limit
        self._on_gpu = on_gpu
        self._on_line = on_line
        self._thread = threading.get_ident()
        self._changes: list[_Change] = []
        self._live: dict[int, _Block] = {}
        self._refused: AllocationRefused | None = None
        self._moments: list[LineMoment] = []
        self._reported = 0
        self._statement = 0
        self._held: dict[int, _Block] = {}
        self._source = ""
        self._host: dict[int, LineBlock] = {}

    def run(self, source: str) -> LinesTrace:
        """Run ``source`` to its end or its first failure."""
        self._source = source
        lines = tuple(source.splitlines())
        try:
            statements = ast.parse(source, FILE).body
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            return LinesTrace(
                lines,
                self._limit,
                (),
                LineFailure(line, type(error).__name__, _one_line(str(getattr(error, "msg", error)))),
            )
        gpu = torch.device(naming.shown, 0)
        namespace: dict[str, Any] = {"__name__": "__main__", "torch": torch, "nn": nn, "gpu": gpu}
        torch.manual_seed(0)
        torch.set_default_device(gpu if self._on_gpu else None)
        self._card.observe(self._happened)
        self._engine.storages.on_full.append(self._full)
        failure = None
        try:
            failure = self._run(statements, namespace, 0)
        finally:
            self._card.unobserve(self._happened)
            self._engine.storages.on_full.remove(self._full)
            torch.set_default_device(None)
        if failure is None:
            held = tuple(self._shown(self._held, [], 0))
            self._moments = self._moments[: MOST_MOMENTS - 1]
            size = summed_bytes(held)
            self._moments.append(LineMoment(0, "", 0, held, tuple(_on_host(namespace).values()), size, size))
        return LinesTrace(lines, self._limit, tuple(self._moments), failure)

    def _run(self, statements: Sequence[ast.stmt], namespace: dict[str, Any], turn: int) -> LineFailure | None:
        for statement in statements:
            if _is_plain_loop(statement):
                failure = self._run_loop(statement, namespace)
            else:
                failure = self._run_one(statement, namespace, turn)
            if failure is not None:
                return failure
        return None

    def _run_loop(self, loop: Any, namespace: dict[str, Any]) -> LineFailure | None:
        """Run a loop's body statement by statement, so that each iteration has moments of its own."""
        items = "__items"
        begun = ast.copy_location(ast.Assign([ast.Name(items, ast.Store())], _call("iter", loop.iter)), loop)
        failure = self._run_one(begun, namespace, 0, quiet=True)
        turn = 0
        while failure is None:
            turn += 1
            try:
                item = next(namespace[items])
            except StopIteration:
                break
            except Exception as error:
                logger.info("a loop of the lines failed", exc_info=True)
                return self._failure(loop.lineno, error)
            namespace["__item"] = item
            taken = ast.copy_location(ast.Assign([loop.target], ast.Name("__item", ast.Load())), loop)
            failure = self._run_one(taken, namespace, turn, quiet=True) or self._run(loop.body, namespace, turn)
        return failure

    def _run_one(
        self, statement: ast.stmt, namespace: dict[str, Any], turn: int, *, quiet: bool = False
    ) -> LineFailure | None:
        """Run a statement and keep its moments; ``quiet``: only those at which it allocates."""
        line = statement.lineno
        self._statement += 1
        self._changes = []
        self._on_line(line, self._moments[self._reported :])
        self._reported = len(self._moments)
        module = ast.fix_missing_locations(ast.Module([statement], []))
        failure = None
        try:
            exec(compile(module, FILE, "exec"), namespace)
        except BaseException as error:
            logger.info("line %d of the lines failed", line, exc_info=True)
            failure = self._failure(line, error)
        self._card.statistics()  # frees released blocks
        self._name(namespace)
        self._keep(line, turn, _on_host(namespace), quiet=quiet and failure is None)
        return failure

    def _failure(self, line: int, error: BaseException) -> LineFailure:
        refused, self._refused = self._refused, None
        place = line
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == FILE:
                place = step.tb_lineno
            step = step.tb_next
        if isinstance(error, torch.OutOfMemoryError) and refused is not None:
            held = sum(block.size for block in self._live.values())
            message = _one_line(str(error))
            return LineFailure(place, "OutOfMemoryError", message, True, refused.size, refused.requested, held)
        return LineFailure(place, type(error).__name__, _one_line(str(error)))

    def _happened(self, action: str, address: int, size: int, _stream: int) -> None:
        """Handle an event of the allocator, with torch's action names; the card's lock is held."""
        if action == "alloc":
            block = _Block(size, self._where(), self._card.allocating == WORKSPACE)
            self._live[address] = block
            self._changes.append(_Change(block, made=True))
        elif action == "free_completed":
            gone = self._live.pop(address, None)
            if gone is not None:
                self._changes.append(_Change(gone, made=False))

    def _full(self, _card: SimulatedGpu, refused: AllocationRefused) -> None:
        self._refused = refused

    def _where(self) -> Where | None:
        """The running expression of the lines; a backward pass may allocate in a thread of torch's."""
        frame: FrameType | None = inspect.currentframe()
        if threading.get_ident() != self._thread:
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - Python has no other name for it
        while frame is not None and frame.f_code.co_filename != FILE:
            frame = frame.f_back
        if frame is None:
            return None
        for at, (begin, end, column, behind) in enumerate(frame.f_code.co_positions()):
            if at == frame.f_lasti // 2 and None not in (begin, end, column, behind):
                return begin or 0, end or 0, column or 0, behind or 0
        return None

    def _name(self, namespace: dict[str, Any]) -> None:
        """Record which variable refers to which block now."""
        for name, tensor in _variables(namespace):
            if device_of(tensor).type != DEVICE:
                continue
            backed = self._engine.storages.block(tensor.untyped_storage())
            block = None
            if backed is not None:
                block = self._live.get(backed.address)
            if block is not None:
                block.names.setdefault(self._statement, name)

    def _keep(self, line: int, turn: int, host: dict[int, LineBlock], *, quiet: bool) -> None:
        """Keep the moments of the statement that has just run: the peak of each of its expressions in turn."""
        # what a variable held in host memory before lives until it is bound anew, at the statement's end
        during, self._host = _both(self._host, host), host
        groups: list[tuple[Where | None, dict[int, _Block], list[_Block]]] = []
        best = 0
        made: list[_Block] = []
        before = sum(one.size for one in self._held.values())
        for change in self._changes:
            block = change.block
            if not change.made:
                self._held.pop(id(block), None)
                continue
            self._held[id(block)] = block
            total = sum(one.size for one in self._held.values())
            if groups and groups[-1][0] == block.where:
                made.append(block)
                if total >= best:
                    groups[-1] = (block.where, dict(self._held), list(made))
                    best = total
                continue
            made, best = [block], total
            groups.append((block.where, dict(self._held), list(made)))
        if not groups:
            during = tuple(host.values())
        if not groups and not quiet:
            groups.append((None, dict(self._held), []))
        for where, held, fresh in groups:
            title = ""
            if len(groups) > 1 and where is not None:
                title = _title(self._source, where)
            blocks = tuple(self._shown(held, fresh, self._statement))
            after = sum(one.size for one in self._held.values())
            if len(self._moments) < MOST_MOMENTS:
                self._moments.append(LineMoment(line, title, turn, blocks, during, before, after))

    def _shown(self, held: dict[int, _Block], fresh: Sequence[_Block], statement: int) -> Iterator[LineBlock]:
        """Blocks with their names as of a statement, 0 for the last one; many with one origin are shown together."""
        now = statement or self._statement
        found: list[LineBlock] = []
        for block in held.values():
            origin = ""
            if block.where is not None:
                origin = _text(self._source, block.where)
            name, named = _name_of(block, now, origin)
            is_fresh = any(block is one for one in fresh)
            found.append(LineBlock(name, block.size, named, is_fresh, 1, block.workspace, origin))
        taken = {block.name for block in found if block.fresh and block.named and not block.workspace}
        for place, line_block in enumerate(found):
            if fresh and not line_block.fresh and line_block.name in taken:
                found[place] = replace(line_block, name=f"{line_block.name}, before")
        return iter(_together(found))


def _together(blocks: Sequence[LineBlock]) -> list[LineBlock]:
    """Combine many blocks with one origin in the first one's place; the same for all parts of one variable."""
    groups: dict[tuple[str, bool, bool], list[LineBlock]] = {}
    for block in blocks:
        base = block.name.partition("[")[0].partition(".")[0] if block.named else block.name
        groups.setdefault((base, block.named, block.workspace), []).append(block)
    found: list[LineBlock] = []
    for (base, named, workspace), alike in groups.items():
        if len(alike) < ALIKE and not workspace:
            found += alike
            continue
        total = summed_bytes(alike)
        fresh = all(block.fresh for block in alike)
        found.append(LineBlock(base, total, named, fresh, len(alike), workspace, alike[0].origin))
    return found


def _name_of(block: _Block, statement: int, origin: str) -> tuple[str, bool]:
    if block.workspace:
        return "workspace", True
    # for the running line, the names it assigns at its end, otherwise those assigned before it
    for at in (statement, statement - 1):
        if at in block.names:
            return block.names[at], True
    return origin or "torch", False


def _variables(namespace: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the variables, with the names that a reader would give them."""
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        yield from _named(name, value)


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield from ((name, tensor) for tensor in tensors_in(value))
        if value.is_leaf and value.grad is not None:
            yield f"{name}.grad", value.grad
    elif isinstance(value, nn.Module):
        for part, parameter in value.named_parameters():
            yield f"{name}.{part}", parameter
            if parameter.grad is not None:
                yield f"{name}'s gradients", parameter.grad
        yield from ((f"{name}.{part}", buffer) for part, buffer in value.named_buffers())
    elif isinstance(value, torch.optim.Optimizer):
        yield from ((f"{name}'s state", tensor) for tensor in tensors_in(list(value.state.values())))
    elif isinstance(value, (dict, list, tuple)):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield from _named(f"{name}[{key!r}]", part)


def _on_host(namespace: dict[str, Any]) -> dict[int, LineBlock]:
    """The variables' tensors in host memory by address, if they have a page or more."""
    found: dict[int, LineBlock] = {}
    for name, tensor in _variables(namespace):
        storage = tensor.untyped_storage()
        if tensor.device.type == "cpu" and storage.nbytes() >= 4096:
            found.setdefault(storage.data_ptr(), LineBlock(name, storage.nbytes()))
    return found


def _both(before: dict[int, LineBlock], after: dict[int, LineBlock]) -> tuple[LineBlock, ...]:
    """Tensors in host memory before or after a statement; the older one of two with a name is called so."""
    names = {block.name for block in after.values()}
    gone = [block for address, block in before.items() if address not in after]
    older = [replace(block, name=f"{block.name}, before") if block.name in names else block for block in gone]
    return (*older, *after.values())


def _is_plain_loop(statement: ast.stmt) -> bool:
    """Whether a loop's body can be run statement by statement: nothing in it leaves the loop early."""
    if not isinstance(statement, ast.For) or statement.orelse:
        return False
    return not any(isinstance(node, (ast.Break, ast.Continue)) for node in ast.walk(statement))


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _text(source: str, where: Where) -> str:
    """The text of an expression, on one line and shortened."""
    begin, end, column, behind = where
    lines = source.splitlines()[begin - 1 : end]
    if not lines:
        return ""
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][:behind]
    encoded[0] = encoded[0][column:]
    text = " ".join(b" ".join(encoded).decode(errors="replace").split())
    if len(text) > LONGEST_NAME:
        return f"{text[: LONGEST_NAME - 1]}…"
    return text


def _title(source: str, where: Where) -> str:
    """The title of a moment: for a call the function's own name, otherwise the expression."""
    begin, end, column, behind = where
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == (begin, end, column, behind):
            if isinstance(node.func, ast.Attribute):
                return node.func.attr
            if isinstance(node.func, ast.Name):
                return node.func.id
    text = _text(source, where)
    if len(text) > LONGEST_TITLE:
        return f"{text[: LONGEST_TITLE - 1]}…"
    return text


def _one_line(text: str) -> str:
    return " ".join(text.split())
