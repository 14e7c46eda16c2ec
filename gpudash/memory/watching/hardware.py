"""A GPU's own problems: errors, and heat or a lack of power that slow it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpudash.devices.health import HEAT, POWER_BRAKE, xid
from gpudash.telemetry.records import Level, Sample, Value, Warning

LASTING_S = 60.0
"""How long a GPU must be slowed down to be reported; the alert rules for Prometheus wait as long."""

AGAIN_S = 600.0
"""Interval after which the same XID error of a GPU is reported again: a failing program may cause hundreds."""

DEVICE = "hardware"
"""`Warning.device` of hardware warnings, which do not pass when memory becomes free."""

_SLOWED = {"heat": "it is too hot", "brake": "its power supply asks for it"}
"""Reasons for lower clocks, in words."""


class HardwareWatch:
    """Checks GPUs' readings. Belongs to the thread that receives them.

    Args:
        describe: returns a GPU's name for the beginning of a sentence, by its UUID.
    """

    def __init__(self, describe: Callable[[str], str]) -> None:
        self._describe = describe
        self._errors: dict[str, int] = {}
        self._xids: dict[str, int] = {}
        self._xid_counts: dict[str, int] = {}
        self._newest_s: dict[str, float] = {}
        self._xids_reported_s: dict[tuple[str, int], float] = {}
        self._links: dict[str, int] = {}
        self._slowed_since_s: dict[tuple[str, str], float | None] = {}

    def observe(self, sample: Sample) -> list[Warning]:
        """The warnings that follow from a reading: each error, and each period of slowdown, once."""
        if sample.table != "gpu" or sample.device is None:
            return []
        self._newest_s[sample.device] = sample.time_s
        return list(self._news(sample, sample.device))

    def present(self, uuid: str) -> Iterator[Warning]:
        """Present problems of a GPU: errors since its driver was loaded, except those caused by programs, and a
        lasting slowdown."""
        time_s = self._newest_s.get(uuid, 0.0)
        code, errors = self._xids.get(uuid, 0), self._errors.get(uuid, 0)
        if code and xid(code).level != "program":
            yield self._of_xid(time_s, uuid, code)
        if errors:
            yield self._of_errors(time_s, uuid, errors)
        for what, why in _SLOWED.items():
            if self._slowed_since_s.get((uuid, what), time_s) is None:
                yield self._slowed(time_s, uuid, why)

    def _news(self, sample: Sample, uuid: str) -> Iterator[Warning]:
        values = sample.values
        errors = values.get("ecc_uncorrected_errors")
        if isinstance(errors, int):
            if errors > self._errors.get(uuid, 0):
                yield self._of_errors(sample.time_s, uuid, errors)
            self._errors[uuid] = errors  # fewer after the driver was loaded again
        yield from self._news_of_xids(sample.time_s, uuid, values.get("last_xid"), values.get("xid_errors"))
        links = values.get("nvlink_links")
        if isinstance(links, int):
            before = self._links.get(uuid, 0)
            if links < before:
                text = (
                    f"{links} of the {before} NVLinks that it had are left; what uses several GPUs is slower, or ends."
                )
                yield self._warning(sample.time_s, uuid, f": {text}")
            self._links[uuid] = links
        hot, reasons = values.get("slowed_by_heat"), values.get("clocks_event_reasons")
        slowed = {}
        if isinstance(reasons, int):
            slowed = {"heat": bool(reasons & HEAT), "brake": bool(reasons & POWER_BRAKE)}
        if hot is not None:
            slowed["heat"] = bool(hot)
        for what, now in slowed.items():
            if self._lasts(sample.time_s, uuid, what, slowed=now):
                yield self._slowed(sample.time_s, uuid, _SLOWED[what])

    def _news_of_xids(self, time_s: float, uuid: str, code: Value, count: Value) -> Iterator[Warning]:
        if not isinstance(code, int):
            return
        self._xids[uuid] = code
        if isinstance(count, int):
            if count > self._xid_counts.get(uuid, 0) and self._is_due(time_s, uuid, code):
                yield self._of_xid(time_s, uuid, code)
            self._xid_counts[uuid] = count

    def _of_errors(self, time_s: float, uuid: str, errors: int) -> Warning:
        if errors == 1:
            counted = "1 memory error"
        else:
            counted = f"{errors} memory errors"
        return self._warning(
            time_s,
            uuid,
            f" has had {counted} that ECC could not correct since its driver was loaded: what "
            "runs there may be wrong; reset it, and have it checked if it happens again.",
        )

    def _is_due(self, time_s: float, uuid: str, code: int) -> bool:
        reported_s = self._xids_reported_s.get((uuid, code))
        if reported_s is not None and time_s - reported_s < AGAIN_S:
            return False
        self._xids_reported_s[uuid, code] = time_s
        return True

    def _of_xid(self, time_s: float, uuid: str, code: int) -> Warning:
        meaning = xid(code)
        level: Level = "warning"
        if meaning.level == "critical":
            level = "critical"
        text = f" reported XID error {code}: {meaning.label}; {meaning.advice}."
        return self._warning(time_s, uuid, text, level)

    def _slowed(self, time_s: float, uuid: str, why: str) -> Warning:
        return self._warning(time_s, uuid, f" has clocked lower for {LASTING_S:.0f} s because {why}.")

    def _warning(self, time_s: float, uuid: str, text: str, level: Level = "warning") -> Warning:
        return Warning(time_s=time_s, level=level, device=DEVICE, text=f"{self._describe(uuid)}{text}")

    def _lasts(self, time_s: float, uuid: str, why: str, *, slowed: bool) -> bool:
        """Whether it has now been slowed for `LASTING_S`; a reported period is stored as ``None``."""
        if not slowed:
            self._slowed_since_s.pop((uuid, why), None)
            return False
        since_s = self._slowed_since_s.setdefault((uuid, why), time_s)
        if since_s is None or time_s - since_s < LASTING_S:
            return False
        self._slowed_since_s[uuid, why] = None
        return True
