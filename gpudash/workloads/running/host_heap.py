"""Giving freed memory back to the operating system."""

from __future__ import annotations

import ctypes
import gc
import sys


def give_back() -> None:
    """Collect garbage and return the heap's free pages, where the C library can (glibc's ``malloc_trim``)."""
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
        trim(0)
