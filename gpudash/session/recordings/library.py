"""The folder of recordings: its content, read on its own thread; locking, renaming, deleting and restoring.

The last result is cached, so that a folder of a hundred is shown at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import gpudash
from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular
from gpudash.system.garbage import without_collection
from gpudash.system.settings import recordings_folder
from gpudash.system.threads import joined, started
from gpudash.telemetry.recording.facts import (
    PEAK_S,
    Facts,
    RunWord,
    read_facts,
    set_locked,
    set_run_text,
    set_title,
)
from gpudash.telemetry.recording.reading import is_locked
from gpudash.telemetry.recording.recorder import LOG_SUFFIX, RecordingError, being_written, log_files
from gpudash.telemetry.recording.retention import (
    empty_trash,
    move_recording,
    move_to_trash,
    trash_folder,
)
from gpudash.telemetry.recording.schema import SUFFIX, TRACE_SUFFIX, traces_of
from gpudash.units import listed, summed_bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter

logger = logging.getLogger(__name__)

WRITTEN_PEAK_S = 0.05
"""Longest search for the peak of a recording that is still being written, on each scan."""

POLL_S = 1.0
"""Interval between scans of the folder while the library is in view."""

JOIN_S = 1.0
"""How long closing waits for the thread, which ends after the file it is reading."""

CACHE_FORM = "3"
"""Changes with the format of the cached facts, so that older entries are read again."""

SHOWN_S = 0.2
"""How often partial results are shown while many recordings are read."""

MOST_CACHE_BYTES = 256 * 2**20
"""Of the file that caches the facts of recordings: a few KB for each."""


class LibraryEntry(NamedTuple):
    """A recording in the folder, or in the trash; a tuple, since a folder may have ten thousand.

    Attributes:
        path: the file.
        facts: its facts; ``None`` until it has been read.
        bytes: on disk, including its log and the traces of its profiles.
        changed_s: when it was last written, in seconds since the epoch.
        written: whether a session is recording into it now.
        trashed: whether it is in the trash.
    """

    path: Path
    facts: Facts | None
    bytes: int
    changed_s: float
    written: bool
    trashed: bool = False

    @property
    def title(self) -> str:
        """The user's title, else the name of the file without its suffix."""
        return (self.facts.title if self.facts is not None else "") or self.path.stem

    @property
    def began_s(self) -> float:
        """When it began, in seconds since the epoch; if it does not say, when it was last written."""
        if self.facts is None or self.facts.began_wall_s is None:
            return self.changed_s
        return self.facts.began_wall_s


@dataclass(frozen=True, slots=True)
class Library:
    """The content of the folder at one moment; newest first. `reading` is true until every file has been read."""

    entries: tuple[LibraryEntry, ...] = ()
    trash: tuple[LibraryEntry, ...] = ()
    reading: bool = True
    problem: str = ""

    @property
    def bytes(self) -> int:
        """Total size of the recordings, without the trash."""
        return summed_bytes(self.entries)

    @property
    def trash_bytes(self) -> int:
        """Total size of the recordings in the trash."""
        return summed_bytes(self.trash)


class LibraryWatcher:
    """Watches the folder of recordings and executes commands on them.

    The caller renames files itself, at once; whatever opens or deletes a file runs on the thread, whose results are in
    `answers`.

    Args:
        folder: of the recordings; the trash is beside it.

    Attributes:
        library: the newest content of the folder; a new object after each change.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or recordings_folder()
        self.trash = trash_folder(self.folder)
        self.library = Library()
        self._elsewhere: tuple[Path, ...] = ()
        # Keyed by text: for ten thousand paths, hashing and comparing Path objects would take longer than all else.
        self._cache: dict[str, Kept] = {}
        self._saved: dict[str, Kept] = {}
        self._paths: dict[str, Path] = {}
        self._seen: dict[tuple[str, bool], Seen] = {}
        self._found: list[Seen] | None = None
        self._commands: list[Callable[[], str]] = []
        self._answers: list[str] = []
        self._condition = threading.Condition()
        self._closed = False
        self._watched = True
        self._thread = started("gpudash-library", self._work)

    def watch(self, watched: bool) -> None:
        """Scan the folder every second, or only after a command."""
        with self._condition:
            if watched and not self._watched:
                self._condition.notify()
            self._watched = watched

    def include(self, path: Path) -> None:
        """Also list the recording at ``path``, which is in another folder."""
        # Recordings in the folder itself are listed anyway.
        if path.parent != self.folder and path not in self._elsewhere:
            self._elsewhere = (*self._elsewhere, path)
            self.scan()

    def answers(self) -> list[str]:
        """One sentence for each command that has failed since the last call."""
        with self._condition:
            answers, self._answers = self._answers, []
        return answers

    def lock(self, path: Path, locked: bool) -> None:
        """Protect a recording from deletion and tidying, or remove the protection."""
        self._request(lambda: set_locked(path, locked))

    def rename(self, path: Path, title: str) -> None:
        """Give a recording a title; its file keeps its name."""
        self._request(lambda: set_title(path, title))

    def say(self, path: Path, number: int, what: RunWord, text: str) -> None:
        """Name or tag a run of a recording, or add a note to it; "" removes it."""
        self._request(lambda: set_run_text(path, number, what, text))

    def empty_trash(self) -> None:
        """Delete everything in the trash for good."""
        self._request(self._empty)

    def delete(self, path: Path) -> Path:
        """Move a recording to the trash, and return its path there.

        Raises:
            RecordingError: one sentence, when it is locked, being recorded or gone, or cannot be moved.
        """
        if being_written(path):
            raise RecordingError(f"{path.name} is being recorded; end its session first.")
        if self._locked(path):
            raise RecordingError(f"{path.stem} is locked; unlock it first.")
        if not os.access(path, os.W_OK) and path.exists():
            raise RecordingError(f"{path.name} is read-only and stays.")
        try:
            return move_to_trash(path, self.trash)
        except FileNotFoundError:
            raise RecordingError(f"{path.name} is not there any more.") from None
        except OSError as error:
            raise RecordingError(f"{path.name} cannot be deleted ({error.strerror or error}).") from None
        # Also after a failure: what was shown was not true.
        finally:
            self.scan()

    def restore(self, trashed: Path, target: Path | None = None) -> Path:
        """Restore a recording from the trash, and return its path, numbered if its name is taken by now.

        Args:
            trashed: its path in the trash.
            target: where it was; the folder of recordings if that is not known.

        Raises:
            RecordingError: one sentence, when it is gone or cannot be moved.
        """
        try:
            make_private_folder(self.folder)
            return move_recording(trashed, target or self.folder / trashed.name)
        except FileNotFoundError:
            raise RecordingError(f"{trashed.name} is not in the trash any more.") from None
        except OSError as error:
            raise RecordingError(f"{trashed.name} cannot be brought back ({error.strerror or error}).") from None
        finally:
            self.scan()

    def scan(self) -> None:
        """Scan the folder now."""
        with self._condition:
            # A command that does nothing and answers "" wakes the thread.
            self._commands.append(str)
            self._condition.notify()

    def close(self) -> bool:
        """End the thread; false if it did not end in time."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        return joined(self._thread, JOIN_S)

    def _locked(self, path: Path) -> bool:
        """Whether the recording is locked: as last read, else the file is opened."""
        entry = next((entry for entry in self.library.entries if entry.path == path), None)
        # A thread that has ended updates nothing any more.
        if entry is None or entry.facts is None or self._closed:
            return is_locked(path)
        return entry.facts.locked

    def _request(self, act: Callable[[], object]) -> None:
        """Let the thread execute ``act``, or execute it here once the thread has ended.

        Raises:
            RecordingError: when the thread has ended and ``act`` fails.
        """
        # When the window closes the thread may be gone; the caller then executes what is left.
        if self._closed:
            act()
            return

        def command() -> str:
            try:
                act()
            except RecordingError as error:
                return f"{str(error).rstrip('.')}."
            return ""

        with self._condition:
            self._commands.append(command)
            self._condition.notify()

    def _empty(self) -> None:
        kept = empty_trash(self.trash)
        if kept:
            raise RecordingError(f"{listed(kept, 1)} cannot be deleted and stays in the trash.")

    def _work(self) -> None:
        """The thread: scans, then waits for a command or for the next second."""
        try:
            self._cache = load_cache()
            self._saved = dict(self._cache)
            while not self._closed:
                self._refresh()
                with self._condition:
                    # Commands that arrived while files were read are executed without a wait.
                    if not self._commands and not self._closed:
                        self._condition.wait(POLL_S if self._watched else None)
                self._drain()
            # Commands from before the end are still executed.
            self._drain()
        except Exception as error:
            logger.exception("the recordings are not watched any more")
            self.library = Library(
                *(self.library.entries, self.library.trash),
                reading=False,
                problem=f"The recordings are not watched any more ({type(error).__name__}: {error}).",
            )

    def _drain(self) -> None:
        """Execute the pending commands."""
        # Taken under the lock and executed without it: locking a recording may wait for its writer.
        with self._condition:
            commands, self._commands = self._commands, []
        answers = [answer for command in commands if (answer := command())]
        with self._condition:
            self._answers.extend(answers)

    def _refresh(self) -> None:
        """Update `library`: first with what is known, then file by file, newest first."""
        found = [*self._listed(self.folder, trashed=False), *self._listed(self.trash, trashed=True)]
        read = [self._is_read(*item) for item in found]
        unread = [item for item, is_read in zip(found, read, strict=True) if not is_read]
        # Nothing has changed and nothing is unread: the usual scan, each second, costs one listing.
        if found == self._found and not unread:
            return
        self._found = found
        self._seen = {(item[0], item[2].trashed): item for item in found}
        known = {(str(entry.path), entry.trashed): entry for entry in (*self.library.entries, *self.library.trash)}
        for (path, _stamp, entry), is_read in zip(found, read, strict=True):
            before = known.get((path, entry.trashed))
            if is_read:
                now = _with_facts(entry, self._cache[path].facts)
            else:
                # Until it is read again, its previous facts are shown.
                now = _with_facts(entry, None if before is None else before.facts)
            if now != before:  # otherwise keep the object: a view of many entries then finds changes quickly
                known[path, entry.trashed] = now
        places = [(path, entry.trashed) for path, _stamp, entry in found]
        # First what is known; large files are read afterwards.
        self._show([known[place] for place in places], reading=bool(unread))
        shown_at = time.monotonic()
        for number, (path, stamp, entry) in enumerate(unread, 1):
            facts = read_facts(entry.path, WRITTEN_PEAK_S if entry.written else PEAK_S, lambda: self._closed)
            if self._closed:
                return
            known[path, entry.trashed] = _with_facts(entry, facts)
            # A recording that is being written changes with every scan, and is not cached.
            if not entry.written:
                self._cache[path] = Kept(stamp, facts)
            # Not after each of hundreds: the window would redraw the whole table each time.
            if number == len(unread) or time.monotonic() - shown_at >= SHOWN_S:
                self._show([known[place] for place in places], reading=number < len(unread))
                shown_at = time.monotonic()
        self._keep_cache({path for path, _stamp, _entry in found})

    def _is_read(self, path: str, stamp: Stamp, entry: LibraryEntry) -> bool:
        kept = self._cache.get(path)
        return kept is not None and kept.stamp == stamp and not entry.written

    def _keep_cache(self, there: set[str]) -> None:
        if not self._cache.keys() <= there:
            self._cache = {path: kept for path, kept in self._cache.items() if path in there}
        if self._cache != self._saved:
            save_cache(self._cache)
            self._saved = dict(self._cache)

    def _show(self, entries: list[LibraryEntry], *, reading: bool) -> None:
        there = tuple(entry for entry in entries if not entry.trashed)
        library = Library(there, tuple(entry for entry in entries if entry.trashed), reading)
        # The object is replaced only after a change, which is how the window notices it.
        if library != self.library:
            self.library = library

    def _listed(self, folder: Path, *, trashed: bool) -> list[Seen]:
        """The recordings in ``folder``, newest first, without their facts."""
        there: dict[str, os.stat_result] = {}
        with suppress(OSError), os.scandir(folder) as found:
            for file in found:
                with suppress(OSError):
                    there[file.name] = file.stat()
        # Searching for traces costs a listing per recording; most folders have none.
        traced = any(name.endswith(TRACE_SUFFIX) for name in there)
        listed = []
        begins = f"{folder}{os.sep}"
        for name, status in there.items():
            if name.endswith(SUFFIX):
                path = begins + name
                place = self._paths.get(path)
                if place is None:  # made of the folder's: to take each path apart would take twice as long
                    place = self._paths[path] = folder / name
                log = there.get(f"{name}{LOG_SUFFIX}")
                traces: Sequence[Path] = ()
                if traced:
                    traces = traces_of(place)
                listed.append(self._entry(path, place, status, log, traces, trashed=trashed))
        for place in () if trashed else self._elsewhere:
            with suppress(OSError):
                log_path = log_files(place)[0]
                log = None
                if log_path.exists():
                    log = log_path.stat()
                listed.append(self._entry(str(place), place, place.stat(), log, traces_of(place), trashed=trashed))
        return sorted(listed, key=lambda item: item[2].changed_s, reverse=True)

    def _entry(
        self,
        path: str,
        place: Path,
        status: os.stat_result,
        log: os.stat_result | None,
        traces: Sequence[Path],
        *,
        trashed: bool,
    ) -> Seen:
        """What a directory listing shows of a recording; the same object as before if that has not changed."""
        size = status.st_size
        changed = status.st_mtime_ns
        if log is not None:
            size += log.st_size
            changed = max(changed, log.st_mtime_ns)
        for trace in traces:
            with suppress(OSError):
                size += trace.stat().st_size
        stamp = Stamp(changed, status.st_ctime_ns, size)
        before = self._seen.get((path, trashed))
        if before is not None and before[1] == stamp and not before[2].written:
            return before
        kept = self._cache.get(path)  # a recording that had ended when it was read is not written again
        written = not (trashed or (kept is not None and kept.stamp == stamp)) and being_written(place)
        seen = path, stamp, LibraryEntry(place, None, size, changed / 1e9, written, trashed)
        self._seen[path, trashed] = seen
        return seen


class Stamp(NamedTuple):
    """Identifies the version of a file that was read: nanoseconds of last modification and status change, bytes."""

    changed_ns: int
    status_ns: int
    bytes: int


Seen = tuple[str, Stamp, LibraryEntry]
"""The path of a recording, and what a directory listing shows of it, without its facts."""


def _with_facts(entry: LibraryEntry, facts: Facts | None) -> LibraryEntry:
    # Does what `_replace` does, twice as fast.
    return LibraryEntry(entry.path, facts, entry.bytes, entry.changed_s, entry.written, entry.trashed)


@dataclass(frozen=True, slots=True)
class Kept:
    """The facts of a recording when its file had this stamp."""

    stamp: Stamp
    facts: Facts


@cache
def _in_json() -> TypeAdapter[tuple[str, Kept]]:
    from pydantic import TypeAdapter  # imported only once the library's thread needs it

    return TypeAdapter(tuple[str, Kept])


def load_cache() -> dict[str, Kept]:
    """The cached facts; empty if the file cannot be read or was written by another version of gpudash.

    It is read line by line: no other thread can run while pydantic validates ten thousand recordings in one call.
    """
    try:
        version, *lines = read_regular(_file(), MOST_CACHE_BYTES).splitlines()
        # Another version may have changed the meaning of facts, even if the JSON still fits.
        if json.loads(version) != _version():
            return {}
        with without_collection():  # all of it stays alive
            return dict(_in_json().validate_json(line) for line in lines)
    except (OSError, ValueError):
        return {}


def save_cache(kept: Mapping[str, Kept]) -> None:
    """Cache the facts, one line per recording, after a line with gpudash's version and the form of the cache; if the
    file cannot be written, they are read again next time.
    """
    target = _file()
    with suppress(OSError):
        make_private_folder(target.parent)
        with written_whole(target, private=True) as part, part.open("w", encoding="utf-8") as file:
            file.write(f"{json.dumps(_version())}\n")
            for path, one in kept.items():
                line = _in_json().dump_python((path, one), mode="json")
                file.write(f"{json.dumps(line)}\n")  # json.dumps can write NaN and infinities


def _version() -> str:
    return f"{gpudash.__version__}, {CACHE_FORM}"


def _file() -> Path:
    return data_folder() / "library.json"
