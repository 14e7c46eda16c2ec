"""What is told of runs that fill a simulated GPU."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.telemetry.explanation import explanation_from_json
from gpudash.units import GIB, MIB
from gpudash.workloads.live_blocks import can_record
from tests.programs import told_by

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What came of the runs."""
    found: dict[str, Any] = told_by("unit.workloads.explained_runs")
    return found


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("leak", "leak"),
        ("ramp", "leak"),
        ("fragmentation", "fragmentation"),
        ("impossible", "impossible request"),
        ("capacity", "real capacity"),
        ("other", "other process"),
        ("sawtooth", "real capacity"),
    ],
)
def test_each_way_of_filling_the_memory_is_told_from_the_others(runs: dict[str, Any], name: str, verdict: str) -> None:
    assert runs[name]["explanation"]["verdict"] == verdict


@pytest.mark.parametrize("name", ["leak", "ramp", "fragmentation", "impossible", "capacity", "other"])
def test_an_explanation_accounts_for_every_byte_of_the_card(runs: dict[str, Any], name: str) -> None:
    found = explanation_from_json(runs[name]["explanation"])
    assert sum(part.bytes for part in found.parts) == found.capacity_bytes and not found.beyond_bytes
    assert not found.part_bytes("unattributed")
    assert sum(owner.bytes for owner in found.owners) + found.rest_bytes == found.evidence.live_bytes
    assert found.evidence.without_stack_bytes == 0
    assert found.evidence.events == found.evidence.of_events


def test_a_loss_kept_with_its_graph_is_named_before_memory_is_full(runs: dict[str, Any]) -> None:
    leak = runs["leak"]
    assert leak["steps_before_warning"] < 0.5 * leak["steps"]
    (warning,) = leak["warnings"]
    assert warning["device"] == "SIM-0-1GiB"
    assert warning["text"].startswith("pressure.py:")
    assert "losses.append(" in warning["text"] and "of every step" in warning["text"]
    assert warning["cause"].startswith("pressure.py:")
    (growth,) = leak["explanation"]["growing"]
    assert growth["bytes_per_step"] == pytest.approx(24 * MIB, rel=0.15)
    assert growth["text"].startswith("losses.append(")


def test_the_leaking_line_owns_most_of_the_memory(runs: dict[str, Any]) -> None:
    found = explanation_from_json(runs["leak"]["explanation"])
    first = found.owners[0]
    assert first.file is not None and first.file.endswith("pressure.py")
    assert first.name == "train_step" and first.category == "activations"
    assert first.growth_per_step is not None and first.last_step > first.first_step
    lines = [line.name for line in first.stack if not line.is_library]
    assert lines[:3] == ["train_step", "leak", "run"]


def test_what_belongs_to_the_model_is_told_from_what_passes_through_it(runs: dict[str, Any]) -> None:
    by_category = runs["capacity"]["explanation"]["by_category"]
    assert by_category["weights"] > 0 and by_category["inputs"] > 0
    assert by_category["activations"] > by_category["weights"]
    assert "other tensors" not in by_category


def test_the_refused_request_is_told_with_its_place(runs: dict[str, Any]) -> None:
    where = runs["ramp"]["explanation"]["where"]
    assert where["stage"] == "allocate" and where["file"].endswith("pressure.py")
    assert where["step"] == runs["ramp"]["steps"] + 1
    assert runs["ramp"]["explanation"]["requested_bytes"] == 16 * MIB


def test_another_process_is_told_by_its_number(runs: dict[str, Any]) -> None:
    assert "(pid 4711)" in runs["other"]["explanation"]["headline"]


def test_a_run_that_fills_the_memory_by_design_is_not_replayed_for_remedies(runs: dict[str, Any]) -> None:
    found = explanation_from_json(runs["fragmentation"]["explanation"])
    assert found.remedies == () and found.largest_free_block_bytes < (found.requested_bytes or 0)


def test_only_of_a_fragmented_memory_it_is_told_how_the_blocks_lay(runs: dict[str, Any]) -> None:
    found = explanation_from_json(runs["fragmentation"]["explanation"])
    blocks = found.blocks
    assert blocks is not None and blocks.consistent
    assert sum(blocks.bytes) == sum(found.by_category.values())
    assert sum(blocks.segments) - sum(blocks.bytes) == found.part_bytes("idle")
    assert {blocks.lines[label].split(":")[0] for label in blocks.label} == {"pressure.py"}
    assert explanation_from_json(runs["leak"]["explanation"]).blocks is None


def test_fragments_are_mended_by_expandable_segments_in_a_replay(runs: dict[str, Any]) -> None:
    found = explanation_from_json(runs["fragments"]["explanation"])
    (remedy,) = found.remedies
    assert remedy.allocator == "expandable_segments:True" and remedy.verified_by == "replay"
    assert remedy.predicted_peak_bytes is not None and remedy.predicted_peak_bytes < GIB // 2


def test_a_card_too_small_for_its_context_is_told_so(runs: dict[str, Any]) -> None:
    found = explanation_from_json(runs["context"]["explanation"])
    assert found.verdict == "impossible request"
    assert found.headline == "The card is too small for the context of 300 MiB itself: it has 100 MiB."


@pytest.mark.parametrize("pattern", ["ramp", "leak"])
def test_the_default_cap_keeps_a_run_within_what_is_free_and_allowed(runs: dict[str, Any], pattern: str) -> None:
    for name in (f"{pattern} on 1 GiB", f"{pattern} allowed 512 MiB"):
        assert runs[name]["kind"] == "RunFinished" and runs[name]["steps"] > 2, name
        segments_of_the_rest = 22 * MIB
        assert runs[name]["reserved"] <= 0.8 * runs[name]["room"] + segments_of_the_rest, name


def test_where_memory_is_can_be_asked_while_a_run_goes_on(runs: dict[str, Any]) -> None:
    learns = runs["learns"]
    assert learns["kind"] == "RunFinished" and not learns["warnings"]
    (details,) = learns["asked"]
    found = explanation_from_json(details)
    assert found.verdict == "headroom" and found.requested_bytes is None and found.missing_bytes == 0
    assert {"weights", "optimizer state", "inputs"} <= set(found.by_category)


def test_nothing_is_left_behind_on_the_card(runs: dict[str, Any]) -> None:
    assert all(run["left_bytes"] == 0 and not run["tagged"] for run in runs.values())


def test_a_torch_without_cuda_keeps_no_history() -> None:
    import torch

    assert can_record() is (torch.version.cuda is not None)
