"""Notices: what is told, to whom, once each, and what becomes of one that cannot be delivered."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.live import notifying
from gpudash.session.live.notifying import TOKEN, Notification, Notifier, deliver, parse_target
from gpudash.telemetry.records import Level, Record, RunEnd, RunStarted, Warning


@dataclass
class Received:
    url: str = ""
    status: int = 200
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


@pytest.fixture
def server() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests.append((self.path, dict(self.headers), json.loads(body)))
            received.arrived.release()
            self.send_response(received.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """A test's output is for its failures."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    received.url = f"http://127.0.0.1:{listening.server_address[1]}"
    yield received
    listening.shutdown()
    listening.server_close()
    thread.join()


def warning(level: Level, device: str = "GPU-1", time_s: float = 1.0) -> Warning:
    return Warning(time_s=time_s, level=level, device=device, text=f"{device} {level}")


def told(records: list[Record], server: Received) -> list[Any]:
    problems: list[str] = []
    notifier = Notifier([parse_target(f"{server.url}/hook")], problems.append)
    for record in records:
        notifier.notify(record)
    assert notifier.close() and problems == []
    return [body for _path, _headers, body in server.requests]


def test_each_level_is_told_once_and_again_after_memory_has_passed(server: Received) -> None:
    levels: list[Level] = ["warning", "warning", "critical", "note", "forecast", "passed", "warning"]
    found = told([*map(warning, levels), warning("warning", "host")], server)
    assert [body["level"] for body in found] == ["warning", "critical", "forecast", "warning", "warning"]
    assert found[-1]["message"] == "host warning"


def test_every_end_of_a_run_is_told_in_a_sentence(server: Received) -> None:
    begun = RunStarted(time_s=0.0, run_id=1, workload="training", device="sim:0", spec={})
    end: dict[str, Any] = {"time_s": 5.0, "run_id": 1, "seconds": 5.0, "steps": 30}
    found = told(
        [
            begun,
            RunEnd(**end, status="finished", result={}),
            RunEnd(**end, status="cancelled", result={}),
            RunEnd(status="failed", **end, error="ValueError", message="It broke.", remedy=""),
            RunEnd(status="out_of_memory", **end, error="sim", message="Memory ran out.", remedy=""),
        ],
        server,
    )
    assert [(body["level"], body["message"]) for body in found] == [
        ("finished", "training on sim:0 ended after 5.0 s, 30 steps"),
        ("cancelled", "training on sim:0 was stopped after 5.0 s, 30 steps"),
        ("failed", "training on sim:0 failed after 5.0 s, 30 steps: It broke."),
        ("out_of_memory", "training on sim:0 ran out of memory after 5.0 s, 30 steps: Memory ran out."),
    ]


def test_ntfy_gets_topic_title_and_priority_and_the_token_of_the_environment(
    server: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "tk_1")
    deliver(parse_target(f"ntfy:{server.url}/my-topic"), Notification("critical", "full"))
    ((_path, headers, body),) = server.requests
    assert headers["Authorization"] == "Bearer tk_1"
    assert (body["topic"], body["priority"], body["message"]) == ("my-topic", 5, "full")


@pytest.mark.process
def test_a_command_gets_the_sentence_as_one_argument_and_no_shell_reads_it(tmp_path: Path) -> None:
    written = tmp_path / "said"
    program = f"import sys; open({str(written)!r}, 'w').write(repr(sys.argv[1:]))"
    text = "GPU 0 $(touch x); `y` is full"
    deliver(parse_target(f'{sys.executable} -c "{program}"'), Notification("warning", text))
    assert written.read_text() == repr([text])


def test_a_target_that_fails_is_told_once_and_the_others_go_on(server: Received) -> None:
    problems: list[str] = []
    notifier = Notifier([parse_target("false"), parse_target(server.url)], problems.append)
    for level in ("warning", "critical"):
        notifier.notify(warning(level))
    assert notifier.close()
    assert problems == ["false could not be notified: exit code 1."]
    assert len(server.requests) == 2


def test_a_command_that_hangs_keeps_nobody_else_waiting_and_is_ended_with_what_it_started(
    server: Received, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    hanging = tmp_path / "hanging"
    hanging.write_text(f"#!/bin/sh\nexec 3>{held}\nsleep 600 &\nwait\n")
    hanging.chmod(0o700)
    problems: list[str] = []
    notifier = Notifier([parse_target(str(hanging)), parse_target(server.url)], problems.append)
    for level in ("forecast", "warning", "critical"):
        notifier.notify(warning(level))
    with held.open("rb") as pipe:  # once the command holds its other end
        for _ in range(3):
            assert server.arrived.acquire(timeout=60)
        assert notifier.close()
        assert pipe.read() == b"", "it ends when nobody holds it any more"
    assert [body["level"] for _path, _headers, body in server.requests] == ["forecast", "warning", "critical"]
    assert problems == [f"{hanging} was too slow to be told of the last 3 notices."]


@pytest.fixture
def dripping() -> Iterator[str]:
    """The address of a server that never gets to the end of its answer's header, and never stops sending."""
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
                for _ in range(1000):
                    self.wfile.write(b".")
                    if gone.wait(0.02):
                        return
                self.wfile.write(b"\r\n\r\n")

        def log_message(self, *_arguments: Any) -> None:
            """A test's output is for its failures."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    gone.set()
    listening.shutdown()
    listening.server_close()
    thread.join()


def test_a_notice_has_one_deadline_however_often_its_target_sends_something(
    dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "LIMIT_S", 0.5)
    with pytest.raises(TimeoutError):
        deliver(parse_target(dripping), Notification("warning", "x"))


def test_a_request_that_is_not_answered_is_broken_off_as_the_session_ends(
    dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "LEAVING_S", 0.5)
    problems: list[str] = []
    notifier = Notifier([parse_target(dripping)], problems.append)
    notifier.notify(warning("warning"))
    assert notifier.close(), "no thread is left"
    assert [problem.partition(" was ")[2] for problem in problems] == ["too slow to be told of the last notice."]


@pytest.mark.process
def test_a_command_inherits_the_environment_without_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUDASH_NOTIFY_TOKEN", "GPUDASH_SERVE_TOKEN", "GPUDASH_PROMETHEUS_TOKEN", "OF_THE_USER"):
        monkeypatch.setenv(name, "a value")
    written = tmp_path / "inherited"
    program = f"import os; open({str(written)!r}, 'w').write(' '.join(os.environ))"
    deliver(parse_target(f'{sys.executable} -c "{program}"'), Notification("warning", "x"))
    names = written.read_text().split()
    assert "OF_THE_USER" in names and "GPUDASH_NOTICE_LEVEL" in names
    assert not [name for name in names if name.endswith("_TOKEN") and name.startswith("GPUDASH")]


@pytest.mark.parametrize(("status", "why"), [(500, "it answered 500"), (302, "it answered 302")])
def test_a_refusal_and_a_redirection_are_failures(status: int, why: str, server: Received) -> None:
    server.status = status
    problems: list[str] = []
    notifier = Notifier([parse_target(server.url)], problems.append)
    notifier.notify(warning("warning"))
    assert notifier.close()
    assert [problem.partition(": ")[2] for problem in problems] == [f"{why}."]
    assert len(server.requests) == 1, "nobody is followed elsewhere"


def test_a_token_is_not_sent_where_it_could_be_read_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "tk_1")
    with pytest.raises(ValueError, match="use https"):
        deliver(parse_target("http://monitor.example/hook"), Notification("warning", "x"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("ntfy:", "no topic"),
        ("ntfy:a topic", "no topic"),
        ("ftp://host/x", "begins with https"),
        ("https://", "names a host"),
        ("https://me:secret@host/x", "password"),
        ("https://host:x/", "names a host"),
        ("none-of-this-name --now", "no program none-of-this-name"),
        ("echo 'open", "no command"),
    ],
)
def test_what_is_no_target_is_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_target(text)
    assert "secret" not in str(refused.value)
