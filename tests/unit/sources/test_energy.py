"""The CPU package's energy counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudash.sources.energy import BROKEN, NOT_ALLOWED, NOT_THERE, PackageEnergy


def zone(root: Path, name: str, kind: str, energy: int, wraps: int = 10_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    for file, text in (("name", kind), ("energy_uj", str(energy)), ("max_energy_range_uj", str(wraps))):
        (folder / file).write_text(text + "\n")
    return folder


def test_the_packages_are_added_up_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "intel-rapl:0", "package-0", 100), zone(tmp_path, "intel-rapl:1", "package-1", 0)
    part = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    energy = PackageEnergy(tmp_path)
    assert energy.joules() == 0.0
    for folder, value in ((first, 1_000_100), (second, 500_000), (part, 900_000)):
        (folder / "energy_uj").write_text(str(value))
    assert energy.joules() == pytest.approx(1.5)


def test_a_counter_that_begins_anew_goes_on_where_it_was(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    energy = PackageEnergy(tmp_path)
    energy.joules()
    (package / "energy_uj").write_text("1000000")
    assert energy.joules() == pytest.approx(2.0)


def test_a_system_without_counters_says_so(tmp_path: Path) -> None:
    assert PackageEnergy(tmp_path).joules() == NOT_THERE
    assert PackageEnergy(tmp_path / "missing").joules() == NOT_THERE


def test_a_counter_that_cannot_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (package / "energy_uj").write_text("no number")
    assert PackageEnergy(tmp_path).joules() == BROKEN
    read = Path.read_text

    def refused(path: Path, *args: object, **more: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refused)
    assert PackageEnergy(tmp_path).joules() == NOT_ALLOWED
