"""How processes that gpudash starts talk and end, with real ones."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading

import pytest

from gpudash.system.child_process import ChildProcess, Waker
from gpudash.system.processes import end_group

pytestmark = pytest.mark.process

CHILD = """
import os, sys
from gpudash.system.processes import Conversation

conversation = Conversation()
conversation.start()
print("not an answer")
conversation.report({"read": sys.stdin.read()})
while True:
    asked = conversation.next()
    if asked == "newest":
        while not conversation.waits:
            os.sched_yield()
        asked = conversation.newest()
    conversation.report({"asked": asked})
"""


def started() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def test_only_answers_reach_whoever_asks_and_code_cannot_take_questions() -> None:
    with started() as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write('{"number": 1}\n\n"newest"\n')
        assert json.loads(process.stdout.readline()) == {"read": ""}
        assert json.loads(process.stdout.readline()) == {"asked": {"number": 1}}
        process.stdin.write("2\n")
        assert json.loads(process.stdout.readline()) == {"asked": 2}
        process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (0, "not an answer\n")


def test_a_process_ends_with_what_it_has_started() -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('started', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        assert end_group(process) is None
        assert process.returncode == -signal.SIGKILL
        assert process.stdout.read() == b""  # nobody holds its other end any more


def test_a_process_that_ends_by_itself_has_its_own_code() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], start_new_session=True)
    assert end_group(process, patience_s=120.0) == 7


def test_whoever_waits_for_a_process_is_roused_by_it_and_by_others() -> None:
    waker = Waker()
    process = ChildProcess([sys.executable, "-c", "import sys; sys.stdin.readline(); print('{}')"])
    other = threading.Thread(target=waker.rouse)
    other.start()
    waker.wait(process)
    other.join()
    assert process.read() == []
    process.send({})
    while not (found := process.read()):  # its line may come in pieces
        waker.wait(process)
    assert found == [{}]
    process.end()
    waker.close()
    waker.rouse()


def test_the_log_names_a_child_without_its_folders_or_its_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="gpudash")
    process = ChildProcess(["/usr/bin/env", "python3", "-c", "from a/b import secret"])
    process.end()
    assert caplog.messages[0].endswith("began: env python3 -c …")
    assert re.fullmatch(r"process \d+ (was ended by gpudash|ended with code -?\d+)", caplog.messages[1])


def test_the_processor_time_of_a_child_is_that_of_what_it_has_started_too() -> None:
    works = "while True: pass"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {works!r}])"
    process = ChildProcess([sys.executable, "-I", "-c", starts])
    try:
        while process.processor_s < 1.0:
            pass
    finally:
        process.end()
    assert process.processor_s == 0.0
