"""Notifies users who are away: warnings, out-of-memory and the end of a run go to a URL, to ntfy or to a command.

A target is text: ``https://host/path`` gets the notice as JSON, ``ntfy:TOPIC`` or ``ntfy:https://host/TOPIC`` as
https://docs.ntfy.sh/publish/ says, and anything else is a command that gets the sentence as its last argument.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gpudash.session.serving.address import TOKEN_VARIABLE
from gpudash.sources.prometheus.address import TOKEN as PROMETHEUS_TOKEN
from gpudash.system.log import hide
from gpudash.system.processes import end_group
from gpudash.system.threads import started
from gpudash.telemetry.records import Record, RunEnd, RunStarted, SourceFailed, Warning
from gpudash.units import format_duration

TOKEN = "GPUDASH_NOTIFY_TOKEN"  # the name of a variable
"""The variable with the token that a target asks for: everybody on the machine can read a command line."""

SECRETS = (TOKEN, TOKEN_VARIABLE, PROMETHEUS_TOKEN)
"""Variables that a command does not inherit: they are not for it."""

LIMIT_S = 10.0
"""How long one notice may take, from looking up a name to the answer's header."""

LEAVING_S = 5.0
"""How long the last notices may take when a session ends."""

ENDING_S = 1.0
"""How long a command that was ended may take to be gone."""

WAITING = 50
"""Notices that wait for a slow target; later ones are left out."""

NTFY = "https://ntfy.sh"

_PRIORITIES = {"critical": 5, "out_of_memory": 5, "failed": 4, "warning": 4, "forecast": 4}
"""ntfy's, of which 3 is the usual one."""


_ENDED = {"finished": "ended", "cancelled": "was stopped", "failed": "failed", "out_of_memory": "ran out of memory"}
"""How a run ended, by its status."""


@dataclass(frozen=True, slots=True)
class Notification:
    """What is told.

    Attributes:
        level: "forecast", "warning", "critical", "out_of_memory", "failed", "finished" or "cancelled".
        text: the sentence.
    """

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Recipient:
    """Where notices go.

    Attributes:
        name: for sentences; of a URL only the host, as its path may be a secret.
        url, topic: of HTTP; without a topic the notice itself is posted.
        command: with its arguments.
    """

    name: str
    url: str = ""
    topic: str = ""
    command: tuple[str, ...] = ()


def parse_target(text: str) -> Recipient:
    """The target that ``text`` names.

    Raises:
        ValueError: one sentence, when it is none.
    """
    text = text.strip()
    if not text:
        raise ValueError("An empty target tells nobody; write a URL, ntfy:TOPIC or a command.")
    if text.startswith("ntfy:"):
        server, _, topic = text.removeprefix("ntfy:").rpartition("/")
        if not re.fullmatch(r"[-_A-Za-z0-9]{1,64}", topic):
            raise ValueError(f"{topic!r} is no topic of ntfy: up to 64 letters, digits, - and _.")
        server = server or NTFY
        # The name of a topic is all that protects it, and so it is kept out of the log.
        hide(topic)
        return Recipient(f"ntfy at {_host(server)}", server, topic)
    if re.match(r"[a-z]+://", text, re.IGNORECASE):
        host = _host(text)
        # A webhook's path is its secret.
        hide(text.partition("://")[2].partition("/")[2])
        return Recipient(host, text)
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is no command: {error}.") from None
    if shutil.which(command[0]) is None:
        raise ValueError(f"There is no program {command[0]} to notify with; write a URL, ntfy:TOPIC or a command.")
    return Recipient(command[0], command=command)


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        found = parts.hostname
        port = parts.port
    except ValueError:
        found, port = None, None
    if parts.scheme not in ("http", "https") or not found or any(mark.isspace() for mark in url):
        raise ValueError("A URL to notify begins with https:// or http:// and names a host.")
    if parts.username or parts.password:
        raise ValueError(f"A URL with a password in it can be read by everybody here; {TOKEN} may hold a token.")
    if port is None:
        return found
    return f"{found}:{port}"


class Notifier:
    """Tells every target of what `notify` is given, once each, on a thread for each target.

    Args:
        targets: where notices go.
        report: given a sentence where a target cannot be reached, once until it can again, and where it was too slow to
            be told everything; called from any thread.
    """

    def __init__(self, targets: Sequence[Recipient], report: Callable[[str], None]) -> None:
        self._outlets = tuple(_Outlet(target, report) for target in targets)
        self._notified: set[tuple[str, str]] = set()
        self._run = ""

    def notify(self, record: Record) -> None:
        """Tell of a record that is worth it; never waits."""
        notice = self._notice(record)
        if notice is not None:
            for outlet in self._outlets:
                outlet.put(notice)

    def close(self) -> bool:
        """Tell what is still waiting, for at most `LEAVING_S`, and then of what was not told; whether the threads have
        ended."""
        until_s = time.monotonic() + LEAVING_S
        for outlet in self._outlets:
            outlet.finish()
        ended = [outlet.has_ended(until_s) for outlet in self._outlets]  # each is asked
        return all(ended)

    def _notice(self, record: Record) -> Notification | None:
        if isinstance(record, Warning):
            if record.level == "passed":
                # A level that has passed may be told of again; before that once for each memory.
                self._notified -= {notified for notified in self._notified if notified[0] == record.device}
            key = record.device, record.level
            if record.level in ("note", "passed") or key in self._notified:
                return None
            self._notified.add(key)
            return Notification(record.level, record.text)
        # The end of a run does not say what it was.
        if isinstance(record, RunStarted):
            self._run = f"{record.workload} on {record.device}"
        if not isinstance(record, RunEnd):
            return None
        took = f"after {format_duration(record.seconds)}, {record.steps} steps"
        text = f"{self._run} {_ENDED[record.status]} {took}"
        if record.ended_badly:
            text += f": {record.message}"
        return Notification(record.status, text)


class _Outlet:
    """What waits to be told to one target, on a thread of its own, so that no target waits for another's answer."""

    def __init__(self, target: Recipient, report: Callable[[str], None]) -> None:
        self._target = target
        self._report = report
        self._has_failed = False
        self._is_full = False
        self._is_given_up = False
        self._end: Callable[[], object] | None = None
        self._waiting: queue.SimpleQueue[Notification | None] = queue.SimpleQueue()
        self._thread = started("gpudash-notify", self._deliver_all)

    def put(self, notice: Notification) -> None:
        """Let the target be told, unless too much waits for it already."""
        # qsize may be late by one; the limit is a bound, not a promise.
        if self._waiting.qsize() < WAITING:
            self._waiting.put(notice)
            self._is_full = False
        elif not self._is_full:
            self._is_full = True
            self._report(
                f"{self._target.name} is too slow: {WAITING} notices wait for it, and later ones are left out."
            )

    def finish(self) -> None:
        """End when everything has been told."""
        self._waiting.put(None)

    def has_ended(self, until_s: float) -> bool:
        """Wait until then for the end; a command that still runs is ended, and what was not told is said."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if not self._thread.is_alive():
            return True
        self._is_given_up = True
        left = max(1, self._waiting.qsize())  # the end waits there too, in place of the notice that is being told
        if left == 1:
            notices = "notice"
        else:
            notices = f"{left} notices"
        self._report(f"{self._target.name} was too slow to be told of the last {notices}.")
        if self._end is not None:
            self._end()
            self._thread.join(ENDING_S)
        return not self._thread.is_alive()

    def _began(self, end: Callable[[], object]) -> None:
        self._end = end
        # It was given up between the start and now.
        if self._is_given_up:
            end()

    def _deliver_all(self) -> None:
        while not self._is_given_up and (notice := self._waiting.get()) is not None:
            try:
                deliver(self._target, notice, self._began)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                if not self._has_failed and not self._is_given_up:
                    self._has_failed = True
                    self._report(f"{self._target.name} could not be notified: {_why(error)}.")
            else:
                self._has_failed = False


Began = Callable[[Callable[[], object]], None]
"""Given what ends the command, or breaks off the request, that has been started."""


def deliver(target: Recipient, notice: Notification, began: Began | None = None) -> None:
    """Tell one target, within `LIMIT_S`.

    Args:
        began: called once the command or the request has been started.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: when it was not told.
    """
    title = f"gpudash: {notice.level.replace('_', ' ')} on {socket.gethostname()}"
    if target.command:
        inherited = {name: value for name, value in os.environ.items() if name not in SECRETS}
        # not through a shell, which would run what a name in the sentence says
        started = subprocess.Popen(
            [*target.command, notice.text],
            env=inherited | {"GPUDASH_NOTICE_LEVEL": notice.level, "GPUDASH_NOTICE_TITLE": title},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what it starts ends with it
        )
        if began is not None:
            began(lambda: end_group(started, dying_s=ENDING_S))
        try:
            # A command that takes longer is ended with all that it has started.
            code = started.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end_group(started, dying_s=ENDING_S)
            raise
        if code:
            raise subprocess.CalledProcessError(code, target.command)
        return
    body: dict[str, Any] = {"title": title, "message": notice.text}
    if target.topic:
        body |= {"topic": target.topic, "priority": _PRIORITIES.get(notice.level, 3)}
    else:
        body |= {"level": notice.level, "host": socket.gethostname()}
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get(TOKEN):
        hide(token)
        # As for Prometheus: a token goes out in plain text only on this machine.
        if target.url.lower().startswith("http:") and urlsplit(target.url).hostname not in ("localhost", "127.0.0.1"):
            raise ValueError(f"a token sent over http could be read on the way; use https, or unset {TOKEN}")
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(target.url, json.dumps(body).encode(), headers)  # http and https only
    posting = _Posting(request)
    posting.start()
    if began is not None:
        began(posting.break_off)
    posting.finish()


class _Posting(threading.Thread):
    """One request, on a thread of its own: urllib limits each read, and a server that sends a byte now and then would
    take any time.

    Args:
        request: http or https.
    """

    def __init__(self, request: urllib.request.Request) -> None:
        super().__init__(name="gpudash-notify-post", daemon=True)
        self._request = request
        self._handlers = _HttpHandler(), _HttpsHandler()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            opener = urllib.request.build_opener(_NoRedirect, *self._handlers)
            with opener.open(self._request, timeout=LIMIT_S):
                pass
        except urllib.error.HTTPError as error:
            # An answer with an error has a body, which holds the connection open.
            error.close()
            self._error = error
        except Exception as error:  # raised by `finish`, where it is waited for
            self._error = error

    def finish(self) -> None:
        """Wait for the answer.

        Raises:
            TimeoutError: when there is none within `LIMIT_S`; then the request is broken off.
            OSError, ValueError: when it is none, or refuses the notice.
        """
        self.join(LIMIT_S)
        if self.is_alive():
            self.break_off()
            raise TimeoutError
        if self._error is not None:
            raise self._error

    def break_off(self) -> None:
        """Close the connection, if there is one yet."""
        for handler in self._handlers:
            connection = handler.connection
            opened = None
            if connection is not None:
                opened = connection.sock
            # Its socket is there only once it is connected; before that the timeout of connecting ends it.
            if opened is not None:
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)


class _KeepsConnection(urllib.request.AbstractHTTPHandler):
    """Keeps the connection of its request, so that another thread can break it off."""

    connection: http.client.HTTPConnection | None = None

    def do_open(self, http_class: Any, req: urllib.request.Request, **facts: Any) -> Any:
        def connect(host: str, **options: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(host, **options)
            self.connection = made
            return made

        return super().do_open(connect, req, **facts)


class _HttpHandler(_KeepsConnection, urllib.request.HTTPHandler):
    """Of http."""


class _HttpsHandler(_KeepsConnection, urllib.request.HTTPSHandler):
    """Of https."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the host that was named."""

    def redirect_request(self, *_arguments: Any, **_options: Any) -> None:
        return None


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired | TimeoutError):
        return f"no answer within {format_duration(LIMIT_S)}"
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    cause = getattr(error, "reason", None) or error
    return str(getattr(cause, "strerror", None) or cause).rstrip(".").lower()


SOURCE = "notify"
"""`SourceFailed.source` of a target that could not be told."""


def failure(text: str, time_s: float) -> SourceFailed:
    """The record of a notice that was not delivered."""
    return SourceFailed(time_s=time_s, source=SOURCE, text=text)
