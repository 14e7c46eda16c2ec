"""Memory limits of the control groups we run in, versions 1 and 2.

Files and fields as in the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpudash.sources.kept_file import KeptFile

_RECLAIMABLE = {
    2: (b"inactive_file", b"active_file", b"slab_reclaimable"),
    1: (b"total_inactive_file", b"total_active_file"),
}
_FILES = {
    2: ("memory.max", "memory.current"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Memory of one group in bytes: its limit, its usage and how much of that the kernel can take back."""

    limit: int
    usage: int
    reclaimable: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.usage)

    @property
    def available(self) -> int:
        return min(self.limit, self.free + self.reclaimable)


class ControlGroup:
    """A control group whose memory is limited. Files stay open: a reading is three `pread`s."""

    def __init__(self, folder: Path, name: str, version: int) -> None:
        limit, usage = _FILES[version]
        self.name = name
        self._fields = _RECLAIMABLE[version]
        self._limit = KeptFile(folder / limit)
        self._usage = KeptFile(folder / usage)
        self._stat = KeptFile(folder / "memory.stat")

    def read(self, below: int) -> GroupMemory | None:
        """The group's memory now; ``None`` when it has no limit below ``below`` bytes.

        Raises:
            OSError: when the group is gone.
        """
        text = self._limit.read()
        limit = below if text.startswith(b"max") else int(text)
        if limit >= below:
            return None
        usage = int(self._usage.read())
        return GroupMemory(limit, usage, min(usage, self._reclaimable()))

    def close(self) -> None:
        for file in (self._limit, self._usage, self._stat):
            file.close()

    def _reclaimable(self) -> int:
        text = b"\n" + self._stat.read()
        total = 0
        for field in self._fields:
            at = text.find(b"\n" + field + b" ")
            if at >= 0:
                begin = at + len(field) + 2
                end = text.find(b"\n", begin)
                total += int(text[begin : end if end >= 0 else len(text)])
        return total


def groups_above_us(root: Path = Path("/")) -> list[ControlGroup]:
    """Every memory control group from ours up to the root of what we can see; innermost first.

    Args:
        root: where ``proc`` and ``sys`` are found.
    """
    found: list[ControlGroup] = []
    for version, mount, inside, name in _placements(root):
        for steps in range(len(inside.parts) + 1):
            parts = inside.parts[: len(inside.parts) - steps]
            folder = mount.joinpath(*parts)
            if all(os.access(folder / file, os.R_OK) for file in (*_FILES[version], "memory.stat")):
                ended = PurePosixPath(name)
                shown = ended.parents[steps - 1] if 0 < steps <= len(ended.parents) else ended
                found.append(ControlGroup(folder, str(shown), version))
    return found


def _placements(root: Path) -> Iterator[tuple[int, Path, PurePosixPath, str]]:
    """(version, mount point, path below it, whole name) of our group in each hierarchy that accounts memory."""
    ours: dict[int, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            ours[2] = name
        elif "memory" in controllers.split(","):
            ours[1] = name
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        version = 2 if kind[0] == "cgroup2" else 1 if kind[0] == "cgroup" and "memory" in kind[2].split(",") else 0
        if version in ours:
            mount = root / fields[4].lstrip("/")
            yield version, mount, _below(ours[version], fields[3]), ours[version]


def _below(name: str, mounted: str) -> PurePosixPath:
    """The group's path below the mount; the mount itself where a namespace hides the way to it."""
    try:
        inside = PurePosixPath(name).relative_to(mounted)
    except ValueError:
        return PurePosixPath()
    return PurePosixPath() if ".." in inside.parts else inside


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
