"""A few lines of PyTorch, run in a separate process: whatever they do, the window stays responsive."""

from __future__ import annotations

import select
import sys
import time
import warnings
from collections.abc import Callable, Sequence

from gpudash.system.child_process import ChildProcess
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.workloads.lines.trace import ENDED, LineFailure, LinesTrace

COMMAND = (sys.executable, "-m", "gpudash.workloads.lines.process")

LONGEST_S = 20.0
"""How long lines may run before their process is killed."""


def problem_of(source: str) -> str:
    """Why lines cannot be run, in a sentence, without running or loading anything; "" if they can be tried."""
    if not source.strip():
        return "There is no line to run. Write one, such as a = torch.ones(1024, 1024, device=gpu)."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<lines>", "exec")
    except SyntaxError as error:
        return f"Line {error.lineno or 1}: {' '.join(error.msg.split()).rstrip('.')}."
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f"Python cannot read these lines: {str(error) or type(error).__name__}."
    return ""


class LinesProcess:
    """Runs lines, one request at a time. Use from one thread, which requests and polls; nothing blocks.

    Args:
        command: the process to start, `COMMAND` by default.
        clock: returns seconds from any origin.
        longest_s: how long lines may run.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        clock: Callable[[], float] = time.monotonic,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._longest_s = longest_s
        self._child: ChildProcess | None = None
        self._ready = False
        self._id = 0
        self._request: dict[str, object] | None = None
        self._sent = False
        self._due = 0.0
        self._line = 1
        self._moments: list[object] = []
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether lines are running, or waiting for torch."""
        return self._request is not None

    @property
    def loading(self) -> bool:
        """Whether torch is still being imported."""
        return self.busy and not self._ready

    @property
    def line(self) -> int:
        """The line that was running at the last report, from 1."""
        return self._line

    def warm_up(self) -> str:
        """Start the process, so that torch is imported when lines arrive; return why that failed, or ""."""
        if self._child is not None:
            return ""
        self._ready = False
        try:
            self._child = ChildProcess(self._command)
        except OSError as error:
            return f"The process that runs the lines could not be started: {error.strerror}."
        self._due = self._clock() + TORCH_IMPORT_S
        return ""

    def ask(self, source: str, limit: int) -> None:
        """Run ``source`` on a simulated card of ``limit`` bytes, in place of the lines that are running."""
        if self._sent:
            self._end()
        self._id += 1
        self._request = {"id": self._id, "source": source, "limit": limit}
        self._sent = self._stopped = False
        self._line = 1
        self._moments = []

    def stop(self) -> None:
        """End the running lines at once; the next poll reports it."""
        self._stopped = self.busy

    def poll(self) -> LinesTrace | None:
        """The result of the lines, once; ``None`` until then."""
        if self._request is None:
            return None
        if self._stopped:
            return self._failed("was stopped", kill=True)
        problem = self.warm_up()
        if problem or self._child is None:
            return self._failed(problem.rstrip("."))
        for message in self._child.read():
            found = self._take(message)
            if found is not None:
                return found
        if self._child.gone:
            ending = self._end()
            return self._failed(f"ended its process ({ending})")
        if self._ready and not self._sent:
            self._child.send(self._request)
            self._sent = True
            self._due = self._clock() + self._longest_s
        if self._clock() >= self._due:
            what = f"ran longer than {self._longest_s:.0f} s and was stopped"
            if not self._ready:
                what = f"PyTorch did not load within {TORCH_IMPORT_S:.0f} s"
            return self._failed(what, kill=True)
        return None

    def wait(self, timeout_s: float) -> None:
        """Wait until the next `poll` has something to report, at most ``timeout_s``."""
        if self._child is not None:
            select.select(self._child.outputs, (), (), timeout_s)

    def close(self) -> None:
        """End the process."""
        self._request = None
        self._end()

    def _take(self, message: dict[str, object]) -> LinesTrace | None:
        if "ready" in message:
            self._ready = bool(message["ready"])
            if not self._ready:
                problem = str(message.get("problem") or "No lines can be run here.")
                self._end()
                return self._failed(problem.rstrip("."))
            return None
        if message.get("id") != self._id:
            return None
        if "line" in message:
            line = message["line"]
            self._line = line if isinstance(line, int) else self._line
            moments = message.get("moments")
            self._moments += moments if isinstance(moments, list) else []
            return None
        self._request, self._sent = None, False
        try:
            return LinesTrace.from_json(message.get("trace"))
        except ValueError:
            return LinesTrace((), 0, (), LineFailure(1, ENDED, "What came of the lines could not be read"))

    def _failed(self, message: str, *, kill: bool = False) -> LinesTrace:
        requested, self._request = self._request or {}, None
        if kill:
            self._end()
        self._sent = self._stopped = False
        source = str(requested.get("source", ""))
        limit = requested.get("limit", 0)
        failure = LineFailure(self._line, ENDED, message)
        trace = LinesTrace(tuple(source.splitlines()), limit if isinstance(limit, int) else 0, (), failure)
        try:
            return LinesTrace.from_json({**trace.to_json(), "moments": self._moments})
        except ValueError:
            return trace

    def _end(self) -> str:
        child, self._child = self._child, None
        self._ready = self._sent = False
        if child is None:
            return ""
        return child.end()
