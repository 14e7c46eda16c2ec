"""torch's compiler is left out of the process that predicts, until something needs it."""

from __future__ import annotations

from tests.programs import python

STEP = """
import torch
from gpudash.workloads.predicting.without_compiler import leave_compiler_out
leave_compiler_out()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.Adam([weight])
weight.sum().backward()
optimizer.step()
optimizer.zero_grad()
"""

NOT_LOADED = """
import sys
assert "torch._dynamo.eval_frame" not in sys.modules
"""

COMPILED = """
compiled = torch.compile(lambda values: values * 2, backend="eager")
assert compiled(torch.ones(2)).tolist() == [2, 2]
optimizer.step()
assert torch._dynamo.config.verbose is False
import torch._dynamo.eval_frame
"""


def test_an_optimizer_steps_without_the_compiler() -> None:
    python("-c", STEP + NOT_LOADED, check=True)


def test_the_compiler_is_there_for_whoever_uses_it() -> None:
    python("-c", STEP + COMPILED, check=True)


def test_a_default_prediction_loads_no_compiler() -> None:
    prediction = """
import torch
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.specs import TrainingSpec
from gpudash.workloads.predicting.dry_run import trace_of
from gpudash.workloads.predicting.without_compiler import leave_compiler_out
leave_compiler_out()
assert trace_of(TrainingSpec(), DryRun()).steps == 3
"""
    python("-c", prediction + NOT_LOADED, check=True)
