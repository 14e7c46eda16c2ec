"""Profiles of a run's steps: what is asked for, and where their traces lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.settings import recordings_folder
from gpudash.specs import Spec
from gpudash.telemetry.recording.schema import recording_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpudash.workloads.profiling import ProfileWish

MOST_STEPS = 50
"""Steps profiled at once at most: what is recorded of each has to be read, during which the run waits."""

DEFAULT_STEPS = 5


def profile_wish(steps: int, recording: Path | None, spec: Spec | None = None) -> ProfileWish:
    """The wish for a profile of ``steps``, its trace beside the recording, or where one would be.

    Args:
        spec: of a run that is about to start; ``None``: of one that is on.

    Raises:
        ValueError: one sentence, when so many steps are not profiled.
    """
    from gpudash.workloads.profiling import ProfileWish

    check_steps(steps)
    name = "profile" if spec is None else spec.name
    beside = recording or recording_name(recordings_folder(), name)
    single = spec is not None and spec.steps_field is not None and getattr(spec, spec.steps_field) == 1
    return ProfileWish(steps, str(beside.absolute().with_suffix("")), from_start=single)


def check_steps(steps: int) -> None:
    """Make sure that so many steps are profiled at once.

    Raises:
        ValueError: one sentence, when they are not.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise ValueError(f"{steps} steps cannot be profiled at once; choose 1 to {MOST_STEPS}.")


def trace_of(details: Mapping[str, Any], recording: Path | None) -> Path | None:
    """The trace of a profile: beside its recording, wherever that lies today, else where it was written.

    Args:
        details: of the note that told the profile.

    Returns:
        ``None`` when there is none any more.
    """
    told = details.get("trace")
    if not isinstance(told, str) or not told:
        return None
    places = [Path(told)] if recording is None else [recording.parent / Path(told).name, Path(told)]
    return next((place for place in places if place.is_file()), None)
