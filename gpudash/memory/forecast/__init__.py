"""When a growing memory is exhausted: a range of times with a confidence, or silence."""

from __future__ import annotations

from gpudash.memory.forecast.forecaster import Forecaster
from gpudash.memory.forecast.outlook import SOON_S, Forecast, is_due

__all__ = ["SOON_S", "Forecast", "Forecaster", "is_due"]
