"""The process for dry runs: ``python -m gpudash.workloads.predicting.estimate_process``.

It reads one JSON object per line from its standard input and answers each with one or more on its standard output:

* first, without a request: ``{"ready": true, "torch": "2.13.0"}``, or ``{"ready": false, "problem": sentence}`` and it
ends;
* for ``{"id", "workload", "spec", "target", "elsewhere", "used_bytes", "alternatives", "timeline", "cards"}``:
  ``{"id", "estimate", "final"}``, each estimate with more than the one before, or ``{"id", "error": {"kind",
  "message", "remedy"}, "final": true}``. If ``timeline`` is requested, the first answer also has it, as in
  `gpudash.memory.predicting.memory_timeline`, and a later one has that of the last of its alternatives. If ``cards``
  are given, each ``{"key", "target"}``, answers have what is known about them as ``cards``, whenever there is more
  than before.

A newer request supersedes the current one at once, even during a dry run; the older is answered with ``{"id", "left":
true, "final": true}``. The process ends when its standard input closes, whatever it is doing.
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
    from gpudash.simulator.device.simulated_gpu import Tagger
    from gpudash.simulator.device.tracking import Tracker
    from gpudash.simulator.dry_run.dry_run import DryRun


NICENESS = 10
"""Lower priority of the process, because a prediction may run beside a run, which comes first."""


class SupersededError(BaseException):
    """A newer request has arrived. Not an `Exception`: those in followed code are reported as its own."""


def main() -> int:
    """Answer until the standard input ends; returns only if nothing can be predicted here."""
    os.nice(NICENESS)
    start_log(str(log_file()))
    log_uncaught()
    conversation = Conversation()
    # Millions of torch's objects are created and stay: the garbage collector would visit them again and again.
    with without_collection():
        try:
            version, dry = _prepare(lambda: conversation.waits)
        except Exception as error:  # torch may be missing or broken in any way
            logging.getLogger(__name__).error("No prediction can be made.", exc_info=error)
            conversation.report({"ready": False, "problem": f"No prediction can be made: {missing_torch(error)}."})
            return 1
        conversation.report({"ready": True, "torch": version})
        conversation.start()
        _answer(conversation, dry)  # the first request imports what all others use
    gc.freeze()  # loaded modules stay: collecting garbage among them takes a tenth of a prediction
    while True:
        _answer(conversation, dry)


def _prepare(superseded: Callable[[], bool]) -> tuple[str, DryRun]:
    """torch's version, and the object for dry runs, which end when ``superseded``."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    from gpudash.simulator.dry_run.dry_run import DryRun
    from gpudash.simulator.without_compiler import leave_compiler_out

    # A prediction must not take the run's cores, and without numbers more threads have nothing to do.
    torch.set_num_threads(1)
    leave_compiler_out()

    def leave_superseded(*_call: object) -> None:
        if superseded():
            raise SupersededError

    class CancellableDryRun(DryRun):
        def record_each(self, run: Callable[[Tracker], Any], *args: Any, **options: Any) -> list[Trace]:
            leave_superseded()

            def cancellable(tracker: Tracker) -> None:
                for card in self.backend.engine.cards:
                    card.tagger = checking(card.tagger)
                run(tracker)

            # A step of a large model takes seconds: check at each of its modules, and at each allocation.
            with register_module_forward_pre_hook(leave_superseded):
                return super().record_each(cancellable, *args, **options)

    def checking(tagger: Tagger | None) -> Tagger:
        def tag() -> Any:
            leave_superseded()
            return tagger and tagger()

        return tag

    return torch.__version__, CancellableDryRun()


def _answer(conversation: Conversation, dry: DryRun) -> None:
    """Answer the next request, or abandon it for a newer one."""
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
            # once per computer, and before the final answer, after which a command ends this process
            if answer["final"]:
                keep_host_speed(dry)
            yield answer
    except CannotPredictError as error:
        refusal = {"kind": error.kind, "message": str(error), "remedy": error.remedy}
        yield {"id": query["id"], "error": refusal, "final": True}


def _servers(query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a server of a model needs on each requested card."""
    from gpudash.workloads.predicting.servers import servers_on

    spec = ModelSpec.model_validate(query["server"])
    return servers_on(spec, cards_question(query, {}).cards, str(query["device"]))


def _estimates(query: Mapping[str, Any], dry: DryRun, extras: dict[str, Any]) -> Iterator[Estimate]:
    """The estimates for a query; what is sent with the next one goes into ``extras``."""
    from gpudash.memory.predicting.memory_timeline import timeline_of
    from gpudash.simulator.refusal import CannotPredictError
    from gpudash.workloads.predicting.estimate import Question, estimate

    target = Target.from_json(query["target"])
    elsewhere = tuple(map(Target.from_json, query.get("elsewhere", ())))
    try:
        spec = build(workloads()[query["workload"]], query["spec"])
    except ValueError as error:
        raise CannotPredictError("request", f"{error}.", "Change the fields named in the message.") from None
    ranks = tuple(map(Target.from_json, query.get("ranks", ())))
    cards = cards_question(query, extras)
    question = Question(spec, target, _level(target, query.get("used_bytes")), elsewhere, ranks, cards)

    def follow(trace: Trace, target: Target, found: Estimate) -> None:
        extras["timeline"] = timeline_of(trace, target, found).to_json()

    followed = None
    if query.get("timeline"):
        followed = follow
    yield from estimate(question, dry, alternatives=bool(query.get("alternatives", True)), followed=followed)


def _level(target: Target, used: int | None) -> MemoryLevel | None:
    """The device's memory usage once the context has been created."""
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
