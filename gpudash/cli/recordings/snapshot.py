"""``gpudash snapshot FILE``: summarise, explain and replay a memory snapshot; or take one of a running program."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.flags import CardSize, Pid
from gpudash.cli.terminal.output import (
    Exit,
    RequestError,
    numbers,
    one_line,
    plain_table,
    print_json,
    print_notice,
    print_table,
    stdout,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudash.memory.explaining.call_sites import SourceLine
    from gpudash.memory.snapshot.history.model import Snapshot
    from gpudash.memory.snapshot.summary import DeviceStudy

RECORD_AGAIN = "gpudash snapshot reads what torch.cuda.memory._dump_snapshot writes."


def snapshot(
    file: Path | None = None,
    other: Path | None = None,
    /,
    *,
    pid: Pid | None = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    with_: Annotated[Literal["gdb"] | None, Parameter(name="--with")] = None,
    capacity: CardSize | None = None,
    settings: str | None = None,
    device: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    sources: Path | None = None,
    html: Path | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Show what filled the memory in a torch memory snapshot, who allocated it, and what would have fitted.

    Parameters
    ----------
    file
        The snapshot, or the folder of a report with one.
    other
        A later snapshot to compare it with: what grew and what shrank, by call site, at the point where memory ran out
        or else at the peak.
    pid
        Take the snapshot of this running program, entered as by gpudash watch --attach, and leave the program as it
        was.
    output
        File to write that snapshot to.
    with_
        Enter the process only with a debugger.
    capacity
        Replay it with this much memory for PyTorch: a size (8GiB), or that of a GPU (h100; gpudash devices --known). On
        a GPU, PyTorch has less than the whole: its CUDA context and other processes take theirs.
    settings
        Replay it with these allocator settings, in the format of PYTORCH_ALLOC_CONF.
    device
        Index of the device; default: all devices in the file.
    sources
        Only show source lines of Python files in this folder: a snapshot may name any file.
    html
        Also write a report for a browser.
    force
        Replace an existing report or snapshot.
    json
        Print one JSON document.
    """
    if capacity == 0:
        raise RequestError("--capacity 0 is no memory at all.", "Give what PyTorch may have, such as 8GiB.")
    if pid is not None or output is not None or with_ is not None:
        file = _taken(file, pid, output, by_gdb=with_ == "gdb", force=force)
    if file is None:
        raise RequestError("There is no snapshot to read.", "Name a file, or a running program by --pid PID -o FILE.")
    path = _found(file)
    if other is not None:
        flags = {"--capacity": capacity, "--settings": settings, "--html": html}
        if given := next((flag for flag, value in flags.items() if value is not None), None):
            raise RequestError(f"{given} is for one snapshot.", "Leave it out, or name one file.")
        return _compare(path, _found(other), device, sources, as_json=json)
    if html is not None:
        _check_target(html, path, force)
    read, studies = _studied(path, capacity, settings, device, sources)
    if html is not None:
        from gpudash.memory.snapshot.report_html import page

        _write(html, page(read, studies, path.name, capacity))
    if json:
        from gpudash.memory.snapshot.summary import figures

        print_json({"file": str(path), **figures(read, studies)})
    else:
        _print(path, read, studies)
    return Exit.FINISHED


def _taken(file: Path | None, pid: int | None, output: Path | None, *, by_gdb: bool, force: bool) -> Path:
    """Take a snapshot of a running program; return its file."""
    if file is not None or pid is None or output is None:
        text = "A snapshot of a running program needs its number and a file to write, and no other file."
        raise RequestError(text, "Write for example: gpudash snapshot --pid 4711 -o snapshot.pickle")
    from gpudash.session.watching.attaching.attached import save_snapshot_of

    try:
        if output.is_dir() or (output.exists() and not force):
            raise RequestError(f"{output} is there already.", "Name another file, or give --force.")
        if not output.absolute().parent.is_dir():
            raise RequestError(f"There is no folder {output.absolute().parent}.", "Make it, or name another file.")
        save_snapshot_of(pid, output, by_gdb=by_gdb)
    except (OSError, ValueError) as error:
        raise RequestError(str(error)) from None
    print_notice(f"Wrote {output}")
    return output


def _studied(
    path: Path,
    capacity: int | None = None,
    settings: str | None = None,
    device: int | None = None,
    sources: Path | None = None,
) -> "tuple[Snapshot, Sequence[DeviceStudy]]":
    from gpudash.session.recordings.snapshot_opener import OpenedSnapshot

    opened = OpenedSnapshot(path)
    opened.start()
    try:
        # The file is being read in the meantime.
        from gpudash.memory.snapshot.summary import studied
        from gpudash.session.recordings.report_folder import sidecar_of

        known = sidecar_of(path)
        read = known.warned(wait_for(opened, RECORD_AGAIN))
    finally:
        opened.close()
    try:
        return read, studied(read, capacity, settings, device, _lines_in(sources), known)
    except ValueError as error:
        raise RequestError(str(error), "gpudash snapshot --help lists the options.") from None


def _lines_in(folder: Path | None) -> "SourceLine":
    """A reader of source lines: only of Python files inside a folder, with links resolved; of all files without
    one."""
    from gpudash.system.foreign_files import source_line

    if folder is None:
        return source_line
    whole = folder.resolve()

    def line_inside(file: str, line: int) -> str:
        # A name with a null character cannot be resolved.
        if "\0" in file or not Path(os.path.realpath(file)).is_relative_to(whole):
            return ""
        return source_line(file, line)

    return line_inside


MOST_CHANGES = 20
"""Maximum number of call sites in the table of changes."""


def _compare(first: Path, second: Path, device: int | None, sources: Path | None, *, as_json: bool) -> int:
    """Print what changed between two snapshots."""
    studied_both = (_studied(path, device=device, sources=sources) for path in (first, second))
    (before, (one, *_)), (after, (another, *_)) = studied_both
    from gpudash.memory.snapshot.summary import compared_with

    found = compared_with(one, another)
    warnings = [*before.warnings, *after.warnings]
    if as_json:
        print_json({"file": str(first), "other": str(second), **found.to_json(), "warnings": warnings})
        return Exit.FINISHED

    from gpudash.system.foreign_text import name_of
    from gpudash.units import format_bytes, format_change, format_count

    console = stdout()
    for line in (f"A  {name_of(first)}", f"B  {name_of(second)}", *warnings, found.sentence):
        console.print(line, soft_wrap=True)
    if found.changes:
        table = plain_table("call site", "category", *numbers("A", "B", "B minus A"))
        for change in found.changes[:MOST_CHANGES]:
            sizes = format_bytes(change.first), format_bytes(change.second), format_change(change.grown)
            table.add_row(one_line(change.name), change.category, *sizes)
        print_table(table, console, ("category",))
    if (more := len(found.changes) - MOST_CHANGES) > 0:
        console.print(f"and {format_count(more)} more; --json has all.")
    return Exit.FINISHED


def _found(file: Path) -> Path:
    """The snapshot to read: the file itself, or the one in a report folder."""
    from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME

    try:
        is_folder = file.is_dir()
        path = file
        if is_folder:
            path = file / SNAPSHOT_NAME
        if path.exists():
            return path
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}.", "Name a file that can.") from None
    if is_folder:
        raise RequestError(f"{file} is a folder without a {SNAPSHOT_NAME}.", "Name the file of a snapshot.")
    raise RequestError(f"There is no file {file}.", RECORD_AGAIN)


def _check_target(html: Path, path: Path, force: bool) -> None:
    """Refuse to overwrite an existing file, before any work is done."""
    try:
        if not html.exists():
            return
        if not html.is_file() or html.samefile(path):
            what = "is no regular file"
            if html.is_file():
                what = "is the snapshot itself"
            raise RequestError(f"{html} {what}.", "Name another file.")
    except OSError as error:
        raise RequestError(f"{html} cannot be written: {error.strerror}.", "Name another file.") from None
    if not force:
        raise RequestError(f"{html} is there already.", "Name another file, or give --force.")


def _write(path: Path, text: str) -> None:
    from gpudash.system.files import written_whole

    try:
        with written_whole(path) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.", "Name another file.") from None
    print_notice(f"Wrote {path}")


def _print(path: Path, read: "Snapshot", studies: "Sequence[DeviceStudy]") -> None:
    from gpudash.memory.explaining.explanation_text import alternatives_title, remedy_rows, report
    from gpudash.memory.snapshot.summary import compared
    from gpudash.system.foreign_text import name_of
    from gpudash.units import format_count

    console = stdout()
    events = sum(len(study.device.trace) for study in studies)
    kind = ""
    if read.kind:
        kind = f"{read.kind}, "
    lines = [f"{name_of(path)}: {kind}{format_count(events)} events."]
    lines += read.warnings
    comparison = compared(studies)
    lines += [comparison] if comparison else []
    for study in studies:
        lines.append("")
        if len(read.devices) > 1:
            lines.append(f"Device {study.device.index}")
        lines += report(study.found)
        if study.outcome_text:
            lines += ["", "What if", f"  {study.outcome_text}"]
        if study.ways:
            lines += ["", alternatives_title(study.ways), *(f"  {row}" for row in remedy_rows(study.ways))]
    for line in lines:
        console.print(line, soft_wrap=True)
