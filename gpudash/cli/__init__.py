"""The commands. Qt, torch and NVML are imported inside the command that needs them."""

from __future__ import annotations

import errno
import io
import itertools
import resource
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpudash import __version__
from gpudash.cli.qt import has_display
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

if TYPE_CHECKING:
    from cyclopts import App


def build_app(argv: Sequence[str]) -> App:
    """The command-line application that parses ``argv``.

    The sub-commands of ``run`` and ``estimate``, one per workload, are left out where ``argv`` begins with another
    command, ``--help`` or ``--version``: their flags are made from the specs, and loading those takes as long as all
    else that a help page takes. Each of the two goes without those of the other.
    """
    from cyclopts import App, Group

    from gpudash.cli import devices, doctor, export, monitor
    from gpudash.cli.compare import compare
    from gpudash.cli.demo import demo
    from gpudash.cli.open import open_file
    from gpudash.cli.snapshot import snapshot
    from gpudash.cli.start import start
    from gpudash.cli.terminal import examples
    from gpudash.cli.watch import watch

    app = App(
        name="gpudash",
        version=__version__,
        help="Runs PyTorch tensor workloads and shows what they do to memory, bandwidth and loss.",
        help_epilogue=examples.shown(""),
        console=help_console(),
        suppress_keyboard_interrupt=False,  # it would end the command without a word, and without its JSON document
    )
    app.default(start)
    commands: dict[str, Callable[..., Any]] = {
        "devices": devices.devices,
        "monitor": monitor.monitor,
        "watch": watch,
        "snapshot": snapshot,
        "compare": compare,
        "export": export.export,
        "open": open_file,
        "demo": demo,
        "doctor": doctor.doctor,
    }
    for name, command in commands.items():
        app.command(command, name=name, help_epilogue=examples.shown(name))
    about = Group("About gpudash")
    app.command(_help, name="help", group=about)
    app.command(_version, name="version", group=about)
    app.command(_completion, name="completion", group=about)
    without_workloads = bool(argv) and argv[0] in app
    run_workload = App(name="run", help="Run a workload in the terminal.", help_epilogue=examples.shown("run"))
    estimate_workload = App(
        name="estimate",
        help="Predict the memory a run would take: of a workload, a model, your own function, or any program, "
        "unchanged: gpudash estimate [OPTIONS] -- python train.py",
        help_epilogue=examples.shown("estimate"),
    )
    first = argv[0] if argv else ""
    if not without_workloads and first != "estimate":
        from gpudash.cli.run import add_run_commands

        add_run_commands(run_workload)
    if not without_workloads and first != "run":
        from gpudash.cli.estimate import add_estimate_commands

        add_estimate_commands(estimate_workload, names_program="--" in argv)
    app.command(run_workload)
    app.command(estimate_workload)
    return app


def _help(*command: str) -> int:
    """Show how a command is used: gpudash help run training."""
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


def _version() -> int:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")
    return Exit.FINISHED


def _completion(shell: Literal["bash", "zsh", "fish"] | None = None, /) -> int:
    """Print what completes commands and flags in a shell: source <(gpudash completion bash)

    Write it where your shell looks for completions to have it always.
    """
    if shell is None:
        raise RequestError("Which shell? There is: bash, zsh, fish.", "Write: source <(gpudash completion bash)")
    sys.stdout.write(build_app(()).generate_completion(shell=shell))
    return Exit.FINISHED


MORE_FILES = "Allow more with ulimit -n 1024."

LEAST_FILES = 64
"""Files that a command may have to hold open at once; a run in a process of its own takes about 30."""


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; every mistake in it is one sentence and exit 2."""
    allowed = _open_files()
    if allowed < LEAST_FILES:
        words = f"Only {allowed} files may be open at once, and gpudash needs {LEAST_FILES}."
        return print_failure(TooManyFilesError(words, MORE_FILES), _wants_json(argv))
    try:
        return _run_command(argv) if argv or not has_display() else _open_window()
    except KeyboardInterrupt:
        return interrupted(argv)


def interrupted(argv: Sequence[str]) -> int:
    """Report that the user ended a command line before it could say so itself; leaves with its exit code."""
    error = RequestInterruptedError("Interrupted.")
    error.joined = False  # nothing is known of the threads
    return print_failure(error, _wants_json(argv))


def _open_files() -> int:
    """How many files may be open at once, once the limit that we may raise ourselves has been."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEAST_FILES if hard == resource.RLIM_INFINITY else min(LEAST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return LEAST_FILES if soft == resource.RLIM_INFINITY else soft


def _open_window() -> int:
    """The window alone: neither the parser of command lines nor what the other commands need is loaded for it."""
    from gpudash.cli.qt import open_window

    try:
        return open_window()
    except RequestError as error:
        return print_failure(error, as_json=False)


def _run_command(argv: Sequence[str]) -> int:
    from cyclopts import CycloptsError

    as_json = _wants_json(argv)
    app = build_app(argv)
    command, _apps, _rest = app.parse_commands(list(argv))
    remedy = f"{' '.join(['gpudash', *command])} --help lists what there is."
    if isinstance(sys.stdout, io.TextIOWrapper):
        # names of files may hold bytes that are no text, and terminals know fewer characters than there are
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _require_command(app, argv)
        result = app(
            list(argv), exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except RequestError as error:
        return print_failure(error, as_json)
    except (CycloptsError, _validation_error()) as error:
        return print_failure(RequestError(_sentence(error), remedy), as_json)
    except BrokenPipeError:
        discard_stdout()
        return Exit.FINISHED
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            refusal = TooManyFilesError(
                f"Too many files are open at once ({error.filename or 'a pipe or socket'}).", MORE_FILES
            )
            refusal.joined = False
            return print_failure(refusal, as_json)
        if error.filename is not None:
            raise
        discard_stdout()  # such as a file on a full disk
        print_notice(f"What was to be printed cannot be written: {error.strerror}.")
        return Exit.FAILED
    return result if isinstance(result, int) else Exit.FINISHED


def _wants_json(argv: Sequence[str]) -> bool:
    ours = list(itertools.takewhile(lambda word: word != "--", argv))  # what follows is another program's
    return "--json" in ours or "--json-lines" in ours


def _require_command(app: App, argv: Sequence[str]) -> None:
    if argv and not argv[0].startswith("-") and argv[0] not in app:
        from gpudash.specs.invalid import did_you_mean

        there = [name for name in app if not name.startswith("-")]
        hint = did_you_mean(argv[0], there)
        raise RequestError(f"There is no command {argv[0]!r}{hint}.", f"There is: {', '.join(there)}.")


def _validation_error() -> type[ValueError]:
    """pydantic's, imported once there is an error to compare: a command that makes no spec loads no pydantic."""
    from pydantic import ValidationError

    return ValidationError


def _sentence(error: BaseException) -> str:
    """What was wrong, in words; pydantic's own report takes many lines."""
    from pydantic import ValidationError

    from gpudash.specs import invalid_fields

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__ or cause.__context__
    return "; ".join(invalid_fields(cause).values()) if cause is not None else " ".join(str(error).split())
