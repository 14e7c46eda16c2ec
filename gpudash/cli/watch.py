"""``gpudash watch``: watch the user's own program in the terminal."""

import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from gpudash.cli.terminal.flags import (
    SIMULATED,
    Pid,
    RecordOptions,
    ServeOptions,
    Simulated,
    SimulateOptions,
    begin,
    close,
    outcome,
)
from gpudash.cli.terminal.interruption import handled_by, leave_terminal
from gpudash.cli.terminal.live_status import LiveStatus
from gpudash.cli.terminal.output import OF_STATUS, Exit, RequestError, leave, print_json
from gpudash.units import format_left

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.watching.program import StopProgress

POLL_S = 0.1
"""Seconds between checks for Ctrl+C and for news of the program."""

STUCK_S = 5.0
"""Seconds to wait, after a request to stop, for one message of the program to be processed."""

STUCK = (
    "gpudash: a message of the program is still being processed, perhaps because a file system does not respond. "
    "gpudash leaves; the program may go on."
)

SAME_PRESS_S = 0.25
"""Signals within this time count as one press, in seconds: a key that is held down repeats, and a parent of gpudash
may forward a signal that the terminal sent to both."""

FIRST_NOTICE_S, LONGEST_BETWEEN_NOTICES_S = 5.0, 60.0
"""Seconds until the first notice of how long the program has been waited for; the interval then doubles up to this."""

SIGNALLED = 128
"""Shells add this to the number of the signal that ended a program."""

_ORDINALS = {2: "second ", 3: "third "}

REMEDY = "Write for example: gpudash watch -- python train.py --epochs 3"


@Parameter(name="*")
@dataclass(kw_only=True)
class WatchOptions(ServeOptions, RecordOptions, SimulateOptions):
    """Flags that belong to the command rather than to the program."""

    simulate: Annotated[Simulated, SIMULATED] = field(default_factory=list)
    """Simulate a GPU with this much memory (8GiB), or one by its name (h100; gpudash devices --known lists them), for
    the program, which sees it as sim:0. Repeat it for sim:1 and so on."""

    as_cuda: Annotated[bool, Parameter(negative=""), SIMULATED] = False
    """Let the GPU of --simulate stand in for CUDA, so that an unchanged script that uses "cuda" runs on it."""

    folder: Path | None = None
    """Working directory of the command; default: this one."""

    memory_history: bool = True
    """Record who allocates what, to name lines that grow and to explain an out-of-memory. This keeps the newest
    100,000 events and costs up to 10 % of the program's time."""

    metric_pattern: str = ""
    """Parse losses from what the command prints with this regular expression, instead of by the names of fields. Its
    groups loss, accuracy, step and epoch are used, as in `it (?P<step>[0-9]+) L=(?P<loss>[-+.e0-9]+)`."""

    find_need: bool | None = None
    """After an out-of-memory, run the command again, without numbers or on a larger simulated GPU, to find out what
    the whole run needs: without output, network or lasting files, at the lowest priority, for at most 10 min. Default:
    for at most twice as long as it took to fail, and only if its writes can be held back. Ctrl+C skips it."""

    attach: Pid | None = None
    """Watch the running process with this number instead of starting a command: from inside if its Python is 3.14 or
    newer or it was started as --prepare says, otherwise from outside. Ctrl+C detaches, and undoes what was done in
    it."""

    with_: Annotated[Literal["gdb"] | None, Parameter(name="--with")] = None
    """Enter the process only with a debugger. This pauses it for a moment."""

    prepare: Annotated[bool, Parameter(negative="")] = False
    """Print lines for a shell. Every Python started from that shell can then be entered by --attach, at no cost until
    that happens: eval "$(gpudash watch --prepare)"."""

    exit_code: Literal["program", "gpudash"] = "program"
    """Exit with the program's exit code as a shell reports it: 128 plus the number of a signal, 127 if there is no
    such program, 126 if it cannot be executed. Or with gpudash's own: 1 the program failed, 3 out of memory, 130
    interrupted. An invalid request exits with 2 either way."""

    quiet: Annotated[bool, Parameter(negative="")] = False
    """Show no status line below the program's output in the terminal."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print the outcome as one JSON document; what the command prints goes to standard error, in whole lines."""


def watch(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)], options: WatchOptions | None = None
) -> int:
    """Run your own program and watch it: gpudash watch [OPTIONS] -- COMMAND ...

    The program is not changed, and neither is its environment, except for PYTHONPATH and variables that begin with
    GPUDASH_. Its output passes through pipes, line by line as on a terminal. The first Ctrl+C sends it SIGINT and
    waits as long as it takes; a second one sends SIGTERM, a third one SIGKILL. If the terminal is closed or gpudash
    receives SIGTERM, the program has 10 s after SIGINT, and 3 s after SIGTERM. Killing gpudash itself leaves it
    running. An attached process never gets a signal.
    """
    options = options or WatchOptions()
    if options.prepare:
        return _prepare(command, options)
    _require_one(command, options)
    # Install the handlers before the program starts: from then on, Ctrl+C is meant for it.
    signals = _StopSignals()
    # With --json the program's output goes to standard error in whole lines, which a status line would tear apart.
    no_line = options.quiet or options.json or options.attach is not None
    with options.served() as served, handled_by(signals.handle), LiveStatus(quiet=no_line) as status:
        session = _started(options)
        _begin(session, command, options, status.descriptor)
        status.begin()
        shown, notices = _Shown(session, status), _StopNotices(status)
        try:
            served.begin(session)
            # Short repeated waits: Python runs signal handlers only between two calls of this thread.
            while not session.runs.wait(POLL_S):
                signals.pass_on(session)
                notices.refresh(session.runs.stopping)
                shown.refresh()
                status.refresh(session)
                # Only after a request to stop; before that, a slow file system is no reason to abandon a program.
                if session.runs.stopping is not None and session.runs.busy_s > STUCK_S:
                    status.notice(STUCK)
                    break
            # Remove the line before the last notices are printed, or they would be overwritten.
            status.end()
            shown.refresh()
        finally:
            status.end()
            joined = close(session, served)
    summary = _summary(session)
    if options.json:
        print_json(summary)
    else:
        from gpudash.cli.terminal.report import print_watched

        print_watched(summary)
    return leave(_exit_code(summary, options), joined)


def _exit_code(summary: Mapping[str, Any], options: WatchOptions) -> int:
    """The program's exit code as a shell reports it, or gpudash's own for the outcome.

    gpudash's own is also used if the program's is unknown, as for an attached process, and if gpudash ended the
    program because its GPU could not be simulated.
    """
    own, error = OF_STATUS[summary["status"]], summary["error"] or {}
    code: int | None = summary["exit_code"]
    # gpudash ends a program whose GPU cannot be simulated; its signal must not look like the program's own failure.
    if options.exit_code == "gpudash" or code is None or error.get("kind") == "simulation":
        return own
    # Popen reports signals as negative numbers.
    if code < 0:
        return SIGNALLED - code
    return code


def _prepare(command: Sequence[str], options: WatchOptions) -> int:
    """Print the environment variables that make a shell's programs attachable."""
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
        raise RequestError("--with says how to enter a running process.", "Name it with --attach PID.")


def _no_option(word: str) -> RequestError:
    """The error for an unknown flag, which the parser takes for the start of the program's command."""
    from cyclopts import App

    from gpudash.specs.invalid import did_you_mean

    app = App()
    app.default(watch)
    # Take the names from the parser itself, so that there is no second list to maintain.
    there = [name for argument in app.assemble_argument_collection() for name in argument.names]
    hint = did_you_mean(word.partition("=")[0], [name for name in there if name.startswith("--")])
    return RequestError(f"gpudash watch has no option {word}{hint}.", "gpudash watch --help lists what there is.")


def _started(options: WatchOptions) -> "Session":
    """A session that has started.

    Raises:
        RequestError: if the GPUs cannot be simulated, or the recording cannot be written.
    """
    simulation = replace(options.simulation(), offered=False)  # the program cannot use a GPU it was not given
    session = options.session("watch", simulation)
    begin(session, worker=False)
    return session


def _begin(session: "Session", command: Sequence[str], options: WatchOptions, status: int | None) -> None:
    """Start the program in a session.

    Args:
        status: file descriptor for the status line; ``None`` if there is none.

    Raises:
        RequestError: if there is no such program or process.
    """
    from gpudash.session import WatchRequest
    from gpudash.session.watching.request import CannotExecuteError, ProgramNotFoundError

    try:
        if options.attach is not None:
            session.attach(options.attach, by_gdb=options.with_ == "gdb", memory_history=options.memory_history)
            return
        # The program writes past this buffer: what was printed so far must come first.
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
        # A command that never started leaves no recording.
        if session.recording_path is not None:
            session.recording_path.unlink(missing_ok=True)
        raise refusal from None


class _StopSignals:
    """Signals that ask gpudash to stop. Each Ctrl+C counts; SIGHUP and SIGTERM count once, since kernel, shell and
    scheduler send them several times.

    Handlers only take note: one that did more could deadlock with the code it interrupts.
    """

    def __init__(self) -> None:
        self._presses = self._passed_on = 0
        self._newest_s = -math.inf
        self._shutdown = ""
        self._shut_down = False

    def pass_on(self, session: "Session") -> None:
        """Stop the run once more for every signal since the last call."""
        # One at a time: each press is a stage (SIGINT, SIGTERM, SIGKILL), even if several arrived at once.
        while self._passed_on < self._presses:
            self._passed_on += 1
            session.stop_run(f"after your {_ORDINALS.get(self._passed_on, '')}Ctrl+C")
        if self._shutdown and not self._shut_down:
            self._shut_down = True
            session.stop_run(self._shutdown, shutdown=True)

    def handle(self, number: int, _frame: object) -> None:
        """Take note of a signal."""
        # The terminal is gone: further writes to it would fail and end this process.
        if number == signal.SIGHUP:
            leave_terminal()
            self._shutdown = self._shutdown or "after the terminal was closed"
        elif number == signal.SIGTERM:
            self._shutdown = self._shutdown or "after gpudash was sent SIGTERM"
        else:
            now_s = time.monotonic()
            # A repeat also renews the time of the last press, so that a key held down for seconds counts once.
            self._presses += now_s - self._newest_s > SAME_PRESS_S
            self._newest_s = now_s


class _StopNotices:
    """Reports on standard error what was sent to the program, how long it has been waited for, and what comes next."""

    def __init__(self, status: LiveStatus) -> None:
        self._status = status
        self._sent = ""
        self._due_s = 0.0
        self._of_deadline = False

    def refresh(self, stop: "StopProgress | None") -> None:
        """Print a notice if one is due."""
        if stop is None:
            return
        # Also when a deadline begins after the signal, for example because the terminal was closed meanwhile.
        if (stop.sent, stop.left_s is not None) != (self._sent, self._of_deadline):
            self._sent, self._of_deadline, self._due_s = stop.sent, stop.left_s is not None, FIRST_NOTICE_S
            self._status.notice(f"gpudash: {stop.sent} sent to {stop.program} {stop.when}. {_coming(stop)}".rstrip())
        elif stop.waited_s >= self._due_s:
            # Intervals double: saving a large checkpoint must not produce a page of notices.
            self._due_s += min(self._due_s, LONGEST_BETWEEN_NOTICES_S)
            waited = format_left(stop.waited_s)
            self._status.notice(
                f"gpudash: {stop.program} has not ended {waited} after {stop.sent}. {_coming(stop)}".rstrip()
            )


def _coming(stop: "StopProgress") -> str:
    """What will end the program next, in a sentence; "" if every signal has been sent."""
    if not stop.next:
        return ""
    if stop.left_s is not None:
        return stop.deadline
    if stop.next == "SIGTERM":
        return "It may take as long as it needs. A second Ctrl+C sends SIGTERM, a third SIGKILL."
    return "A third Ctrl+C sends SIGKILL."


class _Shown:
    """Reports on standard error what happens to the program's memory while it runs."""

    def __init__(self, session: "Session", status: LiveStatus) -> None:
        self._session = session
        self._status = status
        self._warnings = 0
        self._notes = 0

    def refresh(self) -> None:
        """Print what is new."""
        from gpudash.cli.terminal.report import REPORTED_AT_ONCE
        from gpudash.telemetry.records import Topic

        # Copy under the lock, print after it: a blocked terminal would hold the lock.
        with self._session.store.lock:
            run = self._session.store.run
            if run is None:
                return
            warnings, notes = run.warnings[self._warnings :], run.notes[self._notes :]
            self._warnings += len(warnings)
            self._notes += len(notes)
            # How soon memory fills says nothing once it has run out.
            if run.note(Topic.OUT_OF_MEMORY) is not None:
                warnings = [warning for warning in warnings if warning.level != "forecast"]
        for text in [warning.text for warning in warnings] + [
            note.text for note in notes if note.topic in REPORTED_AT_ONCE
        ]:
            self._status.notice(f"gpudash: {text}")


def _summary(session: "Session") -> dict[str, Any]:
    """The outcome with the keys of a run, and the command's exit code."""
    from gpudash.cli.terminal.report import AMONG_FIGURES, REPORTED_AT_ONCE

    summary, notes = outcome(session)
    result = summary["result"]
    frames = result.pop("frames", [])
    if summary["error"] is not None:
        summary["error"]["frames"] = frames
    spec = summary["spec"] or {}
    if spec.get("as_cuda"):
        summary["seen_as"] = summary["device"].replace("sim:", "cuda:")
    else:
        summary["seen_as"] = summary["device"]
    summary["exit_code"] = result.pop("exit_code", None)
    summary["report"] = result.pop("report", None)
    own = (note for note in notes if note.run_id is not None)
    summary["notes"] = [note.text for note in own if note.topic not in (*REPORTED_AT_ONCE, *AMONG_FIGURES)]
    return summary
