"""Devices of other makers, by torch's own words: what is asked exists there, and what nobody tells stays a gap.

No machine of the tests has such a device: the modules' stand-ins are handed in, with names that the real ones have.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gpudash.agent.memory import gpus
from gpudash.agent.memory.gpus import intel
from gpudash.devices.names import UNTRIED
from gpudash.memory.watching.pushed_reading import READ_NS
from gpudash.specs import PipelineSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.units import GIB, MIB
from gpudash.workloads.running import accelerators, installed
from gpudash.workloads.running.accelerators import AllocatorProbe, MetalModule, synchronize
from gpudash.workloads.running.installed import other_devices, torch_report, torch_text
from gpudash.workloads.running.run import confirm
from gpudash.workloads.running.run_errors import WorkloadError
from gpudash.workloads.running.stages import WaitingTiming

METAL, INTEL = torch.device("mps"), torch.device("xpu", 0)


def standing_in(real: Any, **functions: Any) -> Any:
    """Has ``functions`` under names of ``real``."""
    assert [name for name in functions if not hasattr(real, name)] == []
    return SimpleNamespace(**functions)


def metal(allocated: int, given: int) -> Any:
    return standing_in(
        torch.mps,
        current_allocated_memory=lambda: allocated,
        driver_allocated_memory=lambda: given,
        recommended_max_memory=lambda: 10 * GIB,
        empty_cache=lambda: None,
        synchronize=lambda: None,
        device_count=lambda: 1,
    )


def xpu(stats: dict[str, int]) -> Any:
    return standing_in(
        torch.xpu,
        memory_stats=lambda _device: stats,
        memory_allocated=lambda _device: stats["allocated_bytes.all.current"],
        memory_reserved=lambda _device: stats["reserved_bytes.all.current"],
        reset_peak_memory_stats=lambda _device: None,
        mem_get_info=lambda _device: (11 * GIB, 16 * GIB),
    )


STATS = {
    "allocated_bytes.all.current": GIB,
    "reserved_bytes.all.current": 2 * GIB,
    "allocated_bytes.all.peak": 3 * GIB,
    "reserved_bytes.all.peak": 4 * GIB,
}


def called(readers: Iterable[ModuleType], *owners: str) -> set[str]:
    """What modules take of torch's for other makers' devices, by the names that they have for it."""
    trees = [ast.parse(Path(str(reader.__file__)).read_text(encoding="utf-8")) for reader in readers]
    every = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in every if ast.unparse(node.value) in owners}


def test_all_that_is_called_of_intels_and_apples_modules_is_torchs() -> None:
    everywhere = accelerators, gpus, installed
    of_intel = called(everywhere, "torch.xpu", "xpu") | called([accelerators], "self._torch", "module")
    of_apple = called(everywhere, "torch.mps", "mps", "self._mps")
    assert {"memory_stats", "mem_get_info", "device_count", "set_per_process_memory_fraction"} <= of_intel
    assert {"current_allocated_memory", "recommended_max_memory", "device_count", "empty_cache"} <= of_apple
    assert [name for name in sorted(of_intel) if not hasattr(torch.xpu, name)] == []
    assert [name for name in sorted(of_apple) if not hasattr(torch.mps, name)] == []
    assert [name for name in called(everywhere, "torch.backends.mps") if not hasattr(torch.backends.mps, name)] == []


def test_metal_tells_what_it_holds_and_no_peak() -> None:
    probe = AllocatorProbe(METAL, MetalModule(metal(300 * MIB, GIB)), with_memory=True)
    assert probe() == {
        "allocated_bytes": 300 * MIB,
        "reserved_bytes": GIB,
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": None,
        "allocation_retries": None,
        "free_bytes": 9 * GIB,
        "total_bytes": 10 * GIB,
    }
    assert probe.peaks() == {
        "peak_allocated_bytes": 300 * MIB,
        "peak_reserved_bytes": GIB,
        "beside_bytes": 0,
        "capacity_bytes": 10 * GIB,
    }


def test_an_intel_gpu_is_read_as_cudas_allocator_is_and_its_memory_too() -> None:
    reading = AllocatorProbe(INTEL, xpu(STATS), with_memory=True)()
    assert reading["peak_allocated_bytes"] == 3 * GIB and reading["reserved_bytes"] == 2 * GIB
    assert (reading["free_bytes"], reading["total_bytes"]) == (11 * GIB, 16 * GIB)
    assert "free_bytes" not in AllocatorProbe(INTEL, xpu(STATS))()


def test_a_reading_that_took_too_long_is_read_again_and_keeps_the_highest_peak() -> None:
    now_s = [1.0]
    answers = iter([(3.0, 7 * GIB), (0.5, 2 * GIB), (0.001, GIB)])

    def memory_stats(_device: object) -> dict[str, int]:
        took_s, peak = next(answers)
        now_s[0] += took_s
        return {**STATS, "allocated_bytes.all.peak": peak}

    module = xpu(STATS)
    probe = AllocatorProbe(INTEL, module, clock=lambda: now_s[0])
    module.memory_stats = memory_stats
    reading = probe()
    assert reading[READ_NS] == 4_501_000_000, "of the one that was quick enough"
    assert reading["peak_allocated_bytes"] == 7 * GIB and next(answers, None) is None


def test_a_watched_program_tells_of_its_intel_gpu() -> None:
    told = intel(xpu(STATS), 0)
    assert (told["allocated_bytes"], told["free_bytes"], told["capacity_bytes"]) == (GIB, 11 * GIB, 16 * GIB)
    assert all(hasattr(torch.xpu, name) for name in ("is_initialized", "device_count"))


def test_torch_names_the_devices_of_other_makers() -> None:
    properties = SimpleNamespace(name="Intel(R) Arc(TM) B580 Graphics", total_memory=12 * GIB)
    seen = SimpleNamespace(
        xpu=standing_in(
            torch.xpu,
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_properties=lambda _index: properties,
        ),
        mps=metal(0, 0),
        backends=SimpleNamespace(
            mps=standing_in(torch.backends.mps, is_available=lambda: True, get_name=lambda: "Apple M4 Pro")
        ),
    )
    assert other_devices(seen, properties=True) == [
        {"name": "xpu:0", "product": properties.name, "uuid": None, "total_bytes": 12 * GIB},
        {"name": "mps", "product": "Apple M4 Pro", "uuid": None, "total_bytes": 10 * GIB},
    ]
    assert other_devices(seen, properties=False)[0]["product"] is None
    assert other_devices(SimpleNamespace(), properties=True) == []


def test_a_build_for_rocm_is_called_one() -> None:
    report = torch_report()
    assert report["hip_version"] == torch.version.hip
    words = torch_text({**report, "version": "2.13.0+rocm7.0", "cuda_version": None, "hip_version": "7.0.51831"})
    assert words == "torch 2.13.0, ROCm 7.0.51831"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has one")
@pytest.mark.parametrize("device", [METAL, INTEL])
def test_a_device_that_torch_does_not_have_here_is_refused_in_a_sentence(device: torch.device) -> None:
    with pytest.raises(WorkloadError, match=f"torch has no {device} here"):
        confirm(device, str(device))


def test_a_stage_on_a_device_that_works_on_behind_its_calls_is_waited_for_at_both_ends() -> None:
    waits: list[int] = []
    timing = WaitingTiming(lambda: waits.append(len(waits)))
    begun = timing.begin()
    assert waits == [0]
    assert timing.seconds(timing.end(begun), wait=False) is not None and waits == [0, 1]
    synchronize(torch.device("cpu"))


def test_what_a_device_cannot_do_is_refused_before_a_run() -> None:
    assert "by device" in MemoryCap.parse("1GiB").problems("mps", 10 * GIB)[0]
    assert PipelineSpec(pitfall="current_device").run_problems("mps")
    assert PipelineSpec().run_problems("xpu:0") == []
    assert "never tried on mps" in UNTRIED.format(device="mps")
