"""Runs a user's script with edited text, or with edited modules, from copies of those files.

Python runs this file instead of the script. The script and its modules keep their names (``__file__``, tracebacks,
``sys.argv``, ``sys.path``), so that files next to them are found; only the text of the edited files comes from the
copies. Processes started by multiprocessing that import the script again also run this file.

It uses only the standard library: the script's Python may have no gpudash.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any

VARIABLE = "GPUDASH_EDITED"
"""Variable with the path of the file that lists the copies: ``{"script": path, "copies": {real path: path of its
copy}}``."""


class EditedModules:
    """A module finder that reads some modules from copies.

    Args:
        copies: real path of a file → path of its copy.
    """

    def __init__(self, copies: dict[str, str]) -> None:
        self.copies = copies
        self._names = {name for file in copies for name in _module_names(file)}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.rpartition(".")[2] not in self._names:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None or found.origin is None or type(found.loader) is not SourceFileLoader:
            return None
        copy = self.copies.get(os.path.realpath(found.origin))
        if copy is None:
            return None
        loader = _CopyLoader(name, found.origin, copy)
        return spec_from_file_location(
            name, found.origin, loader=loader, submodule_search_locations=found.submodule_search_locations
        )

    def text_of(self, file: str) -> bytes:
        """The text of a file, or of its copy if there is one.

        Raises:
            OSError: if it cannot be read.
        """
        with open(self.copies.get(os.path.realpath(file), file), "rb") as opened:
            return opened.read()


class _CopyLoader(SourceFileLoader):
    """Reads the text of a module from a copy, and neither reads nor writes the module's own .pyc file."""

    def __init__(self, name: str, file: str, copy: str) -> None:
        super().__init__(name, file)
        self._copy = copy

    def get_data(self, path: str) -> bytes:
        if path == self.path:
            path = self._copy
        return super().get_data(path)

    def path_stats(self, path: str) -> Any:
        # Without a time, importlib uses no .pyc file (SourceLoader.get_code).
        raise OSError("a copy has no compiled file")

    def get_source(self, fullname: str) -> str | None:
        source = super().get_source(fullname)
        if source is not None:
            _show_lines(self.path, source)
        return source

    def exec_module(self, module: ModuleType) -> None:
        self.get_source(module.__name__)
        super().exec_module(module)


def begin(main: dict[str, Any]) -> CodeType:
    """Turn a namespace into the script's, as Python would; returns the script's code, to be executed in it.

    Args:
        main: namespace of the module that Python runs; this file's own entries are removed.

    Raises:
        OSError: if a copy, or the script, cannot be read.
        SyntaxError: if the script is not valid Python.
    """
    with open(os.environ[VARIABLE], encoding="utf-8") as file:
        facts = json.load(file)
    finder = EditedModules(facts["copies"])
    sys.meta_path.insert(0, finder)
    script = os.path.abspath(facts["script"])
    ours = main["__file__"]
    if main["__name__"] == "__main__":
        _take_over_command_line(ours, script)
        _pass_on(ours)
    text = finder.text_of(script)
    code: CodeType = compile(text, script, "exec", dont_inherit=True)
    _show_lines(script, text.decode("utf-8", "replace"))
    kept = {"__name__": main["__name__"], "__builtins__": main["__builtins__"]}
    main.clear()
    main.update(kept, __file__=script, __doc__=None, __package__=None, __spec__=None, __loader__=None, __cached__=None)
    return code


def _take_over_command_line(ours: str, script: str) -> None:
    """Remove this file from the script's view of its command line."""
    del sys.argv[0]
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(ours)):
        sys.path[0] = os.path.dirname(os.path.realpath(script))


def _pass_on(ours: str) -> None:
    """Make processes that import the script again (spawn, forkserver) run this file."""
    from multiprocessing import spawn

    prepared = spawn.get_preparation_data

    def get_preparation_data(*arguments: Any, **named: Any) -> dict[str, Any]:
        data: dict[str, Any] = prepared(*arguments, **named)
        if "init_main_from_path" in data:
            data["init_main_from_path"] = ours
        return data

    spawn.get_preparation_data = get_preparation_data


def _show_lines(file: str, text: str) -> None:
    """Make tracebacks and `inspect` use these lines of a file (an entry without a time stays, `linecache`)."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _module_names(file: str) -> list[str]:
    """Possible names of a file's module, without its package."""
    folder, name = os.path.split(file)
    stem = os.path.splitext(name)[0]
    if stem == "__init__":
        return [os.path.basename(folder)]
    return [stem]


def _own_module() -> ModuleType:
    """This file again, under a name of its own: the namespace it runs in becomes the script's."""
    spec = spec_from_file_location("_gpudash_edited", __file__)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ in ("__main__", "__mp_main__"):
    exec(_own_module().begin(globals()))
