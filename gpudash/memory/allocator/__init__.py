"""A model of torch's CUDA caching allocator. It uses the standard library only and never imports torch."""

from gpudash.memory.allocator.caching import CachingAllocator
from gpudash.memory.allocator.device_memory import DeviceMemory
from gpudash.memory.allocator.heap import Observer
from gpudash.memory.allocator.layout import BlockView, Segment
from gpudash.memory.allocator.refusal import AllocationRefused, format_size, message
from gpudash.memory.allocator.settings import AllocatorSettings

__all__ = [
    "AllocationRefused",
    "AllocatorSettings",
    "BlockView",
    "CachingAllocator",
    "DeviceMemory",
    "Observer",
    "Segment",
    "format_size",
    "message",
]
