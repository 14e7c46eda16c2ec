"""The run that ran out of memory, changed so that it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpudash.memory.explanation import Remedy, explanation_from_json
from gpudash.specs import Spec, workloads
from gpudash.specs.memory_cap import MemoryCap

CAP_FLAG = "--memory-cap "


def mended(run: Mapping[str, Any], cap: MemoryCap | None) -> tuple[Spec, MemoryCap | None] | None:
    """What to run in place of ``run``, and the cap it may have; ``None`` where no change that can be made here fits.

    Args:
        run: as `RunView.summary` writes it.
        cap: what the run was allowed.
    """
    explanation = (run["error"] or {}).get("explanation")
    kind = workloads().get(run["workload"])
    if explanation is None or kind is None:
        return None
    remedies = explanation_from_json(explanation).remedies
    remedy = first_remedy(remedies)
    if remedy is not None:
        return kind.model_validate({**run["spec"], **remedy.fields}), cap
    raised = next((found for found in remedies if found.fits and found.flags.startswith(CAP_FLAG)), None)
    if raised is None:
        return None
    return kind.model_validate(run["spec"]), MemoryCap.parse(raised.flags.removeprefix(CAP_FLAG))


def first_remedy(remedies: Sequence[Remedy]) -> Remedy | None:
    """The first that fits, changes fields of the run alone, and trains as before; else the first that trains not so."""
    usable = [remedy for remedy in remedies if remedy.fits and remedy.fields and not remedy.device]
    return next((remedy for remedy in usable if not remedy.changes_training), usable[0] if usable else None)
