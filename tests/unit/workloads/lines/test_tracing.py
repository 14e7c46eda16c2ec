"""Lines run one by one: which blocks each makes, keeps and drops, by name and to the byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpudash.memory.predicting.architecture import keeps_workspaces
from gpudash.simulator.device.backend import Backend, register
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.operations.operations import TORCH_VERSION
from gpudash.units import MIB
from gpudash.workloads.lines.trace import LinesTrace
from gpudash.workloads.lines.tracing import LineRunner


@pytest.fixture
def backend() -> Iterator[Backend]:
    found = register([SimulatedGpu(0, MIB, context=0)])
    before = list(found.cards)
    yield found
    found.engine.replace(before)


def run(backend: Backend, source: str, limit: int = 64 * MIB, *, on_gpu: bool = True) -> LinesTrace:
    return LineRunner(backend, limit, on_gpu=on_gpu).run(source)


def names(trace: LinesTrace, place: int) -> list[tuple[str, float]]:
    return [(block.name, block.bytes / MIB) for block in trace.moments[place].blocks]


def test_a_result_that_no_variable_has_is_named_by_its_expression_and_gone_after_its_line(backend: Backend) -> None:
    trace = run(backend, "a = torch.ones(1024, 1024)\nb = torch.ones(1024, 1024)\nc = (a + b).relu()")
    assert trace.failure is None and trace.peak == 16 * MIB
    assert [(moment.line, moment.title) for moment in trace.moments] == [
        (1, ""),
        (2, ""),
        (3, "a + b"),
        (3, "relu"),
        (0, ""),
    ]
    assert names(trace, 3) == [("a", 4), ("b", 4), ("a + b", 4), ("c", 4)]
    assert [block.named for block in trace.moments[3].blocks] == [True, True, False, True]
    assert [block.fresh for block in trace.moments[3].blocks] == [False, False, False, True]
    assert names(trace, 4) == [("a", 4), ("b", 4), ("c", 4)]
    assert (trace.moments[3].before, trace.moments[3].after) == (8 * MIB, 12 * MIB)


def test_a_variable_that_is_bound_anew_has_both_blocks_for_a_moment(backend: Backend) -> None:
    trace = run(backend, "a = torch.ones(1024, 1024)\na = a + 1")
    assert names(trace, 1) == [("a, before", 4), ("a", 4)]
    assert names(trace, 2) == [("a", 4)]


def test_a_tensor_of_the_host_is_told_beside_the_card(backend: Backend) -> None:
    trace = run(backend, "x = torch.ones(1024, 1024)\nx.to(gpu)", on_gpu=False)
    assert trace.moments[0].bytes == 0 and [block.name for block in trace.moments[0].host] == ["x"]
    assert names(trace, 1) == [("x.to(gpu)", 4)]
    assert trace.moments[2].bytes == 0 and [block.name for block in trace.moments[2].host] == ["x"]


def test_workspace_of_both_passes_is_one_block(backend: Backend) -> None:
    source = "m = nn.Linear(256, 256)\nx = torch.ones(64, 256)\ny = m(x).sum()\ny.backward()"
    trace = run(backend, source)
    assert trace.failure is None
    kernels = [[block.name for block in moment.blocks if block.workspace] for moment in trace.moments]
    assert all(names in ([], ["workspace"]) for names in kernels)
    # torch 2.15 gives workspaces back after each call
    assert (kernels[-1] == ["workspace"]) is keeps_workspaces(None, TORCH_VERSION)


def test_a_tensor_of_the_host_is_told_until_its_name_is_bound_anew(backend: Backend) -> None:
    trace = run(backend, "x = torch.ones(1024, 1024)\nx = x.to(gpu)\ny = x + 1", on_gpu=False)
    assert [[block.name for block in moment.host] for moment in trace.moments] == [["x"], ["x"], [], []]
    assert [block.name for block in trace.moments[1].blocks] == ["x"], "its copy on the card"
    both = run(backend, "x = torch.ones(1024, 1024)\nx = x.to(gpu).cpu()", on_gpu=False)
    assert [block.name for block in both.moments[1].host] == ["x, before", "x"]


def test_the_turns_of_a_loop_are_told_apart_and_what_a_list_keeps_is_its(backend: Backend) -> None:
    trace = run(backend, "kept = []\nfor number in range(3):\n    kept.append(torch.ones(1024, 1024))")
    assert [moment.turn for moment in trace.moments] == [0, 1, 2, 3, 0]
    assert [moment.bytes // MIB for moment in trace.moments] == [0, 4, 8, 12, 12]
    last = trace.moments[-1].blocks
    assert [(block.name, block.count, block.named) for block in last] == [("kept", 3, True)]


def test_the_line_that_the_card_has_no_room_for_is_named_with_what_it_asked_for(backend: Backend) -> None:
    trace = run(backend, "a = torch.ones(1024, 4096)\nb = torch.ones(4096, 1024)", 24 * MIB)
    failure = trace.failure
    assert failure is not None and failure.out_of_memory
    assert (failure.line, failure.requested, failure.held) == (2, 16 * MIB, 16 * MIB)


def test_a_segment_that_is_larger_than_the_block_is_told_apart(backend: Backend) -> None:
    failure = run(backend, "a = torch.ones(1024, 1024)", 8 * MIB).failure
    assert failure is not None and (failure.requested, failure.segment, failure.held) == (4 * MIB, 20 * MIB, 0)


@pytest.mark.parametrize(
    ("source", "line", "kind", "message"),
    [
        ("a = 1\nb = a / 0", 2, "ZeroDivisionError", "division by zero"),
        ("a = (1", 1, "SyntaxError", "'(' was never closed"),
        ("raise SystemExit(3)", 1, "SystemExit", "3"),
        ("for a in 5:\n    pass", 1, "TypeError", "'int' object is not iterable"),
        ("for a in [1, 0]:\n    1 / a", 2, "ZeroDivisionError", "division by zero"),
        ("a = torch.ones(2)\nb = a.to('cpu') + a", 2, "RuntimeError", "on the same device"),
    ],
)
def test_an_exception_is_told_with_its_line(backend: Backend, source: str, line: int, kind: str, message: str) -> None:
    failure = run(backend, source).failure
    assert failure is not None and not failure.out_of_memory
    assert (failure.line, failure.kind) == (line, kind) and message in failure.message


def test_a_training_step_has_weights_gradients_and_state_by_name(backend: Backend) -> None:
    trace = run(
        backend,
        "model = nn.Linear(512, 512)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(64, 512)).sum().backward()\n"
        "optimizer.step()",
    )
    assert trace.failure is None
    held = {block.name: block.bytes for block in trace.moments[-1].blocks}
    assert held["model"] == MIB + 2048
    assert held["optimizer's state"] == pytest.approx(2 * (MIB + 2048), abs=4096)
    assert held["model's gradients"] == MIB + 2048


def test_what_the_lines_before_did_is_reported_once_when_the_next_begins(backend: Backend) -> None:
    reported: list[tuple[int, list[int]]] = []
    runner = LineRunner(
        backend, 64 * MIB, on_line=lambda line, moments: reported.append((line, [each.line for each in moments]))
    )
    runner.run("a = torch.ones(1024, 1024)\nb = a + 1\nc = 1 / 0")
    assert reported == [(1, []), (2, [1]), (3, [2])]


def test_a_line_is_told_before_it_runs(backend: Backend) -> None:
    begun: list[int] = []
    LineRunner(backend, MIB, on_line=lambda line, _moments: begun.append(line)).run("a = 1\n\nb = 2\nc = 1 / 0\nd = 3")
    assert begun == [1, 3, 4]


def test_a_trace_crosses_as_json(backend: Backend) -> None:
    trace = run(backend, "a = torch.ones(4)\nb = 1 / 0")
    assert LinesTrace.from_json(trace.to_json()) == trace
    with pytest.raises(ValueError, match="moments"):
        LinesTrace.from_json({"source": [], "limit": 1})


def test_the_default_device_is_as_before(backend: Backend) -> None:
    import torch

    run(backend, "a = torch.ones(4)")
    assert torch.ones(1).device.type == "cpu"
