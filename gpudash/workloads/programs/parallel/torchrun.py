"""torchrun as a child of this process, and the socket on which it and the ranks are heard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpudash.agent.server import AgentServer, Peer
from gpudash.agent.wire import Message
from gpudash.workloads.programs.parallel.job import LOGS, PRINTED, SOCKET, Job

LAUNCHER = (
    "import sys; sys.path[:] = sys.argv[3:{end}]; del sys.argv[3:{end}]; "
    "from gpudash.workloads.programs.parallel.launch_process import main; main()"
)
RANK = (
    "import sys; sys.path[:] = sys.argv[2:]; from gpudash.workloads.programs.parallel.rank_program import main; main()"
)
"""``python -m`` would put the working directory in front of all packages; the ranks are to find what this one does."""

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2",
}
"""Set unless the user has: all ranks are on this machine, whose own name may not be known to it; a rank that hangs is
given two seconds to heed torchrun's SIGTERM instead of thirty."""

DYING_S = 2.0
"""How long processes that were killed are waited for: a driver may take its time."""

MOST_PRINTED = 20_000
"""Bytes of what torchrun and the ranks have printed that an ending tells; they may print without end."""


class Torchrun:
    """Starts torchrun. Only one thread may use it, and must live as long: torchrun and the ranks end with that thread.

    It leads a process group of its own: a Ctrl+C in the terminal does not reach it.

    Args:
        folder: the run's private folder.
        job: what each rank runs.

    Raises:
        OSError: when it cannot be started.
    """

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        job.write(folder)
        self._server = AgentServer(folder / SOCKET)
        try:
            with (folder / PRINTED).open("wb") as printed:
                self._process = subprocess.Popen(
                    self._command(job),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    start_new_session=True,
                    env={**ENVIRONMENT, **os.environ},
                )
        except OSError:
            self._server.close()
            raise

    @property
    def code(self) -> int | None:
        """How torchrun has ended, as `subprocess` has it; ``None`` while it is on."""
        return self._process.poll()

    def receive(self, timeout_s: float) -> Iterator[tuple[Peer, Message]]:
        """What has come, waiting for the first message at most ``timeout_s``."""
        return self._server.receive(timeout_s)

    def hears(self, peer: Peer) -> bool:
        """Whether a process is still connected."""
        return peer in self._server.peers

    def tell_ranks(self, message: Message) -> None:
        """Tell every rank something."""
        for peer in self._server.peers:
            if peer.rank is not None:
                self._server.send(peer, message)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; ``None`` when it is still on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.0, timeout_s))
        return None

    def printed(self) -> str:
        """The end of what it and the ranks have printed."""
        return end_of(self._folder / PRINTED)

    def close(self) -> bool:
        """End torchrun and all ranks, and hear nobody any more; false when one does not end though it was killed."""
        self.kill(self._process.pid)
        ended = self.wait(DYING_S) is not None
        until = time.monotonic() + DYING_S
        while self._server.peers and time.monotonic() < until:
            for peer in self._server.peers:
                self.kill(peer.pid)
            for _ in self._server.receive(0.05):
                pass
        ended = ended and not self._server.peers
        self._server.close()
        return ended

    def kill(self, pid: int) -> None:
        """Kill a process with all that it leads; ranks lead groups of their own, as torchrun starts them."""
        if self._process.returncode is not None and pid == self._process.pid:
            return
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)

    def _command(self, job: Job) -> list[str]:
        spec = job.spec
        search = list(sys.path)
        return [
            sys.executable,
            "-c",
            LAUNCHER.format(end=3 + len(search)),
            str(self._folder),
            str(os.getpid()),
            *search,
            "--standalone",
            f"--nproc-per-node={spec.world_size}",
            f"--max-restarts={spec.max_restarts}",
            "--local-addr=127.0.0.1",
            f"--log-dir={self._folder / LOGS}",
            "--no-python",
            sys.executable,
            "-c",
            RANK,
            str(self._folder),
            *search,
        ]


def end_of(path: Path) -> str:
    """The last `MOST_PRINTED` bytes of a file as text; "" when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_PRINTED))
            return file.read(MOST_PRINTED).decode(errors="replace").strip()
    except OSError:
        return ""
