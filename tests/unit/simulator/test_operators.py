"""torch's own operator samples (float32) on the simulated GPU: the CPU's results and gradients, or a refusal in words.

Left out are operators that do not take float32 on the CPU, and jiterator's, which compile CUDA code. Of operators that
leave their result uninitialised (``empty`` and its like) sizes, dtypes and devices are compared, and not counted. Each
operator runs its first three samples, the first of which asks for the memory that CUDA's kernels ask for; with
``GPUDASH_OPERATOR_SAMPLES=10`` in the environment ten, with 0 all of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.programs import python

pytestmark = pytest.mark.long

pytest.importorskip("expecttest", reason="torch's samples need it")

SCRIPT = Path(__file__).with_name("operator_samples.py")
SAMPLES = os.environ.get("GPUDASH_OPERATOR_SAMPLES", "3")
GROUP = 240
PATIENCE_S = 150

REFUSED = {"sparse.sampled_addmm", "sparse.mm reduce", "to_sparse"}
"""A simulated GPU keeps dense tensors only."""

REQUESTS = json.loads((SCRIPT.parent / "recorded" / "operators.json").read_text(encoding="utf-8"))
"""What the first sample of an operator asks of torch 2.13's own allocator on a stand-in for the CUDA libraries, which
computes nothing; without those that the simulated GPU has never asked alike, most of them of linear algebra."""

UNINITIALISED = ("empty", "new_empty")
LEAST_SHARE = 0.98


def reports(first: int, last: int) -> dict[str, dict[str, Any]]:
    """What came of the operators ``first`` to ``last``, by name."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[3]), "OMP_NUM_THREADS": "1"}
    ran = python(str(SCRIPT), str(first), str(last), SAMPLES, env=environment, timeout=PATIENCE_S)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    name, found = "none yet", {}
    for line in lines:
        if "operator" in line:
            name = line["operator"]
        elif "samples" in line:
            found[name] = line
    assert ran.returncode == 0, f"the process ended with {ran.returncode} in {name}:\n{ran.stderr[-2000:]}"
    return found


@pytest.mark.parametrize("first", range(0, 3 * GROUP, GROUP))
def test_operators_give_the_results_and_gradients_of_the_cpu_or_are_refused_in_words(first: int) -> None:
    last = first + GROUP if first < 2 * GROUP else 10_000
    found = reports(first, last)
    assert len(found) > GROUP // 2
    assert not {name: report["wrong"] for name, report in found.items() if report["wrong"]}
    assert not {name: report["left"] for name, report in found.items() if report["left"]}
    refused = {name: report["refused"] for name, report in found.items() if report["refused"]}
    assert set(refused) <= REFUSED
    assert all(sentence.startswith("A simulated GPU keeps no sparse") for sentence in refused.values())
    asked = {name: report["asked"] for name, report in found.items() if name in REQUESTS}
    assert len(asked) > GROUP // 4
    assert asked == {name: REQUESTS[name] for name in asked}
    counted = [name for name in found if not name.startswith(UNINITIALISED)]
    good = [name for name in counted if found[name]["samples"] and not found[name]["refused"]]
    assert len(good) / len(counted) >= LEAST_SHARE
