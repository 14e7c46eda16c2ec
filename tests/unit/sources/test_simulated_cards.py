"""The readings of simulated GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from gpudash.devices.names import Simulation
from gpudash.memory.watching.pushed_reading import READ_NS
from gpudash.session.live.simulated_gpus import SimulatedGpus
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, OTHER_PROCESS, SimulatedGpu
from gpudash.sources.simulated_gpus import NOT_SIMULATED, CardReader, MirroredCard, ShownCard
from gpudash.telemetry.metrics import METRICS
from gpudash.telemetry.records import Sample, State
from gpudash.units import GIB, MIB
from tests.unit.clock import Clock

HELD = 300 * MIB


def samples(reader: CardReader, now_s: float, table: str) -> list[Sample]:
    return [found for found in reader.read(now_s) if isinstance(found, Sample) and found.table == table]


def test_memory_is_read_under_nvmls_names() -> None:
    card = SimulatedGpu(0, 2 * GIB, others={4711: 256 * MIB})
    address = card.allocate(100 * MIB)
    (sample,) = samples(CardReader([card]), 0.0, "gpu")

    used = 256 * MIB + CONTEXT_BYTES + 100 * MIB
    assert sample.device == "SIM-0-2GiB"
    assert (sample.values["used_bytes"], sample.values["free_bytes"]) == (used, 2 * GIB - used)
    assert sample.values["total_bytes"] == 2 * GIB
    assert sample.values["process_bytes"] == CONTEXT_BYTES + 100 * MIB
    card.release(address)


def test_a_card_that_nobody_has_used_holds_nothing_of_ours() -> None:
    (sample,) = samples(CardReader([SimulatedGpu(0, GIB)]), 0.0, "gpu")
    assert (sample.values["used_bytes"], sample.values["process_bytes"]) == (0, 0)


def test_what_a_simulation_has_not_is_told_as_not_supported_and_never_as_a_number() -> None:
    (sample,) = samples(CardReader([SimulatedGpu(0, GIB)]), 0.0, "gpu")
    assert {"temperature_c", "power_w", "pcie_generation", "driver_reserved_bytes"} <= set(NOT_SIMULATED)
    for metric in NOT_SIMULATED:
        assert sample.values[metric] is None and sample.states[metric] is State.NOT_SUPPORTED
    assert set(sample.values) <= {metric.name for metric in METRICS["gpu"]}


def test_utilisation_is_the_share_of_the_time_spent_in_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimulatedGpu(0, GIB)
    reader = CardReader([card])
    reader.read(10.0)
    card.busy_s += 0.25
    (sample,) = samples(reader, 11.0, "gpu")
    assert sample.values["gpu_utilisation"] == 0.25
    card.busy_s += 30.0
    (sample,) = samples(reader, 12.0, "gpu")
    assert sample.values["gpu_utilisation"] == 1.0
    (sample,) = samples(reader, 13.0, "gpu")
    assert sample.values["gpu_utilisation"] == 0.0


def test_between_two_readings_of_the_sensors_only_memory_is_read() -> None:
    reader = CardReader([SimulatedGpu(0, GIB, others={4711: MIB})])
    reader.read(0.0)
    (sample,) = samples(reader, 0.05, "gpu")
    assert set(sample.values) == {"used_bytes", "free_bytes", "total_bytes", "process_bytes"} and not sample.states


def test_a_card_that_stays_idle_is_written_once_a_second_and_leaves_no_gap() -> None:
    reader = CardReader([SimulatedGpu(0, GIB), SimulatedGpu(1, GIB, others={4711: MIB})])
    ticks = [number / 20 for number in range(61)]
    rows = [sample for now_s in ticks for sample in samples(reader, now_s, "gpu")]
    idle = [sample for sample in rows if sample.device == "SIM-0-1GiB"]
    assert [sample.time_s for sample in idle] == [0.0, 1.0, 2.0, 3.0]
    assert all(sample.values["gpu_utilisation"] == 0.0 for sample in idle[1:])
    assert len(rows) - len(idle) == len(ticks), "a card that is used is read in every tick"


def test_a_card_that_is_used_again_was_idle_until_the_tick_before() -> None:
    card = SimulatedGpu(0, GIB)
    reader = CardReader([card])
    for now_s in (0.0, 0.05, 0.1):
        reader.read(now_s)
    address = card.allocate(MIB)
    before, now = samples(reader, 0.15, "gpu")
    assert (before.time_s, before.values["used_bytes"]) == (0.1, 0)
    assert now.time_s == 0.15 and now.values["used_bytes"] == CONTEXT_BYTES + card.reserved_bytes()
    card.release(address)


def test_our_process_and_the_simulated_others_are_listed_and_those_are_marked() -> None:
    card = SimulatedGpu(0, 2 * GIB, others={4711: 256 * MIB})
    reader = CardReader([card])
    (other,) = samples(reader, 0.0, "process")
    assert (other.device, other.values["pid"], other.values["memory_bytes"]) == ("SIM-0-2GiB", 4711, 256 * MIB)
    assert "SIMULATED" in str(other.values["name"])

    address = card.allocate(MIB)
    ours, other = samples(reader, 2.0, "process")
    assert (ours.values["pid"], other.values["pid"]) == (os.getpid(), 4711)
    assert ours.values["memory_bytes"] == CONTEXT_BYTES + card.reserved_bytes()
    card.release(address)


def test_the_allocator_is_read_in_the_same_tick_just_before_its_card() -> None:
    reader = CardReader([SimulatedGpu(0, GIB), SimulatedGpu(1, GIB)])
    assert reader.attach("sim:1", lambda: {"allocated_bytes": 5})
    assert not reader.attach("cuda:0", lambda: {"allocated_bytes": 6})

    first, *rest = reader.read(3.0)
    assert isinstance(first, Sample)
    assert (first.table, first.device, first.values) == ("allocator", "sim:1", {"allocated_bytes": 5})
    assert 3.0 - 1e-5 < first.time_s < 3.0  # a recording gives readings back in the order of their times
    assert [record.device for record in rest if isinstance(record, Sample)] == ["SIM-0-1GiB", "SIM-1-1GiB"]

    assert reader.attach("sim:1", None)
    assert samples(reader, 4.0, "allocator") == []


def test_a_reading_with_its_own_time_is_dated_by_that_once_and_its_card_not_before_it() -> None:
    reader, read_ns = CardReader([SimulatedGpu(0, GIB)]), [2_900_000_000]
    assert reader.attach("sim:0", lambda: {"allocated_bytes": 5, READ_NS: read_ns[0]})

    allocator, card = reader.read(3.0)[:2]
    assert isinstance(allocator, Sample) and allocator.values == {"allocated_bytes": 5}
    assert (allocator.time_s, card.time_s) == (2.9, 3.0)
    assert samples(reader, 3.1, "allocator") == [], "nothing was read since"

    read_ns[0] = 3_250_000_000
    allocator, card = reader.read(3.2)[:2]
    assert allocator.time_s == 3.25 < card.time_s < 3.2501


def test_a_tick_without_an_answer_is_a_gap_of_every_card() -> None:
    gaps = list(CardReader([SimulatedGpu(0, GIB), SimulatedGpu(1, GIB)]).stale(7.0))
    assert [gap.device for gap in gaps if isinstance(gap, Sample)] == ["SIM-0-1GiB", "SIM-1-1GiB"]
    for gap in gaps:
        assert isinstance(gap, Sample) and gap.time_s == 7.0
        assert set(gap.values.values()) == {None} and set(gap.states.values()) == {State.STALE}


def mirrored(clock: Clock, **figures: int) -> MirroredCard:
    card = MirroredCard(0, 2 * GIB, clock, pid=4711, name="python", stale_s=0.5)
    card.put(**{"reserved_bytes": 200 * MIB, "context_bytes": 100 * MIB, "others_bytes": 50 * MIB, **figures})  # type: ignore[arg-type]
    return card


def shown(mirror: MirroredCard | None) -> ShownCard:
    card = ShownCard.of(SimulatedGpu(0, GIB))
    card.mirror = mirror
    return card


def rows(reader: CardReader, now_s: float, table: str) -> list[Sample]:
    return [found for found in reader.read(now_s) if isinstance(found, Sample) and found.table == table]


def test_its_figures_are_those_that_were_put() -> None:
    card = mirrored(Clock(), busy_s=3)
    found = card.now()
    assert (card.capacity, found.capacity, found.free) == (2 * GIB, 2 * GIB, 2 * GIB - 350 * MIB)
    assert (found.reserved, found.context, found.busy_s) == (200 * MIB, 100 * MIB, 3)
    assert found.others == card.newest.others == {OTHER_PROCESS: 50 * MIB}


def test_it_is_read_in_place_of_the_own_card_and_its_process_is_listed() -> None:
    reader = CardReader([shown(mirrored(Clock()))])
    records = reader.read(0.0)
    (gpu,) = (found for found in records if isinstance(found, Sample) and found.table == "gpu")
    assert gpu.values["used_bytes"] == 350 * MIB and gpu.values["process_bytes"] == HELD
    assert gpu.values["total_bytes"] == 2 * GIB
    ours, other = (found for found in records if isinstance(found, Sample) and found.table == "process")
    assert (ours.values["pid"], ours.values["name"], ours.values["memory_bytes"]) == (4711, "python", HELD)
    assert other.values["pid"] == OTHER_PROCESS


def test_every_process_that_shares_it_is_listed_and_all_are_counted() -> None:
    card = MirroredCard(0, 2 * GIB, Clock(), pid=7, name="train.py")
    sharing = {7: ("train.py", 300 * MIB), 8: ("serve.py", 200 * MIB)}
    card.put(reserved_bytes=300 * MIB, context_bytes=200 * MIB, sharing=sharing)
    records = [found for found in CardReader([shown(card)]).read(0.0) if isinstance(found, Sample)]
    (gpu,) = (found for found in records if found.table == "gpu")
    assert (gpu.values["process_bytes"], gpu.values["free_bytes"]) == (500 * MIB, 2 * GIB - 500 * MIB)
    listed = [found.values for found in records if found.table == "process"]
    assert [(row["pid"], row["name"], row["memory_bytes"]) for row in listed] == [
        (pid, name, held) for pid, (name, held) in sharing.items()
    ]


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
    gpus.mirror("sim:0", mirrored(Clock()))
    (gpu,) = rows(reader, 0.0, "gpu")
    assert gpu.values["process_bytes"] == HELD
    gpus.mirror("sim:0", None)
    gpus.cards[0].allocate(MIB)
    records = reader.read(2.0)
    assert [found.values["pid"] for found in records if isinstance(found, Sample) and found.table == "process"] == [
        os.getpid()
    ]
    assert watched[0].now().held == CONTEXT_BYTES + 2 * MIB  # of a small segment


def test_a_card_that_is_not_listed_any_more_is_left_alone() -> None:
    gpus = SimulatedGpus(Simulation((GIB,)))
    gpus.start()
    (name,) = gpus.provide([2 * GIB])
    gpus.provide([])
    gpus.mirror(name, mirrored(Clock()))
    assert [gpu.uuid for gpu in gpus.gpus] == ["SIM-0-1GiB"]


def test_a_card_whose_program_has_ended_is_read_once_more_as_empty() -> None:
    listed: list[Sequence[ShownCard]] = []
    gpus = SimulatedGpus(Simulation((GIB,)), listed.append)
    gpus.start()
    reader = CardReader(listed[-1])
    (name,) = gpus.provide([2 * GIB])
    gpus.mirror(name, mirrored(Clock()))
    reader.show(listed[-1])
    own, program = rows(reader, 0.0, "gpu")
    assert (own.device, own.values["used_bytes"]) == ("SIM-0-1GiB", 0)
    assert (program.device, program.values["used_bytes"]) == ("SIM-0-2GiB", 350 * MIB)

    gpus.provide([])
    reader.show(listed[-1])
    own, program = rows(reader, 1.0, "gpu")
    assert (program.device, program.values["used_bytes"], program.values["free_bytes"]) == ("SIM-0-2GiB", 0, 2 * GIB)
    assert [row.device for row in rows(reader, 2.0, "gpu")] == ["SIM-0-1GiB"]
