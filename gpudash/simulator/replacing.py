"""Temporarily replaces names in torch, and restores them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self  # Python 3.9 has none

_ABSENT = object()


class Replacements:
    """The names that were replaced; they are restored in reverse order, at the latest when its block ends.

    Attributes:
        names: everything replaced so far, such as "torch.cuda.is_available".
        missing: names to replace that this torch does not have.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.missing: list[str] = []
        self._undone_by: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace a name of ``owner``; if this version of torch lacks it, record it in `missing`."""
        if hasattr(owner, name):
            self._set(owner, name, value)
        else:
            self.missing.append(_name(owner, name))

    def put_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Replace several names."""
        for name, value in values.items():
            self.put(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Replace a name with the result of ``wrapper`` for its value."""
        if hasattr(owner, name):
            self._set(owner, name, wrapper(getattr(owner, name)))
        else:
            self.missing.append(_name(owner, name))

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Add a name to ``owner`` that only builds of torch with CUDA have."""
        self._set(owner, name, value)

    def undo_by(self, call: Callable[[], None]) -> None:
        """Call ``call`` when everything is restored."""
        self._undone_by.append(call)

    def undo(self) -> None:
        """Restore all original values."""
        while self._undone_by:
            self._undone_by.pop()()
        self.names.clear()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            if before is _ABSENT:
                # It is inherited: setting the original would shadow it there for good.
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, value)
        self.names.append(_name(owner, name))
        self._undone_by.append(undo)


def _name(owner: Any, name: str) -> str:
    module = ""
    if isinstance(owner, type):
        module = f"{owner.__module__}."
    return f"{module}{owner.__name__}.{name}"
