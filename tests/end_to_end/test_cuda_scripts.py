"""Unchanged scripts that say "cuda", on a simulated GPU: the CPU's losses, and the peak that is predicted of them.

The others of `tests.end_to_end.cuda_scripts` take long, or packages that are not installed everywhere.
"""

from __future__ import annotations

import pytest

from tests.end_to_end.cuda_scripts.__main__ import CASES, as_cuda, dry_run, farthest, on_cpu


@pytest.mark.table
@pytest.mark.timeout(600)  # six processes that import torch, for a script of two ranks
@pytest.mark.parametrize(
    "name",
    [
        "imagenet.py",
        "vae.py",
        "nanogpt.py --compile --generate 8",
        "several_gpus.py",
        "several_gpus.py --strategy ddp, 2 ranks",
        "several_gpus.py --strategy fsdp, 2 ranks",
    ],
)
def test_a_script_that_says_cuda_has_the_losses_of_the_cpu_and_the_peak_that_is_predicted(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    for module in case.needs:
        pytest.importorskip(module)
    plain, ran = on_cpu(case), as_cuda(case)
    assert not plain.failure and not ran.failure, (plain, ran)
    assert farthest(ran, plain) <= 1e-5
    predicted = dry_run(case)
    assert not predicted or ran.peak == pytest.approx(predicted, rel=0.005)
