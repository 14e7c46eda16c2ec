"""The readout's rows for a predicted run at its peak, beside the values with a change applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpudash.drawing.ghost import Ghost
from gpudash.session.predicting.ghosts import OTHERS
from gpudash.telemetry.plots import CurveSpec, PlotSpec
from gpudash.ui.plots.reading import Group, Row
from gpudash.units import GIB, MIB, SizeScale

SAME = "="


def peak_group(spec: PlotSpec, ghost: Ghost, then: Ghost | None, curves: Sequence[CurveSpec]) -> Group:
    """The rows of a ghost at its peak, all in one unit, which the title names. The spare memory comes last.

    Args:
        spec: the plot's spec.
        ghost: the prediction.
        then: the prediction with a change, at its own peak; ``None`` for no change.
        curves: the ribbons to list, from the top down.
    """
    unit = MIB
    name = "MiB"
    digits = 1
    if ghost.highest >= GIB:
        unit = GIB
        name = "GiB"
        digits = 2

    def figure(size: float | None) -> str:
        least = 10.0**-digits
        # Less than half of the last digit would show as 0.00.
        if size and abs(size) < least * unit / 2:
            return f"< {least:g}"
        return f"{(size or 0.0) / unit:.{digits}f}"

    def row(curve: CurveSpec, now: float | None, later: float | None, kind: str = "") -> Row:
        text = figure(now)
        if then is None:
            return Row(curve, now, None, text, "", kind)
        changed = figure(later)
        # Shown as unchanged if the text is the same, whatever the bytes are.
        return Row(curve, now, None, text, SAME if changed == text else changed, kind)

    later_parts = {} if then is None else then.parts
    rows = [row(curve, ghost.parts.get(curve.name), later_parts.get(curve.name)) for curve in curves]
    table = "host"
    device: str | None = ""
    if spec.curves:
        table, _, device = spec.curves[0].key
    total = CurveSpec((table, "predicted in all", device), "all", "bytes", "difference")
    rows.append(row(total, ghost.highest, 0.0 if then is None else then.highest, "sum"))
    if ghost.limit is not None:
        spare = replace(total, name="spare")
        later = "" if then is None else _spare_text(then, ghost.limit, name)
        rows.append(Row(spare, ghost.limit - ghost.highest, None, _spare_text(ghost, ghost.limit, name), later, "rest"))
    return replace(spec, title=f"AT THE PEAK, {name}"), rows


def _spare_text(ghost: Ghost, limit: float, unit_name: str) -> str:
    """What is left of the limit at the peak, as in the verdict: the difference between the two figures it shows.

    Args:
        unit_name: the unit in the title; another unit is appended to the figure.
    """
    # The verdict compares need and free, without what others hold. Round in the same way, so that the figures agree.
    in_use = ghost.parts.get(OTHERS, 0.0)
    need = round(ghost.highest - in_use)
    free = round(limit - in_use)
    text = SizeScale.of(need, free).apart(need, free).removesuffix(f" {unit_name}")
    if need > free:
        return f"−{text}"
    return text
