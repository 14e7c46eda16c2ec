"""``torch.sim`` and ``torch.accelerator``: devices, memory figures, the history and its file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from gpudash.memory.allocator import CachingAllocator, DeviceMemory
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.device import probe
from gpudash.simulator.device.backend import Backend, register
from gpudash.simulator.device.device_module import STREAMS_PER_POOL
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, SimulatedGpu
from tests.unit.simulator.conftest import FIRST_BYTES, SECOND_BYTES


def test_the_current_device_is_changed_in_every_way_of_torch(sim: Backend) -> None:
    def where() -> int:
        return torch.empty(1, device="sim").device.index

    assert where() == 0
    with torch.sim.device(1):
        assert where() == 1 == torch.sim.current_device() == torch.accelerator.current_device_index()
        with torch.accelerator.device_index(0):
            assert where() == 0
    torch.sim.set_device("sim:1")
    assert where() == 1
    torch.accelerator.set_device_index(0)
    assert where() == 0
    with torch.device("sim:1"):
        assert torch.zeros(2).device.index == 1 and torch.nn.Linear(2, 2).weight.device.index == 1
    torch.set_default_device("sim:1")
    try:
        assert torch.tensor([1.0]).device == torch.device("sim:1")
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).sim(1).device.index == 1


@pytest.mark.parametrize("device", ["cpu", "cuda:0", 2, "sim:7"])
def test_a_device_that_is_not_simulated_is_refused(sim: Backend, device: Any) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"Expected a sim device|There is no sim:"):
        torch.sim.memory_allocated(device)


def test_the_accelerator_is_the_simulated_device(sim: Backend) -> None:
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("sim") and accelerator.device_count() == 2
    values = torch.ones(300, device="sim:1")
    assert accelerator.memory_allocated(1) == torch.sim.memory_allocated(1) == 1536
    assert accelerator.max_memory_reserved("sim:1") == accelerator.memory_reserved(1) == 2 * 2**20
    assert accelerator.get_memory_info(1) == (SECOND_BYTES - CONTEXT_BYTES - 2 * 2**20, SECOND_BYTES)
    del values
    accelerator.synchronize()
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats(1)
    accelerator.reset_accumulated_memory_stats(1)
    stats = accelerator.memory_stats(1)
    assert stats["reserved_bytes.all.peak"] == stats["allocated_bytes.all.allocated"] == 0
    accelerator.set_stream(accelerator.current_stream(0))


def test_figures_are_told_as_by_cuda(sim: Backend) -> None:
    values = torch.ones(2**20, device="sim")
    assert torch.sim.memory_allocated() == torch.sim.max_memory_allocated() == 4 * 2**20
    assert torch.sim.memory_reserved() == 20 * 2**20
    free, total = torch.sim.mem_get_info()
    assert total == FIRST_BYTES == torch.sim.get_device_properties().total_memory
    assert total - free == CONTEXT_BYTES + 20 * 2**20
    table = torch.sim.memory_summary()
    assert "Allocated memory" in table and "4.00 MiB" in table and "simulated" in table
    assert [segment["total_size"] for segment in torch.sim.memory_snapshot()] == [20 * 2**20]
    del values
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() == 0
    with pytest.raises(AttributeError, match=r"torch\.sim has no 'nonsense'"):
        _ = torch.sim.nonsense
    assert torch.sim.memory.memory_allocated() == 0 and torch.sim.get_device_capability() == (8, 0)


def test_a_card_can_be_made_like_another_gpu(sim: Backend) -> None:
    sim.engine.replace([SimulatedGpu(0, FIRST_BYTES, architecture=Architecture((9, 0), 132))])
    properties = torch.sim.get_device_properties(0)
    assert (properties.major, properties.minor) == torch.sim.get_device_capability(0) == (9, 0)
    assert (properties.multi_processor_count, properties.max_threads_per_multi_processor) == (132, 2048)


def test_an_out_of_memory_is_torchs_and_leaves_nothing(sim: Backend) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).to("sim:1")
    model(torch.ones(1, 512, device="sim:1")).sum().backward()
    model.zero_grad()
    before = torch.sim.memory_allocated(1)

    def grow() -> None:
        held = []
        while True:
            held.append(model(torch.ones(8192, 512, device="sim:1")))

    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match=r"SIM out of memory\. Tried to allocate") as refusal:
            grow()
        del refusal
        assert torch.sim.memory_allocated(1) == before
    hidden = model(torch.ones(4096, 512, device="sim:1"))
    room = torch.empty(torch.sim.mem_get_info(1)[0] // 2**21 * 2**21, dtype=torch.uint8, device="sim:1")
    torch.sim.set_per_process_memory_fraction(0.01, 1)
    with pytest.raises(torch.OutOfMemoryError):
        hidden.sum().backward()
    torch.sim.set_per_process_memory_fraction(1.0, 1)
    del hidden, room
    model.zero_grad()
    assert torch.sim.memory_allocated(1) == before
    model(torch.ones(1, 512, device="sim:1")).sum().backward()


def test_a_fraction_out_of_bounds_is_refused(sim: Backend) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        torch.sim.set_per_process_memory_fraction(1.5)


def test_every_stream_allocates_from_segments_of_its_own_as_torch_has_it(sim: Backend) -> None:
    module = sim.module
    first = torch.empty(1024, device="sim")
    reserved = module.memory_reserved()
    with module.stream(module.Stream()):
        beside = torch.empty(1024, device="sim")
    assert module.memory_reserved() == 2 * reserved
    again = torch.empty(1024, device="sim")
    assert module.memory_reserved() == 2 * reserved
    del first, beside, again


def test_streams_are_handed_out_from_thirty_two_so_that_their_segments_come_to_an_end(sim: Backend) -> None:
    module = sim.module
    assert module.default_stream().number == 0
    made = [module.Stream().number for _ in range(STREAMS_PER_POOL + 1)]
    assert len(set(made)) == STREAMS_PER_POOL and made[0] == made[-1] != 0
    assert module.Stream(priority=-1).number not in made


def test_streams_and_events_are_there_and_never_wait(sim: Backend) -> None:
    stream, began, ended = torch.sim.Stream(), *[torch.sim.Event(enable_timing=True) for _ in range(2)]
    began.record()
    with torch.sim.stream(stream):
        assert torch.sim.current_stream() == stream
        torch.ones(2, device="sim").record_stream(stream)
    stream.wait_stream(torch.sim.current_stream())
    stream.synchronize()
    ended.record(stream)
    assert began.elapsed_time(ended) >= 0 and stream.query() and ended.query()
    assert torch.sim.current_stream() == torch.sim.default_stream()
    with pytest.raises(ValueError, match="enable_timing"):
        torch.sim.Event().elapsed_time(ended)
    with pytest.raises(ValueError, match="must be recorded"):
        began.elapsed_time(torch.sim.Event(enable_timing=True))


def test_random_numbers_are_repeated_from_a_seed_or_a_state(sim: Backend) -> None:
    torch.manual_seed(3)
    drawn = torch.randn(3, device="sim")
    torch.sim.manual_seed(3)
    assert torch.equal(torch.randn(3, device="sim"), drawn)
    state = torch.sim.get_rng_state_all()
    drawn = torch.randn(3, device="sim")
    with torch.random.fork_rng(devices=[0], device_type="sim"):
        torch.randn(9, device="sim")
    torch.sim.set_rng_state_all(state)
    assert torch.equal(torch.randn(3, device="sim"), drawn)


def test_a_recorded_history_is_a_snapshot_of_torchs_and_replays_exactly(sim: Backend, tmp_path: Path) -> None:
    torch.sim.memory._record_memory_history()
    held = [torch.ones(300 * size, device="sim") for size in (1, 2000, 3, 9000, 5)]
    del held[1::2]
    held.append(torch.zeros(500_000, device="sim"))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device="sim")
    torch.sim.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    torch.sim.memory._record_memory_history(None)
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "segments: 2" in _memory_viz.segsum(snapshot) and "raise OutOfMemoryError" in _memory_viz.trace(snapshot)
    trace = snapshot["device_traces"][0]
    (refused,) = [event for event in trace if event["action"] == "oom"]
    assert "device_free" in refused and "addr" not in refused and snapshot["device_traces"][1] == []
    allocated = [event for event in trace if event["action"] == "alloc"]
    assert {event["frames"][0]["filename"] for event in allocated} == {__file__}
    assert len({event["frames"][0]["line"] for event in allocated}) == 2
    memory = DeviceMemory(FIRST_BYTES, CONTEXT_BYTES)
    replay = CachingAllocator(memory)
    moved = {}
    for event in trace:
        if event["action"] == "alloc":
            moved[event["addr"]] = replay.malloc(event["size"])
        elif event["action"] == "free_completed":
            replay.free(moved.pop(event["addr"]))
    recorded = [(s["total_size"], s["allocated_size"], len(s["blocks"])) for s in snapshot["segments"]]
    assert sorted((s.total_size, s.allocated_size, len(s.blocks)) for s in replay.segments()) == sorted(recorded)
    assert replay.allocated_bytes == sum(allocated for _total, allocated, _blocks in recorded)
    live = {block["address"]: block for s in snapshot["segments"] for block in s["blocks"] if block["frames"]}
    assert set(live) == set(moved) and snapshot["allocator_settings"]["max_split_size"] == -1


@pytest.mark.parametrize("options", [{"enabled": "nonsense"}, {"context": 3}, {"stacks": "c++"}])
def test_settings_of_the_history_that_torch_does_not_know_are_refused(sim: Backend, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="of a memory history must be one of"):
        torch.sim.memory._record_memory_history(**options)


def test_a_history_without_stacks_or_with_few_entries_is_kept(sim: Backend) -> None:
    torch.sim.memory._record_memory_history(context=None, max_entries=3)
    for _ in range(5):
        torch.ones(3, device="sim")
    snapshot = torch.sim.memory._snapshot()
    torch.sim.memory._record_memory_history(enabled=None)
    assert [event["frames"] for event in snapshot["device_traces"][0]] == [[]] * 4
    assert torch.sim.memory._snapshot()["device_traces"] == [[], []]


def test_cards_in_use_are_not_taken_away(sim: Backend) -> None:
    values = torch.ones(2, device="sim")
    with pytest.raises(ValueError, match="sim:0 still holds 512 bytes"):
        register([SimulatedGpu(0, FIRST_BYTES)])
    assert values.tolist() == [1, 1]


def test_a_torch_that_lacks_what_is_needed_is_told_in_one_sentence(
    sim: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.problem() is None and probe.tried() is None
    monkeypatch.setattr(probe, "NEEDED", ("torch._C._made_by_nobody",))
    sentence = probe.problem()
    assert sentence is not None and sentence.endswith("it lacks torch._C._made_by_nobody; torch 2.9 or newer can.")
