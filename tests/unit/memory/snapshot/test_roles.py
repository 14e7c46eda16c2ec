"""What stacks tell of a training step: its phase, and what is allocated there."""

from __future__ import annotations

import numpy as np
import pytest

from gpudash.memory.allocator import AllocationRefused
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.history.model import Frame
from gpudash.memory.snapshot.history.phases import (
    BACKWARD,
    FORWARD,
    NO_PHASE,
    OPTIMIZER,
    Role,
    moved_gradients,
    role_of,
)
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import BACKWARD as BACKWARD_STACK
from tests.unit.memory.snapshot.made import FORWARD as FORWARD_STACK
from tests.unit.memory.snapshot.made import MOVED_GRADIENT, STACKS, TORCH, TRAIN, WEIGHTS, Made

MAIN = ("/home/mia/train.py", 90, "<module>")
CALL = (f"{TORCH}/nn/modules/module.py", 1790, "_call_impl")
ENGINE = ("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)")
APPLY = (f"{TORCH}/autograd/function.py", 575, "apply")
CLOSURE = (("/home/mia/train.py", 80, "closure"), (f"{TORCH}/optim/sgd.py", 110, "step"))
SITE = "/venv/lib/python3.12/site-packages"
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
        ((CALL, *CLOSURE, MAIN), Role.ACTIVATIONS, FORWARD),
        (((f"{TORCH}/_tensor.py", 581, "backward"), *CLOSURE, MAIN), Role.GRADIENTS, BACKWARD),
        (
            (*CLOSURE, (f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward"), MAIN),
            Role.OPTIMIZER_STATE,
            OPTIMIZER,
        ),
        (((f"{TORCH}/nn/modules/module.py", 900, "_apply"), MAIN), Role.WEIGHTS, NO_PHASE),
        (((f"{TORCH}/nn/modules/linear.py", 106, "__init__"), MAIN), Role.WEIGHTS, NO_PHASE),
        (((f"{TORCH}/utils/data/dataloader.py", 708, "__next__"), MAIN), Role.INPUTS, NO_PHASE),
        (
            (("??", 0, "at::cuda::getNewWorkspace()"), CALL, MAIN),
            Role.WORKSPACE,
            FORWARD,
        ),
        (
            ((f"{TORCH}/nn/parallel/comm.py", 67, "broadcast_coalesced"), APPLY, CALL, MAIN),
            Role.WEIGHTS,
            FORWARD,
        ),
        (((f"{TORCH}/nn/parallel/comm.py", 150, "reduce_add_coalesced"), APPLY), Role.GRADIENTS, BACKWARD),
        (
            (
                (f"{TORCH}/nn/parallel/comm.py", 187, "scatter"),
                APPLY,
                (f"{TORCH}/nn/parallel/scatter_gather.py", 27, "scatter_map"),
                CALL,
                MAIN,
            ),
            Role.INPUTS,
            FORWARD,
        ),
        (((f"{TORCH}/nn/parallel/comm.py", 235, "gather"), APPLY, CALL, MAIN), Role.ACTIVATIONS, FORWARD),
        (
            (
                (f"{TORCH}/nn/parallel/distributed.py", 1200, "_ddp_init_helper"),
                (f"{TORCH}/nn/parallel/distributed.py", 900, "__init__"),
                MAIN,
            ),
            Role.GRADIENTS,
            NO_PHASE,
        ),
        (
            ((f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 200, "foreach_all_gather"), CALL, MAIN),
            Role.WEIGHTS,
            FORWARD,
        ),
        (
            ((f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 400, "foreach_reduce"), APPLY),
            Role.GRADIENTS,
            BACKWARD,
        ),
        (
            ((f"{SITE}/vllm/v1/worker/gpu_model_runner.py", 2700, "_allocate_kv_cache_tensors"), MAIN),
            Role.KV_CACHE,
            NO_PHASE,
        ),
        ((("/home/mia/serve.py", 20, "init_all_weights"), MAIN), Role.WEIGHTS, NO_PHASE),
        (((f"{TORCH}/nn/functional.py", 1704, "relu"), MAIN), Role.ACTIVATIONS, NO_PHASE),
        (((f"{SITE}/vllm/worker/cache_engine.py", 90, "<listcomp>"), MAIN), Role.KV_CACHE, NO_PHASE),
        (((f"{SITE}/transformers/cache_utils.py", 450, "update"), CALL, MAIN), Role.KV_CACHE, FORWARD),
        (
            ((f"{SITE}/bitsandbytes/optim/optimizer.py", 480, "init_state"), MAIN),
            Role.OPTIMIZER_STATE,
            OPTIMIZER,
        ),
        ((("C:\\venv\\torch\\nn\\modules\\module.py", 1790, "_call_impl"), MAIN), Role.ACTIVATIONS, FORWARD),
    ],
)
def test_the_innermost_line_that_tells_gives_the_role(frames: tuple[Frame, ...], role: Role, phase: int) -> None:
    assert role_of(frames) == (role, phase)


def categories(made: Made) -> dict[str, int]:
    history = History(made.device())
    return history.by_category(history.alive(history.last))


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


def test_what_the_engine_was_refused_was_asked_in_the_backward_pass() -> None:
    made = Made(capacity=100 * MIB)
    for stack in (FORWARD_STACK, BACKWARD_STACK, FORWARD_STACK):
        for _ in range(4):
            made.malloc(2 * MIB, stack)
    with pytest.raises(AllocationRefused):
        made.malloc(80 * MIB, None)
    history = History(made.device())
    assert history.phase_at(int(history.ooms[-1])) == "backward"


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


def moved(line: int, name: str = "layer") -> tuple[Frame, ...]:
    """A stack of ``Module.to`` at a line of `Module._apply`, which calls itself for the children."""
    module = f"{TORCH}/nn/modules/module.py"
    return (module, 1160, "convert"), (module, line, "_apply"), (module, 900, "_apply"), (TRAIN, 10, name)


def test_what_one_call_moves_is_told_apart_into_parameters_gradients_and_buffers() -> None:
    parameters, gradients, buffers = moved(927), moved(942), moved(954)
    stacks = (parameters, gradients, buffers)
    sizes = [(0, 8 * MIB), (1, 8 * MIB), (0, 4 * MIB), (1, 4 * MIB), (0, 512), (2, 512), (2, 512)]
    stack, requested = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    assert moved_gradients(stacks, stack, requested) == [1]


def test_without_gradients_the_second_line_is_that_of_buffers() -> None:
    stacks = (moved(927), moved(954))
    # the mask of each layer is as large as one of its parameters
    stack = np.array([0, 0, 0, 1] * 6, np.int64)
    requested = np.array([4 * MIB, 16 * MIB, 16 * MIB, 4 * MIB] * 6, np.int64)
    assert moved_gradients(stacks, stack, requested) == []


def test_gradients_that_are_moved_with_their_parameters_are_gradients_in_a_history() -> None:
    made = Made()
    for size in (30, 20):
        for stack in (WEIGHTS, MOVED_GRADIENT):
            made.malloc(size * MIB, stack)
    assert categories(made) == {"weights": 50 * MIB, "gradients": 50 * MIB}
