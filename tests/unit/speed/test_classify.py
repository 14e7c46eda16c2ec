"""Operations of torch by their kind, size and cost."""

from __future__ import annotations

from typing import Any

import pytest

from gpudash.speed.classify import classify
from gpudash.speed.work import (
    ATTENTION,
    CONVOLUTION,
    DEPTHWISE,
    ELEMENTWISE,
    EMBEDDING,
    GROUPED,
    NORMALISATION,
    OPTIMIZER,
    RECURRENT,
    UNKNOWN,
    Operation,
)

Shape = tuple[int, ...]


def half(*shapes: Shape) -> list[tuple[Shape, str, int]]:
    return [(shape, "float16", 2) for shape in shapes]


def single(*shapes: Shape) -> list[tuple[Shape, str, int]]:
    return [(shape, "float32", 4) for shape in shapes]


def known(
    name: str, inputs: list[tuple[Shape, str, int]], outputs: list[tuple[Shape, str, int]], **more: Any
) -> Operation:
    operation = classify(name, inputs, outputs, **more)
    assert operation is not None
    return operation


@pytest.mark.parametrize("name", ["view", "t", "expand", "detach", "empty", "slice", "_unsafe_view"])
def test_views_and_empty_tensors_cost_nothing(name: str) -> None:
    assert classify(name, half((4, 4)), half((4, 4))) is None


def test_a_product_has_its_shape_and_two_flops_a_multiplication() -> None:
    operation = known("addmm", half((10,), (4, 5), (5, 10)), half((4, 10)))
    assert operation.shape == (1, 4, 10, 5)
    assert operation.flops == 2 * 4 * 10 * 5
    assert (operation.read_bytes, operation.written_bytes) == (2 * (10 + 20 + 50), 2 * 40)


def test_many_products_are_a_batch() -> None:
    assert known("bmm", half((8, 4, 5), (8, 5, 3)), half((8, 4, 3))).shape == (8, 4, 3, 5)


@pytest.mark.parametrize(
    ("weight", "groups", "kind"),
    [((64, 64, 3, 3), 1, CONVOLUTION), ((64, 1, 3, 3), 64, DEPTHWISE), ((64, 8, 3, 3), 8, GROUPED)],
)
def test_convolutions_are_told_apart_by_their_groups(weight: Shape, groups: int, kind: str) -> None:
    images = (2, 64, 56, 56)
    operation = known("convolution", half(images, weight), half(images), scalars={"groups": groups})
    assert operation.kind == kind
    assert operation.shape == (2, 64, 64, groups, 9, 56 * 56)
    assert operation.flops == 2 * 2 * 64 * 56 * 56 * (64 // groups) * 9


def test_gradients_of_a_convolution_are_two_products_where_both_are_wanted() -> None:
    images, weight = (2, 64, 56, 56), (128, 64, 1, 1)
    result = (2, 128, 56, 56)
    forth = known("convolution", half(images, weight), half(result))
    both = known("convolution_backward", half(result, images, weight), half(images, weight))
    weight_alone = known("convolution_backward", half(result, images, weight), half(weight))
    assert (both.flops, weight_alone.flops) == (2 * forth.flops, forth.flops)


def test_attention_is_one_kernel_whatever_its_scores_would_take() -> None:
    operation = known("_scaled_dot_product_flash_attention", half(*[(2, 8, 1024, 64)] * 3), half((2, 8, 1024, 64)))
    assert operation.kind == ATTENTION
    assert operation.shape == (2, 8, 1024, 1024, 64)
    assert operation.flops == 4 * 2 * 8 * 1024 * 1024 * 64
    assert operation.read_bytes == 3 * 2 * 2 * 8 * 1024 * 64


def test_filling_reads_nothing_and_an_embedding_only_its_rows() -> None:
    assert known("zero_", single((1000,)), single((1000,))).read_bytes == 0
    rows = known("embedding", [*single((50_000, 64)), ((10,), "int64", 8)], single((10, 64)))
    assert rows.kind == EMBEDDING
    assert rows.read_bytes == 10 * 64 * 4 + 10 * 8


def test_a_normalisation_whose_input_lies_otherwise_copies_it_first() -> None:
    inputs = half((8, 196, 768), (768,), (768,))
    straight = known("native_layer_norm", inputs, half((8, 196, 768)))
    turned = known("native_layer_norm", inputs, half((8, 196, 768)), scalars={"contiguous": False})
    assert straight.kind == NORMALISATION
    assert turned.launches == straight.launches + 1
    assert turned.read_bytes > straight.read_bytes


def test_an_optimizer_over_many_tensors_starts_few_kernels() -> None:
    operation = known("_foreach_mul_", single(*[(1000,)] * 300), [])
    assert operation.kind == OPTIMIZER
    assert operation.launches < 10
    fused = known("_fused_adamw_", single(*[(1000,)] * 400), [])
    assert fused.read_bytes == 400 * 4000
    assert fused.written_bytes == 300 * 4000


def test_recurrent_layers_of_cudnn_are_products_of_all_steps_and_then_of_one_after_the_other() -> None:
    # Two layers of an LSTM of 512 over 100 steps of 256 numbers.
    weights = [(2048, 256), (2048, 512), (2048,), (2048,), (2048, 512), (2048, 512), (2048,), (2048,)]
    values = (100, 64, 256)
    states = [(2, 64, 512)] * 2
    forth = known("_cudnn_rnn", half(values, *weights), half((100, 64, 512), *states), flops=10)
    assert (forth.kind, forth.flops, forth.shape) == (RECURRENT, 10, (2, 100, 64, 2048, 384, 512))
    back = known("_cudnn_rnn_backward", half(values, *weights), half(values, *states, *weights), flops=20)
    assert back.shape == forth.shape
    assert (forth.launches, back.launches) == (402, 404)


def test_what_has_no_class_counts_by_its_bytes() -> None:
    operation = known("my_own_kernel", half((100,)), half((100,)))
    assert (operation.kind, operation.read_bytes, operation.written_bytes) == (UNKNOWN, 200, 200)


@pytest.mark.parametrize("name", ["add", "add_", "gelu", "gelu_backward", "sigmoid", "silu_", "__and__", "where"])
def test_elementwise_operations_are_known_in_place_and_backward_too(name: str) -> None:
    assert known(name, half((100,)), half((100,)), phase="backward").kind == ELEMENTWISE
