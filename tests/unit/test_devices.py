"""torch's numbering of GPUs, from NVML's list and the environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.devices.names import (
    ONE_INSTANCE,
    CudaOrder,
    Device,
    Gpu,
    cuda_order,
    default_device,
    gpus_by_torch,
    pci_address,
    short_product,
    torch_devices,
    unread_gpus,
    why_torch_has_no_gpu,
)

A = Gpu(0, "GPU-aaaa-1", "00000000:01:00.0", "RTX 4090", cuda_capability=(8, 9))
B = Gpu(1, "GPU-bbbb-2", "00000000:41:00.0", "RTX 4090", cuda_capability=(8, 9))
C = Gpu(2, "GPU-aabb-3", "00000001:02:00.0", "H100", cuda_capability=(9, 0))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A, B]),
        ("0,1", [A, B]),
        ("1,0", [B, A]),
        ("1", [B]),
        (" 1 , 0 ", [B, A]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [A]),
        ("7,0", []),
        ("0,7,1", [A]),
        ("0,0", []),
        ("1,0,1", []),
        ("GPU-bbbb-2", [B]),
        ("GPU-bb,GPU-aa", [B, A]),
        ("GPU-cc,0", []),
        ("GPU-", []),
        ("MIG-aaaa", []),
        ("none", []),
    ],
)
def test_visible_devices_pick_in_their_own_order(visible: str | None, expected: list[Gpu]) -> None:
    assert list(cuda_order([B, A], visible).gpus) == expected


def test_hidden_gpus_are_counted_in_words() -> None:
    assert cuda_order([A, B], "1").reason == "CUDA_VISIBLE_DEVICES=1 hides 1 of 2 GPUs"
    assert cuda_order([A, B], "1,0").reason == ""


def test_unlike_gpus_are_sorted_by_speed_and_said_to_be_uncertain() -> None:
    order = cuda_order([A, B, C])
    assert list(order.gpus) == [C, A, B]
    assert order.reason.startswith("CUDA numbers unlike GPUs by speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID")


def test_bus_order_is_certain() -> None:
    order = cuda_order([C, B, A], order="PCI_BUS_ID")
    assert list(order.gpus) == [A, B, C]
    assert order.reason == ""


def test_hidden_and_uncertain_are_both_told() -> None:
    reason = cuda_order([A, B, C], "0").reason
    assert reason.startswith("CUDA_VISIBLE_DEVICES=0 hides 2 of 3 GPUs; ")
    assert "by speed" in reason


H = Gpu(0, "GPU-hhhh", "00000000:01:00.0", "H100", instances=2)
H0, H1 = (
    replace(H, uuid=f"MIG-{n}", product="H100 MIG 3g.40gb", parent=H.uuid, instances=0, instance=n) for n in (0, 1)
)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [H0]),
        ("MIG-1", [H1]),
        ("MIG-1,MIG-0", [H1]),
        ("0", [H0]),
        ("GPU-hhhh", [H0]),
        ("1", [A]),
        ("1,MIG-1", [H1]),
        ("MIG-", []),
        ("MIG-7", []),
    ],
)
def test_a_mig_instance_that_is_visible_is_the_only_device(visible: str | None, expected: list[Gpu]) -> None:
    assert list(cuda_order([H1, H, A, H0], visible, "PCI_BUS_ID").gpus) == expected


def test_other_mig_instances_are_said_to_need_the_variable() -> None:
    assert cuda_order([H, H0, H1]).reason == ONE_INSTANCE
    assert cuda_order([H, H0, H1], "MIG-1").reason == cuda_order([replace(H, instances=1), H0]).reason == ""
    assert (H.number, H1.number) == ("0", "0:1")


@given(st.permutations([A, B, C]), st.none() | st.text("0123-,GPUab ", max_size=12))
def test_the_order_does_not_depend_on_how_nvml_lists_them(gpus: list[Gpu], visible: str | None) -> None:
    order = cuda_order(gpus, visible)
    assert order == cuda_order([A, B, C], visible)
    assert len(set(order.gpus)) == len(order.gpus)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:41:00.0", (0, 0x41, 0)),
        ("0000:41:00.0", (0, 0x41, 0)),
        ("41:00.0", (0, 0x41, 0)),
        ("41:00", (0, 0x41, 0)),
        ("00010000:FF:1f.7", (0x10000, 0xFF, 0x1F)),
    ],
)
def test_a_pci_bus_id_is_read_in_every_spelling(text: str, address: tuple[int, int, int]) -> None:
    assert pci_address(text) == address


@pytest.mark.parametrize("text", ["", "GPU-1", "41", "0:0:0:0"])
def test_what_is_no_pci_bus_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a PCI bus id"):
        pci_address(text)


CPU = Device("cpu", "CPU", 2**34)
CUDA = [Device(f"cuda:{i}", gpu.product, None, gpu.uuid) for i, gpu in enumerate((A, B))]


def test_the_default_device_is_the_gpu_with_most_free_memory() -> None:
    assert default_device([CPU, *CUDA], {A.uuid: 1, B.uuid: 2}) == "cuda:1"
    assert default_device([CPU, *CUDA], {}) == "cuda:0"


def test_without_a_gpu_the_default_device_is_the_cpu() -> None:
    assert default_device([CPU], {}) == "cpu"
    assert (CPU.kind, CUDA[0].kind) == ("cpu", "cuda")


def test_a_narrow_name_of_a_mig_instance_begins_with_its_profile() -> None:
    assert short_product("NVIDIA H100 80GB HBM3 MIG 3g.40gb") == "MIG 3g.40gb H100 80GB HBM3"


def report(*names: str, **facts: Any) -> dict[str, Any]:
    """What torch tells of devices of these names."""
    seen = [{"name": name, "product": None, "uuid": None, "total_bytes": None} for name in names]
    return {"version": "2.13.0", "cuda_version": None, "cuda_available": False, "devices": seen, **facts}


def test_devices_that_torch_alone_knows_are_offered_and_said_to_be_untried() -> None:
    found = torch_devices(CudaOrder(()), report("xpu:0", "mps"))
    assert [(device.name, device.kind, device.product) for device in found] == [
        ("xpu:0", "xpu", "Intel GPU"),
        ("mps", "mps", "Apple GPU"),
    ]
    assert all("was never tried on" in device.remark for device in found) and CPU.remark == CUDA[0].remark == ""
    assert default_device([CPU, *found], {}) == "cpu"


def test_a_cuda_device_that_nvml_does_not_list_is_torchs_to_tell_of() -> None:
    seen = report("cuda:0", "cuda:1", cuda_available=True, cuda_version="13.0")
    (gpu,) = gpus_by_torch(CudaOrder((A,)), seen)
    assert (gpu.uuid, gpu.product, gpu.by_torch, gpu.number) == ("cuda:1", "CUDA device", True, "1")
    assert [device.uuid for device in torch_devices(CudaOrder((A,)), seen)] == [A.uuid, "cuda:1"]
    assert gpus_by_torch(CudaOrder((A,)), None) == ()


def test_a_build_for_rocm_is_recognised_and_its_devices_are_called_by_it() -> None:
    seen = report("cuda:0", cuda_available=True, hip_version="7.0")
    assert gpus_by_torch(CudaOrder(()), seen)[0].product == "ROCm device"
    assert unread_gpus(seen, "no driver").startswith("This torch is a build for ROCm 7.0: its cuda devices are AMD's;")
    beside = why_torch_has_no_gpu(report(hip_version="7.0"), CudaOrder((A,)))
    assert beside is not None and "is a build for ROCm 7.0 though a GPU is there" in beside


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (report(), "no driver"),
        (report("mps"), "No driver is read for mps, and gpudash was never tried there: torch tells"),
        (report("cuda:0", cuda_available=True), "NVIDIA's library of readings (NVML) answers for no GPU"),
    ],
)
def test_why_gpus_have_no_readings_but_torchs_is_told(seen: dict[str, Any], words: str) -> None:
    assert unread_gpus(seen, "no driver").startswith(words)
