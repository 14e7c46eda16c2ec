"""``gpudash estimate training --devices A,B``: what each rank takes, and which one decides."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.cli.terminal.estimates.estimate_report import print_estimate
from gpudash.memory.predicting.estimate import Alternative, Estimate
from gpudash.memory.predicting.rank_estimates import NCCL_BYTES
from gpudash.session.predicting import estimator
from gpudash.units import GIB, MIB

pytestmark = pytest.mark.process

ESTIMATE = {
    "workload": "training",
    "device": "sim:0",
    "peak_allocated_bytes": 9 * GIB,
    "peak_reserved_bytes": 10 * GIB,
    "minimum_capacity_bytes": 10 * GIB,
    "overhead_bytes": 300 * MIB,
    "by_category": {"weights": GIB, "activations": 8 * GIB},
    "capacity_bytes": 8 * GIB,
    "free_bytes": 8 * GIB,
    "fits": False,
    "spare_bytes": -round(2.3 * GIB),
    "largest_batch_size": 12,
    "first_step_bytes": 8 * GIB,
    "steady_bytes": 9 * GIB,
    "phases": [{"step": 1, "phase": "forward", "allocated": 8 * GIB}],
    "method": "made up",
    "seconds": 0.25,
    "alternatives": [
        {"change": "batch 12", "fields": {"batch": 12}, "peak_reserved_bytes": 7 * GIB, "fits": True},
        {
            "change": "activation checkpointing",
            "fields": {"checkpointing": True},
            "peak_reserved_bytes": 9 * GIB,
            "needed_bytes": 9 * GIB + 300 * MIB,
            "free_bytes": 8 * GIB,
            "fits": False,
            "slowdown": 1.33,
            "slowdown_from": "FLOPs of the dry run",
        },
    ],
}

SCRIPT = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"], **json.loads(sys.argv[1])}), flush=True)
"""

CONTRACT = {
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "minimum_capacity_bytes",
    "overhead_bytes",
    "by_category",
    "capacity_bytes",
    "free_bytes",
    "fits",
    "margin_bytes",
    "largest_batch_size",
    "alternatives",
    "method",
    "seconds",
}

CARD = {"change": "a card with 12 GiB", "card_bytes": 12 * GIB}

Answers = Callable[..., None]
ON_SIM = ("training", "--device", "sim:0", "--simulate", "8GiB")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answers:
    """Makes the process give one answer to everything."""
    script = tmp_path / "predictor.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def give(**answer: Any) -> None:
        command = (sys.executable, "-I", str(script), json.dumps({"final": True, **answer}))
        monkeypatch.setattr(estimator, "COMMAND", command)

    return give


def error(kind: str, message: str, remedy: str = "") -> dict[str, str]:
    return {"kind": kind, "message": message, "remedy": remedy}


def test_the_document_has_the_promised_keys_and_a_run_that_does_not_fit_is_an_answer(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(estimate=ESTIMATE)
    assert run(["estimate", *ON_SIM, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() >= CONTRACT
    assert document["fits"] is False
    assert (document["workload"], document["device"], document["simulated"]) == ("training", "sim:0", True)
    assert document["alternatives"][0].keys() >= {
        "change",
        "peak_reserved_bytes",
        "fits",
        "slowdown",
        "changes_training",
    }
    assert document["warnings"] == []


def test_what_recipes_would_save_is_a_table_below_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    saving = Alternative(
        "torchtune's recipe",
        {},
        fits=True,
        needed_bytes=5 * GIB,
        free_bytes=24 * GIB,
        saved_bytes=6 * GIB,
        note="--loss",
    )
    print_estimate(Estimate(workload="model", device="sim:0", peak_allocated_bytes=11 * GIB, savings=(saving,)))
    shown = capsys.readouterr().out
    assert "recipes do" in shown and "torchtune's recipe  6.00 GiB" in shown
    print_estimate(Estimate(workload="model", device="sim:0", peak_allocated_bytes=11 * GIB))
    assert "recipes do" not in capsys.readouterr().out


def test_a_simulated_gpu_that_is_asked_for_is_what_the_prediction_is_for(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(estimate=ESTIMATE)
    assert run(["estimate", "training", "--simulate", "8GiB"]) == 0
    assert capsys.readouterr().out.startswith("training on sim:0 (SIMULATED)")


def test_a_person_reads_the_verdict_a_bar_its_parts_and_what_would_fit(
    answers: Answers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    answers(estimate=ESTIMATE)
    assert run(["estimate", *ON_SIM]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "training on sim:0 (SIMULATED): does not fit, 2.30 GiB short"
    bar = lines[1]
    inside, _, beyond = bar.removesuffix(" 8.00 GiB free").partition("|")
    assert len(inside + beyond) == 60
    assert round(60 * 8 / 10.293) == len(inside)
    assert bar.count("W") == pytest.approx(60 / 10.293, abs=1)
    assert any("A activations 8.00 GiB" in line for line in lines)
    assert "largest batch that fits: 12" in lines
    row = next(line for line in lines if line.startswith("activation checkpointing"))
    assert "9.29 GiB" in row and "does not fit" in row and "+33 % time, from FLOPs of the dry run" in row


def test_an_edit_of_a_program_is_printed_as_its_diff_and_a_command_as_a_line(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = "--- train.py\n+++ train.py\n@@ -1 +1 @@\n-batch = 64 # [bold]\n+batch = 8 # [bold]\n"
    ways = [{"change": "a batch of 8", "patch": patch}, {"change": "--batch", "command": ["python", "a b.py", "-b8"]}]
    answers(estimate={**ESTIMATE, "alternatives": ways})
    assert run(["estimate", *ON_SIM]) == 0
    told = capsys.readouterr().out
    assert f"The change, for patch -p0 in the program's folder:\n{patch}" in told
    assert "The command with the change: python 'a b.py' -b8\n" in told


def test_under_a_memory_cap_a_higher_one_is_offered_and_the_bar_ends_where_it_ends(
    answers: Answers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    answers(estimate={**ESTIMATE, "free_bytes": 4 * GIB, "alternatives": [CARD]})
    capped = ("training", "--device", "sim:0", "--simulate", "16GiB", "--memory-cap", "25%")
    assert run(["estimate", *capped]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1].endswith("4.00 GiB free under the cap")
    assert {"memory cap: 25 %", "smallest capacity that would do without the cap: 10.00 GiB"} <= set(lines)
    assert any(line.startswith("a memory cap of 10.0 GiB  10.29 GiB of 10.29 GiB") for line in lines)
    assert not any(line.startswith("a card with") for line in lines)
    assert run(["estimate", *capped, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory_cap_bytes"] == 2 * GIB  # a quarter of what the answer tells of


def test_what_cannot_be_predicted_exits_with_1_and_says_why_and_the_way_out(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(error=error("data_dependent", "It reads numbers.", "Move it out of the step."))
    assert run(["estimate", *ON_SIM, "--json"]) == 1
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["status"] == "failed"
    assert document["error"] == error("data_dependent", "It reads numbers.", "Move it out of the step.")
    assert document["reason"] == "It reads numbers."
    assert document["simulated"] is True
    assert told.err.strip() == "It reads numbers. Move it out of the step."


def test_a_request_the_process_refuses_exits_with_2(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    answers(error=error("request", "That is not possible.", "Do another."))
    assert run(["estimate", *ON_SIM]) == 2
    assert capsys.readouterr().err.strip() == "That is not possible. Do another."


def test_a_time_limit_before_anything_is_known_is_named_with_its_flag(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(id=0)
    assert run(["estimate", *ON_SIM, "--time-limit", "0.2"]) == 1
    assert "raise --time-limit" in capsys.readouterr().err


def test_what_was_known_when_the_time_was_over_is_printed_with_a_warning(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(estimate=ESTIMATE, final=False)
    assert run(["estimate", *ON_SIM, "--time-limit", "0.2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"] is False
    assert "only partly known" in document["warnings"][0]


RANK = {
    "rank": 0,
    "device": "cpu",
    "capacity_bytes": 16 * GIB,
    "free_bytes": 8 * GIB,
    "peak_allocated_bytes": 9 * GIB,
    "peak_reserved_bytes": 10 * GIB,
    "minimum_capacity_bytes": 11 * GIB,
    "overhead_bytes": 300 * MIB + NCCL_BYTES,
    "fits": False,
    "spare_bytes": -round(2.3 * GIB),
    "margin_bytes": 0,
}
OF_RANKS: dict[str, Any] = {
    **ESTIMATE,
    "device": "cpu",
    "overhead_bytes": 300 * MIB + NCCL_BYTES,
    "communication_bytes": NCCL_BYTES,
    "ranks": [RANK, {**RANK, "rank": 1, "free_bytes": 16 * GIB, "fits": True, "spare_bytes": round(5.5 * GIB)}],
    "deciding_rank": 0,
    "strategy": "fsdp",
    "largest_global_batch": 24,
}
ON_TWO = ("estimate", "training", "--devices", "cpu,cpu", "--parallel", "fsdp")


@pytest.fixture
def answered(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(estimate=OF_RANKS)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("answered")
def test_the_document_has_each_rank_and_the_one_that_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ON_TWO, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ranks"][0].keys() >= {
        "rank",
        "device",
        "capacity_bytes",
        "free_bytes",
        "peak_reserved_bytes",
        "minimum_capacity_bytes",
        "fits",
        "margin_bytes",
    }
    assert (document["fits"], document["deciding_rank"], document["largest_global_batch"]) == (False, 0, 24)


@pytest.mark.usefixtures("answered")
def test_a_person_reads_the_ranks_and_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(ON_TWO)) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "training on 2 ranks (cpu): does not fit, 2.30 GiB short on rank 0"
    assert any("N NCCL (assumed) 192 MiB" in line for line in lines)
    assert "largest batch: 12 per rank, 24 in all" in lines
    assert "rank 1 on cpu: 10.50 GiB of 16.00 GiB free, fits" in lines
    assert "assumed: NCCL about 192 MiB per rank" in lines


def test_a_prediction_above_its_limit_is_an_answer_that_fails(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(estimate=ESTIMATE)
    assert run(["estimate", *ON_SIM, "--max", "11GiB"]) == 0
    assert run(["estimate", *ON_SIM, "--max", "10GiB"]) == 1
    said = capsys.readouterr()
    assert said.err.endswith("training needs 10.30 GiB, 0.30 GiB more than the 10.00 GiB that --max allows.\n")
    assert "does not fit" in said.out


def test_a_run_that_takes_all_there_is_is_above_every_limit_and_cannot_be_stored(
    answers: Answers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers(estimate={**ESTIMATE, "spare_bytes": None})
    assert run(["estimate", *ON_SIM, "--max", "80GiB"]) == 1
    assert "takes all the memory there is" in capsys.readouterr().err
    assert run(["estimate", *ON_SIM, "--write-baseline", str(tmp_path / "memory.json")]) == 2
    assert "nothing to compare or store" in capsys.readouterr().err


def test_a_prediction_is_stored_and_compared_by_category_and_phase(
    answers: Answers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(tmp_path / "memory.json")
    answers(estimate=ESTIMATE)
    assert run(["estimate", *ON_SIM, "--write-baseline", file]) == 0
    assert run(["estimate", *ON_SIM, "--baseline", file]) == 0
    assert "training takes 10.3 GiB, as the baseline says." in capsys.readouterr().err
    grown = {"by_category": {"weights": GIB, "activations": 9 * GIB}, "peak_allocated_bytes": 10 * GIB}
    answers(estimate={**ESTIMATE, **grown, "peak_reserved_bytes": 11 * GIB, "spare_bytes": -round(3.3 * GIB)})
    assert run(["estimate", *ON_SIM, "--baseline", file]) == 1
    said = capsys.readouterr()
    assert "category activations" in said.out and "+1.00 GiB" in said.out
    assert "1.00 GiB more than the baseline's 10.3 GiB (+9.7 %), beyond the tolerance of 1 %" in said.err
    assert run(["estimate", *ON_SIM, "--baseline", file, "--tolerance", "10%", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["baseline"]["grown"] is False
    assert {"kind": "category", "name": "activations", "before_bytes": 8 * GIB, "after_bytes": 9 * GIB} in document[
        "baseline"
    ]["changes"]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--max", "0"), "--max 0 leaves nothing to run in"),
        (("--max", "20 apples"), "is not a size"),
        (("--tolerance", "2%"), "--tolerance is for comparing with a baseline"),
        (("--baseline", "FILE", "--tolerance", "-1"), "is no share"),
        (("--baseline", "/nowhere/memory.json"), "There is no baseline"),
        (("--baseline", "FILE"), "no memory baseline of gpudash"),
        (("--write-baseline", "FILE"), "no memory baseline of gpudash"),
    ],
)
def test_a_budget_that_is_none_is_refused_before_anything_is_predicted(
    flags: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "memory.json"
    file.write_text("{}", encoding="utf-8")
    assert run(["estimate", *ON_SIM, *(str(file) if word == "FILE" else word for word in flags)]) == 2
    said = capsys.readouterr()
    assert why in said.err and said.out == "" and file.read_text(encoding="utf-8") == "{}"


def test_a_baseline_without_the_workload_says_what_it_has(
    answers: Answers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(tmp_path / "memory.json")
    answers(estimate={**ESTIMATE, "workload": "pipeline"})
    assert run(["estimate", *ON_SIM, "--write-baseline", file]) == 0
    answers(estimate=ESTIMATE)
    assert run(["estimate", *ON_SIM, "--baseline", file]) == 2
    assert "has no entry 'training', but pipeline." in capsys.readouterr().err


def test_a_server_has_no_budget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["estimate", "--model", str(tmp_path), "--task", "serve", "--max", "20GiB"]) == 2
    assert "so that --max does not apply. Leave --max out." in capsys.readouterr().err
