"""Runs a user's program with a change, from copies of the changed files: the originals stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpudash.agent import edited
from gpudash.memory.explaining.patches import MOST_SOURCE_BYTES, edited_files
from gpudash.session.watching.request import WatchRequest, script_of
from gpudash.system.files import PrivateFolder
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular

LIST_NAME = "copies.json"


class EditedCopy:
    """Copies of the files that a request's edit changes, in a private folder.

    Args:
        request: a request with an edit.

    Raises:
        ValueError: one sentence, if the edit cannot be applied to copies.

    Attributes:
        command: command that runs the program with them; `environment` has the variables for that.
    """

    def __init__(self, request: WatchRequest) -> None:
        found = copies_of(request)
        try:
            self._folder = PrivateFolder(data_folder(), ".edited-")
            self._write(request, found)
        except OSError as error:
            raise ValueError(f"No copy of the program could be written: {error.strerror or error}.") from None
        place = _place_of_script(request.command)
        self.command: Sequence[str] = (*request.command[:place], edited.__file__, *request.command[place:])
        self.environment: Mapping[str, str] = {edited.VARIABLE: str(self._folder.path / LIST_NAME)}

    def remove(self) -> None:
        """Delete the copies. Never raises."""
        self._folder.remove()

    def _write(self, request: WatchRequest, found: Mapping[Path, bytes]) -> None:
        """Raises: OSError: if there is no disk space."""
        copies = {}
        for number, (file, content) in enumerate(found.items(), 1):
            folder = self._folder.path / str(number)
            folder.mkdir()
            copy = folder / file.name
            copy.write_bytes(content)
            copies[str(file.resolve())] = str(copy)
        folder = request.folder or Path.cwd()
        script = request.command[_place_of_script(request.command)]
        facts = {"script": str(folder / script), "copies": copies}
        (self._folder.path / LIST_NAME).write_text(json.dumps(facts), encoding="utf-8")


def copies_of(request: WatchRequest) -> Mapping[Path, bytes]:
    """The files that a request's edit changes, with the content of their copies.

    Raises:
        ValueError: one sentence, if the edit cannot be applied, or the program cannot run with copies.
    """
    script = script_of(request.command)
    folder = (request.folder or Path.cwd()).absolute()
    if script is None or (folder / script).is_dir():
        raise ValueError("A copy can only be run of a script that is given to Python by its file: python train.py.")

    def read(name: str) -> bytes:
        return read_regular(folder / name, MOST_SOURCE_BYTES)

    return {folder / name: content for name, content in edited_files(request.edit, read).items()}


def why_no_copy(request: WatchRequest) -> str:
    """Why the program cannot run with the request's edit, in a sentence; "" if it can."""
    try:
        copies_of(request)
    except ValueError as error:
        return str(error)
    return ""


def _place_of_script(command: Sequence[str]) -> int:
    script = script_of(command)
    assert script is not None
    return list(command).index(script, 1)
