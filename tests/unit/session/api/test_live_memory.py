"""What the live figure of a notebook draws: readings, cells and steps, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpudash.session.api.live_memory import PERIOD_S, SPAN_S, LiveMemory
from gpudash.units import MIB


class Machine:
    """A clock and GPUs that are set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.gpus: dict[str, dict[str, Any]] = {}
        self.memory = LiveMemory(
            read_gpus=lambda: self.gpus, resident=lambda: 64 * MIB, total=1024 * MIB, clock=lambda: self.now_s
        )

    def hold(self, device: str, allocated: int, peak: int) -> None:
        self.gpus[device] = {
            "allocated_bytes": allocated,
            "reserved_bytes": 2 * allocated,
            "peak_allocated_bytes": peak,
            "capacity_bytes": 1024 * MIB,
            "product": "<b>card</b>",
        }

    def read(self) -> bool:
        self.now_s += PERIOD_S
        return self.memory.read()

    def table(self) -> np.ndarray[Any, Any]:
        columns = 3 + 2 * len(self.memory.facts()["gpus"])
        return np.frombuffer(self.memory.columns(), "<f4").reshape(-1, columns)


def test_a_kernel_without_a_gpu_has_its_ram_and_its_steps() -> None:
    machine = Machine()
    assert machine.read()
    assert not machine.read()  # nothing is new
    assert machine.table().tolist() == [[0.5, 64 * MIB, 0], [1.0, 64 * MIB, 0]]
    assert machine.memory.facts()["gpus"] == []


def test_a_gpu_that_comes_later_is_a_gap_before() -> None:
    machine = Machine()
    machine.read()
    machine.hold("sim:0", MIB, MIB)
    assert machine.read()
    table = machine.table()
    assert np.isnan(table[0, 3:]).all()
    assert table[1, 3:].tolist() == [MIB, 2 * MIB]
    (gpu,) = machine.memory.facts()["gpus"]
    assert gpu["simulated"] and gpu["product"] == "<b>card</b>" and gpu["capacity"] == 1024 * MIB


def test_a_peak_between_two_readings_is_drawn() -> None:
    machine = Machine()
    machine.hold("cuda:0", MIB, 5 * MIB)
    machine.read()
    machine.hold("cuda:0", MIB, 9 * MIB)
    machine.read()
    machine.read()
    assert machine.table()[:, 3].tolist() == [MIB, 9 * MIB, MIB]


def test_a_gpu_that_this_process_has_not_used_is_left_out_where_another_is_used() -> None:
    machine = Machine()
    machine.hold("cuda:0", 0, 0)
    machine.read()
    assert [gpu["device"] for gpu in machine.memory.facts()["gpus"]] == ["cuda:0"]
    machine.hold("cuda:1", MIB, MIB)
    machine.read()
    assert [gpu["device"] for gpu in machine.memory.facts()["gpus"]] == ["cuda:1"]


def test_only_the_last_minutes_are_kept_with_the_cells_that_ran_in_them() -> None:
    machine = Machine()
    machine.memory.cell_began(1)
    machine.read()
    machine.memory.cell_ended()
    for _reading in range(int(SPAN_S / PERIOD_S) + 10):
        machine.read()
    machine.memory.cell_began(2)
    assert len(machine.table()) == SPAN_S / PERIOD_S
    assert [(number, ended) for number, _began, ended in machine.memory.facts()["cells"]] == [(2, None)]
    machine.memory.cell_began(3)  # the one before has ended without a word
    assert [ended is None for _number, _began, ended in machine.memory.facts()["cells"]] == [False, True]


def test_steps_of_optimizers_are_counted_until_it_is_stopped() -> None:
    import torch

    machine = Machine()
    machine.read()
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.step()
    machine.read()
    machine.memory.stop()
    optimizer.step()
    assert machine.table()[:, 2].tolist() == [0, 1]
