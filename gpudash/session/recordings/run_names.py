"""The default name of a run, "training width 1024 on sim:0", and what its peak is called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpudash.devices.names import badged_devices
from gpudash.session.watching.request import program_name
from gpudash.specs import Spec, workloads
from gpudash.telemetry.plots import THIS_PROCESS
from gpudash.telemetry.recording.facts import RunFacts
from gpudash.telemetry.runs import WATCH, RunView
from gpudash.units import format_bytes, listed

MOST_DIFFERENCES = 3
"""Fields that a name lists; the rest are counted."""

LONGEST_ARGUMENTS = 48
"""Characters of a program's arguments in its name."""

LONGEST_VALUE = 40
"""Characters of a field's value."""

LONGEST_PROCESS = 28
"""Characters of a program's name beside its curve."""

LATE_READINGS_S = 2.0
"""Readings up to this many seconds after a program's end may still be its own."""

_SPELLED_OUT = {"oom": "out of memory"}
"""Values that are abbreviated on the command line."""

_LAST = ("seed", "threads")
"""Fields of every workload; they are named after all others."""


def run_name(run: RunFacts) -> str:
    """The user's name for a run, else its `given_name`."""
    return run.label.title or given_name(run.workload, run.device, run.spec)


def peak_text(run: RunFacts) -> str:
    """The peak memory of a run, with what it is a peak of: "64 MiB allocated", "10.0 GiB (GPU)"; "" if unknown."""
    if run.own_peak_bytes is not None:
        return f"{format_bytes(run.own_peak_bytes)} allocated"
    if run.peak_bytes is None:
        return ""
    whole = "GPU"
    if run.device == "cpu":
        whole = "process"
    return f"{format_bytes(run.peak_bytes)} ({whole})"


def given_name(workload: str, device: str, spec: Mapping[str, Any]) -> str:
    """The workload of a run, what differs from the default, and its device.

    For a program of the user's: its script and arguments, "train.py --lr 0.1 on cuda:0".
    """
    if workload == WATCH:
        name = _program(spec.get("command"))
        if spec.get("edit"):
            name = f"{name}, with a change"
    else:
        differences = differences_of(workload, spec)
        name = f"{workload} {listed(differences, MOST_DIFFERENCES)}".strip()
    where = badged_devices(device, spec)
    if where:
        return f"{name} on {where}"
    return name


def kind_of_run(run: RunFacts) -> str:
    """The workload of a run, or the script of the user's program."""
    if run.workload == WATCH:
        return _program(run.spec.get("command"), arguments=False)
    return run.workload


def process_text(run: RunView | None, newest_s: float = 0.0, oldest_s: float = math.inf) -> str:
    """Name of the process whose memory and CPU time are shown: for a watched program, its script.

    Args:
        run: the newest one shown; ``None`` if none is shown.
        newest_s: session time of the newest reading shown: programs that ended before it are left out.
        oldest_s: that of the oldest one: a program that was running already is watched from later on.
    """
    if run is None or run.workload != WATCH:
        return THIS_PROCESS
    name = _program(run.spec.get("command"), arguments=False)
    if not (len(name) <= LONGEST_PROCESS):
        name = f"{name[: LONGEST_PROCESS - 1]}…"
    before = "pid" in run.spec and oldest_s < run.began_s
    gone = run.ended_s is not None and newest_s > run.ended_s + LATE_READINGS_S
    if before and gone:
        return f"{name}, else gpudash"
    if before:
        return f"gpudash, then {name}"
    if gone:
        return f"{name}, then gpudash"
    return name


def differences_of(workload: str, spec: Mapping[str, Any]) -> list[str]:
    """Every field in which a run differs from its workload's default, as text: "width 1024"."""
    kind = workloads().get(workload)
    if kind is None:
        return []
    return list(_differences(kind, spec))


def _differences(kind: type[Spec], spec: Mapping[str, Any]) -> Iterator[str]:
    """The preset that the spec uses, then what differs from it."""
    values = {name: spec[name] for name in kind.model_fields if name in spec and name != "devices"}
    named = [(name, fields) for name, fields in kind.presets.items() if fields and fields.items() <= values.items()]
    base: Mapping[str, Any] = {}
    if named:
        preset, base = max(named, key=lambda found: len(found[1]))
        yield preset
    for name in sorted(values, key=lambda name: (name in _LAST, not isinstance(values[name], Mapping))):
        found, value = kind.model_fields[name], values[name]
        if isinstance(value, Mapping):  # the fields of the compared workload
            preset_fields = base.get(name, {})  # named by the preset
            own = {field: given for field, given in value.items() if preset_fields.get(field) != given}
            yield from differences_of(str(values.get("workload", "")), own)
        elif value != base.get(name, found.default):
            if name == "path":
                yield _folder_name(str(value))
                continue
            extra = found.json_schema_extra
            is_size = isinstance(extra, dict) and extra.get("unit") == "bytes"
            yield _difference(name, value, is_size)


def _folder_name(path: str) -> str:
    """The name of a model whose folder, or a file in it, is at ``path``."""
    place = Path(path)
    return (place.parent if place.suffix == ".json" else place).name or path


def _difference(name: str, value: object, size: bool) -> str:
    field = name.replace("_", " ")
    if isinstance(value, bool):
        if value:
            return field
        return f"no {field}"
    if size and isinstance(value, int):
        return f"{field} {format_bytes(value)}"
    if isinstance(value, float):
        written = f"{value:g}"
    else:
        written = str(value)
    return f"{field} {_cut(_SPELLED_OUT.get(written, written), LONGEST_VALUE)}"


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - 1]}…"


def _program(command: object, *, arguments: bool = True) -> str:
    """A command as text: its script or program and its arguments."""
    argv = []
    if isinstance(command, Sequence) and not isinstance(command, str):
        argv = list(map(str, command))
    if not argv or not argv[0]:
        return "program"
    name = program_name(argv)
    if not arguments:
        return name
    place = next((number for number, word in enumerate(argv) if Path(word).name == name), 0)
    rest = " ".join(argv[place + 1 :])
    return f"{name} {_cut(rest, LONGEST_ARGUMENTS)}".strip()
