"""What is said when there is no memory: torch's words, with all that is known."""

from __future__ import annotations

import pytest

from gpudash.memory.allocator import (
    AllocationRefused,
    AllocatorSettings,
    CachingAllocator,
    DeviceMemory,
    format_size,
    message,
)
from gpudash.units import GIB, MIB


def test_the_refusal_says_what_torch_says() -> None:
    allocator = CachingAllocator(DeviceMemory(GIB, used=100 * MIB), AllocatorSettings(), device=1)
    allocator.malloc(500 * MIB)
    allocator.malloc(3 * MIB)
    with pytest.raises(AllocationRefused) as caught:
        allocator.malloc(600 * MIB + 1)
    refused = caught.value
    assert (refused.requested, refused.size) == (602 * MIB, 600 * MIB + 1)
    assert (refused.capacity, refused.device_free, refused.allowed) == (GIB, 404 * MIB, None)
    assert (refused.allocated, refused.reserved) == (503 * MIB, 520 * MIB)
    assert str(refused) == (
        "CUDA out of memory. Tried to allocate 602.00 MiB. GPU 1 has a total capacity of 1024.00 MiB of which "
        "404.00 MiB is free. Of the allocated memory 503.00 MiB is allocated by PyTorch, and 17.00 MiB is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    assert allocator.statistics()["num_ooms"] == 1


def test_the_refusal_names_the_limit_private_pools_and_other_processes() -> None:
    allocator = CachingAllocator(DeviceMemory(GIB), AllocatorSettings(per_process_memory_fraction=0.5))
    address = allocator.malloc(100 * MIB, pool=(0, 1))
    allocator.free(address)
    with pytest.raises(AllocationRefused) as caught:
        allocator.malloc(500 * MIB)
    assert (caught.value.private_reserved, caught.value.private_idle) == (100 * MIB, 100 * MIB)
    text = message(caught.value, "HIP", "Process 7 has 2.00 GiB memory in use. ")
    assert text.startswith("HIP out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of 1024.00 MiB")
    assert (
        "is free. Process 7 has 2.00 GiB memory in use. 512.00 MiB allowed; Of the allocated memory 100.00 MiB is "
        "allocated by PyTorch, with 100.00 MiB allocated in private pools (e.g., HIP Graphs), and 0 bytes is reserved"
    ) in text


def test_a_request_beyond_an_exabyte_is_told_as_one() -> None:
    with pytest.raises(AllocationRefused, match=r"^CUDA out of memory. Tried to allocate more than 1EB memory.$"):
        CachingAllocator(DeviceMemory(GIB)).malloc(2**60)


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1024, "1024 bytes"), (1536, "1.50 KiB"), (MIB + 1, "1.00 MiB"), (3 * GIB // 2, "1.50 GiB")],
)
def test_sizes_are_written_as_torch_writes_them(size: int, words: str) -> None:
    assert format_size(size) == words
