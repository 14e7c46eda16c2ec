"""``gpudash open``: open a script, a model, a snapshot, a trace, a recording or another machine's readings."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpudash.cli.terminal.flags import SimulateOptions
from gpudash.cli.terminal.output import RequestError, leave
from gpudash.session.addresses import Address, ServerAddress, SshHost, StandardInput, parse_address

if TYPE_CHECKING:
    from gpudash.devices.names import Simulation
    from gpudash.session.recordings.file_kinds import FoundFile


def _address(_type: Any, tokens: Any) -> Address:
    text = tokens[0].value
    if text.startswith("-") and text != "-":
        raise _unknown_flag(text)
    address = parse_address(text)
    if isinstance(address, Path):
        from gpudash.system.settings import recording_path

        return recording_path(address)
    return address


def _unknown_flag(text: str) -> Exception:
    """The parser's own error for a flag it does not know: it takes every one for an address, because of "-"."""
    from cyclopts import App, Token, UnknownOptionError

    known = App(default_command=open_address).assemble_argument_collection()
    return UnknownOptionError(token=Token(value=text.partition("=")[0], source="cli"), argument_collection=known)


Opened = Annotated[Address, Parameter(converter=_address, n_tokens=1, accepts_keys=False, allow_leading_hyphen=True)]


def open_address(
    address: Opened,
    /,
    *others: Opened,
    simulated: SimulateOptions | None = None,
    table: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Open a script, a model, a memory snapshot, the folder of an out-of-memory report, a trace of torch.profiler, or a
    recording in the window.

    A script and a model's config.json become the next run of the form, with the memory they would take. Nothing of
    them is run before Start. What follows -- are the script's arguments: gpudash open train.py -- --batch 4

    A trace is written by prof.export_chrome_trace("trace.json.gz"); its operators and its memory are shown. Without a
    display, they are printed. Scalars in TensorBoard's event files are shown as the losses of runs.

    Recordings of one torchrun job, made by gpudash watch on each node, open together as one. Two recordings of
    machines without runs, such as two over ssh, are overlaid.

    With - it shows what another machine sends: ssh HOST gpudash monitor --json-lines | gpudash open -

    With one or more ssh://HOST it shows other machines live, read over ssh with nothing installed there.

    With prometheus:http://HOST:9090 it shows every GPU that a Prometheus server monitors. Set GPUDASH_PROMETHEUS_TOKEN
    if the server requires a token.

    No data leaves this computer, except for queries to a Prometheus server and a reader program sent to a machine over
    ssh.

    Parameters
    ----------
    address
        A Python script, a model's folder or config.json, a snapshot written by torch.cuda.memory, a folder that
        `gpudash watch` left behind, a trace exported by torch.profiler, a recording, - for the JSON lines of `gpudash
        monitor` on standard input, ssh://[user@]host[:port], or prometheus: and the address of a Prometheus server.
    others
        The recordings of the other nodes, or more machines.
    table
        Print the operators of a trace in the terminal instead of opening the window.
    json
        Print them as one JSON document.
    """
    if table or json:
        if others or not isinstance(address, Path):
            raise RequestError("--table and --json print one trace of torch.profiler.", "Name its file alone.")
        return _print_trace(address, as_json=json)
    simulation = (simulated or SimulateOptions()).simulation()
    if not others and isinstance(address, Path):
        return _open_path(address, simulation)
    if simulation.cards or simulation.others:
        raise RequestError("--simulate gives the window's own runs a GPU; it goes with one script, model or file.")
    if not isinstance(address, Path) and not others:
        return _open_one(address)
    addresses = (address, *others)
    hosts = [each for each in addresses if isinstance(each, SshHost)]
    if hosts:
        if len(hosts) < len(addresses):
            raise RequestError("Machines over ssh are opened together, without files or servers.")
        return _open_machines(list(dict.fromkeys(hosts)))
    if any(isinstance(each, ServerAddress) for each in addresses):
        raise RequestError("A Prometheus server is opened alone, without files or other servers.")
    paths = [each for each in addresses if isinstance(each, Path)]
    if len(paths) < len(addresses):
        raise RequestError("What is piped in is opened alone, without files.")
    return _open_joined(paths)


def open_script(
    script: Path,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    simulated: SimulateOptions | None = None,
) -> int:
    """Open a script in the window, with the arguments that follow ``--``.

    Parameters
    ----------
    script
        A Python script.
    arguments
        Its arguments.
    """
    simulation = (simulated or SimulateOptions()).simulation()
    return _open_path(script, simulation, shlex.join(arguments))


def _open_one(address: SshHost | ServerAddress | StandardInput) -> int:
    if isinstance(address, SshHost):
        return _open_machines([address])
    if isinstance(address, ServerAddress):
        return _open_fleet(address)
    return _open_stream()


def _open_path(path: Path, simulation: "Simulation", arguments: str = "") -> int:
    from gpudash.session.recordings.file_kinds import form_input

    path = path.expanduser()
    taken = form_input(path)
    if arguments and taken != "script":
        raise RequestError(f"What follows -- are the arguments of a Python script, and {path} is none.")
    if taken is None:
        return _open_file(path, simulation)
    given = shlex.quote(str(path))
    if taken == "script":
        command = f"python {given} {arguments}".rstrip()
        instead = f"gpudash estimate -- {command} predicts what it takes."
    else:
        instead = f"gpudash estimate --model {given} predicts what it takes."
    _require_window(instead)
    from gpudash.ui.app import run

    return leave(*run(simulation, begin=lambda workspace: workspace.open_dropped([path.absolute()], arguments)))


def _open_file(path: Path, simulation: "Simulation") -> int:
    from gpudash.cli.qt import has_display
    from gpudash.session.recordings.file_kinds import find_file
    from gpudash.telemetry.recording.reading import open_recording
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        file = find_file(path)
        if file.kind == "recording":
            open_recording(file.path).close()  # report what is not a recording here, before a window opens
    except (ValueError, RecordingError) as error:
        raise RequestError(str(error)) from None
    if file.kind == "trace" and not has_display():
        return _print_found_trace(file, as_json=False)
    _require_window(_WITHOUT_WINDOW.get(file.kind, ""))
    from gpudash.ui.app import run

    return leave(*run(simulation, file=file))


_WITHOUT_WINDOW = {
    "recording": "gpudash export --help says what goes here.",
    "snapshot": "gpudash snapshot --help says what goes here.",
    "scalars": "tensorboard --logdir shows it in a browser.",
}
"""Kinds of files → what shows them without a display."""


def _require_window(instead: str) -> None:
    """Check that a window can be opened.

    Raises:
        RequestError: says what else to do, as in ``instead`` where there is no display.
    """
    from gpudash.cli.qt import has_display, require_qt

    if not has_display():
        raise RequestError("There is no display to open a window on.", instead)
    require_qt()


def _print_trace(path: Path, *, as_json: bool) -> int:
    from gpudash.session.recordings.file_kinds import find_file

    try:
        file = find_file(path)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return _print_found_trace(file, as_json=as_json)


def _print_found_trace(file: "FoundFile", *, as_json: bool) -> int:
    from gpudash.cli.recordings.profiler_trace import print_trace

    if file.kind != "trace":
        raise RequestError(
            f"{file.title} is {_KINDS[file.kind]}, not a trace of torch.profiler.", _OTHER_TABLES[file.kind]
        )
    return print_trace(file.path, as_json=as_json)


_KINDS = {
    "recording": "a recording",
    "snapshot": "a memory snapshot",
    "trace": "a trace",
    "scalars": "a log of TensorBoard",
}

_OTHER_TABLES = {
    "recording": "gpudash export --help says how its readings become a table.",
    "scalars": "gpudash open shows it in the window.",
    "snapshot": "gpudash snapshot prints what is in it.",
}


def _open_joined(paths: Sequence[Path]) -> int:
    from gpudash.session import Replay
    from gpudash.session.recordings.file_kinds import find_file
    from gpudash.session.recordings.joining import JoinedRecording
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        files = list(map(find_file, paths))
        if other := next((one for one in files if one.kind != "recording"), None):
            raise ValueError(f"{other.title} is {_KINDS[other.kind]}; only recordings can be opened together.")
        paths = [one.path for one in files]
        replays = []
        if len(paths) == 2 and not any(map(_has_runs, paths)):
            replays = list(map(Replay, paths))
        joined = None
        if not replays:
            joined = JoinedRecording(paths)
    except (ValueError, RecordingError) as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        raise RequestError(f"There is no room to join the recordings ({error.strerror or error}).") from None
    try:
        _require_window("Each can be exported on its own: gpudash export --help.")
        from gpudash.ui.app import run
        from gpudash.ui.features.fleet import compare_recordings

        if joined is None:
            return leave(*run(begin=lambda workspace: compare_recordings(workspace, replays)))
        path = joined.path
        return leave(*run(begin=lambda workspace: workspace.open(path, remember=False)))
    finally:
        for replay in replays:
            replay.close()
        if joined is not None:
            joined.remove()


def _has_runs(path: Path) -> bool:
    from gpudash.telemetry.recording.reading import open_recording

    with open_recording(path) as recording:
        return bool(recording.runs)


def _open_stream() -> int:
    if sys.stdin is None or sys.stdin.isatty():
        raise RequestError("Nothing is piped into gpudash open -.", "Pipe in what gpudash monitor --json-lines prints.")
    _require_window("gpudash monitor --help says what goes here.")
    from gpudash.ui.app import run
    from gpudash.ui.features.file import open_stream

    return leave(*run(begin=lambda workspace: open_stream(workspace, sys.stdin)))


def _open_fleet(address: ServerAddress) -> int:
    from gpudash.sources.prometheus.client import read_token

    try:
        read_token(address)
    except ValueError as error:
        raise RequestError(str(error)) from None
    _require_window(f"{address}/graph draws what the server knows.")
    from gpudash.ui.app import run
    from gpudash.ui.features.fleet import open_fleet

    return leave(*run(begin=lambda workspace: open_fleet(workspace, address)))


def _open_machines(hosts: Sequence[SshHost]) -> int:
    from gpudash.cli.terminal.linking import linked

    _require_window(f"gpudash monitor {hosts[0]} shows it here.")
    with linked(hosts, window=True) as fleet:
        from gpudash.ui.app import run
        from gpudash.ui.features.fleet import show_machines

        return leave(*run(begin=lambda workspace: show_machines(workspace, fleet)))
