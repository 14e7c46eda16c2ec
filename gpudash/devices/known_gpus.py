"""GPUs by name with their drivers' figures, for simulation. Only the standard library, for Python 3.9.

`KnownGpu.total_bytes` is what a program sees, torch's ``total_memory``. The driver reserves some hundred MiB of the
nominal size, more with error correction, and the amount varies with its version (an RTX 4090 has been seen with 24 072
to 24 217 MiB). If no such figure was found, it is NVML's total, which still includes the driver's part. Figures come
from public logs of programs (``torch.cuda.get_device_properties``, the first line of an Ultralytics run, nvidia-smi);
`KnownGpu.source` names the kind. Multiprocessors are from the same logs, else from NVIDIA's data sheets; the compute
capability is from https://developer.nvidia.com/cuda-gpus.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

MIB = 2**20

SIMULATED_PREFIX = "Simulated"
"""Prefix of the product name of every simulated GPU."""


@dataclass(frozen=True)
class KnownGpu:
    """A card with its driver's figures.

    Attributes:
        key: short name for requests: "h100".
        name: name after "simulated": "H100 80GB".
        product: the driver's product name.
        total_bytes: memory.
        capability: compute capability, (major, minor).
        multiprocessors: number of multiprocessors.
        source: source of `total_bytes`.
    """

    key: str
    name: str
    product: str
    total_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    source: str


NVML = "nvidia-smi; programs see some hundred MiB less"


def _known(
    key: str, name: str, product: str, mib: int, capability: tuple[int, int], multiprocessors: int, source: str
) -> KnownGpu:
    return KnownGpu(key, name, product, mib * MIB, capability, multiprocessors, source)


TORCH = "PyTorch"
"""The source is torch's ``total_memory``."""


def _torch(version: str) -> str:
    return f"{TORCH} {version}"


KNOWN_GPUS = (
    _known("b200", "B200", "NVIDIA B200", 182_631, (10, 0), 148, TORCH),
    _known("h200", "H200", "NVIDIA H200", 143_156, (9, 0), 132, TORCH),
    _known("h100", "H100 80GB", "NVIDIA H100 80GB HBM3", 81_089, (9, 0), 132, _torch("2.7")),
    _known("h100-pcie", "H100 PCIe", "NVIDIA H100 PCIe", 81_559, (9, 0), 114, NVML),
    _known("a100-80gb", "A100 80GB", "NVIDIA A100-SXM4-80GB", 81_222, (8, 0), 108, _torch("2.9")),
    _known("a100-40gb", "A100 40GB", "NVIDIA A100-SXM4-40GB", 40_441, (8, 0), 108, _torch("2.11")),
    _known("l40s", "L40S", "NVIDIA L40S", 45_589, (8, 9), 142, TORCH),
    _known("l40", "L40", "NVIDIA L40", 46_068, (8, 9), 142, NVML),
    _known("l4", "L4", "NVIDIA L4", 22_563, (8, 9), 58, _torch("2.11")),
    _known("a10", "A10", "NVIDIA A10", 23_028, (8, 6), 72, NVML),
    _known("a10g", "A10G", "NVIDIA A10G", 22_587, (8, 6), 80, TORCH),
    _known("a6000", "RTX A6000", "NVIDIA RTX A6000", 48_676, (8, 6), 84, TORCH),
    _known("rtx6000-ada", "RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", 48_539, (8, 9), 142, _torch("2.4")),
    _known(
        "rtx-pro-6000",
        "RTX PRO 6000",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        97_887,
        (12, 0),
        188,
        NVML,
    ),
    _known(
        "rtx-pro-6000-maxq",
        "RTX PRO 6000 Max-Q",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        97_887,
        (12, 0),
        188,
        NVML,
    ),
    _known("t4", "T4", "Tesla T4", 15_095, (7, 5), 40, TORCH),
    _known("v100-16gb", "V100 16GB", "Tesla V100-SXM2-16GB", 16_160, (7, 0), 80, _torch("1.8")),
    _known("v100-32gb", "V100 32GB", "Tesla V100-SXM2-32GB", 32_494, (7, 0), 80, _torch("2.6")),
    _known("p100", "P100 16GB", "Tesla P100-PCIE-16GB", 16_269, (6, 0), 56, _torch("2.11")),
    _known("rtx5090", "RTX 5090", "NVIDIA GeForce RTX 5090", 32_102, (12, 0), 170, _torch("2.12")),
    _known("rtx5080", "RTX 5080", "NVIDIA GeForce RTX 5080", 15_840, (12, 0), 84, TORCH),
    _known("rtx5070ti", "RTX 5070 Ti", "NVIDIA GeForce RTX 5070 Ti", 15_842, (12, 0), 70, TORCH),
    _known("rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090", 24_072, (8, 9), 128, TORCH),
    _known("rtx4080", "RTX 4080", "NVIDIA GeForce RTX 4080", 16_049, (8, 9), 76, TORCH),
    _known("rtx4070ti", "RTX 4070 Ti", "NVIDIA GeForce RTX 4070 Ti", 12_282, (8, 9), 60, NVML),
    _known("rtx4070", "RTX 4070", "NVIDIA GeForce RTX 4070", 11_994, (8, 9), 46, _torch("1.13")),
    _known("rtx4060ti-16gb", "RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti", 16_380, (8, 9), 34, NVML),
    _known("rtx4060", "RTX 4060", "NVIDIA GeForce RTX 4060", 7_933, (8, 9), 24, TORCH),
    _known("rtx3090", "RTX 3090", "NVIDIA GeForce RTX 3090", 24_259, (8, 6), 82, TORCH),
    _known("rtx3080", "RTX 3080", "NVIDIA GeForce RTX 3080", 10_240, (8, 6), 68, TORCH),
    _known("rtx3070", "RTX 3070", "NVIDIA GeForce RTX 3070", 7_973, (8, 6), 46, _torch("1.8")),
    _known("rtx3060", "RTX 3060", "NVIDIA GeForce RTX 3060", 11_931, (8, 6), 28, TORCH),
    _known("rtx2080ti", "RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti", 11_009, (7, 5), 68, _torch("2.2")),
    _known("gtx1080ti", "GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti", 11_175, (6, 1), 28, _torch("1.13")),
    _known("rtx4090-laptop", "RTX 4090 Laptop", "NVIDIA GeForce RTX 4090 Laptop GPU", 16_376, (8, 9), 76, NVML),
    _known(
        "rtx4070-laptop", "RTX 4070 Laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", 8_188, (8, 9), 36, _torch("2.12")
    ),
    _known(
        "rtx4060-laptop", "RTX 4060 Laptop", "NVIDIA GeForce RTX 4060 Laptop GPU", 8_188, (8, 9), 24, _torch("2.13")
    ),
    _known("rtx3080-laptop", "RTX 3080 Laptop", "NVIDIA GeForce RTX 3080 Laptop GPU", 8_191, (8, 6), 48, TORCH),
    _known(
        "rtx3070-laptop", "RTX 3070 Laptop", "NVIDIA GeForce RTX 3070 Laptop GPU", 8_192, (8, 6), 40, _torch("2.11")
    ),
    _known("rtx3060-laptop", "RTX 3060 Laptop", "NVIDIA GeForce RTX 3060 Laptop GPU", 6_144, (8, 6), 30, TORCH),
    _known("rtx3050-laptop", "RTX 3050 Laptop", "NVIDIA GeForce RTX 3050 Laptop GPU", 4_096, (8, 6), 16, _torch("2.7")),
)
"""Data centre first, then GeForce, then laptops; newest first in each group."""

MOST_NEAR = 3
"""Number of names suggested for an unknown one."""


def find(text: str) -> KnownGpu | None:
    """The GPU of a given name, ignoring case, spaces and dashes; ``None`` if unknown.

    Args:
        text: a `KnownGpu.key`, its name, or its product.
    """
    plain = _plain(text)
    for gpu in KNOWN_GPUS:
        if plain and plain in (_plain(gpu.key), _plain(gpu.name), _plain(gpu.product)):
            return gpu
    return None


def nearest(text: str) -> list[str]:
    """Keys of the GPUs with the most similar names: with the same beginning, else with a similar spelling."""
    plain = _plain(text)
    keys = {_plain(gpu.key): gpu.key for gpu in KNOWN_GPUS}
    beginning = [key for spelt, key in keys.items() if plain and (spelt.startswith(plain) or plain in spelt)]
    alike = [keys[spelt] for spelt in difflib.get_close_matches(plain, keys, MOST_NEAR)]
    return (beginning or alike)[:MOST_NEAR]


_INTEGRATED = re.compile(r"\b(?:GB10|Thor|Orin|Xavier|Tegra)\b|\(nvgpu\)", re.IGNORECASE)
"""Names of chips whose GPU has no memory of its own: DGX Spark's and the Jetsons', some as "Orin (nvgpu)"."""


def is_integrated(product: str) -> bool:
    """Whether a GPU of this name is known to use the computer's memory, whatever its driver reports."""
    return _INTEGRATED.search(product) is not None


_IGNORED = re.compile(r"nvidia|geforce|tesla|gpu|[\s_-]+")


def _plain(text: str) -> str:
    return _IGNORED.sub("", text.lower())
