"""What the processes of a watched program tell of their memory, put together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudash.devices.names import Gpu
from gpudash.memory.frames import Frame
from gpudash.memory.request_log import RequestLogs
from gpudash.session.watching.memory import WatchedMemory
from gpudash.simulator.device.process_table import ProcessTable
from gpudash.sources.simulated_gpus import CardFigures
from gpudash.telemetry.records import Note, Sample, Topic, Warning
from gpudash.units import GIB, MIB
from tests.unit.session.watched import Surrounded

GPU = Gpu(0, "GPU-1", "00000000:01:00.0", "NVIDIA H200", 24 * GIB)


HOLD = """
import sys
from gpudash.simulator.device.process_table import ProcessTable
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
kept = SimulatedGpu(0, 2**30, table=ProcessTable.open(sys.argv[1])).allocate(100 * 2**20)
print("held", flush=True)
sys.stdin.readline()
"""
"""A process that holds 100 MiB of a card of 1 GiB, and its context, until it is ended."""


def memory_of(around: Surrounded) -> WatchedMemory:
    wiring = around.wiring
    return WatchedMemory(1, wiring.machine, wiring.probe, wiring.emit, wiring.clock)


def told(device: str = "sim:0", **figures: int) -> dict[str, Any]:
    usual = {"allocated_bytes": 10 * MIB, "reserved_bytes": 20 * MIB, "peak_allocated_bytes": 15 * MIB}
    return {"type": "allocator", "devices": {device: {**usual, "peak_reserved_bytes": 20 * MIB, **figures}}}


def test_a_simulated_card_is_shown_as_the_program_tells_of_it_and_put_back_afterwards() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", told(capacity_bytes=GIB, context_bytes=300 * MIB, others_bytes=MIB, busy_s=2.0))
    shown = around.machine.simulated._own[0].now()
    assert (shown.pid, shown.name, shown.fresh) == (7, "python", True)
    assert (shown.reserved, shown.context, sum(shown.others.values()), shown.busy_s) == (20 * MIB, 300 * MIB, MIB, 2.0)
    assert around.probes["sim:0"]()["allocated_bytes"] == 10 * MIB
    assert [note.details for note in around.events(Note, topic=Topic.DEVICE)] == [
        {"device": "sim:0", "simulated": True}
    ]
    memory.close()
    assert around.machine.simulated._own[0].mirror is None
    around.now_s += 1000
    read = around.probes["sim:0"]()
    assert (read["allocated_bytes"], read["reserved_bytes"]) == (0, 0), "nothing is held, which is no gap"


def test_a_program_that_has_ended_leaves_its_card_empty_though_its_run_goes_on() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", told(capacity_bytes=GIB, context_bytes=300 * MIB))
    memory.end_readings()
    around.now_s += 1000
    card = around.machine.simulated._own[0].now()
    assert (card.held, card.fresh) == (0, True)
    assert memory.peaks["sim:0"]["allocated_bytes"] > 0


def test_cards_that_the_program_was_given_are_shown_as_they_are_while_nobody_uses_them() -> None:
    around = Surrounded(8 * GIB)
    wiring, simulated = around.wiring, around.machine.simulated
    cards = simulated.provide([768 * MIB])
    memory = WatchedMemory(1, wiring.machine, wiring.probe, wiring.emit, wiring.clock, cards, 100 * MIB)
    around.now_s += 1000

    def shown() -> tuple[int, int, bool]:
        found = simulated._of_programs[0].now()
        return found.capacity, found.free, found.fresh

    assert shown() == (768 * MIB, 668 * MIB, True)
    assert [gpu.total_bytes for gpu in around.machine.gpus] == [8 * GIB, 768 * MIB]
    memory.take_allocator(7, "python", told(capacity_bytes=768 * MIB, others_bytes=100 * MIB))
    assert shown() == (768 * MIB, 648 * MIB, True)
    memory.forget(7)
    assert shown() == (768 * MIB, 668 * MIB, True)
    memory.close()
    assert shown() == (768 * MIB, 768 * MIB, True), "its program has ended"


def test_a_program_on_a_card_of_another_size_has_a_device_of_its_own() -> None:
    around = Surrounded(2 * GIB)
    simulated = around.machine.simulated
    simulated.cards[0].allocate(900 * MIB)
    (name,) = simulated.provide([24 * GIB])
    assert name == "sim:0@24GiB"
    memory = WatchedMemory(1, around.machine, around.probe, around.emit, lambda: around.now_s, [name], as_cuda=True)
    memory.take_allocator(7, "python", told(capacity_bytes=24 * GIB, context_bytes=300 * MIB))

    devices = {device.name: device.uuid for device in around.machine.devices() if device.simulated}
    assert devices == {"sim:0": "SIM-0-2GiB", "sim:0@24GiB": "SIM-0-24GiB"}
    assert list(around.probes) == ["sim:0@24GiB"]
    (turn,) = around.events(Note, topic=Topic.DEVICE)
    assert (turn.text, turn.details["device"]) == (
        "The program allocates on sim:0 · 24 GiB, which it calls cuda:0.",
        "sim:0@24GiB",
    )
    own, program = (card.now() for card in (*simulated._own, *simulated._of_programs))
    assert (own.capacity, own.held) == (2 * GIB, 1200 * MIB), "what gpudash holds is not the program's"
    assert (program.capacity, program.reserved, program.context) == (24 * GIB, 20 * MIB, 300 * MIB)
    assert memory.peaks["sim:0@24GiB"]["reserved_bytes"] == 20 * MIB
    memory.take_stacks(7, {"type": "stacks", "stacks": {"1": stack(31)}})
    for step in (20, 30):
        memory.take_held(7, held(step))
    assert [warning.device for warning in around.events(Warning)] == ["SIM-0-24GiB"]
    memory.close()


def test_a_program_has_the_sessions_own_card_where_both_are_the_same() -> None:
    around = Surrounded(GIB)
    simulated = around.machine.simulated
    assert simulated.provide([GIB, GIB]) == ["sim:0", "sim:1@1GiB"]
    assert [gpu.uuid for gpu in simulated.gpus] == ["SIM-0-1GiB", "SIM-1-1GiB"]
    assert simulated.provide([24 * GIB]) == simulated.provide([24 * GIB]) == ["sim:0@24GiB"]
    assert [gpu.uuid for gpu in simulated.gpus] == ["SIM-0-1GiB", "SIM-0-24GiB"], "the newest program's are listed"


def test_no_run_of_the_session_can_use_the_card_of_a_program() -> None:
    around = Surrounded(GIB)
    around.machine.simulated.provide([24 * GIB])
    with pytest.raises(ValueError, match="No run can use sim:0@24GiB: It is the card of a program that is watched"):
        around.machine.find("sim:0@24GiB")


def test_a_peak_counts_when_it_has_risen_since_the_reading_before() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", told())
    read = around.probes["sim:0"]
    assert read()["peak_allocated_bytes"] == 15 * MIB
    memory.take_allocator(7, "python", told(allocated_bytes=5 * MIB))
    assert read()["peak_allocated_bytes"] == 5 * MIB, "the program's own peak is an old one"
    memory.take_allocator(7, "python", told(allocated_bytes=5 * MIB, peak_allocated_bytes=18 * MIB))
    assert read()["peak_allocated_bytes"] == 18 * MIB
    assert memory.peaks["sim:0"] == {"allocated_bytes": 18 * MIB, "reserved_bytes": 20 * MIB}


def test_figures_of_several_processes_on_a_gpu_are_added_and_gone_with_each() -> None:
    around = Surrounded(gpus=(GPU,))
    memory = memory_of(around)
    memory.take_allocator(7, "python", told("cuda:0"))
    memory.take_allocator(8, "python", told("cuda:0", reserved_bytes=5 * MIB))
    read = around.probes["cuda:0"]
    assert (read()["allocated_bytes"], read()["reserved_bytes"]) == (20 * MIB, 25 * MIB)
    memory.forget(7)
    memory.take_allocator(8, "python", told("cuda:0", reserved_bytes=5 * MIB))
    assert read()["reserved_bytes"] == 5 * MIB
    memory.forget(8)
    assert read()["reserved_bytes"] == 0


def test_silence_is_a_gap_and_never_the_last_value() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", told())
    around.now_s += 10
    assert set(around.probes["sim:0"]().values()) == {None}


def test_a_gpu_that_the_program_numbers_otherwise_is_told_by_its_uuid() -> None:
    second = Gpu(1, "GPU-2", "00000000:02:00.0", "NVIDIA H200", 24 * GIB)
    around = Surrounded(gpus=(GPU, second))
    memory = memory_of(around)
    message = told("cuda:0")
    message["devices"]["cuda:0"]["uuid"] = "GPU-2"
    memory.take_allocator(7, "python", message)
    assert list(around.probes) == ["cuda:1"]


def test_each_process_has_a_simulated_card_of_its_own_and_the_first_is_shown() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(6, "torchrun", told(reserved_bytes=0, allocated_bytes=0))
    assert around.probes == {}, "a process that uses no memory has no say"
    memory.take_allocator(7, "python", told())
    memory.take_allocator(8, "python", told(reserved_bytes=90 * MIB))
    memory.take_allocator(8, "python", told(reserved_bytes=91 * MIB))
    assert around.probes["sim:0"]()["reserved_bytes"] == 20 * MIB
    assert around.texts("simulated") == ["pid 8 has a sim:0 of its own; the one of pid 7 is shown."]
    memory.forget(7)
    memory.take_allocator(8, "python", told(reserved_bytes=92 * MIB))
    assert around.machine.simulated._own[0].now().pid == 8
    memory.close()


def test_processes_that_share_a_simulated_card_are_added_and_listed_one_by_one() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    figures = {"capacity_bytes": GIB, "context_bytes": 300 * MIB, "shared": 1, "others_bytes": 5 * MIB}
    memory.take_allocator(7, "train.py", told(**figures, busy_s=2))
    memory.take_allocator(8, "serve.py", told(**{**figures, "reserved_bytes": 90 * MIB, "busy_s": 1}))

    def shown() -> CardFigures:
        return around.machine.simulated._own[0].now()

    card = shown()
    assert (card.reserved, card.context, card.busy_s) == (110 * MIB, 600 * MIB, 3)
    assert card.free == GIB - 715 * MIB and sum(card.others.values()) == 5 * MIB
    assert dict(card.users) == {7: ("train.py", 320 * MIB), 8: ("serve.py", 390 * MIB)}
    assert around.probes["sim:0"]()["reserved_bytes"] == 110 * MIB
    assert around.texts("simulated") == []

    found = memory.surroundings("sim:0", 8)
    assert (found.context_bytes, [(one.pid, one.bytes) for one in found.processes][-1]) == (300 * MIB, (7, 320 * MIB))
    then = memory.surroundings("sim:0", 8, {"7": 400 * MIB})
    assert [(one.name, one.bytes) for one in then.processes] == [("train.py", 400 * MIB)], "as it was when it was full"

    memory.forget(7)
    card = shown()
    assert (card.pid, card.fresh, dict(card.users)) == (8, True, {8: ("serve.py", 390 * MIB)})
    assert around.probes["sim:0"]()["reserved_bytes"] == 90 * MIB and card.busy_s == 3
    assert [(row["pid"], row["name"], row["peak_reserved_bytes"]) for row in memory.processes] == [
        (7, "train.py", 20 * MIB),
        (8, "serve.py", 90 * MIB),
    ]
    memory.take_allocator(9, "other.py", told(**{**figures, "capacity_bytes": 2 * GIB}))
    assert around.texts("simulated") == ["pid 9 has a sim:0 of its own; the one of pid 8 is shown."]
    assert list(shown().users) == [8]
    memory.forget(8)
    memory.close()


@pytest.mark.process
def test_of_a_card_that_is_shared_the_table_says_who_is_there_and_each_process_with_how_much() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.table = ProcessTable.create()
    living = subprocess.Popen([sys.executable, "-c", HOLD, memory.table.path], stdin=-1, stdout=-1, text=True)
    assert living.stdout is not None and living.stdout.readline() == "held\n"
    figures = {"capacity_bytes": GIB, "context_bytes": 300 * MIB, "shared": 1}
    memory.take_allocator(living.pid, "serve.py", told(**figures))
    memory.take_allocator(7, "killed.py", told(**{**figures, "reserved_bytes": 900 * MIB}))
    card = around.machine.simulated._own[0].now()
    assert dict(card.users) == {living.pid: ("serve.py", 320 * MIB)}
    assert around.probes["sim:0"]()["reserved_bytes"] == 20 * MIB
    living.communicate("")
    memory.take_allocator(living.pid, "serve.py", told(**figures))
    assert len(around.machine.simulated._own[0].now().users) == 2, "once nobody is there, the last figures stay"
    memory.close()


def test_what_else_holds_memory_of_a_simulated_card_is_known() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", told(context_bytes=300 * MIB, others_bytes=2 * MIB))
    found = memory.surroundings("sim:0")
    assert found.context_bytes == 300 * MIB
    assert [process.bytes for process in found.processes] == [2 * MIB]
    assert memory.surroundings("cuda:9").context_bytes is None
    memory.close()


def test_a_context_is_measured_while_nothing_is_allocated_and_not_against_an_older_list_of_processes() -> None:
    around = Surrounded(gpus=(GPU,))
    memory = memory_of(around)

    def at(now_s: float, reserved: int, listed: int | None = None) -> int | None:
        around.now_s = now_s
        if listed is not None:
            row = {"pid": 7, "name": "python", "user": "mia", "memory_bytes": listed}
            around.store.apply(Sample(now_s, "process", "GPU-1", row))
        memory.take_allocator(7, "python", told("cuda:0", reserved_bytes=reserved))
        return memory.surroundings("cuda:0").context_bytes

    assert at(11.0, 20 * MIB) is None
    assert at(12.0, 20 * MIB, listed=520 * MIB) == 500 * MIB
    assert at(12.1, 900 * MIB) == 500 * MIB
    assert at(12.2, 900 * MIB) == 500 * MIB
    assert at(13.0, 10 * MIB, listed=1400 * MIB) == 500 * MIB
    memory.close()


@pytest.mark.parametrize(
    "message",
    [
        {"type": "allocator"},
        {"type": "allocator", "devices": [1]},
        {"type": "allocator", "devices": {"sim:0": 3, "sim:1": {"allocated_bytes": 1}, "cpu": {}}},
        {"type": "allocator", "devices": {"sim:0": {"allocated_bytes": "1", "reserved_bytes": True}}},
        {"type": "allocator", "devices": {"sim:0": {"allocated_bytes": -1, "reserved_bytes": 2**70}}},
    ],
)
def test_figures_that_are_none_are_left_out(message: dict[str, Any]) -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", message)
    assert around.probes == {}


def stack(line: int) -> list[list[Any]]:
    return [["/venv/lib/python3.11/site-packages/torch/nn/a.py", 5, "f"], ["/home/me/train.py", line, "step"]]


def held(step: int, *, numbers: tuple[int, ...] = (1,)) -> dict[str, Any]:
    rows = [[MIB, 1, born, number] for born in range(1, step) for number in numbers]
    return {"type": "held", "device": "sim:0", "step": step, "holdings": rows}


def test_a_line_that_keeps_something_of_every_step_is_told_once_whoever_runs_it() -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    for pid in (7, 8):
        memory.take_stacks(pid, {"type": "stacks", "stacks": {"1": stack(31)}})
    memory.take_held(7, held(20))
    assert around.events(Warning) == [], "once is not enough"
    for step in (30, 40, 50):
        memory.take_held(7, held(step))
        memory.take_held(8, held(step))
    (warning,) = around.events(Warning)
    assert warning.text == "train.py:31 keeps 1 MiB of every step since step 1."
    assert (warning.device, warning.level, warning.run_id) == ("SIM-0-1GiB", "note", 1)
    assert warning.cause == "train.py:31, 1 MiB a step"


def test_the_statement_that_keeps_what_a_line_allocates_is_told_with_the_growth(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("history = []\nfor x in data:\n    out = model(x)\n    history.append(out)\n")
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_stacks(7, {"type": "stacks", "stacks": {"1": [[str(script), 3, "<module>"]]}})
    for step in (20, 30):
        memory.take_held(7, held(step))
    (warning,) = around.events(Warning)
    assert warning.cause == "train.py:4 (history.append(out)), 1 MiB a step, allocated at train.py:3"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "held", "device": "sim:0"},
        {"type": "held", "device": "sim:0", "step": 9, "holdings": [[1, 2, 3], ["a", 1, 1, 1], 7]},
        {"type": "held", "device": "sim:0", "step": 90, "holdings": [[MIB, 1, n, 99] for n in range(80)]},
    ],
)
def test_what_is_held_by_nobody_known_is_nothing_to_warn_of(message: dict[str, Any]) -> None:
    around = Surrounded(GIB)
    memory = memory_of(around)
    memory.take_stacks(7, {"type": "stacks", "stacks": {"1": [["a.py", "x", "f"]], "2": 3}})
    for _ in range(3):
        memory.take_held(7, message)
    assert around.events(Warning) == []


def test_stacks_are_bounded_by_their_bytes_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudash.session.watching.memory.MOST_STACK_BYTES", 100_000)
    around = Surrounded(GIB)
    memory = memory_of(around)
    for number in range(1000):
        memory.take_stacks(7 + number % 2, {"type": "stacks", "stacks": {str(number): stack(number)}})
    kept = [process.stacks for process in memory._processes.values()]
    assert sum(stacks.bytes for stacks in kept) <= 100_000
    assert all(len(stacks) > 10 for stacks in kept)  # a process that tells much does not take the other's
    assert kept[0].get("998") == tuple(Frame(*frame) for frame in stack(998)) and kept[0].get("0") == ()


def test_stacks_share_their_frames_so_that_a_real_program_stays_far_below_the_bound() -> None:
    memory = memory_of(Surrounded(GIB))
    outer = [[f"/usr/lib/python3/site-packages/torch/{name}.py", 1, name] for name in map(str, range(60))]
    for number in range(20_000):
        memory.take_stacks(7, {"type": "stacks", "stacks": {str(number): [["train.py", number % 500, "f"], *outer]}})
    stacks = memory._processes[7].stacks
    assert len(stacks) == 20_000 and stacks.bytes < 20 * MIB


def test_a_card_that_the_program_has_made_itself_is_another_than_the_sessions() -> None:
    around = Surrounded(8 * GIB)
    memory = memory_of(around)
    memory.take_allocator(7, "python", told(capacity_bytes=2 * GIB))
    assert [gpu.uuid for gpu in around.machine.gpus] == ["SIM-0-8GiB", "SIM-0-2GiB"]
    assert around.machine.memory_of(memory.name_of("sim:0")) == "SIM-0-2GiB"
    memory.close()


def asked(rows: list[int], **live: list[int]) -> dict[str, Any]:
    """Requests of microseconds, address, bytes and stack; what is live where some were missed."""
    return {"type": "requests", "device": "sim:0", "rows": rows, **live}


def requests_of(around: Surrounded) -> tuple[WatchedMemory, RequestLogs]:
    wiring = around.wiring
    logs = RequestLogs()
    memory = WatchedMemory(1, wiring.machine, wiring.probe, wiring.emit, wiring.clock, requests=logs)
    memory.take_stacks(7, {"type": "stacks", "stacks": {"1": [["/home/me/train.py", 12, "step"]]}})
    return memory, logs


def in_seconds(time_us: float) -> float:
    return time_us / 1e6


def test_requests_are_kept_with_their_lines_and_their_ends() -> None:
    memory, logs = requests_of(Surrounded(GIB))
    rows = [1_000_000, 64, 4096, 1, 2_000_000, 128, 512, 99, 3_000_000, 64, 0, 0]
    memory.take_requests(7, asked(rows), in_seconds)
    log = logs.of("sim:0")
    assert log is not None
    found = log.allocations()
    assert (found.level.tolist(), found.place.tolist()) == ([0, 4096, 4608, 512], [1.0, 2.0, 3.0])
    assert [line.text for line in log.lines] == ["train.py:12 step", "no stack recorded"]


def test_two_processes_may_use_one_address_and_one_that_ends_takes_its_own_along() -> None:
    memory, logs = requests_of(Surrounded(GIB))
    for pid in (7, 8):
        memory.take_requests(pid, asked([1_000_000, 64, 4096, 1]), in_seconds)
    log = logs.made("sim:0")
    assert log.live() == [(7, 64), (8, 64)]
    memory.forget(7)
    assert log.live() == [(8, 64)]


def test_what_came_and_went_while_nobody_heard_it_is_known_by_what_is_live() -> None:
    memory, logs = requests_of(Surrounded(GIB))
    memory.take_requests(7, asked([1_000_000, 64, 4096, 1, 1_000_000, 32, 512, 1]), in_seconds)
    live = [64, 4096, 1, 128, 512, 1, 256, 1024, 1]
    memory.take_requests(7, asked([9_000_000, 128, 512, 1], live=live), in_seconds)
    log = logs.made("sim:0")
    assert set(log.live()) == {(7, 64), (7, 128), (7, 256)}
    found = log.allocations()
    assert found.place[found.born[0]] == 1.0, "what stayed is there since it came"
    assert found.level[-1] == 4096 + 512 + 1024


@pytest.mark.parametrize("rows", ["no list", [1, 2, "three", 4], [1.5, 2, 3, 4], [1, 2, 3]])
def test_requests_that_are_none_are_left_out(rows: Any) -> None:
    memory, logs = requests_of(Surrounded(GIB))
    memory.take_requests(7, asked(rows), in_seconds)
    assert all(logs.made(device).extent is None for device in logs.devices)
