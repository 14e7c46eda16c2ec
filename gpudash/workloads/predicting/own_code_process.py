"""The process that predicts a user's code: ``python -m gpudash.workloads.predicting.own_code_process PYTHON``.

PYTHON follows the code; it needs torch but not gpudash. The result is judged here, without torch. Requests and answers
are those of `gpudash.workloads.predicting.estimate_process`, with ``{"id", "callable", "steps", "target", "elsewhere",
"alternatives", "timeline", "cards"}``, or for a model by its config ``{"id", "model", "target", "elsewhere", "ranks",
"alternatives", "timeline", "cards"}``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpudash.memory.allocator.device_memory import LARGEST_CAPACITY
from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Estimate, Target, judge
from gpudash.memory.predicting.memory_timeline import timeline_of
from gpudash.simulator.refusal import OR_ANOTHER_PYTHON
from gpudash.specs.model import ModelSpec
from gpudash.system.folders import log_file
from gpudash.system.log import log_uncaught, start_log
from gpudash.system.processes import Conversation
from gpudash.workloads.predicting.card_fits import CardFits, CardsQuestion, cards_question
from gpudash.workloads.predicting.device_fit import Followed, answers, unchanged
from gpudash.workloads.predicting.model_estimate import CodeFollower, FollowedCode, RefusedError, estimates

NAME_ANOTHER = f"Install torch 2.9 or newer there: pip install torch{OR_ANOTHER_PYTHON}"


@dataclass(frozen=True)
class OwnCode:
    """A user's code to follow.

    Attributes:
        name: ``package.module:function``.
        steps: how many to follow.
        as_cuda: whether it calls the device cuda.
    """

    name: str
    steps: int
    as_cuda: bool = False


def estimate(
    code: OwnCode,
    follower: CodeFollower,
    target: Target,
    elsewhere: Sequence[Target] = (),
    *,
    alternatives: bool = True,
    followed: Followed | None = None,
    cards: CardsQuestion | None = None,
) -> Estimate:
    """Predict what any code needs that builds a model and runs its steps.

    Args:
        code: the code to follow.
        follower: follows it.
        target: where it should fit.
        elsewhere: the other devices.
        alternatives: whether to search for what would make the code fit unchanged.
        followed: called with what was followed, and its estimate.
        cards: further cards to judge.

    Raises:
        RefusedError: as for `CodeFollower.follow`.
    """
    began = time.perf_counter()
    known: dict[tuple[Architecture, str], FollowedCode] = {}

    def followed_on(where: Target) -> FollowedCode:
        # The CPU has no architecture to follow; the same trace is used for its requests.
        if where.device == "cpu":
            where = target
        what: dict[str, Any] = {"callable": code.name, "steps": code.steps}
        if code.as_cuda:
            # Code that reads the card's size or name sees those of the requested card, so its trace applies to that
            # card only.
            what["as_cuda"] = {"product": where.product, "total_bytes": where.capacity_bytes or LARGEST_CAPACITY}
        key = where.architecture, str(what)
        if key not in known:
            known[key] = follower.follow(what, where.architecture)
        return known[key]

    def trace_on(where: Target) -> Trace:
        return followed_on(where).trace

    found = judge(trace_on(target), target, code.name)
    # The assumptions reported are those for the requested device.
    found = replace(found, assumptions=followed_on(target).assumptions, work=trace_on(target).work)
    if followed is not None:
        followed(trace_on(target), target, found)
    if alternatives and target.room_bytes is not None and not found.has_room:
        found = replace(found, alternatives=tuple(unchanged(trace_on, target, found, elsewhere)))
    if cards is not None:
        fits = CardFits(cards, target, trace_on, (RefusedError,))
        # A single answer has everything: the last report is the most complete.
        for _reported in (*fits.report_first(), *fits.report_open()):
            pass
    return replace(found, seconds=time.perf_counter() - began)


def main(python: str) -> int:
    """Answer until the standard input ends; returns only if ``python`` cannot follow anything."""
    start_log(str(log_file()))
    log_uncaught()
    conversation = Conversation()
    try:
        follower = CodeFollower(python)
    except OSError as error:
        problem = f"{python} cannot be started ({error.strerror})."
        conversation.report({"ready": False, "problem": problem, "remedy": NAME_ANOTHER})
        return 1
    greeting = follower.greeting()
    conversation.report({**greeting, "remedy": NAME_ANOTHER})
    if not greeting["ready"]:
        return 1
    conversation.start()
    while True:
        query = conversation.next()
        for answer in _answers(query, follower):
            conversation.report(answer)
            # A newer request is noticed between two answers; the follower is not interrupted.
            if conversation.waits:
                conversation.report({"id": query["id"], "left": True, "final": True})
                break


def _answers(query: Mapping[str, Any], follower: CodeFollower) -> Iterator[dict[str, Any]]:
    if "leave" in query:
        yield {"id": query["id"], "left": True, "final": True}
        return
    try:
        extras: dict[str, Any] = {}
        yield from answers(query["id"], _estimates(query, follower, extras), extras)
    except RefusedError as refused:
        yield {"id": query["id"], "error": refused.error, "final": True}


def _estimates(query: Mapping[str, Any], follower: CodeFollower, extras: dict[str, Any]) -> Iterator[Estimate]:
    """The estimates for a query; what is sent with the next one goes into ``extras``."""

    def keep_timeline(trace: Trace, target: Target, found: Estimate) -> None:
        extras["timeline"] = timeline_of(trace, target, found).to_json()

    followed = None
    if query.get("timeline"):
        followed = keep_timeline
    target = Target.from_json(query["target"])
    elsewhere = list(map(Target.from_json, query.get("elsewhere", ())))
    alternatives = bool(query.get("alternatives", True))
    cards = cards_question(query, extras)
    if "model" in query:
        spec = ModelSpec.model_validate(query["model"])
        ranks = list(map(Target.from_json, query.get("ranks", ())))
        yield from estimates(
            spec, follower, target, elsewhere, ranks, alternatives=alternatives, followed=followed, cards=cards
        )
        return
    code = OwnCode(str(query["callable"]), int(query.get("steps", 3)), bool(query.get("as_cuda", False)))
    yield estimate(code, follower, target, elsewhere, alternatives=alternatives, followed=followed, cards=cards)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
