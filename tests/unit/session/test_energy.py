"""The energy counters as a comparison asks for them."""

from __future__ import annotations

from pathlib import Path

from gpudash.session.live.machine import NOT_READ_YET, NOT_REPORTED, EnergyCounters
from gpudash.sources.host import NOT_THERE, PackageEnergy
from gpudash.telemetry.records import Sample, State
from gpudash.telemetry.store import Store


def counters(tmp_path: Path) -> tuple[Store, EnergyCounters]:
    store = Store()
    return store, EnergyCounters(store, PackageEnergy(tmp_path))


def test_a_gpus_counter_is_told_with_the_moment_it_was_read(tmp_path: Path) -> None:
    store, energy = counters(tmp_path)
    assert energy.read("GPU-1") == NOT_READ_YET
    store.apply(Sample(3.0, "gpu", "GPU-1", {"energy_j": 250.5}))
    assert energy.read("GPU-1") == (3.0, 250.5)


def test_a_gpu_without_a_counter_is_told_in_words(tmp_path: Path) -> None:
    store, energy = counters(tmp_path)
    store.apply(Sample(3.0, "gpu", "GPU-1", {"energy_j": None}, {"energy_j": State.NOT_SUPPORTED}))
    assert energy.read("GPU-1") == NOT_REPORTED


def test_the_cpus_counter_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    _store, energy = counters(tmp_path)
    assert energy.read(None) == NOT_THERE
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "5"), ("max_energy_range_uj", "10")):
        (folder / name).write_text(text)
    found = energy.read(None)
    assert isinstance(found, tuple)
    assert found[1] == 0.0
