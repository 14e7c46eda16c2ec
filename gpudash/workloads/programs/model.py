"""Runs steps of a user's model, built from its config with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpudash.simulator.models.steps import RequestedModel
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs import ModelSpec
from gpudash.workloads.running.context import Context
from gpudash.workloads.running.run_errors import WorkloadError


def run(spec: ModelSpec, context: Context) -> Mapping[str, Any]:
    """Run ``spec.steps`` steps on ``context.device``.

    Returns:
        ``architecture``, ``parameters``, ``weight_bytes``, ``dtype`` and ``sequence`` (``None`` if it has none).

    Raises:
        WorkloadError: in one sentence, if the model cannot be built.
    """
    if spec.threads:
        context.use_threads(spec.threads)
    torch.manual_seed(spec.seed)
    try:
        planned = RequestedModel({**spec.options, "offload": "none"})
        planned.build(torch.device("meta"))
        context.about_to_allocate(planned.facts["weight_bytes"])
        model = RequestedModel(spec.options, draws=True)
        with context.stage("build"):
            step = model.build(context.device)
    except CannotPredictError as error:
        raise WorkloadError(error.kind, str(error), error.remedy) from error
    context.begin_steps()
    for number in range(1, spec.steps + 1):
        context.check_cancelled()
        with context.stage("step"):
            loss = step()
        loss_value = None
        if spec.task != "infer" and isinstance(loss, torch.Tensor):
            loss_value = float(loss)
        context.step(number, spec.steps, loss=loss_value)
    facts = model.facts
    return {name: facts[name] for name in ("architecture", "parameters", "weight_bytes", "dtype", "sequence")}
