"""Data that need not be on the GPU, or not always: the whole data set, a checkpoint next to its model, a copy of it,
results that a loop collects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gpudash.memory.allocator.trace import ACTIVATIONS, WEIGHTS
from gpudash.memory.frames import Frame
from gpudash.memory.snapshot.causes.case import BY_REPLAY, Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.source_edits import (
    LineEdits,
    Loop,
    SourceFile,
    Splice,
    keyword_of,
    loop_of,
    method_of,
    scope_of,
)
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes, needed

SHARE_OF_LIVE = 0.2
"""Part of the live bytes that it must hold."""

SHARE_OF_MISSING = 0.1
"""The same if it is as much as was missing."""

FEWEST_ROUNDS = 3
"""Fewest lengths that a result must have had to count as growing in a loop."""

_MOVES = frozenset({"cuda", "to"})
_LEAVES = frozenset({"cpu", "numpy", "tolist", "save"})
_JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "vstack"})


def loaded_checkpoint(case: Case) -> ProgramCause | None:
    """A checkpoint that ``torch.load`` put on the GPU, where it stays next to the model."""
    lives = case.alive[case.through("torch/serialization.py")[case.alive]]
    frame = _line_of(case, lives)
    if frame is None:
        return None
    file = case.file(frame.file)
    place = f"{short(frame.file)}:{frame.line}"
    size = case.bytes_of(lives)
    statement = file.statement(frame.line)
    call = None
    if statement:
        call = next((node for node in ast.walk(statement) if method_of(node) == "load"), None)
    patch = ""
    if isinstance(call, ast.Call):
        patch = _loaded_on_host(file, call)
    text = f"The checkpoint that {place} loads takes {format_bytes(size)} on the GPU beside the model."
    label = f'{place}: load it with map_location="cpu": {needed(size)} less'
    return ProgramCause(text, (replayed(label, case.resized(lives, 0), patch),))


def _loaded_on_host(file: SourceFile, call: ast.Call) -> str:
    given = keyword_of(call, "map_location")
    if given is None and len(call.args) > 1:
        given = call.args[1]
    if given is not None:
        return file.patch_of(given, '"cpu"')
    return file.patch_of(call, f'{ast.unparse(call)[:-1]}, map_location="cpu")')


def copied_model(case: Case) -> ProgramCause | None:
    """A copy of a model's weights, as for their average over the steps."""
    copies = case.through("/copy.py", "deepcopy")[case.alive]
    lives = case.alive[copies]
    frame = _line_of(case, lives)
    if frame is None:
        return None
    file = case.file(frame.file)
    place = f"{short(frame.file)}:{frame.line}"
    size = case.bytes_of(lives)
    statement = file.statement(frame.line)
    patch = ""
    write = "keep the copy in host memory"
    calls: Iterable[ast.AST] = ()
    if statement is not None:
        calls = ast.walk(statement)
    for call in calls:
        if not isinstance(call, ast.Call):
            continue
        if method_of(call) == "AveragedModel" and keyword_of(call, "device") is None:
            write = 'AveragedModel(…, device="cpu"), which averages in host memory'
            patch = file.patch_of(call, f'{ast.unparse(call)[:-1]}, device="cpu")')
        elif method_of(call) == "deepcopy" and len(call.args) == 1:
            write, patch = _copied_to_host(file, statement, call)
    times = len(case.makings(lives))
    if times < 2:
        subject = "A copy of the model, made at {}, takes"
    else:
        subject = f"{times} copies of the model, made at {{}}, take"
    text = f"{subject.format(place)} {format_bytes(size)} of the GPU too."
    label = f"{place}: {write}: {needed(size)} less"
    return ProgramCause(text, (replayed(label, case.resized(lives, 0), patch),))


def _copied_to_host(file: SourceFile, statement: ast.stmt | None, call: ast.Call) -> tuple[str, str]:
    """The text to write so that a copy is in host memory, and its diff.

    A loop over both sets of parameters then moves the model's to the copy's device.
    """
    model = call.args[0]
    if method_of(model) == "state_dict":
        copied = f'{{name: value.to("cpu", copy=True) for name, value in {ast.unparse(model)}.items()}}'
        return f"{copied}, a copy in host memory", file.patch_of(call, copied)
    write = "keep the copy in host memory (.cpu()), and move to it what it takes in"
    splices = [Splice.behind(call, ".cpu()")]
    targets = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    for loop in file.nodes():
        if not isinstance(loop, ast.For):
            continue
        for target in targets:
            splices += _moved_in(loop, ast.unparse(target))
    return write, file.patch(file.spliced(splices))


def _moved_in(loop: ast.For, copy: str) -> list[Splice]:
    """In ``for ours, theirs in zip(copy.parameters(), model.parameters())``, move each use of ``theirs``."""
    if method_of(loop.iter) != "zip" or not isinstance(loop.iter, ast.Call) or not isinstance(loop.target, ast.Tuple):
        return []
    names = [target.id for target in loop.target.elts if isinstance(target, ast.Name)]
    of_copy = [ast.unparse(argument).startswith(f"{copy}.") for argument in loop.iter.args]
    if len(names) != 2 or of_copy not in ([True, False], [False, True]):
        return []
    if of_copy[0]:
        ours, theirs = names
    else:
        ours, theirs = reversed(names)
    splices = []
    for statement in loop.body:
        uses = [_whole_use(loop, node) for node in ast.walk(statement) if _is_name(node, theirs)]
        splices += [Splice.behind(use, f".to({ours}.device)") for use in uses]
    return splices


def _whole_use(loop: ast.For, name: ast.AST) -> ast.expr:
    """A variable with a following ``.data`` or ``.detach()``."""
    found = name
    while True:
        around = next((node for node in ast.walk(loop) if _goes_on(node, found)), None)
        if around is None:
            assert isinstance(found, ast.expr)
            return found
        found = around


def _goes_on(node: ast.AST, inner: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.value is inner:
        return node.attr in ("data", "detach", "clone")
    return isinstance(node, ast.Call) and node.func is inner and isinstance(inner, ast.Attribute)


def moved_data(case: Case) -> ProgramCause | None:
    """Data moved to the GPU as a whole by one statement, although every step reads only a part."""
    other = case.of_other_category(ACTIVATIONS, WEIGHTS)
    splices: list[Splice] = []
    found: list[Ints] = []
    first: Frame | None = None
    for frame, of_line in case.largest_groups(other, case.innermost):
        # A patch is for one file: that of the line that moved most.
        if first is not None and frame.file != first.file:
            continue
        moved = _moved(case.file(frame.file), frame.line)
        if moved is None:
            continue
        first = first or frame
        found.append(of_line)
        splices += _kept_on_host(*moved)
    lives = np.concatenate([np.zeros(0, np.int64), *found])
    size = case.bytes_of(lives)
    if first is None or size < SHARE_OF_LIVE * case.live_bytes:
        return None
    place = f"{short(first.file)}:{first.line}"
    text = f"The whole data set is on the GPU, from {place} on: {format_bytes(size)}."
    label = f"{place}: leave it in host memory and move each batch: {needed(size)} less"
    file = case.file(first.file)
    return ProgramCause(text, (replayed(label, case.resized(lives, 0), file.patch(file.spliced(splices))),))


def _moved(file: SourceFile, line: int) -> tuple[ast.Call, list[ast.Subscript]] | None:
    """A statement's call outside of loops that moves its result, and where parts of that are read; ``None`` if it is
    also read as a whole, or the call has several lines.
    """
    statement = file.statement(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    call = statement.value
    if not isinstance(target, ast.Name) or not isinstance(call, ast.Call) or method_of(call) not in _MOVES:
        return None
    is_in_loop = any(isinstance(node, ast.For | ast.While) for node in file.path(line))
    if not isinstance(call.func, ast.Attribute) or is_in_loop:
        return None
    scope = scope_of(file.path(line)[:-1])
    assert scope is not None
    nodes = list(ast.walk(scope))
    read = [node for node in nodes if isinstance(node, ast.Subscript) and _is_name(node.value, target.id)]
    inside = {id(node.value) for node in read}
    # A size is the same wherever the data is.
    sized: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            sized.add(id(node.value))
        elif isinstance(node, ast.Call) and method_of(node) == "len":
            sized.update(map(id, node.args))
    harmless = inside | sized | {id(target)}
    others = [node for node in nodes if _is_name(node, target.id) and id(node) not in harmless]
    one_line = call.func.value.end_lineno == call.end_lineno
    if others or not read or not one_line:
        return None
    return (call, read)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _kept_on_host(call: ast.Call, read: list[ast.Subscript]) -> list[Splice]:
    """Remove the move from its statement, and add it at each place where a part is read."""
    assert isinstance(call.func, ast.Attribute)
    data = call.func.value
    move = ast.unparse(call)[len(ast.unparse(data)) :]
    return [Splice.cut(call), *(Splice.behind(node, move) for node in read)]


def joined_results(case: Case) -> ProgramCause | None:
    """A tensor that a loop extends in every iteration, and that is in memory twice meanwhile."""
    nothing = np.zeros(0, np.int64)
    lines = dict.fromkeys(case.refused_frames[:1], nothing) | case.groups(case.alive, case.innermost)
    for frame, lives in lines.items():
        file = case.file(frame.file)
        name = _joined(file.statement(frame.line))
        loop = loop_of(file.path(frame.line))
        if not name or loop is None:
            continue
        is_refused = frame in case.refused_frames[:1]
        size = case.bytes_of(lives)
        if is_refused:
            size += case.found.requested_bytes or 0
        made = np.flatnonzero(case.with_frames([(frame.file, frame.line)]))
        rounds = len(np.unique(case.lives.requested[made]))
        if size < SHARE_OF_LIVE * case.live_bytes or rounds < FEWEST_ROUNDS:
            continue
        place = f"{short(frame.file)}:{frame.line}"
        text = (
            f"{place} makes {name} longer in every round of its loop, and has it twice meanwhile: {format_bytes(size)} "
            f"after {rounds} rounds."
        )
        label = f"{place}: collect it in host memory, {name} and what is joined to it: {needed(size)} less"
        ran = case.resized(made, 0, request=is_refused)
        splices, names = _joined_on_host(file, loop)
        edits = LineEdits(file, splices)
        remedies = [replayed(label, ran, edits.patch())]
        # Code after the loop finds the result where it was: on the card, and once.
        once = ran.peak_reserved + max(case.lives.requested[made].max(initial=0), case.found.requested_bytes or 0)
        edits.behind(loop, [f"{name} = {name}.cuda()" for name in names])
        back = Remedy(
            f"{place}: join {name} in host memory, and move it back to the GPU behind the loop", patch=edits.patch()
        )
        if ran.fits and once <= case.capacity:
            back = replace(back, predicted_peak_bytes=int(once), verified_by=BY_REPLAY)
        remedies.insert(int(_leaves_the_card(file, loop, name)), back)
        return ProgramCause(text, tuple(remedies), is_waste=True)
    return None


def _joined(statement: ast.AST | None) -> str:
    """The variable that a statement extends by joining something to it; "" for other statements."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=parts) | ast.Tuple(elts=parts), *_]) as call
        ):
            if method_of(call) in _JOINS and any(_is_name(part, name) for part in parts):
                return name
    return ""


def _leaves_the_card(file: SourceFile, loop: Loop, name: str) -> bool:
    """Whether all uses of a variable after its loop, within the function, move it off the GPU."""
    scope = scope_of(file.path(loop.lineno)[:-1])
    assert scope is not None
    end = loop.end_lineno or loop.lineno
    behind = [node for node in ast.walk(scope) if getattr(node, "lineno", 0) > end]
    takes = [node for node in behind if method_of(node) in _LEAVES]
    taken = {id(inner) for node in takes for inner in ast.walk(node)}
    uses = [node for node in behind if _is_name(node, name)]
    return bool(uses) and all(id(use) in taken for use in uses)


def _joined_on_host(file: SourceFile, loop: ast.AST) -> tuple[list[Splice], list[str]]:
    """Edits with which a loop joins its results in host memory, where they also begin, and their names."""
    found = []
    names: dict[str, None] = {}
    for statement in ast.walk(loop):
        name = _joined(statement)
        if not name:
            continue
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.value, ast.Call)
        parts = statement.value.args[0]
        assert isinstance(parts, ast.List | ast.Tuple)
        names[name] = None
        found += [Splice.behind(part, ".detach().cpu()") for part in parts.elts if not _is_name(part, name)]
    for node in file.path(getattr(loop, "lineno", 0)):
        for statement in getattr(node, "body", ()):
            # An empty tensor to which the first iteration's result is joined.
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                is_first = any(isinstance(one, ast.Name) and one.id in names for one in statement.targets)
                if is_first and not _joined(statement):
                    found.append(Splice.behind(statement.value, ".cpu()"))
    return found, list(names)


def _line_of(case: Case, lives: Ints) -> Frame | None:
    """The program's line that created most of some blocks; ``None`` if they are too small a part of the live
    memory."""
    size = case.bytes_of(lives)
    share = SHARE_OF_LIVE
    if size >= case.found.missing_bytes:
        share = SHARE_OF_MISSING
    if not len(lives) or size < share * case.live_bytes:
        return None
    frames = case.frames(int(lives[int(np.argmax(case.lives.bytes[lives]))]))
    if frames:
        return frames[0]
    return None
