"""The private names of torch's C++ module that a CUDA build has, as torch itself lists them.

A build for the CPU has few of them, so a test cannot see there whether a name is right. torch's compiler names every
function of ``torch._C`` it may meet, in every build: ``torch/_dynamo/trace_rules.py``.
The part of it that keeps CUDA's graphs, ``torch/_inductor/cudagraph_trees.py``, imports a few more where there is CUDA.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch


@cache
def names_in_torch_c() -> frozenset[str]:
    rules = Path(torch.__file__).with_name("_dynamo") / "trace_rules.py"
    graphs = Path(torch.__file__).with_name("_inductor") / "cudagraph_trees.py"
    return frozenset(
        re.findall(r'"torch\._C\.(\w+)"', rules.read_text(encoding="utf-8"))
        + re.findall(r"(\b_cuda_CUDA\w+) as \w+,$", graphs.read_text(encoding="utf-8"), re.MULTILINE)
    )


def set_in_torch_c(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Give ``torch._C`` for one test what a CUDA build has under this name, and this build may lack."""
    assert name in names_in_torch_c(), f"no build of torch has torch._C.{name}"
    monkeypatch.setattr(torch._C, name, value, raising=False)
