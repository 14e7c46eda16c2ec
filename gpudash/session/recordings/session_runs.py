"""The runs of a live session, described as the library describes those of a recording."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from gpudash.session.recordings.library import LibraryEntry
from gpudash.session.source import DashboardSource
from gpudash.telemetry.readings import Key
from gpudash.telemetry.recording.facts import OUTLINE_PARTS, Facts, RunFacts, RunText
from gpudash.telemetry.runs import RunView
from gpudash.telemetry.store import Store

NOWHERE = Path()
"""The path for the runs of a session that is not recorded."""


class SessionRuns:
    """Reads the runs of a session now and then; a run that has ended is read at once.

    Args:
        session: the session that has the runs.
    """

    def __init__(self, session: DashboardSource) -> None:
        self._session = session
        self._ended: dict[int, RunFacts] = {}
        self._rewound = session.store.rewound

    def entry(self) -> LibraryEntry:
        """The session with its runs, at the path where it is recorded."""
        session = self._session
        store = self._session.store
        with store.lock:
            if store.rewound != self._rewound:
                self._rewound = store.rewound
                self._ended.clear()
            runs = tuple(self._facts(number, view) for number, view in enumerate(store.runs, 1))
            newest_s = store.newest_s
        facts = Facts(began_wall_s=session.began_wall_s, runs=runs, duration_s=newest_s)
        return LibraryEntry(session.recording_path or NOWHERE, facts, 0, session.began_wall_s + newest_s, written=True)

    def _facts(self, number: int, view: RunView) -> RunFacts:
        """The facts of a run; called under the store's lock."""
        title = self._session.run_title(number)
        known = self._ended.get(number)
        if known is not None and (known.label.title, known.of_demo) == (title, view.of_demo):
            return known
        outline = _outline(self._session.store, view)
        facts = RunFacts.of(
            number,
            view,
            spec=view.spec,
            peak_bytes=view.memory.used_bytes,
            outline=outline,
            label=RunText(title=title),
        )
        if not view.running:
            self._ended[number] = facts
        return facts


def _outline(store: Store, view: RunView) -> tuple[int | None, ...]:
    """Like `RunFacts.outline`, from what the store holds; called under its lock."""
    end_s = view.ended_s
    if end_s is None:
        end_s = store.newest_s
    if end_s <= view.began_s:
        return ()
    for key in _memory_keys(store, view.device):
        series = store.series(*key)
        if series is None:
            continue
        times, values = series.window(view.began_s, end_s, OUTLINE_PARTS)
        known = np.isfinite(values) & (times >= view.began_s) & (times <= end_s)
        if not known.any() or values[known].max() <= 0:
            continue
        parts = ((times[known] - view.began_s) / (end_s - view.began_s) * (OUTLINE_PARTS - 1)).astype(int)
        highest = np.full(OUTLINE_PARTS, math.nan)
        np.fmax.at(highest, parts, values[known])
        return tuple(None if math.isnan(one) else round(one) for one in 100 * highest / values[known].max())
    return ()


def uuid_of(store: Store, device: str) -> str | None:
    """The GPU with readings that torch calls ``device``; ``None`` where there is none."""
    uuids = (key[2] for key, _series in store.curves() if key[0] == "gpu" and key[2] is not None)
    return next((uuid for uuid in uuids if store.torch_name(uuid) == device), None)


def _memory_keys(store: Store, device: str) -> list[Key]:
    """Where the memory of a run on ``device`` is read, most informative first."""
    if device == "cpu":
        return [("host", "process_bytes", None)]
    uuid = uuid_of(store, device)
    own: Key = ("allocator", "allocated_bytes", device)
    if uuid is None:
        return [own]
    return [own, ("gpu", "used_bytes", uuid)]
