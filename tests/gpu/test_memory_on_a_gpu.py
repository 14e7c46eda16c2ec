from __future__ import annotations

import pytest
import torch

from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import RunEnd
from gpudash.units import GIB, MIB
from tests.gpu import operations, out_of_memory, prediction, refusal_text, snapshots
from tests.gpu.child import asked
from tests.gpu.runs import Runner

DEVICE = "cuda:0"
CAP = MemoryCap(size=2 * GIB)


@pytest.mark.parametrize("name", ["ramp", "leak", "fragmentation", "training"])
def test_an_out_of_memory_is_explained_and_leaves_nothing_behind(gpu: Runner, name: str) -> None:
    gpu.run("pipeline", {})
    before = gpu.level()
    ending = gpu.run(*out_of_memory.CASES[name], memory_cap=CAP)

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.error == "cuda", ending
    assert ending.explanation is not None
    found = ending.explanation
    assert sum(part.bytes for part in found.parts) == found.capacity_bytes + found.beyond_bytes
    assert found.allowed_bytes == 2 * GIB
    assert sum(found.by_category.values()) == found.evidence.live_bytes <= 2 * GIB
    assert found.owners[0].file is not None and "gpudash/workloads/" in found.owners[0].file
    assert found.requested_bytes is not None
    assert found.where.line is not None or name != "ramp"  # a backward pass has a thread without Python's lines
    after = gpu.level()
    assert after["allocated_bytes"] == before["allocated_bytes"]
    assert after["reserved_bytes"] <= before["reserved_bytes"]
    assert gpu.run("pipeline", {}).status == "finished"


def test_a_loss_kept_with_its_graph_is_named(gpu: Runner) -> None:
    ending = gpu.run(*out_of_memory.CASES["leak"], memory_cap=CAP)
    found = ending.explanation

    assert found.verdict == "leak"
    assert found.growing and "losses.append" in found.growing[0].text


def test_a_request_that_no_cap_allows_is_called_impossible(gpu: Runner) -> None:
    ending = gpu.run(*out_of_memory.CASES["pipeline"], memory_cap=CAP)

    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory" and ending.explanation is not None
    assert ending.explanation.verdict == "impossible request"


def test_torch_reserves_no_more_than_the_cap_and_as_much_as_it_likes_afterwards(gpu: Runner) -> None:
    ending = gpu.run(*out_of_memory.CASES["ramp"], memory_cap=CAP)
    peak = ending.result["memory"]["peak_reserved_bytes"]

    assert 2 * GIB - 64 * MIB <= peak <= 2 * GIB
    assert gpu.run("pressure", {"step": "512MiB", "rate": 100, "cap": "4GiB", "hold": 0}).status == "finished"


@pytest.mark.parametrize("name", ["train-late", "oom", "expandable", "pending"])
def test_a_snapshot_of_torch_is_replayed_with_every_allocation_at_its_real_address(name: str) -> None:
    found = snapshots.one(DEVICE, name)

    assert "error" not in found, found["error"]
    assert found["replay"]["allocations"] == found["replay"]["allocations_at_real_address"]
    assert found["right"] and found["rebuilt_alike"]


@pytest.mark.parametrize("name", ["transformer_fp32", "mlp_fp32"])
def test_predicted_peaks_are_those_of_the_run_within_the_margin(name: str) -> None:
    capacity = torch.cuda.get_device_properties(0).total_memory
    found = prediction.measure(DEVICE, capacity, {name: prediction.SPECS[name]}, stacks="python")["specs"][name]

    assert not found["problems"]
    assert found["dry_run_initialised_cuda"] is False
    assert not found["has_context"]["dry_run"]
    for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert abs(found[figure]["error_percent"]) <= 100 * prediction.MARGIN_RATIO, found["largest_differences"]


def test_common_operations_ask_for_what_the_dry_run_says() -> None:
    names = (
        *("linear", "layer_norm", "softmax", "gelu", "dropout", "cross_entropy", "adamw_default", "matmul_bf16"),
        *("conv2d_patches", "conv1d", "conv_transpose2d", "linear_3d_bf16", "mean"),
    )
    found = operations.measure(DEVICE, names, stacks="python")

    assert not found["problems"]
    assert found["same"] == found["of"], [found["operations"][name] for name in found["different"] + found["failed"]]


def test_torchs_message_is_that_of_the_model() -> None:
    found = asked(refusal_text.refuse, DEVICE, {"case": "capped"})

    assert found["text"].partition("\n")[0] == found["model"]
