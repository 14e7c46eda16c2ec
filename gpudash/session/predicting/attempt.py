"""One run of a user's program without its GPU, followed until its memory requests are known.

The program runs in a session and process group of its own. Its processes report over a socket in a private folder (see
`gpudash.agent.predicting`). Nothing it writes is kept.
"""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import psutil

import gpudash
from gpudash.agent.predicting import ENDING, VARIABLE
from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY
from gpudash.memory.explaining.patches import PATCH_NAME, patching
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.estimator import OTHER_PYTHON, Problem
from gpudash.session.watching.program import SHUTDOWN_S, TERMINATE_S, exit_text, runs
from gpudash.session.watching.request import program_name
from gpudash.simulator.refusal import MORE_TIME, SEE_PRINTED
from gpudash.system import sandbox
from gpudash.system.files import PrivateFolder
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular_text
from gpudash.system.processes import waited_seconds
from gpudash.system.threads import started

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""Interval of the check for Ctrl+C."""

COUNT_S = 0.5
"""Interval at which the program's processor time is read."""

MOST_WAITED_S = 90.0
"""Longest that a program may wait for busy processors (as one at the lowest priority does) before the wait counts as
its own time."""

MOST_STACK_BYTES = 2**20
"""Largest stack dump that is read."""

KILLED_S = 3.0
"""Longest wait for a killed process to end."""

STACK_S = 2.0
"""Time limit for a process to write its stack."""

MOST_PRINTED_BYTES = 16 * 1024
"""How much of the end of a program's output is kept: some tracebacks go through fifty frames."""

LAST_LINES = 40
"""How many of the last held-back lines are shown when the program fails."""

PRINTED_S = 1.0
"""Longest wait for the rest of its output, once it has ended."""

MOST_MESSAGE_BYTES = 2**31
"""Largest answer: the trace of a long run has some hundred MB."""

LAYERS, WRITTEN = "layers", "written"
"""Subfolders of the folder made for a program."""

NEVER_TORCH = "has not imported torch"
NEVER_CUDA = "has asked nothing of a GPU"
NEVER_STEPS = "has not taken its steps"
NEVER = (NEVER_TORCH, NEVER_CUDA, NEVER_STEPS)
"""What a program has not reached, in the order in which it would."""

WITHOUT_TORCH = "ModuleNotFoundError: No module named 'torch'"
"""The last line of a program whose Python has no torch."""

TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}
"""Variables that keep trackers from sending or writing anything."""

TRACKERS_ELSEWHERE = {
    "MLFLOW_TRACKING_URI": "file:{scratch}/mlflow",
    "TENSORBOARD_LOGGING_DIR": "{scratch}/tensorboard",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
}
"""Variables that make trackers write elsewhere."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Variables that restrict libraries to what is already downloaded."""

CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
"""Variables that name download folders."""

HELD_BY_SYSTEM = "sandbox"
HELD_BY_PYTHON = "python"
NOT_HELD = "nothing"
"""What holds back a program's writes: overlays, for every kind of writer (`gpudash.system.sandbox`); Python's own
functions (`gpudash.agent.predicting.held_writes`), where the system allows no overlays; nothing, where it may
write."""


@dataclass(frozen=True)
class Launch:
    """How to start a program that is followed.

    Attributes:
        command: program and arguments.
        cards: the cards that it finds, its ``cuda:0`` first.
        steps: how many optimizer steps are followed.
        time_limit_s: processor time for it and its children, in seconds; by the clock three times as many, plus up to
            `MOST_WAITED_S` of waiting for busy processors.
        lets_write: whether it may write files.
        folder: working directory; ``None`` for this process's.
        environment: its environment variables; ``None`` for this process's.
        is_aside: whether it runs in the background, unasked for: without output or network, at the lowest priority.
        is_quiet: whether its output is hidden; an error then quotes its last line.
        holds_output: whether its output is held back where its numbers are not computed: losses and the like would be
            made up. If the program fails, the end is in `Attempt.last_lines`.
        whole_s: processor time in seconds, from its start, in which the program may end by itself before its data
            loaders are stopped early.
        edit: a diff to apply in its folder first; "" for none.
    """

    command: Sequence[str]
    cards: Sequence[Target]
    steps: int = 3
    time_limit_s: float = 60.0
    lets_write: bool = False
    folder: Path | None = None
    environment: Mapping[str, str] | None = None
    is_aside: bool = False
    is_quiet: bool = False
    holds_output: bool = False
    whole_s: float = 0.0
    edit: str = ""


@dataclass
class _Process:
    """A process of the program.

    Attributes:
        furthest: how far it has come, as an index into `NEVER`.
        cpu_steps: its optimizer steps, once it is known that none of them used a GPU.
    """

    connection: socket.socket
    pid: int = 0
    read: bytearray = field(default_factory=bytearray)
    answer: Mapping[str, Any] | None = None
    furthest: int = 0
    cpu_steps: int = 0


class _Printed:
    """Drains a program's output, so that the program never blocks on it, and keeps the end.

    Args:
        stream: the read end of its pipe; closed once the program and all its children have closed theirs.

    Attributes:
        any: whether it has printed anything.
    """

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self._end = b""
        self.any = False
        self._thread = started("gpudash-printed", self._read)

    def last_lines(self) -> list[str]:
        """The last lines that are not blank, as a terminal would show them."""
        self._thread.join(PRINTED_S)
        lines = self._end.decode(errors="replace").split("\n")
        # A progress bar overwrites its own line.
        shown = [line.rstrip().rpartition("\r")[2] for line in lines]
        return list(filter(None, shown))[-LAST_LINES:]

    def _read(self) -> None:
        with self._stream:
            while part := self._stream.read1(MOST_PRINTED_BYTES):
                self.any = True
                self._end = (self._end + part)[-MOST_PRINTED_BYTES:]


@dataclass(frozen=True)
class NotFollowed:
    """Why there is no answer, whether the cause is that no numbers are computed, and what the program held by then."""

    problem: Problem
    because_of_numbers: bool = False
    peak_bytes: int = 0


@dataclass(frozen=True)
class FollowedRun:
    """The answers of the program's processes.

    Attributes:
        answers: one for each process, as `gpudash.simulator.dry_run.programs.program` sends it.
        numbers: as of `Attempt`.
        held_by: what held back its writes.
        began_s: when it was started, as `time.time` counts; its files may have been changed since.
    """

    answers: Sequence[Mapping[str, Any]]
    numbers: str
    held_by: str
    began_s: float = math.inf


class Attempt:
    """One run of a program.

    Args:
        launch: how it is started.
        numbers: "unknown", "guessed" where the program branches on them, or "computed".

    Attributes:
        waited_s: seconds that the program has waited for a processor so far.
    """

    def __init__(self, launch: Launch, numbers: str) -> None:
        self._launch = launch
        self._numbers = numbers
        self.waited_s = 0.0
        self._processes: list[_Process] = []
        self._failure: NotFollowed | None = None
        self._unwinds = False
        self._scratch: PrivateFolder | None = None
        self._printed: list[_Printed] = []

    def run(self, interrupted: Callable[[], bool]) -> FollowedRun | NotFollowed:
        """Start the program, wait for its answers, end it.

        Raises:
            ValueError: one sentence, when it cannot be started.
            KeyboardInterrupt: when ``interrupted``.
        """
        self._began_s = time.time()
        self._folder = Path(tempfile.mkdtemp(prefix="gpudash-"))
        self._selector = selectors.DefaultSelector()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._launch.lets_write:
                self._scratch = None
            else:
                self._scratch = self._sandbox()
            path = self._folder / "socket"
            listener.bind(str(path))
            listener.listen(64)
            self._selector.register(listener, selectors.EVENT_READ)
            self._program = self._start(path)
            try:
                return self._wait(listener, interrupted)
            finally:
                # Also when interrupted: the program must not go on with nobody reading its messages.
                self._end()
                code = self._program.poll()
                logger.info("process %d, the program that is predicted, ended with code %s", self._program.pid, code)
        finally:
            listener.close()
            for process in self._processes:
                process.connection.close()
            self._selector.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._scratch is not None:
                # Overlays leave folders without any permission, which `empty` opens; `remove` alone would fail on
                # them.
                sandbox.empty(str(self._scratch.path / LAYERS))
                self._scratch.remove()

    @property
    def _held_by(self) -> str:
        if self._launch.lets_write:
            return NOT_HELD
        if self._scratch is None:
            return HELD_BY_PYTHON
        return HELD_BY_SYSTEM

    def _sandbox(self) -> PrivateFolder | None:
        """The folder to which overlays redirect writes; ``None`` where overlays are not possible."""
        try:
            scratch = PrivateFolder(data_folder(), ".predicted-")
        except OSError:
            return None
        folder = self._launch.folder
        with suppress(OSError):
            (scratch.path / LAYERS).mkdir()
            if sandbox.can_hold_back(str(scratch.path / LAYERS), None if folder is None else str(folder)):
                return scratch
        scratch.remove()
        return None

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        launch = self._launch
        # A copy, since the caller's launch is used for its next attempt too.
        environment = dict(os.environ if launch.environment is None else launch.environment)
        inject = str(Path(gpudash.__file__).parent / "agent" / "inject")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (inject, environment.get("PYTHONPATH", ""))))
        environment[VARIABLE] = str(path)
        if not launch.lets_write:
            written = self._folder / WRITTEN
            written.mkdir()
            environment |= TRACKERS_OFF
            environment |= {name: value.format(scratch=written) for name, value in TRACKERS_ELSEWHERE.items()}
        if launch.is_aside:
            environment |= OFFLINE
        # The user asked for the prediction, which goes to standard output; the program's output goes to standard
        # error.
        streams: dict[str, Any] = {"stdin": None, "stdout": 2, "stderr": None}
        if launch.is_aside:
            streams = dict.fromkeys(streams, subprocess.DEVNULL)
        elif launch.is_quiet:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        elif launch.holds_output and self._numbers != "computed":
            streams |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            program = subprocess.Popen(
                self._command(environment), cwd=launch.folder, env=environment, start_new_session=True, **streams
            )
        except OSError as error:
            raise ValueError(f"{launch.command[0]} could not be started ({error.strerror or error}).") from None
        logger.info("process %d began: the program that is predicted", program.pid)
        # Errors first: what gets quoted is most often on standard error.
        for stream in (program.stderr, program.stdout):
            if isinstance(stream, BufferedReader):
                self._printed.append(_Printed(stream))
        return program

    @property
    def held_output(self) -> bool:
        """Whether any output was held back."""
        return self._launch.holds_output and any(printed.any for printed in self._printed)

    def last_lines(self) -> list[str]:
        """The end of the output that was not shown: of standard error, or of standard output if that is empty."""
        for printed in self._printed:
            if lines := printed.last_lines():
                return lines
        return []

    def _command(self, environment: dict[str, str]) -> list[str]:
        """The command to start; may add to the environment.

        Raises:
            ValueError: one sentence, if an edit by the program could not be undone.
        """
        launch, command = self._launch, list(self._launch.command)
        if launch.edit:
            if self._scratch is None:
                raise ValueError("No edit is tried where the files of the program would stay edited.")
            edit = self._folder / PATCH_NAME
            edit.write_text(launch.edit, encoding="utf-8")
            command = patching(command, edit)
        if self._scratch is not None:
            layers = str(self._scratch.path / LAYERS)
            kept = [str(self._folder), *([] if launch.is_aside else self._caches(environment))]
            return sandbox.command_in_sandbox(command, layers, kept, as_usual=not launch.is_aside)
        if launch.is_aside:
            return sandbox.command_in_sandbox(command)
        return command

    def _caches(self, environment: Mapping[str, str]) -> list[str]:
        """Download folders, whose contents later runs find again."""
        named = [Path(environment[name]) for name in CACHES if environment.get(name)]
        found = [str(folder.absolute()) for folder in (*named, Path.home() / ".cache")]
        for folder in found:
            with suppress(OSError):
                Path(folder).mkdir(parents=True, exist_ok=True)
        found.append(str(Path.home() / ".keras"))
        return [folder for folder in dict.fromkeys(found) if Path(folder).is_dir()]

    def _config(self) -> dict[str, Any]:
        launch = self._launch
        cards = [
            {
                "product": target.product or "NVIDIA GPU",
                "total_bytes": target.capacity_bytes or LARGEST_CAPACITY,
                **asdict(target.architecture),
            }
            for target in launch.cards
        ]
        home = Path.home()
        caches = [os.environ.get(name, "") for name in CACHES]
        return {
            "package": str(Path(gpudash.__file__).parent),
            "folder": str(self._folder),
            "cards": cards,
            "steps": launch.steps,
            "whole_s": launch.whole_s,
            "numbers": self._numbers,
            "lets_write": launch.lets_write,
            "scratch": str(self._folder / WRITTEN) if self._held_by == HELD_BY_PYTHON else "",
            "caches": [*filter(None, caches), str(home / ".cache"), str(home / ".keras")],
            "temporary": list(dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))),
        }

    def _wait(self, listener: socket.socket, interrupted: Callable[[], bool]) -> FollowedRun | NotFollowed:
        began = time.monotonic()
        limit_s = self._launch.time_limit_s
        longest_s = 3.0 * limit_s
        seen_s = 0.0
        due = 0.0
        while True:
            self._hear(listener)
            if self._failure is not None:
                return self._failure
            found = self._followed()
            # Answers are checked before the exit code: a program may end right after it has answered.
            if found is not None:
                return found
            if interrupted():
                raise KeyboardInterrupt
            code = self._program.poll()
            if code is not None:
                # Its last message may still be in the socket.
                self._hear(listener)
                found = None
                if not code:
                    found = self._followed(ended=True)
                return self._failure or found or self._ended(code)
            if time.monotonic() >= due:
                # The processor time of a tree shrinks when a child ends and its parent does not wait for it.
                seen_s = max(seen_s, _processor_s(self._program.pid))
                self.waited_s = max(self.waited_s, _waited_s(self._program.pid))
                due = time.monotonic() + COUNT_S
            passed_s = time.monotonic() - began - min(self.waited_s, MOST_WAITED_S)
            if seen_s > limit_s or passed_s > longest_s:
                # A partial answer is worth more than the error that the run took too long.
                return self._followed(ended=True) or self._too_long(time.monotonic() - began, seen_s)

    def _hear(self, listener: socket.socket) -> None:
        for key, _events in self._selector.select(TICK_S):
            if key.fileobj is listener:
                connection, _address = listener.accept()
                process = _Process(connection)
                self._processes.append(process)
                self._selector.register(connection, selectors.EVENT_READ, process)
            else:
                self._take(key.data)

    def _take(self, process: _Process) -> None:
        try:
            part = process.connection.recv(2**20)
        except OSError:
            part = b""
        if not part or len(process.read) > MOST_MESSAGE_BYTES:
            self._selector.unregister(process.connection)
            return
        process.read += part
        # The part before has no line end, or it would have been read: only search the new part.
        while (end := process.read.find(b"\n", max(0, len(process.read) - len(part)))) >= 0:
            line = bytes(process.read[:end])
            del process.read[: end + 1]
            with suppress(ValueError, KeyError, TypeError):  # another's message, of another version
                self._take_message(process, json.loads(line))

    def _take_message(self, process: _Process, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "hello":
            process.pid = int(message["pid"])
            process.connection.sendall(json.dumps(self._config()).encode() + b"\n")
        elif kind == "torch":
            process.furthest = NEVER.index(NEVER_CUDA)
        elif kind == "cuda":
            process.furthest = NEVER.index(NEVER_STEPS)
        elif kind == "unused":
            process.cpu_steps = int(message["steps"])
            torch_processes = [one for one in self._processes if one.furthest >= NEVER.index(NEVER_CUDA)]
            # A process without a step may be the one that will use the GPU, so every process with torch must be known
            # to stay off it.
            if all(one.cpu_steps for one in torch_processes):
                self._failure = self._trains_on_cpu(process.cpu_steps)
        elif kind == "answer":
            process.answer = message
        elif kind == "failed":
            self._unwinds = True
            problem = Problem(**message["error"])
            self._failure = NotFollowed(
                problem,
                because_of_numbers=bool(message["because_of_numbers"]) and self._numbers == "unknown",
                peak_bytes=int(message["peak_bytes"]),
            )
        elif kind == "unavailable":
            why = f"No prediction can be made in this program's Python: {message['message'].rstrip('.')}."
            self._failure = NotFollowed(Problem("unavailable", why))

    def _answers(self) -> list[Mapping[str, Any]]:
        return [process.answer for process in self._processes if process.answer is not None]

    def _followed(self, *, ended: bool = False) -> FollowedRun | None:
        """The answers, once every rank has sent one; those there are, once the program has ended."""
        answers = [answer for answer in self._answers() if answer["cards"]]
        # A process that reports its end has not ended yet: it may still fail, and its answer is then of half a run.
        if not answers or (not ended and any(answer["ended"] for answer in answers)):
            return None  # its exit code says whether it came to its end
        wanted = int(answers[0]["world_size"])
        ranks = {answer["rank"] for answer in answers}
        if ended or len(ranks) >= wanted:
            return FollowedRun(answers, self._numbers, self._held_by, self._began_s)
        return None

    def _ended(self, code: int) -> NotFollowed:
        name = script_name(self._launch.command)
        if code == sandbox.NOT_HELD_BACK and self._scratch is not None:
            return NotFollowed(Problem("unavailable", f"What {name} writes could not be held back."))
        how = f"{name} {exit_text(code)}"
        if code:
            if not self._furthest() and self.last_lines()[-1:] == [WITHOUT_TORCH]:
                python = self._launch.command[0]
                return NotFollowed(
                    Problem("unavailable", f"{python} has no torch, which {name} imports.", OTHER_PYTHON)
                )
            reason = SEE_PRINTED
            if self._launch.is_quiet:
                last = self.last_lines() or ["nothing"]
                reason = f"The last line it printed: {last[-1].strip()}"
            return NotFollowed(Problem("raised", f"{how} before it could be predicted.", reason))
        what = NEVER[self._furthest()]
        remedy = "Predict a program that uses CUDA, and in a Python that is the program's own."
        return NotFollowed(Problem("left_the_device", f"{how} and {what}.", remedy))

    def _trains_on_cpu(self, steps: int) -> NotFollowed:
        name = script_name(self._launch.command)
        took = f"{name} has taken {steps} steps of its optimizer and {NEVER_CUDA}."
        return NotFollowed(Problem("left_the_device", took, "See whether it has an option that lets it use CUDA."))

    def _too_long(self, waited_s: float, processor_s: float) -> NotFollowed:
        where = self._stack()
        what = NEVER[self._furthest()]
        name = script_name(self._launch.command)
        at = ""
        if where:
            at = f"; it stands at {where}"
        stands = f"{name} {what} in {waited_s:.0f} s ({processor_s:.0f} s of processor time){at}."
        more = MORE_TIME.format(seconds=self._launch.time_limit_s * 4)
        return NotFollowed(Problem("no_step", stands, more))

    def _furthest(self) -> int:
        return max((process.furthest for process in self._processes), default=0)

    def _stack(self) -> str:
        """Where the program stands: the innermost line of its own code, in the process that is furthest."""
        for process in sorted(self._processes, key=lambda process: -process.furthest):
            path = self._folder / f"stack-{process.pid}"
            with suppress(OSError):
                # On SIGUSR2 `faulthandler` writes the main thread's stack (`agent/predicting`), whatever that thread
                # is doing.
                os.kill(process.pid, signal.SIGUSR2)
                deadline = time.monotonic() + STACK_S
                while not path.stat().st_size and time.monotonic() < deadline:
                    time.sleep(TICK_S)
                return standing(read_regular_text(path, MOST_STACK_BYTES))
        return ""

    def _end(self) -> None:
        """End the program and its children: SIGINT first, then SIGTERM, then SIGKILL.

        A program in the background has nothing to save.
        """
        program = self._program
        # Exceptions from here on are caused by our signals, and are not reported as the program's own.
        (self._folder / ENDING).touch()
        if self._launch.is_aside:
            send_in_turn(program, [(signal.SIGKILL, KILLED_S)], self._pids)
            return
        if self._unwinds or any(answer["ended"] for answer in self._answers()):
            with suppress(subprocess.TimeoutExpired):  # it is about to end by itself
                program.wait(TERMINATE_S)
        patience = [(signal.SIGINT, SHUTDOWN_S), (signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, KILLED_S)]
        send_in_turn(program, patience, self._pids)

    def _pids(self) -> list[int]:
        return [process.pid for process in self._processes]


def send_in_turn(
    program: subprocess.Popen[bytes],
    signals: Sequence[tuple[signal.Signals, float]],
    others: Callable[[], Sequence[int]] = list,
) -> None:
    """Send signals one after another, each with its time limit in seconds, until nothing of a program runs.

    Args:
        program: leads a process group of its own.
        others: returns the PIDs of processes that belong to it besides its descendants.
    """
    there: dict[int, psutil.Process] = {}
    for number, patience_s in signals:
        # List the processes again for each signal: some may have been started since, as by a handler of SIGINT.
        for process in _tree(program.pid, others()):
            there[process.pid] = process
        alive = list(filter(runs, there.values()))
        if program.poll() is not None and not alive and not _has_members(program.pid):
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, number)
        for process in alive:
            # SIGINT went to the whole group by `killpg`; a second one would interrupt the cleanup that the first one
            # began.
            if number is not signal.SIGINT or program.returncode is not None:
                with suppress(psutil.Error, OSError):
                    process.send_signal(number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and (program.poll() is None or any(map(runs, there.values()))):
            time.sleep(TICK_S)
    program.wait()


def _has_members(group: int) -> bool:
    """Whether a process group has members, not counting its leader once that has been waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def script_name(command: Sequence[str]) -> str:
    """The name of a command: its script, also when a launcher such as torchrun starts it."""
    name = program_name(command)
    scripts = (Path(word).name for word in command if word.endswith((".py", ".sh")))
    if name.endswith(".py"):
        return name
    return next(scripts, name)


def standing(text: str) -> str:
    """The innermost line of the program's own code in `faulthandler`'s output, else of any code: ``train.py:12``."""
    lines = []
    for line in text.splitlines():
        place, _, rest = line.strip().removeprefix("File ").partition(", line ")
        number = rest.split(" ", 1)[0]
        if rest and number.isdecimal():
            lines.append((place.strip('"'), number))
    # Without the libraries': installed packages, and what has no file ("<frozen …>").
    own = [
        line for line in lines if "/lib/python" not in line[0] and "-packages/" not in line[0] and "<" not in line[0]
    ]
    if not lines:
        return ""
    path, number = (own or lines)[0]
    with suppress(ValueError):
        path = str(Path(path).relative_to(Path.cwd()))
    return f"{path}:{number}"


def _tree(pid: int, others: Sequence[int]) -> list[psutil.Process]:
    found = []
    for number in (pid, *others):
        with suppress(psutil.Error):
            process = psutil.Process(number)
            found += [process, *process.children(recursive=True)]
    return [process for process in found if process.pid != os.getpid()]


def _waited_s(pid: int) -> float:
    """The longest that a process of the tree has waited for a processor, in seconds."""
    return max((waited_seconds(process.pid) for process in _tree(pid, ())), default=0.0)


def _processor_s(pid: int) -> float:
    """Processor time of a process and all its descendants, in seconds."""
    total = 0.0
    for process in _tree(pid, ()):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
