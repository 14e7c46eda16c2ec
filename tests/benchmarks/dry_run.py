"""Time of a prediction: of large models beside torch's own fake tensors, and of a small one as the fit panel asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.estimator import Estimator
from gpudash.specs import TrainingSpec
from gpudash.units import GIB, MIB

HUNDRED_LAYERS = TrainingSpec(depth=100, width=768)
EIGHTY_BILLION = TrainingSpec(depth=100, width=8192)
"""12 · depth · width² weights in the blocks."""

SMALL = TrainingSpec()
TARGET = Target("sim:0", capacity_bytes=8 * GIB, free_bytes=7 * GIB, overhead_bytes=300 * 2**20)
FULL = replace(TARGET, free_bytes=366 * MIB)
"""Too full for `SMALL`: only there are changes looked for that would let it fit."""

TIME_LIMIT_S = 120.0
POLL_S = 0.002


def measure() -> dict[str, float]:
    """Seconds from asking a warm process to its answer.

    ``hundred_over_fake`` is the whole prediction over nothing but as many steps of the same training on fake tensors.
    """
    fake = _fake_steps(HUNDRED_LAYERS)
    estimator = Estimator()
    try:
        _first(estimator, SMALL, alternatives=False)
        changed = SMALL.model_copy(update={"batch": SMALL.batch + 1})
        panel = _first(estimator, changed, FULL, alternatives=True)
        whole = panel + _seconds(lambda: _ended(estimator))
        hundred = _first(estimator, HUNDRED_LAYERS, alternatives=False)
        eighty = _first(estimator, EIGHTY_BILLION, alternatives=False)
    finally:
        estimator.close()
    return {
        "hundred_layers_s": hundred,
        "hundred_layers_fake_s": fake,
        "hundred_over_fake": hundred / fake,
        "eighty_billion_s": eighty,
        "panel_refresh_s": panel,
        "panel_whole_s": whole,
    }


def _first(estimator: Estimator, spec: TrainingSpec, where: Target = TARGET, *, alternatives: bool) -> float:
    """Seconds to the first answer, which has the verdict."""
    target = asdict(where) | {"settings": ""}
    message: dict[str, Any] = {
        "workload": spec.name,
        "spec": spec.model_dump(mode="json"),
        "target": target,
        "alternatives": alternatives,
    }

    def answered() -> None:
        estimator.ask(message, TIME_LIMIT_S)
        while (answer := estimator.newest()) is None:
            time.sleep(POLL_S)
        if answer.problem is not None:
            raise RuntimeError(answer.problem.message)

    return _seconds(answered)


def _ended(estimator: Estimator) -> None:
    answer = estimator.wait(TIME_LIMIT_S)
    estimate = None if answer is None or not answer.final or answer.problem is not None else answer.estimate
    if estimate is None or not estimate.alternatives:
        raise RuntimeError(f"no whole prediction: {answer}")


def _fake_steps(spec: TrainingSpec) -> float:
    """Seconds of the steps that a prediction follows, on torch's fake tensors alone."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gpudash.workloads.predicting.dry_run import STEPS
    from gpudash.workloads.programs.training_step import TrainingStep, build_model, optimizer_of

    outputs = 65

    def steps() -> None:
        with FakeTensorMode():
            model = build_model(spec, outputs)
            step = TrainingStep(spec, model, optimizer_of(spec, model), torch.device("cpu"))
            batch = torch.zeros(spec.batch, spec.sequence, dtype=torch.int64)
            for _ in range(STEPS):
                step([(batch, batch)])

    torch.set_num_threads(1)
    return _seconds(steps)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
