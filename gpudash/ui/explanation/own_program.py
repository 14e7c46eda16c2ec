"""What an explanation offers for the user's own program: the best change, and what can be run from here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from gpudash.memory.explaining.annotated_source import change_of
from gpudash.memory.explaining.whole_need import changes_the_run
from gpudash.session.watching.edited_copy import why_no_copy
from gpudash.session.watching.request import WatchRequest, script_of
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.telemetry.runs import WATCH, RunView


@dataclass(frozen=True)
class Offer:
    """A change, and whether it can be tried.

    Attributes:
        remedy: the change.
        runs: whether the program can be run with the change from here.
        why_not: why it cannot, or how it can elsewhere, in a sentence; "" if it can, or if neither is known.
    """

    remedy: Remedy
    runs: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class OwnProgram:
    """The user's program that is explained.

    Attributes:
        folder: its working directory; paths in diffs are relative to it.
        offer: the best change; ``None`` if there is none.
        runnable: remedies that the program can be run with from here.
    """

    folder: str
    offer: Offer | None = None
    runnable: tuple[Remedy, ...] = ()


def own_program(run: RunView | None, found: Explanation, *, live: bool) -> OwnProgram | None:
    """The user's program behind a run, and what can be tried with it; ``None`` for a built-in workload.

    Args:
        run: the run that is explained.
        found: its explanation.
        live: whether anything can be run from here.
    """
    if run is None or run.workload != WATCH:
        return None
    folder = str(run.spec.get("folder") or "")
    change = change_of(found)
    if not live:
        # A recording may come from anybody: never run a command that it names.
        return OwnProgram(folder, None if change is None else Offer(change, why_not=_where_to_run(run, change)))
    reasons = {id(remedy): _why_not_tried(run, remedy) for remedy in found.remedies}
    runnable = tuple(remedy for remedy in found.remedies if changes_the_run(remedy) and not reasons[id(remedy)])
    if change is None:
        return OwnProgram(folder, None, runnable)
    return OwnProgram(folder, Offer(change, runs=True, why_not=reasons[id(change)]), runnable)


def _where_to_run(run: RunView, change: Remedy) -> str:
    """How a program of a recording can be run with a change, in a sentence; "" if its script is not here."""
    command = list(map(str, run.spec.get("command") or ()))
    script = script_of(command) if command else None
    if script is None:
        return ""
    path = Path(str(run.spec.get("folder") or "")) / script
    if not path.is_file():
        return ""
    kind = "change" if change.patch else "setting"
    return f"Open the script with gpudash open {shlex.quote(str(path))} to run it with this {kind}."


def _why_not_tried(run: RunView, remedy: Remedy) -> str:
    """Why the program cannot be run with a change, in a sentence; "" if it can."""
    if "pid" in run.spec or not run.spec.get("command"):
        return "It was already running when watched: how it was started is unknown, so it cannot be run again."
    if remedy.patch:
        return why_no_copy(WatchRequest.from_spec(run.spec).with_remedy(remedy))
    return ""
