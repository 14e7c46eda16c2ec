"""A lesson as it is started: told in the terminal, where nobody types."""

from __future__ import annotations

import pytest

from gpudash.system.files import resource
from tests.end_to_end.conftest import Command

pytestmark = pytest.mark.long


def test_where_nobody_can_type_a_lesson_answers_by_itself(gpudash: Command) -> None:
    assert "`gpudash lesson devices < /dev/null`" in resource("guide", "lessons.md").read_text(encoding="utf-8")
    # a stage that nobody sees would wait for ever to be gone on with
    outcome = gpudash("lesson", "devices", env={"QT_QPA_PLATFORM": "offscreen"})
    assert outcome.code == 0, outcome.stderr
    assert "QT_QPA_PLATFORM is offscreen, which nobody sees, so the lesson is told in the terminal." in outcome.stderr
    said = " ".join(outcome.stdout.split())
    assert "What came: Still on the CPU." in said and "What came: Nowhere: an error." in said
    assert "PyTorch moves nothing by itself" in said and "Your guess" not in said
    assert "5 My three lines" in said and "No guess yet" in said
