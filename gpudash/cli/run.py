"""``gpudash run WORKLOAD``: one run in the terminal."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from gpudash.cli.terminal.flags import RecordOptions, ServeOptions, Size, begin, close, outcome
from gpudash.cli.terminal.interruption import Interruption, interruptible
from gpudash.cli.terminal.output import (
    DEVICES,
    OF_STATUS,
    Exit,
    RequestError,
    RequestInterruptedError,
    leave,
    print_json,
    print_notice,
    refused,
)
from gpudash.cli.terminal.workload_flags import (
    ARGUMENTS,
    SpecHelp,
    WorkloadOptions,
    given_fields,
    has_fields,
    no_workload,
    with_nested,
    without_fields,
)
from gpudash.devices.names import OFFERED_BYTES, kind_of
from gpudash.specs import Spec, TrainingSpec, build, workloads
from gpudash.specs.invalid import flag
from gpudash.specs.training import ONE_RANK
from gpudash.system.processes import TORCH_IMPORT_S
from gpudash.telemetry.records import Note

if TYPE_CHECKING:
    from gpudash.session import Session

SEVERAL_ONLY = (*(name for name in ONE_RANK if name != "devices"), "rank_timeout")
"""Fields of a training workload that do not apply to a single device."""


@Parameter(name="*")
@dataclass(kw_only=True)
class RunOptions(ServeOptions, RecordOptions, WorkloadOptions):
    """Flags that belong to the command rather than to the workload."""

    guard: Size | None = None
    """Stop the run when memory grows by more than this above its use at the start (1GiB)."""

    isolate: bool | None = None
    """Run in a separate process, which ends with the run. Default: on CUDA, and for a comparison."""

    profile_steps: int = 0
    """Profile this many steps after the first, and list the operators that took the most time; slows them down."""

    quiet: Annotated[bool, Parameter(negative="")] = False
    """Show no progress line in the terminal."""

    show_code: Annotated[bool, Parameter(negative="")] = False
    """Print the plain PyTorch program that this run corresponds to, and run nothing."""

    json: Annotated[bool, Parameter(negative="")] = False
    """Print the outcome as one JSON document."""


def add_run_commands(app: App) -> None:
    """Add a sub-command per workload to ``gpudash run``, with flags built from its spec."""
    app.default(_no_workload)
    for name, spec in workloads().items():
        app.command(_command(spec), name=name, help=spec.summary, help_formatter=SpecHelp(spec))


def _no_workload(*arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    named = [word for word in arguments if not word.startswith("-")]
    if not named:
        raise RequestError("Which workload?", f"There is: {', '.join(workloads())}.")
    raise no_workload(named[0], list(workloads()))


def _command(spec_type: type[Spec]) -> Callable[..., int]:
    def command(*, spec: Any = None, options: Any = None) -> int:
        return run_given((), spec, options)

    def run_given(arguments: Sequence[str], spec: Spec | None, options: RunOptions | None) -> int:
        options = options or RunOptions()
        try:
            given = with_nested(spec_type, arguments, given_fields(spec), options.preset)
            whole = build(spec_type, given, options.preset)
        except ValueError as error:
            raise RequestError(f"{error}.", f"gpudash run {spec_type.name} --help lists what is allowed.") from None
        return execute(whole, options)

    # Accept extra words only if the workload has fields of another one; otherwise the parser rejects them itself.
    def command_with_fields(*arguments: str, spec: Any = None, options: Any = None) -> int:
        return run_given(arguments, spec, options)

    flags = {
        "spec": Annotated[without_fields(spec_type) | None, Parameter(name="*")],
        "options": RunOptions | None,
        "return": int,
    }
    if not has_fields(spec_type):
        # Set at run time, because the types are made from the spec; the parser reads flags from a function's
        # annotations.
        command.__annotations__ = flags
        return command
    command_with_fields.__annotations__ = {"arguments": ARGUMENTS, **flags}
    return command_with_fields


def execute(spec: Spec, options: RunOptions) -> int:
    """Run ``spec`` to the end, with progress on stderr and the result on stdout."""
    if options.show_code:
        return _show_code(spec, options)
    summary, notes, joined = perform(spec, options)
    if options.json:
        print_json(summary)
    else:
        from gpudash.cli.terminal.report import print_run

        print_run(summary, notes)
    return leave(OF_STATUS[summary["status"]], joined)


def perform(spec: Spec, options: RunOptions, *, leave_at_once: bool = False) -> tuple[dict[str, Any], list[Note], bool]:
    """The run's summary (as in JSON), its notes, and whether every thread could be joined.

    Args:
        leave_at_once: Ctrl+C does not wait for the current step.

    Raises:
        RequestError: if the device, the recording's path or a combination of fields is invalid.
    """
    # Check before the session starts: it would begin a recording and load torch for an impossible run.
    _require_possible(spec, options, options.chosen_device(spec.own_device))
    session = options.session(spec.name, options.simulation())
    failure: RequestError | None = None
    message = "Stopping after this step…"
    if leave_at_once:
        message = ""
    with options.served() as served, interruptible(message) as interruption:
        begin(session)
        try:
            served.begin(session)
            # Ctrl+C while torch loads only ends the wait: the summary below says what became of the run.
            with suppress(KeyboardInterrupt):
                _wait_until_ready(session, interruption, isolate=options.isolate is True)
                # The prediction that is served needs the chosen device, which is known only once the run has started.
                served.predict(spec, _start(session, spec, options))
                quiet = options.quiet or (options.json and not sys.stderr.isatty())
                _watch_run(session, interruption, quiet=quiet, leave_at_once=leave_at_once)
        except RequestError as error:
            failure = error
        finally:
            joined = close(session, served)
    # Nothing ran, so there is no summary: report the reason, and remove the empty recording.
    if session.store.run is None:
        failure = failure or RequestInterruptedError("Interrupted before the run began; nothing was recorded.")
        failure.joined = joined
        if session.recording_path is not None:
            session.recording_path.unlink(missing_ok=True)
        raise failure
    summary, notes = outcome(session)
    return summary, notes, joined


def _require_possible(spec: Spec, options: RunOptions, device: str | None, total_bytes: int | None = None) -> None:
    """Reject whatever can be seen to be invalid before anything starts.

    Args:
        device: device of the run; ``None`` if not chosen yet.
        total_bytes: its memory, if known.
    """
    if options.profile_steps:
        from gpudash.session.live.running import check_steps

        try:
            check_steps(options.profile_steps)
        except ValueError as error:
            raise RequestError(str(error), "Each of them has to be read, during which the run waits.") from None
    # Before the device: contradictory flags leave it open what the device is.
    _require_devices_agree(spec, options)
    if device is None:
        return
    if device != "cpu" and not _gpu_name(device):
        raise RequestError(f"{device!r} is not a device.", f"Write cpu, cuda:0 or sim:0; {DEVICES}")
    cap = options.memory_cap
    # Report problems of the workload and of the cap together, so that one attempt shows them all.
    if problems := spec.run_problems(device) + (cap.problems(device, total_bytes) if cap else []):
        chosen = "Without --device it is the CPU."
        if options.chosen_device():
            chosen = DEVICES
        raise RequestError("; ".join(problems) + ".", chosen)


def _require_devices_agree(spec: Spec, options: RunOptions) -> None:
    """Reject flags for several devices in a run on one, and vice versa."""
    if not isinstance(spec, TrainingSpec):
        return
    if spec.device_names:
        if options.device is not None:
            both = f"--device {options.device} and --devices {spec.devices} say different things"
            raise RequestError(both, "Give one of them.")
        if options.profile_steps and spec.rank_devices:
            raise RequestError(
                "--profile-steps: steps of a run on several devices are not profiled", "Profile one on a single device."
            )
        if spec.global_batch and "batch" in spec.model_fields_set and spec.batch != spec.rank_batch:
            together = (
                f"--batch {spec.batch} on each of {spec.world_size} ranks is {spec.batch * spec.world_size} together"
            )
            raise RequestError(f"{together}, not --global-batch {spec.global_batch}", "Give one of them.")
        return
    # Compare with the defaults, not with what was set: a preset may set a field to its default.
    idle = [name for name in SEVERAL_ONLY if getattr(spec, name) != type(spec).model_fields[name].default]
    if idle:
        raise RequestError(f"{flag(idle[0])} is for a run on several devices", "Name them: --devices cuda:0,cuda:1")


def _wait_until_ready(session: "Session", interruption: Interruption, *, isolate: bool) -> None:
    session.load_torch(isolate)
    # By the clock, not by counting waits: a wait may return late while torch's import holds the GIL.
    deadline = time.monotonic() + TORCH_IMPORT_S
    while not session.wait_ready(0.1):
        if interruption.requested:
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            raise RequestError("PyTorch did not load within two minutes.", "Try: python -c 'import torch'")


def _start(session: "Session", spec: Spec, options: RunOptions) -> str:
    """Start the run; return its device."""
    try:
        device = options.chosen_device(spec.own_device) or session.default_device()
        session.start_run(
            spec, device, options.guard, options.memory_cap, options.isolate, profile_steps=options.profile_steps
        )
    except ValueError as error:
        raise refused(error) from None
    return device


def _watch_run(session: "Session", interruption: Interruption, *, quiet: bool, leave_at_once: bool) -> None:
    def on_progress() -> None:
        if interruption.requested:
            session.stop_run()
            if leave_at_once:
                raise KeyboardInterrupt

    if not quiet:
        from gpudash.cli.terminal.report import show_progress

        show_progress(session, on_progress)
    while not session.runs.wait(0.1):
        on_progress()
    from gpudash.session.predicting.remedies import SEARCHING, found_text

    # Check first whether it is over: after a successful run there is no search to announce.
    if not session.remedies.wait(0) and not quiet:
        print_notice(f"{SEARCHING}…")
    announced = quiet
    while not (session.remedies.wait(0.1) or interruption.requested):
        so_far = session.remedies.so_far
        if not announced and so_far is not None and so_far.found:
            announced = True
            print_notice(f"So far: {found_text(so_far.found, note='')} Looking further; Ctrl+C ends that.")


def _gpu_name(device: str) -> bool:
    kind, _, index = device.partition(":")
    return kind in ("cuda", "sim") and index.isdecimal()


def _show_code(spec: Spec, options: RunOptions) -> int:
    from gpudash.workloads.program_code import code

    device, simulation = options.chosen_device(spec.own_device) or "cpu", options.simulation()
    # Sizes by device name, numbered as in a session; without --simulate there is one by default.
    sizes = {f"sim:{index}": size for index, size in enumerate(simulation.sizes or (OFFERED_BYTES,))}
    _require_possible(spec, options, device, sizes.get(device))
    if kind_of(device) == "sim" and device not in sizes:
        there = f"There is: {', '.join(sizes)}; every --simulate 8GiB adds one."
        raise RequestError(f"There is no device {device!r}.", there)
    try:
        sys.stdout.write(code(spec, device, simulation, options.memory_cap))
    except ValueError as error:
        raise RequestError(str(error)) from None
    return Exit.FINISHED
