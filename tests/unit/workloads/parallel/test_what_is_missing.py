"""What a torch has to have for ranks on devices of a kind."""

from __future__ import annotations

import pytest
from torch import distributed

from gpudash.workloads.programs.parallel.launch_process import NO_SIMULATED, what_is_missing


def test_a_torch_that_hands_no_collectives_to_python_has_no_ranks_on_simulated_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert what_is_missing("sim:0") is None
    monkeypatch.delattr(distributed.Work, "unbox")
    assert (what_is_missing("sim:0"), what_is_missing("cpu")) == (NO_SIMULATED, None)
