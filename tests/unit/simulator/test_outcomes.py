"""A call whose arguments have sizes that were met before gets what torch would have made, without asking torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.simulator.device.backend import Backend
from gpudash.simulator.operations import outcomes
from gpudash.simulator.operations.outcomes import Fresh, Outcomes, one_of_each

ops = torch.ops.aten


@pytest.fixture(autouse=True, scope="module")
def tensors_without_numbers_stand_for_the_device() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "DEVICE", "meta")
        yield


class Calls:
    """Calls of operations, and how many of them reached torch."""

    def __init__(self) -> None:
        self.outcomes = Outcomes()
        self.worked = 0

    def __call__(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        def work() -> Any:
            self.worked += 1
            return operation(*args, **kwargs)

        return self.outcomes.call(work, made, operation, args, kwargs, torch.get_default_dtype())


def made(fresh: Fresh) -> torch.Tensor:
    return torch.empty_strided(fresh.size, fresh.stride, dtype=fresh.dtype, device="meta")


def tensor(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def told(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.shape, result.stride(), result.dtype
    return [told(item) for item in result] if isinstance(result, (list, tuple)) else result


SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.float16, torch.int64])
OPERATIONS = [
    lambda x: (ops.add.Tensor, x, x),
    lambda x: (ops.mul.Scalar, x, 2),
    lambda x: (ops.mul.Scalar, x, 2.0),
    lambda x: (ops.sum.dim_IntList, x, [-1], True),
    lambda x: (ops.max.dim, x, 0),
    lambda x: (ops.sort.default, x),
    lambda x: (ops.cat.default, [x, x, x], 1),
    lambda x: (ops.clone.default, x),
    lambda x: (ops.bitwise_not.default, x.to(torch.int64)),
    lambda x: (ops.where.self, x > 0, x, x),
]


@settings(deadline=None)
@given(SIZES, DTYPES, st.sampled_from(OPERATIONS), st.booleans())
def test_the_second_result_is_like_the_first(size: list[int], dtype: torch.dtype, case: Any, turned: bool) -> None:
    calls = Calls()
    first, second = (tensor(*size, dtype=dtype) for _ in range(2))
    if turned:
        first, second = first.transpose(0, 1), second.transpose(0, 1)
    expected = told(calls(*case(first)))
    assert told(calls(*case(second))) == expected
    assert calls.worked == 1


@settings(deadline=None)
@given(SIZES, SIZES)
def test_other_sizes_are_not_taken_for_the_same(size: list[int], other: list[int]) -> None:
    calls = Calls()
    calls(ops.clone.default, tensor(*size))
    assert calls(ops.clone.default, tensor(*other)).shape == torch.Size(other)
    assert calls.worked == 1 + (size != other)


@pytest.mark.parametrize("numbers", [(1, 1.0), (1, True), (0.0, False)])
def test_equal_numbers_of_different_types_give_results_of_their_own(numbers: tuple[Any, Any]) -> None:
    calls = Calls()
    for number in numbers:
        expected = torch.full((3,), number).dtype
        assert calls(ops.full.default, [3], number, device=torch.device("meta")).dtype == expected


def test_the_default_type_of_numbers_tells_results_apart() -> None:
    calls = Calls()
    before = torch.get_default_dtype()
    calls(ops.zeros.default, [3], device=torch.device("meta"))
    try:
        torch.set_default_dtype(torch.float64)
        assert calls(ops.zeros.default, [3], device=torch.device("meta")).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_what_is_written_to_is_what_is_returned() -> None:
    calls = Calls()
    for _ in range(2):
        target = tensor(3, 2)
        assert calls(ops.add_.Tensor, target, tensor(3, 2)) is target
    assert calls.worked == 1


def test_a_call_that_gives_its_argument_another_size_is_made_every_time() -> None:
    calls = Calls()
    for _ in range(3):
        target = tensor(0)
        calls(ops.add.out, tensor(4, 2), tensor(4, 2), out=target)
        assert target.shape == (4, 2)
    assert calls.worked == 3


def test_a_tensor_of_another_device_is_left_to_torch() -> None:
    calls = Calls()
    for _ in range(2):
        assert calls(ops.add.Tensor, torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
    assert calls.worked == 2


def test_an_argument_that_cannot_be_compared_is_left_to_torch() -> None:
    calls = Calls()
    for _ in range(2):
        calls(ops.bernoulli.default, tensor(3), generator=torch.Generator())
    assert calls.worked == 2


def test_what_raises_is_asked_again() -> None:
    calls = Calls()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="dim"):
            calls(ops.mm.default, tensor(2, 3), tensor(2, 3))
    assert calls.worked == 2


def test_no_more_is_kept_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MOST", 3)
    calls = Calls()
    for size in (1, 2, 3, 4, 4):
        assert calls(ops.clone.default, tensor(size)).shape == (size,)
    calls(ops.clone.default, tensor(1))
    assert calls.worked == 5


def test_of_parameters_that_are_alike_an_optimizer_works_out_one() -> None:
    sizes = [(2, 3), (4,), (2, 3), (4,), (2, 3)]
    parameters = [torch.empty(size, device="meta") for size in sizes]
    averages = [torch.empty(size, device="meta") for size in sizes]
    few = one_of_each([parameters, averages, [0.1] * 5, 2])
    assert [value is known for value, known in zip(few[0], parameters[:2], strict=True)] == [True, True]
    assert [value is known for value, known in zip(few[1], averages[:2], strict=True)] == [True, True]
    assert few[2:] == [[0.1, 0.1], 2]


def test_lists_that_are_not_of_pairs_stay_as_they_are() -> None:
    alike = [torch.empty(4, device="meta") for _ in range(3)]
    transposed = torch.empty(4, 2, device="meta").t()
    for arguments in (
        [alike, alike[:2]],  # torch refuses them
        [alike, torch.empty(3, device="meta")],  # numbers for each of them, by place
        [[*alike, torch.empty(4)]],  # the CPU's
        [[torch.empty(2, 4, device="meta"), transposed, torch.empty(2, 4, device="meta", dtype=torch.float16)]],
    ):
        assert one_of_each(arguments) is arguments


def test_a_list_with_one_tensor_of_a_wrong_size_is_refused_as_by_torch(sim: Backend, monkeypatch: Any) -> None:
    monkeypatch.setattr(outcomes, "DEVICE", "sim")
    monkeypatch.setattr(sim.engine, "computes", False)
    values = [torch.empty(4, device="sim") for _ in range(3)]
    torch._foreach_add_(values, values)
    with pytest.raises(RuntimeError, match="broadcast"):
        torch._foreach_add_(values, [values[0], torch.empty(3, device="sim"), values[2]])
