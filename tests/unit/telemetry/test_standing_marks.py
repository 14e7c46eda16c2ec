"""Marks that were taken back stand no more, until they are made again."""

from __future__ import annotations

import pytest

from gpudash.telemetry.recording.marks import standing_marks
from gpudash.telemetry.records import REMOVED, Marker

MADE = Marker(time_s=1.0, label="a")
REMOVAL = Marker(time_s=1.0, label="a", category=REMOVED)
OTHER = Marker(time_s=2.0, label="a")
RUN = Marker(time_s=1.0, label="a", category="run")


@pytest.mark.parametrize(
    ("made", "stand"),
    [
        ([MADE, OTHER], [MADE, OTHER]),
        ([MADE, OTHER, REMOVAL], [OTHER]),
        ([MADE, REMOVAL, MADE], [MADE]),
        ([MADE, REMOVAL, MADE, REMOVAL], []),
        ([MADE, MADE, REMOVAL], [MADE]),
        ([RUN, REMOVAL], [RUN]),
        ([REMOVAL, MADE], [MADE]),
    ],
)
def test_what_stands_depends_on_the_order_in_which_marks_were_made(made: list[Marker], stand: list[Marker]) -> None:
    assert standing_marks(made) == stand
