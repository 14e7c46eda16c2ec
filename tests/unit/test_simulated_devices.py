"""What simulated GPUs are called, which can be asked for, and that none is ever a default."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.names import (
    MOST_SIMULATED,
    OFFERED_BYTES,
    Device,
    Simulation,
    default_device,
    kind_of,
    shown_devices,
    shown_name,
    simulated_device,
    simulated_gpu,
)
from gpudash.units import GIB, MAX_SIZE


def test_a_simulated_gpu_has_a_name_an_identity_and_no_link() -> None:
    gpu = simulated_gpu(1, 2 * GIB)
    device = simulated_device(gpu)
    assert (gpu.uuid, gpu.product, gpu.total_bytes, gpu.simulated) == ("SIM-1-2GiB", "Simulated GPU", 2 * GIB, True)
    assert gpu.link_bytes_per_second is None
    assert (device.name, device.kind, device.uuid, device.simulated) == ("sim:1", "sim", "SIM-1-2GiB", True)


@pytest.mark.parametrize(("name", "kind"), [("cpu", "cpu"), ("cuda:0", "cuda"), ("cuda", "cuda"), ("sim:3", "sim")])
def test_the_kind_of_a_device_is_in_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == Device(name, "", None).kind == kind
    assert Device(name, "", None).simulated is (kind == "sim")


def test_only_a_simulated_device_is_shown_with_a_mark() -> None:
    assert [shown_name(name) for name in ("cpu", "cuda:0", "sim:0")] == ["cpu", "cuda:0", "sim:0 (SIMULATED)"]


def test_a_simulated_device_is_never_the_default_however_empty_it_is() -> None:
    simulated = simulated_device(simulated_gpu(0, 64 * GIB))
    cpu, cuda = Device("cpu", "", None), Device("cuda:0", "", 8 * GIB, "GPU-a")
    free = {"SIM-0": 64 * GIB, "GPU-a": GIB}
    assert default_device([cpu, simulated], free) == "cpu"
    assert default_device([cpu, simulated, cuda], free) == "cuda:0"


@given(st.lists(st.integers(1, MAX_SIZE), max_size=MOST_SIMULATED))
def test_any_capacity_up_to_a_pebibyte_can_be_simulated(sizes: list[int]) -> None:
    assert Simulation(tuple(sizes)).sizes == tuple(sizes)


@given(st.one_of(st.integers(max_value=0), st.integers(min_value=MAX_SIZE + 1)))
def test_a_capacity_that_cannot_be_is_refused_in_one_sentence(size: int) -> None:
    with pytest.raises(ValueError, match=r"^A simulated GPU has between 1 byte and 1 PiB of memory, not \S+ \S+$"):
        Simulation((GIB, size))


def test_too_many_simulated_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="At most 16 GPUs can be simulated, not 17"):
        Simulation((GIB,) * 17)


def test_other_processes_hold_no_more_than_the_first_gpu_has() -> None:
    assert Simulation((GIB, 4 * GIB), GIB).others == GIB
    assert Simulation(others=OFFERED_BYTES).others == OFFERED_BYTES
    for sizes, others in (((GIB, 4 * GIB), 2 * GIB), ((), OFFERED_BYTES + 1), ((GIB,), -1)):
        with pytest.raises(ValueError, match="Simulated other processes cannot hold"):
            Simulation(sizes, others)


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ("", "sim:0 (SIMULATED)"),
        (None, "sim:0 (SIMULATED)"),
        ("cpu,cpu", "2 × cpu"),
        ("cuda:0, cuda:1", "cuda:0, cuda:1"),
    ],
)
def test_where_a_run_takes_place_names_every_device(devices: str | None, shown: str) -> None:
    assert shown_devices("sim:0", {} if devices is None else {"devices": devices}) == shown
