"""A session runs the user's own program: what it prints, how it ends, what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from gpudash.session import WatchRequest
from gpudash.session.watching.messages.hearing import Hearing
from gpudash.session.watching.output.log import MOST_LINES
from gpudash.session.watching.watch import Watching
from gpudash.telemetry.records import Note, Output, Warning
from tests.unit.session.watched import PATIENCE_S, Watcher

pytestmark = pytest.mark.process


def runs(pid: int) -> bool:
    """Whether a process does; one that waits for the system's first process to take note of its end does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_ends_well_is_a_run_with_its_output(watcher: Watcher) -> None:
    run = watcher.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (run.workload, run.status, run.result["exit_code"]) == ("watch", "finished", 0)
    assert sorted(watcher.session.output.since(0)[0]) == [("stderr", "err"), ("stdout", "out")]
    lines = [line for record in watcher.records if isinstance(record, Output) for line in record.lines]
    assert sorted(lines) == ["err", "out"]
    assert not watcher.session.running
    assert "The program never imported PyTorch." in watcher.notes("program")


def test_the_program_gets_its_folder_and_its_environment_and_no_input(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    watcher.run(
        "import os, sys; print(os.getcwd(), os.environ['MINE'], repr(sys.stdin.read()), os.getsid(0) == os.getpid())",
        environment={"MINE": "of my own"},
    )
    assert watcher.printed() == [f"{tmp_path} of my own '' True"]


def test_an_exception_nobody_catches_fails_the_run_with_its_place(watcher: Watcher, tmp_path: Path) -> None:
    run = watcher.run("def f():\n    raise ValueError('no')\n\nf()\n")
    assert run.status == "failed" and run.error is not None
    assert (run.error.error, run.error.message) == ("ValueError", "ValueError: no (script.py:2).")
    script = str(tmp_path / "script.py")
    assert [(f["file"], f["line"], f["name"]) for f in run.result["frames"]] == [
        (script, 4, "<module>"),
        (script, 2, "f"),
    ]
    assert "ValueError: no" in run.error.details


def test_a_file_that_is_not_python_is_told_with_its_line(watcher: Watcher) -> None:
    run = watcher.run("{this is no Python\n")
    assert run.error is not None
    assert run.error.error == "SyntaxError" and "(script.py:1)" in run.error.message


def test_a_killed_program_is_told_as_killed(watcher: Watcher) -> None:
    run = watcher.run("import os; os.kill(os.getpid(), 9)")
    assert run.status == "failed" and run.error is not None
    assert run.error.message.startswith("script.py was killed by SIGKILL")
    assert run.result["exit_code"] == -9


def test_stop_interrupts_and_the_run_is_cancelled(watcher: Watcher) -> None:
    watcher.watch(
        "import time\ntry:\n    print('on', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved')"
    )
    watcher.until(lambda: watcher.printed() == ["on"])
    watcher.session.stop_run()
    run = watcher.ended()
    assert (run.status, run.result["exit_code"]) == ("cancelled", 0)
    assert watcher.printed() == ["on", "saved"]


STUBBORN = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _frame: print("no", number, flush=True))
print("on", flush=True)
while True:
    time.sleep(0.05)
"""


def test_stop_asked_again_is_firmer_each_time(watcher: Watcher) -> None:
    watcher.watch(STUBBORN)
    watcher.until(lambda: watcher.printed() == ["on"])
    watcher.session.stop_run()
    watcher.until(lambda: watcher.printed() == ["on", "no 2"])
    watcher.session.stop_run()
    watcher.until(lambda: watcher.printed() == ["on", "no 2", "no 15"])
    watcher.session.stop_run()
    assert watcher.ended().result["exit_code"] == -9


def test_closing_the_dashboard_ends_a_program_that_will_not(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for deadline in ("SHUTDOWN_S", "TERMINATE_S"):
        monkeypatch.setattr(f"gpudash.session.watching.program.{deadline}", 0.5)
    watcher.watch(STUBBORN)
    watcher.until(lambda: watcher.printed() == ["on"])
    watcher.until(lambda: bool(watcher.notes("processes")))
    pid = next(record for record in watcher.records if isinstance(record, Note) and record.topic == "processes").details
    assert watcher.session.close()
    assert not runs(pid["pid"])
    run = watcher.session.store.run
    assert run is not None and (run.status, run.result["exit_code"]) == ("cancelled", -9)
    assert run.result["stop"]["text"].startswith("Ended by SIGKILL, sent by gpudash 1 s after it was ended.")


STARTS_OTHERS = """
import os, subprocess, sys
child = [sys.executable, "-c", "import time; time.sleep(60)"]
plain = subprocess.Popen(child)
grouped = subprocess.Popen(child, process_group=0)
if os.fork() == 0:
    if os.fork() == 0:
        os.execv(sys.executable, child)
    os._exit(0)
os.wait()
free = subprocess.Popen(child, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (daemon := os.fork()) == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.execv(sys.executable, child)
    os.write(writing, str(daemon).encode())
    os._exit(0)
os.wait()
print(plain.pid, grouped.pid, free.pid, os.read(reading, 20).decode())
"""


def test_what_a_program_has_started_ends_after_it_and_what_it_set_free_runs_on(watcher: Watcher) -> None:
    watcher.run(STARTS_OTHERS)
    plain, grouped, free, daemon = (int(pid) for pid in watcher.printed()[0].split())
    try:
        assert not runs(plain) and not runs(grouped)
        assert runs(free) and runs(daemon), "a session of their own: they are left alone"
        ended, left = watcher.notes("processes")[-2:]
        assert ended.startswith("The program ended before what it had started") and ended.count("(pid ") == 3
        assert left.startswith("What the program started in a session of its own runs on: python")
        assert left.count("(pid ") == 2 and f"(pid {free})" in left and f"(pid {daemon})" in left
    finally:
        for pid in (free, daemon):
            os.kill(pid, signal.SIGKILL)


SAVES = """
import signal, sys
print("on", flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    print("saving", flush=True)
    open(sys.argv[0] + ".fifo").read()
    print("saved", flush=True)
"""


def test_closing_the_dashboard_waits_for_a_program_that_saves(watcher: Watcher) -> None:
    fifo = watcher.folder / "script.py.fifo"
    os.mkfifo(fifo)
    watcher.watch(SAVES)
    watcher.until(lambda: watcher.printed() == ["on"])
    closing = threading.Thread(target=watcher.session.close)
    closing.start()
    watcher.until(lambda: watcher.printed() == ["on", "saving"])
    assert closing.is_alive()
    fifo.write_text("")
    closing.join()
    run = watcher.session.store.run
    assert run is not None and (run.status, run.result["exit_code"]) == ("cancelled", 0)
    assert watcher.printed() == ["on", "saving", "saved"]


def test_a_program_outlives_a_fault_of_what_watches_it(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = watcher.folder / "script.py.fifo"
    os.mkfifo(fifo)
    watcher.watch("import sys\nprint('on', flush=True)\nopen(sys.argv[0] + '.fifo').read()\nsys.exit(7)")
    watcher.until(lambda: watcher.printed() == ["on"])
    monkeypatch.setattr(Hearing, "hear", lambda *_arguments: 1 / 0)
    failed = "Watching the program failed (ZeroDivisionError: division by zero); it runs on, "
    watcher.until(
        lambda: any(isinstance(record, Warning) and record.text.startswith(failed) for record in watcher.records)
    )
    fifo.write_text("")
    run = watcher.ended()
    assert (run.status, run.result["exit_code"]) == ("failed", 7)


def test_closing_the_dashboard_leaves_a_daemon_alone(watcher: Watcher) -> None:
    watcher.watch(f"{STARTS_OTHERS}\nimport time\nsys.stdout.flush()\ntime.sleep(60)")
    watcher.until(lambda: bool(watcher.printed()))
    plain, _grouped, free, daemon = (int(pid) for pid in watcher.printed()[0].split())
    try:
        assert watcher.session.close()
        assert not runs(plain) and runs(free) and runs(daemon)
    finally:
        for pid in (free, daemon):
            os.kill(pid, signal.SIGKILL)


def test_a_flood_of_output_is_drained_bounded_and_ends_with_its_last_lines(watcher: Watcher) -> None:
    before = psutil.Process().memory_info().rss
    run = watcher.run(
        "import sys\nfor n in range(40):\n    sys.stdout.write(f'{n} ' + 'x' * 98 + '\\n')\n"
        "for n in range(500_000):\n    sys.stdout.write('y' * 99 + '\\n')\nprint('the end')"
    )
    assert run.status == "finished"
    lines, _, lost = watcher.session.output.since(0)
    assert lines[-1].text == "the end"
    assert len(lines) <= MOST_LINES and lost + watcher.session.output.left_out > 0
    records = [record for record in watcher.records if isinstance(record, Output)]
    told = sum(len(record.lines) for record in records)
    assert told < 10_000
    assert records[-1].lines[-1] == "the end"
    assert told + sum(record.lost for record in records) >= 400_000
    assert psutil.Process().memory_info().rss - before < 100 * 2**20


def test_a_program_that_is_not_heard_is_told_so(watcher: Watcher) -> None:
    script = watcher.folder / "script.py"
    script.write_text("raise ValueError('no')")
    watcher.session.watch(WatchRequest([sys.executable, "-I", str(script)]))
    run = watcher.ended()
    assert watcher.notes("program")[0].startswith("Nothing was heard of the program")
    assert run.error is not None and run.error.message == "ValueError: no (script.py:1)."


def test_what_cannot_be_started_is_refused_and_another_program_can_be(watcher: Watcher, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(b"\x7fNOT A PROGRAM")
    tool.chmod(0o755)
    with pytest.raises(ValueError, match="not a program this system can run"):
        watcher.session.watch(WatchRequest([str(tool)]))
    with pytest.raises(ValueError, match="There is no command"):
        watcher.session.watch(WatchRequest([]))
    assert not watcher.session.running
    assert watcher.run("pass").status == "finished"


NONSENSE = """
import itertools, json, os, socket, struct
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["GPUDASH_SOCKET"])
def say(message):
    body = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)
say({"type": "hello", "protocol": 1, "argv": 5, "python": [], "rank": {}})
kinds = ("torch", "allocator", "steps", "stacks", "held", "oom", "raised", "snapshot", "lost", "bye", "hello", "?")
keys = ("version", "devices", "device", "steps", "stacks", "step", "holdings", "snapshot", "path", "problem", "count",
        "error", "message", "file", "line", "traceback", "time_us", "requested_bytes", "free_bytes", "cpu_s", "argv")
values = (None, 5, -1, 2**70, "x", [], [[]], [1, 2, 3, 4], {}, {"sim:0": {"allocated_bytes": [], "reserved_bytes": 2}},
          {"sim:0": {"allocated_bytes": 1, "reserved_bytes": 2, "uuid": []}}, {"1": [[1, 2, 3]]}, True, 1e999)
for kind, value in itertools.product(kinds, values):
    say({"type": kind, **dict.fromkeys(keys, value)})
print("said")
"""


def test_nonsense_over_the_socket_harms_nobody(watcher: Watcher) -> None:
    run = watcher.run(NONSENSE)
    assert (run.status, run.result["exit_code"]) == ("finished", 0)
    assert watcher.printed() == ["said"]
    assert not [record for record in watcher.records if isinstance(record, Warning) and record.device == "session"]


def test_one_run_at_a_time(watcher: Watcher) -> None:
    watcher.watch("import time; time.sleep(60)")
    with pytest.raises(RuntimeError, match="A run is in progress"):
        watcher.session.watch(WatchRequest([sys.executable, "-c", ""]))
    watcher.session.stop_run()
    assert watcher.ended().status == "cancelled"


def test_the_programs_memory_is_shown_in_place_of_ours(watcher: Watcher) -> None:
    run = watcher.run("block = bytearray(300 * 2**20); import time; time.sleep(1.5)")
    assert run.memory.used_bytes is not None and run.memory.used_bytes > 300 * 2**20


def test_a_snapshot_is_asked_only_of_what_has_memory_on_a_gpu(watcher: Watcher) -> None:
    with pytest.raises(RuntimeError, match="No program is being watched"):
        watcher.session.save_snapshot()
    watcher.watch("import time; time.sleep(60)")
    with pytest.raises(RuntimeError, match="no memory of a GPU so far"):
        watcher.session.save_snapshot()
    watcher.session.stop_run()
    watcher.ended()


def test_no_socket_no_watching(watcher: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(ValueError, match="XDG_RUNTIME_DIR"):
        watcher.watch("pass")
    assert list(long.iterdir()) == []


def test_a_program_that_was_over_before_anybody_looked_is_heard_all_the_same(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = Watching._attend

    def late(watching: Watching) -> int:
        assert watching._program._process.wait(PATIENCE_S) == 0
        return attend(watching)

    monkeypatch.setattr(Watching, "_attend", late)
    watcher.run("print(1)")
    assert watcher.notes("program") == ["The program never imported PyTorch."]
