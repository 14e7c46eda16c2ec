"""The display cards on the PCI bus, from sysfs: without a driver, and without waking a card that is asleep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpudash.system.files import text_of

VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_DISPLAY_CLASS = 0x03
"""Base class "display controller": VGA, XGA, 3D, other (PCI Code and ID Assignment Specification)."""


@dataclass(frozen=True, slots=True)
class PciDisplay:
    """A display card.

    Attributes:
        address: "0000:41:00.0".
        vendor: PCI vendor id.
        asleep: whether the kernel has suspended it.
        root: parent folder of ``proc``.
    """

    address: str
    vendor: int
    asleep: bool
    root: Path

    @property
    def is_nvidia(self) -> bool:
        return VENDORS.get(self.vendor) == "NVIDIA"

    def driver_facts(self) -> tuple[str | None, str | None]:
        """(product, UUID) from NVIDIA's /proc file, which can be read without waking the card."""
        facts = {}
        for line in text_of(self.root / f"proc/driver/nvidia/gpus/{self.address}/information").splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
        uuid = facts.get("GPU UUID", "")
        return facts.get("Model") or None, uuid if uuid.startswith("GPU-") and "?" not in uuid else None


def displays(root: Path = Path("/")) -> list[PciDisplay]:
    """All display cards, by address; empty without sysfs."""
    found = []
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return []
    for card in sorted(folder.iterdir()):
        vendor, kind = _number(card / "vendor"), _number(card / "class")
        if vendor is not None and kind is not None and kind >> 16 == _DISPLAY_CLASS:
            asleep = text_of(runtime_status(root, card.name)).strip() == "suspended"
            found.append(PciDisplay(card.name, vendor, asleep, root))
    return found


def runtime_status(root: Path, address: str) -> Path:
    """The file with the suspension state of the card at ``address`` ("0000:41:00.0")."""
    return root / "sys/bus/pci/devices" / address / "power/runtime_status"


def _number(path: Path) -> int | None:
    try:
        return int(text_of(path).strip(), 16)
    except ValueError:
        return None
