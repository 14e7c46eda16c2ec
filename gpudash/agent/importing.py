"""Being told when the program has imported a module, without importing it."""

from __future__ import annotations

import sys

from .guest import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Callback = Callable[[Any], None]

IMPORTLIB = "<frozen importlib._bootstrap_external>"
"""File name by which Python leaves a frame out of an error's traceback that passed through an import."""


def found_by_others(
    own: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> Iterator[ModuleSpec]:
    """What each finder but ``own`` finds of a module, in the order in which Python asks them."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is own or find is None:
            continue
        spec = find(name, path, target)
        if spec is not None:
            yield spec


class PostImport:
    """A finder that lets the others find, and hears of it when what they found has been executed.

    A module's loader, spec and name stay what they are: for the time of one import, the loader's ``exec_module`` is
    another.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, Callback] = {}
        self._withdrawn = False

    def call(self, name: str, callback: Callback) -> None:
        """Call ``callback(module)`` once, when ``name`` has been imported; at once when it is already.

        One that another thread is importing is waited for. Its exceptions are ignored.
        """
        callback = guarded(callback)
        module = sys.modules.get(name)
        if module is not None:
            if getattr(module.__spec__, "_initializing", False):
                sys.modules["_frozen_importlib"]._lock_unlock_module(name)
            callback(module)
            return
        self._wanted[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if self._withdrawn:  # by another thread, perhaps a moment ago
            self.withdraw()

    def withdraw(self) -> None:
        """Stop calling; any thread may ask for it.

        The list of finders is replaced rather than changed: another thread that goes over it would leave one out.
        """
        self._withdrawn = True
        self._wanted.clear()
        before = sys.meta_path
        if self in before:
            sys.meta_path = [finder for finder in before if finder is not self]
            came = [finder for finder in before if finder is not self and finder not in sys.meta_path]
            sys.meta_path[:0] = came

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find."""
        if name not in self._wanted:
            return None
        for spec in found_by_others(self, name, path, target):
            self._follow(spec)
            return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        own = getattr(loader, "__dict__", None)
        if execute is None or own is None or "exec_module" in own:
            return

        def exec_module(module: ModuleType) -> None:
            # a loader may serve several modules
            name = ""
            if module.__spec__ is not None:
                name = module.__spec__.name
            if name not in self._wanted:
                execute(module)
                return
            own.pop("exec_module", None)
            execute(module)
            self._imported(name, module)

        exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORTLIB)
        own["exec_module"] = exec_module

    def _imported(self, name: str, module: ModuleType) -> None:
        callback = self._wanted.pop(name, None)
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
        if callback is not None:
            callback(module)
