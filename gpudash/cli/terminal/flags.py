"""Common flags: sizes as they are written (64MiB rather than a number of bytes), flags that simulate GPUs, and flags
that serve a session's figures.

Annotations are evaluated at run time: the parser reads them from dataclasses that other modules extend. Specs are not
loaded here, because every command and every help page loads this module.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpudash.cli.terminal.output import OF_STATUS, RequestError, print_notice
from gpudash.devices.names import MOST_SIMULATED, SimulatedCard, Simulation, parse_card, parse_simulated, size_of
from gpudash.system.garbage import without_collection
from gpudash.units import format_bytes, parse_share, parse_size

if TYPE_CHECKING:
    from gpudash.session import Session
    from gpudash.session.remote.machine import RemoteMachine
    from gpudash.session.serving import Serving
    from gpudash.specs import Spec
    from gpudash.telemetry.records import Note


def size_text(size: int | None) -> str | None:
    """A size as one would type it; ``None`` stays, so that ``--help`` shows no such default."""
    if not size:
        if size is None:
            return None
        return "0"
    return format_bytes(size).replace(" ", "")


def _size(_type: Any, tokens: Any) -> int:
    return parse_size(tokens[0].value)


def _card_size(_type: Any, tokens: Any) -> int:
    return size_of(parse_card(tokens[0].value))


def _known_gpus(_context: Any) -> dict[str, str]:
    """Completions of the flag for a shell: names of GPUs, each with its memory."""
    from gpudash.devices.known_gpus import KNOWN_GPUS

    return {gpu.key: f"{gpu.product}, {format_bytes(gpu.total_bytes)}" for gpu in KNOWN_GPUS}


def _simulated(_type: Any, tokens: Any) -> list[SimulatedCard]:
    return [parse_simulated(part) for token in tokens for part in token.value.split(",")]


def _pid(_type: Any, tokens: Any) -> int:
    word = tokens[0].value
    if not word.isdecimal():
        raise ValueError(f"{word!r} is not the number of a process; ps -u $USER lists yours.")
    return int(word)


Size = Annotated[int, Parameter(converter=_size, metavar="SIZE", show_default=size_text, allow_leading_hyphen=True)]
"""A flag's size in bytes. Leading hyphens are accepted so that the error says that it is not a size."""

CardSize = Annotated[
    int, Parameter(converter=_card_size, metavar="SIZE|GPU", show_default=size_text, allow_leading_hyphen=True)
]
"""A flag's size in bytes, given as a size or as the name of a GPU with that much memory."""

Pid = Annotated[int, Parameter(converter=_pid, metavar="PID", allow_leading_hyphen=True)]
"""A flag's process ID. Without a converter, "none" and "null" would count as not given."""

Simulated = Annotated[
    list[SimulatedCard],
    Parameter(
        converter=_simulated,
        metavar="SIZE|GPU",
        show_default=False,
        negative="",
        allow_leading_hyphen=True,
        n_tokens=1,
        json_list=False,
        completer=_known_gpus,
    ),
]
"""GPUs to simulate, each as a size or by name; a flag that may be repeated."""


SIMULATED = Parameter(group="Simulated GPUs")
RECORDING = Parameter(group="Recording")
SERVING = Parameter(group="Figures for Prometheus")
NOTICES = Parameter(
    group="Notifications",
    negative="",
    metavar="URL|ntfy:TOPIC|COMMAND",
    n_tokens=1,
    json_list=False,
    show_default=False,
)
"""Group headings of the help pages."""


def parse_tolerance(text: str | None) -> float | None:
    """The share given to ``--tolerance``, such as ``10%`` or ``0.1``; ``None`` if it was not given.

    Raises:
        RequestError: if it is not a share.
    """
    if text is None:
        return None
    try:
        return parse_share(text)
    except ValueError as error:
        # The message has two halves: what is wrong, and what to do.
        what, _, way = str(error).partition("; ")
        raise RequestError(f"--tolerance {what}.", f"{way[:1].upper()}{way[1:]}.") from None


@Parameter(name="*")
@dataclass(kw_only=True)
class SimulateOptions:
    """Flags for simulated GPUs."""

    simulate: Annotated[Simulated, SIMULATED] = field(default_factory=list)
    """Simulate a GPU with this much memory (8GiB), or one by its name (h100; gpudash devices --known lists them).
    Repeat it for sim:1 and so on. Default: one of 8 GiB if there is no GPU."""

    simulate_others: Annotated[Size, SIMULATED] = 0
    """Memory of sim:0 that simulated other processes hold (2GiB)."""

    def simulation(self) -> Simulation:
        """The simulation that was requested.

        Raises:
            RequestError: if it is impossible.
        """
        try:
            return Simulation(tuple(self.simulate), self.simulate_others)
        except ValueError as error:
            remedy = "Write for example --simulate 8GiB."
            if len(self.simulate) > MOST_SIMULATED:
                remedy = f"Leave {len(self.simulate) - MOST_SIMULATED} of them out."
            raise RequestError(f"{str(error).rstrip('.')}.", remedy) from None


def require_function(callable: str) -> None:
    """Reject what cannot name a function, before any process starts for it.

    Raises:
        RequestError: if it cannot.
    """
    module, _, function = callable.rpartition(":")
    names = [function]
    if not module.endswith(".py"):  # a file may have any name, such as train-gpt.py
        names += module.split(".")
    if not all(name.isidentifier() for name in names):
        way = "Write package.module:function or folder/file.py:function."
        raise RequestError(f"--callable {callable!r} names no function.", way)


def python_program(python: str | None) -> str:
    """The Python given to ``--python``; this one by default.

    Raises:
        RequestError: if there is no such program.
    """
    program = sys.executable if python is None else shutil.which(python)
    if program is None:
        raise RequestError(f"--python {python!r} is no program.", "Name a Python, such as .venv/bin/python.")
    return program


def _require_targets(notify: list[str]) -> None:
    """Validate notification targets. Imported lazily: parsing them needs HTTP and TLS, which take a while to load.

    Raises:
        RequestError: for the first invalid one.
    """
    if not notify:
        return
    from gpudash.session.live.notifying import parse_target

    for text in notify:
        try:
            parse_target(text)
        except ValueError as error:
            raise RequestError(f"--notify: {error}") from None


@Parameter(name="*")
@dataclass(kw_only=True)
class RecordOptions:
    """Flags for recording a session."""

    record: Annotated[Path | None, RECORDING] = None
    """Recording to write; default: a new one in the recordings folder."""

    no_record: Annotated[bool, Parameter(negative=""), RECORDING] = False
    """Record nothing."""

    notify: Annotated[list[str], NOTICES] = field(default_factory=list)
    """Send notifications of warnings, out-of-memory errors and ends of runs to a URL (as JSON), to ntfy:TOPIC, or to a
    command as its last argument. May be repeated. Set GPUDASH_NOTIFY_TOKEN if the target requires a token."""

    def session(self, name: str, simulation: Simulation | None, *, rate_hz: float | None = None) -> "Session":
        """A session with the user's settings, not yet started; problems with the settings are reported.

        Args:
            name: name in the file name of a new recording.
            rate_hz: memory readings per second, in place of the settings'.
        """
        with without_collection():  # collecting takes a tenth of the time of these imports
            from gpudash.session import Session, recording_target
        from gpudash.system.settings import load_settings

        settings, notices = load_settings()
        if rate_hz is not None:
            settings.rate_hz = rate_hz
        for text in notices:
            print_notice(text)
        _require_targets(self.notify)
        target = recording_target(settings, name, file=self.record, record=not self.no_record)
        return Session(
            settings,
            recording=target,
            # A file that the user named is written there or nowhere; a generated name may get a number.
            may_number=self.record is None,
            notices=notices,
            simulation=simulation,
            notify=self.notify,
        )


def begin(session: "Session", *, worker: bool = True) -> None:
    """Start a session.

    Raises:
        RequestError: if its recording cannot be written.
    """
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        session.start(worker=worker)
    except RecordingError as error:
        raise RequestError(str(error), "Use --record FILE, or --no-record.") from None


def close(session: "Session", served: "Served") -> bool:
    """Close a session and what serves it, and print which notifications failed; returns whether all threads ended."""
    served.close()
    joined = session.close() and served.joined
    for text in session.undelivered:
        print_notice(text)
    return joined


def outcome(session: "Session") -> "tuple[dict[str, Any], list[Note]]":
    """The summary of a session's run, as in JSON, and its notes."""
    with session.store.lock:
        run = session.store.run
        assert run is not None
        summary = run.summary()
        notes = list(run.notes)
    # gpudash ended before the run did, which to the user is an interruption.
    if summary["status"] not in OF_STATUS:
        summary["status"] = "cancelled"
    summary["product"] = session.machine.product_of(summary["device"])
    summary["recording"] = None
    if session.recording_path is not None:
        summary["recording"] = str(session.recording_path)
    return summary, notes


@Parameter(name="*")
@dataclass(kw_only=True)
class ServeOptions:
    """Flags for serving figures to Prometheus."""

    serve: Annotated[str | bool, Parameter(negative="", show_default=False, metavar="[ADDRESS:PORT]"), SERVING] = False
    """Serve the figures for Prometheus at 127.0.0.1:10950, or with :9500 at another port of this machine. An address
    that other machines can reach requires a token and TLS."""

    serve_token_file: Annotated[Path | None, SERVING] = None
    """File with the token that requests must send; GPUDASH_SERVE_TOKEN can hold it instead. There is no flag for the
    token itself, because everybody on the machine can see command lines."""

    serve_cert: Annotated[Path | None, SERVING] = None
    """TLS certificate (PEM)."""

    serve_key: Annotated[Path | None, SERVING] = None
    """Key of the certificate (PEM)."""

    @contextmanager
    def served(self) -> "Iterator[Served]":
        """Serve until the block is left; with --serve, the port is opened at once.

        Raises:
            RequestError: if the address is invalid, taken or not allowed.
        """
        # Listen before anything else starts, so that a taken port ends the command at once.
        served = Served(self._begun())
        try:
            yield served
        finally:
            served.close()

    def _begun(self) -> "Serving | None":
        if self.serve is False:
            if self.serve_token_file or self.serve_cert or self.serve_key:
                raise RequestError("A token, certificate or key is for serving.", "Give --serve as well.")
            return None
        from gpudash.session.serving import ServeRequest, Serving, ServingError

        if self.serve is True:
            address = ""
        else:
            address = self.serve
        if not address and self.serve is not True:
            raise RequestError("--serve was given an empty address.", "Leave it out, or write ADDRESS:PORT.")
        try:
            return Serving(ServeRequest(address, self.serve_token_file, self.serve_cert, self.serve_key))
        except ServingError as error:
            raise RequestError(str(error), error.remedy) from None


class Served:
    """Serves a command's session, or nothing if that was not requested.

    Attributes:
        joined: false if closing left a thread behind.
    """

    def __init__(self, serving: "Serving | None") -> None:
        self.joined = True
        self._serving = serving

    def begin(self, session: "Session") -> None:
        """Serve ``session``, and print the address."""
        if self._serving is not None:
            self._serving.start(session)
            self._print_place(self._serving)

    def begin_machines(self, machines: "Sequence[RemoteMachine]") -> None:
        """Serve machines over ssh, and print the address."""
        if self._serving is not None:
            self._serving.start_machines(machines)
            self._print_place(self._serving)

    def _print_place(self, serving: "Serving") -> None:
        from gpudash.session.serving import companions

        print_notice(f"Serving at {serving.url}; Grafana dashboard and alert rules: {companions()}")

    def predict(self, spec: "Spec", device: str) -> None:
        """Predict the run's peak if figures are served."""
        if self._serving is not None:
            self._serving.predict(spec, device)

    def close(self) -> None:
        """Stop serving; may be called again."""
        # The command closes it before its session; leaving the block closes it again after an error.
        if self._serving is not None:
            self.joined = self._serving.close() and self.joined
            self._serving = None
