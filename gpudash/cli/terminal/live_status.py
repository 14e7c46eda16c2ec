"""The status line of a watched program: the last line of the terminal, below the program's output.

Only one process writes to the terminal, the relay of the program's output. It gets the status line through a socket.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from gpudash.cli.terminal.output import one_line, print_notice

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.telemetry.runs import RunView
    from gpudash.telemetry.store import Store

SEPARATOR = " · "

LEFT = "gpudash "


class LiveStatus:
    """The state of a session in one line, and notices above it.

    Args:
        quiet: show no line. There is none either unless both standard output and standard error are a terminal.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._sent = ""
        self._ours: socket.socket | None = None
        self._theirs: socket.socket | None = None
        # If only one of them is a terminal, the line could end up among redirected output.
        if not quiet and sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            # Packets preserve boundaries: each is one line or one notice.
            self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # A blocked terminal must not delay watching; what cannot be sent goes out with the next change.
            self._ours.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    @property
    def descriptor(self) -> int | None:
        """File descriptor for the relay; ``None`` if no line is shown."""
        if self._theirs is None:
            return None
        return self._theirs.fileno()

    def begin(self) -> None:
        """Call this once the relay has the descriptor."""
        # Close our copy, or the other end could not detect that the relay has ended.
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None

    def refresh(self, session: Session) -> None:
        """Show the state of a session."""
        if self._ours is not None:
            width = shutil.get_terminal_size().columns
            text = rendered(status_parts(session), width)
            # Remember only what could be sent, so that the next refresh tries again.
            if text != self._sent and self._send(b"S" + text.encode()):
                self._sent = text

    def notice(self, text: str) -> None:
        """Print a sentence above the line."""
        # A notice must not be lost: if the relay does not accept it, print it directly.
        if self._ours is None or not self._send(b"N" + one_line(text).encode()):
            print_notice(text)

    def end(self) -> None:
        """Remove the line."""
        self.begin()
        if self._ours is not None:
            self._ours.close()
            self._ours = None

    def _send(self, packet: bytes) -> bool:
        """Send a packet; return whether it was sent. A line that the terminal is too slow for is dropped."""
        assert self._ours is not None
        with suppress(OSError):
            return self._ours.send(packet) > 0
        return False


def status_parts(session: Session) -> list[str]:
    """The parts of the line, most important first: step, loss, memory, time until full, rate; further losses."""
    finding_s = session.runs.finding_need_s
    if finding_s is not None:
        return [f"finding out what the whole run needs: {finding_s:.0f} s", "Ctrl+C leaves it"]
    memories = {device.name: device for device in session.devices()}
    with session.store.lock:
        run = session.store.run
        if run is None:
            return []
        losses = list(_losses(run))
        parts = [f"step {run.step}", *losses[:1]]
        device = memories.get(run.device)
        parts += _memory(session, run, None if device is None else device.uuid)
        if "throughput" in run.metrics:
            parts.append(f"{run.metrics['throughput'].last:.3g} steps/s")
    # The first loss is near the front; a narrow terminal drops further ones.
    return parts + losses[1:]


def _losses(run: RunView) -> Iterator[str]:
    from gpudash.telemetry.records import OF_LOSS

    for name, metric in run.metrics.items():
        if name in ("loss", "val_loss") or name.startswith(OF_LOSS):
            yield f"{name.removeprefix(OF_LOSS).replace('_', ' ')} {metric.last:.4g}"


def _memory(session: Session, run: RunView, uuid: str | None) -> Iterator[str]:
    """Memory in use on the card, or by the program if it runs on the CPU, and when it will be full."""
    from gpudash.memory.watching.levels import HOST
    from gpudash.memory.watching.watch import ends_in

    text = memory_in_use(session.store, run, uuid)
    ahead = session.forecast(uuid or HOST)
    if text and ahead is not None:
        text += f", {ends_in(ahead)}"
    if text:
        yield text


def memory_in_use(store: Store, run: RunView, uuid: str | None) -> str:
    """Memory in use on a run's card, or by its process if it runs on the CPU; "" if unknown.

    Args:
        store: store of the readings; the caller holds its lock.
        run: the current run.
        uuid: UUID of the card; ``None`` on the CPU.
    """
    from gpudash.units import format_bytes, format_pair

    if uuid is None:
        used = store.latest("host", "process_bytes").value
        if isinstance(used, int):
            return f"{run.device} {format_bytes(used)}"
        return ""
    used, total = (store.latest("gpu", name, uuid).value for name in ("used_bytes", "total_bytes"))
    if isinstance(used, int) and isinstance(total, int):
        return f"{run.device} {format_pair(used, total)}"
    return ""


def rendered(parts: Sequence[str], width: int) -> str:
    """As many parts as fit in a line of the terminal, whose last column is never used."""
    from rich.console import Console
    from rich.text import Text

    kept = fitting(parts, width - len(LEFT))
    if not kept:
        return ""
    console = Console(width=width, stderr=True, highlight=False)
    with console.capture() as capture:
        line = Text(LEFT, "bold").append(SEPARATOR.join(kept), "not bold dim")
        console.print(line, end="", no_wrap=True)
    return capture.get()


def fitting(parts: Sequence[str], width: int) -> list[str]:
    """The parts that fit in less than ``width`` columns, joined by `SEPARATOR`; earlier ones take precedence."""
    from rich.cells import cell_len

    kept: list[str] = []
    for part in map(one_line, parts):
        # Do not stop here: a later, shorter part may still fit.
        if cell_len(SEPARATOR.join([*kept, part])) < width:
            kept.append(part)
    return kept
