"""The optimizer's first step creates its state, whose size can be computed before it is complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from gpudash.memory.allocator.trace import OPTIMIZER_STATE, WEIGHTS
from gpudash.memory.snapshot.causes.case import BY_REPLAY, Case, ProgramCause
from gpudash.memory.snapshot.history.phases import OPTIMIZER, PHASES
from gpudash.memory.snapshot.source_edits import SourceFile, keyword_of, method_of
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes

STATES = {
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "RMSprop": 1,
    "Adagrad": 1,
    "Adadelta": 2,
    "Rprop": 2,
    "ASGD": 1,
    "SGD": 1,
    "Lion": 1,
    "LAMB": 2,
}
"""Values that an optimizer stores for each parameter, each of its size (torch/optim: `_init_group` of each class); SGD
only with momentum."""

FILES = {"adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop", "nadam": "NAdam", "radam": "RAdam", "adadelta": "Adadelta"}
"""Files of torch/optim that create the state of a class with a different name."""

SHARE_OF_STATE = 0.02
"""Part of the weights' size that the state must already have, unless the failed request is for the state itself."""

ALL_OF_STATE = 0.99
"""Part of the state from which it counts as complete: step counters take a few bytes."""

MOST_PASSING = 3
"""Copies of all weights that an optimizer uses besides its state (torch/optim: the ``_multi_tensor_`` functions)."""

BYTES_OF_8_BITS = 1 + 4 / 256
"""Bytes for each value of an 8-bit state: one 32-bit scale for every 256 values (bitsandbytes, torchao)."""

WITH_8_BITS = frozenset({"Adagrad", "Adam", "AdamW", "LAMB", "Lion", "RMSprop", "SGD"})
"""Optimizers for which bitsandbytes has such a state."""

_HALF = re.compile(r"\b(bfloat16|float16|half)\b")


def first_step_of_optimizer(case: Case) -> ProgramCause | None:
    """The state of an optimizer that is created in the step that failed."""
    history = case.history
    if history.phase_at(case.moment) != PHASES[OPTIMIZER]:
        return None
    state = case.bytes_of(case.of_category(OPTIMIZER_STATE))
    weights = case.bytes_of(case.of_category(WEIGHTS))
    bands = [band for band in history.phases if band.name == PHASES[OPTIMIZER]]
    is_first = len(bands) == 1
    if not is_first or state < SHARE_OF_STATE * weights or not weights:
        return None
    call, file = _made(case)
    if call is not None:
        name = method_of(call)
    else:
        name = _by_stack(case)
    times = STATES.get(name, 0) or round(state / weights) or 1
    if call is not None and _is_true(keyword_of(call, "amsgrad")):
        times += 1
    whole = times * weights
    # What exceeds the state is the step's temporary memory, allocated by the same lines.
    passing = max(0, state - whole)
    if passing > MOST_PASSING * weights:
        return None
    state -= passing
    per = "as much as the weights"
    if times > 1:
        per = f"{times} × {format_bytes(weights)} of weights"
    text = (
        f"The first step of {name or 'the optimizer'} makes its state: {format_bytes(whole)} in all ({per}), of which "
        f"{format_bytes(state)} were there when memory ran out"
    )
    if passing:
        text += f", with {format_bytes(passing)} of what it works in"
    text += "."
    return ProgramCause(text, tuple(_remedies(case, name, call, file, state, whole, weights)))


def _remedies(
    case: Case, name: str, call: ast.Call | None, file: SourceFile | None, state: int, whole: int, weights: int
) -> Iterator[Remedy]:
    # The rest of the first step counts too: a remedy must also save that.
    lacking = case.found.missing_bytes + whole - state
    if state >= ALL_OF_STATE * whole:
        yield from _one_by_one(case, call, file)
    held = case.of_category(OPTIMIZER_STATE)
    ran = case.resized(held, 0, request=True)
    if ran.fits:
        place = ""
        patch = ""
        if call is not None and file is not None:
            place = f"{short(file.file)}:{call.lineno}: "
            patch = _as_sgd(file, call)
        yield Remedy(
            f"{place}torch.optim.SGD without momentum in place of {name}: {format_bytes(whole)} less",
            predicted_peak_bytes=ran.peak_reserved,
            verified_by=BY_REPLAY,
            changes_training=True,
            patch=patch,
        )
    for text, saved in (
        (_with_8_bits(name), whole - int(whole * BYTES_OF_8_BITS / _value_bytes(case))),
        ("the state in host memory (torchao.optim.CPUOffloadOptimizer, DeepSpeed's offload)", whole),
        ("weights, gradients and state shared out over 2 GPUs (FSDP: fully_shard)", (whole + 2 * weights) // 2),
    ):
        if saved >= lacking:
            yield Remedy(f"{text}: {format_bytes(saved)} less")


def _with_8_bits(name: str) -> str:
    if name not in WITH_8_BITS:
        name = "AdamW"
    # torchao has 8-bit versions of only these two.
    also = ""
    if name in ("Adam", "AdamW"):
        also = ", torchao.optim"
    return f"a state of 8 bits (bitsandbytes.optim.{name}8bit{also})"


def _value_bytes(case: Case) -> int:
    """Bytes per value of the weights, and so of the state: 2 if the program uses half precision, else 4."""
    calls = (node for file in case.program_files for node in file.nodes() if isinstance(node, ast.Call))
    for call in calls:
        types = [ast.unparse(word.value) for word in call.keywords if word.arg in ("dtype", "torch_dtype")]
        types += [ast.unparse(argument) for argument in call.args if method_of(call) == "to"]
        if method_of(call) in ("bfloat16", "half"):
            return 2
        if method_of(call) != "autocast" and any(map(_HALF.search, types)):
            return 2
    return 4


def _one_by_one(case: Case, call: ast.Call | None, file: SourceFile | None) -> Iterator[Remedy]:
    """The state is complete, and the optimizer's temporaries for all parameters together are too large."""
    passing = np.flatnonzero(case.lives.phase == PHASES.index(PHASES[OPTIMIZER]))
    kept = case.of_category(OPTIMIZER_STATE)
    ran = case.resized(np.setdiff1d(passing, kept), 0, request=True)
    if not ran.fits:
        return
    patch = ""
    place = ""
    if call is not None and file is not None and keyword_of(call, "foreach") is None:
        place = f"{short(file.file)}:{call.lineno}: "
        patch = file.patch_of(call, f"{ast.unparse(call)[:-1]}, foreach=False)")
    yield Remedy(
        f"{place}foreach=False for the optimizer, which then updates one parameter at a time",
        predicted_peak_bytes=ran.peak_reserved,
        verified_by=BY_REPLAY,
        patch=patch,
    )


def _made(case: Case) -> tuple[ast.Call | None, SourceFile | None]:
    """The call that creates the optimizer, if the program's files contain a single one."""
    found = []
    for file in case.program_files:
        calls = [node for node in file.nodes() if isinstance(node, ast.Call)]
        found += [(call, file) for call in calls if _keeps_state(call)]
    if len(found) == 1:
        return found[0]
    return None, None


def _keeps_state(call: ast.Call) -> bool:
    name = method_of(call)
    return name in STATES and (name != "SGD" or keyword_of(call, "momentum") is not None)


def _by_stack(case: Case) -> str:
    """The optimizer's class, by the file that creates its state."""
    stack = int(case.history.columns.stack[case.moment])
    if stack < 0:
        return ""
    for file, _line, _name in case.history.device.stacks[stack]:
        stem = short(file).removesuffix(".py")
        if "/optim/" in file.replace("\\", "/") and stem != "optimizer":
            known = {name.lower(): name for name in STATES}
            return FILES.get(stem) or known.get(stem, "")
    return ""


def _as_sgd(file: SourceFile, call: ast.Call) -> str:
    if not call.args and keyword_of(call, "params") is None:
        return ""
    parameters = keyword_of(call, "params")
    if call.args:
        parameters = call.args[0]
    assert parameters is not None
    rate = keyword_of(call, "lr")
    if rate is None and len(call.args) > 1:
        rate = call.args[1]
    rate_text = "1e-3"
    if rate is not None:
        rate_text = ast.unparse(rate)
    owner = "torch.optim"
    if isinstance(call.func, ast.Attribute):
        owner = ast.unparse(call.func.value)
    elif not file.imports("torch"):
        return ""
    decay = keyword_of(call, "weight_decay")
    arguments = [ast.unparse(parameters), f"lr={rate_text}"]
    if decay is not None:
        arguments.append(f"weight_decay={ast.unparse(decay)}")
    return file.patch_of(call, f"{owner}.SGD({', '.join(arguments)})")


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
