"""A program that runs already is watched: from inside where there is a way in, and left as it was."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.session.watching.attaching import entry_methods
from gpudash.session.watching.attaching.addresses import NoAddressError, addresses, mappings
from gpudash.session.watching.attaching.attached import save_snapshot_of
from gpudash.session.watching.attaching.entry_methods import WayClosedError
from tests.programs import program
from tests.unit.agent.dashboard import INJECT, OTHERS, PACKAGE, version_of
from tests.unit.session.watched import PATIENCE_S, Watcher

pytestmark = pytest.mark.process

STATE = """
import json, logging, os, sys, threading, time

def state():
    optim = sys.modules.get("torch.optim.optimizer")
    loading = sys.modules.get("torch.utils.data.dataloader")
    logger = logging.Logger.manager.loggerDict.get("gpudash")
    return {
        "finders": [str(finder) for finder in sys.meta_path],
        "hook": repr(threading.excepthook),
        "logger": None if logger is None else [type(logger).__name__, hasattr(type(logger), "_gpudash_listens")],
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "modules": sorted(name for name in sys.modules if "gpudash" in name),
        "steps": [] if optim is None else list(map(str, optim._global_optimizer_post_hooks.values())),
        "before": [] if optim is None else list(map(str, optim._global_optimizer_pre_hooks.values())),
        "backward": None if optim is None else repr(sys.modules["torch.autograd"]._engine_run_backward),
        "batch": None if loading is None else repr(loading._BaseDataLoaderIter.__next__),
        "watched": list(getattr(sys, "_gpudash_lasting", {}).get("now", {})),
    }

def settled(wanted):
    deadline = time.monotonic() + 60
    while (now := state()) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return now

for line in sys.stdin:
    exec(line)
    sys.stdout.flush()
"""
"""Does what it is told, line by line, and tells what somebody who comes and goes could have changed."""

WITH_A_DOOR = {"GPUDASH_AGENT": "1", "PYTHONPATH": str(INJECT)}


class Running:
    """A program that waits for lines of Python."""

    def __init__(self, python: str, environment: dict[str, str], code: str = STATE) -> None:
        used = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**used, "OMP_NUM_THREADS": "1", **environment},
        )
        self.pid = self.process.pid

    def do(self, line: str) -> None:
        """Have it execute a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def report(self, expression: str) -> Any:
        """What an expression is there."""
        assert self.process.stdout is not None
        self.do(f"print(json.dumps({expression}))")
        return json.loads(self.process.stdout.readline())

    def forked(self) -> tuple[int, int]:
        """A child that it forks: its number, and how many threads it has."""
        assert self.process.stdout is not None
        self.do(FORK)
        child, threads = json.loads(self.process.stdout.readline())
        return child, threads

    def end(self) -> tuple[str, str, int]:
        """Its last words and its exit code."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return out, err, self.process.returncode


@pytest.fixture
def start() -> Iterator[Any]:
    """Starts programs that are ended with the test."""
    started: list[Running] = []

    def begin(environment: dict[str, str], python: str = sys.executable, code: str = STATE) -> Running:
        started.append(Running(python, environment, code))
        if code == STATE:
            assert started[-1].report("1") == 1
        return started[-1]

    yield begin
    for one in started:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(one.pid).children(recursive=True):
                child.kill()
        one.process.kill()
        one.process.communicate(timeout=PATIENCE_S)


def is_inside(watcher: Watcher) -> bool:
    return any("gpudash is inside" in note for note in watcher.notes("program"))


SEEN_FROM_OUTSIDE = "Seen from outside only"


def unseen(watcher: Watcher) -> str:
    """Why a program is seen from outside only, once that is told."""
    watcher.until(lambda: any(SEEN_FROM_OUTSIDE in note for note in watcher.notes("program")))
    return next(note for note in watcher.notes("program") if SEEN_FROM_OUTSIDE in note)


TRAIN = "import torch; m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), 0.1); o.step()"
FORK = (
    "pid = os.fork() or "
    "(print(json.dumps([os.getpid(), len(os.listdir('/proc/self/task'))]), flush=True), time.sleep(600))"
)
LOG = "logging.getLogger('gpudash').info('step', extra={'step': 7, 'loss': 0.5})"


def test_a_program_is_entered_by_its_door_followed_and_left_as_it_was(watcher: Watcher, start: Any) -> None:
    running = start(WITH_A_DOOR)
    running.do(TRAIN)
    before = running.report("state()")
    for turn in (1, 2):
        watcher.session.attach(running.pid)
        watcher.until(lambda turn=turn: len([n for n in watcher.notes("program") if "PyTorch" in n]) == turn)
        inside = running.report("state()")
        assert inside["steps"] and inside["watched"] and inside["modules"] == before["modules"]
        for _ in range(3):
            running.do("o.step()")
        if turn == 2:
            running.do(LOG)
        assert running.report("threading.active_count()") == 1
        watcher.until(lambda turn=turn: (run := watcher.session.store.run) and run.run_id == turn and run.step)
        watcher.session.stop_run()
        run = watcher.ended()
        assert run.status == "cancelled" and run.result["attached"] == {"way": "door", "closed": {}}
        after = before if turn == 1 else {**before, "logger": ["Logger", False]}
        assert running.report(f"settled({after!r})") == after
    assert running.end()[1:] == ("", 0)


def test_where_the_steps_of_one_that_runs_already_spend_their_time_is_known(
    watcher: Watcher, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(WITH_A_DOOR)
    running.do(f"{TRAIN}; loader = torch.utils.data.DataLoader(torch.ones(4, 2))")
    assert running.report("1") == 1
    watcher.session.attach(running.pid)
    watcher.until(lambda: any("PyTorch" in note for note in watcher.notes("program")))
    for _ in range(4):
        running.do("m(next(iter(loader))).sum().backward(); o.step()")
    assert running.report("1") == 1
    watcher.session.stop_run()
    run = watcher.ended()
    assert set(run.stages) == {"input", "forward", "backward", "optimizer", "other"}
    assert {stage.count for stage in run.stages.values()} == {3}
    assert watcher.notes("input") == ["The program's DataLoader has num_workers=0, pin_memory=False."]
    assert not [record for record in caplog.records if "met an error" in record.message]


def test_the_lines_for_a_shell_name_the_folder_that_opens_a_door() -> None:
    before, _, after = entry_methods.PREPARED["PYTHONPATH"].partition("$")
    assert [Path(word) for word in shlex.split(before)] == [INJECT]
    assert (entry_methods.PREPARED["GPUDASH_AGENT"], after) == ("1", "{PYTHONPATH:+:$PYTHONPATH}")


def test_a_script_may_open_the_door_itself_and_a_forked_child_has_none(watcher: Watcher, start: Any) -> None:
    running = start({"PYTHONPATH": str(PACKAGE.parent)})
    running.do("from gpudash.agent import open_attach_socket")
    assert running.report("[open_attach_socket(), open_attach_socket()]") == [True, True]
    child, threads = running.forked()
    assert threads == 1
    watcher.session.attach(child)
    assert "It was not started with GPUDASH_AGENT=1." in unseen(watcher)
    watcher.session.stop_run()
    watcher.ended()
    watcher.session.attach(running.pid)
    watcher.until(lambda: is_inside(watcher))
    other, _ = running.forked()
    heard = watcher.session.runs.watched._hearing.server  # type: ignore[union-attr]
    watcher.until(lambda: {peer.pid for peer in heard.peers} == {running.pid, other})
    watcher.session.stop_run()
    watcher.ended()
    for process in (child, other):
        os.kill(process, signal.SIGKILL)
    assert running.end()[1:] == ("", 0)


def test_the_programs_end_and_its_exception_are_its_own(watcher: Watcher, start: Any) -> None:
    running = start(WITH_A_DOOR)
    watcher.session.attach(running.pid)
    watcher.until(lambda: is_inside(watcher))
    running.do("raise ValueError('no')")
    assert running.end()[2] == 1
    run = watcher.ended()
    assert run.status == "failed" and run.error is not None and run.error.error == "ValueError"
    assert run.result["exit_code"] is None


def test_a_dashboard_that_is_killed_leaves_the_program_as_it_was(watcher: Watcher, start: Any) -> None:
    running = start(WITH_A_DOOR)
    before = running.report("state()")
    watcher.session.attach(running.pid)
    watcher.until(lambda: is_inside(watcher))
    for peer in watcher.session.runs.watched._hearing.server.peers:  # type: ignore[union-attr]
        peer.connection.shutdown(2)
    assert running.report(f"settled({before!r})") == before
    watcher.session.stop_run()
    watcher.ended()


def test_only_one_is_inside_at_a_time(watcher: Watcher, start: Any) -> None:
    running = start(WITH_A_DOOR)
    running.do("now = sys.__dict__.setdefault('_gpudash_lasting', {'given': set(), 'now': {}})['now']")
    running.do("now['owner'] = lambda: True")
    watcher.session.attach(running.pid)
    assert "No door: another gpudash is inside already" in unseen(watcher)
    watcher.session.stop_run()
    watcher.ended()
    running.do("now.clear()")
    watcher.session.attach(running.pid)
    watcher.until(lambda: is_inside(watcher))
    watcher.session.stop_run()
    watcher.ended()


SIMULATED = "import gpudash.simulator as s; s.simulate(2**30); import torch; kept = torch.ones(2**20, device='sim')"


def test_a_snapshot_is_taken_of_a_running_program_which_is_left_as_it_was(
    runtime: Path, start: Any, tmp_path: Path
) -> None:
    running = start({**WITH_A_DOOR, "PYTHONPATH": f"{INJECT}{os.pathsep}{PACKAGE.parent}"})
    with pytest.raises(ValueError, match="not imported PyTorch"):
        save_snapshot_of(running.pid, tmp_path / "none.pickle")
    running.do(SIMULATED)
    before = running.report("state()")
    path = tmp_path / "snapshot.pickle"
    assert save_snapshot_of(running.pid, path).way == "door"
    found = pickle.loads(path.read_bytes())
    assert sum(segment["total_size"] for segment in found["segments"]) >= 4 * 2**20
    assert running.report(f"settled({before!r})") == before
    assert list(tmp_path.iterdir()) == [path] and list(runtime.iterdir()) == []
    outside = start({})
    with pytest.raises(ValueError, match="It was not started with GPUDASH_AGENT=1"):
        save_snapshot_of(outside.pid, path)


def test_python_314_is_entered_as_it_is(watcher: Watcher, start: Any) -> None:
    python = shutil.which("python3.14")
    if python is None:
        pytest.skip("there is no Python 3.14")
    running = start({}, python)
    before = running.report("state()")
    for _ in range(2):
        watcher.session.attach(running.pid)
        watcher.until(lambda: watcher.session.store.run is not None)
        running.do("for _ in range(1000): time.sleep(0.001)")
        watcher.until(lambda: is_inside(watcher))
        watcher.session.stop_run()
        assert watcher.ended().result["attached"]["way"] == "remote_exec"
        assert running.report(f"settled({before!r})") == before
        watcher.records.clear()
    assert running.end()[1:] == ("", 0)


TRAINING = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
made, inputs = 0, torch.randn(32, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())

def trained(steps):
    global made
    for _ in range(steps):
        loss = (model(inputs) - inputs[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made += steps
    return loss.item().hex()
"""


def test_a_training_in_python_314_is_followed_and_has_the_losses_of_one_that_is_left_alone(
    watcher: Watcher, start: Any
) -> None:
    python = shutil.which("python3.14")
    torch = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if python is None or subprocess.run([python, "-c", torch], check=False).returncode:
        pytest.skip("there is no Python 3.14 with torch")
    running, alone = start({}, python), start({}, python)
    for one in (running, alone):
        one.do(f"exec({TRAINING!r})")
        one.report("trained(1)")
    before = running.report("state()")
    for _ in range(2):
        watcher.session.attach(running.pid)
        running.do("while not state()['watched']: trained(1)")
        watcher.until(lambda: any("PyTorch" in note for note in watcher.notes("program")))
        running.report("trained(10)")
        watcher.until(lambda: bool((run := watcher.session.store.run) and run.step))
        watcher.session.stop_run()
        assert watcher.ended().result["attached"]["way"] == "remote_exec"
        assert running.report(f"settled({before!r})") == before
        watcher.records.clear()
    loss, made = running.report("[trained(1), made]")
    assert alone.report(f"trained({made - 1})") == loss
    assert [one.end()[1:] for one in (running, alone)] == [("", 0), ("", 0)]


def test_a_debugger_goes_inside_where_it_is_asked_for(watcher: Watcher, start: Any) -> None:
    program("gdb")
    running = start({})
    before = running.report("state()")
    watcher.session.attach(running.pid, by_gdb=True)
    running.do("while not state()['watched']: time.sleep(0.01)")
    watcher.until(lambda: bool(watcher.notes("program")))
    if "ptrace" in (told := watcher.notes("program")[-1]):
        pytest.skip(told)
    watcher.until(lambda: is_inside(watcher))
    watcher.session.stop_run()
    assert watcher.ended().result["attached"]["way"] == "gdb"
    assert running.report(f"settled({before!r})") == before
    assert running.end()[1:] == ("", 0)


def entered_by_gdb(start: Any, function: str) -> tuple[Any, Any, int, int]:
    """A program, what gdb is to call in it and where, and the address of another function of its C library."""
    program("gdb")
    running = start({})
    try:
        calls, place = entry_methods._calls_of(running.pid)
    except WayClosedError as error:
        pytest.skip(str(error))
    libc = next(one.path for one in mappings(running.pid) if entry_methods._LIBC.search(one.path))
    (address,) = addresses(running.pid, libc, (function,), Path(libc))
    return running, calls, place, address


def test_a_call_in_which_a_debugger_waits_for_ever_is_taken_back_and_the_program_lives_on(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, calls, place, pause = entered_by_gdb(start, "pause")
    monkeypatch.setattr(entry_methods, "HELPER_S", 2.0)
    with pytest.raises(WayClosedError, match="gdb took longer than 2 s"):
        entry_methods._debugged(running.pid, replace(calls, add_pending_call=pause), place, "raise SystemExit")
    assert running.report("'lives'") == "lives"
    assert running.end()[1:] == ("", 0)


def test_where_no_memory_is_mapped_nothing_is_called_and_the_program_lives_on(start: Any) -> None:
    running, calls, place, getpid = entered_by_gdb(start, "getpid")
    output = entry_methods._debugged(running.pid, replace(calls, mmap=getpid), place, "raise SystemExit")
    assert entry_methods._debugger_refusal(output) is not None
    assert "target description" not in output, "gdb says so where it does not take ours"
    assert running.report("'lives'") == "lives"
    assert running.end()[1:] == ("", 0)


def test_functions_of_a_running_program_are_found_by_its_maps_and_files() -> None:
    wanted = ("Py_AddPendingCall", "PyRun_SimpleString")
    true = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in wanted]
    place = next(one.path for one in mappings(os.getpid()) if one.begins <= (true[0] or 0) < one.ends)
    assert addresses(os.getpid(), place, wanted, Path(place)) == true
    with pytest.raises(NoAddressError, match="no Py_Nonsense is found in it"):
        addresses(os.getpid(), place, ("Py_Nonsense",), Path(place))


def test_a_library_that_was_replaced_on_disk_is_not_trusted(tmp_path: Path) -> None:
    libc = next(one.path for one in mappings(os.getpid()) if entry_methods._LIBC.search(one.path))
    whole = Path(libc).read_bytes()
    begins = next(one.begins - one.offset for one in mappings(os.getpid()) if one.path == libc)
    at = addresses(os.getpid(), libc, ("mmap",), Path(libc))[0] - begins
    other = tmp_path / "libc.so"
    other.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
    with pytest.raises(NoAddressError, match="which was replaced since"):
        addresses(os.getpid(), libc, ("mmap",), other)
    for broken, words in (
        (whole[:60], "cannot be read"),
        (whole[:4096], "cannot be read"),
        (b"", "is empty"),
        (b"#!", "64 bits"),
    ):
        other.write_bytes(broken)
        with pytest.raises(NoAddressError, match=words):
            addresses(os.getpid(), libc, ("mmap",), other)


def test_without_a_debugger_none_is_promised(watcher: Watcher, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start({})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="There is no gdb on PATH"):
        watcher.session.attach(running.pid, by_gdb=True)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ptrace: Operation not permitted.", "ptrace_scope"),
        ("$1 = 0\nsomething else.\n", "something else"),
        ("", "it does not say why"),
        ("$1 = 1\n$2 = -1\n[Inferior 1 (process 7) detached]\n", "it does not say why"),
        ("$1 = 1\n$2 = 0\n[Inferior 1 (process 7) detached]\n", None),
    ],
    ids=["not permitted", "odd", "silent", "full", "done"],
)
def test_what_a_debugger_says_is_told_in_a_sentence(output: str, words: str | None) -> None:
    found = entry_methods._debugger_refusal(output)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ("PermissionError: [Errno 1] Operation not permitted", "ptrace_scope"),
        ("RuntimeError: Remote debugging is not enabled in the remote process", "PYTHON_DISABLE_REMOTE_DEBUG"),
        ("RuntimeError: Can't find the main thread in the remote process", "main thread has ended"),
        ("OSError: odd.", "its Python refused (OSError: odd)"),
    ],
    ids=["not permitted", "disabled", "no main thread", "odd"],
)
def test_what_a_python_says_that_refuses_is_told_in_a_sentence(errors: str, words: str) -> None:
    assert words in entry_methods._remote_refusal(f"Traceback (most recent call last):\n{errors}\n")


def test_what_is_no_python_or_too_old_is_seen_from_outside(watcher: Watcher, start: Any) -> None:
    with psutil.Popen(["sleep", "600"]) as process:
        try:
            watcher.session.attach(process.pid)
            assert "it is no Python program" in unseen(watcher)
        finally:
            process.kill()
    assert watcher.ended().result["attached"]["way"] == "outside"
    old = next((str(path) for path in OTHERS if (3, 0) <= version_of(str(path)) < entry_methods.OLDEST), None)
    if old is None:
        pytest.skip("there is no Python that is too old")
    watcher.records.clear()
    running = start(WITH_A_DOOR, old, "input()")
    watcher.session.attach(running.pid, by_gdb=shutil.which("gdb") is not None)
    assert "its Python is 3." in unseen(watcher)
    watcher.session.stop_run()
    watcher.ended()


def test_another_users_process_and_a_containers_are_not_entered(
    watcher: Watcher, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(WITH_A_DOOR)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12_345)
        watcher.session.attach(running.pid)
        assert "only its owner may go inside" in unseen(watcher)
        watcher.session.stop_run()
        watcher.ended()
    watcher.records.clear()
    unshare = program("unshare")
    command = [unshare, "--user", "--pid", "--fork", "sleep", "600"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        children: list[psutil.Process] = []
        try:
            watcher.until(lambda: process.poll() is not None or bool(psutil.Process(process.pid).children()))
            children = [] if process.poll() is not None else psutil.Process(process.pid).children()
            if not children:
                pytest.skip("no namespaces can be made here")
            watcher.session.attach(children[0].pid)
            found = unseen(watcher)
            assert "it runs in a container" in found or "only its owner" in found
        finally:
            for child in children:
                child.kill()
            process.kill()
    watcher.ended()


def test_a_process_is_watched_from_outside_until_it_ends(watcher: Watcher) -> None:
    with psutil.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as process:
        process.stdout.readline()
        watcher.session.attach(process.pid)
        watcher.until(lambda: watcher.session.store.run is not None and len(watcher.notes("program")) > 0)
        with pytest.raises(RuntimeError, match="from outside cannot be asked"):
            watcher.session.save_snapshot()
        process.communicate(b"\n")
    ended = watcher.ended()
    assert (ended.status, ended.result["exit_code"]) == ("finished", None)
    assert ended.spec["pid"] == process.pid and "input()" in " ".join(ended.spec["command"])
    first, last = watcher.notes("program")
    assert "not its allocator, steps, losses and stacks" in first
    assert last.endswith("has ended; its exit code cannot be seen from outside.")


def test_a_program_that_ends_before_it_is_entered_is_said_to_have_ended(tmp_path: Path) -> None:
    with psutil.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    entered = entry_methods.enter(process, tmp_path / "agent", "{}", lambda _seconds: False)
    assert entered.why_not == "It cannot be entered: it has ended meanwhile."


def test_a_program_that_is_killed_as_it_is_entered_is_said_to_have_ended(start: Any, tmp_path: Path) -> None:
    running = start(WITH_A_DOOR)

    def killed_meanwhile(_seconds: float) -> bool:
        running.process.kill()
        return not running.process.wait()

    entered = entry_methods.enter(psutil.Process(running.pid), tmp_path / "agent", "{}", killed_meanwhile)
    assert entered.why_not == "It cannot be entered: it has ended meanwhile."


def test_a_program_that_comes_by_after_a_long_call_is_said_to_be_seen_from_inside(
    watcher: Watcher, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_methods, "ATTACH_SOCKET_S", 0.2)
    running = start(WITH_A_DOOR)
    # a call that keeps Python to itself until something is there to be read
    running.do("import ctypes; print(1, flush=True); ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(2), 2)")
    assert running.process.stdout.readline() == "1\n"
    watcher.session.attach(running.pid)
    watcher.until(lambda: any(SEEN_FROM_OUTSIDE in note for note in watcher.notes("program")) or is_inside(watcher))
    running.do("x")
    watcher.until(lambda: is_inside(watcher))
    watcher.session.stop_run()
    assert watcher.ended().result["attached"]["way"] == "door"
    assert running.end()[1:] == ("", 0)


def test_a_stopped_program_is_left_alone_and_stays_stopped(watcher: Watcher, start: Any) -> None:
    running = start(WITH_A_DOOR)
    process = psutil.Process(running.pid)
    process.suspend()
    watcher.until(lambda: process.status() == psutil.STATUS_STOPPED)
    watcher.session.attach(running.pid)
    assert f"It cannot be entered: it is stopped; let it go on (kill -CONT {running.pid})" in unseen(watcher)
    watcher.session.stop_run()
    assert watcher.ended().result["attached"]["way"] == "outside"
    assert process.status() == psutil.STATUS_STOPPED
    process.resume()
    assert running.report("1") == 1


def test_a_program_that_replaces_itself_is_said_to_be_seen_from_outside_again(watcher: Watcher, start: Any) -> None:
    running = start(WITH_A_DOOR)
    watcher.session.attach(running.pid)
    watcher.until(lambda: is_inside(watcher))
    running.do("os.execv(sys.executable, [sys.executable, '-c', 'input()'])")
    watcher.until(lambda: any("dropped gpudash" in note for note in watcher.notes("program")))
    assert len([note for note in watcher.notes("program") if "dropped gpudash" in note]) == 1
    assert running.end()[2] == 1, "its end is the new program's own, which has no more to read"
    assert watcher.ended().status == "finished"


def test_looking_away_leaves_the_process_running(watcher: Watcher) -> None:
    with psutil.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1) as process:
        process.stdout.readline()
        watcher.session.attach(process.pid)
        watcher.session.stop_run()
        assert watcher.ended().status == "cancelled"
        assert process.is_running()
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("pid", "words"),
    [(os.getpid(), "this gpudash itself"), (0, "is no process number"), (-5, "is no process number")],
    ids=["itself", "zero", "negative"],
)
def test_a_process_that_is_none_to_watch_is_refused(watcher: Watcher, pid: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        watcher.session.attach(pid)
    assert not watcher.session.running


def test_a_process_that_is_gone_or_not_ours_is_refused(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    with psutil.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    with pytest.raises(ValueError, match=f"There is no process {process.pid}"):
        watcher.session.attach(process.pid)
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    with pytest.raises(ValueError, match="not to you; only your own can be watched"):
        watcher.session.attach(1)
