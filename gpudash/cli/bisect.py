"""``gpudash bisect GOOD BAD -- COMMAND``: the commit that raised the peak, and the lines responsible."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from gpudash.cli.terminal.flags import Simulated, python_program, require_function
from gpudash.cli.terminal.interruption import interruptible
from gpudash.cli.terminal.output import (
    Exit,
    RequestError,
    RequestInterruptedError,
    print_json,
    print_notice,
    stdout,
)
from gpudash.units import format_bytes, format_change, parse_share, parse_size

if TYPE_CHECKING:
    from gpudash.session.predicting.bisecting.changed_lines import ChangedLine
    from gpudash.session.predicting.bisecting.peaks import SearchedProgram
    from gpudash.session.predicting.bisecting.repository import Commit, Hunk
    from gpudash.session.predicting.bisecting.search import BisectResult, Threshold

FORM = "Write for example: gpudash bisect v1.0 HEAD --callable bench.py:build --simulate 24GiB"

DEFAULT_CARD = "80GiB"
"""A card that most programs fit: peaks are compared, not whether they fit."""

MOST_SUSPECTS = 10
"""Maximum number of commits listed if the search cannot decide between them."""

FOLLOWED_STEPS = 3

ROWS_AROUND = 6
"""Rows of a hunk shown on either side of a line that grew; some hunks have hundreds."""

LEFT_OUT = " …"

LONGEST_TEXT = 100
"""Maximum number of characters shown of a line of code."""


def bisect(
    good: str,
    bad: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    callable: str | None = None,
    simulate: Simulated | None = None,
    raised_by: Annotated[str | None, Parameter(metavar="SHARE|SIZE", allow_leading_hyphen=True)] = None,
    lowered: Annotated[bool, Parameter(negative="")] = False,
    steps: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = FOLLOWED_STEPS,
    time_limit: Annotated[float, Parameter(validator=Number(gt=0))] = 120.0,
    python: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Find the commit that raised the peak of GPU memory, and the line that did: gpudash bisect [OPTIONS] GOOD BAD --
    python train.py

    At each commit, the program is predicted as by gpudash estimate, without a GPU. For pytest with tests that measure
    memory (gpu_memory), the peaks of the tests are used, with real computation on a simulated GPU. Commits are checked
    out in a private folder; your working tree stays as it is, and its uncommitted changes are ignored. Commits that
    cannot be run are skipped. Results are kept, so that the next search is faster.

    Parameters
    ----------
    good
        A commit with the lower peak, in the history of BAD.
    bad
        A commit with the higher peak.
    callable
        Your own function in place of a command: package.module:function or folder/file.py:function. A file that is
        part of BAD is taken from each commit; any other file is the same at every commit, and imports what the commit
        has.
    simulate
        The GPU: its memory (24GiB), or a name (h100; gpudash devices --known lists them). Default: 80GiB.
    raised_by
        How large a rise counts: a share of GOOD's peak (5%) or a size (500MiB). Default: half of the rise from GOOD to
        BAD.
    lowered
        Find the commit that lowered the peak instead.
    steps
        Number of steps to follow.
    time_limit
        Seconds of processor time after which a commit is given up and skipped, or three times as much wall-clock time.
        Tests have no limit.
    python
        The Python that runs a callable, such as .venv/bin/python.
    json
        Print one JSON document.
    """
    from gpudash.session.predicting.bisecting.repository import BisectError
    from gpudash.session.predicting.bisecting.search import bisect as search

    subject = _subject(command, callable, simulate or [], steps, time_limit, python)
    threshold = _threshold(raised_by)
    with interruptible() as interruption:
        try:
            found = search(good, bad, subject, threshold, lambda: interruption.requested, print_notice, lowered=lowered)
        except BisectError as error:
            if interruption.requested:
                raise RequestInterruptedError("Interrupted; no commit was found.") from None
            raise RequestError(str(error), error.remedy) from None
        except KeyboardInterrupt:
            raise RequestInterruptedError("Interrupted; what was found out of commits is kept.") from None
    if json:
        print_json(_document(found, subject.name))
    else:
        _print(found, subject.name, lowered=lowered)
    if found.commit is None:
        return Exit.FAILED
    return Exit.FINISHED


def _subject(
    command: Sequence[str],
    callable: str | None,
    cards: Sequence[Any],
    steps: int,
    time_limit_s: float,
    python: str | None,
) -> "SearchedProgram":

    from gpudash.devices.names import parse_simulated
    from gpudash.session.live.simulated_gpus import allocator_settings
    from gpudash.session.predicting.bisecting.peaks import SearchedProgram
    from gpudash.session.predicting.estimates import empty_target

    if callable is None and not command:
        raise RequestError("There is nothing to run at the commits.", FORM)
    if callable is not None and command:
        raise RequestError("A command is given together with --callable.", "Give one of them.")
    if callable is None and python is not None:
        raise RequestError("--python is for a --callable; a command names its own.", FORM)
    if len(cards) > 1:
        raise RequestError("A search has one card, and --simulate names several.", "Name one.")
    if callable is not None:
        require_function(callable)
    program = str(Path(python_program(python)).absolute())
    settings, problem = allocator_settings()
    if problem is not None:
        raise RequestError(problem, "Correct that variable, or unset it.")
    card = next(iter(cards), parse_simulated(DEFAULT_CARD))
    try:
        folder = Path.cwd()
    except OSError:
        raise RequestError("The current folder no longer exists.", "Change to another one.") from None
    return SearchedProgram(
        command=tuple(command),
        callable=callable or "",
        folder=folder,
        card=card,
        target=empty_target(card, settings),
        steps=steps,
        time_limit_s=time_limit_s,
        python=program,
    )


def _threshold(text: str | None) -> "Threshold":
    from gpudash.session.predicting.bisecting.search import Threshold

    if text is None:
        return Threshold()
    # As in --tolerance, a number without a unit up to 1 is a share; a larger one is bytes.
    with suppress(ValueError):
        share = parse_share(text)
        if share > 0:
            return Threshold(share=share)
    with suppress(ValueError):
        size = parse_size(text)
        if size > 0:
            return Threshold(bytes=size)
    raise RequestError(f"--raised-by {text!r} is no rise.", "Write a share such as 5%, or a size such as 500MiB.")


def _print(found: "BisectResult", name: str, *, lowered: bool) -> None:
    console = stdout()
    subject = found.test or name
    if found.commit is None:
        verb = "lowered" if lowered else "raised"
        console.print(
            f"One of {len(found.suspects)} commits {verb} the peak of {subject} {_change(found)}; "
            "it is not known which, because the others cannot be run:",
            soft_wrap=True,
        )
        for commit in found.suspects[:MOST_SUSPECTS]:
            console.print(f"  {commit.short} {commit.author_date[:10]} {commit.subject}", soft_wrap=True)
        if len(found.suspects) > MOST_SUSPECTS:
            console.print(f"  and {len(found.suspects) - MOST_SUSPECTS} more")
    else:
        verb = "lowers" if lowered else "raises"
        console.print(
            f"{found.commit.short} {verb} the peak of {subject} {_change(found)}.", style="bold", soft_wrap=True
        )
        console.print(f"  {found.commit.subject}", soft_wrap=True)
        console.print(f"  {found.commit.author_date}, after {found.previous.short}")
        _print_lines(found)
    if found.other_tests:
        console.print(f"The peaks of these changed as well: {', '.join(found.other_tests)}.", soft_wrap=True)
    how = "measured by its tests, on a simulated GPU" if found.measured else "predicted without numbers"
    known = f", {found.kept} of them known before" if found.kept else ""
    skipped = f"; {len(found.skipped)} skipped" if found.skipped else ""
    counted = "1 commit" if found.commits == 1 else f"{found.commits} commits"
    console.print(f"{counted} searched with {found.estimates} peaks{known}, {how}{skipped}.", soft_wrap=True)


def _change(found: "BisectResult") -> str:
    before, after = found.before.bytes, found.after.bytes
    share = ""
    if before:
        share = f", {found.difference / before * 100:+.1f} %"
    more = " or more, because the card was full" if found.after.ran_out else ""
    return f"from {format_bytes(before)} to {format_bytes(after)} ({format_change(found.difference)}{share}){more}"


def _print_lines(found: "BisectResult") -> None:
    console = stdout()
    if not found.lines:
        console.print("No line of the program accounts for it.")
        return
    console.print()
    console.print("At the peak, by the line that allocated:")
    for line in found.lines:
        sizes = f"{format_bytes(line.before_bytes)} before, {format_bytes(line.after_bytes)} after"
        console.print(f"  {format_change(line.difference):>11}  {_place(line)}  ({sizes})", soft_wrap=True)
        if line.text:
            console.print(f"  {'':>11}  {line.text[:LONGEST_TEXT]}", soft_wrap=True)
    touched = [line.hunk for line in found.lines if line.hunk is not None]
    hunks = list(dict.fromkeys(touched)) or list(found.hunks)
    if not hunks:
        console.print("The commit touches none of these lines: their inputs have changed.")
    elif not touched:
        console.print("The commit touches none of these lines; among what it changes is:")
    for hunk in hunks:
        console.print()
        console.print(hunk.new_file or hunk.old_file, style="bold", soft_wrap=True)
        for text in excerpt(hunk, [line.line for line in found.lines if line.hunk == hunk]):
            console.print(text, soft_wrap=True, style={"+": "green", "-": "red"}.get(text[:1], ""))
    console.print()


def excerpt(hunk: "Hunk", lines: Sequence[int]) -> list[str]:
    """The rows of a hunk around some of its lines, or its beginning if none are given.

    Args:
        hunk: hunk of a diff.
        lines: line numbers in the newer commit, from 1.
    """
    head, *rows = hunk.text.splitlines()
    number = hunk.new_start
    wanted: set[int] = set()
    for place, row in enumerate(rows):
        if row.startswith("-"):
            continue
        if number in lines:
            wanted |= set(range(place - ROWS_AROUND, place + ROWS_AROUND + 1))
        number += 1
    if not lines:
        wanted = set(range(4 * ROWS_AROUND))
    shown = [head]
    for place, row in enumerate(rows):
        if place in wanted:
            shown.append(row)
        elif shown[-1] != LEFT_OUT:
            shown.append(LEFT_OUT)
    return shown


def _place(line: "ChangedLine") -> str:
    if not line.file:
        return "other code"
    if line.is_gone:
        return f"{line.file}:{line.line}, now gone"
    return f"{line.file}:{line.line}"


def _document(found: "BisectResult", name: str) -> dict[str, Any]:
    return {
        "subject": name,
        "test": found.test or None,
        "commit": None if found.commit is None else _commit(found.commit),
        "previous": _commit(found.previous),
        "before_bytes": found.before.bytes,
        "after_bytes": found.after.bytes,
        "after_ran_out": found.after.ran_out,
        "lines": [
            {
                "file": line.file,
                "line": line.line,
                "text": line.text,
                "before_bytes": line.before_bytes,
                "after_bytes": line.after_bytes,
                "is_gone": line.is_gone,
                "hunk": None if line.hunk is None else _hunk(line.hunk),
            }
            for line in found.lines
        ],
        "hunks": list(map(_hunk, found.hunks)),
        "suspects": list(map(_commit, found.suspects)),
        "skipped": [{**_commit(one.commit), "reason": one.reason} for one in found.skipped],
        "other_tests": list(found.other_tests),
        "measured": found.measured,
        "commits": found.commits,
        "estimates": found.estimates,
        "known_estimates": found.kept,
        "error": None,
    }


def _commit(commit: "Commit") -> dict[str, str]:
    return {"hash": commit.hash, "subject": commit.subject, "author_date": commit.author_date}


def _hunk(hunk: "Hunk") -> dict[str, str]:
    return {"file": hunk.new_file or hunk.old_file, "text": hunk.text}
