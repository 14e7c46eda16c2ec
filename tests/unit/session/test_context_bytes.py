"""What is known of a CUDA context by the driver's readings."""

from __future__ import annotations

from gpudash.devices.names import Gpu
from gpudash.session.live.machine import remember_context
from gpudash.telemetry.records import Sample
from gpudash.units import GIB, MIB
from tests.unit.session.watched import Surrounded

GPU = Gpu(nvml_index=0, uuid="GPU-0", product="RTX", pci_bus_id="0", total_bytes=24 * GIB)


def test_our_context_is_among_what_surrounds_a_run() -> None:
    around = Surrounded(gpus=(GPU,))
    assert around.machine.surroundings("GPU-0").context_bytes is None
    around.store.apply(Sample(1.0, "allocator", "cuda:0", {"allocated_bytes": 1 * GIB, "reserved_bytes": 2 * GIB}))
    used = {"used_bytes": 5 * GIB, "process_bytes": 2 * GIB + 400 * MIB}
    around.store.apply(Sample(1.0, "gpu", "GPU-0", used))
    assert around.machine.surroundings("GPU-0").context_bytes == 400 * MIB


def test_nothing_is_said_of_a_context_where_the_driver_does_not_tell_of_processes() -> None:
    around = Surrounded(gpus=(GPU,))
    around.store.apply(Sample(1.0, "allocator", "cuda:0", {"allocated_bytes": 1 * GIB, "reserved_bytes": 2 * GIB}))
    around.store.apply(Sample(1.0, "gpu", "GPU-0", {"used_bytes": 5 * GIB}))
    assert around.machine.context_bytes("GPU-0") is None


def test_a_context_is_what_most_readings_say_and_not_one_that_mixes_two_instants() -> None:
    around = Surrounded(gpus=(GPU,))
    for tenth, process in enumerate((400, 400, 400, 400, 400)):
        reserved = (0, 0, 0, 200, 380)[tenth] * MIB
        about = {"allocated_bytes": reserved, "reserved_bytes": reserved}
        around.store.apply(Sample(1.0 + tenth / 10, "allocator", "cuda:0", about))
        used = {"used_bytes": 5 * GIB, "process_bytes": process * MIB}
        around.store.apply(Sample(1.0 + tenth / 10, "gpu", "GPU-0", used))
    assert around.machine.context_bytes("GPU-0") == 400 * MIB


def test_a_context_that_no_reading_shows_yet_is_as_large_as_it_usually_is() -> None:
    around = Surrounded(gpus=(GPU,))
    remember_context("GPU-0", 472 * MIB)
    assert around.machine.surroundings("GPU-0").context_bytes == 472 * MIB
