"""``torch.compile`` on the simulated GPU."""

from __future__ import annotations

import pytest

from tests.programs import told_by

pytestmark = pytest.mark.process


def test_compiled_code_trains_as_it_does_uncompiled_and_says_that_nothing_was_compiled() -> None:
    told = told_by("unit.simulator.compiled_training")
    plain = told["losses"].pop("None")
    assert plain[0] > plain[-1] > 0
    assert told["losses"] == dict.fromkeys(("inductor", "eager", "aot_eager"), plain)
    assert "torch.compile compiles nothing for sim: the code runs as it is." in told["said"]
    assert told["traced"] == 3  # the network by each compiler, and nothing of the simulator's own
