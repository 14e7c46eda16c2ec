"""Taking a snapshot from a second thread, while the program goes on importing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from gpudash.agent.memory import snapshots as cuda_snapshot
from tests.programs import python

NAMES_ITS_LINES = """
import sys, threading
import torch
from gpudash.agent.memory import snapshots

traceback = torch._C._profiler.gather_traceback(True, False, False)
torch.cuda.memory._snapshot = lambda: torch._C._profiler.symbolize_tracebacks([traceback])[0]
found = []
thread = threading.Thread(target=lambda: found.extend(snapshots.take(torch)))
thread.start()
thread.join()
print(found[0]["name"], [name for name in sys.modules if name.startswith(("torch._inductor", "torch._dynamo"))])
import torch._inductor
print(torch._inductor.__name__)
"""
"""What torch's C++ does for a snapshot is to name the lines of its tracebacks, which also torch without CUDA can."""


@pytest.mark.process
def test_torch_names_the_lines_of_a_snapshot_without_importing_its_compiler() -> None:
    ended = python("-c", NAMES_ITS_LINES, check=True)
    assert ended.stdout.splitlines() == ["<module> []", "torch._inductor"]


def test_the_program_may_import_meanwhile_and_finds_torch_unchanged_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vars(torch)["__getattr__"]
    seen: dict[str, Any] = {}

    def program() -> None:
        seen["program"] = hasattr(torch, "set_vital"), hasattr(torch, "no such attribute")

    def snapshot() -> str:
        thread = threading.Thread(target=program)
        thread.start()
        thread.join()
        seen["taker"] = hasattr(torch, "set_vital"), hasattr(torch, "Tensor")
        return "taken"

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    with pytest.warns(UserWarning, match="set_vital"):
        assert cuda_snapshot.take(torch) == "taken"
    assert seen == {"program": (True, False), "taker": (False, True)}
    assert vars(torch)["__getattr__"] is before


def test_a_snapshot_that_fails_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vars(torch)["__getattr__"]

    def snapshot() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    with pytest.raises(RuntimeError):
        cuda_snapshot.take(torch)
    assert vars(torch)["__getattr__"] is before
