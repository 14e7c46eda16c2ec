"""The process that dry-runs: ``python -m gpudash.workloads.predicting.estimate_process``.

It reads one JSON object a line from its standard input and answers with one or more on its standard output:

* first, unasked: ``{"ready": true, "torch": "2.13.0"}``, or ``{"ready": false, "problem": sentence}`` and it ends;
* asked ``{"id", "workload", "spec", "target", "elsewhere", "used_bytes", "alternatives", "timeline", "cards"}``:
  ``{"id", "estimate", "final"}``, each estimate with more than the one before, or ``{"id", "error": {"kind", "message",
  "remedy"}, "final": true}``. Where a ``timeline`` was asked for, the first answer has it beside its estimate, as of
  `gpudash.memory.predicting.memory_timeline`, and a later one that of the last of its alternatives. Where ``cards``
  were asked about, each ``{"key", "target"}``, an answer has what is known of them as ``cards``, whenever that is more
  than before.

A request is left as soon as a newer one has come, also in the midst of a dry run, and answered with ``{"id", "left":
true, "final": true}``. The process ends with its standard input, whatever it is doing.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.estimate import Estimate, Target
from gpudash.specs import ModelSpec, build, workloads
from gpudash.system.folders import log_file
from gpudash.system.garbage import without_collection
from gpudash.system.log import log_uncaught, start_log
from gpudash.system.processes import Conversation
from gpudash.workloads.predicting.card_fits import cards_question
from gpudash.workloads.predicting.device_fit import answers
from gpudash.workloads.predicting.host_speed import keep_host_speed
from gpudash.workloads.running.context import MemoryLevel
from gpudash.workloads.running.installed import missing_torch

if TYPE_CHECKING:
    from gpudash.simulator.dry_run.dry_run import DryRun


NICENESS = 10
"""How far the process steps back: a prediction goes on beside a run, which comes first."""


class SupersededError(BaseException):
    """A newer request has come. No `Exception`: what is raised by code that is followed is told as that code's."""


def main() -> int:
    """Answer until the standard input ends; returns only when nothing can be predicted here."""
    os.nice(NICENESS)
    start_log(str(log_file()))
    log_uncaught()
    conversation = Conversation()
    # Objects of torch are made in millions and stay: the collector would walk them again and again.
    with without_collection():
        try:
            version, dry = _prepare(lambda: conversation.waits)
        except Exception as error:  # torch may be missing or broken in any way
            logging.getLogger(__name__).error("No prediction can be made.", exc_info=error)
            conversation.report({"ready": False, "problem": f"No prediction can be made: {missing_torch(error)}."})
            return 1
        conversation.report({"ready": True, "torch": version})
        conversation.start()
        _answer(conversation, dry)  # the first imports what all others use
    gc.freeze()  # what is loaded stays: looking for garbage in it takes a tenth of a prediction
    while True:
        _answer(conversation, dry)


def _prepare(superseded: Callable[[], bool]) -> tuple[str, DryRun]:
    """torch's version, and what makes dry runs until ``superseded``."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.without_compiler import leave_compiler_out

    # A prediction must not take a run's cores, and without numbers more threads have nothing to do.
    torch.set_num_threads(1)
    leave_compiler_out()

    def leave_superseded(*_call: object) -> None:
        if superseded():
            raise SupersededError

    class CancellableDryRun(DryRun):
        def record_each(self, *args: Any, **options: Any) -> list[Trace]:
            leave_superseded()
            # A step of a large model takes seconds: each of its modules is a chance to leave.
            with register_module_forward_pre_hook(leave_superseded):
                return super().record_each(*args, **options)

    return torch.__version__, CancellableDryRun()


def _answer(conversation: Conversation, dry: DryRun) -> None:
    """Answer the next request, or leave it for a newer one."""
    query = conversation.next()
    try:
        for answer in _answers(query, dry):
            conversation.report(answer)
    except SupersededError:
        conversation.report({"id": query["id"], "left": True, "final": True})


def _answers(query: Mapping[str, Any], dry: DryRun) -> Iterator[dict[str, Any]]:
    from gpudash.simulator.refusal import CannotPredictError

    try:
        if "leave" in query:
            yield {"id": query["id"], "left": True, "final": True}
            return
        if "server" in query:
            yield {"id": query["id"], "servers": _servers(query), "final": True}
            return
        extras: dict[str, Any] = {}
        for answer in answers(query["id"], _estimates(query, dry, extras), extras):
            # once on a computer, and before the last answer: a command ends this process then
            if answer["final"]:
                keep_host_speed(dry)
            yield answer
    except CannotPredictError as error:
        refusal = {"kind": error.kind, "message": str(error), "remedy": error.remedy}
        yield {"id": query["id"], "error": refusal, "final": True}


def _servers(query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a server of a model takes of each card that is asked about."""
    from gpudash.workloads.predicting.servers import servers_on

    spec = ModelSpec.model_validate(query["server"])
    return servers_on(spec, cards_question(query, {}).cards, str(query["device"]))


def _estimates(query: Mapping[str, Any], dry: DryRun, extras: dict[str, Any]) -> Iterator[Estimate]:
    """The estimates that answer a query; what is sent along with the next one goes into ``extras``."""
    from gpudash.memory.predicting.memory_timeline import timeline_of
    from gpudash.simulator.refusal import CannotPredictError
    from gpudash.workloads.predicting.estimate import Question, estimate

    target = Target.from_json(query["target"])
    elsewhere = tuple(Target.from_json(other) for other in query.get("elsewhere", ()))
    try:
        spec = build(workloads()[query["workload"]], query["spec"])
    except ValueError as error:
        raise CannotPredictError("request", f"{error}.", "Change the fields named in the message.") from None
    ranks = tuple(Target.from_json(rank) for rank in query.get("ranks", ()))
    cards = cards_question(query, extras)
    question = Question(spec, target, _level(target, query.get("used_bytes")), elsewhere, ranks, cards)

    def follow(trace: Trace, target: Target, found: Estimate) -> None:
        extras["timeline"] = timeline_of(trace, target, found).to_json()

    followed = None
    if query.get("timeline"):
        followed = follow
    yield from estimate(question, dry, alternatives=bool(query.get("alternatives", True)), followed=followed)


def _level(target: Target, used: int | None) -> MemoryLevel | None:
    """How full the device is once the context that is still to be made lies in it."""
    if target.capacity_bytes is None or target.room_bytes is None or target.free_bytes is None:
        return None
    if used is None:
        taken = target.capacity_bytes - target.free_bytes
    else:
        taken = used
    return MemoryLevel(
        used_bytes=taken + target.overhead_bytes,
        free_bytes=max(0, target.room_bytes),
        total_bytes=target.capacity_bytes,
    )


if __name__ == "__main__":
    sys.exit(main())
