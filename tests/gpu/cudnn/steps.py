"""Five steps on a card, in their order: is what cuDNN says without a card what a card takes, and if not, why?

1. ``cudnn_card``: the properties that cuDNN writes of this card, and its GPCs.
2. ``cudnn_recorded``: the workspaces that an H100 took, asked with the card hidden and in sight. Where those that a
   hidden card misses are right in sight, it is the card that those kernels ask.
3. ``cudnn_many``: many more, both ways, and taken by torch.
4. ``cudnn_models``: image models, ``benchmark`` too: predicted by asking, and taken.
5. ``cudnn_attention``: what cuDNN's attention asks of the allocator, predicted and taken.

Each gives what it found as JSON has it; ``error`` is one sentence where there is nothing to measure.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.gpu import image_models, operations
from tests.gpu.child import asked, limited
from tests.gpu.cudnn import asking, questions
from tests.gpu.model_peaks import beside, summary

Card = Mapping[str, Any]
"""``capability`` and ``multiprocessors``, as of `tests.gpu.prediction.card_of`."""

HOPPER = [9, 0]

MOST_SHOWN = 60
"""Convolutions that are told one by one of those that differ."""

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}

BLOCK = 512
"""torch's allocator rounds up to so many bytes."""

LIMITS_S = {
    "cudnn_card": 40.0,
    "cudnn_recorded": 40.0,
    "cudnn_many": 80.0,
    "cudnn_models": 100.0,
    "cudnn_attention": 45.0,
}
"""Of each step: with all of them a third of the time that there is on a card is spent."""

STARTING_S = 15.0
"""Of a step's time, kept for importing torch and making a context."""

AT_ONCE = 6
"""Models, each in a process of its own."""

WORDS = ("last", "benchmark")


def measure(name: str, device: str, card: Callable[[], Card]) -> dict[str, Any]:
    """Take a step.

    Args:
        name: of `STEPS`.
        card: is asked only where there is one.
    """
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        return {"error": f"There is no CUDA card here ({device}) to hold cuDNN's answers against."}
    began = time.monotonic()
    found = _in_a_sentence(STEPS[name](device, card(), LIMITS_S[name]))
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def _in_a_sentence(found: dict[str, Any]) -> dict[str, Any]:
    """The same; of a traceback its last line."""
    if "error" not in found:
        return found
    return {**found, "error": found["error"].strip().splitlines()[-1]}


def _card(device: str, _card: Card, limit_s: float) -> dict[str, Any]:
    found = asked(asking.tell_properties, device, limit_s=limit_s / 2)
    return {**found, "gpcs": _in_a_sentence(asked(asking.tell_gpcs, device, limit_s=limit_s / 2))}


def _recorded(device: str, card: Card, limit_s: float) -> dict[str, Any]:
    cases = questions.recorded()
    answers, problems = _both_ways("recorded", device, card, limit_s)
    if list(card["capability"]) == HOPPER:
        answers["taken"] = [{"workspace": case["taken"]} for case in cases]
    return {**_agreements(cases, answers), **problems}


def _many(device: str, card: Card, limit_s: float) -> dict[str, Any]:
    cases = questions.drawn(questions.MANY, tuple(card["capability"]))
    answers, problems = _both_ways("many", device, card, limit_s, taken=True)
    return {**_agreements(cases, answers), **problems}


def _both_ways(
    name: str, device: str, card: Card, limit_s: float, *, taken: bool = False
) -> tuple[dict[str, list[dict[str, Any] | None]], dict[str, Any]]:
    """Answers by the way they were asked, and what went wrong.

    Args:
        name: of `questions.SETS`.
        taken: whether torch computes them, too.
    """
    argument = {"set": name, "capability": card["capability"], "seconds": max(1.0, limited(limit_s) - STARTING_S)}
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "hidden": lambda: asked(asking.ask_hidden, "none", argument, limit_s=limit_s, environment=HIDDEN),
        "in_sight": lambda: asked(asking.ask_in_sight, device, {**argument, "own": False}, limit_s=limit_s),
        "own": lambda: asked(asking.ask_in_sight, device, {**argument, "own": True}, limit_s=limit_s),
    }
    if taken:
        ways["taken"] = lambda: asked(asking.take, device, argument, limit_s=limit_s)
    with ThreadPoolExecutor(len(ways)) as pool:
        found = dict(zip(ways, pool.map(lambda way: way(), ways.values()), strict=True))
    problems = {f"{way}_problem": _in_a_sentence(told)["error"] for way, told in found.items() if "error" in told}
    return {way: told.get("answers", []) for way, told in found.items()}, problems


def _agreements(
    cases: Sequence[Mapping[str, Any]], answers: Mapping[str, list[dict[str, Any] | None]]
) -> dict[str, Any]:
    """How often two ways gave the same, by part and whether by a kernel with clusters; and those that differ."""
    counts: dict[str, dict[str, int]] = {}
    different: list[dict[str, Any]] = []
    for one, other in itertools.combinations(answers, 2):
        counted: Counter[str] = Counter()
        for case, left, right in zip(cases, answers[one], answers[other], strict=False):
            if left is None or right is None:
                counted["refused by one" if left != right else "refused by both"] += 1
                continue
            clusters = left.get("clusters", False)
            kind = f"{case['part']}{', clusters' if clusters else ''}"
            sizes = left["workspace"], right["workspace"]
            counted[f"{kind}: of"] += 1
            counted[f"{kind}: to the byte"] += sizes[0] == sizes[1]
            counted[f"{kind}: the same block"] += -(-sizes[0] // BLOCK) == -(-sizes[1] // BLOCK)
            if sizes[0] != sizes[1] and len(different) < MOST_SHOWN:
                different.append({**case, one: sizes[0], other: sizes[1], "clusters": clusters})
        counts[f"{one} and {other}"] = dict(counted)
    return {"asked": {way: len(told) for way, told in answers.items()}, "agree": counts, "different": different}


def _models(device: str, card: Card, limit_s: float) -> dict[str, Any]:
    """Every model in float32, as it is and with ``benchmark``, and in a half with channels last."""
    half = "bf16" if list(card["capability"]) >= [8, 0] else "fp16"
    ways = (("fp32", False, False), ("fp32", False, True), (half, True, False))
    until = time.monotonic() + limited(limit_s)
    cases = [
        {"model": model, "dtype": dtype, "last": last, "benchmark": benchmark, "inference": False, **card}
        for dtype, last, benchmark in ways
        for model in image_models.MODELS
    ]
    names = [", ".join([case["model"], case["dtype"], *(word for word in WORDS if case[word])]) for case in cases]

    def one(case: Mapping[str, Any]) -> dict[str, Any]:
        told = []
        for measurement, where, environment in (
            (image_models.follow, "none", HIDDEN),
            (image_models.take, device, {}),
        ):
            left = until - time.monotonic()
            if left <= 0:
                return {"problems": ["there was no time left for it"]}
            told.append(asked(measurement, where, case, limit_s=left, environment=environment))
        return {**beside(*told), "cudnn": told[0].get("cudnn", "")}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(one, cases), strict=True))
    plain = {name: row for name, row in found.items() if "benchmark" not in name}
    tried = {name: row for name, row in found.items() if "benchmark" in name}
    return {"summary": summary(plain), "summary_benchmark": summary(tried), "models": found}


def _attention(device: str, _card: Card, limit_s: float) -> dict[str, Any]:
    return operations.measure(device, operations.CUDNN_ATTENTION, limit_s=limit_s)


STEPS: dict[str, Callable[[str, Card, float], dict[str, Any]]] = {
    "cudnn_card": _card,
    "cudnn_recorded": _recorded,
    "cudnn_many": _many,
    "cudnn_models": _models,
    "cudnn_attention": _attention,
}
"""In the order in which they are taken."""
