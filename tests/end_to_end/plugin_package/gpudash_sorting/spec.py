"""What sorting may be asked. It is read by every command, and so imports no torch."""

from __future__ import annotations

from typing import ClassVar

from gpudash.specs import Spec, field


class SortingSpec(Spec):
    """Sort random numbers, again and again."""

    name = "sorting"
    title = "Sorting"
    summary = "Sorts random numbers and reports how many a second."
    run = "gpudash_sorting.run:run"
    steps_field = "repeat"
    presets: ClassVar[dict[str, dict[str, int]]] = {"Quick": {}, "Large": {"numbers": 10_000_000}}

    numbers: int = field(100_000, "Numbers sorted at once", ge=1, le=10**9)
    repeat: int = field(10, "How often", ge=1, le=1_000_000)
