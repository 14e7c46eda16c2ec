"""What an explanation can do for a program of the user's: the change that comes first, and what can be run here."""

from __future__ import annotations

from dataclasses import dataclass

from gpudash.memory.explaining.annotated_source import change_of
from gpudash.memory.explaining.whole_need import changes_the_run
from gpudash.session.watching.edited_copy import why_no_copy
from gpudash.session.watching.request import WatchRequest
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.telemetry.runs import WATCH, RunView


@dataclass(frozen=True)
class Offer:
    """A change, and whether it can be tried.

    Attributes:
        remedy: the change.
        runs: whether the program can be run with it from here at all.
        why_not: why it cannot, in a sentence; "" where it can, and where nothing runs here.
    """

    remedy: Remedy
    runs: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class OwnProgram:
    """A program of the user's that is explained.

    Attributes:
        folder: that it ran in; paths of diffs are relative to it.
        offer: the change that comes first, ``None`` without any.
        runnable: remedies with which it can be run from here.
    """

    folder: str
    offer: Offer | None = None
    runnable: tuple[Remedy, ...] = ()


def own_program(run: RunView | None, found: Explanation, *, live: bool) -> OwnProgram | None:
    """The user's program that a run is of, with what can be tried of it; ``None`` of a run of ours.

    Args:
        run: that is explained.
        found: its explanation.
        live: whether anything can be run from here.
    """
    if run is None or run.workload != WATCH:
        return None
    folder = str(run.spec.get("folder") or "")
    change = change_of(found)
    if not live:
        # nothing is made of what a recording from anybody says of a command
        return OwnProgram(folder, None if change is None else Offer(change))
    reasons = {id(remedy): _why_not_tried(run, remedy) for remedy in found.remedies}
    runnable = tuple(remedy for remedy in found.remedies if changes_the_run(remedy) and not reasons[id(remedy)])
    if change is None:
        return OwnProgram(folder, None, runnable)
    return OwnProgram(folder, Offer(change, runs=True, why_not=reasons[id(change)]), runnable)


def _why_not_tried(run: RunView, remedy: Remedy) -> str:
    """Why a program cannot be run with a change, in a sentence; "" where it can."""
    if "pid" in run.spec or not run.spec.get("command"):
        return "It was watched while it ran: how it was started is not known, so that it cannot be run once more."
    if remedy.patch:
        return why_no_copy(WatchRequest.from_spec(run.spec).with_remedy(remedy))
    return ""
