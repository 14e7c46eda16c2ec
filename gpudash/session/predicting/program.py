"""A user's program, run as it is without a GPU until it is known what it asks of one: ``gpudash estimate -- COMMAND``.

The program runs in a session and process group of its own. What its processes say comes by a socket in a private
folder; see `gpudash.agent.predicting`.
"""

from __future__ import annotations

import json
import logging
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
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import gpudash
from gpudash.agent.predicting import ENDING, VARIABLE
from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.estimate import Estimate, Target, judge
from gpudash.memory.predicting.rank_estimates import of_halves, ranks_on
from gpudash.session.predicting.estimator import Problem
from gpudash.session.watching.program import SHUTDOWN_S, TERMINATE_S, exit_words, runs
from gpudash.session.watching.request import WatchRequest, check_request, program_name
from gpudash.system.foreign_files import read_regular_text
from gpudash.workloads.predicting.device_fit import unchanged

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""How often Ctrl+C is noticed."""

COUNT_S = 0.5
"""How often the program's processor time is read."""

MOST_STACK_BYTES = 2**20
"""Of what it writes."""

STACK_S = 2.0
"""How long a process has for writing where it stands."""

MOST_MESSAGE_BYTES = 2**31
"""Of one answer: a trace of a long run has some hundred MB."""

WITH_NUMBERS_RATIO = 2.0
"""A run with numbers takes at least what it holds on the GPU of this computer's memory; so much more is asked for."""

EACH = "each rank of the program"
EACH_CARD = "each GPU of the program"

NEVER_TORCH = "has not imported torch"
NEVER_CUDA = "has asked nothing of a GPU"
NEVER_STEPS = "has not taken its steps"
NEVER = (NEVER_TORCH, NEVER_CUDA, NEVER_STEPS)
"""What a program has not done, in the order in which it does it."""

OFF_SWITCHES = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:{scratch}/mlflow",
    "TENSORBOARD_LOGGING_DIR": "{scratch}/tensorboard",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
}
"""Variables by which trackers write nothing, or elsewhere."""


@dataclass(frozen=True)
class ProgramQuestion:
    """What is asked of a program.

    Attributes:
        command: program and arguments.
        target: where it is to fit: the first card.
        others: further cards, those that its ranks have.
        steps: of its optimizer that are followed.
        time_limit_s: processor time that it has, with what it starts, in seconds; by the clock three times as many.
        lets_write: whether it may write files.
        alternatives: whether to look for what would let it fit as it is.
    """

    command: Sequence[str]
    target: Target
    others: Sequence[Target] = ()
    steps: int = 3
    time_limit_s: float = 60.0
    lets_write: bool = False
    alternatives: bool = True


@dataclass
class _Process:
    """One of the program's processes.

    Attributes:
        furthest: how far it has come, as a place in `NEVER`.
        cpu_steps: steps of its optimizer, once it is known that nothing of them is on a GPU.
    """

    connection: socket.socket
    pid: int = 0
    read: bytearray = field(default_factory=bytearray)
    answer: Mapping[str, Any] | None = None
    furthest: int = 0
    cpu_steps: int = 0


@dataclass(frozen=True)
class ProgramAnswer:
    """What came of a question: an estimate, or why there is none."""

    estimate: Estimate | None = None
    problem: Problem | None = None


def predict_program(
    question: ProgramQuestion, interrupted: Callable[[], bool], notice: Callable[[str], None]
) -> ProgramAnswer:
    """Run a program until it can be said what it takes, and end it.

    Args:
        question: the program.
        interrupted: whether the user wants no answer any more; ends the program.
        notice: is given, in a sentence, what the user should know while it goes on.

    Raises:
        ValueError: one sentence, when it cannot be started.
        KeyboardInterrupt: when ``interrupted``.
    """
    check_request(WatchRequest(command=question.command))
    _check_options(question.command)
    began = time.perf_counter()
    found = _Attempt(question, "unknown").run(interrupted)
    if isinstance(found, _Failure) and found.because_of_numbers:
        computes = found.peak_bytes * WITH_NUMBERS_RATIO <= int(psutil.virtual_memory().available)
        how = (
            "with numbers, which takes longer"
            if computes
            else "and goes on by guesses, since it is too large for this computer"
        )
        notice(f"{found.problem.message} The program is started again, {how}.")
        found = _Attempt(question, "computed" if computes else "guessed").run(interrupted)
    if isinstance(found, _Failure):
        return ProgramAnswer(problem=found.problem)
    estimate = _judged(question, found)
    return ProgramAnswer(replace(estimate, seconds=time.perf_counter() - began))


@dataclass(frozen=True)
class _Failure:
    """Why there is no answer; whether that is since nothing is computed, and what the program held until then."""

    problem: Problem
    because_of_numbers: bool = False
    peak_bytes: int = 0


@dataclass(frozen=True)
class _Followed:
    """What the processes of a program answered."""

    answers: Sequence[Mapping[str, Any]]
    numbers: str


class _Attempt:
    """One run of the program.

    Args:
        question: the program.
        numbers: "unknown", "guessed" where it decides by them, or "computed".
    """

    def __init__(self, question: ProgramQuestion, numbers: str) -> None:
        self._question = question
        self._numbers = numbers
        self._processes: list[_Process] = []
        self._failure: _Failure | None = None
        self._unwinds = False

    def run(self, interrupted: Callable[[], bool]) -> _Followed | _Failure:
        """Start the program, wait for its answers, end it."""
        self._folder = Path(tempfile.mkdtemp(prefix="gpudash-"))
        self._selector = selectors.DefaultSelector()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path = self._folder / "socket"
            listener.bind(str(path))
            listener.listen(64)
            self._selector.register(listener, selectors.EVENT_READ)
            self._program = self._start(path)
            try:
                return self._wait(listener, interrupted)
            finally:
                self._end()
                code = self._program.poll()
                logger.info("process %d, the program that is predicted, ended with code %s", self._program.pid, code)
        finally:
            listener.close()
            for process in self._processes:
                process.connection.close()
            self._selector.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        inject = str(Path(gpudash.__file__).parent / "agent" / "inject")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (inject, environment.get("PYTHONPATH", ""))))
        environment[VARIABLE] = str(path)
        if not self._question.lets_write:
            scratch = self._folder / "written"
            scratch.mkdir()
            environment |= {name: value.format(scratch=scratch) for name, value in OFF_SWITCHES.items()}
        try:
            program = subprocess.Popen(list(self._question.command), env=environment, stdout=2, start_new_session=True)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"{self._question.command[0]} could not be started ({reason}).") from None
        logger.info("process %d began: the program that is predicted", program.pid)
        return program

    def _config(self) -> dict[str, Any]:
        question = self._question
        cards = [
            {
                "product": target.product or "NVIDIA GPU",
                "total_bytes": target.capacity_bytes or LARGEST_CAPACITY,
                **asdict(target.architecture),
            }
            for target in (question.target, *question.others)
        ]
        home = Path.home()
        caches = [os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")]
        return {
            "package": str(Path(gpudash.__file__).parent),
            "folder": str(self._folder),
            "cards": cards,
            "steps": question.steps,
            "numbers": self._numbers,
            "scratch": "" if question.lets_write else str(self._folder / "written"),
            "caches": [*filter(None, caches), str(home / ".cache"), str(home / ".keras")],
            "temporary": list(dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))),
        }

    def _wait(self, listener: socket.socket, interrupted: Callable[[], bool]) -> _Followed | _Failure:
        began = time.monotonic()
        limit_s = self._question.time_limit_s
        longest_s = 3.0 * limit_s
        seen_s = 0.0
        due = 0.0
        while True:
            self._hear(listener)
            if self._failure is not None:
                return self._failure
            found = self._followed()
            if found is not None:
                return found
            if interrupted():
                raise KeyboardInterrupt
            code = self._program.poll()
            if code is not None:
                self._hear(listener)
                found = None if code else self._followed(ended=True)
                return self._failure or found or self._ended(code)
            if time.monotonic() >= due:
                seen_s = max(seen_s, _processor_s(self._program.pid))
                due = time.monotonic() + COUNT_S
            if seen_s > limit_s or time.monotonic() - began > longest_s:
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
            if all(one.cpu_steps for one in torch_processes):
                self._failure = self._trains_on_cpu(process.cpu_steps)
        elif kind == "answer":
            process.answer = message
        elif kind == "failed":
            self._unwinds = True
            problem = Problem(**message["error"])
            self._failure = _Failure(
                problem,
                because_of_numbers=bool(message["because_of_numbers"]) and self._numbers == "unknown",
                peak_bytes=int(message["peak_bytes"]),
            )
        elif kind == "unavailable":
            why = f"No prediction can be made in this program's Python: {message['message'].rstrip('.')}."
            self._failure = _Failure(Problem("unavailable", why))

    def _followed(self, *, ended: bool = False) -> _Followed | None:
        """What was answered, once every rank has; what there is where the program has ended."""
        answers = [process.answer for process in self._processes if process.answer is not None]
        answers = [answer for answer in answers if answer["cards"]]
        if not answers or (not ended and any(answer["ended"] for answer in answers)):
            return None  # its exit code says whether it came to its end
        wanted = int(answers[0]["world_size"])
        ranks = {answer["rank"] for answer in answers}
        return _Followed(answers, self._numbers) if ended or len(ranks) >= wanted else None

    def _ended(self, code: int) -> _Failure:
        name = script_name(self._question.command)
        how = f"{name} {exit_words(code)}"
        if code:
            return _Failure(Problem("raised", f"{how} before it was followed.", "Its reason is in what it printed."))
        what = NEVER[self._furthest()]
        remedy = "Predict a program that uses CUDA, and in a Python that is the program's own."
        return _Failure(Problem("left_the_device", f"{how} and {what}.", remedy))

    def _trains_on_cpu(self, steps: int) -> _Failure:
        name = script_name(self._question.command)
        took = f"{name} has taken {steps} steps of its optimizer and {NEVER_CUDA}."
        return _Failure(Problem("left_the_device", took, "See whether it has an option that lets it use CUDA."))

    def _too_long(self, waited_s: float, processor_s: float) -> _Failure:
        where = self._stack()
        what = NEVER[self._furthest()]
        name = script_name(self._question.command)
        at = f"; it stands at {where}" if where else ""
        stands = f"{name} {what} in {waited_s:.0f} s ({processor_s:.0f} s of processor time){at}."
        more = f"Allow it more: --time-limit {self._question.time_limit_s * 4:g}."
        return _Failure(Problem("no_step", stands, more))

    def _furthest(self) -> int:
        return max((process.furthest for process in self._processes), default=0)

    def _stack(self) -> str:
        """Where the program stands: the innermost line of its own, of the process that is the furthest."""
        for process in sorted(self._processes, key=lambda process: -process.furthest):
            path = self._folder / f"stack-{process.pid}"
            with suppress(OSError):
                os.kill(process.pid, signal.SIGUSR2)
                deadline = time.monotonic() + STACK_S
                while not path.stat().st_size and time.monotonic() < deadline:
                    time.sleep(TICK_S)
                return standing(read_regular_text(path, MOST_STACK_BYTES))
        return ""

    def _end(self) -> None:
        """End the program and what it has started: SIGINT first, then SIGTERM, then SIGKILL."""
        program = self._program
        (self._folder / ENDING).touch()
        answers = [process.answer for process in self._processes if process.answer is not None]
        if self._unwinds or any(answer["ended"] for answer in answers):
            with suppress(subprocess.TimeoutExpired):  # it is about to end by itself
                program.wait(TERMINATE_S)
        there: dict[int, psutil.Process] = {}
        for number, patience_s in ((signal.SIGINT, SHUTDOWN_S), (signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, 3.0)):
            for process in _tree(program.pid, [process.pid for process in self._processes]):
                there[process.pid] = process
            alive = [process for process in there.values() if runs(process)]
            if program.poll() is not None and not alive and not _has_members(program.pid):
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, number)
            for process in alive:
                if number is not signal.SIGINT or program.returncode is not None:
                    with suppress(psutil.Error, OSError):
                        process.send_signal(number)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline and (program.poll() is None or any(map(runs, there.values()))):
                time.sleep(TICK_S)
        program.wait()


def _has_members(group: int) -> bool:
    """Whether a process group has a process, its first one aside where that has been waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _check_options(command: Sequence[str]) -> None:
    """Make sure that Python loads what predicts: without it the program would run as ever.

    Raises:
        ValueError: one sentence, when it does not.
    """
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--") or word[1] in "cmWX":
            return
        if ignoring := set(word[1:]) & set("IES"):
            flag = f"-{min(ignoring)}"
            raise ValueError(f"With {flag} Python does not load what predicts the program; leave {flag} out.")


def script_name(command: Sequence[str]) -> str:
    """What a command is called: its script, also where a launcher such as torchrun starts that."""
    name = program_name(command)
    scripts = (Path(word).name for word in command if word.endswith((".py", ".sh")))
    return name if name.endswith(".py") else next(scripts, name)


def standing(text: str) -> str:
    """The innermost line of a program's own in what `faulthandler` wrote, else of all: ``train.py:12``."""
    lines = []
    for line in text.splitlines():
        place, _, rest = line.strip().removeprefix("File ").partition(", line ")
        number = rest.split(" ", 1)[0]
        if rest and number.isdecimal():
            lines.append((place.strip('"'), number))
    own = [
        line for line in lines if "/lib/python" not in line[0] and "-packages/" not in line[0] and "<" not in line[0]
    ]
    if not lines:
        return ""
    path, number = (own or lines)[0]
    here = Path.cwd()
    shown = Path(path).relative_to(here) if Path(path).is_relative_to(here) else path
    return f"{shown}:{number}"


def _tree(pid: int, others: Sequence[int]) -> list[psutil.Process]:
    found = []
    for number in (pid, *others):
        with suppress(psutil.Error):
            process = psutil.Process(number)
            found += [process, *process.children(recursive=True)]
    return [process for process in found if process.pid != os.getpid()]


def _processor_s(pid: int) -> float:
    """Processor time of a process and of all that it has started, in seconds."""
    total = 0.0
    for process in _tree(pid, ()):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _judged(question: ProgramQuestion, found: _Followed) -> Estimate:
    """What the program comes to, by what its processes asked of their cards."""
    targets = [question.target, *question.others]
    name = script_name(question.command)
    ranked = sorted(found.answers, key=lambda answer: answer["rank"] or 0)
    asked = [(answer, card) for answer in ranked for card in answer["cards"]]
    places = [_card(targets, int(card["index"])) for _answer, card in asked]
    if len(ranked) > 1:
        places = list(ranks_on(places))
    judged = []
    for (answer, card), place in zip(asked, places, strict=True):
        trace = Trace.from_json(card["trace"])
        one = judge(trace, place, name)
        if question.alternatives and place.room_bytes is not None and not one.has_room:
            one = replace(one, alternatives=tuple(unchanged(partial(_same, trace), place, one, ())))
        judged.append(replace(one, by_line=dict(card["lines"]), assumptions=tuple(answer["assumptions"])))
    what = EACH if len(ranked) > 1 else EACH_CARD
    estimate = judged[0] if len(judged) == 1 else of_halves(judged, what)
    assumptions = tuple(dict.fromkeys(said for answer in ranked for said in answer["assumptions"]))
    method = estimate.method
    if found.numbers == "computed":
        method = method.replace("dry run on sizes alone", "run with numbers on a simulated GPU")
    first = ranked[0]
    return replace(
        estimate, assumptions=assumptions, method=method, torch=str(first["torch"]), remark=str(first["remark"])
    )


def _same(trace: Trace, _where: Target) -> Trace:
    """What a program asks of any card: it was not run on another."""
    return trace


def _card(targets: Sequence[Target], index: int) -> Target:
    if index < len(targets):
        return targets[index]
    kind = targets[-1].device.partition(":")[0]
    return replace(targets[-1], device=f"{kind}:{index}")
