"""Moments in local time, in words; the months are not the locale's, so that the words of the window are of one
language."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def moment_text(seconds: float) -> str:
    """A moment, seconds since the epoch: "today 14:05", "yesterday 18:02", "3 Mar 09:30", "3 Mar 2025"."""
    moment, now = _local(seconds), datetime.now().astimezone()
    clock = f"{moment:%H:%M}"
    for text, day in (("today", now), ("yesterday", now - timedelta(days=1))):
        if moment.date() == day.date():
            return f"{text} {clock}"
    if moment.year == now.year:
        return f"{_date(moment)} {clock}"
    return f"{_date(moment)} {moment.year}"


def distinct_moments(moments: Sequence[float]) -> list[str] | None:
    """Each of several moments, as short as they can be told from one another; ``None`` where two are the same."""
    local = [_local(seconds) for seconds in moments]
    dates = [""] * len(local)
    if len({moment.date() for moment in local}) > 1:
        dates = [f"{_date(moment)} " for moment in local]
    if len({moment.year for moment in local}) > 1:
        dates = [f"{_date(moment)} {moment.year} " for moment in local]
    for form in ("%H:%M", "%H:%M:%S"):
        texts = [f"{date}{moment.strftime(form)}" for date, moment in zip(dates, local, strict=True)]
        if len(set(texts)) == len(texts):
            return texts
    return None


def _date(moment: datetime) -> str:
    return f"{moment.day} {_MONTHS[moment.month - 1]}"


def _local(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()
