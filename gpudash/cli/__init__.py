"""The commands. Qt, torch and NVML are imported only by the commands that need them."""

from __future__ import annotations

import errno
import io
import itertools
import logging
import os
import re
import resource
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpudash import __version__
from gpudash.cli.qt import has_display
from gpudash.cli.terminal.front_page import ABOUT, COMMANDS, FLAGS, WHOLE, print_front_page
from gpudash.cli.terminal.output import (
    Exit,
    RequestError,
    RequestInterruptedError,
    TooManyFilesError,
    discard_stdout,
    help_console,
    print_failure,
    print_notice,
)
from gpudash.system.garbage import without_collection

if TYPE_CHECKING:
    from cyclopts import App

logger = logging.getLogger(__name__)


def build_app(argv: Sequence[str]) -> App:
    """The command-line application that parses ``argv``.

    The sub-commands of ``run`` and ``estimate``, one per workload, are omitted if ``argv`` starts with another
    command, ``--help`` or ``--version``: their flags are made from the specs, and loading these would double the time
    of a help page. ``run`` does not load the sub-commands of ``estimate`` either, nor ``estimate`` those of ``run``.
    """
    from cyclopts import App, Group

    from gpudash.cli.start import start

    app = App(
        name="gpudash",
        version=__version__,
        help=WHOLE.summary,
        help_epilogue=WHOLE.epilogue,
        console=help_console(),
        suppress_keyboard_interrupt=False,  # it would exit silently, without the JSON document
    )
    app.default(start)
    app.command(App(help=FLAGS["Commands"][VERBOSE]), name=VERBOSE)
    # A command without a function is only listed on the front page: `run` and `estimate` are built below.
    about = Group(ABOUT)
    for name, command in COMMANDS.items():
        if not command.function:
            continue
        if command.panel == ABOUT:
            # Without an epilogue of its own it would end with the examples of the whole program.
            app.command(command.function, name=name, group=about, help_epilogue="")
        elif name == "open" and "--" in argv:
            # `--` never reaches a command's function, so decide here whether a script's arguments follow.
            app.command("gpudash.cli.recordings.open:open_script", name=name, help_epilogue=command.epilogue)
        else:
            app.command(command.function, name=name, help_epilogue=command.epilogue)
    # A word that is a command by now is neither `run` nor `estimate`, which alone need the specs.
    without_workloads = bool(argv) and argv[0] in app
    run_workload = App(name="run", help=COMMANDS["run"].summary, help_epilogue=COMMANDS["run"].epilogue)
    estimate_workload = App(
        name="estimate", help=COMMANDS["estimate"].summary, help_epilogue=COMMANDS["estimate"].epilogue
    )
    first = ""
    if argv:
        first = argv[0]
    if not without_workloads and first != "estimate":
        from gpudash.cli.run import add_run_commands

        add_run_commands(run_workload)
    if not without_workloads and first != "run":
        from gpudash.cli.estimate.commands import add_estimate_commands
        from gpudash.cli.estimate.program import estimate_program

        # `--` never reaches a command's function, so decide here whether a program follows.
        add_estimate_commands(estimate_workload, estimate_program if "--" in argv else None)
    app.command(run_workload)
    app.command(estimate_workload)
    return app


def print_help(*command: str) -> int:
    """Show how a command is used: gpudash help run training."""
    if not command:
        print_front_page()
        return Exit.FINISHED
    app = build_app(command)
    _require_command(app, command)
    found, apps, rest = app.parse_commands(list(command))
    if rest:
        if found in (("run",), ("estimate",)):
            from gpudash.cli.terminal.workload_flags import no_workload

            raise no_workload(rest[0], [name for name in apps[-1] if not name.startswith("-")])
        whole = " ".join(["gpudash", *found])
        raise RequestError(f"{whole} has no part {rest[0]!r}.", f"{whole} --help shows how it is used.")
    app.help_print(command)
    return Exit.FINISHED


def print_version() -> int:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")
    return Exit.FINISHED


def print_completion(shell: Literal["bash", "zsh", "fish"] | None = None, /) -> int:
    """Print a script that completes commands and flags in a shell: source <(gpudash completion bash)

    To have it permanently, write it to the folder where your shell looks for completions.
    """
    if shell is None:
        raise RequestError("Which shell? There is: bash, zsh, fish.", "Write: source <(gpudash completion bash)")
    sys.stdout.write(build_app(()).generate_completion(shell=shell))
    return Exit.FINISHED


LIGHT: dict[tuple[str, ...], Callable[[], int]] = {
    ("--help",): print_help,
    ("-h",): print_help,
    ("help",): print_help,
    ("--version",): print_version,
    ("version",): print_version,
}
"""Command lines answered without the parser: importing it takes longer than answering them."""

COMPLETE = "__complete"
"""The parser's own command, which shells call on Tab to complete a flag."""

VERBOSE = "--verbose"
"""A flag of every command: write what goes to the log, and more, to standard error."""

MORE_FILES = "Allow more with ulimit -n 1024."

LEAST_FILES = 64
"""Minimum number of files a command must be able to open at once; a run in its own process takes about 30."""


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error in it gives one sentence and exit code 2."""
    # After `--`, --verbose belongs to the program.
    given, argv = argv, _without_verbose(argv)
    if is_logged(argv):
        _begin_log(argv, verbose=len(argv) < len(given))
    # Before any import: one that gets no file descriptor would end in a traceback.
    allowed = _open_files()
    if allowed < LEAST_FILES:
        text = f"Only {allowed} files may be open at once, and gpudash needs {LEAST_FILES}."
        return print_failure(TooManyFilesError(text, MORE_FILES), _wants_json(argv))
    try:
        # With a display, a bare `gpudash` opens the window at once; without one, its default command says how to
        # begin.
        if argv or not has_display():
            code = _run_command(argv)
        else:
            code = _open_window()
    except KeyboardInterrupt:
        code = interrupted(argv)
    logger.info("the command ended with exit code %d", code)
    return code


def _without_verbose(argv: Sequence[str]) -> list[str]:
    ours = _own_arguments(argv)
    return [*(word for word in ours if word != VERBOSE), *argv[len(ours) :]]


def is_logged(argv: Sequence[str]) -> bool:
    """Whether to log a command line: not if it only prints help or a completion."""
    if argv and (tuple(argv) in LIGHT or argv[0] in (COMPLETE, "completion", "help")):
        return False
    return not {"--help", "-h"} & set(_own_arguments(argv))


def _begin_log(argv: Sequence[str], *, verbose: bool) -> None:
    from gpudash.system.folders import log_file
    from gpudash.system.log import start_log

    start_log(str(log_file()), verbose=verbose)
    ours = _own_arguments(argv)
    command = [word for word in ours[:1] if word in COMMANDS]
    flags = [word.partition("=")[0] for word in ours if word.startswith("--")]  # their values may be private
    shown = " ".join(["gpudash", *command, *flags])
    system = os.uname()
    logger.info(
        "%s: version %s, Python %s, %s %s on %s",
        *(shown, __version__, sys.version.split()[0], system.sysname, system.release, system.machine),
    )


def interrupted(argv: Sequence[str]) -> int:
    """Report that the user interrupted a command line too early for the command to do so; return the exit code."""
    error = RequestInterruptedError("Interrupted.")
    error.joined = False  # the state of the threads is unknown
    return print_failure(error, _wants_json(argv))


def _open_files() -> int:
    """The number of files that may be open at once, after raising our soft limit as far as needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        wanted = LEAST_FILES
    else:
        wanted = min(LEAST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return LEAST_FILES
    return soft


def _open_window() -> int:
    """Open the window without loading the parser or anything that only other commands need."""
    from gpudash.cli.qt import open_window

    try:
        return open_window()
    except RequestError as error:
        return print_failure(error, as_json=False)


def _run_command(argv: Sequence[str]) -> int:
    as_json = _wants_json(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may contain undecodable bytes, and a terminal's encoding may lack characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Loading modules creates thousands of objects and frees none, so every garbage collection would be wasted.
    with without_collection():
        app = None
        if tuple(argv) not in LIGHT:
            # On Tab, the line to complete follows the parser's own command; it determines which workloads to load.
            app = build_app(argv[1:] if argv[:1] == [COMPLETE] else argv)
    if argv[:1] in (["run"], ["estimate"]):
        _print_broken_entry_points()
    try:
        if app is None:
            result = LIGHT[tuple(argv)]()
        else:
            result = _call(app, argv)
        # Flush here, where a broken pipe or a full disk can still be handled; at interpreter exit it is too late.
        sys.stdout.flush()
    except RequestError as error:
        return print_failure(error, as_json)
    # Both types are evaluated only when an exception occurs, so their imports cost nothing otherwise.
    except (_parser_error(), _validation_error()) as error:
        failure = RequestError(_sentence(error), _remedy(app, argv))
        failure.__cause__ = error
        return print_failure(failure, as_json)
    except BrokenPipeError:
        discard_stdout()
        return Exit.FINISHED
    except OSError as error:
        return _os_failure(error, as_json)
    if isinstance(result, int):
        return result
    return Exit.FINISHED


def _os_failure(error: OSError, as_json: bool) -> int:
    """Report an error of the operating system; return the exit code.

    Raises:
        OSError: the error itself, if it names a file: the code that opened the file should have handled it, and the
            traceback shows where it is.
    """
    if error.errno in (errno.EMFILE, errno.ENFILE):
        refusal = TooManyFilesError(
            f"Too many files are open at once ({error.filename or 'a pipe or socket'}).", MORE_FILES
        )
        refusal.joined = False
        return print_failure(refusal, as_json)
    if error.filename is not None:
        raise error
    discard_stdout()  # it may be a file on a full disk
    print_notice(f"What was to be printed cannot be written: {error.strerror}.")
    return Exit.FAILED


def _print_broken_entry_points() -> None:
    """Report which workloads of other packages cannot be used, and why."""
    from gpudash.specs import broken_entry_points

    for text in broken_entry_points():
        print_notice(text)


def _call(app: App, argv: Sequence[str]) -> Any:
    """Call the command of a command line, and return its result."""
    _require_command(app, argv)
    ours = _own_arguments(argv)
    if ours[:1] == ["estimate"] and {"--help", "-h"} & {*ours}:
        from gpudash.cli.estimate.serving import is_serving, print_serving_help

        # The flags of a server belong to a separate application that the main parser does not know.
        if is_serving(ours):
            return print_serving_help()
    return app(list(argv), exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value")


def _remedy(app: App | None, argv: Sequence[str]) -> str:
    from pathlib import Path

    command = () if app is None else app.parse_commands(list(argv))[0]
    files = [word for word in argv if not word.startswith("-") and Path(word).is_file()]
    if not command and files:
        return f"To open it: gpudash open {shlex.quote(files[-1])}"
    return f"{' '.join(['gpudash', *command])} --help lists what there is."


def _wants_json(argv: Sequence[str]) -> bool:
    ours = _own_arguments(argv)
    return "--json" in ours or "--json-lines" in ours


def _own_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments of gpudash itself: those after ``--`` belong to another program."""
    return list(itertools.takewhile(lambda word: word != "--", argv))


ELSEWHERE = {
    "explain": "Why memory ran out is said by gpudash runs NAME, of a recorded run, and by gpudash snapshot FILE.",
}
"""Words that are no command, and where to find what they ask for."""

_OTHER_FLAG = re.compile(r"Did you mean (--[\w-]+) instead of (--[\w-]+)\?")

_UNKNOWN_FLAG = re.compile(r"Unknown option: (-[\w-]+)\. Did you mean (-[\w-]+)\?")


def _require_command(app: App, argv: Sequence[str]) -> None:
    # Before the parser sees it: it would pass the word to the default command as an argument.
    if argv and not argv[0].startswith("-") and argv[0] not in app and argv[0] != COMPLETE:
        from gpudash.specs.invalid import did_you_mean

        if argv[0].endswith(".py"):
            program = shlex.join(["python", *argv])
            raise RequestError(
                f"There is no command {argv[0]!r}.",
                f"To predict it: gpudash estimate -- {program}; to watch it: gpudash watch -- {program}",
            )
        if argv[0] in ELSEWHERE:
            raise RequestError(f"There is no command {argv[0]!r}.", ELSEWHERE[argv[0]])
        hint = did_you_mean(argv[0], list(COMMANDS))
        raise RequestError(f"There is no command {argv[0]!r}{hint}.", f"There is: {', '.join(COMMANDS)}.")


def _parser_error() -> type[Exception]:
    """The parser's exception type, imported only when an error occurs: light commands do not load the parser."""
    from cyclopts import CycloptsError

    return CycloptsError


def _validation_error() -> type[ValueError]:
    """pydantic's exception type, imported only when an error occurs: commands without a spec do not load pydantic."""
    from pydantic import ValidationError

    return ValidationError


def _sentence(error: BaseException) -> str:
    """The error in one sentence; pydantic's own report takes many lines."""
    from cyclopts.exceptions import UnusedCliTokensError
    from pydantic import ValidationError

    from gpudash.specs import invalid_fields

    # The parser wraps errors of a spec in its own.
    cause: BaseException | None = error
    if isinstance(error, UnusedCliTokensError):
        return f"Nothing here takes {shlex.join(error.unused_tokens or ())}."
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return "; ".join(invalid_fields(cause).values())
    said = " ".join(str(error).split())
    other = _OTHER_FLAG.search(said)
    if other is not None:
        return f"There is no {other[2]}; it is {other[1]}."
    unknown = _UNKNOWN_FLAG.match(said)
    if unknown is not None:
        return f"There is no {unknown[1]}; did you mean {unknown[2]}?"
    return said
