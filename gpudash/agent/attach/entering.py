"""Brings the agent into a program that runs already.

The code of this file is executed there, whatever the way in was, on a thread of its own: the main thread may stand in
the midst of an import. It can name nothing of its package, and no exception may leave it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any


class Package:
    """The agent's modules, for one attachment alone.

    `sys.modules` never holds them: they are gone when no longer needed, the program may go over its modules at any
    time, and the next to attach may be another gpudash.

    Args:
        folder: where their files are.
    """

    def __init__(self, folder: str) -> None:
        import builtins

        self._folder = folder
        self._loaded: dict[str, ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def module(self, name: str) -> Any:
        """One of them, executed."""
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
        # of a folder its modules are wanted, and it has no code of its own
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
        folder: of the agent's modules.
        path: of the dashboard's socket.
        config: what the dashboard wants, as JSON.
    """
    try:
        Package(folder).module("program").attach(path, config)
    except Exception:
        # whoever waits for it hears nothing; the program must not
        return
