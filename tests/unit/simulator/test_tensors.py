"""Tensors, storages and files of the simulated GPU."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudash.simulator.device.backend import Backend

pytestmark = pytest.mark.usefixtures("sim")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]


def reloaded(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_any_dtype_goes_there_and_back(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    there = values.to("sim:1")
    assert there.device == torch.device("sim:1") and there.dtype == dtype
    assert torch.equal(there.cpu().to(torch.complex128), values.to(torch.complex128))


def test_scalars_and_empty_tensors_work() -> None:
    number = torch.tensor(3.0, device="sim")
    assert (number.item(), float(number + 1), int(number), bool(number)) == (3.0, 4.0, 3, True)
    nothing = torch.empty(0, 3, device="sim")
    assert torch.cat([nothing, nothing]).shape == (0, 3) and (nothing + 1).sum().item() == 0.0
    assert [10, 20][torch.tensor(1, device="sim")] == 20


def test_views_share_bytes_and_keep_the_memory() -> None:
    base = torch.zeros(10, device="sim")
    view = base.view(2, 5).t()[1:3]
    view.fill_(7)
    assert base.cpu().tolist() == [0, 7, 7, 0, 0, 0, 7, 7, 0, 0]
    del base
    assert torch.sim.memory_allocated() == 512
    del view
    assert torch.sim.memory_allocated() == 0


def test_in_place_views_change_their_own_sizes_only() -> None:
    values = torch.arange(6.0, device="sim").view(2, 3)
    values.t_()
    assert values.shape == (3, 2) and values.stride() == (1, 3)
    assert values.cpu().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_written_view_raises_the_version_of_its_base() -> None:
    values = torch.ones(2, device="sim")
    values[:1].add_(1)
    assert values._version == 1
    weight = torch.ones(2, device="sim", requires_grad=True)
    doubled = weight * 2
    squared = doubled * doubled
    doubled.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()
    del doubled, squared, values


def test_conjugated_and_negated_views_are_read_and_written_through() -> None:
    values = torch.randn(3, dtype=torch.complex64)
    there = values.to("sim")
    mirrored = there.conj()
    assert mirrored.is_conj() and torch.equal(mirrored.cpu(), values.conj())
    assert torch.equal(mirrored.imag.cpu(), -values.imag)
    target = torch.zeros(3, dtype=torch.complex64, device="sim")
    target.conj().copy_(there)
    assert torch.equal(target.cpu(), values.conj())


def test_out_is_resized_with_a_warning_and_written_through_views() -> None:
    base = torch.zeros(6, device="sim")
    torch.add(torch.ones(2, device="sim"), 1, out=base[2:4])
    assert base.cpu().tolist() == [0, 0, 2, 2, 0, 0]
    empty = torch.empty(0, device="sim")
    torch.mm(torch.ones(2, 3, device="sim"), torch.ones(3, 2, device="sim"), out=empty)
    assert empty.cpu().tolist() == [[3, 3], [3, 3]]
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(torch.ones(200, device="sim"), 1, out=base)
    assert base.shape == (200,) and base[199].item() == 2


def test_resize_takes_a_larger_block_and_keeps_the_numbers() -> None:
    values = torch.arange(4.0, device="sim")
    values.resize_(300)
    assert values[:4].cpu().tolist() == [0, 1, 2, 3] and torch.sim.memory_allocated() == 1536
    values.resize_(2)
    assert values.cpu().tolist() == [0, 1] and torch.sim.memory_allocated() == 1536


def test_set_and_data_replace_the_bytes_also_across_devices() -> None:
    values = torch.arange(4.0, device="sim")
    other = torch.empty(0, device="sim").set_(values.untyped_storage(), 1, (2,), (2,))
    assert other.cpu().tolist() == [1, 3]
    with pytest.raises(RuntimeError, match="devices must match"):
        other.set_(torch.ones(2))
    weight = torch.nn.Parameter(torch.ones(2))
    weight.data = weight.data.to("sim")
    assert weight.device.type == "sim" and weight.requires_grad and isinstance(weight, torch.nn.Parameter)
    weight.data = torch.zeros(3, device="sim")
    assert weight.shape == (3,)
    weight.data = weight.data.cpu()
    assert weight.device.type == "cpu"


def test_memory_formats_are_kept() -> None:
    images = torch.randn(2, 3, 4, 4, device="sim").to(memory_format=torch.channels_last)
    made = torch.nn.functional.conv2d(images, torch.randn(5, 3, 3, 3, device="sim"))
    for tensor in (images, images + 1, images.clone(), torch.empty_like(images), made):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_files_of_tensors_are_written_and_read_to_any_device() -> None:
    values = torch.arange(3.0, device="sim:1")
    for options, device in (({}, "sim:1"), ({"map_location": "cpu"}, "cpu"), ({"map_location": "sim"}, "sim:0")):
        found = reloaded({"a": values}, **options)["a"]
        assert found.device == torch.device(device) and found.cpu().tolist() == [0, 1, 2]
    assert reloaded(torch.nn.Linear(2, 2).state_dict(), map_location="sim:1")["weight"].device.index == 1
    with pytest.raises(RuntimeError, match="device_count"):
        reloaded(torch.ones(2), map_location="sim:7")


def test_tensors_are_pickled_and_copied() -> None:
    values = torch.arange(4.0, device="sim")[1:]
    assert pickle.loads(pickle.dumps(values)).cpu().tolist() == [1, 2, 3]
    module = torch.nn.Linear(2, 2).to("sim")
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
    assert module.weight.abs().sum().item() > 0 and twin.weight.device.type == "sim"


def test_storages_are_made_moved_and_refused_in_words() -> None:
    storage = torch.UntypedStorage(600, device="sim:1")
    assert storage.device == torch.device("sim:1") and torch.sim.memory_allocated(1) == 1024
    there = torch.arange(2.0).untyped_storage().sim()
    assert there.device.type == "sim" and there.cpu().tolist() == torch.arange(2.0).untyped_storage().tolist()
    assert there.clone().tolist() == there.tolist()
    with pytest.raises(RuntimeError, match="keeps its size"):
        there.resize_(9)
    with pytest.raises(RuntimeError, match=r"cannot be shared .* share tensor.cpu\(\)"):
        torch.multiprocessing.get_context("spawn").SimpleQueue().put(torch.ones(2, device="sim"))
    assert torch.ones(2, device="sim").share_memory_().is_shared()


def test_pinned_memory_is_marked_as_such() -> None:
    values = torch.arange(3.0)
    pinned = values.pin_memory()
    assert pinned.is_pinned() and not values.is_pinned() and torch.equal(pinned, values)
    assert pinned[1:].is_pinned() and pinned.pin_memory() is pinned
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True
    )
    assert [batch.is_pinned() for (batch,) in loader] == [True, True]
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="sim").pin_memory()


def test_generators_can_be_made_for_it() -> None:
    made = torch.Generator(device="sim:1").manual_seed(3)
    assert made.device == torch.device("sim:1") and isinstance(made, torch.Generator)
    drawn = torch.randn(4, device="sim", generator=made)
    assert torch.equal(drawn.cpu(), torch.randn(4, generator=torch.Generator().manual_seed(3)))
    assert isinstance(torch.default_generator, torch.Generator) and torch.Generator().device.type == "cpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse().to("sim"),
        lambda: torch.eye(2, device="sim").to_sparse(),
        lambda: torch.eye(2, device="sim").to_mkldnn(),
        lambda: torch.nn.Embedding(5, 3, sparse=True, device="sim")(torch.tensor([1], device="sim")).sum().backward(),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_what_is_not_dense_is_refused_in_one_sentence(make: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"A simulated GPU keeps .*use device='cpu'[^\n]*\Z"):
        make()


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(RuntimeError, match="There is no sim:5: 2 GPUs are simulated"):
        torch.ones(2).to("sim:5")


WORKSPACE = 8_519_680
OPERATIONS = ("add", "mul_", "relu", "view", "t", "slice", "cat", "mm", "sum", "copy", "index", "del")


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_any_sequence_of_operations_gives_the_numbers_of_the_cpu_and_leaves_no_memory(
    steps: list[tuple[str, int, int]],
) -> None:
    torch.manual_seed(0)
    here = [torch.randn(4, 4), torch.randn(4, 4)]
    there = [tensor.to("sim") for tensor in here]
    for name, first, second in steps:
        for held in (here, there):
            one, other = held[first % len(held)], held[second % len(held)]
            held += applied(name, one, other)
            if name == "del" and len(held) > 2:
                del held[first % len(held)]
    for one, other in zip(here, there, strict=True):
        assert other.stride() == one.stride()
        torch.testing.assert_close(other.cpu(), one)
    del there[:], here[:]
    one = other = held = None
    assert torch.sim.memory_allocated() in (0, WORKSPACE)


def applied(name: str, one: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
    if name == "add" and one.shape == other.shape:
        return [one + other * 0.5]
    if name == "mul_":
        one.mul_(0.5)
    if name == "copy" and one.shape == other.shape:
        one.copy_(other.clone())
    if name == "mm" and one.dim() == other.dim() == 2 and one.shape[1] == other.shape[0]:
        return [(one @ other).tanh()]
    if name == "cat" and one.dim() == 2 and one.numel() < 200:
        return [torch.cat([one, one], 1)]
    if name == "index" and one.shape[0] > 1:
        return [one[torch.tensor([1, 0])]]
    simple = {
        "relu": torch.relu,
        "view": lambda tensor: tensor.reshape(-1),
        "t": lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
        "slice": lambda tensor: tensor[: tensor.shape[0] // 2 + 1],
        "sum": lambda tensor: tensor.sum(0, keepdim=True),
    }
    return [simple[name](one)] if name in simple else []


def test_memory_falls_with_the_last_reference_and_never_by_collection(sim: Backend) -> None:
    import gc

    gc.disable()
    try:
        for _ in range(3):
            values = torch.randn(64, 64, device="sim", requires_grad=True)
            with pytest.raises(RuntimeError):
                values @ torch.ones(3, device="sim")
            torch.nn.functional.layer_norm(values, (64,)).square().sum().backward()
            del values
            assert torch.sim.memory_allocated() == 0
    finally:
        gc.enable()
