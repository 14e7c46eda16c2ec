"""The calls of NVML are those that NVIDIA's own bindings make of its library."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pynvml
import pytest

import gpudash.sources
from gpudash.sources.ssh import remote_reader

SOURCES = Path(gpudash.sources.__file__).parent


def test_every_name_that_is_taken_from_nvidia_s_bindings_is_there() -> None:
    taken = {
        node.attr
        for path in (SOURCES / "nvml").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pynvml"
    }
    assert {"nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth"} <= taken
    assert [name for name in sorted(taken) if not hasattr(pynvml, name)] == []


CALLED = set(re.findall(r'"(nvml[A-Z]\w+)"', inspect.getsource(remote_reader)))

OF_THE_HEADER = {"nvmlInit_v2"}
"""What nvml.h calls nvmlInit; the bindings begin with nvmlInitWithFlags, which drivers of before 2018 do not have."""


@pytest.mark.parametrize("name", sorted(CALLED - OF_THE_HEADER))
def test_every_function_that_is_called_by_name_is_one_that_the_bindings_call_too(name: str) -> None:
    assert f'"{name}"' in inspect.getsource(pynvml)
