"""What a GPU tells of itself that somebody has to look at: memory errors, and heat that slows it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpudash.telemetry.records import Sample, Warning

HOT_S = 60.0
"""How long a GPU is slowed by heat before it is told; the alert rules for Prometheus wait as long."""

DEVICE = "hardware"
"""`Warning.device` of these: no memory, whose warnings pass when it has room again."""


class HardwareWatch:
    """Watches the readings of GPUs. Belongs to the thread that takes them.

    Attributes:
        describe: a GPU's UUID → its name at the beginning of a sentence.
    """

    def __init__(self) -> None:
        self.describe: Callable[[str], str] = lambda uuid: f"GPU {uuid}"
        self._errors: dict[str, int] = {}
        self._hot_since_s: dict[str, float | None] = {}

    def observe(self, sample: Sample) -> Iterator[Warning]:
        """What a reading gives reason to say, each error and each stretch of heat once."""
        if sample.table != "gpu" or sample.device is None:
            return
        errors = sample.values.get("ecc_uncorrected_errors")
        if isinstance(errors, int) and errors > self._errors.get(sample.device, 0):
            yield self._of_errors(sample.time_s, sample.device, errors)
        if isinstance(errors, int):
            self._errors[sample.device] = errors  # fewer once the driver was loaded anew
        hot = sample.values.get("slowed_by_heat")
        if hot is not None and self._is_hot_for_long(sample.time_s, sample.device, hot=bool(hot)):
            text = f"{self.describe(sample.device)} has clocked lower for {HOT_S:.0f} s because it is too hot."
            yield Warning(time_s=sample.time_s, level="warning", device=DEVICE, text=text)

    def _of_errors(self, time_s: float, uuid: str, errors: int) -> Warning:
        counted = "1 memory error" if errors == 1 else f"{errors} memory errors"
        text = (
            f"{self.describe(uuid)} has had {counted} that ECC could not correct since its driver was loaded: what "
            "runs there may be wrong; reset it, and have it checked if it happens again."
        )
        return Warning(time_s=time_s, level="warning", device=DEVICE, text=text)

    def _is_hot_for_long(self, time_s: float, uuid: str, *, hot: bool) -> bool:
        """Whether it has been hot for `HOT_S` just now; ``None`` is kept of a stretch that was told."""
        if not hot:
            self._hot_since_s.pop(uuid, None)
            return False
        since_s = self._hot_since_s.setdefault(uuid, time_s)
        if since_s is None or time_s - since_s < HOT_S:
            return False
        self._hot_since_s[uuid] = None
        return True
