"""A simulated GPU whose allocator lives in another process is shown as if it were here, and as a gap once silent."""

from __future__ import annotations

import os

import pytest

from gpudash.devices.names import Simulation
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, OTHER_PROCESS, SimulatedGpu
from gpudash.sources.simulated_gpus import CardReader, MirroredCard, ShownCard
from gpudash.telemetry.records import Sample, State
from gpudash.units import GIB, MIB

HELD = 300 * MIB


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def mirrored(clock: Clock, **figures: int) -> MirroredCard:
    card = MirroredCard(0, 2 * GIB, clock, pid=4711, name="python", stale_s=0.5)
    card.put(**{"reserved_bytes": 200 * MIB, "context_bytes": 100 * MIB, "others_bytes": 50 * MIB, **figures})  # type: ignore[arg-type]
    return card


def shown(mirror: MirroredCard | None) -> ShownCard:
    card = ShownCard(SimulatedGpu(0, GIB))
    card.mirror = mirror
    return card


def rows(reader: CardReader, now_s: float, table: str) -> list[Sample]:
    return [found for found in reader.read(now_s) if isinstance(found, Sample) and found.table == table]


def test_it_has_the_reading_interface_of_a_card() -> None:
    card = mirrored(Clock(), busy_s=3)
    assert (card.index, card.uuid, card.capacity) == (0, "SIM-0", 2 * GIB)
    assert card.free_and_total() == (2 * GIB - 350 * MIB, 2 * GIB)
    assert (card.used_bytes(), card.reserved_bytes(), card.context_bytes) == (350 * MIB, 200 * MIB, 100 * MIB)
    assert card.others == {OTHER_PROCESS: 50 * MIB} and card.busy_s == 3


def test_it_is_read_in_place_of_the_own_card_and_its_process_is_listed() -> None:
    reader = CardReader([shown(mirrored(Clock()))])
    records = reader.read(0.0)
    (gpu,) = (found for found in records if isinstance(found, Sample) and found.table == "gpu")
    assert gpu.values["used_bytes"] == 350 * MIB and gpu.values["process_bytes"] == HELD
    assert gpu.values["total_bytes"] == 2 * GIB
    ours, other = (found for found in records if isinstance(found, Sample) and found.table == "process")
    assert (ours.values["pid"], ours.values["name"], ours.values["memory_bytes"]) == (4711, "python", HELD)
    assert other.values["pid"] == OTHER_PROCESS


def test_once_the_process_is_silent_its_card_is_a_gap() -> None:
    clock = Clock()
    reader = CardReader([shown(mirrored(clock))])
    clock.now_s += 0.6
    records = reader.read(1.0)
    (gpu,) = (found for found in records if isinstance(found, Sample) and found.table == "gpu")
    assert set(gpu.values.values()) == {None} and set(gpu.states.values()) == {State.STALE}
    assert not [found for found in records if isinstance(found, Sample) and found.table == "process"]


def test_before_its_first_figures_it_is_a_gap() -> None:
    (gpu,) = rows(CardReader([shown(MirroredCard(0, GIB, Clock(), 4711, "python"))]), 0.0, "gpu")
    assert gpu.values["used_bytes"] is None and gpu.states["used_bytes"] is State.STALE


def test_no_utilisation_is_made_of_two_processes_busy_seconds() -> None:
    card = shown(mirrored(Clock(), busy_s=7))
    reader = CardReader([card])
    reader.read(0.0)
    card.mirror = None
    (gpu,) = rows(reader, 1.0, "gpu")
    assert "gpu_utilisation" not in gpu.values
    card.own.busy_s += 0.5
    (gpu,) = rows(reader, 2.0, "gpu")
    assert gpu.values["gpu_utilisation"] == 0.5


def test_a_gap_that_was_pushed_says_that_it_is_stale() -> None:
    reader = CardReader([shown(None)])
    reader.attach("sim:0", lambda: {"allocated_bytes": None, "reserved_bytes": 4})
    (allocator,) = rows(reader, 0.0, "allocator")
    assert allocator.values == {"allocated_bytes": None, "reserved_bytes": 4}
    assert allocator.states == {"allocated_bytes": State.STALE}


def test_a_session_shows_a_mirrored_card_and_its_own_again_after_it() -> None:
    watched: list[ShownCard] = []
    gpus = SimulatedGpus(Simulation((GIB,)), watched.extend)
    gpus.start()
    reader = CardReader(watched)
    gpus.mirror(0, mirrored(Clock()))
    (gpu,) = rows(reader, 0.0, "gpu")
    assert gpu.values["process_bytes"] == HELD
    gpus.mirror(0, None)
    gpus.cards[0].allocate(MIB)
    records = reader.read(2.0)
    assert [found.values["pid"] for found in records if isinstance(found, Sample) and found.table == "process"] == [
        os.getpid()
    ]
    assert watched[0].used_bytes() == CONTEXT_BYTES + 2 * MIB  # of a small segment


def test_a_card_that_is_not_there_cannot_show_another() -> None:
    with pytest.raises(ValueError, match=r"There is no sim:1 that could show another process's; --simulate 8GiB adds"):
        SimulatedGpus(Simulation()).mirror(1, None)
