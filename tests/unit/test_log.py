"""The log of gpudash's processes."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from gpudash.cli import run
from gpudash.session.live.event_log import log_record
from gpudash.session.live.notifying import parse_target
from gpudash.session.serving.address import take_token
from gpudash.system import log
from gpudash.system.folders import log_file
from gpudash.system.log import A_MINUTE, KEPT, MOST_BYTES, hide, log_uncaught, start_log, stop_log
from gpudash.telemetry.records import RunEnd

logger = logging.getLogger("gpudash.part")


@pytest.fixture
def file(home: Path) -> Path:
    """The log, in a folder that is not there yet."""
    start_log(str(log_file()))
    return log_file()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place in the code may log as often as it likes."""
    monkeypatch.setattr(log, "A_MINUTE", 10**9)


def test_nothing_is_made_before_there_is_something_to_log(file: Path) -> None:
    assert not file.parent.exists()


def test_a_record_has_its_traceback_and_only_the_user_can_read_it(file: Path) -> None:
    before = os.umask(0)
    try:
        raise ValueError("the shape is odd")
    except ValueError:
        logging.getLogger("gpudash.simulator").exception("Nothing was predicted.")
    finally:
        os.umask(before)
    text = file.read_text(encoding="utf-8")
    assert "ERROR gpudash.simulator: Nothing was predicted." in text and "ValueError: the shape is odd" in text
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_the_log_does_not_grow_without_end(file: Path, often: None) -> None:
    for _ in range(30 * (KEPT + 2)):
        logger.error("a line of a log, " * (MOST_BYTES // 15 // 17))  # no secret that another test has hidden
    found = list(file.parent.iterdir())
    assert len(found) == KEPT + 1
    assert sum(one.stat().st_size for one in found) <= (KEPT + 1) * MOST_BYTES


def test_a_process_goes_on_in_the_new_file_after_another_has_put_the_full_one_aside(file: Path) -> None:
    logger.info("before")
    file.rename(file.with_name("gpudash.log.1"))
    logger.info("after")
    assert "after" in file.read_text() and "after" not in file.with_name("gpudash.log.1").read_text()


def test_a_full_file_that_another_process_is_putting_aside_is_not_put_aside_twice(file: Path) -> None:
    logger.info("first")
    with file.open("a") as full:
        full.write("x" * MOST_BYTES)
        fcntl.flock(full, fcntl.LOCK_EX)
        logger.info("while it is locked")
    assert [one.name for one in file.parent.iterdir()] == ["gpudash.log"]
    assert "while it is locked" in file.read_text()
    logger.info("later")
    assert sorted(one.name for one in file.parent.iterdir()) == ["gpudash.log", "gpudash.log.1"]
    assert "later" in file.read_text()


def test_a_log_that_cannot_be_written_says_nothing_on_the_terminal(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.parent.write_text("in its way")
    logger.error("lost")
    assert capfd.readouterr() == ("", "")


def test_a_pipe_in_place_of_the_log_is_not_waited_for(file: Path) -> None:
    file.parent.mkdir()
    os.mkfifo(file)
    logger.error("lost")
    assert file.is_fifo()


def test_the_steps_of_somebody_s_training_are_not_logged(file: Path) -> None:
    logging.getLogger("gpudash").info("step", extra={"step": 1, "loss": 0.5})
    logging.getLogger("gpudash").info("a fact")
    assert "step" not in file.read_text() and "a fact" in file.read_text()


@pytest.mark.timed
def test_what_fails_again_and_again_does_not_fill_the_log(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now_s[0])
    for _ in range(10 * A_MINUTE):
        logger.error("no answer")
    lines = file.read_text().splitlines()
    assert len(lines) == A_MINUTE and lines[-1].endswith("(Until the next minute no more of these is logged.)")
    now_s[0] = 60.0
    logger.error("no answer")
    assert len(file.read_text().splitlines()) == A_MINUTE + 1


def test_a_message_that_does_not_fit_its_arguments_is_logged_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("gpudash"), "propagate", False)  # pytest's own handler raises
    logger.error("%d figures", "no")
    assert "'%d figures' ('no',)" in file.read_text()


def test_an_escape_sequence_is_written_out(file: Path) -> None:
    logger.error("%s", "\x1b[2J")
    assert "\\x1b[2J" in file.read_text()


@pytest.mark.parametrize(
    ("told", "logged"),
    [
        ("https://user:pa55@example.org:9090/hook/s3cr3t?token=s3cr3t", "https://example.org:9090/…"),
        ("opening ssh://ada@node1 now", "opening ssh://node1 now"),
        ("http://localhost:10950/", "http://localhost:10950/"),
        ("Authorization: Bearer s3cr3t", "Authorization: Bearer …"),
        ("Authorization: Basic czNjcjN0", "Authorization: Basic …"),
        ("sent as bearer s3cr3t.x", "sent as bearer …"),
        ("--notify ntfy:my-topic", "--notify ntfy:…"),
        ("token=s3cr3t&x=1", "token=…&x=1"),
        ("the token is missing", "the token is missing"),
        ("The basic settings hold.", "The basic settings hold."),
    ],
)
def test_secrets_are_not_logged(file: Path, told: str, logged: str) -> None:
    try:
        raise ValueError(told)
    except ValueError:
        logger.exception("It failed for %s", told)
    lines = file.read_text().splitlines()
    assert lines[0].endswith(f"It failed for {logged}") and lines[-1] == f"ValueError: {logged}"


def test_a_token_and_the_address_of_a_notice_are_known_as_secrets(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_hidden", set())
    monkeypatch.setenv("GPUDASH_SERVE_TOKEN", "0123456789abcdef0123")
    take_token(None)
    parse_target("https://hooks.example.org/services/T00/B11")
    parse_target("ntfy:my-training")
    logger.error("Refused: 0123456789abcdef0123, services/T00/B11, my-training")
    assert "Refused: …, …, …" in file.read_text()


def test_a_secret_within_another_one_leaves_nothing_of_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_hidden", set())
    hide("abc")
    hide("abcdef")
    logger.error("told abcdef")
    assert "told …\n" in file.read_text()


def test_what_no_thread_handles_is_logged_and_goes_on_to_the_hook_before(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: passed_on.append(kind.__name__))
    monkeypatch.setattr(threading, "excepthook", lambda args: passed_on.append(args.exc_type.__name__))
    monkeypatch.setattr(sys, "unraisablehook", lambda args: passed_on.append(args.exc_type.__name__))
    log_uncaught()

    def fail() -> None:
        raise LookupError("of a thread")

    class Unraisable:
        def __del__(self) -> None:
            raise ArithmeticError("of a finalizer")

    thread = threading.Thread(target=fail, name="reader")
    thread.start()
    thread.join()
    Unraisable()
    sys.excepthook(OSError, OSError("of the main thread"), None)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert passed_on == ["LookupError", "ArithmeticError", "OSError", "KeyboardInterrupt"]
    text = file.read_text()
    for told in ("of a thread", "of a finalizer", "of the main thread", "exception of the thread reader"):
        assert told in text
    assert "KeyboardInterrupt" not in text and text.count("CRITICAL") == 3


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (["devices", "--simulate", "7MiB"], r"the parser of command lines, gpudash\.devices\.\S+:\d+, --simulate"),
        (["compare", "a.gpudash", "b.gpudash"], r"gpudash\.cli\.recordings\.runs:\d+, gpudash\.(?!cli\.)\S+:\d+"),
        (["compare", "a.gpudash", "b.gpudash", "--no-such-flag"], "the parser of command lines"),
    ],
    ids=["a value", "a file", "a flag"],
)
def test_a_refused_request_logs_the_line_that_refused_it_and_the_flag_without_its_value(
    home: Path, line: list[str], place: str
) -> None:
    assert run(line) == 2
    assert re.search(f"request: refused by {place}$", log_file().read_text().splitlines()[-2])


def test_a_command_logs_its_name_and_its_end_and_not_what_its_flags_were_given(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "private.gpudash", "b.gpudash", "--tolerance=7%", "--verbose"]) == 2
    lines = log_file().read_text().splitlines()
    assert "gpudash compare --tolerance: version" in lines[0] and "private" not in lines[0]
    assert "request: refused by gpudash.cli.recordings.runs:" in lines[-2] and "7%" not in lines[-2]
    assert lines[-1].endswith("the command ended with exit code 2")
    told = capsys.readouterr().err
    assert all(line in told for line in lines)


@pytest.mark.parametrize("message", ["'secret'", "KeyError: 'secret'"])
def test_the_kind_of_the_exception_that_ended_a_run_is_logged_once(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended = RunEnd(time_s=9.0, run_id=1, status="failed", error="KeyError", message=message, seconds=5.0, steps=3)
    log_record(ended)
    assert caplog.messages == ["run 1 ended after 5.0 s, 3 steps: KeyError: 'secret'"]


@pytest.mark.parametrize("words", [["--help"], ["--verbose", "--version"], ["watch", "--help"], ["help", "run"]])
def test_a_help_page_is_not_logged(home: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert not log_file().exists() and not capsys.readouterr().err


def test_verbose_of_another_program_is_its_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "--attach", "1", "--", "train.py", "--verbose"]) == 2
    assert "INFO" not in capsys.readouterr().err


def test_nothing_is_logged_once_the_log_is_stopped(file: Path) -> None:
    stop_log()
    logger.error("lost")
    assert not file.exists()
