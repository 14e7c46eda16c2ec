"""The output of commands: exactly one JSON document on stdout, everything else on stderr.

rich and json are imported only where something is printed with them; opening a window needs neither.
"""

from __future__ import annotations

import enum
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import category

from gpudash.system.foreign_text import UNSEEN, name_of, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

    from gpudash.system.opened_file import OpenedFile

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.1
"""Seconds between updates of the progress of reading a file, and checks for Ctrl+C."""


class Exit(enum.IntEnum):
    """Exit codes of every command."""

    FINISHED = 0
    FAILED = 1
    WRONG_REQUEST = 2
    OUT_OF_MEMORY = 3
    CANNOT_EXECUTE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130


OF_STATUS = {
    "finished": Exit.FINISHED,
    "failed": Exit.FAILED,
    "out_of_memory": Exit.OUT_OF_MEMORY,
    "cancelled": Exit.INTERRUPTED,
}


class RequestError(Exception):
    """An invalid request: what was wrong, where, and what to do.

    Attributes:
        joined: false if a thread was left behind, for `leave`.
    """

    code = Exit.WRONG_REQUEST
    status = "failed"
    kind = "request"

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        if message.endswith((".", "?")):
            self.message = message
        else:
            self.message = f"{message}."
        self.remedy = remedy
        self.joined = True


class RequestInterruptedError(RequestError):
    """The user ended the command before there was anything to report."""

    code = Exit.INTERRUPTED
    status = "cancelled"
    kind = "interrupted"


class NoGpuError(RequestError):
    """A GPU is needed, none is there, and none was named."""

    kind = "no_gpu"


class TooManyFilesError(RequestError):
    """More files would have to be open at once than the system allows."""

    code = Exit.FAILED
    kind = "OSError"


def one_line(text: str) -> str:
    """``text`` as one line: a newline in a name could forge a line of output."""
    return visible(text, keep="\t")


def stdout() -> Console:
    """The console for a command's output. If the reader of a pipe leaves, it prints no more, and the command keeps its
    exit code."""
    return _console()


def stderr() -> Console:
    """The console for progress and notices."""
    return _console(stderr=True)


def help_console() -> Console:
    """The console for help texts, which are ours and may have several lines."""
    return _console(keep="\n\t")


def _console(*, stderr: bool = False, keep: str = "\t") -> Console:
    """A console for foreign text: brackets are not markup, and control characters are shown escaped."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                # Control segments are rich's own, such as those that move the cursor of a live table.
                if segment.control:
                    shown = segment.text
                else:
                    shown = visible(segment.text)
                yield segment if shown == segment.text else Segment(shown, segment.style)

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text, keep), **options)

        def on_broken_pipe(self) -> None:
            # rich's default would end the process with exit code 1.
            self.quiet = True
            discard_stdout()

    return PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False)


def plain_table(*columns: str | Column) -> Table:
    """A table without borders, with bold headers."""
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def numbers(*titles: str) -> Iterator[Column]:
    """Right-aligned columns."""
    from rich.table import Column

    return (Column(title, justify="right") for title in titles)


def fitted(table: Table, console: Console, spared: Sequence[str] = (), cut: Sequence[str] = ()) -> tuple[Table, str]:
    """A table that wraps only between words, without the columns that do not fit; and a notice that names these.

    A column that is empty in every row is dropped without notice.

    Args:
        spared: titles of columns to drop first, in this order; after these, the last ones are dropped. Two always
            stay.
        cut: titles of columns whose text may be broken within words, such as long names.
    """
    columns = [column for column in table.columns if any(map(str, column.cells)) or not table.row_count]
    widths = [_widths(column, console, cut=column.header in cut) for column in columns]
    least, most = [narrow for narrow, _wide in widths], [wide for _narrow, wide in widths]
    needed = _with_gaps(least)
    left_out: list[str] = []
    # Two columns stay: what a row is about, and its main figure.
    while len(columns) > 2 and _with_gaps(least) > console.width:
        titles = [str(column.header) for column in columns]
        title = next((title for title in spared if title in titles), titles[-1])
        left_out.append(title)
        position = titles.index(title)
        del columns[position], least[position], most[position]
    # Distribute the remaining width, one character at a time, to the column that lacks most.
    room = console.width - _with_gaps(least)
    for _column_of_text in range(min(room, sum(most) - sum(least))):
        least[max(range(len(least)), key=lambda at: most[at] - least[at])] += 1  # to the cell that wraps most
    notice = ""
    if left_out:
        notice = f"Left out, as the terminal has fewer than {needed} columns: {', '.join(left_out)}."
    return _of_columns(table, columns, least), notice


def _of_columns(table: Table, columns: Sequence[Column], widths: Sequence[int]) -> Table:
    from rich.table import Table

    kept = Table(box=None, pad_edge=False, header_style=table.header_style)
    for column, width in zip(columns, widths, strict=True):
        kept.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, width=width)
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        kept.add_row(*cells, style=row.style)
    return kept


def _widths(column: Column, console: Console, *, cut: bool) -> tuple[int, int]:
    """The minimum width of a column, which breaks words only if ``cut``; and the width of its unwrapped cells."""
    # Measure without a width limit, or rich wraps the cell before measuring it.
    unbounded = console.options.update_width(_WIDEST)
    title, *cells = (console.measure(cell, options=unbounded) for cell in (column.header, *column.cells))
    most = max(cell.maximum for cell in (title, *cells))
    if cut:
        return min(most, max(title.maximum, _WHOLE)), most
    if column.no_wrap:
        return most, most
    return max(cell.maximum if cell.maximum <= _WHOLE else cell.minimum for cell in (title, *cells)), most


def _with_gaps(widths: Sequence[int]) -> int:
    """The width of a table without borders: rich separates cells by two spaces."""
    return sum(widths) + 2 * (len(widths) - 1)


def print_table(table: Table, console: Console, spared: Sequence[str] = (), cut: Sequence[str] = ()) -> None:
    """Print a table as laid out by `fitted`, and the columns that were dropped.

    Into a pipe or a file, whose reader searches for a whole name, text in ``cut`` is broken only if ``COLUMNS`` is set.
    """
    if cut and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDEST
    shown, notice = fitted(table, console, spared, cut)
    console.print(shown)
    if notice:
        console.print(notice, soft_wrap=True)


def wait_for(opened: OpenedFile[T], remedy: str) -> T:
    """Wait for a file to be read, with the progress on stderr; return its content.

    Raises:
        RequestError: with ``remedy``, if it cannot be read.
    """
    from rich.text import Text

    name = one_line(name_of(opened.path))
    try:
        with stderr().status(Text(f"reading {name}")) as status:
            while (found := opened.wait(POLL_S)) is None:
                done, total = opened.progress
                if total:
                    status.update(Text(f"reading {name}: {done / 2**20:.0f} of {total / 2**20:.0f} MiB"))
    except opened.REFUSAL as error:
        raise RequestError(str(error), remedy) from None
    return found


_WHOLE = 10
"""Cells up to this width do not wrap, which keeps a figure and its unit together."""

_WIDEST = 10_000
"""A width that no table needs, for measuring a column by itself."""


def json_visible(text: str) -> str:
    """The same JSON document, with control and invisible characters escaped as ``\\u…``."""
    if text.isprintable():
        return text
    import json

    unseen = {mark for mark in text if mark not in "\n\t" and category(mark) in UNSEEN}
    return text.translate({ord(mark): json.dumps(mark)[1:-1] for mark in unseen})


JSON_FORMAT = 1
"""Version of every ``--json`` document; raised when a key changes its meaning or is removed."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, with its ``format`` and its ``status`` (default "finished") at the top.

    ``resources/guide/json.md`` describes every document.
    """
    import json

    from gpudash.telemetry.records import plain

    whole = {"format": JSON_FORMAT, "status": "finished", **document}
    try:
        # NaN is not valid JSON: `plain` has replaced it by text; whatever it missed is an error here.
        text = json.dumps(plain(whole), indent=2, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(f"{json_visible(text)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Discard further output, because its reader has left."""
    # Replace the descriptor itself: the flush at interpreter exit needs something to write to.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_failure(error: RequestError, as_json: bool) -> int:
    """Report an invalid request; return the exit code."""
    # Do not log the sentence: it may quote what was typed, including secrets.
    logger.warning("%s: refused by %s", error.kind, _place(error))
    if as_json:
        failure = {"kind": error.kind, "message": error.message, "remedy": error.remedy}
        print_json({"status": error.status, "error": failure})
    print_notice(f"{error.message} {error.remedy}".strip())
    return leave(error.code, error.joined)


def _place(error: RequestError) -> str:
    """The line of ours that refused the request, that which raised the first exception, and the flag that it was about,
    without its value."""
    places: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        places += _lines_of(cause)[-1:]
        cause = cause.__cause__ or cause.__context__
    if error.__traceback__ is None or not places:
        places[:1] = ["the parser of command lines"]
    found = dict.fromkeys((places[0], places[-1]))
    argument = getattr(error.__cause__, "argument", None)  # of an error of the parser
    if argument is not None and argument.name.startswith("-"):
        found[argument.name] = None
    found.update(dict.fromkeys(_wrong_fields(error)))
    return ", ".join(found)


def _wrong_fields(error: BaseException) -> Iterator[str]:
    """The flags of a spec's fields that pydantic refused, without their values."""
    cause: BaseException | None = error
    while cause is not None:
        # Its type is not imported: what needs no spec does without pydantic.
        problems = getattr(cause, "errors", None)
        if callable(problems) and type(cause).__module__.startswith("pydantic"):
            from gpudash.specs.invalid import flag

            # The name of a field that there is not is the user's own text.
            known = [problem["loc"] for problem in problems() if problem["type"] != "extra_forbidden"]
            yield from (flag(str(loc[0])) for loc in known if loc)
            return
        cause = cause.__cause__ or cause.__context__


def _lines_of(error: BaseException) -> list[str]:
    """The lines of gpudash that an exception passed, the one that raised it last; those of this module, which raises
    for others, are left out."""
    from traceback import walk_tb

    modules = [(frame.f_globals["__name__"], line) for frame, line in walk_tb(error.__traceback__)]
    ours = [(module, line) for module, line in modules if module.startswith("gpudash.") and module != __name__]
    return [f"{module}:{line}" for module, line in ours]


def print_notice(text: str) -> None:
    """Print one sentence on stderr, unwrapped, so that scripts find it on one line."""
    sys.stderr.write(f"{one_line(text)}\n")


def leave(code: int, joined: bool) -> int:
    """Return the exit code; exit at once if a thread is stuck in a driver or an operation and cannot be joined."""
    if joined:
        return code
    # _exit does not wait for a stuck thread; it also skips the interpreter's flush.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


DEVICES = "gpudash devices lists what is there."
"""Remedy if another device may help."""


def refused(error: ValueError) -> RequestError:
    """Turn a session's error about a device, or a run on it, into an invalid request.

    If the allocator rejects its settings, no GPU works, so another device is no remedy.
    """
    from gpudash.session.live.simulated_gpus import allocator_settings

    said, settings = str(error), allocator_settings()[1]
    # The allocator's message may be the whole sentence or a part of it.
    if settings is None or not (settings in said or said.rstrip(".") in settings):
        return RequestError(said, DEVICES)
    return RequestError(said if settings in said else settings, "Correct that variable, or unset it.")
