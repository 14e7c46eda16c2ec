"""``gpudash run WORKLOAD``: one run without a screen."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from gpudash.cli.output import OF_STATUS, Exit, RequestError, leave, print_json, print_notice
from gpudash.settings import load_settings
from gpudash.specs import Spec, broken_entry_points, build, workloads
from gpudash.units import parse_size

TORCH_TIMEOUT_S = 120.0
"""A cold import of a CUDA build of torch from a network disk has been seen to take over a minute."""


def _size(_type: Any, tokens: Any) -> int:
    return parse_size(tokens[0].value)


@Parameter(name="*")
@dataclass(kw_only=True)
class RunOptions:
    """What belongs to the command rather than to the workload."""

    device: str | None = None
    """cpu or cuda:0; left out: the CUDA device with most free memory, else cpu."""

    preset: str | None = None
    """Named set of field values to start from."""

    guard: Annotated[int | None, Parameter(converter=_size)] = None
    """Stop the run when memory grows this far above its use at the start (1GiB)."""

    record: Path | None = None
    """Recording to write; left out: a new one in the recordings folder."""

    no_record: Annotated[bool, Parameter(negative="")] = False
    """Record nothing."""

    show_code: Annotated[bool, Parameter(negative="")] = False
    """Print the plain PyTorch program this run amounts to, and run nothing."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print the outcome as one JSON document."""


def run_app() -> App:
    """``gpudash run`` with one sub-command per workload, its flags built from the spec."""
    app = App(name="run", help="Run a workload in the terminal.", default_command=_no_workload)
    for name, spec in workloads().items():
        app.command(_command(spec), name=name, help=spec.summary)
    return app


def _no_workload(*words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    there = ", ".join(workloads())
    if not words:
        raise RequestError("Which workload?", f"There is: {there}.")
    raise RequestError(f"There is no workload {words[0]!r}.", " ".join([f"There is: {there}.", *broken_entry_points()]))


def _command(spec_type: type[Spec]) -> Callable[..., int]:
    def command(*, spec: Any = None, options: Any = None) -> int:
        given = {name: getattr(spec, name) for name in spec.model_fields_set} if spec is not None else {}
        options = options or RunOptions()
        try:
            whole = build(spec_type, given, options.preset)
        except ValueError as error:
            raise RequestError(f"{error}.", f"gpudash run {spec_type.name} --help lists what is allowed.") from None
        return execute(whole, options)

    command.__annotations__ = {
        "spec": Annotated[spec_type | None, Parameter(name="*")],
        "options": RunOptions | None,
        "return": int,
    }
    return command


def execute(spec: Spec, options: RunOptions) -> int:
    """Run ``spec`` to its end, with progress on stderr and the outcome on stdout."""
    if options.show_code:
        return _show_code(spec, options.device or "cpu")
    summary, joined = perform(spec, options)
    if options.json:
        print_json(summary)
    else:
        from gpudash.cli.report import print_run

        print_run(summary)
    return leave(OF_STATUS[summary["status"]], joined)


def perform(spec: Spec, options: RunOptions) -> tuple[dict[str, Any], bool]:
    """The run's summary (the JSON contract), and whether every thread could be joined.

    Raises:
        RequestError: when the device, the target of the recording or a combination of fields is wrong.
    """
    from gpudash.session import Session, recording_target
    from gpudash.telemetry.recorder import RecordingError

    device = options.device
    if device is not None and device != "cpu" and not _cuda_name(device):
        raise RequestError(f"{device!r} is not a device.", "Write cpu or cuda:0; gpudash devices lists what is there.")
    if device == "cpu" and (problems := spec.problems(device)):
        raise RequestError("; ".join(problems) + ".", "gpudash devices lists what is there.")
    settings, notices = load_settings()
    target = recording_target(settings, spec.name, file=options.record, record=not options.no_record)
    session = Session(settings, recording=target, notices=notices)
    for text in notices:
        print_notice(text)
    try:
        session.start()
    except RecordingError as error:
        raise RequestError(str(error), "Use --record FILE, or --no-record.") from None
    started = joined = False
    try:
        with interruptible(session.stop_run):
            _wait_until_ready(session)
            session.start_run(spec, device or session.default_device(), options.guard)
            started = True
            _watch_run(session, quiet=options.json and not sys.stderr.isatty())
        summary = _summary(session)
    except ValueError as error:
        raise RequestError(str(error), "gpudash devices lists what is there.") from None
    finally:
        joined = session.close()
        if not started and target is not None:
            target.unlink(missing_ok=True)
    return summary, joined


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl+C and SIGTERM ask the run to stop; a second one leaves at once."""

    def handle(_number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print_notice("Stopping after this step…")
        stop()

    asked = threading.Event()
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(session: Any) -> None:
    session.load_torch()
    deadline = time.monotonic() + TORCH_TIMEOUT_S
    while not session.wait_ready(0.2):
        if time.monotonic() > deadline:
            raise RequestError("PyTorch did not load within two minutes.", "Try: python -c 'import torch'")


def _watch_run(session: Any, *, quiet: bool) -> None:
    if quiet:
        while not session.wait_run(0.2):
            pass
        return
    from gpudash.cli.report import show_progress

    show_progress(session)


def _summary(session: Any) -> dict[str, Any]:
    with session.store.lock:
        summary: dict[str, Any] = session.store.run.summary()
    summary["recording"] = str(session.recording) if session.recording is not None else None
    return summary


def _cuda_name(device: str) -> bool:
    kind, _, index = device.partition(":")
    return kind == "cuda" and index.isdecimal()


def _show_code(spec: Spec, device: str) -> int:
    from gpudash.workloads.code import code

    sys.stdout.write(code(spec, device))
    return Exit.FINISHED
