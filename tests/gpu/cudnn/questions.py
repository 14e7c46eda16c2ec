"""Convolutions to ask cuDNN about: those recorded of an H100, and many drawn at random; as torch calls them.

Each is an object of JSON: the sizes of ``input`` and ``weight``, ``dtype``, ``last``, ``part``, aten's other arguments.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpudash.simulator.convolutions.workspaces import question_of

RECORDED = Path(__file__).parents[1] / "recorded" / "h100.json"

PARTS = ("forward", "of_input", "of_weight")

ORDER = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
"""Of aten's arguments, behind input, weight and bias."""

MANY = 3000

MOST_ELEMENTS = 2**25
"""Of input and result of what is drawn: a call takes milliseconds on a card."""

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def recorded() -> list[dict[str, Any]]:
    """Those whose workspaces an H100 took: ``taken``, in bytes."""
    found = []
    for case in json.loads(RECORDED.read_text(encoding="utf-8"))["convolutions"]:
        axes = len(case["stride"])
        plain = {"dilation": [1] * axes, "transposed": False, "output_padding": [0] * axes, "groups": 1, "last": False}
        found += [{**plain, **case, "part": part, "taken": case[part]} for part in PARTS if part in case]
    return found


def drawn(count: int, capability: tuple[int, int], seed: int = 0) -> list[dict[str, Any]]:
    """Convolutions that cuDNN computes on such a card. None is depthwise: some of these are torch's own."""
    choose = random.Random(seed)
    dtypes = ["float32", "float16"]
    if capability >= (8, 0):
        dtypes.append("bfloat16")
    found: list[dict[str, Any]] = []
    while len(found) < count:
        axes = choose.choice((1, 2, 2, 2, 2, 3))
        groups = choose.choice((1, 1, 1, 1, 2, 32))
        inward, outward = (groups * choose.choice((2, 4, 8, 16, 32, 64)) for _ in range(2))
        if groups == 1:
            inward, outward = (choose.choice((3, 16, 32, 64, 96, 128, 256, 320, 512, 1024)) for _ in range(2))
        kernel = choose.choice((1, 3, 3, 3, 5, 7))
        transposed = choose.random() < 0.15
        batch, side = choose.choice((1, 2, 8, 16, 32, 64)), choose.choice((7, 14, 28, 32, 56, 64, 112, 224))
        ends = (outward, inward // groups)
        if transposed:
            ends = (inward, outward // groups)
        case = {
            "dtype": choose.choice(dtypes),
            "last": axes > 1 and choose.random() < 0.5,
            "part": choose.choice(PARTS),
            "input": [batch, inward, *[side] * axes],
            "weight": [*ends, *[kernel] * axes],
            "stride": [choose.choice((1, 1, 2))] * axes,
            "padding": [choose.choice((0, kernel // 2))] * axes,
            "dilation": [choose.choice((1, 1, 1, 2))] * axes,
            "transposed": transposed,
            "output_padding": [0] * axes,
            "groups": groups,
        }
        if _is_small(case):
            found.append(case)
    return found


def _is_small(case: dict[str, Any]) -> bool:
    """Whether the convolution can be made, and takes little."""
    values = torch.empty(case["input"], device="meta")
    if values.numel() > MOST_ELEMENTS:
        return False
    try:
        made = torch.ops.aten.convolution(values, torch.empty(case["weight"], device="meta"), None, *_order(case))
    except RuntimeError:  # a kernel larger than the image
        return False
    return 0 < made.numel() <= MOST_ELEMENTS


def arguments(case: dict[str, Any], device: str = "meta") -> dict[str, Any]:
    """Those of aten by name; of a gradient with that of the result."""
    dtype = getattr(torch, case["dtype"])
    made = {
        name: torch.empty(case[name], dtype=dtype, device=device).contiguous(memory_format=_layout(case))
        for name in ("input", "weight")
    }
    given = {**{name: case[name] for name in ORDER}, **made}
    if case["part"] != "forward":
        given["grad_output"] = call(given, "forward")
    return given


def _layout(case: dict[str, Any]) -> torch.memory_format:
    if case["last"]:
        return LAYOUTS[len(case["input"])]
    return torch.contiguous_format


def call(given: dict[str, Any], part: str) -> torch.Tensor:
    """Compute the part."""
    if part == "forward":
        made: torch.Tensor = torch.ops.aten.convolution(given["input"], given["weight"], None, *_order(given))
        return made
    wanted = [part == "of_input", part == "of_weight", False]
    gradients: list[torch.Tensor] = torch.ops.aten.convolution_backward(
        given["grad_output"], given["input"], given["weight"], None, *_order(given), wanted
    )
    return gradients[wanted.index(True)]


def question(case: dict[str, Any]) -> dict[str, Any]:
    """What gpudash asks cuDNN about it."""
    given = arguments(case)
    result = given.get("grad_output")
    if result is None:
        result = call(given, "forward")
    return question_of(given, case["part"], list(result.shape), _layout(case))


def _order(case: dict[str, Any]) -> list[Any]:
    return [case[name] for name in ORDER]


SETS: dict[str, Callable[[tuple[int, int]], list[dict[str, Any]]]] = {
    "recorded": lambda _capability: recorded(),
    "many": lambda capability: drawn(MANY, capability),
}
"""Of the capability of the card."""
