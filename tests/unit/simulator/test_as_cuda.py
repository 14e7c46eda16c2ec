"""A simulated GPU that answers for CUDA: what programs say of ``cuda`` works on it, and is refused with the reason."""

from __future__ import annotations

import io
import pickle
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from gpudash.memory.predicting.architecture import WORKSPACE_CACHE_VARIABLE
from gpudash.simulator.as_cuda import answering, notices
from gpudash.simulator.as_cuda.cuda_functions import REFUSED, REFUSED_OF
from gpudash.simulator.as_cuda.streams import STREAMS
from gpudash.simulator.device.backend import Backend
from gpudash.simulator.replacing import Replacements
from tests.unit.simulator.conftest import FIRST_BYTES, SECOND_BYTES
from tests.unit.torch_names import names_in_torch_c

CUDA_0, CUDA_1 = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture
def cuda(sim: Backend) -> Iterator[Replacements]:
    """Two cards, called ``cuda:0`` and ``cuda:1`` for one test."""
    notices.emitted.clear()
    yield answering.answer_for_cuda(sim)
    answering.end()
    torch.sim.set_device(0)


def test_every_name_that_is_replaced_is_one_of_torchs(cuda: Replacements) -> None:
    assert cuda.missing == []
    assert {"torch.cuda.is_available", "torch.compile", "torch._C._scatter"} <= set(cuda.names)
    assert {"_broadcast", "_broadcast_coalesced", "_scatter", "_gather"} <= names_in_torch_c(), (
        "only CUDA builds have them"
    )
    assert {"torch.distributed.init_process_group", "torch.cuda._exchange_device"} <= set(cuda.names)


def test_afterwards_cuda_is_cuda_again(sim: Backend) -> None:
    owners = (torch, torch._C, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.autograd, threading.Thread)

    def known() -> list[dict[str, int]]:
        """What every name means; a module that is imported meanwhile is a new one."""
        return [
            {name: id(value) for name, value in vars(owner).items() if not isinstance(value, ModuleType)}
            for owner in owners
        ]

    before = known()
    answering.answer_for_cuda(sim)
    assert torch.cuda.is_available() and torch.ones(1, device="cuda").is_cuda
    answering.end()
    assert known() == before
    assert not torch.cuda.is_available() and torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.ones(1, device="sim").device.type == "sim"
    with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        torch.ones(1, device="cuda")


def test_torch_cuda_tells_of_the_cards(cuda: Replacements) -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.is_initialized()
    assert torch.cuda.get_device_properties("cuda:1").total_memory == SECOND_BYTES
    assert torch.cuda.get_device_name() == torch.cuda.get_device_name(CUDA_1) == "Simulated GPU"
    assert torch.cuda.get_device_capability() == (8, 0) and torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.is_bf16_supported() and torch.cuda.mem_get_info()[1] == FIRST_BYTES
    values = torch.ones(300, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == torch.cuda.max_memory_allocated("cuda:1") == 1536
    assert torch.cuda.memory_reserved(CUDA_1) == 2 * 2**20 and torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory.memory_stats_as_nested_dict(1)["allocated_bytes"]["all"]["current"] == 1536
    assert "CUDA memory summary" in torch.cuda.memory_summary(1)
    del values
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_reserved(1) == 0
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.get_device_module() is torch.cuda and torch.backends.cuda.is_built()


def test_products_of_halves_are_float32_where_that_is_wanted(cuda: Replacements) -> None:
    one, other = torch.randn(4, 8, device="cuda").bfloat16(), torch.randn(8, 3, device="cuda").bfloat16()
    wide = one.float() @ other.float()
    before = torch.cuda.memory_allocated()
    total = torch.ones(4, 3, device="cuda")

    torch.addmm(total, one, other, out_dtype=torch.float32, out=total)

    assert torch.cuda.memory_allocated() == before + 512  # nothing beside the sum, which it is added to
    assert torch.equal(total, wide + 1)
    assert torch.equal(torch.mm(one, other, out_dtype=torch.float32), wide)
    assert torch.equal(torch.bmm(one[None], other[None], out_dtype=torch.float32)[0], wide)


@pytest.fixture
def kept_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS's workspaces are kept by any torch, as they are by default before 2.15."""
    monkeypatch.setenv(WORKSPACE_CACHE_VARIABLE, "1")


@pytest.mark.usefixtures("kept_workspaces")
def test_workspaces_of_cublas_are_given_back_when_asked(cuda: Replacements) -> None:
    one = torch.ones(4, 4, device="cuda")
    before = torch.cuda.memory_allocated()
    product = one @ one
    assert torch.cuda.memory_allocated() - before > 2**20
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() - before == 512 and product.shape == (4, 4)


def test_every_way_to_name_a_device_ends_on_the_card(cuda: Replacements) -> None:
    ones = torch.ones(3)
    ways: list[Callable[[], torch.Tensor]] = [
        lambda: torch.zeros(3, device="cuda:1"),
        lambda: torch.zeros(3, device=CUDA_1),
        lambda: ones.cuda(1),
        lambda: ones.cuda("cuda:1", non_blocking=True),
        lambda: ones.to("cuda:1"),
        lambda: ones.to(CUDA_1, torch.float64),
        lambda: ones.to(device="cuda:1"),
        lambda: ones.to(torch.zeros(1, device="cuda:1")),
        lambda: ones.new_zeros(2, device="cuda:1"),
        lambda: torch.tensor([1.0], device="cuda:1"),
        lambda: torch.zeros_like(ones, device=CUDA_1),
        lambda: nn.Linear(2, 2, device="cuda:1").weight,
        lambda: nn.Linear(2, 2).cuda(1).weight,
        lambda: nn.Linear(2, 2).to(CUDA_1).bias,
        lambda: torch.zeros(2, device=1),
    ]
    for way in ways:
        made = way()
        assert made.device == CUDA_1 and made.is_cuda and made.get_device() == 1
        assert type(made.device) is torch.device and made.cpu().device == torch.device("cpu") != made.device
    assert not ones.is_cuda
    made = ones.cuda()
    assert "device='cuda:0'" in repr(made) and made.type() == "torch.cuda.FloatTensor"
    assert made.untyped_storage().device == CUDA_0 and torch.UntypedStorage(4, device="cuda").is_cuda
    assert torch.cuda.FloatTensor([1, 2]).tolist() == [1.0, 2.0]
    assert isinstance(made, torch.cuda.FloatTensor) and not isinstance(ones, torch.cuda.FloatTensor)
    assert ones.type(torch.cuda.HalfTensor).dtype == torch.float16


def test_the_current_and_the_default_device_are_cudas(cuda: Replacements) -> None:
    torch.cuda.set_device(1)
    assert torch.ones(1, device="cuda").device == CUDA_1 and torch.cuda.current_device() == 1
    with torch.cuda.device(0):
        assert torch.ones(1).cuda().device == CUDA_0
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:0")
    with torch.cuda.device_of(torch.ones(1, device="cuda:1")), torch.cuda.device(-1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0 and isinstance(torch.cuda.device(0), torch.cuda.device)
    with torch.device("cuda:1"):
        assert torch.zeros(2).device == CUDA_1
    torch.set_default_device("cuda")
    try:
        assert torch.tensor([1.0]).device == CUDA_0 == torch.get_default_device()
    finally:
        torch.set_default_device(None)
    assert torch.get_default_device() == torch.device("cpu") == torch.ones(1).device
    assert "__new__" not in vars(torch.Tensor)


def test_the_default_type_of_tensors_may_be_one_of_cudas(cuda: Replacements) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for kind in ("torch.cuda.FloatTensor", torch.cuda.HalfTensor):
            torch.set_default_tensor_type(kind)  # type: ignore[arg-type]  # a class, to torch's stubs
            made, sized, filled = torch.zeros(2), torch.Tensor(2, 3), torch.Tensor([1, 2])
            parameter = nn.Parameter(torch.Tensor(2))
            torch.set_default_tensor_type(torch.FloatTensor)
            assert {made.device, sized.device, filled.device, parameter.device} == {CUDA_0}
            assert sized.shape == (2, 3) and filled.tolist() == [1, 2] and type(sized) is torch.Tensor
            assert torch.zeros(2).type() == torch.Tensor(2).type() == "torch.FloatTensor"
        assert made.dtype == torch.float16
    with pytest.raises(TypeError, match=r"torch.cuda.FloatTensor takes no tensor of the CPU"):
        torch.cuda.FloatTensor(torch.ones(2))


def test_a_tensor_may_be_of_a_class_of_its_own_and_stays_in_the_graph(cuda: Replacements) -> None:
    class Image(torch.Tensor):
        pass

    values = torch.ones(3, device="cuda", requires_grad=True)
    image = values.as_subclass(Image)
    (image * 2).sum().backward()
    assert type(image + 1) is Image and image.is_cuda and torch.ones(1).as_subclass(Image).device.type == "cpu"
    assert values.grad is not None and values.grad.tolist() == [2.0] * 3


def test_a_storage_gives_its_memory_back_and_takes_it_again(cuda: Replacements) -> None:
    values = torch.arange(1024.0).cuda()
    storage = values.untyped_storage()
    storage.resize_(0)
    assert storage.size() == 0 and torch.cuda.memory_allocated() == 0
    storage.resize_(4096)
    assert storage.nbytes() == 4096 == torch.cuda.memory_allocated()
    values.fill_(3)
    assert values.sum().item() == 3 * 1024
    with pytest.raises(RuntimeError, match="keeps its size"):
        storage.resize_(8192)


def trained(device: str, *, scaled: bool = False) -> list[float]:
    """The losses of a few steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=scaled)
    losses = []
    for _step in range(4):
        inputs = torch.randn(16, 8).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=scaled):
            loss = model(inputs).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def test_a_training_has_the_losses_of_the_cpu(cuda: Replacements) -> None:
    assert trained("cuda") == pytest.approx(trained("cpu"), abs=1e-5)
    assert trained("cuda", scaled=True) == pytest.approx(trained("cpu", scaled=True), abs=2e-2)


def test_autocast_and_its_scaler_answer_under_all_their_names(cuda: Replacements) -> None:
    model, values = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda"):
        assert (
            model(values).dtype == torch.float16 and torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        )
        assert torch.get_autocast_gpu_dtype() == torch.float16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            assert model(values).dtype == torch.bfloat16
        assert torch.cuda.amp.GradScaler().is_enabled()
    assert not torch.is_autocast_enabled("cuda") and torch.amp.GradScaler("cuda").is_enabled()


def test_hooks_custom_functions_and_checkpoints_see_cuda_in_the_backward_pass(cuda: Replacements) -> None:
    seen: list[torch.device] = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            seen.append(values.device)
            return values * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            seen.append(torch.zeros(1, device=grads[0].device).device)
            return grads[0] * 2

    def part(values: torch.Tensor) -> torch.Tensor:
        seen.append(values.device)
        return (values.to("cuda") * torch.ones(3, device="cuda")).sin()

    values = torch.ones(3, device="cuda", requires_grad=True)
    doubled = Doubled.apply(values)
    doubled.register_hook(lambda grad: seen.append(grad.device))
    doubled.sum().backward()
    torch.autograd.backward(Doubled.apply(values).sum())
    torch.autograd.grad(Doubled.apply(values).sum(), values)
    for reentrant in (False, True):
        checkpoint(part, values, use_reentrant=reentrant).sum().backward()
    assert len(seen) == 11 and set(seen) == {CUDA_0}


def test_threads_of_the_program_call_it_cuda_too(cuda: Replacements) -> None:
    found: list[torch.device] = []

    class Own(threading.Thread):
        def run(self) -> None:
            values = torch.ones(2, device="cuda", requires_grad=True)
            values.sum().backward()
            assert values.grad is not None
            found.append(values.grad.device)

    plain = threading.Thread(target=lambda: found.append(torch.ones(1).cuda(1).device))
    for thread in (Own(), plain):
        thread.start()
        thread.join()
        assert "run" not in vars(thread)
    with ThreadPoolExecutor(2) as pool:
        found += pool.map(lambda index: torch.zeros(1, device=f"cuda:{index}").device, range(2))
    assert found == [CUDA_0, CUDA_1, CUDA_0, CUDA_1]


def test_files_say_cuda_and_are_read_to_where_they_are_wanted(cuda: Replacements) -> None:
    buffer = io.BytesIO()
    torch.save({"there": torch.arange(3.0).cuda(), "here": torch.ones(2)}, buffer)
    with zipfile.ZipFile(buffer) as file:
        told = file.read(next(name for name in file.namelist() if name.endswith("data.pkl")))
    assert b"cuda:0" in told and b"sim" not in told
    for location, wanted in (("cuda", CUDA_0), (CUDA_1, CUDA_1), (None, CUDA_0), ({"cuda:0": "cuda:1"}, CUDA_1)):
        buffer.seek(0)
        found = torch.load(buffer, map_location=location)
        assert found["there"].device == wanted and found["there"].tolist() == [0.0, 1.0, 2.0]
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["there"].device == torch.device("cpu")
    assert pickle.loads(pickle.dumps(torch.ones(1, device="cuda:1"))).device == CUDA_1


def test_pinned_memory_is_a_flag(cuda: Replacements) -> None:
    assert torch.ones(2).pin_memory().is_pinned() and torch.empty(2, pin_memory=True).is_pinned()
    assert not torch.ones(2).is_pinned()
    loader = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=4, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert [batch.is_pinned() for batch in batches] == [True, True]
    there = batches[0].cuda(non_blocking=True)
    assert there.device == CUDA_0 and torch.empty_like(batches[0], pin_memory=True).is_pinned()
    back = there.to("cpu", non_blocking=True)
    assert back.is_pinned() and back.equal(batches[0]) and not there.cpu().is_pinned()


def test_generators_and_seeds_of_cuda_make_the_same_numbers_again(cuda: Replacements) -> None:
    made = torch.Generator(device="cuda")
    assert made.device == CUDA_0
    first = torch.randn(3, device="cuda", generator=made.manual_seed(5)).tolist()
    assert torch.randn(3, device="cuda", generator=made.manual_seed(5)).tolist() == first
    torch.cuda.manual_seed_all(7)
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(2, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(2, device="cuda").tolist() == drawn


def test_streams_and_events_do_nothing_and_that_is_said_once(cuda: Replacements) -> None:
    torch.ones(2, device="cuda", requires_grad=True).sum().backward()
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream) and notices.emitted == []
    side, began, ended = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(True)
    began.record()
    with torch.cuda.stream(side):
        values = torch.ones(3, device="cuda")
        values.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    ended.record()
    ended.synchronize()
    assert torch.cuda.Stream(priority=-1).priority == -1 and isinstance(side.cuda_stream, int)
    assert began.elapsed_time(ended) >= 0 and side.device == torch.cuda.current_stream().device == CUDA_0
    assert notices.emitted == [STREAMS]


def test_streams_and_events_may_be_made_by_torchs_own_classes(cuda: Replacements) -> None:
    side, first, second = torch.Stream("cuda:1"), torch.Event("cuda", enable_timing=True), torch.Event(CUDA_0)
    first.record()
    side.record_event(second)
    assert side.device == torch.Stream(1).device == second.device == CUDA_1 and first.device == CUDA_0
    assert first.query() and isinstance(side, torch.Stream) and isinstance(first, torch.Event)
    assert isinstance(torch.cuda.Stream(), torch.Stream) and isinstance(torch.cuda.Event(), torch.Event)
    assert torch.Stream().device == CUDA_0 and notices.emitted == [STREAMS]


def test_a_stream_belongs_to_its_card_which_is_the_current_one_within(cuda: Replacements) -> None:
    with torch.cuda.device(1):
        side = torch.cuda.Stream()
    assert side.device == torch.cuda.Stream(device=1).device == torch.cuda.current_stream(1).device == CUDA_1
    with torch.cuda.stream(side):
        assert torch.cuda.current_device() == 1 and torch.ones(1).cuda().device == CUDA_1
    assert torch.cuda.current_device() == 0


def test_what_names_no_card_goes_to_the_current_one(cuda: Replacements) -> None:
    torch.cuda.set_device(1)
    model = nn.Linear(2, 2)
    assert model.to("cuda").weight.device == nn.Linear(2, 2).cuda().weight.device == CUDA_1
    values = torch.ones(1)
    sent = (values.cuda(), values.to("cuda", torch.float16), values.to(device="cuda"), values.to(torch.device("cuda")))
    assert {tensor.device for tensor in sent} == {CUDA_1} and values.cuda(0).to("cuda").device == CUDA_1
    made = (
        torch.tensor([1.0], device="cuda"),
        torch.as_tensor([1.0], device=torch.device("cuda")),
        torch.asarray([1.0], device="cuda"),
        values.new_tensor([1.0], device="cuda"),
        values.type("torch.cuda.FloatTensor"),
    )
    with torch.device("cuda"):
        made = (*made, torch.tensor([1.0]))
    assert {tensor.device for tensor in made} == {CUDA_1}
    assert values.cuda(0).new_tensor([1.0]).device == CUDA_0


def test_makers_of_tensors_that_torch_runs_in_an_own_way_make_the_cpus_numbers(cuda: Replacements) -> None:
    for make in (
        lambda device: torch.kaiser_window(7, device=device),
        lambda device: torch.kaiser_window(7, False, device=device),
        lambda device: torch.kaiser_window(7, False, beta=9.0, dtype=torch.float64, device=device),
        lambda device: torch.range(0, 3, 0.5, device=device),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `torch.range` is deprecated
            there, here = make("cuda:1"), make("cpu")
        assert there.device == CUDA_1 and torch.equal(there.cpu(), here)


def test_a_number_is_a_device_of_cudas(cuda: Replacements) -> None:
    device = torch.device(1)
    assert device == CUDA_1 and str(device) == "cuda:1" and torch.ones(1, device=device).device == device
    assert {device: "there"}[CUDA_1] == "there" and nn.Linear(2, 2).to(device).weight.device == CUDA_1
    with torch.autocast(torch.device(0).type):
        assert torch.mm(torch.ones(2, 2).cuda(), torch.ones(2, 2).cuda()).dtype is torch.float16


def test_torch_lends_tensors_of_the_card_to_torch_and_to_nobody_else(cuda: Replacements) -> None:
    values = torch.arange(3.0, device="cuda")
    for lent in (torch.from_dlpack(values), torch.from_dlpack(torch.utils.dlpack.to_dlpack(values))):
        assert lent.device == CUDA_0 and lent.data_ptr() == values.data_ptr()
    numpy = pytest.importorskip("numpy")
    with pytest.raises((RuntimeError, BufferError), match="device"):
        numpy.from_dlpack(values)
    assert torch.from_dlpack(numpy.ones(2)).device.type == torch.from_dlpack(torch.ones(2)).device.type == "cpu"
    assert not hasattr(values, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="needs a real GPU"):
        _ = values.__cuda_array_interface__


def test_a_full_card_speaks_as_cuda(cuda: Replacements) -> None:
    with pytest.raises(
        torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"
    ):
        torch.empty(2**31, dtype=torch.uint8, device="cuda")


def test_the_traceback_of_an_out_of_memory_ends_close_to_the_programs_own_line(cuda: Replacements) -> None:
    with pytest.raises(torch.OutOfMemoryError) as refusal:
        torch.empty(2**31, dtype=torch.uint8, device="cuda")
    assert [entry.path.name for entry in refusal.traceback][1:] == ["mode.py", "storage.py"]


def test_errors_of_torch_name_cuda(cuda: Replacements) -> None:
    values = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match=r"at least two devices, cuda:0 and cpu!"):
        values + torch.ones(2)
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
        values.numpy()
    with pytest.raises(RuntimeError, match=r"There is no cuda:7: 2 GPUs are simulated"):
        torch.ones(2, device="cuda:7")
    with pytest.raises(RuntimeError, match=r"cannot be shared with another process"):
        values.untyped_storage()._share_cuda_()
    with pytest.raises(RuntimeError, match=r"Invalid device, must be cuda device"):
        values.cuda("cpu")


@pytest.mark.parametrize("name", [*REFUSED, "CUDAGraph"])
def test_what_needs_a_real_gpu_is_refused_with_the_reason(cuda: Replacements, name: str) -> None:
    with pytest.raises(RuntimeError, match=r"needs a real GPU: this one is simulated"):
        getattr(torch.cuda, name)(1)


@pytest.mark.parametrize("name", [f"{part}.{name}" for part, names in REFUSED_OF.items() for name in names])
def test_what_a_part_of_cudas_module_needs_a_real_gpu_for_is_refused_too(cuda: Replacements, name: str) -> None:
    part, _, function = name.partition(".")
    with pytest.raises(RuntimeError, match=rf"torch.cuda.{name} needs a real GPU: this one is simulated"):
        getattr(getattr(torch.cuda, part), function)(1)


def test_a_program_that_asks_what_torch_was_built_with_is_answered(cuda: Replacements) -> None:
    assert torch.version.cuda is not None and int(torch.version.cuda.partition(".")[0]) >= 12
    assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() >= 90000
    assert torch.cuda.nccl.version() >= (2, 10) and not torch.cuda.tunable.is_enabled()
    cache = torch.backends.cuda.cufft_plan_cache
    cache.max_size = 0
    cache.clear()
    assert cache.max_size == cache.size == 0 and cache[1].max_size > 0
    assert torch.backends.cuda.preferred_linalg_library("magma") is torch._C._LinalgBackend.Magma


def test_functions_of_cuda_that_nobody_thought_of_are_refused_where_they_would_begin(cuda: Replacements) -> None:
    with pytest.raises(RuntimeError, match=r"torch.cuda.current_solver_handle needs a real GPU"):
        torch.cuda.current_solver_handle()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_compiled_code_runs_as_it_is_and_scripts_run(cuda: Replacements) -> None:
    values = torch.ones(1, 2, device="cuda")
    with pytest.warns(UserWarning, match="compiles nothing for a simulated GPU"):
        model = torch.compile(nn.Linear(2, 2).cuda(), mode="max-autotune")
    assert model(values).device == CUDA_0 and answering.UNCOMPILED in notices.emitted
    scripted: Any = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).cuda())
    assert scripted(values).device == CUDA_0
    assert torch.vmap(lambda one: one * 2)(values).device == CUDA_0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchs_compiler_is_imported_and_reset_all_the_same(cuda: Replacements) -> None:
    assert {"_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled"} <= names_in_torch_c()
    torch.compiler.reset()
    torch.compiler.cudagraph_mark_step_begin()


def test_marks_for_a_profiler_of_nvidias_are_nothing(cuda: Replacements) -> None:
    torch.cuda.cudart().cudaProfilerStart()
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("step"):
        assert torch.cuda.cudart().cudaMemGetInfo(1)[1] == SECOND_BYTES
    with pytest.raises(AttributeError, match=r"cudaHostRegister needs a real GPU"):
        torch.cuda.cudart().cudaHostRegister(0, 0, 0)


def test_the_profiler_sees_the_host_and_says_so(cuda: Replacements) -> None:
    values = torch.ones(2, 2, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        values @ values
    assert any(event.key == "aten::mm" for event in profiler.key_averages())
    assert notices.emitted == [answering.UNPROFILED]


@pytest.mark.filterwarnings(
    r"ignore:\s*There is an imbalance between your GPUs", "ignore:PyTorch is not compiled with NCCL"
)
def test_data_parallel_runs_on_one_card_and_on_two(cuda: Replacements) -> None:
    for devices in ([0], [0, 1]):
        model = nn.DataParallel(nn.Linear(3, 2).cuda(), device_ids=devices)
        out = model(torch.ones(4, 3))
        out.sum().backward()
        assert out.device == CUDA_0 and model.module.weight.grad.tolist() == [[4.0] * 3] * 2


@pytest.mark.filterwarnings(r"ignore:\s*There is an imbalance between your GPUs")
@pytest.mark.usefixtures("kept_workspaces")
def test_data_parallel_takes_of_each_card_what_it_takes_of_cudas(cuda: Replacements) -> None:
    """Parameters travel in one piece, and neither outputs nor gradients are copied before they are put together."""
    model = nn.DataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)).cuda())
    batch = torch.ones(30, 128).cuda()
    out = model(batch)
    # as torch 2.13 takes it on the stand-in for CUDA
    assert [torch.cuda.memory_allocated(card) for card in (0, 1)] == [8_694_784, 8_685_568]
    out.sum().backward()
    assert [torch.cuda.max_memory_allocated(card) for card in (0, 1)] == [17_628_672, 17_325_056]


def test_modules_take_the_fast_way_as_without_a_mode(cuda: Replacements) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    values = torch.randn(2, 3, 8)
    with torch.inference_mode():
        there = layer.cuda()(values.cuda())
        assert torch.allclose(there.cpu(), layer.cpu()(values), atol=1e-5)
    assert not torch.overrides.has_torch_function((values,))
