"""One step's activations are too large for the card: use a smaller batch, or recompute some of them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from gpudash.memory.allocator.trace import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    TEMPORARY,
    WEIGHTS,
)
from gpudash.memory.explaining.memory_state import OTHER_TENSORS
from gpudash.memory.frames import Frame, is_library
from gpudash.memory.snapshot.causes.batch_size import (
    SMALLEST,
    BatchSize,
    batch_sizes,
    number_of,
    numbers_given,
)
from gpudash.memory.snapshot.causes.case import BY_REPLAY, Case, Ints, ProgramCause, replayed
from gpudash.memory.snapshot.causes.optimizer_state import STATES
from gpudash.memory.snapshot.history.batch_shapes import GrowingVariable, growing_variables
from gpudash.memory.snapshot.history.phases import BACKWARD, OPTIMIZER, PHASES
from gpudash.memory.snapshot.replay.trace_replay import ReplayRun
from gpudash.memory.snapshot.source_edits import Function, LineEdits, Loop, SourceFile, keyword_of, method_of, names_in
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import available, format_bytes, summed_bytes

SHARE_OF_LIVE = 0.3
"""Part of the live bytes that activations and their temporaries must hold."""

SHARE_OF_REQUEST = 0.75
"""Part of a pass that the failed request must be to be the cause by itself."""

SHARE_OF_CARD = 0.3
"""And part of the card."""

SHARE_OF_STATE = 0.5
"""Part of the live bytes that weights, gradients and optimizer state must hold to be the reason for too little
room."""

BEAMS = "num_beams"
"""Name in transformers' ``generate`` for the number of beams."""

STATE_NAMES = {WEIGHTS: "weights", GRADIENTS: "gradients", OPTIMIZER_STATE: "the optimizer's state"}
"""Categories of what stays from step to step, with their names in a sentence."""

FEWEST_SIZES = 4
"""Fewest sizes of a line's requests that show it rising."""

SHARE_RISING = 0.9
"""Part of the steps in which it must request as much as in the one before, or more."""

LEAST_RISE = 1.25
"""How many times as large it must become."""

FEWEST_RISING = 2
"""Fewest such lines: one alone may be a result that grows, which no other line works on."""

INPUTS_GROW = "lasts until the inputs have grown as much again"
"""Value of `Remedy.puts_off`."""

FEWEST_LAYERS = 4
"""Fewest iterations of a loop over layers for which checkpointing saves memory."""


def activations_of_a_step(case: Case) -> ProgramCause | None:
    """A step's forward or backward pass needs more than the card has."""
    lives = case.of_category(ACTIVATIONS, INPUTS, TEMPORARY)
    size = case.bytes_of(lives) + (case.found.requested_bytes or 0)
    if size < SHARE_OF_LIVE * case.live_bytes or case.history.phase_at(case.moment) == PHASES[OPTIMIZER]:
        return None
    whose = "The activations of one pass"
    if case.trains:
        whose = "One step's activations"
    text = f"{whose} are too many for the card: {format_bytes(size)} with the request that was refused."
    request = case.found.requested_bytes or 0
    # On a card that others have filled, any request may be the last one.
    is_large = request > SHARE_OF_REQUEST * size and request > SHARE_OF_CARD * case.found.capacity_bytes
    if case.refused_frames and is_large:
        frame = case.refused_frames[0]
        text = (
            f"{short(frame.file)}:{frame.line} asks for {format_bytes(request)} in one tensor, which is too large for "
            f"the card: all others of the pass take {format_bytes(size - request)}."
        )
    return ProgramCause(text, smaller_steps(case), is_of_activations=True)


def growing_inputs(case: Case) -> ProgramCause | None:
    """What the steps work on becomes larger from step to step, and everything computed from it.

    It shows in the sizes that the same line requests; its shape is known where a variable holds it.
    """
    rising = _rising_lines(case)
    if len(rising) < FEWEST_RISING:
        return None
    alive = case.alive[np.isin(case.history.site_of(case.alive), list(rising))]
    if case.bytes_of(alive) + (case.found.requested_bytes or 0) < SHARE_OF_LIVE * case.live_bytes:
        return None
    variables = growing_variables(case.history, case.shapes)
    # What a step requests first is its input; the rest is computed from that.
    site = next(iter(rising))
    holding = [found for one in variables if (found := one.with_requests(rising[site])) is not None]
    sizes = rising[site]
    first, last = min(sizes), max(sizes)
    file, line, _name = case.history.sites.frames[site]
    place = f"{short(file)}:{line}"
    text = (
        f"The inputs grow: {place} asks for {format_bytes(sizes[first])} in step {first} and "
        f"{format_bytes(sizes[last])} in step {last}, and every step needs more than the one before."
    )
    if holding:
        held = holding[0]
        text = (
            f"The inputs grow: {held.name} at {place} is {list(held.first)} in step {min(held.seen)} and "
            f"{list(held.last)} in step {last}, and every step needs more than the one before."
        )
    limits = []
    # A whole step after it, or else the rest of that would be untried.
    for step in sorted(sizes, reverse=True)[2:]:
        ran = _with_inputs_of(case, step, sizes)
        if ran.fits and sizes[step] < sizes[last]:
            limit = Remedy(f"{place}: no inputs larger than those of step {step}, {format_bytes(sizes[step])}")
            if holding:
                limit = _limit(
                    case, holding, variables, place, f"as in step {step}", Fraction(sizes[step], sizes[last])
                )
            limits.append(replace(limit, predicted_peak_bytes=ran.peak_reserved, verified_by=BY_REPLAY))
            break
    smaller = [replace(remedy, puts_off=INPUTS_GROW) for remedy in smaller_steps(case)]
    return ProgramCause(text, (*limits, *smaller), is_of_activations=True, puts_off=INPUTS_GROW)


def _with_inputs_of(case: Case, step: int, sizes: Mapping[int, int]) -> ReplayRun:
    """The run with every later step's requests as large as those of a step, which the same stacks make in order.

    Args:
        case: the failed request.
        step: the step.
        sizes: bytes of the inputs by step, for requests that the step does not make.
    """
    lives = case.lives
    known: dict[int, list[int]] = {}
    begun: Counter[tuple[int, int]] = Counter()
    made: dict[int, int] = {}

    def limited(of_step: int, stack: int, size: int) -> int:
        place = begun[of_step, stack]
        begun[of_step, stack] += 1
        if place < len(known.get(stack, ())):
            return min(size, known[stack][place])
        return max(1, size * sizes[step] // sizes.get(of_step, sizes[step]))

    ordered = np.flatnonzero((lives.born >= 0) & (lives.phase != OPTIMIZER))
    ordered = ordered[np.argsort(lives.born[ordered], kind="stable")]
    steps = case.history.step_of(lives.born[ordered])
    for life in ordered[steps == step].tolist():
        known.setdefault(int(lives.stack[life]), []).append(int(lives.requested[life]))
    for life, of_step in zip(ordered[steps > step].tolist(), steps[steps > step].tolist(), strict=True):
        made[life] = limited(of_step, int(lives.stack[life]), int(lives.requested[life]))
    now = case.history.step_at(case.moment)
    return case.with_sizes(made, limited(now, int(case.history.columns.stack[case.moment]), case.refused_bytes))


def _limit(
    case: Case,
    holding: Sequence[GrowingVariable],
    variables: Sequence[GrowingVariable],
    place: str,
    like: str,
    share: Fraction,
) -> Remedy:
    """The change with which inputs become no larger than those of a step, with its diff where one is right.

    Args:
        case: the failed request.
        holding: variables with the inputs, that of the innermost function first.
        variables: all variables that grow.
        place: line that asks for memory for them.
        like: the step in words.
        share: its part of the newest step's bytes.
    """
    held = holding[0]
    shape = held.limited(share)
    if shape is None:
        return Remedy(f"{place}: resize {held.name} before the model works on it, {like}", changes_training=True)
    # Which samples a step works on is decided where it is made: to cut them off would lose them.
    if 0 in held.dimensions:
        return Remedy(f"{place}: split {held.name} into parts of {list(shape)}, {like}")
    if len(held.dimensions) > 1:
        text = f"{place}: resize {held.name} to {list(shape)} before the model works on it, {like}"
        return Remedy(text, changes_training=True)
    for one in holding:
        line, patch = _cut(case.file(one.file), one, variables, shape[held.dimensions[0]])
        if patch:
            place = f"{short(one.file)}:{line}"
            return Remedy(f"{place}: truncate {one.name} to {list(shape)}, {like}", patch=patch, changes_training=True)
    return Remedy(f"{place}: truncate {held.name} to {list(shape)}, {like}", changes_training=True)


def _cut(file: SourceFile, held: GrowingVariable, variables: Sequence[GrowingVariable], length: int) -> tuple[int, str]:
    """The line of the loop or the statement that makes inputs, and the diff that cuts them there; "" if something else
    would keep its length.

    Args:
        file: file of the function whose variable they are.
        held: the variable, of which one dimension grows.
        variables: all variables that grow.
        length: the new size of that dimension.
    """
    found = _made_in_loop(file, held.variable, held.function)
    if found is None:
        return 0, ""
    loop, maker = found
    alike = [one for one in variables if (one.file, one.function) == (held.file, held.function)]
    longest = held.last[held.dimensions[0]]
    made = set(_assigned_names(maker))
    cut = [one for one in alike if one.variable in made]
    if any([one.last[place] for place in one.dimensions] != [longest] for one in cut):
        return 0, ""
    # What is computed from the shorter ones is shorter itself.
    shorter = {one.variable for one in cut}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and names_in(node.value) & shorter:
            shorter.update(_assigned_names(node))
    is_assignable = all(one.name == one.variable or one.is_in_dictionary for one in cut)
    if not is_assignable or not {one.variable for one in alike} <= shorter:
        return 0, ""
    values = [f"{one.name}[{':, ' * one.dimensions[0]}:{length}].contiguous()" for one in cut]
    statement = f"{', '.join(one.name for one in cut)} = {', '.join(values)}"
    edits = LineEdits(file)
    if isinstance(maker, ast.Assign):
        edits.behind(maker, [statement])
    elif loop.body[0].lineno > loop.lineno:
        edits.before(loop.body[0].lineno, [statement])
    return maker.lineno, edits.patch()


def _made_in_loop(file: SourceFile, name: str, function: str) -> tuple[Loop, Loop | ast.Assign] | None:
    """The loop of a function that assigns a variable, with the first of its statements that does, or itself."""
    scopes: list[ast.AST] = [node for node in file.nodes() if isinstance(node, Function) and node.name == function]
    if not scopes and file.module is not None:
        scopes = [file.module]
    loops = [node for scope in scopes for node in ast.walk(scope) if isinstance(node, Loop)]
    for loop in loops:
        if name in _assigned_names(loop):
            return loop, loop
    # The innermost loop around the statement.
    for loop in reversed(loops):
        assigning = [node for node in ast.walk(loop) if isinstance(node, ast.Assign) and name in _assigned_names(node)]
        if assigning:
            return loop, min(assigning, key=lambda one: one.lineno)
    return None


def _assigned_names(node: Loop | ast.Assign) -> list[str]:
    """Variables that a statement assigns, or a loop in each iteration."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif not isinstance(node, ast.While):
        targets = [node.target]
    return [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]


def _rising_lines(case: Case) -> dict[int, dict[int, int]]:
    """Sites whose largest request becomes larger from step to step, with its bytes by step; in the order in which a
    step reaches them.
    """
    history = case.history
    lives = np.flatnonzero((case.lives.born >= 0) & (case.lives.phase != OPTIMIZER))
    lives = lives[np.argsort(case.lives.born[lives], kind="stable")]
    step = history.step_of(case.lives.born[lives])
    site = history.site_of(lives)
    found: dict[int, dict[int, int]] = {}
    # The newest step is incomplete: the one before shows the order of all lines.
    for number in dict.fromkeys(site[step >= step.max(initial=0) - 1].tolist()):
        file, line, name = history.sites.frames[number]
        at = (site == number) & (step > 0)
        sizes: dict[int, int] = {}
        for of_step, size in zip(step[at].tolist(), case.lives.requested[lives[at]].tolist(), strict=True):
            sizes[of_step] = max(sizes.get(of_step, 0), size)
        ordered = [sizes[one] for one in sorted(sizes)]
        rises = sum(before <= after for before, after in pairwise(ordered))
        is_rising = len(set(ordered)) >= FEWEST_SIZES and rises >= SHARE_RISING * (len(ordered) - 1)
        if is_rising and ordered[-1] >= LEAST_RISE * ordered[0] and not is_library(Frame(file, line, name)):
            found[number] = sizes
    return found


def graph_of_gradients(case: Case) -> ProgramCause | None:
    """Steps within a step, whose gradients are differentiated too: what each of them keeps is no leak."""
    if not any(method_of(node) == "backward" for file in case.program_files for node in file.nodes()):
        return None
    for growth in case.found.growing:
        file = case.file(growth.file)
        statement = file.statement(growth.line)
        call = None
        if statement is not None:
            call = next((node for node in ast.walk(statement) if _is_differentiated(node)), None)
        if not isinstance(call, ast.Call):
            continue
        place = f"{short(growth.file)}:{growth.line}"
        size = summed_bytes(case.found.growing)
        text = (
            f"create_graph=True at {place} keeps the graph of each inner step until the backward pass over all of "
            f"them: {format_bytes(size)} after {growth.steps} of them."
        )
        return ProgramCause(text, tuple(_fewer_inner_steps(file, growth.line, call)))
    return None


def _is_differentiated(node: ast.AST) -> bool:
    """Whether a call computes gradients that have a graph of their own."""
    if not isinstance(node, ast.Call) or method_of(node) not in ("grad", "backward"):
        return False
    given = keyword_of(node, "create_graph")
    return isinstance(given, ast.Constant) and given.value is True


def _fewer_inner_steps(file: SourceFile, line: int, call: ast.Call) -> Iterator[Remedy]:
    place = f"{short(file.file)}:{line}"
    loop = next((node for node in reversed(file.path(line)) if isinstance(node, ast.For)), None)
    number = None
    if loop is not None and isinstance(loop.iter, ast.Call) and method_of(loop.iter) == "range":
        number = number_of(file, loop.iter.args[-1])
    if number is not None and number.value > 1:
        fewer = number.value // 2
        text = f"{number.place}: {fewer} inner steps in place of {number.value}"
        yield Remedy(text, patch=number.patch(fewer), changes_training=True)
    given = keyword_of(call, "create_graph")
    assert given is not None
    patch = file.patch_of(given, "False")
    if patch:
        text = f"{place}: create_graph=False, gradients of the first order, which keep no graph of the inner steps"
        yield Remedy(text, patch=patch, changes_training=True)


def step_next_to_the_state(case: Case) -> ProgramCause | None:
    """A step needs little, but weights, gradients and the optimizer's state leave less."""
    if case.history.phase_at(case.moment) == PHASES[OPTIMIZER]:
        return None
    sizes = {name: case.bytes_of(case.of_category(category)) for category, name in STATE_NAMES.items()}
    kept = sum(sizes.values())
    step = case.bytes_of(case.of_category(ACTIVATIONS, INPUTS, TEMPORARY)) + (case.found.requested_bytes or 0)
    if kept < SHARE_OF_STATE * case.live_bytes or step < case.found.missing_bytes:
        return None
    subject = _subject([name for name, size in sizes.items() if size])
    text = (
        f"{subject} {format_bytes(kept)}, and leave too little for one step, "
        f"which takes {format_bytes(step)} with the request that was refused."
    )
    return ProgramCause(text, smaller_steps(case), is_of_activations=True)


def _subject(names: Sequence[str]) -> str:
    """The beginning of a sentence about the size of a state's parts: "Weights and gradients take"."""
    subject = names[0]
    if len(names) > 1:
        subject = f"{', '.join(names[:-1])} and {names[-1]}"
    singular = names == [STATE_NAMES[OPTIMIZER_STATE]]
    return f"{subject[0].upper()}{subject[1:]} {'takes' if singular else 'take'}"


def smaller_steps(case: Case) -> tuple[Remedy, ...]:
    """Changes with which a step needs less: a smaller batch, recomputed layers."""
    if not case.trains and any(numbers_given(case, BEAMS)):
        generation = tuple(smaller_generation(case, np.zeros(0, np.int64)))
        if generation:
            return generation
    batches = batch_sizes(case)
    named = [remedy for batch in batches if batch.is_named for remedy in halved(case, batch)]
    by_shape = [remedy for batch in batches if not batch.is_named for remedy in halved(case, batch)]
    return (*named, *checkpointed(case), *by_shape)


def still_to_come(case: Case) -> int:
    """Bytes of the gradients and the optimizer state that a first step has yet to allocate."""
    weights = case.bytes_of(case.of_category(WEIGHTS))
    gradients = case.bytes_of(case.of_category(GRADIENTS))
    if case.history.step_at(case.moment) > 1:
        return max(0, weights - gradients)
    made: set[str] = set()
    for file in case.program_files:
        made.update(method_of(node) for node in file.nodes() if isinstance(node, ast.Call))
    # SGD has state only with momentum: count nothing unless it is certain.
    states = max((times for name, times in STATES.items() if name in made and name != "SGD"), default=0)
    return max(0, weights - gradients) + states * weights


def halved(case: Case, found: BatchSize) -> Iterator[Remedy]:
    """The batch halved until the request succeeds, with room for what is known to follow.

    Frozen weights need less, which the trace does not show. If no batch leaves that much room, propose half of the
    first batch that gets past the request; a rerun shows whether it works.
    """
    whole = found.value
    scaled = scaled_lives(case)
    held = case.bytes_of(np.intersect1d(scaled, case.alive))
    is_scaled = not case.history.asks_for_workspace(case.moment)
    # A step that failed before its backward pass will request an unknown amount of the same.
    spare = 2
    if case.history.phase_at(case.moment) == PHASES[BACKWARD]:
        spare = 1
    batch = whole
    # The fallback: half of the first batch that gets past the request.
    passes = 0
    while batch > SMALLEST:
        batch //= 2
        ran = case.resized(scaled, batch / whole, request=is_scaled)
        more = still_to_come(case) + int((spare - 1) * held * batch / whole)
        if ran.fits and not passes:
            passes = max(SMALLEST, batch // 2)
        if ran.fits and ran.peak_reserved + more <= case.capacity:
            yield of_batch(case, found, batch, ran.peak_reserved)
            return
    if passes:
        ran = case.resized(scaled, passes / whole, request=is_scaled)
        yield of_batch(case, found, passes, ran.peak_reserved)


def smaller_generation(case: Case, lives: Ints, more: int | None = None) -> Iterator[Remedy]:
    """Fewer sequences in a batch, which generates the same texts, and fewer beams, which search less.

    Args:
        case: the failed request.
        lives: blocks that shrink in addition to those that scale with the batch.
        more: bytes of these that are still to come; by default as many as there are.
    """
    scaled = np.union1d(scaled_lives(case), lives)
    if more is None:
        more = case.bytes_of(np.intersect1d(scaled, case.alive))

    for batch in batch_sizes(case, evaluates=True)[:1]:
        if batch.is_named:
            for number, peak in _passing(case, scaled, more, batch.value):
                yield of_batch(case, batch, number, peak)
    for beams in list(numbers_given(case, BEAMS))[:1]:
        for number, peak in _passing(case, scaled, more, beams.value):
            text = f"{beams.place}: num_beams={number} in place of {beams.value}, which searches less"
            yield Remedy(text, predicted_peak_bytes=peak, verified_by=BY_REPLAY, patch=beams.patch(number))


def _passing(case: Case, scaled: Ints, more: int, number: int) -> Iterator[tuple[int, int]]:
    """The largest reduction by a power of two that leaves room for the rest, else half of what gets past the
    request."""
    whole = number
    passes: tuple[int, int] | None = None
    while number > 1:
        number //= 2
        ran = case.resized(scaled, number / whole, request=True)
        if ran.fits and ran.peak_reserved + more * number // whole <= case.capacity:
            yield number, ran.peak_reserved
            return
        if ran.fits and passes is None:
            passes = max(1, number // 2), ran.peak_reserved
    if passes is not None:
        yield passes


def of_batch(case: Case, found: BatchSize, batch: int, peak: int | None = None) -> Remedy:
    """A different batch size.

    Args:
        case: the failed request.
        found: where the size is defined.
        batch: the new size.
        peak: peak of reserved bytes in a replay, for one that gets past the request; ``None`` if it was not tried.
    """
    times = -(-found.value // batch)
    alike = ""
    if case.trains and not found.evaluates:
        alike = f", {times} of them for each optimizer step to train alike"
    return Remedy(
        f"{found.text(batch)}{alike}",
        predicted_peak_bytes=peak,
        verified_by="" if peak is None else BY_REPLAY,
        patch=found.patch(batch),
        command=found.command(batch),
    )


def scaled_lives(case: Case) -> Ints:
    """Blocks that scale with the batch: activations, inputs and what is computed from them."""
    names = (ACTIVATIONS, INPUTS, TEMPORARY, OTHER_TENSORS)
    codes = list(map(case.history.categories.index, names))
    weights = np.isin(case.lives.category, [case.history.categories.index(WEIGHTS)])
    sizes = set(case.lives.requested[weights].tolist())
    scaled = np.isin(case.lives.category, codes) & (case.lives.phase != PHASES.index(PHASES[OPTIMIZER]))
    # In a backward pass, a block of a weight's size is its gradient, which does not shrink.
    like_weights = np.array([size in sizes for size in case.lives.requested.tolist()], bool)
    return np.flatnonzero(scaled & ~(like_weights & (case.lives.phase == BACKWARD)))


def checkpointed(case: Case) -> Iterator[Remedy]:
    """Recomputing the calls of a loop over layers in the backward pass instead of storing their activations."""
    if case.through("torch/utils/checkpoint.py").any():
        return
    lives = case.of_category(ACTIVATIONS, OTHER_TENSORS)
    # An outer call's line holds at least as much as those inside it: of equal ones the innermost comes first.
    for frame, _alive in case.largest_groups(lives, case.frames):
        file = case.file(frame.file)
        call = _layer_in_loop(file, frame.line)
        if call is None:
            continue
        within = np.flatnonzero(case.with_frames([(frame.file, frame.line)]) & (case.lives.born >= 0))
        within = within[case.lives.born[within] < case.moment]
        rounds = case.rounds(within)
        if len(rounds) < FEWEST_LAYERS:
            continue
        ends: dict[int, int] = {}
        # Except for the last block of each iteration, the layer's output and the next one's input, all are freed when
        # the next iteration begins: the backward pass recomputes them.
        for now, then in pairwise(rounds):
            ends.update(dict.fromkeys(now[:-1].tolist(), int(case.lives.born[then[0]])))
        ran = case.freed_sooner(ends)
        saved = case.bytes_of(np.array([life for life in ends if case.lives.freed[life] > case.moment], np.int64))
        arguments = ", ".join([ast.unparse(call.func), *map(ast.unparse, call.args)])
        changed = file.replaced(call, f"torch.utils.checkpoint.checkpoint({arguments}, use_reentrant=False)")
        patch = _with_import(file, changed)
        text = (
            f"{short(file.file)}:{frame.line}: torch.utils.checkpoint.checkpoint around each of {len(rounds)} calls, "
            f"which the backward pass makes again: up to {available(saved)} less at this moment"
        )
        if ran.fits or saved >= case.found.missing_bytes:
            yield replayed(text, ran, patch)
        return


def _layer_in_loop(file: SourceFile, line: int) -> ast.Call | None:
    """The call of a loop's layer on the previous output: ``x = layer(x)`` in ``for layer in layers``."""
    path = file.path(line)
    loop = next((node for node in reversed(path) if isinstance(node, ast.For)), None)
    statement = file.statement(line)
    if loop is None or not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    if not any(isinstance(node, Function) for node in path) or statement.value.keywords:
        return None
    call = statement.value
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    if isinstance(call.func, ast.Name) and call.func.id in targets:
        return call
    return None


def _with_import(file: SourceFile, changed: tuple[int, str] | None) -> str:
    if changed is None or not file.imports("torch"):
        return ""
    edits = LineEdits(file)
    edits.changed[changed[0]] = (changed[1],)
    if not file.imports("torch.utils.checkpoint"):
        first = next(node for node in file.nodes() if isinstance(node, ast.Import) and node.names[0].name == "torch")
        # Both edits would be on the same line.
        if first.lineno == changed[0]:
            return ""
        edits.behind(first, ["import torch.utils.checkpoint"])
    return edits.patch()
