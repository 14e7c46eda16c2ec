"""Fused attention on the simulated GPU: the CPU's numbers in the memory of CUDA's kernels."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpudash.simulator.device.backend import Backend
from gpudash.simulator.operations import attention
from gpudash.simulator.operations.attention import choose
from gpudash.simulator.operations.attention_scratch import backward_room_bytes

pytestmark = pytest.mark.usefixtures("sim")

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 256, 32
SCORES = BATCH * HEADS * LENGTH * LENGTH


def made(dtype: torch.dtype, width: int = WIDTH, length: int = LENGTH, groups: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(0)
    heads = (HEADS, HEADS // groups, HEADS // groups)
    return [torch.randn(BATCH, count, length, width).to(dtype).to("sim").requires_grad_() for count in heads]


def mirrored(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().cpu().float().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"attn_mask": "truths"}, {"attn_mask": "numbers"}, {"enable_gqa": True}, {"scale": 0.3}],
    ids=str,
)
@pytest.mark.parametrize("width", [8, 5])
def test_results_and_gradients_are_those_of_the_cpu(dtype: torch.dtype, options: dict[str, Any], width: int) -> None:
    there = made(dtype, width, 7, groups=2 if options.get("enable_gqa") else 1)
    here = mirrored(there)
    masks = {"truths": torch.rand(7, 7) > 0.3, "numbers": torch.randn(BATCH, HEADS, 7, 7)}
    mask = masks.get(options.get("attn_mask", ""))
    if mask is not None and mask.dtype == torch.bool:
        mask[:, 0] = True
    given = [dict(options), dict(options)]
    if mask is not None:
        given[0]["attn_mask"] = mask
        given[1]["attn_mask"] = (mask if mask.dtype == torch.bool else mask.to(dtype)).to("sim")
    results = [functional.scaled_dot_product_attention(*t, **g) for t, g in zip((here, there), given, strict=True)]
    for result in results:
        result.sin().sum().backward()
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip([results[0], *[t.grad for t in here]], [results[1], *[t.grad for t in there]], strict=True):
        torch.testing.assert_close(other.cpu().float(), one, rtol=tolerance, atol=tolerance)


def test_the_gradient_of_a_mask_is_that_of_the_cpu() -> None:
    there = made(torch.float32, 8, 7)
    here = mirrored(there)
    masks = [torch.ones(BATCH, HEADS, 7, 7, device=device, requires_grad=True) for device in ("cpu", "sim")]
    for tensors, mask in zip((here, there), masks, strict=True):
        functional.scaled_dot_product_attention(*tensors, attn_mask=mask * 0.5).sin().sum().backward()
    torch.testing.assert_close(masks[1].grad.cpu(), masks[0].grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_dropout_drops_the_same_scores_in_both_passes(dtype: torch.dtype) -> None:
    query, key, value = made(dtype, 16, 64)
    torch.manual_seed(3)
    result = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(functional.scaled_dot_product_attention(query, key, value, dropout_p=0.4), result)
    assert not torch.equal(functional.scaled_dot_product_attention(query, key, value, dropout_p=0.4), result)
    assert functional.scaled_dot_product_attention(query, key, value, dropout_p=1.0).abs().sum().item() == 0
    # the result is linear in the values, so that their product with their gradient is twice that of its square's half
    result.float().square().sum().backward()
    twice = 2 * result.float().square().sum().item()
    assert (value.grad.float() * value.float()).sum().item() == pytest.approx(twice, rel=0.02)


@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_drops_what_the_cpu_drops(is_causal: bool) -> None:
    there = made(torch.float32, 16, 9)
    here = mirrored(there)
    outcomes = []
    for tensors in (here, there):
        torch.manual_seed(5)
        result = functional.scaled_dot_product_attention(*tensors, dropout_p=0.3, is_causal=is_causal)
        result.sin().sum().backward()
        outcomes.append([result, *(tensor.grad for tensor in tensors), torch.rand(3)])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(other.cpu(), one, atol=0, rtol=0)


CHOSEN = [
    (torch.bfloat16, {}, SDPBackend.FLASH_ATTENTION),
    (torch.float32, {}, SDPBackend.EFFICIENT_ATTENTION),
    (torch.float64, {}, SDPBackend.MATH),
    (torch.bfloat16, {"mask": True}, SDPBackend.EFFICIENT_ATTENTION),
    (torch.bfloat16, {"width": 264}, SDPBackend.EFFICIENT_ATTENTION),
    (torch.float32, {"width": 6}, SDPBackend.MATH),
    (torch.bfloat16, {"enable_gqa": True}, SDPBackend.FLASH_ATTENTION),
    (
        torch.float32,
        {"enable_gqa": True},
        SDPBackend.MATH if attention.TORCH_VERSION < (2, 15) else SDPBackend.EFFICIENT_ATTENTION,
    ),
    (torch.bfloat16, {"kernel": SDPBackend.MATH}, SDPBackend.MATH),
    (torch.bfloat16, {"kernel": SDPBackend.EFFICIENT_ATTENTION}, SDPBackend.EFFICIENT_ATTENTION),
    (torch.bfloat16, {"capability": (9, 0)}, SDPBackend.CUDNN_ATTENTION),
    (torch.bfloat16, {"capability": (9, 0), "mask": True}, SDPBackend.CUDNN_ATTENTION),
    (torch.bfloat16, {"capability": (9, 0), "dropout": 0.1}, SDPBackend.FLASH_ATTENTION),
    (torch.float32, {"capability": (9, 0)}, SDPBackend.EFFICIENT_ATTENTION),
    (torch.bfloat16, {"capability": (12, 0)}, SDPBackend.FLASH_ATTENTION),
    (torch.float16, {"capability": (7, 5)}, SDPBackend.EFFICIENT_ATTENTION),
    (torch.bfloat16, {"capability": (7, 5)}, SDPBackend.MATH),
    (torch.float32, {"capability": (7, 5)}, SDPBackend.EFFICIENT_ATTENTION),
]


@pytest.mark.parametrize(("dtype", "options", "expected"), CHOSEN)
def test_the_kernel_is_the_one_that_cuda_would_choose(
    dtype: torch.dtype, options: dict[str, Any], expected: SDPBackend
) -> None:
    grouped = bool(options.get("enable_gqa"))
    query, key, value = made(dtype, options.get("width", WIDTH), 4, groups=2 if grouped else 1)
    mask = torch.ones(4, 4, dtype=torch.bool, device="sim") if options.get("mask") else None
    kernel = options.get("kernel")
    with sdpa_kernel(kernel) if kernel is not None else contextlib.nullcontext():
        capability, dropout = options.get("capability", (8, 0)), options.get("dropout", 0.0)
        assert choose(query, key, value, mask, False, grouped, dropout, capability) == expected


def test_no_kernel_left_is_told_in_the_words_of_torch() -> None:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        functional.scaled_dot_product_attention(*made(torch.float32))


def kept_and_peak(tensors: list[torch.Tensor], kernel: SDPBackend | None = None) -> tuple[int, int]:
    """Bytes kept for the backward pass with the result, and the most of both passes."""
    before = torch.sim.memory_allocated()
    torch.sim.reset_peak_memory_stats()
    with sdpa_kernel(kernel) if kernel is not None else contextlib.nullcontext():
        result = functional.scaled_dot_product_attention(*tensors)
    kept = torch.sim.memory_allocated() - before
    result.backward(torch.ones_like(result))
    return kept, torch.sim.max_memory_allocated() - before


def test_flash_attention_keeps_the_result_one_sum_a_row_and_the_state_of_the_generator() -> None:
    tensors = made(torch.bfloat16)
    elements = tensors[0].numel()
    kept, peak = kept_and_peak(tensors)
    sums = BATCH * HEADS * LENGTH * 4
    assert kept == elements * 2 + sums + 2 * 512
    # with the result's gradient, the result and it laid out by positions, three gradients, and float32 for the sums and
    # the query's gradient on the way
    assert peak == kept + elements * 2 * 6 + sums + elements * 4


def test_the_efficient_kernel_keeps_the_result_and_its_sums() -> None:
    tensors = made(torch.float32)
    elements = tensors[0].numel()
    kept, peak = kept_and_peak(tensors)
    sums = BATCH * HEADS * LENGTH * 4
    states = 0 if attention.TORCH_VERSION < (2, 15) else 2 * 512  # the generator's seed and offset
    assert kept == elements * 4 + sums + states
    # result, its gradient, three gradients, sums kept and of the product, and room in which 32 blocks of 64 rows add up
    # the queries' gradient: for 64 columns, which are twice as many as there are, with 16 bytes for a lock
    assert peak == elements * 4 * 5 + 2 * sums + elements * 4 * 2 + 32 * 16 + states
    tensors = made(torch.float32)
    assert kept_and_peak(tensors, SDPBackend.MATH)[0] > SCORES * 4


@pytest.mark.parametrize(
    ("shape", "is_half", "capability", "taken"),
    [
        ((40, 35, 35, 100), False, (8, 0), 2622720),
        ((40, 35, 35, 64), False, (8, 0), 656000),
        ((32, 300, 300, 256), False, (8, 0), 12589056),
        ((1, 129, 129, 136), False, (8, 0), 196704),
        ((1, 129, 129, 136), False, (8, 6), 147600),
        ((32, 512, 512, 128), True, (9, 0), 8390656),
        ((1, 65, 65, 96), True, (8, 9), 65568),
        ((1, 65, 65, 104), True, (8, 6), 196672),
        ((1, 65, 65, 72), True, (12, 0), 196672),
        ((1, 129, 129, 128), True, (7, 5), 131136),
        ((1, 128, 640, 160), True, (8, 0), 1409072),
        ((16, 128, 1024, 256), True, (8, 0), 27264000),
        ((128, 128, 640, 160), True, (8, 6), 29366272),
        ((400, 100, 500, 200), True, (8, 0), 104883200),
        ((4, 100, 500, 104), True, (8, 6), 2359552),
    ],
)
def test_the_efficient_kernel_adds_up_gradients_in_the_room_that_torchs_takes(
    shape: tuple[int, int, int, int], is_half: bool, capability: tuple[int, int], taken: int
) -> None:
    # as torch 2.14's CUDA build asked its allocator, on the stand-in for CUDA
    assert backward_room_bytes(*shape, is_half=is_half, capability=capability) == taken


@pytest.mark.parametrize("version", [(2, 13), (2, 15)])
def test_the_efficient_kernel_that_drops_out_keeps_the_generators_state_on_the_host(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    monkeypatch.setattr(attention, "TORCH_VERSION", version)
    query = torch.randn(2, 4, 64, 16, device="sim")
    before = torch.sim.memory_allocated()
    kept = torch.ops.aten._scaled_dot_product_efficient_attention(query, query, query, None, True, 0.1)
    assert [tensor.device.type for tensor in kept] == ["sim", "sim", "cpu", "cpu"]
    assert torch.sim.memory_allocated() - before == sum(tensor.numel() * 4 for tensor in kept[:2])


def test_since_torch_2_15_heads_may_share_keys_in_the_efficient_kernel(
    sim: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are those of torch 2.15 on the stand-in for CUDA: seed, offset, result and sums; then the gradients
    of query, key and value, room for the latter two for each head, and what adds up the queries' gradient."""
    monkeypatch.setattr(attention, "TORCH_VERSION", (2, 15))
    sizes = ((8, 40), (1, 40), (1, 48))
    query, key, value = (torch.randn(2, n, 50, width, device="sim", requires_grad=True) for n, width in sizes)
    asked: list[int] = []

    def note(action: str, _address: int, size: int, _stream: int) -> None:
        if action == "alloc":
            asked.append(size)

    sim.cards[0].observe(note)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        result = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    gradient = torch.ones_like(result)
    found = torch.autograd.grad(result, (query, key, value), gradient)
    sim.cards[0].unobserve(note)
    assert asked[:4] == [8, 8, 153_600, 4096]
    assert asked[4:] == [153_600, 128_000, 16_000, 19_200, 128_000, 153_600, 153_600, 3200, 3200, 262_400]
    here = mirrored([query, key, value])
    expected = functional.scaled_dot_product_attention(*here, enable_gqa=True)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(found, torch.autograd.grad(expected, here, torch.ones_like(expected)), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)


def test_attention_under_vmap_and_autocast_works() -> None:
    query = torch.randn(3, 1, 2, 4, 8, device="sim")
    mapped = torch.func.vmap(lambda one: functional.scaled_dot_product_attention(one, one, one))(query)
    torch.testing.assert_close(
        mapped, functional.scaled_dot_product_attention(*[query.flatten(0, 1)] * 3).view(3, 1, 2, 4, 8)
    )
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True, device="sim")
    values = torch.randn(2, 5, 16, device="sim")
    with torch.autocast("sim", dtype=torch.bfloat16):
        result = module(values, values, values, need_weights=False)[0]
    assert result.dtype == torch.bfloat16
    result.sum().backward()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("last", [WIDTH, 16])
def test_the_result_of_cudnns_attention_lies_in_the_order_of_the_query(order: tuple[int, ...], last: int) -> None:
    sizes = (BATCH, HEADS, LENGTH, WIDTH)
    lying = torch.empty([sizes[axis] for axis in order], dtype=torch.bfloat16, device="sim")
    query = lying.permute([order.index(axis) for axis in range(4)])
    value = query[..., :last].contiguous()
    result = torch.ops.aten._scaled_dot_product_cudnn_attention(query, query, value, None, False)[0]
    assert result.shape == (BATCH, HEADS, LENGTH, last)
    assert result.permute(order).is_contiguous()
