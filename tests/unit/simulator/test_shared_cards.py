"""One simulated card for all processes of a program: what one holds, another cannot have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudash.memory.allocator.refusal import AllocationRefused
from gpudash.simulator.device import process_table
from gpudash.simulator.device.process_table import VARIABLE, Holding, ProcessTable
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES, SimulatedGpu
from tests.programs import python

pytestmark = pytest.mark.process

MIB = 2**20
GIB = 2**30

LIMIT_S = 120.0

SIMULATING = """
import os, signal, subprocess, sys, torch
from gpudash.simulator import simulate
if __name__ == "__main__":
    simulate(2 * 2**30, as_cuda=True)
def hold(mib):
    return torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
def free():
    return torch.cuda.mem_get_info()[0] // 2**20
"""
"""How every program of these tests begins: with a card of 2 GiB, 300 MiB of which each context takes."""

OTHER = """
if sys.argv[1:]:
    held = hold(int(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.readline()
    sys.exit()
def other(mib):
    process = subprocess.Popen(
        [sys.executable, __file__, str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\\n"
    return process
"""
"""Another process of the same program, which holds some MiB until it is ended."""


@pytest.fixture(autouse=True)
def no_table_of_others() -> Iterator[None]:
    os.environ.pop(VARIABLE, None)
    yield
    os.environ.pop(VARIABLE, None)


def run(folder: Path, *parts: str, **variables: str) -> list[str]:
    """The lines that a program prints, whose source is given in parts."""
    script = folder / "program.py"
    script.write_text("".join(map(textwrap.dedent, (SIMULATING, *parts))))
    done = python(str(script), env={**os.environ, **variables}, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_another_process_holds_is_not_free_on_this_card_and_a_killed_one_gives_it_back(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        OTHER,
        """
        first = other(1000)
        print(free())
        try:
            hold(1200)
        except torch.OutOfMemoryError as error:
            print(error)
        second = other(100)
        print(free())
        second.stdin.close()
        second.wait()
        print(free())
        simulate(3 * 2**30, as_cuda=True)  # a card of another size is another card
        print(free())
        simulate(2 * 2**30, as_cuda=True)
        first.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for: it holds nothing
        held = hold(1200)
        print(free(), first.pid)
        """,
    )
    before, refused, beside, after, of_another, last = printed
    assert (before, beside, after, of_another) == ("448", "48", "448", "2772")
    free, first = last.split()
    assert int(free) == 2048 - CONTEXT_BYTES // MIB - 1200
    assert "Tried to allocate 1.17 GiB. GPU 0 has a total capacity of 2.00 GiB of which 448.00 MiB is free. " in refused
    assert f"Process {first} has 1.27 GiB memory in use. " in refused
    assert "Including non-PyTorch memory, this process has 300.00 MiB memory in use. " in refused


def test_a_process_is_refused_even_its_context_on_a_card_that_another_has_filled(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        OTHER,
        """
        held = other(1500)
        try:
            free()
        except torch.OutOfMemoryError as error:
            print(error)
        """,
    )
    assert "of which 248.00 MiB is free" in printed[0]


def test_segments_that_grow_count_page_by_page(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        OTHER,
        """
        held = other(1000)
        before = free()
        grown = [hold(50) for _ in range(4)]
        print(before - free())
        del grown[2:]
        torch.cuda.empty_cache()
        print(before - free())
        """,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert printed == ["200", "100"]


def test_a_forked_child_holds_nothing_before_it_uses_the_card_and_then_what_it_takes_itself(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        """
        held = hold(1000)
        def child(work):
            to_child, to_parent = os.pipe(), os.pipe()
            if not os.fork():
                work()
                os.write(to_parent[1], b"x")
                os.read(to_child[0], 1)
                os._exit(0)
            os.read(to_parent[0], 1)
            print(free())
            os.write(to_child[1], b"x")
            os.wait()
        def use():
            global more
            more = hold(100)
            print(free(), flush=True)
        child(lambda: None)
        child(use)
        print(free())
        """,
    )
    assert printed == ["748", "348", "348", "748"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_load_data_take_nothing_of_the_card(tmp_path: Path, method: str) -> None:
    printed = run(
        tmp_path,
        f"""
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            held = hold(1000)
            data = TensorDataset(torch.arange(8.0))
            loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="{method}")
            print([(float(batch.sum()), free()) for (batch,) in loader])
        """,
    )
    assert printed == ["[(6.0, 748), (22.0, 748)]"]


def test_a_program_that_closes_all_its_files_goes_on(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        OTHER,
        """
        held = other(1000)
        os.closerange(3, 4096)
        mine = [open(__file__) for _ in range(8)]
        more = hold(100)
        print(free(), all(file.readline() for file in mine))
        """,
    )
    assert printed == ["348 True"]


def test_a_table_that_is_gone_leaves_the_program_one_of_its_own(tmp_path: Path) -> None:
    printed = run(tmp_path, f"print(free(), os.environ['{VARIABLE}'] == '/proc/1/fd/x')", **{VARIABLE: "/proc/1/fd/x"})
    assert printed == ["1748 False"]


def test_what_is_no_table_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long").write_bytes(b"simcards" + bytes(10**6))
    for path in ("/dev/zero", str(tmp_path), str(tmp_path / "fifo"), str(tmp_path / "long"), "", "\n"):
        with pytest.raises(OSError, match=r"no table|directory|No such file"):
            ProcessTable.open(path)


@pytest.fixture
def table() -> ProcessTable:
    return ProcessTable.create()


def card(table: ProcessTable) -> SimulatedGpu:
    return SimulatedGpu(0, GIB, table=table)


class Other:
    """Another process, without torch, that does something with a table and then waits to be ended."""

    def __init__(self, table: ProcessTable, work: str) -> None:
        code = f"""
import sys
from gpudash.simulator.device.process_table import ProcessTable
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
table = ProcessTable.open({table.path!r})
card = SimulatedGpu(0, 2**30, table=table)
{work}
print("done", flush=True)
sys.stdin.readline()
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == "done\n"
        self.pid = self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(table: ProcessTable) -> Iterator[Callable[[str], Other]]:
    started: list[Other] = []

    def other(work: str) -> Other:
        started.append(Other(table, work))
        return started[-1]

    yield other
    for one in started:
        one.end()


Start = Callable[[str], Other]

LOCK = "locked = table.locked(); locked.__enter__()"


def test_a_block_from_the_cache_does_not_meet_the_table(table: ProcessTable) -> None:
    shared = card(table)
    kept = shared.allocate(4 * MIB)
    before = bytes(table.memory)
    table.memory.close()  # whoever reads or writes it now fails
    for _ in range(3):
        shared.release(shared.allocate(4 * MIB))
    with pytest.raises(ValueError, match="mmap closed"):
        shared.allocate(GIB // 2)
    assert before.startswith(b"simcards") and kept


def test_each_process_holds_its_context_and_what_it_has_reserved(table: ProcessTable, start: Start) -> None:
    shared = card(table)
    other = start("card.allocate(100 * 2**20)")
    assert table.held_by_others(0, GIB, living=True) == {other.pid: Holding(CONTEXT_BYTES, 100 * MIB)}
    assert shared.others == {other.pid: CONTEXT_BYTES + 100 * MIB} and shared.held_bytes == 0
    with pytest.raises(AllocationRefused):
        shared.allocate(500 * MIB)
    other.end()
    assert shared.others == {}
    assert shared.allocate(500 * MIB)


def test_a_holder_of_the_lock_that_is_stopped_is_not_waited_for_long(table: ProcessTable, start: Start) -> None:
    shared, other = card(table), start(LOCK)
    os.kill(other.pid, signal.SIGSTOP)
    with table.locked() as locked:
        assert not locked
    assert shared.allocate(4 * MIB)


def test_a_lock_ends_with_its_holder(table: ProcessTable, start: Start) -> None:
    start(LOCK).end()
    with table.locked() as locked:
        assert locked


def test_a_full_table_has_room_again_where_a_process_has_ended(
    table: ProcessTable, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_table, "MOST_ENTRIES", 1)
    other = start("card.allocate(4 * 2**20)")
    with table.locked():
        assert table.enter(0, GIB) is None
    assert card(table).allocate(4 * MIB), "it is served, though nobody else learns of it"
    other.end()
    with table.locked():
        assert table.enter(0, GIB) is not None


def test_eight_processes_that_fill_a_card_at_once_have_no_more_than_it_holds(tmp_path: Path) -> None:
    """Each takes what it can get, as fast as it can, and prints at the end what it has."""
    code = textwrap.dedent(
        """
        import sys
        from gpudash.memory.allocator.refusal import AllocationRefused
        from gpudash.simulator.device.process_table import table_of_program
        from gpudash.simulator.device.simulated_gpu import SimulatedGpu
        card = SimulatedGpu(0, 2**30, context=2**20, table=table_of_program())
        sys.stdin.readline()
        held = []
        for number in range(200):
            try:
                held.append(card.allocate((11 + number % 7) * 2**20))
            except AllocationRefused:
                if held:
                    card.release(held.pop())
                    card.empty_cache()
        print(card.held_bytes, flush=True)
        sys.stdin.readline()
        """
    )
    own = process_table.table_of_program()
    assert own is not None
    environment = {**os.environ, VARIABLE: own.path}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [int(process.stdout.readline()) for process in processes if process.stdout is not None]
    held = [sum(one) for one in own.held_by_others(0, GIB, living=True).values()]
    for process in processes:
        process.communicate("go\n", timeout=LIMIT_S)
    assert sorted(held) == sorted(printed) and len(printed) == 8
    assert GIB - 18 * MIB < sum(printed) <= GIB
