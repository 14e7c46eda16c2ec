"""Importing the modules of the window, most of the time to its first paint: what the import of one prepares in advance,
and the window may never use, is left until it is used.

Each of these reaches into something private of a package. Where a version of the package does without it, nothing is
changed, and the import only takes longer.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def load_window() -> None:
    """Import the modules of the window."""
    # Everything imported and built now stays alive. Collecting garbage among it takes a tenth of the time to the first
    # paint; after that, the window's event loop collects.
    gc.disable()
    for module in BEFORE_QT:
        importlib.import_module(module)
    importlib.import_module("PySide6.QtCore")
    with _unread_sources():
        with _unlisted_names():
            importlib.import_module("pyqtgraph")
        importlib.import_module("gpudash.ui.app")
    gc.freeze()  # the first collection, which may come before a slow first paint, skips all of it


BEFORE_QT = (
    "numpy",
    "gpudash.session.live.session",
    "gpudash.sources.discovery",
    "gpudash.sources.monitor",
    "gpudash.workloads.running.worker",
    "gpudash.session.predicting.estimates",
)
"""Parts of the window that need no Qt; import them first, since PySide slows down every import after its own."""


@contextmanager
def _unread_sources() -> Iterator[None]:
    """Keep PySide from reading the source of every imported module.

    PySide searches it for its own name, to know whether ``from __feature__ import`` may rename what the module uses.
    The window does not use that, so every module is treated as one that uses PySide without such a feature.
    """
    names = vars(sys.modules.get(FEATURES, importlib))
    reads = names.get(READS_SOURCE)
    if reads is None:
        yield
        return
    names[READS_SOURCE] = lambda _module: True
    try:
        yield
    finally:
        names[READS_SOURCE] = reads


FEATURES, READS_SOURCE = "shibokensupport.feature", "_mod_uses_pyside"
"""The PySide module that reads sources, and its function for it."""


@contextmanager
def _unlisted_names() -> Iterator[None]:
    """Keep pyqtgraph from creating the Python type of every class of Qt.

    PySide creates a type when its name is first looked up, and pyqtgraph copies all names of three modules into modules
    of its own (`pyqtgraph.Qt`), a third of the time of its import. Here those modules look a name up when it is used,
    and PySide lists no names to copy.
    """
    sources = [importlib.import_module(f"PySide6.{name}") for name in COPIED_MODULES]
    for source in sources:
        name = source.__name__.replace("PySide6", "pyqtgraph.Qt")
        sys.modules.setdefault(name, _Mirror(name, source))
        vars(source)["__dir__"] = list
    try:
        yield
    finally:
        for source in sources:
            del vars(source)["__dir__"]


class _Mirror(ModuleType):
    """A module with the names of another, and with those that are set on it alone."""

    def __init__(self, name: str, source: ModuleType) -> None:
        super().__init__(name)
        self._source = source

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        setattr(self, name, found)
        return found


COPIED_MODULES = ("QtCore", "QtGui", "QtWidgets")
"""The modules of PySide whose names pyqtgraph copies."""
