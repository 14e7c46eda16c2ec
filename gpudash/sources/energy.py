"""The energy the CPU's package has used, from the counters of the kernel's powercap interface (RAPL)."""

from __future__ import annotations

import threading
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")

NOT_THERE = "this system shows no energy counter of the CPU"
NOT_ALLOWED = "the CPU package's energy counter may be read by root only"
BROKEN = "the CPU package's energy counter cannot be read"


class PackageEnergy:
    """Adds up the packages' counters, which wrap around.

    Each zone ``intel-rapl:N`` (AMD's too) has ``energy_uj``, microjoules since an unknown moment, and
    ``max_energy_range_uj``, where it begins anew (Linux, Documentation/power/powercap/powercap.rst). Since
    CVE-2020-8694 only root may read the former, on most systems.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._last: dict[Path, int] = {}
        self._joules = 0.0

    def joules(self) -> float | str:
        """Joules used by all packages since the first reading, or in words why they are not known."""
        with self._lock:
            try:
                zones = [zone for zone in sorted(self._root.glob("*-rapl:*")) if _is_package(zone)]
                if not zones:
                    return NOT_THERE
                self._joules += sum(self._since_last(zone) for zone in zones)
            except PermissionError:
                return NOT_ALLOWED
            except (OSError, ValueError):
                return BROKEN
            return self._joules

    def _since_last(self, zone: Path) -> float:
        now = int((zone / "energy_uj").read_text())
        before = self._last.get(zone, now)
        self._last[zone] = now
        if now >= before:
            return (now - before) / 1e6
        return (now - before + int((zone / "max_energy_range_uj").read_text())) / 1e6


def _is_package(zone: Path) -> bool:
    """Whether a zone is a whole package: its parts (``intel-rapl:0:1``) are counted in it."""
    return zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
