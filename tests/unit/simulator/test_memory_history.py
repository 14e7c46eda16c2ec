"""What is live, by stack and step, while the simulated cards' history is recorded; and the stacks themselves."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpudash.memory.frames import Frame, site_of
from gpudash.memory.predicting.architecture import WORKSPACE_CACHE_VARIABLE
from gpudash.memory.snapshot.history.phases import Role, role_of
from gpudash.simulator.device import memory_history
from gpudash.simulator.device import memory_history as stacks
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.memory_history import HeldBlock, MemoryHistory


@pytest.fixture(autouse=True)
def kept_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS's workspaces are kept by any torch, as they are by default before 2.15."""
    monkeypatch.setenv(WORKSPACE_CACHE_VARIABLE, "1")


@pytest.fixture
def history(sim: Backend) -> Iterator[MemoryHistory]:
    found: MemoryHistory = torch.sim.memory.history
    torch.sim.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=1000)
    yield found
    torch.sim.memory._record_memory_history(None)
    found.step = 0


def held(history: MemoryHistory, sim: Backend) -> list[HeldBlock]:
    return sorted(history.held(sim.cards[0]), key=lambda one: (one.step, -one.bytes))


def test_live_blocks_are_counted_by_line_and_step(history: MemoryHistory, sim: Backend) -> None:
    kept = []
    for history.step in (1, 2, 3):
        kept += [torch.ones(128, device="sim") for _ in range(2)]
    assert [(one.bytes, one.blocks, one.step) for one in held(history, sim)] == [
        (1024, 2, 1),
        (1024, 2, 2),
        (1024, 2, 3),
    ]
    assert len({one.stack for one in held(history, sim)}) == 1
    frame = held(history, sim)[0].stack.frames()[0]
    assert frame["filename"] == __file__ and "torch.ones" in linecache.getline(__file__, frame["line"])
    del kept[2:]
    assert [(one.bytes, one.blocks, one.step) for one in held(history, sim)] == [(1024, 2, 1)]
    del kept[:]
    assert held(history, sim) == []


def test_what_was_allocated_before_recording_is_not_counted_when_it_goes(sim: Backend) -> None:
    before = torch.ones(128, device="sim")
    torch.sim.memory._record_memory_history("all", context="alloc")
    del before
    assert torch.sim.memory.history.held(sim.cards[0]) == []
    torch.sim.memory._record_memory_history(None)
    assert torch.sim.memory.history.held(sim.cards[0]) == []


def test_groups_without_live_blocks_do_not_pile_up(
    history: MemoryHistory, sim: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_history, "MOST_EMPTY_GROUPS", 10)
    kept = torch.ones(1, device="sim")
    for history.step in range(1000):
        torch.ones(1, device="sim")
    (recording,) = [one for one in history._recordings.values() if one.card is sim.cards[0]]
    assert len(recording.groups) <= 13 and [one.step for one in held(history, sim)] == [0]
    del kept


def test_a_stack_is_kept_once_and_spelt_out_once(history: MemoryHistory, sim: Backend) -> None:
    for _ in range(3):
        torch.ones(1, device="sim")
    first, second, third = (
        event["frames"] for event in torch.sim.memory._snapshot()["device_traces"][0] if event["action"] == "alloc"
    )
    assert first is second is third and first[0]["name"] == "test_a_stack_is_kept_once_and_spelt_out_once"


def test_the_workspace_of_cublas_is_known_by_its_stack(history: MemoryHistory, sim: Backend) -> None:
    ones = torch.ones(4, 4, device="sim")
    product = ones @ ones
    trace = torch.sim.memory._snapshot()["device_traces"][0]
    stacks = [
        [Frame(one["filename"], one["line"], one["name"]) for one in event["frames"]]
        for event in trace
        if event["action"] == "alloc"
    ]
    assert [role_of(stack)[0] is Role.WORKSPACE for stack in stacks] == [False, False, True]
    assert [site.file for site in map(site_of, stacks) if site is not None] == [__file__] * 3
    assert product.shape == (4, 4)


def test_frees_have_stacks_only_where_all_contexts_are_wanted(sim: Backend) -> None:
    for context, wanted in (("alloc", False), ("all", True)):
        torch.sim.memory._record_memory_history("all", context=context, clear_history=True)
        torch.ones(1, device="sim")
        trace = torch.sim.memory._snapshot()["device_traces"][0]
        torch.sim.memory._record_memory_history(None)
        (freed,) = [event for event in trace if event["action"] == "free_completed"]
        assert bool(freed["frames"]) is wanted
        assert all(event["frames"] for event in trace if event["action"] == "alloc")


def test_code_that_is_gone_does_not_lend_its_stack_to_other_code(history: MemoryHistory, sim: Backend) -> None:
    names = []
    for number in range(50):
        scope: dict[str, Any] = {"torch": torch}
        exec(f"def made_{number}(): return torch.ones(1, device='sim')", scope)
        kept = scope[f"made_{number}"]()
        names.append(held(history, sim)[0].stack.frames()[0]["name"])
        del kept
        scope.clear()  # with it goes the function, which holds it
    assert names == [f"made_{number}" for number in range(50)]


def test_a_program_that_makes_code_without_end_does_not_fill_the_memory(
    history: MemoryHistory, sim: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_KNOWN", 5)
    for number in range(20):
        scope: dict[str, Any] = {"torch": torch}
        exec(f"def made_{number}(): return torch.ones(1, device='sim')", scope)
        scope[f"made_{number}"]()
    assert len(history._taken._known) <= 5


def test_it_is_known_whether_the_cards_are_recorded(sim: Backend) -> None:
    history: MemoryHistory = torch.sim.memory.history
    assert not history.recording
    torch.sim.memory._record_memory_history("state")
    assert history.recording and torch.sim.memory._snapshot()["device_traces"] == [[], []]
    torch.sim.memory._record_memory_history(None)
    assert not history.recording


def test_events_are_told_once_to_whoever_says_how_many_are_known(history: MemoryHistory, sim: Backend) -> None:
    (card,) = sim.cards[:1]
    kept = torch.ones(128, device="sim")
    first, seen = history.since(card, 0)
    assert "alloc" in [event[0] for event in first]
    assert history.since(card, seen) == ([], seen)
    del kept
    more, then = history.since(card, seen)
    assert [event[0] for event in more] == ["free_requested", "free_completed"]
    assert then == seen + 2


def test_of_more_events_than_are_kept_the_newest_are_told(history: MemoryHistory, sim: Backend) -> None:
    for _ in range(600):
        torch.ones(128, device="sim")
    found, seen = history.since(sim.cards[0], 0)
    assert len(found) == 1000 < seen
