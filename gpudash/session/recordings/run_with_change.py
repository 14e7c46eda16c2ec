"""How the program of a report is run with a change: a sentence, and a command for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpudash.devices.names import read_card
from gpudash.devices.simulated_cards import exact_text
from gpudash.memory.explaining.patches import PATCH_NAME, kept_lines, line_changes
from gpudash.memory.explaining.whole_need import variables_of
from gpudash.session.recordings.report_folder import Started, how_started
from gpudash.system.foreign_files import read_regular
from gpudash.system.foreign_text import visible
from gpudash.telemetry.explanation import Remedy

MOST_BYTES = 4 * 2**20
"""Size of a file that is read."""

UNKNOWN = "How the program was started is not known here, so run it with the change as it was run before."


@dataclass(frozen=True)
class RunWithChange:
    """How a program is run with a change.

    Attributes:
        sentence: where the program is, what is missing, and what the command does.
        command: one line for a shell; "" if the program's command is unknown, or cannot be written there.
    """

    sentence: str
    command: str = ""


def run_with_change(snapshot: Path, change: Remedy) -> RunWithChange:
    """How the program of a snapshot is run with a change.

    The command only names files, and nothing here runs it: a report may come from anybody.

    Args:
        snapshot: the snapshot; in a report, the files beside it say how the program was started.
        change: the change, with a diff whose paths are relative to the program's folder; one that has edits but no
            diff has to be made by hand.
    """
    started = how_started(snapshot)
    if not started.command:
        return RunWithChange(UNKNOWN)
    folder = started.folder or "/"
    files = _changed_files(change, folder)
    missing = [file for file in files if not Path(file).is_file()]
    changed = _changed_since(change.patch, folder)
    patch = snapshot.with_name(PATCH_NAME)
    applies = bool(change.patch) and not set(changed) - set(missing) and _holds(patch, change.patch)
    command = _command(started, change, patch if applies else None)
    if missing:
        where = f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} not on this computer."
        return RunWithChange(f"{where} Where the program is, this runs it with the change:", command)
    if applies:
        return RunWithChange(f"This writes the change into {_listed(files)} and runs the program:", command)
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        why = f"{_listed(changed)} {verb} changed since the run."
        return RunWithChange(f"{why} Make the change by hand, then run:", command)
    outside = [file for file in files if not Path(file).is_relative_to(folder)]
    if outside and not change.patch:
        why = f"{_listed(outside)} is outside {folder}, where the program ran, so there is no diff of it."
        return RunWithChange(f"{why} Edit it by hand, then run:", command)
    if files:
        return RunWithChange(f"Make the change in {_listed(files)}, then run:", command)
    return RunWithChange(f"This runs the program in {folder} with the setting:", command)


def _changed_files(change: Remedy, folder: str) -> list[str]:
    """The absolute paths of the files that a change edits; those of its diff are where that would be applied."""
    named = [os.path.normpath(Path(folder) / one.file) for one in line_changes(change.patch)]
    if not named:
        named = [rewrite.file for rewrite in change.rewrites]
    return list(dict.fromkeys(named))


def _changed_since(patch: str, folder: str) -> list[str]:
    """The files of a diff that have other lines than the diff was made for, or cannot be read."""
    found = []
    kept: dict[str, dict[int, str]] = {}
    for (name, number), text in kept_lines(patch).items():
        kept.setdefault(os.path.normpath(Path(folder) / name), {})[number] = text
    for file, rows in kept.items():
        try:
            lines = read_regular(file, MOST_BYTES).decode("utf-8", "replace").split("\n")
        except (OSError, ValueError):
            lines = []
        if any(number > len(lines) or lines[number - 1].rstrip() != text.rstrip() for number, text in rows.items()):
            found.append(file)
    return found


def _command(started: Started, change: Remedy, patch: Path | None) -> str:
    """The line for a shell; "" if a word of it cannot be seen, as it would be run unread."""
    flags = []
    if started.folder:
        flags += ["--folder", started.folder]
    for card in started.simulate:
        known = read_card(card)
        if known is not None:
            flags += ["--simulate", exact_text(known)]
    if started.as_cuda:
        flags.append("--as-cuda")
    variables = {**started.environment, **variables_of(change)}
    watch = ["gpudash", "watch", *flags, "--", *(change.command or started.command)]
    parts = [*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(watch)]
    if patch is not None:
        parts = [f"patch -d {shlex.quote(started.folder or '/')} -p0 < {shlex.quote(str(patch))} &&", *parts]
    line = " ".join(parts)
    if line.isprintable():
        return line
    return ""


def _holds(path: Path, patch: str) -> bool:
    """Whether a file is this diff."""
    try:
        return read_regular(path, MOST_BYTES) == patch.encode()
    except (OSError, ValueError):
        return False


def _listed(files: Sequence[str]) -> str:
    return ", ".join(visible(file, keep="") for file in files)
