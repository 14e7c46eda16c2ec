"""What ordinary training code does, on the simulated GPU and on the CPU: the same numbers."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("sim")

DEVICES = ("cpu", "sim")

LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: nn.Conv1d(2, 3, 2), (2, 2, 5)),
    (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (1, 4, 5, 5)),
    (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    (lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), (1, 2, 4, 4)),
    (lambda: nn.BatchNorm2d(2), (3, 2, 4, 4)),
    (lambda: nn.InstanceNorm2d(2), (2, 2, 3, 3)),
    (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    (lambda: nn.LayerNorm(4), (2, 4)),
    (lambda: nn.RMSNorm(4), (2, 4)),
    (lambda: nn.MaxPool2d(2), (1, 2, 4, 4)),
    (lambda: nn.AdaptiveAvgPool2d(1), (1, 2, 4, 4)),
    (lambda: nn.AdaptiveMaxPool2d(2), (1, 2, 4, 4)),
    (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
    (lambda: nn.Dropout(0.5), (20, 20)),
    (lambda: nn.PReLU(), (3,)),
    (lambda: nn.ReflectionPad2d(1), (1, 2, 3, 3)),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 3, 8)),
    (lambda: nn.RNN(4, 5, 2), (3, 2, 4)),
    (lambda: nn.LSTM(4, 5, 2, bidirectional=True), (3, 2, 4)),
    (lambda: nn.GRU(4, 5, bias=False), (3, 2, 4)),
    (lambda: nn.GRU(4, 5, 2), (3, 2, 4)),
]


def seeded(make: Any, device: str) -> Any:
    torch.manual_seed(0)
    return make().to(device)


@pytest.mark.parametrize(("make", "size"), LAYERS)
def test_layers_give_the_results_and_gradients_of_the_cpu(make: Any, size: tuple[int, ...]) -> None:
    found: dict[str, list[torch.Tensor]] = {}
    for device in DEVICES:
        layer = seeded(make, device)
        values = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
        torch.manual_seed(2)
        result = layer(values)
        result = result[0] if isinstance(result, tuple) else result
        result.sin().sum().backward()
        grads = [values.grad, *[parameter.grad for parameter in layer.parameters()]]
        found[device] = [tensor.detach().cpu() for tensor in (result, *grads)]
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.AdamW, {"foreach": False}),
    (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.RMSprop, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.Adafactor, {}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_optimizers_step_as_on_the_cpu(kind: Any, options: dict[str, Any]) -> None:
    found = []
    for device in DEVICES:
        module = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), device)
        optimizer = kind(module.parameters(), lr=0.05, **options)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.ones(2, 3, device=device)).square().sum().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        found.append([parameter.detach().cpu() for parameter in module.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_parameters_stay_the_same_objects_when_a_module_moves() -> None:
    module = nn.Linear(2, 2)
    tied = nn.Linear(2, 2)
    tied.weight = module.weight
    both = nn.Sequential(module, tied)
    weight, optimizer = module.weight, torch.optim.SGD(both.parameters(), 0.1)
    both.to("sim")
    assert (
        module.weight is weight is tied.weight and weight.device.type == "sim" and torch.sim.memory_allocated() == 1536
    )
    both(torch.ones(1, 2, device="sim")).sum().backward()
    optimizer.step()
    both.half().cpu()
    assert module.weight is weight and weight.dtype == torch.float16 and weight.grad.device.type == "cpu"
    assert torch.sim.memory_allocated() == 0 or torch.sim.memory_allocated() % 8_519_680 == 0


def lazy_layers() -> list[Any]:
    return [
        (nn.LazyConv2d(4, 3), (2, 3, 8, 8)),
        (nn.LazyConvTranspose1d(4, 3), (2, 3, 8)),
        (nn.LazyLinear(4, dtype=torch.float64), (2, 6)),
        (nn.LazyBatchNorm2d(), (2, 3, 4, 4)),
        (nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyInstanceNorm1d(affine=True)), (2, 3, 8)),
    ]


@pytest.mark.parametrize("kind", range(len(lazy_layers())))
def test_lazy_modules_get_their_sizes_on_the_device_that_they_were_moved_to(kind: int) -> None:
    layer, size = lazy_layers()[kind]
    before = list(map(id, layer.parameters()))
    assert layer.to("sim:0") is layer
    assert list(map(id, layer.parameters())) == before
    after = dict([*layer.named_parameters(), *layer.named_buffers()])
    assert any(map(is_lazy, after.values()))
    assert {tensor.device for tensor in after.values()} == {torch.device("sim:0")}
    dtype = next(layer.parameters()).dtype
    result = layer(torch.ones(size, device="sim:0", dtype=dtype))
    assert result.device == torch.device("sim:0") and result.dtype == dtype
    result.sum().backward()
    assert not any(map(is_lazy, layer.parameters()))
    assert all(weight.grad is not None and weight.grad.device == weight.device for weight in layer.parameters())
    assert layer.state_dict().keys() == after.keys()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_draw_the_same_dropout_again(use_reentrant: bool) -> None:
    grads = []
    for device in DEVICES:
        module = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)), device)
        for kept in (True, False):
            values = torch.ones(2, 4, device=device, requires_grad=True)
            torch.manual_seed(1)
            module.zero_grad()
            (module(values) if kept else checkpoint(module, values, use_reentrant=use_reentrant)).sum().backward()
            grads.append(module[0].weight.grad.cpu())
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_are_run_again_under_the_same_autocast(use_reentrant: bool) -> None:
    seen: list[torch.dtype] = []
    module = nn.Linear(4, 4).to("sim")

    def run(values: torch.Tensor) -> torch.Tensor:
        result = module(values)
        seen.append(result.dtype)
        return result  # type: ignore[no-any-return]

    values = torch.ones(2, 4, device="sim", requires_grad=True)
    with torch.autocast("sim", dtype=torch.bfloat16):
        result = checkpoint(run, values, use_reentrant=use_reentrant)
    result.sum().backward()
    assert seen and set(seen) == {torch.bfloat16}


def test_backward_passes_run_on_every_device_inside_each_other_and_twice() -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
            return values * 2

        @staticmethod
        def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = torch.ones(3, device="sim:1", requires_grad=True)
                (inner * inner).sum().backward()
            return grad * inner.grad.to("sim:0")

    values = torch.ones(3, device="sim:0", requires_grad=True)
    Nested.apply(values).sum().backward()
    assert values.grad.tolist() == [2, 2, 2]
    values = torch.full((3,), 2.0, device="sim:1", requires_grad=True)
    (grad,) = torch.autograd.grad((values**3).sum(), values, create_graph=True)
    grad.sum().backward()
    assert values.grad.tolist() == [12, 12, 12]
    del grad, values
    exact = torch.randn(1, 1, 3, 3, dtype=torch.float64, device="sim", requires_grad=True)
    kernel = torch.randn(1, 1, 2, 2, dtype=torch.float64, device="sim", requires_grad=True)
    assert torch.autograd.gradgradcheck(nn.functional.conv2d, (exact, kernel))


def test_threads_train_side_by_side() -> None:
    found: list[float] = []

    def train(index: int) -> None:
        values = torch.ones(50, device=f"sim:{index % 2}", requires_grad=True)
        for _ in range(20):
            (values * values).sum().backward()
        found.append(values.grad[0].item())

    threads = [threading.Thread(target=train, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [40.0] * 4 and torch.sim.memory_allocated(0) == torch.sim.memory_allocated(1) == 0


def test_hooks_are_called_and_saved_tensors_are_packed() -> None:
    called: list[str] = []
    module = nn.Linear(3, 3).to("sim")
    module.register_forward_hook(lambda *_: called.append("forward"))
    module.register_full_backward_hook(lambda *_: called.append("backward"))
    module.weight.register_hook(lambda grad: grad * 0 + 7)
    module.weight.register_post_accumulate_grad_hook(lambda _: called.append("accumulated"))
    module(torch.ones(1, 3, device="sim", requires_grad=True)).sum().backward()
    assert sorted(called) == ["accumulated", "backward", "forward"] and module.weight.grad[0, 0].item() == 7
    values = torch.ones(3, device="sim", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        squared = (values * values).sum()
    squared.backward()
    assert values.grad.tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_function_transforms_give_the_numbers_of_the_cpu() -> None:
    def run(values: torch.Tensor) -> torch.Tensor:
        return (values.sin() * values).sum()

    here = torch.randn(4, 3)
    there = here.to("sim")
    transforms = (
        lambda values: torch.func.vmap(run)(values),
        lambda values: torch.func.vmap(torch.func.grad(run))(values),
        lambda values: torch.func.jvp(run, (values[0],), (values[1],))[1],
        lambda values: torch.func.vjp(run, values[0])[1](torch.ones((), device=values.device))[0],
        lambda values: torch.func.jacrev(torch.sin)(values[0]),
    )
    for transform in transforms:
        torch.testing.assert_close(transform(there).cpu(), transform(here))


def test_tensors_made_for_inference_stay_that() -> None:
    torch.ones(2, device="sim", dtype=torch.int16)
    with torch.inference_mode():
        assert torch.ones(2, device="sim", dtype=torch.int16).is_inference()
        assert torch.ones(2, device="sim", dtype=torch.int8).is_inference()
    assert not torch.ones(2, device="sim", dtype=torch.int8).is_inference()
    with torch.inference_mode():
        values = torch.ones(2, device="sim") + 1
        values.view(1, 2).t_()
        assert values.is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        values.add_(1)
    with torch.no_grad():
        assert not (torch.ones(2, device="sim", requires_grad=True) * 2).requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformers_take_their_fast_path_with_and_without_padding() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    values, padded = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    found = []
    for device in DEVICES:
        encoder.to(device)
        with torch.inference_mode():
            plain = encoder(values.to(device)).cpu()
            masked = encoder(values.to(device), src_key_padding_mask=padded.to(device)).cpu()
        found.append((plain, masked[0], masked[1, :3]))
    torch.testing.assert_close(found[1], found[0])


def test_compiled_code_runs_as_it_is_with_a_warning() -> None:
    compiler = torch._TorchCompileInductorWrapper("default", None, False)
    graph = torch.fx.symbolic_trace(lambda values: values + 1)
    with pytest.warns(UserWarning, match="compiles nothing for sim"):
        run = compiler(graph, [torch.ones(2, device="sim")])
    assert run(torch.ones(2, device="sim")).tolist() == [2, 2]


def test_a_dropout_keeps_one_byte_an_element_and_a_norm_two_numbers_a_row() -> None:
    values = torch.ones(1024, 1024, device="sim", requires_grad=True)
    before = torch.sim.memory_allocated()
    dropped = nn.functional.dropout(values, 0.5)
    assert torch.sim.memory_allocated() - before == 2**20 * 5
    del dropped
    torch.sim.reset_peak_memory_stats()
    normal = nn.functional.layer_norm(values, (1024,))
    assert torch.sim.max_memory_allocated() - before == 2**20 * 4 + 2 * 4096
    del normal


def test_no_warning_is_given_by_ordinary_code() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = nn.Linear(4, 4).to("sim")
        module(torch.randn(2, 4, device="sim")).relu().mean().backward()
        torch.optim.AdamW(module.parameters()).step()
