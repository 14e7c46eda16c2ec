"""Which versions of torch the predictions have been measured with."""

from __future__ import annotations

import re

OLDEST_MEASURED = (2, 11)
NEWEST_MEASURED = (2, 15)
"""Predictions are held against the allocators of these versions and of those between (`tests.allocator_matrix`)."""

_MAJOR_AND_MINOR = re.compile(r"(\d+)\.(\d+)")


def unmeasured_torch(version: str) -> str:
    """What to say beside a prediction that this torch made, without a full stop; "" for one that has been measured.

    Args:
        version: as of ``torch.__version__``; "" where it is not known.
    """
    found = _MAJOR_AND_MINOR.match(version)
    if found is None:
        return ""
    measured = (int(found[1]), int(found[2]))
    if OLDEST_MEASURED <= measured <= NEWEST_MEASURED:
        return ""
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST_MEASURED, NEWEST_MEASURED))
    return f"measured with torch {oldest} to {newest}; torch {version.partition('+')[0]} may allocate differently"
