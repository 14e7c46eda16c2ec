"""An unchanged script on a simulated GPU: its figures, history and out-of-memory; looking changes nothing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpudash.simulator.device.memory_history import PROTOCOL
from tests.unit.agent.dashboard import INJECT, LIMIT_S, PACKAGE, SCRIPTS, Dashboard, unwatched

pytestmark = pytest.mark.process

LEAK = str(SCRIPTS / "leak.py")
MIB = 2**20
CARD = 900 * MIB
"""So large that the script is looked at often before it is full."""

LEAKED = 64 * 16 * 256 * 4
"""Bytes that one step of the script leaves behind."""

LEAKING_LINE = next(n for n, line in enumerate(Path(LEAK).read_text().splitlines(), 1) if "history.append" in line)


Leaked = tuple[Dashboard, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def leaked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaked]:
    """What was heard of the script that leaks until its card is full, and how it ended."""
    dashboard = Dashboard(tmp_path_factory.mktemp("leaked"))
    try:
        yield dashboard, dashboard.run(LEAK, simulate=[CARD], history=True, history_entries=500)
    finally:
        dashboard.close()


def test_a_leak_is_followed_named_and_caught(leaked: Leaked) -> None:
    dashboard, done = leaked
    assert done.returncode == 1 and "OutOfMemoryError: SIM out of memory" in done.stderr
    (told,) = dashboard.of("torch")
    assert (told["version"], told["simulated"], told["history"]) == (str(torch.__version__), True, True)
    assert told["problem"] is None
    figures = [message["devices"]["sim:0"] for message in dashboard.of("allocator")]
    peaks = [one["peak_allocated_bytes"] for one in figures]
    assert peaks == sorted(peaks) and len(set(peaks)) > 3
    assert {one["capacity_bytes"] for one in figures} == {CARD} and figures[-1]["ooms"] == 1
    (full,) = dashboard.of("oom")
    assert full["device"] == "sim:0" and full["problem"] is None and full["capacity_bytes"] == CARD
    assert full["free_bytes"] < full["requested_bytes"] and full["allocated_bytes"] > 100 * MIB
    (raised,) = dashboard.of("raised")
    assert (raised["error"], raised["file"], raised["line"]) == ("out_of_memory", LEAK, LEAKING_LINE)
    assert raised["traceback"] in done.stderr and raised["thread"] is None
    steps = [step for message in dashboard.of("steps") for step in message["steps"]]
    assert [step[0] for step in steps] == list(range(len(steps))) and full["step"] == len(steps)
    assert any(step[2] is not None for step in steps), "some loss was read"
    assert dashboard.messages[-1]["type"] == "bye"


def test_every_request_is_told_with_its_stack_and_its_end(leaked: Leaked) -> None:
    dashboard, _done = leaked
    stacks = {number: stack for message in dashboard.of("stacks") for number, stack in message["stacks"].items()}
    rows = [number for message in dashboard.of("requests") for number in message["rows"]]
    requests = list(zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True))
    times = [time_us for time_us, *_rest in requests]
    assert times == sorted(times)
    leaking = [
        size
        for _time_us, _address, size, stack in requests
        if size and any((file, line) == (LEAK, LEAKING_LINE) for file, line, _name in stacks[str(stack)])
    ]
    assert leaking.count(LEAKED) > 10
    assert any(size == 0 for _time_us, _address, size, _stack in requests)


def test_the_growing_line_is_told_with_the_steps_of_its_blocks_before_memory_is_full(leaked: Leaked) -> None:
    dashboard, _done = leaked
    stacks = {number: stack for message in dashboard.of("stacks") for number, stack in message["stacks"].items()}
    before = [kind["type"] for kind in dashboard.messages].index("oom")
    held = [message for message in dashboard.messages[:before] if message["type"] == "held"][-1]
    steps: dict[tuple[str, int], set[int]] = defaultdict(set)
    for size, count, step, number in held["holdings"]:
        place = next(((file, line) for file, line, _name in stacks[str(number)] if file == LEAK), None)
        if place is not None and size == LEAKED * count:
            steps[place].add(step)
    assert steps[LEAK, LEAKING_LINE] >= set(range(1, held["step"])), "one block of every step so far"
    assert not any("simulator" in line[0] for stack in stacks.values() for line in stack), "no line of the simulator"


def test_the_snapshot_of_an_out_of_memory_is_whole_and_ends_with_it(leaked: Leaked) -> None:
    dashboard, _done = leaked
    (full,) = dashboard.of("oom")
    data = Path(full["snapshot"]).read_bytes()
    assert Path(full["snapshot"]).parent == dashboard.folder and data[:2] == bytes([0x80, PROTOCOL])
    snapshot = pickle.loads(data)
    (trace,) = snapshot["device_traces"]
    assert len(trace) == 501 and [event["action"] for event in trace][-2:] == ["oom", "snapshot"]
    assert trace[-2]["device_free"] == full["free_bytes"]
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == full["allocated_bytes"]
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == full["reserved_bytes"]
    assert not list(dashboard.folder.glob("*.part"))


def test_the_steps_before_an_out_of_memory_are_reported_before_it_however_rarely_the_program_is_polled(
    dashboard: Dashboard,
) -> None:
    dashboard.run(LEAK, simulate=[CARD], history=True, history_entries=500, period_s=2 * LIMIT_S)
    kinds = [message["type"] for message in dashboard.messages]
    (full,) = dashboard.of("oom")
    before = dashboard.messages[: kinds.index("oom")]
    steps = [step for message in before if message["type"] == "steps" for step in message["steps"]]
    assert [step[0] for step in steps] == list(range(full["step"])), "a snapshot is explained by its steps"


def test_the_peak_that_the_script_prints_is_that_of_an_unwatched_run(dashboard: Dashboard) -> None:
    alone = f"import sys, runpy, gpudash.simulator as s; s.simulate({4096 * MIB}); sys.argv = [{LEAK!r}, '60']; "
    printed = unwatched("-c", f"{alone}runpy.run_path({LEAK!r})").stdout
    assert printed.startswith("peak ")
    for history in (False, True):
        assert dashboard.run(LEAK, "60", simulate=[4096 * MIB], history=history).stdout == printed
        last = dashboard.of("allocator")[-1]["devices"]["sim:0"]
        assert f"peak {last['peak_allocated_bytes']}\n" == printed


def test_an_out_of_memory_that_is_handled_ends_nothing_and_writes_few_files(dashboard: Dashboard) -> None:
    code = """
import torch
for size in range(40):
    try: torch.empty(2**40 + size, device="sim")
    except torch.OutOfMemoryError: pass
print("goes on")
"""
    done = dashboard.run("-c", code, simulate=[420 * MIB])
    assert (done.stdout, done.returncode) == ("goes on\n", 0)
    assert {full["context_bytes"] for full in dashboard.of("oom")} == {300 * MIB}
    assert len(dashboard.of("oom")) == 40 and not dashboard.of("raised")
    assert len(list(dashboard.folder.glob("*.pickle"))) == 3


def test_a_snapshot_that_cannot_be_written_leaves_the_programs_error_as_it_is(dashboard: Dashboard) -> None:
    done = dashboard.run(LEAK, simulate=[360 * MIB], report=str(dashboard.folder / "nowhere"))
    assert "OutOfMemoryError" in done.stderr and "Traceback (most recent call last)" not in done.stderr[50:]
    (full,) = dashboard.of("oom")
    assert (
        full["snapshot"] is None and full["problem"] == "The snapshot could not be written: No such file or directory."
    )


def test_a_snapshot_is_written_when_it_is_asked_for(dashboard: Dashboard) -> None:
    code = """
import torch, sys
held = torch.ones(1000, device="sim")
sys.stdin.read()
"""
    asked = {"type": "snapshot", "path": str(dashboard.folder / "asked.pickle"), "reason": "key"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=dashboard.environment(simulate=[420 * MIB]), stdin=subprocess.PIPE
    ) as process:
        dashboard.wait_until(lambda: any(m["type"] == "allocator" for m in dashboard.messages))
        dashboard.send(asked)
        dashboard.send({**asked, "path": "/nowhere/asked.pickle"})
        dashboard.wait_until(lambda: sum(m["type"] == "snapshot" for m in dashboard.messages) == 2)
        process.communicate(b"")
    written, refused = dashboard.of("snapshot")
    assert (written["path"], written["problem"], written["reason"]) == (asked["path"], None, "key")
    assert sum(s["allocated_size"] for s in pickle.loads(Path(asked["path"]).read_bytes())["segments"]) == 4096
    assert refused["path"] is None and refused["problem"].startswith("The snapshot could not be written")


def test_a_process_without_a_gpu_says_that_there_is_nothing_to_take(dashboard: Dashboard) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import torch, sys; sys.stdin.read()"],
        env=dashboard.environment(history=True),
        stdin=subprocess.PIPE,
    ) as process:
        dashboard.wait_until(lambda: any(m["type"] == "torch" for m in dashboard.messages))
        dashboard.send({"type": "snapshot", "path": str(dashboard.folder / "x"), "reason": ""})
        dashboard.wait_until(lambda: any(m["type"] == "snapshot" for m in dashboard.messages))
        process.communicate(b"")
    (answer,) = dashboard.of("snapshot")
    assert answer["path"] is None and "uses no GPU" in answer["problem"]
    (told,) = dashboard.of("torch")
    assert "built without CUDA" in told["problem"] and told["history"] is False


def test_cards_that_the_script_makes_itself_are_followed(dashboard: Dashboard) -> None:
    code = """
import torch, time
from gpudash.simulator import simulate
simulate(2**30, 2**29)
held = torch.ones(2**20, device="sim:1")
time.sleep(0.7)
try: torch.empty(2**40, device="sim:1")
except torch.OutOfMemoryError: pass
"""
    assert dashboard.run("-c", code, history=True).returncode == 0
    assert list(dict.fromkeys(told["simulated"] for told in dashboard.of("torch"))) == [False, True]
    assert dashboard.of("allocator")[-1]["devices"]["sim:1"]["allocated_bytes"] == 2**22
    assert [full["device"] for full in dashboard.of("oom")] == ["sim:1"]


def test_cards_that_take_the_place_of_others_are_recorded_too(dashboard: Dashboard) -> None:
    code = """
import torch, time, sys
from gpudash.simulator import simulate
simulate(2**31)
held = torch.ones(2**20, device="sim")
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=dashboard.environment(simulate=[2**30], history=True), stdin=subprocess.PIPE
    ) as process:
        newer = lambda m: m["type"] == "allocator" and m["devices"]["sim:0"]["capacity_bytes"] == 2**31  # noqa: E731
        dashboard.wait_until(lambda: any(map(newer, dashboard.messages)))
        process.communicate(b"")
    assert dashboard.of("torch")[-1]["simulated"] and process.returncode == 0


def test_a_history_that_the_program_records_itself_is_left_as_it_is(dashboard: Dashboard) -> None:
    path = dashboard.folder / "own.pickle"
    code = f"""
import torch
torch.sim.memory._record_memory_history(max_entries=5, context=None, clear_history=True)
held = [torch.ones(10, device="sim") for _ in range(10)]
torch.sim.memory._dump_snapshot({str(path)!r})
"""
    assert dashboard.run("-c", code, simulate=[420 * MIB], history=True).returncode == 0
    (trace,) = pickle.loads(path.read_bytes())["device_traces"]
    assert len(trace) == 6 and not any(event["frames"] for event in trace)


def test_a_forked_child_does_not_show_its_parents_memory_as_its_own(dashboard: Dashboard) -> None:
    code = """
import torch, os, time
held = torch.ones(2**20, device="sim")
for more in (False, True):
    child = os.fork()
    if not child:
        own = torch.ones(2**18, device="sim") if more else None
        time.sleep(0.6)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert dashboard.run("-c", code, simulate=[2**30]).returncode == 0
    quiet, busy = [hello["pid"] for hello in dashboard.of("hello") if hello["forked"]]
    assert not dashboard.of("allocator", quiet)
    told = dashboard.of("allocator", busy)[-1]["devices"]["sim:0"]
    assert (told["allocated_bytes"], told["peak_allocated_bytes"], told["reserved_bytes"]) == (2**20, 2**20, 2 * MIB)
    assert (told["context_bytes"], told["used_bytes"]) == (300 * MIB, 302 * MIB)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"simulate": [2**60]}, "capacity"),
        ({"simulate": [2**30], "simulate_others": -1}, "other processes hold, not -1"),
    ],
)
def test_a_gpu_that_cannot_be_simulated_is_told_in_a_sentence_and_the_program_goes_on(
    dashboard: Dashboard, config: dict[str, object], sentence: str
) -> None:
    done = dashboard.run(str(SCRIPTS / "train.py"), "5", **config)
    (told,) = dashboard.of("torch")
    assert done.returncode == 0 and sentence in told["problem"] and told["problem"].endswith(".")


def test_a_gpu_by_its_name_is_what_the_program_finds_and_what_others_hold_is_missing_on_the_first(
    dashboard: Dashboard,
) -> None:
    code = """
import torch
held = torch.ones(1, device="sim")
print(torch.sim.get_device_name(0), torch.sim.get_device_capability(0))
print(*torch.sim.mem_get_info(0), *torch.sim.mem_get_info(1))
"""
    name, figures = dashboard.run("-c", code, simulate=["l4", 2**30], simulate_others=2**28).stdout.splitlines()
    assert name == "Simulated L4 (8, 9)"
    free, total, second_free, second = map(int, figures.split())
    assert free <= total - 2**28 and second_free > second - 2**29 and second == 2**30
    assert dashboard.of("allocator")[-1]["devices"]["sim:0"]["others_bytes"] == 2**28


def test_it_works_where_gpudash_is_not_installed(dashboard: Dashboard, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for path in Path(torch.__file__).parent.parent.iterdir():
        if "gpudash" not in path.name and not path.name.endswith(".pth"):
            (site / path.name).symlink_to(path)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    env = {"PYTHONPATH": f"{INJECT}{os.pathsep}{site}"}
    bare = [sys._base_executable, "-P"]
    check = subprocess.run(
        [*bare, "-c", "import gpudash"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'gpudash'" in check.stderr
    done = dashboard.run("-P", LEAK, python=bare[0], environment=env, simulate=[420 * MIB], history=True)
    assert "OutOfMemoryError: SIM out of memory" in done.stderr
    (full,) = dashboard.of("oom")
    assert Path(full["snapshot"]).is_file() and dashboard.of("held") and PACKAGE.is_dir()


def test_a_card_that_answers_for_cuda_is_watched_as_itself_and_says_once_what_it_leaves_out(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    script = tmp_path / "says_cuda.py"
    script.write_text(
        "import torch\nassert torch.cuda.is_available()\n"
        "kept = [torch.ones(2**20).cuda() for _ in range(5)]\n"
        "for _ in range(3): torch.cuda.Stream().synchronize()\n"
        "print(kept[0].device, torch.cuda.max_memory_allocated())\n"
        "kept.append(torch.empty(2**40, device='cuda'))\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join((str(INJECT), str(PACKAGE.parent)))}
    done = dashboard.run(str(script), environment=environment, simulate=[CARD], as_cuda=True, history=True)
    assert done.stdout == f"cuda:0 {5 * 4 * MIB}\n" and "OutOfMemoryError: CUDA out of memory" in done.stderr
    (told,) = dashboard.of("torch")
    assert told["simulated"] and told["history"] and told["problem"] is None
    figures = [message["devices"] for message in dashboard.of("allocator")]
    assert {name for devices in figures for name in devices} == {"sim:0"}
    assert figures[-1]["sim:0"]["peak_allocated_bytes"] == 5 * 4 * MIB
    (full,) = dashboard.of("oom")
    assert full["device"] == "sim:0" and full["snapshot"] is not None
    (said,) = dashboard.of("said")
    assert said["text"].startswith("Streams and events of torch.cuda do nothing")
