"""Scrapes of a monitor that hostile clients attack meanwhile, and the gaps that they tear into its recording."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

SCRAPES = 60
"""Of each attack."""

CALM_S = 0.03
"""Between two of them."""

PATIENCE_S = 60.0

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
ENDLESS = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000_000
BLANKS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: a" + b" " * 7800 + b"b\r\n\r\n"


class Attack:
    """Clients of one kind, on a thread of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.over = threading.Event()

    def slow(self) -> None:
        """600 clients, each of which sends a byte of its request now and then; one that is ended comes again."""
        clients: list[socket.socket] = []
        while not self.over.wait(0.3):
            while len(clients) < 600 and not self.over.is_set():
                clients.append(self._client())
                clients[-1].setblocking(False)
            for client in list(clients):
                try:
                    client.send(b"G")
                except OSError:
                    clients.remove(client)
                    client.close()
        for client in clients:
            client.close()

    def many(self) -> None:
        """2,000 connections that ask, and never read what they are answered."""
        clients = []
        for _ in range(2000):
            clients.append(self._client())
            with suppress(OSError):
                clients[-1].sendall(SCRAPE)
        self.over.wait()
        for client in clients:
            client.close()

    def flood(self) -> None:
        """Requests one after another, without a pause."""
        self._again(SCRAPE)

    def endless(self) -> None:
        """Header fields of 100 MB."""
        self._again(ENDLESS)

    def blanks(self) -> None:
        """Header fields that are blank."""
        self._again(BLANKS)

    def _again(self, sent: bytes) -> None:
        while not self.over.is_set():
            with suppress(OSError), self._client() as client:
                client.sendall(sent)
                client.recv(65536)

    def _client(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)


@contextmanager
def _descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _scraped_ms(url: str) -> float:
    """Median time of a scrape."""
    took = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert b"gpudash_build_info" in answer.read()
        took.append(time.perf_counter() - began)
        time.sleep(CALM_S)
    return statistics.median(took) * 1000


def measure() -> dict[str, float]:
    """The medians of scrapes (ms) under each attack, the worst of them, and the longest gap of the recording (s)."""
    with tempfile.TemporaryDirectory() as folder, _descriptors():
        recording = Path(folder) / "r.gpudash"
        command = [sys.executable, "-m", "gpudash", "monitor", "--serve", ":0", "--record", str(recording)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as monitor:
            assert monitor.stderr is not None
            found = re.search(r"http://\S+:(\d+)/metrics", monitor.stderr.readline())
            assert found is not None
            figures = {"calm_ms": _scraped_ms(found[0])}
            for name in ("slow", "many", "flood", "endless", "blanks"):
                attack = Attack(int(found[1]))
                act: Callable[[], None] = getattr(attack, name)
                thread = threading.Thread(target=act)
                thread.start()
                try:
                    figures[f"{name}_ms"] = _scraped_ms(found[0])
                finally:
                    attack.over.set()
                    thread.join()
            monitor.send_signal(signal.SIGINT)
            monitor.communicate(timeout=PATIENCE_S)
        with sqlite3.connect(recording) as database:
            rows = database.execute("select time_s from host where used_bytes is not null order by time_s")
            gap_s = max(late - early for (early,), (late,) in pairwise(rows.fetchall()))
    return {**figures, "worst_ms": max(figures.values()), "gap_s": gap_s}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
