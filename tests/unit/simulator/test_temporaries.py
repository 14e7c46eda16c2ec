"""What CUDA's kernels take beside their results, against what torch's CUDA build asked its allocator for.

The requests of ``recorded/reductions.json`` are those of torch 2.13's own code on a stand-in for the CUDA libraries,
which computes nothing: ``[function, dtype, sizes, strides, offset, dimensions, capability, multiprocessors,
requests]``, a request being positive and what is given back negative.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from gpudash.memory.predicting.architecture import USUAL_WORKSPACE_BYTES, WORKSPACE_CACHE_VARIABLE, Architecture
from gpudash.simulator.convolutions import workspaces as workspaces_of_convolutions
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.dry_run.host_tensors import HostTensors
from tests.unit.simulator.kernel_samples import cases

REDUCTIONS = json.loads((Path(__file__).parent / "recorded" / "reductions.json").read_text(encoding="utf-8"))

KERNELS = json.loads((Path(__file__).parent / "recorded" / "kernels.json").read_text(encoding="utf-8"))

MULTIPROCESSORS = {"8.0": 108, "9.0": 132, "12.0": 170}
"""Of the cards that `KERNELS` was recorded on."""

FUNCTIONS: dict[str, Callable[[torch.Tensor, list[int]], Any]] = {
    "sum": lambda x, dims: x.sum(dims),
    "sum32": lambda x, dims: x.sum(dims, dtype=torch.float32),
    "mean": lambda x, dims: x.mean(dims),
    "norm": lambda x, dims: torch.linalg.vector_norm(x, 2, dims),
    "amax": lambda x, dims: x.amax(dims),
    "argmax": lambda x, dims: x.argmax(dims[0]),
    "max": lambda x, dims: x.max(dims[0]),
    "maxall": lambda x, _dims: x.max(),
    "any": lambda x, dims: x.any(dims[0]),
    "var": lambda x, dims: x.var(dims),
    "prod": lambda x, dims: x.prod(dims[0]),
}


@pytest.fixture(autouse=True)
def kept_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS's workspaces are kept by any torch, as they are by default before 2.15."""
    monkeypatch.setenv(WORKSPACE_CACHE_VARIABLE, "1")


@pytest.fixture
def dry(sim: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The simulated device without numbers, which has no room for what is not to be computed."""
    monkeypatch.setattr(sim.engine, "computes", False)
    return sim


def like(
    backend: Backend, capability: str = "8.0", multiprocessors: int = 108, *, cudnn_converts: bool = True
) -> list[int]:
    """Make the card one of this design; gets what is asked of its allocator from then on."""
    major, minor = (int(part) for part in capability.split("."))
    architecture = Architecture((major, minor), multiprocessors, cudnn_converts=cudnn_converts)
    card = SimulatedGpu(0, 2**40, context=0, computes=False, architecture=architecture)
    backend.engine.replace([card])
    asked: list[int] = []

    def happened(action: str, _address: int, size: int, _stream: int) -> None:
        if action in ("alloc", "free_completed"):
            asked.append(size if action == "alloc" else -size)

    card.observe(happened)
    return asked


@pytest.mark.parametrize("row", REDUCTIONS, ids=[f"{row[0]} {row[1]} {row[2]} {row[6]}" for row in REDUCTIONS])
def test_a_reduction_takes_what_torch_takes_on_a_card_of_this_design(row: list[Any], dry: Backend) -> None:
    function, dtype, sizes, strides, offset, dims, capability, multiprocessors, requests = row
    asked = like(dry, capability, multiprocessors)
    room = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    tensor = torch.empty(room, dtype=getattr(torch, dtype), device="sim").as_strided(sizes, strides, offset)
    asked.clear()
    result = FUNCTIONS[function](tensor, dims)
    assert asked == requests and result is not None


@pytest.mark.parametrize(("capability", "name"), [(card, name) for card, names in KERNELS.items() for name in names])
def test_a_kernel_asks_for_what_it_asks_for_on_a_card_of_this_design(capability: str, name: str, dry: Backend) -> None:
    asked = like(dry, capability, MULTIPROCESSORS[capability], cudnn_converts=False)
    run = cases("sim")[name]
    run()  # products have their workspaces from then on
    asked.clear()
    run()
    assert sorted(size for size in asked if size > 0) == KERNELS[capability][name]


def test_bags_keep_what_cuda_keeps_of_them_and_learn_as_on_the_cpu(sim: Backend) -> None:
    words, begins = torch.tensor([1, 2, 2, 3, 0, 3]), torch.tensor([0, 2, 2])
    for mode in (0, 1, 2):
        grads = []
        for device in ("cpu", "sim"):
            table = torch.arange(12.0, device=device).reshape(4, 3).requires_grad_()
            given = table, words.to(device), begins.to(device)
            made, bags, sizes, largest = torch.ops.aten._embedding_bag(*given, False, mode)
            (made * made).sum().backward()
            assert table.grad is not None
            grads.append(table.grad.cpu())
        assert torch.equal(*grads)
        assert bags.cpu().tolist() == [0, 0, 2, 2, 2, 2] and sizes.shape == (3,)
        assert largest.shape == ((3, 3) if mode == 2 else (0,))


def test_what_goes_to_the_host_is_put_in_order_first_and_converted_there_unless_nobody_waits(sim: Backend) -> None:
    values = torch.arange(24.0, device="sim").reshape(4, 6)
    asked: list[int] = []
    sim.cards[0].observe(lambda action, _address, size, _stream: asked.append(size) if action == "alloc" else None)
    assert values.t().cpu().tolist() == values.cpu().t().tolist() and asked == []
    assert values.to("cpu", torch.float64).dtype == torch.float64 and asked == []
    assert values[:, ::2].cpu().tolist() == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18, 20, 22]] and asked == [48]
    assert values.to("cpu", torch.float64, non_blocking=True).sum() == 276 and asked == [48, 192]


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["layer", "batch"])
def test_statistics_of_halves_are_as_wide_as_on_cuda_and_lead_to_the_cpus_gradients(
    name: str, weights: torch.dtype, sim: Backend
) -> None:
    grads = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        values = torch.randn(6, 8, 5).bfloat16().to(device).requires_grad_()
        weight = torch.ones(5 if name == "layer" else 8, dtype=weights).to(device).requires_grad_()
        if name == "layer":
            made, mean, rstd = torch.ops.aten.native_layer_norm(values, [5], weight, None, 1e-5)
        else:
            made, mean, rstd = torch.ops.aten.native_batch_norm(values, weight, None, None, None, True, 0.1, 1e-5)
        made.float().square().sum().backward()
        assert values.grad is not None and weight.grad is not None
        grads.append((values.grad.cpu(), weight.grad.cpu()))
        assert device == "cpu" or (mean.dtype, rstd.dtype) == (torch.float32, torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("name", ["addmm_", "addbmm", "addbmm_", "baddbmm_", "bilinear"])
def test_every_product_takes_the_workspace(name: str, dry: Backend) -> None:
    asked = like(dry)
    one, many = torch.ones(4, 4, device="sim"), torch.ones(4, 4, 4, device="sim")
    products: dict[str, Callable[[], Any]] = {
        "addmm_": lambda: one.addmm_(one, one),
        "addbmm": lambda: torch.addbmm(one, many, many),
        "addbmm_": lambda: one.addbmm_(many, many),
        "baddbmm_": lambda: many.baddbmm_(many, many),
        "bilinear": lambda: functional.bilinear(one, one, many),
    }
    made = products[name]()
    assert asked.count(USUAL_WORKSPACE_BYTES) == 1 and made.numel()


def test_a_reduction_beyond_32_bits_is_launched_in_parts(dry: Backend) -> None:
    asked = like(dry)
    tensor = torch.empty(3 * 2**30, dtype=torch.bfloat16, device="sim")
    asked.clear()
    result = tensor.sum()
    buffer = [size for size in asked if size > 4]
    assert result.numel() == 1 and asked[1] == 4, "one for what the parts add up to"
    assert len(buffer) > 1 and sum(asked) == 2


def test_what_is_added_up_as_integers_is_converted_first(dry: Backend) -> None:
    asked = like(dry)
    truths = torch.empty(1024, 5000, dtype=torch.bool, device="sim")
    asked.clear()
    assert truths.sum().dtype == torch.int64
    assert asked[:4] == [8, 8 * truths.numel(), 3456, 4]


def backward(function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor, asked: list[int]) -> list[int]:
    """What a backward pass asks for."""
    made = function(tensor)
    grad = torch.empty_like(made)
    asked.clear()
    made.backward(grad)
    return list(asked)


def test_an_embedding_of_many_tokens_sorts_them_in_the_backward_pass(dry: Backend) -> None:
    weight = torch.empty(5000, 256, device="sim", requires_grad=True)
    asked = like(dry)
    tokens, listed = torch.zeros(8192, dtype=torch.int64, device="sim"), 8192 * 8
    found = backward(lambda weight: functional.embedding(tokens, weight), weight, asked)
    assert found[:7] == [listed, listed, listed, 138_751, -138_751, -listed, 5_120_000]
    assert 5_958_656 in found and sum(found) == 5_120_000
    few = torch.zeros(3072, dtype=torch.int64, device="sim")
    weight.grad = None
    assert backward(lambda weight: functional.embedding(few, weight), weight, asked) == [5_120_000]


def test_a_group_norm_keeps_factors_of_the_channels_while_it_works(dry: Backend) -> None:
    asked = like(dry)
    images = torch.empty(8, 32, 48, 48, device="sim", requires_grad=True)
    norm = torch.nn.GroupNorm(8, 32, device="sim")
    asked.clear()
    result = norm(images)
    assert asked == [images.nbytes, 256, 256, 1024, 1024, -1024, -1024]
    grad = torch.empty_like(result)
    asked.clear()
    result.backward(grad)
    assert asked[:10] == [images.nbytes, 128, 128, 1024, 1024, 256, 256, 1024, -256, -256]


def test_a_layer_norm_of_many_short_rows_adds_up_its_weights_gradients_in_two_stages(dry: Backend) -> None:
    asked = like(dry)
    rows = torch.empty(100_000, 64, device="sim", requires_grad=True)
    found = backward(torch.nn.LayerNorm(64, device="sim"), rows, asked)
    once = [256, 409_600, 4, -4, -409_600, -256]
    assert found[:17] == [rows.nbytes, 256, 256, 800_000, 800_000, *once, *once]


def test_a_mean_squared_error_keeps_the_room_of_the_errors(dry: Backend) -> None:
    asked = like(dry)
    values = torch.empty(1024, 5000, device="sim")
    asked.clear()
    loss = functional.mse_loss(values, values)
    assert loss.nbytes == 4
    assert asked == [values.nbytes, values.nbytes, 1728, 4, -4, -1728, -values.nbytes]


@pytest.mark.parametrize(("reduction", "behind"), [("mean", [4, -4]), ("sum", [4, -4]), ("none", [])])
def test_a_binary_cross_entropy_keeps_the_room_of_the_losses(dry: Backend, reduction: str, behind: list[int]) -> None:
    asked = like(dry)
    values = torch.empty(16, 100, device="sim")
    asked.clear()
    loss = functional.binary_cross_entropy(values, values, reduction=reduction)
    assert loss.numel() == (1600 if reduction == "none" else 1)
    assert asked == [values.nbytes, *behind]


@pytest.mark.parametrize("modes", [0, 1], ids=["plainly", "where the host has no numbers"])
def test_gradients_of_several_uses_are_added_in_place(dry: Backend, modes: int) -> None:
    asked = like(dry)
    values = torch.empty(1000, device="sim", requires_grad=True)
    with HostTensors() if modes else contextlib.nullcontext():
        used = values * 2
        loss = (torch.sigmoid(used) + torch.tanh(used)).sum()
        del used
        asked.clear()
        loss.backward()
    # of the loss, of both uses, of what was used
    assert [size for size in asked if size > 0] == [4, 4000, 4000, 4000]


def test_a_convolution_copies_the_part_of_a_gradient_that_lies_beside_another_for_each_result(dry: Backend) -> None:
    asked = like(dry)
    images = torch.empty(5, 48, 28, 28, device="sim", requires_grad=True)
    both = torch.empty(5, 48, 28, 28, device="sim")
    of_images, copy, of_weight, of_bias = 752_640, 376_320, 4608, 96
    for part, expected in (
        (both[:, :24], [of_images, copy, -copy, copy, of_weight, -copy, of_bias]),
        (both[:, :24].contiguous(), [of_images, of_weight, of_bias]),
    ):
        result = torch.nn.Conv2d(48, 24, 1, device="sim")(images)
        asked.clear()
        result.backward(part)
        assert asked == expected
        images.grad = None


CONVOLUTIONS = [
    # of input, weight and gradient: channels first or last; requests of the pass forward, and of the one backward
    ("fff", [46080], [30720, 13824]),
    ("ffl", [46080], [46080, 30720, 13824, -46080]),
    ("flf", [30720, 46080, -30720], [30720, 46080, 30720, 13824, -46080, -30720]),
    ("fll", [30720, 46080, -30720], [30720, 30720, 13824, -30720]),
    ("llf", [46080], [46080, 30720, 13824, -46080]),
    ("lll", [46080], [30720, 13824]),
]


@pytest.mark.parametrize(("channels", "forward", "backward"), CONVOLUTIONS)
def test_a_convolution_copies_what_lies_otherwise_and_leaves_channels_last_where_they_were(
    dry: Backend, channels: str, forward: list[int], backward: list[int]
) -> None:
    asked = like(dry)
    layouts = [torch.channels_last if letter == "l" else torch.contiguous_format for letter in channels]
    shapes = ((4, 16, 10, 12), (24, 16, 3, 3), (4, 24, 10, 12))
    images, weight, grad = (
        torch.empty(shape, device="sim", memory_format=layout) for shape, layout in zip(shapes, layouts, strict=True)
    )
    rest = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    asked.clear()
    result = torch.ops.aten.convolution(images, weight, None, *rest)
    assert asked == forward
    asked.clear()
    gradients = torch.ops.aten.convolution_backward(grad, images, weight, None, *rest, [True, True, False])
    assert asked == backward
    layout = torch.channels_last if "l" in channels[:2] else torch.contiguous_format
    assert all(one.is_contiguous(memory_format=layout) for one in (result, *gradients[:2]))


LAYOUTS: dict[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    "first": lambda shape: torch.empty(shape, device="sim"),
    "last": lambda shape: torch.empty(shape, device="sim", memory_format=torch.channels_last),
    "part": lambda shape: torch.empty(shape[0], 2 * shape[1], *shape[2:], device="sim")[:, : shape[1]],
    "one": lambda shape: torch.empty((), device="sim").expand(shape),
    "tokens": lambda shape: (
        torch.empty(shape[0], math.prod(shape[2:]), shape[1], device="sim").transpose(1, 2).view(shape)
    ),
}
"""Channels first or last, a part of the channels, one number for all, and channels of tokens in a row."""

ALL, WITHOUT_IMAGES, WITHOUT_WEIGHT, BIAS = (
    (True, True, True),
    (False, True, True),
    (True, False, True),
    (False, False, True),
)

BACKWARD = [
    # dimensions, transposed, groups; layouts of gradient, input and weight; what is wanted; requests
    (2, False, 1, "first last last", ALL, [46080, 30720, 13824, -46080, 96]),
    (2, False, 1, "first first last", ALL, [30720, 46080, 30720, 13824, -46080, -30720, 96]),
    (2, False, 1, "tokens first first", WITHOUT_IMAGES, [46080, 13824, -46080, 96]),
    (2, False, 1, "one part first", ALL, [30720, 30720, 46080, -46080, 46080, 13824, -46080, -30720, 96]),
    (2, False, 1, "one last first", BIAS, [46080, -46080, 96]),
    (2, False, 2, "part tokens first", ALL, [46080, 30720, 6912, -6912, 6912, -46080, 96]),
    (2, True, 1, "first last first", ALL, [46080, 30720, 13824, -13824, 13824, -46080, 96]),
    (2, True, 1, "part first last", WITHOUT_WEIGHT, [46080, 30720, 46080, -46080, -46080, 96]),
    (2, True, 1, "tokens part first", ALL, [30720, 46080, 30720, 13824, -46080, -30720, 96]),
    (1, False, 1, "tokens tokens first", ALL, [3072, 4608, 3072, 4608, -4608, 96, -3072]),
    (1, True, 1, "tokens part first", WITHOUT_WEIGHT, [3072, 4608, 3072, -4608, 96, -3072]),
]


@pytest.mark.parametrize(("dims", "transposed", "groups", "layouts", "mask", "requests"), BACKWARD)
def test_a_convolutions_gradients_are_made_one_by_one_and_that_of_the_bias_when_every_copy_is_given_back(
    dry: Backend,
    dims: int,
    transposed: bool,
    groups: int,
    layouts: str,
    mask: tuple[bool, ...],
    requests: list[int],
) -> None:
    asked = like(dry)
    side = (10, 12)[-dims:]
    of_weight = (16, 24) if transposed else (24, 16 // groups)
    shapes = (4, 24, *side), (4, 16, *side), (*of_weight, *[3] * dims)
    grad, images, weight = (LAYOUTS[name](shape) for name, shape in zip(layouts.split(), shapes, strict=True))
    ones = [1] * dims
    asked.clear()
    gradients = torch.ops.aten.convolution_backward(
        grad, images, weight, [24], ones, ones, ones, transposed, [0] * dims, groups, list(mask)
    )
    assert asked == requests
    expected = zip((images.shape, weight.shape, (24,)), mask, strict=True)
    assert [None if one is None else one.shape for one in gradients] == [
        shape if known else None for shape, known in expected
    ]


def test_a_convolutions_bias_adds_up_gradients_as_they_lie_when_their_copy_is_given_back(dry: Backend) -> None:
    asked = like(dry, "9.0", 132)
    patches = torch.empty(16, 196, 384, device="sim").transpose(1, 2).view(16, 384, 14, 14)
    few = torch.empty(8, 3, 512, 512, device="sim")
    for grad, side, expected in (
        (patches, 16, [4816896, 1179648, 19234832, -19234832, -4816896, 1536, 9633792, 12, -12, -9633792]),
        (few, 1, [36, 12, 2112, 12, -12, -2112]),
    ):
        channels, high, wide = grad.shape[1:]
        images = torch.empty(len(grad), 3, high * side, wide * side, device="sim")
        weight = torch.empty(channels, 3, side, side, device="sim")
        asked.clear()
        results = torch.ops.aten.convolution_backward(
            grad, images, weight, [channels], [side, side], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]
        )
        assert asked == expected
        del results


def test_torch_s_own_depthwise_convolution_makes_the_weight_s_gradient_first(dry: Backend) -> None:
    asked = like(dry)
    images, grad = (torch.empty(4, 32, 8, 8, device="sim") for _ in range(2))
    weight = torch.empty(32, 1, 3, 3, device="sim")
    rest = [1, 1], [1, 1], [1, 1], False, [0, 0], 32, [True, True, False]
    for layout, expected in ((torch.contiguous_format, [1152, 32768]), (torch.channels_last, [32768, 1152])):
        laid = [one.contiguous(memory_format=layout) for one in (grad, images, weight)]
        asked.clear()
        gradients = torch.ops.aten.convolution_backward(*laid, None, *rest)
        assert asked == expected
        del gradients, laid


def test_a_depthwise_convolution_of_sequences_is_torch_s_own_but_in_float16(dry: Backend) -> None:
    asked = like(dry)
    for dtype, is_known in ((torch.float32, True), (torch.bfloat16, True), (torch.float16, False)):
        values = torch.empty(4, 32, 64, device="sim", dtype=dtype)
        weight = torch.empty(32, 1, 4, device="sim", dtype=dtype)
        workspaces_of_convolutions.scratch.begin()
        asked.clear()
        result = torch.ops.aten.convolution(values, weight, None, [1], [3], [1], False, [0], 32)
        assert asked == [result.numel() * dtype.itemsize]
        assert (workspaces_of_convolutions.scratch.found().unknown_bytes == 0) is is_known
        del result


@pytest.mark.parametrize(
    ("dtype", "converted"), [(torch.bfloat16, [6422528]), (torch.float16, []), (torch.float32, [])]
)
def test_a_batch_norm_of_volumes_with_channels_last_reduces_them_as_torch_does(
    dtype: torch.dtype, converted: list[int], dry: Backend
) -> None:
    asked = like(dry, "9.0", 132)
    volumes = torch.empty(2, 64, 4, 56, 56, device="sim", dtype=dtype, memory_format=torch.channels_last_3d)
    asked.clear()
    # without weights it is torch's in float32 too
    results = torch.ops.aten.native_batch_norm(volumes, None, None, None, None, True, 0.1, 1e-5)
    size = volumes.numel() * dtype.itemsize
    partial = [12845056, 4, -4, -12845056]
    assert asked == [size, 256, 256, *converted, *partial, *(-one for one in converted)]
    del results


def test_what_lies_in_either_layout_is_in_order_after_a_pointwise_operation_of_like_operands(dry: Backend) -> None:
    like(dry)
    pooled = torch.empty(4, 256, 1, 1, device="sim", memory_format=torch.channels_last)
    assert pooled.stride() == (256, 1, 256, 256)
    in_order = [torch.relu(pooled), torch.sigmoid(pooled), functional.silu(pooled), pooled + pooled, pooled**2]
    assert all(one.stride() == (256, 1, 1, 1) for one in in_order)
    kept = [
        pooled + 1,
        pooled.clone(),
        pooled.double(),
        functional.dropout(pooled),
        pooled * pooled.view(4, 256, 1, 1)[0],
    ]
    assert all(one.stride() == (256, 1, 256, 256) for one in kept)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolutions_gradients_are_those_of_the_cpu(sim: Backend, dims: int, transposed: bool) -> None:
    side = (6, 5, 4)[:dims]
    grad, images = torch.randn(2, 6, *side).transpose(0, 1).contiguous().transpose(0, 1), torch.randn(2, 4, *side)
    weight = torch.randn(*((4, 6) if transposed else (6, 4)), *[3] * dims)
    rest = [6], [1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, 1, [True, True, True]
    expected = torch.ops.aten.convolution_backward(grad, images, weight, *rest)
    found = torch.ops.aten.convolution_backward(grad.to("sim"), images.to("sim"), weight.to("sim"), *rest)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_weights_given_another_dtype_are_replaced_one_by_one(dry: Backend) -> None:
    asked = like(dry)
    module = torch.nn.Sequential(torch.nn.Linear(512, 512, bias=False), torch.nn.Linear(512, 512, bias=False)).to("sim")
    asked.clear()
    module.to(torch.bfloat16)
    size = 512 * 512 * 4
    assert asked == [size // 2, -size, size // 2, -size]


def test_the_softmax_of_halves_is_taken_in_full_precision_at_once(dry: Backend) -> None:
    asked = like(dry)
    scores = torch.empty(64, 1000, dtype=torch.float16, device="sim", requires_grad=True)
    asked.clear()
    shares = scores.softmax(-1, dtype=torch.float32)
    assert asked == [shares.nbytes] == [64 * 1000 * 4]
    grad = torch.empty_like(shares)
    asked.clear()
    shares.backward(grad)
    assert asked == [scores.nbytes, grad.nbytes, -grad.nbytes]


def test_the_softmax_of_halves_has_its_numbers_and_gradients(sim: Backend) -> None:
    for function in (torch.softmax, torch.log_softmax):
        there = torch.randn(4, 8, dtype=torch.float16, device="sim").requires_grad_()
        here = there.detach().cpu().float().requires_grad_()
        result, expected = function(there, -1, dtype=torch.float32), function(here, -1)
        torch.testing.assert_close(result.cpu(), expected)
        (result * result).sum().backward()
        (expected * expected).sum().backward()
        assert there.grad is not None and here.grad is not None
        torch.testing.assert_close(there.grad.cpu(), here.grad.half(), atol=2e-3, rtol=2e-2)


ROWS = 300 * 512 * 2
NORMED = 40 * 64 * 128 * 4
SUMS = 40 * 64 * 4
IMAGES = 4 * 32 * 24 * 24 * 4


def turned() -> torch.Tensor:
    return torch.empty(512, 300, dtype=torch.float16, device="sim").T


def swapped() -> torch.Tensor:
    return torch.empty(40, 64, 128, device="sim").transpose(0, 1)


def channels_last() -> torch.Tensor:
    return torch.empty(4, 24, 24, 32, device="sim").permute(0, 3, 1, 2)


def a_slice() -> torch.Tensor:
    return torch.empty(4, 64, 24, 24, device="sim")[:, :32]


def softmax_backward(grad: torch.Tensor) -> Any:
    return torch.ops.aten._softmax_backward_data(grad, grad.contiguous(), -1, grad.dtype)


def log_softmax_backward(grad: torch.Tensor) -> Any:
    return torch.ops.aten._log_softmax_backward_data(grad, grad, -1, grad.dtype)


def layer_norm_backward(tensor: torch.Tensor) -> Any:
    sums, mask = tensor[..., :1], [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(tensor, tensor, [128], sums, sums, None, None, mask)


def pooled_backward(grad: torch.Tensor) -> Any:
    images = torch.empty((), device="sim").expand(4, 32, 48, 48)
    return torch.ops.aten._adaptive_avg_pool2d_backward(grad, images)


def upsampled_backward(how: str) -> Callable[[torch.Tensor], Any]:
    backward = getattr(torch.ops.aten, f"upsample_{how}2d_backward")
    more = [] if how == "nearest" else [False]
    return lambda grad: backward(grad, [24, 24], [4, 32, 12, 12], *more, None, None)


@pytest.mark.parametrize(
    ("function", "made", "expected"),
    [
        (lambda x: x.softmax(-1), turned, [ROWS, ROWS, -ROWS]),
        (lambda x: x.log_softmax(-1, dtype=torch.float32), turned, [2 * ROWS, ROWS, -ROWS]),
        (log_softmax_backward, turned, [ROWS, ROWS, ROWS, -ROWS, -ROWS]),
        (softmax_backward, turned, [ROWS, ROWS, ROWS, ROWS, -ROWS, -ROWS, -ROWS]),
        (lambda x: torch.native_layer_norm(x, (128,), None, None, 0.0), swapped, [NORMED, NORMED, SUMS, SUMS, -NORMED]),
        (layer_norm_backward, swapped, [NORMED, NORMED, NORMED, -NORMED, -NORMED]),
        (lambda x: functional.group_norm(x, 8), channels_last, [IMAGES, IMAGES, 128, 128, -128, -128, -IMAGES]),
        (lambda x: functional.avg_pool2d(x, 2), a_slice, [IMAGES // 4, IMAGES, -IMAGES]),
        (lambda x: functional.avg_pool2d(x, 2), channels_last, [IMAGES // 4]),
        (lambda x: torch.ops.aten.max_pool2d_with_indices(x, 2), a_slice, [IMAGES // 4, IMAGES // 2, IMAGES, -IMAGES]),
        (lambda x: functional.adaptive_avg_pool2d(x, 6), a_slice, [IMAGES, IMAGES // 16, -IMAGES]),
        (pooled_backward, channels_last, [4, 4 * IMAGES, IMAGES, -IMAGES, -4]),
        (lambda x: functional.interpolate(x, scale_factor=2), a_slice, [4 * IMAGES, IMAGES, -IMAGES]),
        (upsampled_backward("nearest"), channels_last, [IMAGES // 4]),
        (upsampled_backward("bilinear"), channels_last, [IMAGES // 4]),
        (upsampled_backward("bilinear"), a_slice, [IMAGES // 4, IMAGES, -IMAGES]),
        (upsampled_backward("bicubic"), channels_last, [IMAGES // 4, IMAGES, -IMAGES]),
    ],
)  # fmt: skip
def test_what_does_not_lie_in_order_is_copied_where_the_kernel_on_cuda_needs_it(
    dry: Backend, function: Callable[[torch.Tensor], Any], made: Callable[[], torch.Tensor], expected: list[int]
) -> None:
    asked = like(dry)
    tensor = made()
    asked.clear()
    result = function(tensor)
    assert asked == expected
    del result


def test_gradients_of_several_uses_are_added_up_in_place_as_far_as_nobody_else_holds_them(dry: Backend) -> None:
    asked = like(dry)
    x = torch.empty(1024, 1024, device="sim", requires_grad=True)
    size = x.nbytes
    rising = [step for step in backward(lambda x: (x * 1).tanh() + x.tanh() + x.tanh(), x, asked) if step > 0]
    assert rising == [size] * 4, "a gradient of each tanh and of the product; nothing for the sums"
    x.grad = None

    def beside(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        return y + y.tanh()

    rising = [step for step in backward(beside, x, asked) if step > 0]
    assert rising == [size] * 3, "the incoming gradient is held outside, so that the sum is a new tensor"


def test_added_up_gradients_have_the_numbers_of_the_cpu(sim: Backend) -> None:
    there = torch.randn(4, 4, device="sim").requires_grad_()
    here = there.detach().cpu().requires_grad_()
    for x in (there, here):
        y = x * 2
        (y.tanh() + y.exp() + y).sum().backward()
    assert there.grad is not None and here.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_a_dropout_s_mask_comes_first_and_scales_what_it_keeps(sim: Backend) -> None:
    x = torch.ones(1000, device="sim", requires_grad=True)
    result = functional.dropout(x, 0.25, training=True)
    assert {round(value, 4) for value in set(result.tolist())} == {0.0, round(1 / 0.75, 4)}
    result.sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), result.detach().cpu())
    assert math.isclose(result.gt(0).float().mean().item(), 0.75, abs_tol=0.1)


def test_a_fused_step_of_sgd_is_taken(sim: Backend) -> None:
    weight = torch.nn.Parameter(torch.ones(4, device="sim"))
    weight.grad = torch.ones(4, device="sim")
    torch.optim.SGD([weight], 0.5, fused=True).step()
    assert weight.tolist() == [0.5] * 4


LAYER = (256, 4, 1024)
"""Width, heads and inner width of the encoder layers whose requests are written down below."""

MASKED = [1_048_576, 4096, 4096, 3_145_728, 8_519_680, 3_145_728, 2_097_152, 1024, 2_097_152, 1_048_576, 1_048_576]
FUSED = [524_288, 4096, 4096, 1_572_864, 8_519_680, 524_288, 16_384, 16, 8, 524_288]


@pytest.mark.parametrize(
    ("dtype", "is_padded", "attended"), [(torch.float32, True, MASKED), (torch.float16, False, FUSED)]
)
def test_an_encoder_layer_at_inference_takes_the_memory_of_its_parts(
    dtype: torch.dtype, is_padded: bool, attended: list[int], dry: Backend
) -> None:
    asked = like(dry)
    layer = torch.nn.TransformerEncoderLayer(*LAYER, batch_first=True, norm_first=True, device="sim", dtype=dtype)
    tokens = torch.empty(8, 128, 256, device="sim", dtype=dtype)
    padding = torch.empty(8, 128, device="sim", dtype=dtype) if is_padded else None
    layer.eval()
    asked.clear()
    with torch.no_grad():
        result = layer(tokens, src_key_padding_mask=padding)
    nbytes = tokens.nbytes
    assert [size for size in asked if size > 0] == [*attended, nbytes, 4096, 4096, 4 * nbytes, nbytes]
    assert sum(asked) == result.nbytes + 8_519_680


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_recurrent_network_is_laid_together_for_cudnn_with_room_for_biases(has_bias: bool, dry: Backend) -> None:
    asked = like(dry)
    network = torch.nn.GRU(128, 256, 2, bias=has_bias)
    network.to("sim")
    assert asked[-1 - len(network._flat_weights)] == 2_764_800 == sum(asked)
    asked.clear()
    with torch.backends.cudnn.flags(enabled=False):
        network.flatten_parameters()
    assert not asked


def test_an_lstm_peaks_where_it_did_on_an_h100(dry: Backend) -> None:
    asked = like(dry, "9.0", 132)
    network = torch.nn.LSTM(128, 256, batch_first=True).to("sim")
    values = torch.randn(16, 32, 128, device="sim", requires_grad=True)
    asked.clear()
    result = network(values)[0]
    result.backward(torch.ones_like(result))
    blocks = [size + -size % 512 if size > 0 else size - size % 512 for size in asked]
    assert len([size for size in blocks if size > 0]) == 20
    assert max(itertools.accumulate(blocks)) == 18_883_584


def test_a_gru_keeps_its_gates_before_the_state_and_an_lstm_too(dry: Backend) -> None:
    asked = like(dry)
    state = torch.empty(16, 256, device="sim")
    products = {count: torch.empty(16, count * 256, device="sim") for count in (3, 4)}
    asked.clear()
    made = [torch.ops.aten._thnn_fused_gru_cell(products[3], products[3], state)]
    made.append(torch.ops.aten._thnn_fused_lstm_cell(products[4], products[4], state))
    assert made
    assert asked == [81_920, 16_384, 65_536, 16_384, 16_384]


def test_an_embedding_of_a_part_copies_its_tokens_and_its_gradient_first(dry: Backend) -> None:
    weight = torch.empty(5000, 256, device="sim", requires_grad=True)
    asked = like(dry)
    tokens = torch.zeros(16, 65, dtype=torch.int64, device="sim")[:, :-1]
    made = functional.embedding(tokens, weight)
    grad = torch.empty(64, 16, 256, device="sim").transpose(0, 1)
    asked.clear()
    made.backward(grad)
    assert asked == [8192, 1_048_576, 5_120_000, -1_048_576, -8192]


RECORDED = json.loads((Path(__file__).parents[2] / "gpu" / "recorded" / "h100.json").read_text(encoding="utf-8"))
CONVOLUTIONS: list[dict[str, Any]] = RECORDED["convolutions"]
PARTS = ("forward", "of_input", "of_weight")
EXACTLY_BYTES = 147
"""How far cuDNN's own part of a workspace reaches."""


def workspaces(backend: Backend, case: dict[str, Any], **design: bool) -> dict[str, int]:
    """What the dry run has cuDNN ask for, beside results, in each part of a convolution."""
    card = Architecture((9, 0), 132, **design)
    backend.engine.replace([SimulatedGpu(0, 2**40, context=0, computes=False, architecture=card)])
    dtype, is_transposed = getattr(torch, case["dtype"]), case.get("transposed", False)
    values, weight = (torch.empty(case[name], dtype=dtype, device="sim") for name in ("input", "weight"))
    axes = len(case["stride"])
    how = (case["stride"], case["padding"], [1] * axes, is_transposed, [0] * axes, 1)
    asked = requests_of(backend)
    result = torch.ops.aten.convolution(values, weight, None, *how)
    found = {"forward": sum(asked) - size_of(result)}
    for place, part in enumerate(PARTS[1:]):
        asked.clear()
        mask = [place == number for number in range(3)]
        made = torch.ops.aten.convolution_backward(torch.empty_like(result), values, weight, None, *how, mask)[place]
        found[part] = sum(asked) - size_of(made) - size_of(result)
    return found


def requests_of(backend: Backend) -> list[int]:
    asked: list[int] = []

    def happened(action: str, _address: int, size: int, _stream: int) -> None:
        if action == "alloc":
            asked.append(size)

    backend.engine.cards[0].observe(happened)
    return asked


def size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def test_cudnn_takes_what_it_took_on_a_card(dry: Backend) -> None:
    near, far = 0, {}
    for case in CONVOLUTIONS:
        for part, bytes_ in workspaces(dry, case).items():
            if part not in case:
                continue
            if abs(case[part] - bytes_) <= EXACTLY_BYTES:
                near += 1
            else:
                far[case["name"], part] = case[part] - bytes_
    assert near == 25
    assert all(0 < missing <= 8 * 2**20 for missing in far.values()), far


def test_cudnn_takes_nothing_where_nothing_is_known_of_it(dry: Backend) -> None:
    assert not any(workspaces(dry, CONVOLUTIONS[0], cudnn_converts=False).values())
