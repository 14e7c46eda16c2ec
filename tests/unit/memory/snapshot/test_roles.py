"""What stacks tell of a training step: its phase, and what is allocated there."""

from __future__ import annotations

import pytest

from gpudash.memory.snapshot.history import History
from gpudash.memory.snapshot.model import Frame
from gpudash.memory.snapshot.roles import BACKWARD, FORWARD, NO_PHASE, OPTIMIZER, Role, role_of
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import BACKWARD as BACKWARD_STACK
from tests.unit.memory.snapshot.made import FORWARD as FORWARD_STACK
from tests.unit.memory.snapshot.made import STACKS, TORCH, Made

MAIN = ("/home/mia/train.py", 90, "<module>")
CALL = (f"{TORCH}/nn/modules/module.py", 1790, "_call_impl")
ENGINE = ("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)")
APPLY = (f"{TORCH}/autograd/function.py", 575, "apply")
UNWIND = ("??", 0, "torch::unwind::unwind()")


@pytest.mark.parametrize(
    ("frames", "role", "phase"),
    [
        ((), Role.OTHER, NO_PHASE),
        ((MAIN,), Role.OTHER, NO_PHASE),
        ((UNWIND, CALL, MAIN), Role.ACTIVATIONS, FORWARD),
        ((UNWIND, ENGINE), Role.GRADIENTS, BACKWARD),
        (((f"{TORCH}/_tensor.py", 581, "backward"), MAIN), Role.GRADIENTS, BACKWARD),
        (((f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward"), MAIN), Role.GRADIENTS, BACKWARD),
        (((f"{TORCH}/autograd/grad_mode.py", 85, "decorate_context"), MAIN), Role.OTHER, NO_PHASE),
        ((APPLY, CALL, MAIN), Role.ACTIVATIONS, FORWARD),
        ((("/home/mia/model.py", 7, "backward"), APPLY), Role.GRADIENTS, BACKWARD),
        ((CALL, APPLY), Role.ACTIVATIONS, BACKWARD),
        (((f"{TORCH}/optim/adam.py", 120, "_init_group"), MAIN), Role.OPTIMIZER_STATE, OPTIMIZER),
        (((f"{TORCH}/optim/optimizer.py", 800, "zero_grad"), MAIN), Role.OTHER, NO_PHASE),
        (((f"{TORCH}/nn/modules/module.py", 900, "_apply"), MAIN), Role.WEIGHTS, NO_PHASE),
        (((f"{TORCH}/nn/modules/linear.py", 106, "__init__"), MAIN), Role.WEIGHTS, NO_PHASE),
        (((f"{TORCH}/utils/data/dataloader.py", 708, "__next__"), MAIN), Role.INPUTS, NO_PHASE),
        (
            (("??", 0, "at::cuda::getNewWorkspace()"), CALL, MAIN),
            Role.WORKSPACE,
            FORWARD,
        ),
        ((("C:\\venv\\torch\\nn\\modules\\module.py", 1790, "_call_impl"), MAIN), Role.ACTIVATIONS, FORWARD),
    ],
)
def test_the_innermost_line_that_tells_gives_the_role(frames: tuple[Frame, ...], role: Role, phase: int) -> None:
    assert role_of(frames) == (role, phase)


def categories(made: Made) -> dict[str, int]:
    history = History(made.device())
    return {group.name: group.bytes for group in history.by_category(history.alive(history.last))}


def test_without_frames_of_python_the_backward_pass_is_what_has_no_stack_between() -> None:
    made = Made()
    for _ in range(3):
        for _ in range(5):
            made.malloc(4 * MIB, FORWARD_STACK)
        made.free(made.malloc(4 * MIB, BACKWARD_STACK), BACKWARD_STACK)
        for _ in range(3):
            made.free(made.malloc(4 * MIB, None), None)
    names = [band.name for band in History(made.device()).phases]
    assert names == ["forward", "backward"] * 3


def test_without_any_backward_pass_what_has_no_stack_is_nobodys() -> None:
    made = Made()
    made.malloc(4 * MIB, None)
    made.malloc(2 * MIB, FORWARD_STACK)
    assert categories(made) == {"activations": 2 * MIB, "no stack recorded": 4 * MIB}


def test_gradients_outlive_the_backward_pass_and_its_temporaries_do_not() -> None:
    made = Made()
    for _ in range(2):
        for _ in range(2):
            made.free(made.malloc(8 * MIB, FORWARD_STACK), FORWARD_STACK)
        made.free(made.malloc(8 * MIB, BACKWARD_STACK), BACKWARD_STACK)
        made.malloc(2 * MIB, BACKWARD_STACK)
    history = History(made.device())
    of_backward = history.lives.phase == BACKWARD
    names = [history.categories[code] for code in history.lives.category[of_backward]]
    born = history.lives.born[of_backward]
    assert [name for _, name in sorted(zip(born.tolist(), names, strict=True))][:3] == [
        "temporary",
        "gradients",
        "temporary",
    ]


def test_every_stack_that_is_used_in_these_tests_has_a_role() -> None:
    assert [role_of(stack)[1] for stack in STACKS[:3]] == [FORWARD, BACKWARD, OPTIMIZER]
