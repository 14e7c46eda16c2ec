"""torch's compiler and its symbols are left out of the process that predicts, until something needs them."""

from __future__ import annotations

import pytest
from torch.fx.experimental import symbolic_shapes

from gpudash.simulator.without_compiler import PLAIN
from tests.programs import python

pytestmark = pytest.mark.process

STEP = """
import torch
from gpudash.simulator.without_compiler import leave_compiler_out
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
assert "sympy.core" not in sys.modules
"""

SYMBOLIC = """
from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_and, sym_eq
values = torch.ones(3, device="meta").normal_()
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
import sympy
shapes = ShapeEnv()
context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
mode = FakeTensorMode(shape_env=shapes)
rows = mode.from_tensor(torch.ones(5), symbolic_context=context).shape[0]
assert isinstance(rows, torch.SymInt) and isinstance(rows.node.expr, sympy.Expr)
assert sym_eq((rows, 2), (rows, 2)) and guard_or_false(rows == 5) and sym_and(rows > 1, rows > 2)
assert len(shapes.guards) > 0
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
from gpudash.simulator.without_compiler import leave_compiler_out
leave_compiler_out()
assert trace_of(TrainingSpec(), DryRun()).steps == 3
"""
    python("-c", prediction + NOT_LOADED, check=True)


def test_a_model_of_transformers_is_imported_without_the_compiler_which_is_there_afterwards() -> None:
    transformers = """
import torch
from gpudash.simulator.without_compiler import leave_compiler_out, load_masks_class
leave_compiler_out()
load_masks_class()
import transformers.models.llama.modeling_llama
"""
    later = """
compiled = torch.compile(lambda values: values * 2, backend="eager")
assert compiled(torch.ones(2)).tolist() == [2, 2]
assert torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
assert TransformGetItemToIndex is transformers.masking_utils.TransformGetItemToIndex
"""
    python("-c", transformers + NOT_LOADED + later, check=True)


def test_symbols_are_there_for_whoever_has_some() -> None:
    python("-c", STEP + SYMBOLIC, check=True)


@pytest.mark.filterwarnings("ignore:guard_size_oblivious:FutureWarning")
def test_what_is_answered_in_place_of_torch_is_answered_as_torch_does() -> None:
    values = {
        "sym_eq": [((2, 3), [2, 3]), ((2, 3), (2, 4)), (2, 2), (2, 3), ((2,), (2, 2))],
        "sym_and": [(True, True), (True, False), (True,)],
        "sym_or": [(False, True), (False, False), (True,)],
        "is_nested_int": [(3,), (0,)],
        "has_guarding_hint": [(3,), (0,)],
        "guarding_hint_or_throw": [(3,), (True,)],
    }
    for name, plain in PLAIN.items():
        real = getattr(symbolic_shapes, name)
        for arguments in values.get(name, [(True,), (False,)]):
            assert plain(*arguments) is real(*arguments), (name, arguments)
