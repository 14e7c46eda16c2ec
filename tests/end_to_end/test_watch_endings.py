"""Watched programs that hang, are killed, flood the terminal or outlive the dashboard: nothing is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudash.cli.watch import SAME_PRESS_S
from gpudash.session.watching.program import SHUTDOWN_S, TERMINATE_S
from tests.end_to_end.conftest import environment

SCRIPTS = Path(__file__).parent / "watched_scripts"
PATIENCE_S = 60.0
MIB = 2**20


class Watch:
    """``gpudash watch`` in a process of its own, and what can be seen of it."""

    def __init__(self, home: Path, runtime: Path) -> None:
        self.runtime = runtime
        self._environment = environment(home, {"XDG_RUNTIME_DIR": str(runtime)})
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gpudash", "watch", "--no-record", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        process = subprocess.Popen(command, env=self._environment, **streams)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def watch(home: Path, runtime: Path) -> Iterator[Watch]:
    found = Watch(home, runtime)
    yield found
    found.end()


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def program_of(process: subprocess.Popen[bytes], script: str) -> psutil.Process:
    """The watched program, once it runs."""
    found: list[psutil.Process] = []

    def running() -> bool:
        found[:] = [child for child in family(process.pid) if script in " ".join(child.cmdline())]
        return bool(found)

    until(running)
    return found[0]


def family(pid: int) -> Sequence[psutil.Process]:
    try:
        return [child for child in psutil.Process(pid).children(recursive=True) if child.status() != "zombie"]
    except psutil.Error:
        return []


def runs(process: psutil.Process) -> bool:
    """Whether it does; one that waits for the system's first process to take note of its end does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def document(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    stdout, _ = process.communicate(timeout=PATIENCE_S)
    found: dict[str, Any] = json.loads(stdout)
    return found


def line_of(process: subprocess.Popen[bytes], words: bytes) -> bytes:
    """The next line on stderr that begins with ``words``."""
    assert process.stderr is not None
    return next((line for line in process.stderr if line.startswith(words)), b"")


def lines_of(process: subprocess.Popen[bytes], *words: bytes) -> list[bytes]:
    """The next line on stderr for each of ``words`` that begins with them, in whatever order they come."""
    assert process.stderr is not None
    found: dict[bytes, bytes] = {}
    while len(found) < len(words):
        line = process.stderr.readline()
        assert line, f"it ended after {list(found.values())}"
        found |= {word: line for word in words if line.startswith(word) and word not in found}
    return [found[word] for word in words]


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stderr is not None
    return process.stderr.readline()


@contextmanager
def heeding_hangups(how: signal.Handlers) -> Iterator[None]:
    """What is started here inherits this, whatever the tests themselves were started with (nohup)."""
    before = signal.signal(signal.SIGHUP, how)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


SAVES = """
import signal, sys
heard = []
def interrupt(number, _frame):
    heard.append(number)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
print("training", file=sys.stderr, flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    print("saving", file=sys.stderr, flush=True)
    sys.stdin.readline()
    print(f"saved after {len(heard)} SIGINT", file=sys.stderr, flush=True)
"""
"""A program that saves on KeyboardInterrupt until it is given a line."""

NAME = Path(sys.executable).name

NOT_ENDED = f"gpudash: {NAME} has not ended 5 s after SIGINT. It may take as long as it needs. ".encode()
"""Said once the program has been waited for so long."""


def goes_on(process: subprocess.Popen[bytes]) -> bool:
    """Whether it does, a moment after a Ctrl+C: the next one is another press."""
    try:
        process.wait(2 * SAME_PRESS_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def give_line(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_a_program_that_saves_on_ctrl_c_gets_one_signal_and_as_long_as_it_takes(watch: Watch) -> None:
    process = watch.start("--json", "--", sys.executable, "-c", SAVES, stdin=subprocess.PIPE)
    assert first_line(process) == b"training\n"
    process.send_signal(signal.SIGINT)
    said = line_of(process, f"gpudash: SIGINT sent to {NAME} after your Ctrl+C. It may take as long".encode())
    assert said.endswith(b"A second Ctrl+C sends SIGTERM, a third SIGKILL.\n")
    assert line_of(process, NOT_ENDED).endswith(b"A second Ctrl+C sends SIGTERM, a third SIGKILL.\n")
    give_line(process)
    assert line_of(process, b"saved") == b"saved after 1 SIGINT\n"
    found = document(process)
    assert (process.returncode, found["status"], found["exit_code"]) == (0, "cancelled", 0)
    assert found["result"]["stop"] == {
        "text": "Ended with exit code 0; gpudash had sent SIGINT after your Ctrl+C.",
        "signals": [{"signal": "SIGINT", "when": "after your Ctrl+C"}],
    }


def test_a_ctrl_c_on_the_terminal_reaches_the_program_once(watch: Watch) -> None:
    terminal, theirs = os.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    controlling = {"preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
    process = watch.start("--", sys.executable, "-c", SAVES, **streams, **controlling)
    os.close(theirs)
    shown = b""

    def shows(words: bytes) -> bool:
        nonlocal shown
        while words not in shown:
            shown += os.read(terminal, 65536)
        return True

    assert shows(b"training")
    os.write(terminal, b"\x03")  # what the key sends: the terminal signals its whole foreground process group
    assert shows(b"saving") and shows(b"a third SIGKILL.")
    os.write(terminal, b"\n")
    assert shows(b"saved after 1 SIGINT")
    assert shows(b"end: Ended with exit code 0; gpudash had sent SIGINT after your Ctrl+C.")
    assert process.wait(PATIENCE_S) == 0
    os.close(terminal)


STUBBORN = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _frame: print("heard", number, flush=True))
print("stubborn", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_second_ctrl_c_terminates_and_a_third_one_kills(watch: Watch) -> None:
    process = watch.start("--json", "--", sys.executable, "-c", STUBBORN)
    assert first_line(process) == b"stubborn\n"
    for _ in range(3):
        process.send_signal(signal.SIGINT)  # a key that is held down: one press
    assert line_of(process, b"heard") == b"heard 2\n"
    assert goes_on(process)
    process.send_signal(signal.SIGINT)
    heard, said = lines_of(process, b"heard", b"gpudash: SIGTERM")
    assert heard == b"heard 15\n"
    assert said.endswith(b"after your second Ctrl+C. A third Ctrl+C sends SIGKILL.\n")
    assert goes_on(process)
    process.send_signal(signal.SIGINT)
    found = document(process)
    assert found["exit_code"] == -9
    assert found["result"]["stop"]["text"] == "Ended by SIGKILL, sent by gpudash after your third Ctrl+C."
    assert [one["signal"] for one in found["result"]["stop"]["signals"]] == ["SIGINT", "SIGTERM", "SIGKILL"]


LAUNCHES = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SAVES!r}])
child.wait()
"""
"""A launcher that ends at once on Ctrl+C, while what it has started saves."""


def test_what_a_launcher_leaves_behind_on_ctrl_c_may_save_too(watch: Watch) -> None:
    process = watch.start("--json", "--", sys.executable, "-c", LAUNCHES, stdin=subprocess.PIPE)
    assert line_of(process, b"training")
    process.send_signal(signal.SIGINT)
    assert b" has not ended 5 s after SIGINT" in line_of(process, f"gpudash: what {NAME} has started, ".encode())
    give_line(process)
    assert line_of(process, b"saved") == b"saved after 1 SIGINT\n"
    found = document(process)
    assert found["status"] == "cancelled"
    assert any("ended before what it had started, which was waited for: python" in text for text in found["notes"])


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGTERM, "after gpudash was sent SIGTERM"), (signal.SIGHUP, "after the terminal was closed")],
)
def test_a_gpudash_that_is_ended_gives_the_program_a_deadline_and_says_so(watch: Watch, number: int, why: str) -> None:
    with heeding_hangups(signal.SIG_DFL):
        process = watch.start("--json", "--", sys.executable, "-c", SAVES, stdin=subprocess.PIPE)
    assert first_line(process) == b"training\n"
    process.send_signal(number)
    said = f"gpudash: SIGINT sent to {NAME} {why}. SIGTERM follows in 10 s.\n"
    assert line_of(process, b"gpudash: SIGINT") == said.encode()
    give_line(process)
    found = document(process)
    assert (process.returncode, found["status"], found["exit_code"]) == (0, "cancelled", 0)
    assert found["result"]["stop"]["text"] == f"Ended with exit code 0; gpudash had sent SIGINT {why}."


@pytest.mark.timed
def test_a_program_that_hangs_is_killed_once_its_deadlines_have_passed(watch: Watch) -> None:
    process = watch.start("--json", "--", sys.executable, str(SCRIPTS / "hang.py"))
    assert first_line(process) == b"hangs\n"
    program, others = program_of(process, "hang.py"), family(process.pid)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    found = document(process)
    assert time.monotonic() - began > SHUTDOWN_S + TERMINATE_S
    assert (process.returncode, found["status"], found["exit_code"]) == (137, "cancelled", -9)
    assert found["result"]["stop"]["text"] == "Ended by SIGKILL, sent by gpudash 13 s after gpudash was sent SIGTERM."
    assert not runs(program)
    assert not any(runs(other) for other in others)
    assert list(watch.runtime.iterdir()) == []


def test_a_terminal_that_is_closed_ends_the_program_unless_it_was_to_outlive_it(watch: Watch) -> None:
    with heeding_hangups(signal.SIG_DFL):
        waits = "import signal; print('on', flush=True); signal.pause()"  # not for input: its end comes first at times
        process = watch.start("--json", "--", sys.executable, "-c", waits, stdin=-1)
    assert first_line(process) == b"on\n"
    process.send_signal(signal.SIGHUP)
    assert (document(process)["status"], process.returncode) == ("cancelled", 130)
    with heeding_hangups(signal.SIG_IGN):
        process = watch.start("--json", "--", sys.executable, "-c", "print('on', flush=True); input()", stdin=-1)
    assert first_line(process) == b"on\n"
    process.send_signal(signal.SIGHUP)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert document(process)["status"] == "finished"


def test_a_program_killed_from_outside_is_told_so(watch: Watch) -> None:
    process = watch.start("--json", "--", sys.executable, str(SCRIPTS / "hang.py"))
    assert first_line(process) == b"hangs\n"
    program_of(process, "hang.py").kill()
    found = document(process)
    assert (process.returncode, found["status"], found["exit_code"]) == (137, "failed", -9)
    assert "was killed by SIGKILL" in found["error"]["message"]
    assert list(watch.runtime.iterdir()) == []


def test_a_segmentation_fault_and_a_child_left_behind_are_told(watch: Watch) -> None:
    before = family(os.getpid())
    found = document(watch.start("--json", "--", sys.executable, str(SCRIPTS / "segfault.py")))
    assert "SIGSEGV" in found["error"]["message"]
    process = watch.start("--json", "--", sys.executable, str(SCRIPTS / "forks.py"), "60")
    found = document(process)
    assert (found["status"], found["exit_code"]) == ("finished", 0)
    assert any("before what it had started, which was ended" in text for text in found["notes"])
    assert set(family(os.getpid())) <= set(before)


def test_a_program_outlives_a_dashboard_that_is_killed_unharmed(watch: Watch, tmp_path: Path) -> None:
    script, done = tmp_path / "prints.py", tmp_path / "done"
    script.write_text(
        "import logging, sys, time\n"
        "for step in range(30):\n"
        "    print('line', step, flush=True)\n"
        "    logging.getLogger('gpudash').info('step', extra={'step': step, 'loss': 1.0})\n"
        "    time.sleep(0.05)\n"
        f"open({str(done)!r}, 'w').write('done')\n"
    )
    printed = tmp_path / "printed"
    with printed.open("wb") as file:
        process = watch.start("--", sys.executable, str(script), stdout=file)
        until(lambda: b"line 3" in printed.read_bytes())
        left = family(process.pid)
        process.kill()
        process.communicate()
    assert [path.name.startswith("gpudash-watch-") for path in watch.runtime.iterdir()] == [True]
    until(done.exists)
    until(lambda: not any(runs(other) for other in left))
    assert printed.read_text() == "".join(f"line {step}\n" for step in range(30))
    assert watch.start("--", sys.executable, "-c", "").wait(PATIENCE_S) == 0
    assert list(watch.runtime.iterdir()) == [], "the next one has swept it away"


def test_what_is_printed_passes_unchanged_whatever_it_is(watch: Watch) -> None:
    program = (
        "import os\nfor n in range(64):\n"
        "    os.write(1, bytes((i * n) % 256 for i in range(65536)))\n    os.write(2, b'%d\\r\\xff\\x00' % n)\n"
    )
    process = watch.start("--", sys.executable, "-c", program)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert stdout == b"".join(bytes((i * n) % 256 for i in range(65536)) for n in range(64))
    assert stderr.startswith(b"".join(b"%d\r\xff\x00" % n for n in range(64)))


def test_a_flood_passes_while_the_dashboard_stays_small(watch: Watch) -> None:
    process = watch.start("--", sys.executable, str(SCRIPTS / "flood.py"), "200", stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    size = most = 0
    while data := process.stdout.read(4 * MIB):
        size += len(data)
        for found in (psutil.Process(process.pid), *family(process.pid)):
            try:
                if "flood.py" not in found.cmdline()[1]:
                    most = max(most, found.memory_info().rss)
            except (psutil.Error, IndexError):
                continue
    assert process.wait(PATIENCE_S) == 0
    assert size == 200 * MIB + len("flooded\n")
    assert 0 < most < 250 * MIB


def test_a_reader_that_goes_away_is_the_programs_own_affair(watch: Watch) -> None:
    process = watch.start("--json", "--", sys.executable, str(SCRIPTS / "flood.py"), "2000", stderr=subprocess.PIPE)
    assert process.stderr is not None and process.stdout is not None
    assert process.stderr.read(1000) == b"x" * 1000
    process.stderr.close()
    found: dict[str, Any] = json.loads(process.stdout.read())
    assert process.wait(PATIENCE_S) == 1
    assert found["error"]["kind"] in ("BrokenPipeError", "signal", "exit")


def test_a_program_can_be_watched_from_outside_and_lives_on(watch: Watch) -> None:
    with psutil.Popen([sys.executable, "-c", "print('on', flush=True); input()"], stdin=-1, stdout=-1) as program:
        program.stdout.readline()
        process = watch.start("--json", "--attach", str(program.pid))
        until(lambda: psutil.Process(process.pid).num_threads() > 3)
        process.send_signal(signal.SIGINT)
        found = document(process)
        assert (process.returncode, found["status"], found["exit_code"]) == (130, "cancelled", None)
        assert "not its allocator, steps, losses and stacks" in found["notes"][0]
        assert program.is_running()
        program.communicate(b"\n")
