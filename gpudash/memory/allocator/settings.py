"""The settings of torch's CUDA caching allocator, and the environment variables that hold them.

`AllocatorSettings.parse` parses ``PYTORCH_CUDA_ALLOC_CONF``; `allocator_text` finds the variable that is in use.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20
SMALLEST_DIRECT = 10 * MIB
LARGE_SEGMENT_SIZE = 20 * MIB

INTERVALS = tuple(2**power for power in range(16))
"""Lower bounds in MiB of the 16 intervals with their own rounding: 1 MiB to 32 GiB, the last one open-ended."""

IGNORED_KEYS = frozenset(
    (
        "backend",
        "expandable_segments_reserve",
        "expandable_segments_reserve_by_class",
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "throw_on_cudamalloc_oom",
    )
)
"""Keys that torch accepts and that do not affect where device memory is allocated."""

PAIR = re.compile(r"(?P<key>[^,:\[\]]+):(?P<value>\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")
LONGEST_NUMBER = 12

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variables torch reads its allocator settings from; the first that is set counts."""

EXPANDABLE = "expandable_segments:True"
"""The setting that lets segments grow."""

_BETWEEN_SETTINGS = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True)
class AllocatorSettings:
    """How the allocator rounds, splits, frees and grows. The defaults are torch's.

    Attributes:
        max_split_size: bytes from which a free block is never split; ``None``: every block may be split.
        roundup_power2_divisions: parts into which each interval between powers of two is divided; sizes are rounded up
            to the next part. One number for all sizes, or one for each interval (keyed by lower bound in MiB: 1, 2, 4
            ... 32768). 0 or 1 rounds to 512 bytes.
        garbage_collection_threshold: fraction of the allowed memory above which long unused segments are released; 0:
            never. As in torch, it applies only with a `per_process_memory_fraction` below 1.
        expandable_segments: whether segments grow by mapping memory behind them.
        per_process_memory_fraction: fraction of the capacity that the allocator may reserve; 1: all of it.
        large_segment_size: bytes of a segment for requests above 1 MiB and below 10 MiB.
        max_non_split_rounding: by how many bytes a block of at least `max_split_size` may exceed the request it
            serves.
        ignored: keys that were parsed but have no effect on device memory, with their values.
        oldest_first: not a setting, but how torch's allocator chooses between free blocks of one size: from 2.13 on it
            takes the one of the older segment, before that the one at the lower address.

    Raises:
        ValueError: in one sentence, for a value that torch would reject.
    """

    max_split_size: int | None = None
    roundup_power2_divisions: int | Mapping[int, int] = 0
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    large_segment_size: int = LARGE_SEGMENT_SIZE
    max_non_split_rounding: int = LARGE_SEGMENT_SIZE
    ignored: Mapping[str, str] = field(default_factory=dict)
    oldest_first: bool = False

    def divisions(self) -> tuple[int, ...]:
        """Number of divisions for each of the 16 intervals that start at 1, 2, 4 ... 32768 MiB."""
        chosen = self.roundup_power2_divisions
        if isinstance(chosen, int):
            return (chosen,) * len(INTERVALS)
        return tuple(chosen.get(interval, 0) for interval in INTERVALS)

    def __post_init__(self) -> None:
        limit, segment = self.max_split_size, self.large_segment_size
        if segment <= SMALLEST_DIRECT:
            raise ValueError(f"large_segment_size_mb must be above 10, not {_mib(segment)}.")
        if limit is not None and limit < segment:
            raise ValueError(
                f"max_split_size_mb must be at least the size of a large segment, {_mib(segment)}, not {_mib(limit)}."
            )
        # frozen: a default that depends on another field must bypass the dataclass
        if self.max_non_split_rounding == LARGE_SEGMENT_SIZE < segment:
            # as in torch, the rounding limit grows with the segment size unless it is given
            object.__setattr__(self, "max_non_split_rounding", segment)
        if self.max_non_split_rounding < segment:
            raise ValueError(
                "max_non_split_rounding_mb must be at least the size of a large segment, "
                f"{_mib(segment)}, not {_mib(self.max_non_split_rounding)}."
            )
        for divisions in self.divisions():
            # 0 and 1 are valid: both mean rounding to 512 bytes
            if divisions < 0 or divisions & (divisions - 1):
                raise ValueError(f"roundup_power2_divisions must be powers of 2, not {divisions}.")
        if not 0 <= self.garbage_collection_threshold < 1:
            raise ValueError(
                f"garbage_collection_threshold must be above 0 and below 1, not {self.garbage_collection_threshold}."
            )
        if not 0 <= self.per_process_memory_fraction <= 1:
            raise ValueError(
                f"per_process_memory_fraction must be between 0 and 1, not {self.per_process_memory_fraction}."
            )

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Parse ``PYTORCH_CUDA_ALLOC_CONF``: ``key:value`` pairs separated by commas. A value may be a list in [].

        Raises:
            ValueError: in one sentence, for text that torch would reject.
        """
        found: dict[str, Any] = {}
        ignored: dict[str, str] = {}
        for key, value in _pairs("".join(text.split())):
            if key in IGNORED_KEYS:
                ignored[key] = value
            elif key in READERS:
                name, read = READERS[key]
                found[name] = read(key, value)
            else:
                raise ValueError(
                    f"The allocator knows no setting {key!r}; known are {', '.join(sorted(READERS))} and some others."
                )
        return cls(ignored=ignored, **found)


def variable() -> str:
    """The variable that torch reads here, or the one that every version reads if none is set."""
    return next((name for name in VARIABLES if os.environ.get(name)), VARIABLES[-1])


def allocator_text() -> str:
    """torch's CUDA allocator settings in this environment, "" if there are none."""
    return os.environ.get(variable(), "")


def assignment(setting: str) -> str:
    """The shell assignment that adds ``setting``, such as "expandable_segments:True", to those of this environment.

    It replaces another value of the same setting.
    """
    key = _key(setting)
    # torch would use the later of two values, but people read this command
    kept = [part.strip() for part in _BETWEEN_SETTINGS.split(allocator_text()) if part.strip() and _key(part) != key]
    return f"{variable()}={shlex.quote(','.join([*kept, setting]))}"


def _mib(size: int) -> str:
    return f"{size / MIB:g}"


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Key and value of each setting; commas inside brackets belong to a value."""
    place = 0
    while place < len(text):
        match = PAIR.match(text, place)
        if match is None:
            raise ValueError(
                f"The allocator's settings cannot be read at {text[place : place + 40]!r}: "
                "write key:value, with commas between settings."
            )
        yield match.group("key"), match.group("value")
        place = match.end()


def _size(key: str, value: str) -> int:
    return _count(key, value) * MIB


def _limit(key: str, value: str) -> int | None:
    # torch reads -1 as the largest number
    if value == "-1":
        return None
    return _size(key, value)


def _count(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > LONGEST_NUMBER:
        raise ValueError(f"{key} must be a whole number, not {value!r}.")
    return int(value)


def _share(key: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        raise ValueError(f"{key} must be a number, not {value!r}.") from None
    if key == "garbage_collection_threshold" and not 0 < found < 1:
        raise ValueError(f"{key} must be above 0 and below 1, not {value}.")
    return found


def _flag(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"{key} must be True or False, not {value!r}.")
    return value == "True"


def _divisions(key: str, value: str) -> dict[int, int]:
    """Divisions by interval. The first one given applies to all below it, ``>`` to all above the last one."""
    if not value.startswith("["):
        parts = _count(key, value)
        if parts == 0:
            raise ValueError(f"{key} must be a power of 2, not 0.")
        return dict.fromkeys(INTERVALS, parts)
    found = dict.fromkeys(INTERVALS, 0)
    last: int | None = None
    for item in filter(None, value[1:-1].split(",")):
        name, colon, parts_text = item.partition(":")
        if not colon:
            raise ValueError(f"{key} needs interval:divisions in its list, not {item!r}.")
        parts = _count(key, parts_text)
        if name == ">":
            # given alone it skips the first interval, in torch too
            found.update((interval, parts) for interval in INTERVALS if interval > (last or INTERVALS[0]))
            continue
        interval = _count(key, name)
        if interval == 0 or interval & (interval - 1):
            raise ValueError(f"{key} has intervals that are powers of 2 in MiB, not {name}.")
        interval = min(interval, INTERVALS[-1])
        if last is None:
            found.update((below, parts) for below in INTERVALS if below < interval)
        found[interval] = parts
        last = interval
    return found


def _key(setting: str) -> str:
    return setting.partition(":")[0].strip()


READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "max_split_size_mb": ("max_split_size", _limit),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _size),
    "large_segment_size_mb": ("large_segment_size", _size),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "per_process_memory_fraction": ("per_process_memory_fraction", _share),
    "expandable_segments": ("expandable_segments", _flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
}
"""Key → attribute and the function that parses its value."""
