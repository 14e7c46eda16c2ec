"""The session library: the recorded sessions as a table, to open, compare, lock, rename and delete."""

from gpudash.ui.library.opening import open_library

__all__ = ["open_library"]
