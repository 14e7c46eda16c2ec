"""What is said and done about CUDA, with torch's CUDA functions replaced: no GPU is needed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudash.workloads.running.accelerators import AllocatorProbe
from gpudash.workloads.running.installed import torch_report, torch_text
from gpudash.workloads.running.run import confirm, release
from gpudash.workloads.running.run_errors import WorkloadError
from gpudash.workloads.running.stages import CudaTiming, Stages
from tests.unit.torch_names import set_in_torch_c

pytestmark = pytest.mark.usefixtures("no_simulated_gpu")

UUID = "11111111-2222-3333-4444-555555555555"


def pretend_one_gpu(monkeypatch: pytest.MonkeyPatch, *, uuid: str | None = UUID) -> None:
    properties = SimpleNamespace(name="H200", total_memory=2**37, uuid=uuid)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the test fail when one of these functions of torch.cuda is called."""
    for name in names:
        monkeypatch.setattr(torch.cuda, name, lambda *given, name=name: pytest.fail(f"torch.cuda.{name} was called"))


def test_the_report_counts_devices_without_initialising_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch)
    forbid(monkeypatch, "get_device_properties", "get_device_name", "init", "_lazy_init", "mem_get_info")

    report = torch_report()

    assert report["cuda_available"] is True
    assert report["devices"] == [{"name": "cuda:0", "product": None, "uuid": None, "total_bytes": None}]


def test_letting_go_leaves_cuda_alone_when_no_run_has_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    forbid(monkeypatch, "is_available", "device_count", "memory_reserved", "empty_cache", "init", "_lazy_init")

    assert release() == (None, None)


def test_letting_go_gives_back_what_cuda_holds_idle_once_a_run_has_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch)
    reserved = [100]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved[0])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: reserved.__setitem__(0, 20))
    set_in_torch_c(monkeypatch, "_cuda_clearCublasWorkspaces", lambda: None)

    assert release() == (100, 20)


def test_the_report_names_devices_by_nvmls_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    report = torch_report(properties=True)

    assert report["devices"] == [
        {"name": "cuda:0", "product": "H200", "uuid": f"GPU-{UUID}", "total_bytes": 2**37},
    ]
    assert torch_text(report) == f"torch {torch.__version__.partition('+')[0]}, CUDA 13.0"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).", True),
        ("CUDA initialization: Found no NVIDIA driver on your system.", False),
    ],
)
def test_a_driver_torch_cannot_use_is_a_problem_and_the_lack_of_one_is_not(
    monkeypatch: pytest.MonkeyPatch, words: str, told: bool
) -> None:
    def unavailable() -> bool:
        warnings.warn(words, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)

    problem = torch_report()["problem"]

    assert problem == (f"torch cannot use CUDA: {words}" if told else None)


def test_a_device_whose_properties_cannot_be_read_is_a_problem_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(index: int) -> None:
        raise RuntimeError("CUDA unknown error\nthis may be due to an incorrectly set up environment")

    pretend_one_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)

    report = torch_report(properties=True)

    assert report["cuda_available"] is False and report["problem"].startswith("torch cannot use CUDA: CUDA unknown")
    assert "\n" not in report["problem"]


def test_a_gpu_is_confirmed_by_uuid_whatever_it_is_prefixed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch)

    confirm(torch.device("cuda:0"), f"GPU-{UUID}")
    confirm(torch.device("cuda:0"), None)
    with pytest.raises(WorkloadError, match="not GPU-other as expected") as error:
        confirm(torch.device("cuda:0"), "GPU-other")
    assert error.value.kind == "device" and "CUDA_DEVICE_ORDER" in error.value.remedy


def test_a_torch_that_tells_no_uuid_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch, uuid=None)

    confirm(torch.device("cuda:0"), f"GPU-{UUID}")


def test_an_index_beyond_the_last_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_one_gpu(monkeypatch)

    with pytest.raises(WorkloadError, match="no cuda:7: it sees 1 CUDA devices"):
        confirm(torch.device("cuda:7"), None)


class Allocator:
    """A CUDA allocator whose counters the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = self.peak = 100
        self.retries = 5
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: self.statistics())
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * self.current)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: self.reset())
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10_000 - 2 * self.current - 300, 10_000))

    def statistics(self) -> dict[str, Any]:
        return {
            "allocated_bytes.all.current": self.current,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": 2 * self.current,
            "reserved_bytes.all.peak": 2 * self.peak,
            "num_alloc_retries": self.retries,
        }

    def reset(self) -> None:
        self.peak = self.current

    def use(self, peak: int, then: int) -> None:
        self.peak, self.current = max(self.peak, peak), then


def test_the_peak_is_that_since_the_last_reading_and_the_runs_maximum_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    probe = AllocatorProbe(torch.device("cuda:0"))
    allocator.use(peak=900, then=200)
    first = probe()
    allocator.use(peak=300, then=100)
    allocator.retries = 7
    second = probe()

    assert (first["allocated_bytes"], first["peak_allocated_bytes"]) == (200, 900)
    assert (second["allocated_bytes"], second["peak_allocated_bytes"]) == (100, 300)
    assert first["allocation_retries"] == 0 and second["allocation_retries"] == 2
    told = {"peak_allocated_bytes": 900, "peak_reserved_bytes": 1800, "beside_bytes": 300, "capacity_bytes": 10000}
    assert probe.peaks() == told


def test_a_peak_before_the_run_is_not_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    allocator.use(peak=5000, then=100)

    assert AllocatorProbe(torch.device("cuda:0")).peaks()["peak_allocated_bytes"] == 100


class CudaEvent:
    """A CUDA event that the GPU passes when the test says so."""

    passed = 0
    made = 0
    current = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        CudaEvent.made += 1

    def record(self) -> None:
        CudaEvent.recorded = getattr(CudaEvent, "recorded", 0) + 1
        self.place = CudaEvent.recorded
        device = torch.device("cuda", CudaEvent.current)
        assert getattr(self, "device", device) == device, "an event belongs to the device of its first recording"
        self.device = device

    def query(self) -> bool:
        return self.place <= CudaEvent.passed

    def synchronize(self) -> None:
        CudaEvent.passed = max(CudaEvent.passed, self.place)

    def elapsed_time(self, other: CudaEvent) -> float:
        return 1000.0 * (other.place - self.place)


def test_stages_on_a_gpu_are_told_only_when_it_has_passed_them_and_reuse_their_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", CudaEvent)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: CudaEvent.current)
    told: list[Any] = []
    stages = Stages(told.append, lambda: 1.0, 1, torch.device("cuda:0"))
    assert isinstance(stages.timing, CudaTiming)
    for name in ("one", "two"):
        with stages.open(name, {}):
            pass
    assert not told
    CudaEvent.passed = 2
    stages.settle()
    assert [event.name for event in told] == ["one"]
    stages.flush()
    assert [(event.name, event.seconds) for event in told] == [("one", 1.0), ("two", 1.0)]
    made = CudaEvent.made
    with stages.open("three", {}):
        pass
    assert CudaEvent.made == made
    stages.flush()
    monkeypatch.setattr(CudaEvent, "current", 1)
    with stages.open("on another GPU", {}):
        pass
    assert CudaEvent.made == made + 2
    stages.drop()
    stages.flush()
    assert len(told) == 3
