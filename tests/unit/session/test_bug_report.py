"""The bug report: what it has, and which names it does not."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from gpudash.session.live import bug_report as module
from gpudash.session.live.bug_report import Anonymous, bug_report, newest_log
from gpudash.system.folders import log_file
from gpudash.system.log import MOST_BYTES, start_log
from gpudash.system.settings import Settings, save_settings


@pytest.fixture(autouse=True)
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ada works on turing."""
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "turing.example.org")
    monkeypatch.setattr(module.platform, "node", lambda: "turing")


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("/home/ada/private/train.py is gone", "<file 1>.py is gone"),
        ("There is no file '/home/ada/two words.py'.", "There is no file '<file 1>.py'."),
        ('File "/home/ada/x/train.py", line 3, in main', 'File "<file 1>.py", line 3, in main'),
        (
            'File "/home/ada/.venv/lib/python3.11/site-packages/torch/nn/a.py", line 3',
            'File "…/site-packages/torch/nn/a.py", line 3',
        ),
        ('File "/usr/lib/python3.11/threading.py", line 9', 'File "…/lib/python3.11/threading.py", line 9'),
        ('File "/home/ada/src/gpudash/cli/run.py", line 9', 'File "…/gpudash/cli/run.py", line 9'),
        ("written to ~/results/curve.csv.", "written to <file 1>.csv."),
        ("/data/a and /data/b, then /data/a", "<file 1> and <file 2>, then <file 1>"),
        ("/proc/4711/maps cannot be read", "/proc/4711/maps cannot be read"),
        ("recording to secret-model.gpudash", "recording to <file 1>.gpudash"),
        ("12 MiB/s, 3/4 of it, and/or none", "12 MiB/s, 3/4 of it, and/or none"),
        ("ada@node7 said no", "<user>@<host 3> said no"),
        ("ssh://node7 is linked; node7 answers", "ssh://<host 3> is linked; <host 3> answers"),
        ("turing.example.org and turing", "<host 1> and <host 2>"),
        ("10.0.0.17 is not 127.0.0.1", "<host 3> is not 127.0.0.1"),
        ("fe80:0:0:1::7 at 12:30:45", "<host 3> at 12:30:45"),
        ("the user ada, not adaptive", "the user <user>, not adaptive"),
        ("GPU-12345678-1234-1234-1234-123456789abc", "GPU-<serial>"),
        ("https://example.com/hook/s3cret", "https://<host 3>/…"),
    ],
)
def test_names_of_users_hosts_and_files_are_replaced_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, told: str, left: str
) -> None:
    monkeypatch.setattr(module, "_own_hosts", lambda: ["turing.example.org", "turing"])
    assert Anonymous().without_names(told) == left


def test_the_report_has_findings_versions_settings_and_the_log_without_names(home: Path) -> None:
    save_settings(Settings(rate_hz=10, notify="https://hooks.example.com/s3cret"))
    start_log(str(log_file()))
    logging.getLogger("gpudash").warning("/home/ada/secret.pickle on turing cannot be read")
    text = bug_report([f"recordings: {home}/recordings, 9 GiB free"])
    assert text.startswith("gpudash: a bug report\nRead it before you send it")
    for part in (
        "Findings\n",
        "Versions\n--------\ngpudash ",
        "rate_hz = 10.0",
        "notify is set",
        "Log\n",
        "9 GiB free",
    ):
        assert part in text
    assert " cannot be read" in text and "WARNING gpudash:" in text
    for name in ("ada", "turing", "secret", "hooks", str(home)):
        assert name not in text.replace("adaptive", "")


def test_without_log_and_settings_the_report_says_so(home: Path) -> None:
    text = bug_report([])
    assert "There is no log." in text and "All are as they come." in text


def test_the_end_of_the_log_goes_on_into_the_file_before_and_begins_with_a_whole_line(home: Path) -> None:
    home.mkdir()
    log_file().with_name("gpudash.log.2").write_text("oldest\n")
    log_file().with_name("gpudash.log.1").write_text("".join(f"line {number}\n" for number in range(1000)))
    log_file().write_text("newest\n")
    assert newest_log(30) == "line 998\nline 999\nnewest"
    whole = newest_log(MOST_BYTES).splitlines()
    assert (whole[0], whole[1], whole[-1], len(whole)) == ("oldest", "line 0", "newest", 1002)
