"""Pairs of changes as one remedy, where neither is enough alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gpudash.memory.explaining.patches import merged
from gpudash.memory.explaining.whole_need import changes_the_run, variables_of
from gpudash.telemetry.explanation import Remedy

MOST_PAIRS = 4
"""Most pairs that are tried, until one works: each needs a run of the program."""

_GAIN = re.compile(r": (up to )?[^:]* less( at this moment)?$")
"""The end of a change's text, with its own gain."""


def pairs(changes: Sequence[Remedy], read: Callable[[str], bytes]) -> Iterator[Remedy]:
    """The most promising pairs of changes, each as one untried remedy.

    Args:
        changes: changes, the largest gain first.
        read: returns the content of a file in the program's folder, or raises OSError or ValueError.
    """
    usable = list(filter(changes_the_run, changes))
    # A small sum of ranks means a large gain; of equal sums, prefer similar ranks, which concern two peaks.
    ranked = sorted(combinations(range(len(usable)), 2), key=lambda pair: (sum(pair), max(pair)))
    made = (together(usable[one], usable[other], read) for one, other in ranked)
    found = [remedy for remedy in made if remedy is not None]
    yield from found[:MOST_PAIRS]


def together(one: Remedy, other: Remedy, read: Callable[[str], bytes]) -> Remedy | None:
    """Two changes as one; ``None`` if both set the same part of a program, its command or its variables.

    Args:
        one, other: the changes.
        read: as in `pairs`.
    """
    if (one.command and other.command) or set(variables_of(one)) & set(variables_of(other)):
        return None
    patch = one.patch or other.patch
    if one.patch and other.patch:
        patch = merged(one.patch, other.patch, read)
        if not patch:
            return None
    return replace(
        one,
        change=f"{_GAIN.sub('', one.change)} and {_GAIN.sub('', other.change)}",
        allocator=one.allocator or other.allocator,
        flags=" ".join(filter(None, (one.flags, other.flags))),
        command=one.command or other.command,
        patch=patch,
        rewrites=(),
        fits=None,
        verified_by="",
        predicted_peak_bytes=None,
        changes_training=one.changes_training or other.changes_training,
    )
