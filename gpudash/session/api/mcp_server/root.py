"""Which files a client may name: those in one folder, and gpudash's own recordings and reports."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp.server.mcpserver.exceptions import ToolError

from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.specs.model_names import ADAPTER, has_config
from gpudash.system.foreign_files import NotRegularError, require_regular
from gpudash.system.foreign_text import visible
from gpudash.system.settings import recordings_folder, reports_folder

LONGEST_NAME = 4096
"""Characters of a path, the limit on Linux (PATH_MAX)."""

SHOWN = 200
"""Characters of a name that a sentence quotes."""

MOST_ENTRIES = 10_000
"""Entries of a folder that are checked for links."""


def shown(text: str) -> str:
    """A name given by the client, quoted in one of our sentences: one line, limited in length, nothing hidden."""
    seen = visible(text, keep="")
    if len(seen) > SHOWN:
        seen = f"{seen[:SHOWN]}…"
    return f"'{seen}'"


@dataclass(frozen=True)
class Root:
    """The folder that a server is confined to.

    Attributes:
        folder: its real path.
        own: gpudash's own folders, which may be read too.
    """

    folder: Path
    own: tuple[Path, ...] = ()

    @classmethod
    def at(cls, folder: Path) -> Root:
        """The root for a folder.

        Raises:
            ValueError: one sentence, when there is no such folder.
        """
        real = Path(os.path.realpath(folder.expanduser()))
        if not real.is_dir():
            raise ValueError(f"There is no folder {folder} to be the root.")
        own = tuple(Path(os.path.realpath(each)) for each in (recordings_folder(), reports_folder()))
        return cls(real, own)

    def file(self, text: str) -> Path:
        """The real path of a regular file in the root.

        Raises:
            ToolError: one sentence, when it is not such a file.
        """
        return self._regular(self._inside(text, (self.folder,)), text)

    def directory(self, text: str) -> Path:
        """The real path of a folder in the root.

        Raises:
            ToolError: one sentence, when it is not such a folder.
        """
        found = self._inside(text, (self.folder,))
        if not found.is_dir():
            raise ToolError(f"{shown(text)} is no folder.")
        return found

    def recorded(self, text: str) -> tuple[Path, str]:
        """A recording, a snapshot, or the snapshot in a report's folder, in the root or among gpudash's own; and the
        selected run, as in "#2", or "".

        Raises:
            ToolError: one sentence, when it is none of them.
        """
        name, _, number = text.rpartition("#")
        if not name or not number.isdecimal():
            return self._own_or_inside(text), ""
        return self._own_or_inside(name), f"#{number}"

    def model(self, text: str) -> str:
        """The real path of a model in the root, or the name of a model known on this computer.

        Raises:
            ToolError: one sentence, when it is neither.
        """
        _require_name(text)
        if not os.path.lexists(self.folder / text):
            if text.startswith(("/", ".", "~")) or ".." in Path(text).parts:
                raise self._outside(text)
            return text
        found = self._inside(text, (self.folder,))
        if not found.is_dir():
            return str(self._regular(found, text))
        self._require_inside(found, text)
        # an adapter may name its base model by any path
        if not has_config(found) and (found / ADAPTER).exists():
            raise ToolError(f"{shown(text)} is an adapter: name the model that it is for, and a task of lora or qlora.")
        return str(found)

    def _own_or_inside(self, text: str) -> Path:
        _require_name(text)
        if "/" not in text and not os.path.lexists(self.folder / text):
            for folder in self.own:
                if (folder / text).exists():
                    text = str(folder / text)
                    break
        found = self._inside(text, (self.folder, *self.own))
        if found.is_dir():
            self._require_inside(found, text)
            return self._regular(self._inside(str(found / SNAPSHOT_NAME), (self.folder, *self.own)), text)
        return self._regular(found, text)

    def _inside(self, text: str, folders: Sequence[Path]) -> Path:
        _require_name(text)
        found = Path(os.path.realpath(self.folder / text))
        if not any(map(found.is_relative_to, folders)):
            raise self._outside(text)
        if not found.exists():
            raise ToolError(f"There is no {shown(text)} in {self.folder}.")
        return found

    def _outside(self, text: str) -> ToolError:
        return ToolError(
            f"{shown(text)} is outside of {self.folder}, and only what lies in it may be named; the user can start "
            "gpudash mcp with another --root."
        )

    def _regular(self, found: Path, text: str) -> Path:
        try:
            require_regular(found)
        except NotRegularError as error:
            raise ToolError(f"{shown(text)} cannot be read: {error.strerror}.") from None
        except OSError as error:
            raise ToolError(f"{shown(text)} cannot be read: {error.strerror}.") from None
        return found

    def _require_inside(self, folder: Path, text: str) -> None:
        """Refuse a folder that contains a link to the outside or a special file: a command opens what it finds."""
        for number, entry in enumerate(_entries(folder)):
            if number == MOST_ENTRIES:
                raise ToolError(f"{shown(text)} has more than {MOST_ENTRIES:,} entries: name a file in it.")
            real = Path(os.path.realpath(entry))
            if not any(map(real.is_relative_to, (self.folder, *self.own))):
                raise ToolError(f"{shown(entry.name)} in {shown(text)} is a link to outside of {self.folder}.")
            if real.exists() and not stat.S_ISDIR(real.stat().st_mode):
                self._regular(real, str(entry.name))


def _entries(folder: Path) -> Iterator[Path]:
    """The entries of a folder and of its subfolders: diffusers models keep their configs one level deeper."""
    for entry in folder.iterdir():
        yield entry
        if entry.is_dir() and not entry.is_symlink():
            yield from entry.iterdir()


def _require_name(text: str) -> None:
    if not text or len(text) > LONGEST_NAME or "\0" in text:
        raise ToolError(f"{shown(text)} is no name of a file.")
