"""``gpudash watch``: the user's own program under the dashboard, without a screen."""

import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from gpudash.cli.terminal.flags import SIMULATED, Pid, RecordOptions, ServeOptions, Simulated, SimulateOptions, begin
from gpudash.cli.terminal.interruption import leave_terminal, stop_signals
from gpudash.cli.terminal.live_status import LiveStatus
from gpudash.cli.terminal.output import OF_STATUS, Exit, RequestError, leave, print_json, print_notice
from gpudash.units import format_left

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.watching.program import StopProgress

POLL_S = 0.1
"""How soon Ctrl+C and news of the program are noticed."""

STUCK_S = 5.0
"""Longest wait, after a request to stop, for one message of the program to be taken in."""

STUCK = (
    "gpudash: what the program has sent is still being read, perhaps from a file system that does not answer. "
    "gpudash leaves; the program may go on."
)

SAME_PRESS_S = 0.25
"""Signals that follow one another sooner are one press: a key that is held down repeats, and what has started gpudash
may pass on what the terminal has sent to both."""

FIRST_NOTICE_S, LONGEST_BETWEEN_NOTICES_S = 5.0, 60.0
"""When it is first said how long the program has been waited for; then after twice the time, at most so much later."""

SIGNALLED = 128
"""A shell adds it to the number of the signal that ended a program."""

_ORDINALS = {2: "second ", 3: "third "}

REMEDY = "Write for example: gpudash watch -- python train.py --epochs 3"


@Parameter(name="*")
@dataclass(kw_only=True)
class WatchOptions(ServeOptions, RecordOptions, SimulateOptions):
    """What belongs to the command rather than to the program."""

    simulate: Annotated[Simulated, SIMULATED] = field(default_factory=list)
    """Simulate a GPU with this much memory (8GiB), or one by its name (h100; gpudash devices --known lists them), for
    the program, which calls it sim:0; repeat for sim:1 and so on."""

    as_cuda: Annotated[bool, Parameter(negative=""), SIMULATED] = False
    """Let the GPU of --simulate answer for CUDA, so that a script that says "cuda" runs on it, unchanged."""

    folder: Path | None = None
    """Folder to run the command in; left out: this one."""

    memory_history: bool = True
    """Record who allocates what, for naming lines that grow and for explaining an out-of-memory. It keeps the newest
    100,000 events and costs up to 10 % of a program's time."""

    metric_pattern: str = ""
    """Read losses from what the command prints by this regular expression instead of by the names of fields: its groups
    loss, accuracy, step and epoch count, as in `it (?P<step>[0-9]+) L=(?P<loss>[-+.e0-9]+)`."""

    find_need: bool | None = None
    """After an out-of-memory, run the command again, without numbers or on a larger simulated GPU, to find out what the
    whole run needs: without output, network or lasting files, at the lowest priority, for 10 min at most. Left out: at
    most twice as long as it took to fail, where what it writes can be held back. Ctrl+C leaves it."""

    attach: Pid | None = None
    """Watch a running process by its number instead of starting a command: from inside where its Python is 3.14 or
    newer, or it was started as --prepare says; else from outside. Ctrl+C leaves it, and undoes what was done in it."""

    with_: Annotated[Literal["gdb"] | None, Parameter(name="--with")] = None
    """Go inside the process by a debugger, and no other way. It stands still for a moment."""

    prepare: Annotated[bool, Parameter(negative="")] = False
    """Print the lines that let --attach go inside whatever Python a shell starts from now on, which costs nothing until
    then: eval "$(gpudash watch --prepare)"."""

    exit_code: Literal["program", "gpudash"] = "program"
    """End with the program's exit code as a shell tells it: 128 and its number for a signal, 127 where there is no such
    program, 126 where it cannot be executed; or with gpudash's own: 1 the program failed, 3 out of memory, 130
    interrupted. 2 is a wrong request either way."""

    quiet: Annotated[bool, Parameter(negative="")] = False
    """Show no status line, which a terminal has below what the program prints."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print the outcome as one JSON document; what the command prints goes to standard error, in whole lines."""


def watch(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)], options: WatchOptions | None = None
) -> int:
    """Run your own program and watch it: gpudash watch [OPTIONS] -- COMMAND ...

    The program is not changed, and its environment only by PYTHONPATH and variables that begin with GPUDASH_. What it
    prints passes through pipes, by lines as on a terminal. Ctrl+C sends it one SIGINT and waits for it as long as it
    takes; a second one sends SIGTERM, a third one SIGKILL. Where the terminal is closed, or gpudash is sent SIGTERM, it
    has 10 s after SIGINT, and 3 s after SIGTERM. Killing gpudash itself leaves it running. A process that is attached
    to is never signalled.
    """
    options = options or WatchOptions()
    if options.prepare:
        return _prepare(command, options)
    _require_one(command, options)
    # The handlers are in place before the program is started: from then on Ctrl+C is meant for it.
    signals = _StopSignals()
    # With --json the program's output goes to standard error in whole lines, and a status line would be torn by it.
    no_line = options.quiet or options.json or options.attach is not None
    with options.served() as served, signals.handled(), LiveStatus(quiet=no_line) as status:
        session = _started(options)
        _begin(session, command, options, status.descriptor)
        status.begin()
        shown, notices = _Shown(session, status), _StopNotices(status)
        try:
            served.begin(session)
            # The wait is short and repeated: a handler for signals runs only between two calls of this thread.
            while not session.runs.wait(POLL_S):
                signals.pass_on(session)
                notices.refresh(session.runs.stopping)
                shown.refresh()
                status.refresh(session)
                # Only after a request to stop: until then a slow file system is no reason to leave a program
                # alone.
                if session.runs.stopping is not None and session.runs.busy_s > STUCK_S:
                    status.notice(STUCK)
                    break
            # The line goes away before the last notices are printed, which would otherwise be written over it.
            status.end()
            shown.refresh()
        finally:
            status.end()
            served.close()
            joined = session.close() and served.joined
            for text in session.undelivered:
                print_notice(text)
    summary = _summary(session)
    if options.json:
        print_json(summary)
    else:
        from gpudash.cli.terminal.report import print_watched

        print_watched(summary)
    return leave(_exit_code(summary, options), joined)


def _exit_code(summary: Mapping[str, Any], options: WatchOptions) -> int:
    """The program's exit code as a shell tells it, or gpudash's own for the outcome.

    It is gpudash's own, too, where the program's is not known, as of a process that was attached to, and where gpudash
    has ended the program because its GPU could not be simulated.
    """
    own, error = OF_STATUS[summary["status"]], summary["error"] or {}
    code: int | None = summary["exit_code"]
    # A program whose GPU could not be simulated was ended by gpudash: its signal would read as its own failure.
    if options.exit_code == "gpudash" or code is None or error.get("kind") == "simulation":
        return own
    # Popen tells a signal as a negative number.
    if code < 0:
        return SIGNALLED - code
    return code


def _prepare(command: Sequence[str], options: WatchOptions) -> int:
    """Print what a shell sets so that its programs can be attached to."""
    if command or options.attach is not None:
        raise RequestError("--prepare only prints lines for a shell.", 'Write: eval "$(gpudash watch --prepare)"')
    from gpudash.session.watching.attaching.entry_methods import PREPARED

    sys.stdout.write("".join(f"export {name}={value}\n" for name, value in PREPARED.items()))
    return Exit.FINISHED


def _require_one(command: Sequence[str], options: WatchOptions) -> None:
    if command and command[0].startswith("-"):
        raise _no_option(command[0])
    if options.attach is None and not command:
        raise RequestError("There is no command to watch.", REMEDY)
    if options.attach is not None and command:
        raise RequestError("Either a command is started or a running process is watched, not both.", REMEDY)
    if options.as_cuda and not options.simulate and options.attach is None:
        raise RequestError(
            "--as-cuda lets a simulated GPU answer for CUDA, and none is simulated.",
            "Write for example: gpudash watch --simulate 24GiB --as-cuda -- python train.py",
        )
    if options.attach is not None and (options.as_cuda or options.simulate or options.simulate_others):
        raise RequestError("A running process cannot be given a simulated GPU.", "Start it with gpudash watch instead.")
    if options.attach is None and options.with_ is not None:
        raise RequestError("--with says how to go inside a running process.", "Name it by --attach PID.")


def _no_option(word: str) -> RequestError:
    """What to say of a flag that is none of ours, which is taken for the beginning of the program's command."""
    from cyclopts import App

    from gpudash.specs.invalid import did_you_mean

    app = App()
    app.default(watch)
    # The names are those that the parser itself knows, so that no second list has to be kept.
    there = [name for argument in app.assemble_argument_collection() for name in argument.names]
    hint = did_you_mean(word.partition("=")[0], [name for name in there if name.startswith("--")])
    return RequestError(f"gpudash watch has no option {word}{hint}.", "gpudash watch --help lists what there is.")


def _started(options: WatchOptions) -> "Session":
    """A session that has begun.

    Raises:
        RequestError: when the GPUs cannot be simulated, or the recording cannot be written.
    """
    simulation = replace(options.simulation(), offered=False)  # the program cannot use one that it was not given
    session = options.session("watch", simulation)
    begin(session, worker=False)
    return session


def _begin(session: "Session", command: Sequence[str], options: WatchOptions, status: int | None) -> None:
    """Start the program in a session.

    Args:
        status: descriptor that brings the status line; ``None`` where there is none.

    Raises:
        RequestError: when there is no such program or process.
    """
    from gpudash.session import WatchRequest
    from gpudash.session.watching.request import CannotExecuteError, ProgramNotFoundError

    # What was printed so far stands before the program's first line, which is written past this buffer.
    try:
        if options.attach is not None:
            session.attach(options.attach, by_gdb=options.with_ == "gdb", memory_history=options.memory_history)
            return
        # Forgotten again: a command that never began leaves no recording behind.
        sys.stdout.flush()
        request = WatchRequest(
            command=command,
            folder=options.folder,
            simulate=options.simulate,
            simulate_others=options.simulate_others,
            as_cuda=options.as_cuda,
            memory_history=options.memory_history,
            metric_pattern=options.metric_pattern,
            find_need=options.find_need,
            echo="stderr" if options.json else "in place",
            status=status,
        )
        session.watch(request)
    except ValueError as error:
        refusal = RequestError(str(error))
        if options.exit_code == "program" and isinstance(error, ProgramNotFoundError):
            refusal.code = Exit.NOT_FOUND
        elif options.exit_code == "program" and isinstance(error, CannotExecuteError):
            refusal.code = Exit.CANNOT_EXECUTE
        refusal.joined = session.close()
        if session.recording_path is not None:
            session.recording_path.unlink(missing_ok=True)
        raise refusal from None


class _StopSignals:
    """Signals that ask gpudash to stop. A Ctrl+C counts each time; the end of the terminal, and SIGTERM, once, since
    kernel, shell and scheduler send them several times over.

    A handler only takes note: one that did more could wait for the very code it interrupted.
    """

    def __init__(self) -> None:
        self._presses = self._passed_on = 0
        self._newest_s = -math.inf
        self._shutdown = ""
        self._shut_down = False

    def pass_on(self, session: "Session") -> None:
        """Pass on what has come since."""
        # One at a time: each press is a stage of its own, SIGINT, SIGTERM and SIGKILL, even when several came at
        # once.
        while self._passed_on < self._presses:
            self._passed_on += 1
            session.stop_run(f"after your {_ORDINALS.get(self._passed_on, '')}Ctrl+C")
        if self._shutdown and not self._shut_down:
            self._shut_down = True
            session.stop_run(self._shutdown, shutdown=True)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Take note of signals until the block is left."""
        # Those in effect before are put back: a caller in the same process has its own.
        before = {number: signal.signal(number, self._take) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, _frame: object) -> None:
        # The terminal is gone: what is still written to it would fail, and this process would end by it.
        if number == signal.SIGHUP:
            leave_terminal()
            self._shutdown = self._shutdown or "after the terminal was closed"
        elif number == signal.SIGTERM:
            self._shutdown = self._shutdown or "after gpudash was sent SIGTERM"
        else:
            now_s = time.monotonic()
            # A repeat moves the newest time on as well, so that a key held down for seconds stays one press.
            self._presses += now_s - self._newest_s > SAME_PRESS_S
            self._newest_s = now_s


class _StopNotices:
    """Says on standard error what was sent to the program, how long it has been waited for, and what comes next."""

    def __init__(self, status: LiveStatus) -> None:
        self._status = status
        self._sent = ""
        self._due_s = 0.0
        self._of_deadline = False

    def refresh(self, stop: "StopProgress | None") -> None:
        """Print what is due."""
        if stop is None:
            return
        # A deadline that begins after the signal was sent, as when the terminal closes meanwhile, is news as well.
        if (stop.sent, stop.left_s is not None) != (self._sent, self._of_deadline):
            self._sent, self._of_deadline, self._due_s = stop.sent, stop.left_s is not None, FIRST_NOTICE_S
            self._status.notice(f"gpudash: {stop.sent} sent to {stop.program} {stop.when}. {_coming(stop)}".rstrip())
        elif stop.waited_s >= self._due_s:
            # The waits double: a program that saves a large checkpoint is waited for without a page of notices.
            self._due_s += min(self._due_s, LONGEST_BETWEEN_NOTICES_S)
            waited = format_left(stop.waited_s)
            self._status.notice(
                f"gpudash: {stop.program} has not ended {waited} after {stop.sent}. {_coming(stop)}".rstrip()
            )


def _coming(stop: "StopProgress") -> str:
    """What ends the program next, in a sentence; "" where all was sent."""
    if not stop.next:
        return ""
    if stop.left_s is not None:
        return stop.deadline
    if stop.next == "SIGTERM":
        return "It may take as long as it needs. A second Ctrl+C sends SIGTERM, a third SIGKILL."
    return "A third Ctrl+C sends SIGKILL."


class _Shown:
    """Tells on standard error what happens to the program's memory while it runs."""

    def __init__(self, session: "Session", status: LiveStatus) -> None:
        self._session = session
        self._status = status
        self._warnings = 0
        self._notes = 0

    def refresh(self) -> None:
        """Print what is new."""
        from gpudash.cli.terminal.report import REPORTED_AT_ONCE

        # Only copied under the lock; a terminal that does not take text could hold it for long.
        with self._session.store.lock:
            run = self._session.store.run
            if run is None:
                return
            warnings, notes = run.warnings[self._warnings :], run.notes[self._notes :]
            self._warnings += len(warnings)
            self._notes += len(notes)
        for text in [warning.text for warning in warnings] + [
            note.text for note in notes if note.topic in REPORTED_AT_ONCE
        ]:
            self._status.notice(f"gpudash: {text}")


def _summary(session: "Session") -> dict[str, Any]:
    """The outcome by the keys of a run, with the command's own exit code."""
    from gpudash.cli.terminal.report import AMONG_FIGURES, REPORTED_AT_ONCE

    with session.store.lock:
        run = session.store.run
        if run is None:
            summary: dict[str, Any] = {}
            notes = []
        else:
            summary = run.summary()
            notes = [note for note in run.notes if note.run_id == run.run_id]
    if summary["status"] not in OF_STATUS:
        summary["status"] = "cancelled"  # left while it was still being ended
    result = summary["result"]
    frames = result.pop("frames", [])
    if summary["error"] is not None:
        summary["error"]["frames"] = frames
    summary["product"] = session.machine.product_of(summary["device"])
    spec = summary["spec"] or {}
    if spec.get("as_cuda"):
        summary["seen_as"] = summary["device"].replace("sim:", "cuda:")
    else:
        summary["seen_as"] = summary["device"]
    summary["exit_code"] = result.pop("exit_code", None)
    summary["report"] = result.pop("report", None)
    summary["notes"] = [note.text for note in notes if note.topic not in (*REPORTED_AT_ONCE, *AMONG_FIGURES)]
    if session.recording_path is not None:
        summary["recording"] = str(session.recording_path)
    else:
        summary["recording"] = None
    return summary
