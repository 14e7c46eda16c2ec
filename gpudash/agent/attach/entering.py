"""Starts the agent in a running program.

This file is executed there, by any entry method, on a thread of its own, since the main thread may be inside an
import. It cannot refer to its package by name, and must not let any exception escape.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any


class Package:
    """The agent's modules, for a single attachment.

    They are never in `sys.modules`: they disappear when no longer needed, the program may iterate over its modules at
    any time, and another gpudash may attach next.

    Args:
        folder: folder of their files.
    """

    def __init__(self, folder: str) -> None:
        import builtins

        self._folder = folder
        self._loaded: dict[str, ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def module(self, name: str) -> Any:
        """Execute and return one of the modules."""
        found = self._loaded.get(name)
        if found is None:
            from importlib.machinery import SourceFileLoader

            full, path = f"_gpudash_agent.{name}", f"{self._folder}/{name.replace('.', '/')}.py"
            found = self._loaded[name] = type(sys)(full)
            found.__dict__.update(__file__=path, __builtins__=self._builtins)
            code: Any = SourceFileLoader(full, path).get_code(full)
            exec(code, found.__dict__)
        return found

    def _import(
        self,
        name: str,
        globals_: Mapping[str, object] | None = None,
        locals_: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if not level:
            return __import__(name, globals_, locals_, fromlist or (), 0)
        importing = str((globals_ or {})["__name__"])
        inside = importing.split(".")[1:-level]
        if name:
            inside.append(name)
        if name and not self._is_folder(inside):
            return self.module(".".join(inside))
        # A folder has modules, but no code of its own.
        several = type(sys)("_gpudash_agent")
        for one in fromlist or ():
            setattr(several, one, self.module(".".join((*inside, one))))
        return several

    def _is_folder(self, inside: Sequence[str]) -> bool:
        from os.path import isdir

        return isdir("/".join((self._folder, *inside)))


def enter(folder: str, path: str, config: str) -> None:
    """Attach to this process.

    Args:
        folder: folder of the agent's modules.
        path: path of the dashboard's socket.
        config: the dashboard's settings, as JSON.
    """
    try:
        Package(folder).module("program").attach(path, config)
    except Exception:
        # The waiting dashboard times out; the program must not notice.
        return
