"""Joins the recordings of a run on several nodes, of which each holds only the node's own ranks.

The joined recording holds what the node of the first rank recorded, with the ranks of all nodes on its time axis.
Session times are shifted by the difference of the recordings' starts on the wall clock, so they are as exact as the
nodes' clocks agree. Waiting and communication are computed again, because a node alone cannot know for whom its ranks
waited.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpudash.session.recordings.replay import origin
from gpudash.session.watching.messages.ranks import ranks_text
from gpudash.system.files import PrivateFolder, runtime_folder
from gpudash.telemetry.ranks import RankFindings, RankMemory, Ranks, RankStep, findings
from gpudash.telemetry.recording.reading import Recording, RunRow, open_recording
from gpudash.telemetry.recording.recorder import Recorder
from gpudash.telemetry.records import Note, Record, RunEnd, Sample, Topic, number_in, size_in
from gpudash.telemetry.store import Store

JUDGED = (Topic.STRAGGLER, Topic.IMBALANCE)
"""Topics of what a node finds by comparing its own ranks; all ranks are compared again."""

LONGEST_NAME = 120
"""Characters of the joined recording's name."""

_FACTS = ("format_version", "gpudash_version", "python_version", "status")
"""Facts that belong to a recording itself and not to the session."""


@dataclass(frozen=True, slots=True)
class _Node:
    """The part of a run that one node has recorded."""

    recording: Recording
    run: RunRow
    notes: tuple[Note, ...]
    began_wall_s: float

    @property
    def name(self) -> str:
        return self.recording.path.name

    @property
    def about(self) -> Mapping[str, Any]:
        """The details of its newest note about the ranks."""
        return self.notes[-1].details

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The ranks it runs, as far as they are valid."""
        rows = self.about.get("ranks")
        if isinstance(rows, list):
            return [row for row in rows if _rank(row) is not None]
        return []

    @property
    def ranks(self) -> set[int]:
        return {number for row in self.rows if (number := _rank(row)) is not None}


class JoinedRecording:
    """A private recording of all ranks of one run; remove it after use.

    Args:
        paths: the nodes' recordings, at least two.

    Raises:
        ValueError: one sentence, when they do not belong to one run.
        RecordingError: one sentence, when one of them cannot be read.
        OSError: when there is no space for it.

    Attributes:
        path: the recording, named after all of them.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._folder: PrivateFolder | None = None
        with ExitStack() as opened:
            nodes = [_node(opened.enter_context(open_recording(path))) for path in paths]
            # The node with the lowest rank leads: its session is the time axis.
            nodes.sort(key=lambda node: min(node.ranks, default=0))
            _check(nodes)
            self._folder = PrivateFolder(runtime_folder(), "gpudash-joined-")
            try:
                name = " + ".join(path.stem for path in paths)
                if not (len(name) <= LONGEST_NAME):
                    name = f"{len(paths)} nodes of {nodes[0].recording.path.stem}"
                self.path = self._folder.path / f"{name}.gpudash"
                _write(nodes, self.path)
            except BaseException:
                self.remove()
                raise

    def remove(self) -> None:
        """Remove it. Never raises."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


def _node(recording: Recording) -> _Node:
    rows = recording.select("SELECT json FROM event WHERE kind = 'Note' ORDER BY rowid")
    notes = [one for one in recording.events_of(rows) if isinstance(one, Note) and one.topic == Topic.RANKS]
    last = None
    if notes:
        last = notes[-1]
    # The last run that reported ranks, since a session may hold several.
    run = next((run for run in reversed(recording.runs) if last is not None and run.id == last.run_id), None)
    if last is None or run is None:
        raise ValueError(f"{recording.path.name} holds no run with ranks, so that there is nothing to join it by.")
    began_wall_s = origin(recording.meta.get("wall_clock_origin"), recording.path)
    return _Node(recording, run, tuple(note for note in notes if note.run_id == run.id), began_wall_s)


def _check(nodes: Sequence[_Node]) -> None:
    """Refuse recordings that do not belong to one run.

    Raises:
        ValueError: one sentence that names two of them.
    """
    first = nodes[0]
    for place, node in enumerate(nodes):
        here = {key: first.about.get(key) for key in ("run", "world_size")}
        there = {key: node.about.get(key) for key in here}
        # Without an id nothing shows that they belong to one run.
        if here != there or not here["run"]:
            raise ValueError(
                f"{first.name} and {node.name} are of different runs ({_describe(here)}; {_describe(there)}); "
                "only recordings of one torchrun job can be joined."
            )
        for other in nodes[:place]:
            if shared := sorted(node.ranks & other.ranks):
                if len(shared) == 1:
                    text = f"rank {shared[0]}"
                else:
                    text = f"ranks {shared[0]} to {shared[-1]}"
                raise ValueError(f"{other.name} and {node.name} both hold {text}; open one of them.")
            # The same id may be reused on another day.
            if not _overlap(other, node):
                raise ValueError(f"{other.name} and {node.name} are of different times; they cannot be one run.")


def _describe(about: Mapping[str, Any]) -> str:
    return f"run {about['run'] or 'without an id'} of {about['world_size']} ranks"


def _overlap(one: _Node, other: _Node) -> bool:
    def extent(node: _Node) -> tuple[float, float]:
        if node.run.ended_s is not None:
            ended_s = node.run.ended_s
        else:
            ended_s = node.recording.latest_s
        return node.began_wall_s + node.run.began_s, node.began_wall_s + ended_s

    (began, ended), (other_began, other_ended) = extent(one), extent(other)
    return began <= other_ended and other_began <= ended


def _write(nodes: Sequence[_Node], path: Path) -> None:
    first = nodes[0]
    kept = {key: value for key, value in first.recording.meta.items() if key not in _FACTS}
    recorder, store = Recorder(path, meta=kept), Store()
    recorder.summarise(store)

    def put(record: Record) -> None:
        store.apply(record)
        recorder.add(record)

    try:
        recorder.describe({"host": kept.get("host", ""), "joined": [node.name for node in nodes]})
        _Joining(nodes).put_records(put)
    finally:
        recorder.close(first.recording.meta.get("status", "closed"))
    if recorder.failed:
        raise OSError(recorder.failed)


class _Joining:
    """The records of all nodes, merged into one recording."""

    def __init__(self, nodes: Sequence[_Node]) -> None:
        self._nodes = nodes
        self._first = nodes[0]
        self._rows = {number: row for node in nodes for row in node.rows if (number := _rank(row)) is not None}
        world_size = self._first.about.get("world_size")
        most = max(self._rows, default=0) + 1
        self._ranks = Ranks(max(most, world_size if isinstance(world_size, int) else 0), sorted(self._rows))
        self._results: dict[int, dict[str, Any]] = {}
        self._ending: RunEnd | None = None
        self._again = 0

    def put_records(self, put: Any) -> None:
        """Call ``put`` with every record of the joined recording."""
        streams = [self._of(node, own=node is self._first) for node in self._nodes]
        newest_s = 0.0
        # Each stream is ordered by its own time; the merged one by the joined time.
        for record in heapq.merge(*streams, key=lambda record: record.time_s):
            newest_s = max(newest_s, record.time_s)
            for one in self._joined(record):
                put(one)
        # Without an end of the first node's run there is nothing to summarise.
        if self._ending is None:
            return
        for finding in RankFindings(newest_s).at_end(self._ranks):
            details = dict(finding.details)
            put(
                Note(
                    time_s=newest_s, run_id=self._first.run.id, topic=finding.topic, text=finding.text, details=details
                )
            )
        # The findings of single nodes are replaced: they covered only their own ranks.
        result = {**self._ending.result, "ranks": self._summary(), **findings(self._ranks)}
        put(replace(self._ending, time_s=max(newest_s, self._ending.time_s), result=result))

    def _of(self, node: _Node, *, own: bool) -> Iterator[Record]:
        """A node's records: of the first node all that are not computed again, of the others their ranks and
        endings."""
        # Session times count from each recording's own beginning.
        shift_s = node.began_wall_s - self._first.began_wall_s
        if own:
            yield from node.recording.records()
            return
        if node.run.ended_s is not None:
            ended_s = node.run.ended_s
        else:
            ended_s = node.recording.latest_s
        endings = node.recording.select(
            "SELECT json FROM event WHERE kind IN ('RunFailed', 'OutOfMemory', 'RunFinished')"
        )
        ends = [end for end in node.recording.events_of(endings) if end.run_id == node.run.id]
        rows = node.recording.samples("rank")
        inside: Iterator[Record] = (row for row in rows if node.run.began_s <= row.time_s <= ended_s)
        for record in heapq.merge(inside, ends, key=lambda record: record.time_s):
            # before this session began there is nothing
            moved = replace(record, time_s=max(0.0, record.time_s + shift_s))
            if isinstance(moved, Sample):
                yield moved
            elif isinstance(moved, RunEnd):
                yield from self._ended(node, moved)

    def _ended(self, node: _Node, end: RunEnd) -> Iterator[Record]:
        self._keep(end)
        if end.ended_badly:
            host = next((str(row.get("host")) for row in node.rows if row.get("host")), node.name)
            text = f"On {host}: {end.message}"
            yield Note(time_s=end.time_s, run_id=self._first.run.id, topic=Topic.PROGRAM, text=text)

    def _joined(self, record: Record) -> Iterator[Record]:
        if isinstance(record, Sample):
            # A node's own envelopes cover its own ranks; those of all ranks are computed below.
            if record.table == "rank":
                with suppress(ValueError):  # an envelope, or a rank that no note has announced
                    yield from self._rank_row(record)
            else:
                yield record
        elif isinstance(record, RunEnd) and record.run_id == self._first.run.id:
            self._keep(record)
            self._ending = record
        elif (
            isinstance(record, Note) and record.run_id == self._first.run.id and record.topic in (Topic.RANKS, *JUDGED)
        ):
            if record.topic == Topic.RANKS:
                yield self._ranks_note(record)
        else:
            yield record

    def _rank_row(self, sample: Sample) -> Iterator[Sample]:
        number, values = int(sample.device or ""), sample.values
        step, seconds = values.get("step"), number_in(values.get("step_s"))
        # A row without a step is a reading of memory alone.
        if not isinstance(step, int) or seconds is None:
            sizes = {name: size_in(values.get(name)) for name in ("used_bytes", "allocated_bytes", "reserved_bytes")}
            yield from self._ranks.take_memory(RankMemory(number, sample.time_s, **sizes))
            return
        communication_s, waiting_s = number_in(values.get("communication_s")), number_in(values.get("waiting_s"))
        rank_step = RankStep(
            number,
            step,
            sample.time_s,
            seconds,
            compute_s=number_in(values.get("compute_s")),
            # The time that a rank was blocked comes as two figures, which its node separated by the ranks that it
            # knew.
            blocked_s=None if communication_s is None or waiting_s is None else communication_s + waiting_s,
            loss=number_in(values.get("loss")),
            accuracy=number_in(values.get("accuracy")),
            input_s=number_in(values.get("input_s")),
        )
        joined = self._ranks.take_step(rank_step)
        if joined is not None:
            yield from joined.samples

    def _ranks_note(self, note: Note) -> Note:
        """The note about the ranks, for all nodes."""
        again = note.details.get("restarts")
        # After a restart steps begin again, and must not be joined with the earlier ones.
        if isinstance(again, int) and again > self._again:
            self._again = again
            self._ranks.begin_again()
        rows = [self._rows[number] for number in sorted(self._rows)]
        text = ranks_text(note.details, f" on {len(self._nodes)} nodes")
        return replace(note, text=text, details={**note.details, "ranks": rows})

    def _keep(self, end: RunEnd) -> None:
        """Keep what a node reports about its ranks at its end."""
        rows = end.result.get("ranks")
        for row in rows if isinstance(rows, list) else ():
            if (number := _rank(row)) is not None:
                self._results[number] = row

    def _summary(self) -> list[dict[str, Any]]:
        """One row per rank, with the peaks that its node reported: exact, while those of the rows are readings."""
        return [
            # Order matters: what the joining computed overrides the row, and the exact peaks override both.
            {**self._rows.get(row["rank"], {}), **row, **_peaks(self._results.get(row["rank"], {}))}
            for row in self._ranks.summary()
        ]


def _peaks(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith("peak_") and value is not None}


def _rank(row: Any) -> int | None:
    number = None
    if isinstance(row, dict):
        number = row.get("rank")
    if isinstance(number, int) and 0 <= number < 2**16:
        return number
    return None
