"""``gpudash runs``: the recorded runs, and the result of one of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.output import Exit, RequestError, numbers, plain_table, print_json, print_table, stdout

if TYPE_CHECKING:
    from gpudash.telemetry.comparing import ComparedRun
    from gpudash.telemetry.recording.facts import Facts, RunFacts

LISTED = 20
"""Default number of recordings listed."""

PEAK_S = 0.5
"""Seconds spent searching for the peaks of one recording: many are listed."""

RECORD_FIRST = "gpudash run and gpudash watch record what they run."


def runs(
    recording: str | None = None,
    /,
    *,
    folder: Path | None = None,
    most: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = LISTED,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """List the recorded runs, the newest recording first; or show the result of one, and why its memory ran out.

    Parameters
    ----------
    recording
        A recording whose last run's result to show, by its file or by the name in the list; FILE#2 selects the second
        run.
    folder
        Folder of the recordings; default: gpudash's own.
    most
        Number of recordings to list, newest first.
    json
        Print one JSON document.
    """
    if recording is None:
        return _list(folder, most, as_json=json)
    if folder is not None:
        raise RequestError("--folder is for the list of recordings, and one is named.", "Leave one of them out.")
    return _show(recording, as_json=json)


def recorded_run(text: str, remedy: str) -> "ComparedRun":
    """The run that FILE or FILE#N names.

    Raises:
        RequestError: with ``remedy``, if there is none.
    """
    from gpudash.session.recordings.comparing.comparison_loader import load_run, split_run
    from gpudash.telemetry.recording.recorder import RecordingError

    try:
        path, number = split_run(text)
        return load_run(path, number)
    except RecordingError as error:
        raise RequestError(str(error), remedy) from None
    except OSError as error:
        raise RequestError(f"{text} cannot be read: {error.strerror}.", "Name a recording that can.") from None


def _show(text: str, *, as_json: bool) -> int:
    """Print the result of a run in the format of the command that ran it."""
    found = recorded_run(text, RECORD_FIRST)
    summary = found.view.summary(found.recording)
    if as_json:
        print_json({**summary, "notes": list(found.notes)})
        return Exit.FINISHED
    from gpudash.memory.explaining.explanation_text import report
    from gpudash.telemetry.results.outcome import outcome_rows
    from gpudash.telemetry.runs import ending_text

    console = stdout()
    status = ending_text(found.view.status, found.view.spec)
    console.print(f"{found.label}: {found.view.workload} on {found.view.device}, {status}", soft_wrap=True)
    for name, value in outcome_rows(summary):
        console.print(f"{name}  {value}", soft_wrap=True)
    ended = found.view.error
    if ended is not None and ended.explanation is not None:
        for line in report(ended.explanation):
            console.print(line, soft_wrap=True)
    for note in found.notes:
        console.print(note, soft_wrap=True)
    return Exit.FINISHED


def _list(folder: Path | None, most: int, *, as_json: bool) -> int:
    """List the recordings of a folder with their runs."""
    from gpudash.system.settings import recordings_folder
    from gpudash.telemetry.recording.facts import read_facts
    from gpudash.telemetry.recording.schema import SUFFIX

    where = folder or recordings_folder()
    dated: list[tuple[float, Path]] = []
    try:
        there = [path for path in where.iterdir() if path.name.endswith(SUFFIX) and path.is_file()]
        dated = sorted(((path.stat().st_mtime, path) for path in there), reverse=True)
    except FileNotFoundError:
        if folder is not None:
            raise RequestError(f"There is no folder {folder}.", "Name one that is there.") from None
    except OSError as error:
        raise RequestError(f"{where} cannot be read: {error.strerror}.", "Name a folder that can.") from None
    found = [(path, read_facts(path, PEAK_S)) for _changed_s, path in dated[:most]]
    if as_json:
        listed = [_recording(path, facts) for path, facts in found]
        print_json({"folder": str(where), "recordings": listed, "more": len(dated) - len(found)})
        return Exit.FINISHED
    _print(where, found, len(dated))
    return Exit.FINISHED


def _recording(path: Path, facts: "Facts") -> dict[str, Any]:
    return {
        "recording": str(path),
        "title": facts.title,
        "began_wall_s": facts.began_wall_s,
        "seconds": facts.duration_s,
        "damage": facts.damage,
        "runs": list(map(_run, facts.runs)),
    }


def _run(run: "RunFacts") -> dict[str, Any]:
    return {
        "number": run.number,
        "title": run.label.title,
        "workload": run.workload,
        "device": run.device,
        "simulated": run.simulated,
        "spec": dict(run.spec),
        "status": run.status,
        "seconds": run.seconds,
        "peak_used_bytes": run.peak_bytes,
        "peak_allocated_bytes": run.own_peak_bytes,
        "loss": run.loss,
    }


def _print(where: Path, found: "list[tuple[Path, Facts]]", there: int) -> None:
    from rich.table import Column

    from gpudash.session.recordings.run_names import kind_of_run, peak_text
    from gpudash.telemetry.runs import ending_text
    from gpudash.units import format_duration

    console = stdout()
    if not found:
        console.print(f"There is no recording in {where}. {RECORD_FIRST}", soft_wrap=True)
        return
    table = plain_table("recording", "run", "device", Column("ended", no_wrap=True), *numbers("took", "peak"))
    for path, facts in found:
        for run in facts.runs:
            took = ""
            if run.seconds is not None:
                took = format_duration(run.seconds)
            name = f"{path.name}#{run.number}"
            what = run.label.title or kind_of_run(run)
            table.add_row(name, what, run.device, ending_text(run.status, run.spec), took, peak_text(run))
        if not facts.runs:
            table.add_row(path.name, "damaged" if facts.damage else "nothing was run", "", "", "", "")
    print_table(table, console, cut=("recording", "run"))
    for _path, facts in found:
        if facts.damage:
            console.print(facts.damage, soft_wrap=True)
    if there > len(found):
        console.print(f"{there - len(found)} older recordings are left out; --most {there} lists them.", soft_wrap=True)
