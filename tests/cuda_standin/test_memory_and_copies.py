"""What is real on the stand-in: torch's allocator, copies, out-of-memory, and what other processes see of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from tests.cuda_standin.conftest import Program
from tests.cuda_standin.machine import Machine

MIB = 2**20
GIB = 2**30

CARDS = {"8.0": (108, 40 * MIB, 2048), "9.0": (132, 50 * MIB, 2048), "12.0": (170, 96 * MIB, 1536)}
"""Multiprocessors, L2 cache and threads of a multiprocessor of an A100, an H100 and an RTX 5090."""


def test_a_device_is_a_card_of_its_capability() -> None:
    found = torch.cuda.get_device_properties(0)
    sms, cache, threads = CARDS[f"{found.major}.{found.minor}"]
    assert (found.multi_processor_count, found.L2_cache_size) == (sms, cache)
    assert found.max_threads_per_multi_processor == threads
    assert found.name.endswith("(stand-in)") and found.total_memory == 24 * GIB


def test_torchs_allocator_counts_as_on_a_card() -> None:
    torch.cuda.empty_cache()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()  # so that nothing lies in segments of tests before
    with torch.cuda.use_mem_pool(pool):
        large = torch.empty(1000, 1000, device="cuda")  # 4,000,000 bytes: in units of 512, from a segment of 20 MiB
        assert torch.cuda.memory_allocated() - before == 4_000_256
        assert torch.cuda.memory_reserved() - reserved == 20 * MIB
        small = torch.empty(1, device="cuda")  # from a segment of 2 MiB
        assert torch.cuda.memory_allocated() - before == 4_000_256 + 512
        assert torch.cuda.memory_reserved() - reserved == 22 * MIB
    del large, small, pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_what_is_copied_there_comes_back() -> None:
    values = torch.arange(100_000, dtype=torch.int64)
    there = values.pin_memory().to("cuda", non_blocking=True)
    other = torch.empty_like(there, device=f"cuda:{torch.cuda.device_count() - 1}")
    other.copy_(there)
    assert torch.equal(other.cpu(), values)
    assert torch.equal(there[500:900].clone().cpu(), values[500:900])
    assert there[7].item() == 7


def test_an_out_of_memory_has_torchs_own_words() -> None:
    torch.cuda.empty_cache()
    with pytest.raises(torch.OutOfMemoryError) as told:
        torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    assert "Tried to allocate 100.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which" in str(told.value)
    assert torch.cuda.memory_stats()["num_ooms"] >= 1


def test_another_process_takes_memory_that_both_and_nvml_see(program: Program) -> None:
    script = """
        import torch, time
        kept = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
        print(torch.cuda.mem_get_info()[0], flush=True)
        input()
    """
    program.machine.hold(0, 4 * GIB)
    running = program.start(script)
    assert running.stdout is not None
    assert int(running.stdout.readline()) == (24 - 4 - 8) * GIB - 500 * MIB
    assert program.machine.processes(0) == {os.getpid(): 4 * GIB, running.pid: 8 * GIB + 500 * MIB}
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert program.machine.used(0) == 4 * GIB


def test_nvml_and_cuda_mean_the_same_devices(gpus: int) -> None:
    pynvml.nvmlInit()
    try:
        for index in range(gpus):
            torch.empty(1, device=f"cuda:{index}")
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            properties = torch.cuda.get_device_properties(index)
            assert pynvml.nvmlDeviceGetUUID(handle) == f"GPU-{properties.uuid}"
            assert pynvml.nvmlDeviceGetName(handle) == properties.name
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            free, total = torch.cuda.mem_get_info(index)
            assert (memory.free, memory.total) == (free, total)
            mine = [one for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if one.pid == os.getpid()]
            assert mine[0].usedGpuMemory == Machine.here().processes(index)[os.getpid()] >= 500 * MIB
    finally:
        pynvml.nvmlShutdown()


RECORD = """
    import torch, json
    torch.cuda.memory._record_memory_history("all", stacks="python")
    kept = []
    def take(gib): kept.append(torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda"))
    take(1)
    take(0.001)
"""

REPORT = """
    import os
    torch.cuda.memory._dump_snapshot(os.environ["FILE"])
    found = torch.cuda.memory._snapshot()
    trace = found["device_traces"][0]
    print(json.dumps({
        "actions": sorted({event["action"] for event in trace}),
        "expandable": [segment["is_expandable"] for segment in found["segments"]],
        "pools": sorted({tuple(segment["segment_pool_id"]) for segment in found["segments"]}),
        "reserved": torch.cuda.memory_reserved(),
        "lines": sum("<string>" in frame["filename"] for event in trace for frame in event.get("frames", ())),
    }))
"""

REFUSED = """
take(20)
try: take(10)
except torch.OutOfMemoryError: pass
"""

GRAPH = """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): made = torch.zeros(64, device="cuda") + 1
graph.replay()
"""

KINDS: dict[str, tuple[str, str]] = {
    "expandable": ("expandable_segments:True", ""),
    "out of memory": ("", REFUSED),
    "pool of a graph": ("", GRAPH),
}
"""Settings of the allocator, and what is done beside allocating."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_has_what_was_recorded_and_is_opened_again(program: Program, kind: str, tmp_path: Path) -> None:
    settings, more = KINDS[kind]
    file = tmp_path / "recorded.pickle"
    names = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), settings)
    found = program(RECORD, more, REPORT, FILE=str(file), **names)
    assert found["lines"] > 0
    assert ("oom" in found["actions"]) == (kind == "out of memory")
    assert all(found["expandable"]) == (kind == "expandable")
    assert ("segment_map" if kind == "expandable" else "segment_alloc") in found["actions"]
    assert (len(found["pools"]) > 1) == (kind == "pool of a graph")

    command = [sys.executable, "-m", "gpudash", "snapshot", str(file), "--json"]
    opened = subprocess.run(command, capture_output=True, text=True, check=False)
    assert opened.returncode == 0, opened.stderr
    (device,) = json.loads(opened.stdout)["devices"]
    assert device["final_reserved_bytes"] == found["reserved"]


def test_a_free_waits_for_the_stream_that_still_uses_the_block(program: Program) -> None:
    script = """
        import torch, json
        torch.cuda.memory._record_memory_history("all", stacks="python")
        other = torch.cuda.Stream()
        block = torch.empty(2**20, device="cuda")
        torch.zeros(2**20, device="cuda")
        with torch.cuda.stream(other):
            block.add_(1)
        block.record_stream(other)
        del block
        torch.empty(1, device="cuda")
        before = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
        states = [b["state"] for s in torch.cuda.memory._snapshot()["segments"] for b in s["blocks"]]
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")
        after = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
        print(json.dumps([before, states, after]))
    """
    program.machine.events_pending = True
    before, states, after = program(script)
    assert before.count("free_requested") - before.count("free_completed") == 1
    assert "active_pending_free" in states
    assert after.count("free_requested") == after.count("free_completed")


def test_a_tensor_is_opened_by_another_process(program: Program) -> None:
    script = """
        import json, os, sys, subprocess, torch
        from torch.multiprocessing.reductions import reduce_tensor
        import pickle, base64
        if len(sys.argv) > 1:
            rebuild, given = pickle.loads(base64.b64decode(sys.argv[1]))
            torch.cuda.init()
            print(json.dumps(rebuild(*given).cpu().tolist()))
        else:
            tensor = torch.arange(5000.0).cuda()
            words = base64.b64encode(pickle.dumps(reduce_tensor(tensor))).decode()
            done = subprocess.run([sys.executable, "-c", os.environ["SCRIPT"], words], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            print(json.dumps(json.loads(done.stdout) == tensor.tolist()))
    """
    assert program(script, SCRIPT=textwrap.dedent(script)) is True


def test_a_forked_process_cannot_use_its_parents_context(program: Program) -> None:
    script = """
        import ctypes, json, os, torch
        torch.empty(1, device="cuda")
        runtime = ctypes.CDLL("libcudart.so.13")
        reader, writer = os.pipe()
        if os.fork() == 0:
            place = ctypes.c_void_p()
            os.write(writer, str(runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(2**20))).encode())
            os._exit(0)
        os.wait()
        print(json.dumps(int(os.read(reader, 16))))
    """
    assert program(script) == 3  # cudaErrorInitializationError


COLLECTIVES = """
    import json, os, sys, torch, torch.distributed as dist
    if "RANK" not in os.environ:
        import subprocess
        started = [subprocess.Popen([sys.executable, "-c", os.environ["SCRIPT"]], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
        print(json.dumps([json.loads(one.communicate()[0]) for one in started]))
        sys.exit()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{os.environ['MEETING']}", rank=rank, world_size=2)
    total = torch.full((300_000,), rank + 1.0).cuda()
    dist.all_reduce(total)
    first = torch.tensor([float(rank)]).cuda()
    dist.broadcast(first, 1)
    gathered = torch.empty(4).cuda()
    dist.all_gather_into_tensor(gathered, torch.tensor([rank, rank + 10.0]).cuda())
    share = torch.empty(1).cuda()
    dist.reduce_scatter_tensor(share, torch.tensor([1.0, 2.0]).cuda())
    message = torch.tensor([7.0]).cuda() if rank == 0 else torch.zeros(1).cuda()
    (dist.send if rank == 0 else dist.recv)(message, 1 - rank)
    objects = [None, None]
    dist.all_gather_object(objects, "x" * (1 + 99 * rank))
    print(json.dumps([total.cpu().unique().tolist(), first.cpu().tolist(), gathered.cpu().tolist(),
        share.cpu().tolist(), message.cpu().tolist(), [len(one) for one in objects]]), flush=True)
    dist.destroy_process_group()
"""


def test_two_ranks_exchange_what_they_hold(program: Program, tmp_path: Any, gpus: int) -> None:
    if gpus < 2:
        pytest.skip("needs two GPUs")
    script = textwrap.dedent(COLLECTIVES)
    zero, one = program(script, SCRIPT=script, MEETING=str(tmp_path / "meeting"))
    assert zero == [[3.0], [1.0], [0.0, 10.0, 1.0, 11.0], [2.0], [7.0], [1, 100]]
    assert one == [[3.0], [1.0], [0.0, 10.0, 1.0, 11.0], [4.0], [7.0], [1, 100]]
