"""Labels that tell the runs of a comparison apart, whole and shortened to what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpudash.telemetry.comparing import ComparedRun
from gpudash.units import format_dates


def distinguished(runs: Sequence[ComparedRun], paths: Sequence[Path]) -> list[ComparedRun]:
    """The runs with unique labels: equal names get their start time or, without one, the file's name."""
    labels = [run.label for run in runs]
    for name in {run.label for run in runs}:
        places = [place for place, run in enumerate(runs) if run.label == name]
        # A unique name needs nothing more.
        if len(places) == 1:
            continue
        began = [runs[place].began_wall_s for place in places]
        moments = format_dates([moment for moment in began if moment is not None])
        for number, place in enumerate(places):
            # Without a start time, the file's name tells them apart.
            if moments is None or None in began:
                labels[place] = f"{name} ({paths[place].name.replace('.gpudash', '')})"
            else:
                labels[place] = f"{name}, {moments[number]}"
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def short_labels(labels: Sequence[str]) -> list[str]:
    """The labels without the words that all of them begin or end with: "width 512" of "training width 512 on sim:0".

    The last word before the difference stays, since it mostly names what differs.
    """
    split = [label.split() for label in labels]
    begin = max(0, _common(split) - 1)
    if begin < min(map(len, split), default=0) and split[0][begin].endswith(","):
        begin += 1  # what stands before a comma says nothing of what follows
    rests = [parts[begin:] for parts in split]
    end = _common([parts[:0:-1] for parts in rests])
    return [" ".join(parts[: len(parts) - end]).rstrip(",") for parts in rests]


def _common(labels: Sequence[Sequence[str]]) -> int:
    """The number of words that all begin with; of one label none, since nothing is told apart."""
    if len(labels) < 2:
        return 0
    count = 0
    for parts in zip(*labels, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count
