"""Predicts a model by its config: what it needs, the largest batch and the longest sequence, and what would fit.

The user's Python follows its code.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Alternative, Estimate, ModelFacts, Target, judge
from gpudash.memory.predicting.rank_estimates import deciding, of_ranks
from gpudash.specs import Spec
from gpudash.specs.changes import SpecChange, batch_text, changes, recipe_changes
from gpudash.specs.model import ModelSpec
from gpudash.system.folders import log_file
from gpudash.system.log import VARIABLE as LOG_VARIABLE
from gpudash.workloads.predicting.card_fits import CardFits, CardsQuestion
from gpudash.workloads.predicting.device_fit import (
    FLOPS,
    SAME_PRODUCTS,
    Followed,
    Sized,
    as_alternative,
    largest,
    unchanged,
)
from gpudash.workloads.predicting.savings import promising, with_savings
from gpudash.workloads.predicting.spreading import spread_over

SEARCHED_S = 30.0
"""Processor time in seconds after which no further batch or sequence is tried: the answer for a large model should
take less than a minute, including what would fit."""

SAVINGS_S = 10.0
"""Processor time in seconds after which no further techniques of recipes are tried."""

LARGEST, LONGEST = "the largest batch", "the longest sequence"
SEVERAL_GPUS, ANOTHER_CARD = "several GPUs", "another card"
"""What is searched besides changes of the model, for `Estimate.untried`."""

MULTIPLY = {"checkpointing", "task"}
"""Fields that change the number of multiplications."""

ALSO_TRIED = {"optimizer", "offload"}
"""Fields that change only other things."""

TOKENS = 128
"""The longest sequence is rounded to a multiple of this, unless the requested length is not one."""

LARGEST_BATCH = 65536
MOST_TOKENS = 2**24

FOLLOWER = Path(__file__).parents[2] / "simulator" / "dry_run" / "own_code_process.py"

NO_ANSWER = "{python} ended without an answer{how}."
AGAIN = "Run the code there by itself, and fix what ends it."


def estimates(
    spec: ModelSpec,
    follower: CodeFollower,
    target: Target,
    elsewhere: Sequence[Target] = (),
    ranks: Sequence[Target] = (),
    *,
    alternatives: bool = True,
    followed: Followed | None = None,
    cards: CardsQuestion | None = None,
) -> Iterator[Estimate]:
    """Predict what a model needs; each estimate has more than the one before, and the last one is complete.

    Args:
        spec: the model and what to do with it.
        follower: builds and follows it.
        target: where it should fit.
        elsewhere: the other devices.
        ranks: where each rank of a training on several devices should fit, in place of ``target``.
        alternatives: whether to search for the largest batch, the longest sequence and what else would fit.
        followed: called with what was followed: before the first estimate, for the decisive one of several devices;
            and before each estimate whose last alternative is a changed run, with that run.
        cards: further cards to judge; none for a training on several devices.

    Raises:
        RefusedError: the model cannot be built or followed.
    """
    began = time.perf_counter()
    estimation = _ModelEstimation(spec, follower, target, elsewhere, ranks, followed, cards or CardsQuestion())
    for found in estimation.results(alternatives=alternatives):
        yield replace(found, seconds=time.perf_counter() - began)


class _OutOfTimeError(Exception):
    """Enough sizes have been tried."""


class _ModelEstimation:
    """A prediction in progress, with the results of its dry runs."""

    def __init__(
        self,
        spec: ModelSpec,
        follower: CodeFollower,
        target: Target,
        elsewhere: Sequence[Target],
        ranks: Sequence[Target],
        followed: Followed | None,
        cards: CardsQuestion,
    ) -> None:
        self._spec = spec
        self._report_followed = followed
        self._follower = follower
        self._ranks = tuple(ranks)
        if self._ranks:
            self._target = self._ranks[deciding(self._ranks)]
        else:
            self._target = target
        self._elsewhere = () if self._ranks else elsewhere
        self._until = self._worked_s() + SEARCHED_S
        self._known: dict[tuple[str, Architecture], FollowedCode] = {}
        self._batches: dict[int, Sized] = {}
        if self._ranks:
            cards = CardsQuestion()
        self._cards = CardFits(cards, self._target, self._trace_on, (RefusedError,))

    def results(self, *, alternatives: bool) -> Iterator[Estimate]:
        """See `estimates`."""
        spec, target = self._spec, self._target
        followed = self._followed(spec)
        work = followed.trace.counting(batch=spec.batch).work
        found = replace(self._judged(spec), assumptions=followed.assumptions, model=followed.model, work=work)
        if self._report_followed is not None:
            self._report_followed(followed.trace, target, found)
        searched: Iterable[Estimate] = (found,)
        if alternatives:
            searched = self._beyond(found, followed)
        first = self._cards.report_first()
        for grown in searched:
            found = grown
            yield found
            # A generator: exhausted after the first estimate, it yields nothing for the later ones.
            for _reported in first:  # after the first answer only
                yield found
        for _reported in self._cards.report_open():
            yield found

    def _beyond(self, found: Estimate, followed: FollowedCode) -> Iterator[Estimate]:
        """``found`` with what recipes would save, the largest sizes, and what would fit if it does not."""
        # If it does not fit, techniques of recipes are among the alternatives.
        if found.has_room or self._target.room_bytes is None:
            for grown in self._saving(found, followed):
                found = grown
                yield found
        # Without a reading of free memory there is nothing to search for.
        if self._target.room_bytes is not None:
            yield from self._fitting(found, followed)

    def _saving(self, found: Estimate, followed: FollowedCode) -> Iterator[Estimate]:
        """``found`` with what recipes would save, as far as time permits."""
        began = self._worked_s()
        coming = promising(self._spec, found)
        tried: list[Alternative] = []
        while coming and self._worked_s() <= began + SAVINGS_S:
            alternative = self._changed(followed, coming.pop(0))
            tried += [] if alternative is None else [alternative]
            yield replace(with_savings(found, tried), untried=tuple(change.label for change in coming))
        # The search for the largest sizes gets the same time as without.
        self._until += self._worked_s() - began

    def _fitting(self, found: Estimate, followed: FollowedCode) -> Iterator[Estimate]:
        """``found`` with the largest sizes, and with what would fit if it does not."""
        sequence = None
        if followed.model is not None:
            sequence = followed.model.sequence
        coming = [LARGEST, *([] if sequence is None else [LONGEST])]
        if not found.has_room:
            coming += [*(change.label for change in changes(self._spec)), SEVERAL_GPUS, ANOTHER_CARD]
        late = list(found.untried)
        yield replace(found, untried=(*late, *coming))
        for grown in self._largest_ones(followed, found, late):
            found = grown
            coming.pop(0)
            yield replace(found, untried=(*late, *coming))
        if found.has_room:
            return
        recipes = {change.label for change in recipe_changes(self._spec)}
        known: list[Alternative] = []
        for text, alternative in self._alternatives(followed, found):
            known += [] if alternative is None else [alternative]
            coming = [other for other in coming if other != text]
            found = with_savings(found, [way for way in known if way.change in recipes])
            yield replace(found, alternatives=tuple(known), untried=(*late, *coming))
        yield replace(found, alternatives=tuple(known), untried=tuple(late))

    def _largest_ones(self, followed: FollowedCode, found: Estimate, late: list[str]) -> Iterator[Estimate]:
        """``found`` with the largest batch, and then with the longest sequence if it has one; adds what was skipped
        for lack of time to ``late``."""
        model = followed.model
        # Searching would build it over and over, to find 0.
        if self._is_too_heavy(model):
            yield replace(found, largest_batch_size=0)
            if model is not None and model.sequence is not None:
                yield replace(found, largest_batch_size=0, largest_sequence=0)
            return
        try:
            batch = self._largest("batch", self._spec.batch, 1, LARGEST_BATCH)
            if batch is not None:
                found = replace(
                    found,
                    largest_batch_size=batch.size,
                    largest_global_batch=batch.size * len(self._ranks) if self._ranks else None,
                    largest_batch_capped=batch.size == LARGEST_BATCH,
                    largest_batch_releases=batch.releases,
                )
                self._cards.report_largest(self._spec.batch, self._batches, self._batch_of, LARGEST_BATCH)
        except _OutOfTimeError:
            late.append(LARGEST)
        yield found
        if model is None or model.sequence is None:
            return
        try:
            found = replace(found, largest_sequence=self._longest(model.sequence, model.longest))
        except _OutOfTimeError:
            late.append(LONGEST)
        yield found

    def _is_too_heavy(self, model: ModelFacts | None) -> bool:
        """Whether the weights alone exceed the room, whatever else is there."""
        shares = 1
        # DDP keeps all weights on each rank.
        if self._ranks and self._spec.parallel != "ddp":
            shares = len(self._ranks)
        room = shares * (self._target.room_bytes or 0)
        return model is not None and not model.host_bytes and model.weight_bytes > room

    def _judged(self, spec: ModelSpec) -> Estimate:
        def on(target: Target) -> Estimate:
            return judge(self._followed(spec, target).trace, target, spec.name)

        if self._ranks:
            return of_ranks(self._ranks, spec.parallel, on)
        return on(self._target)

    def _worked_s(self) -> float:
        return time.process_time() + self._follower.processor_s

    def _followed(self, spec: ModelSpec, target: Target | None = None) -> FollowedCode:
        if target is None or target.device == "cpu":
            target = self._target
        architecture = target.architecture
        key = spec.model_dump_json(), architecture
        if key not in self._known:
            followed = self._follower.follow({"model": spec.options}, architecture)
            model = None
            if followed.model is not None:
                model = followed.model.on_link(architecture.capability)
            self._known[key] = replace(followed, model=model)
        return self._known[key]

    def _longest(self, now: int, most: int | None) -> int | None:
        """Tokens of the longest sequence that fits."""
        unit = 1
        # In multiples of 128 tokens, as is usual for sequences, unless this one is not.
        if now % TOKENS == 0:
            unit = TOKENS
        found = self._largest("sequence", now // unit, unit, MOST_TOKENS // unit if most is None else most // unit)
        if found is None:
            return None
        return found.size * unit

    def _largest(self, name: str, size: int, unit: int, limit: int) -> Sized | None:
        def tried(count: int) -> Sized:
            spec = self._spec.model_copy(update={name: count * unit})
            # Checked before each try rather than during one: building a model of another size cannot be interrupted.
            if self._worked_s() > self._until:
                raise _OutOfTimeError
            if name == "batch":
                return self._batch_of(count)
            return Sized.of(count, self._followed(spec).trace, self._target)

        try:
            return largest(tried, size, limit, self._target)
        except RefusedError:
            return None

    def _batch_of(self, size: int) -> Sized:
        """The result for a batch of this size; it is kept for the other cards."""
        spec = self._spec.model_copy(update={"batch": size})
        found = self._batches[size] = Sized.of(size, self._followed(spec).trace, self._target)
        return found

    def _alternatives(self, followed: FollowedCode, found: Estimate) -> Iterator[tuple[str, Alternative | None]]:
        """What was tried, for people, and its alternative; ``None`` if it cannot be followed."""
        possible = [*self._smaller(followed, found), *changes(self._spec)]
        for change in possible:
            if not change.changes_training:
                yield change.label, self._changed(followed, change, self._report_followed)
        if not self._ranks:
            with suppress(RefusedError):
                for alternative in spread_over(self._spec, self._target, self._elsewhere, self._trace_of):
                    yield alternative.change, alternative
        # Listed as tried even if no GPUs were found, so that it leaves the list of what is to come.
        yield SEVERAL_GPUS, None
        for change in possible:
            if change.changes_training:
                yield change.label, self._changed(followed, change, self._report_followed)
        for alternative in unchanged(self._trace_on, self._target, found, self._elsewhere):
            yield alternative.change, alternative

    def _smaller(self, followed: FollowedCode, found: Estimate) -> Iterator[SpecChange]:
        """The largest batch and the longest sequence that fit, if they are smaller than requested."""
        learns = self._spec.task != "infer"
        batch, tokens = found.largest_batch_size, found.largest_sequence
        if batch and batch < self._spec.batch:
            yield SpecChange(batch_text(self._spec, batch), {"batch": batch}, changes_training=learns)
        if tokens and followed.model is not None and tokens < (followed.model.sequence or 0):
            text, note = f"sequences of {tokens} tokens", "longer texts are cut"
            yield SpecChange(text, {"sequence": tokens}, changes_training=learns, note=note)

    def _trace_on(self, where: Target) -> Trace:
        return self._followed(self._spec, where).trace

    def _trace_of(self, spec: Spec, where: Target) -> Trace:
        assert isinstance(spec, ModelSpec)
        return self._followed(spec, where).trace

    def _changed(
        self, before: FollowedCode, change: SpecChange, report_followed: Followed | None = None
    ) -> Alternative | None:
        """The alternative for ``change``; ``None`` if the changed model cannot be followed.

        Args:
            before: the unchanged model.
            report_followed: called with what was followed, so that its drawing is sent with the estimate whose last
                alternative this is.
        """
        try:
            spec = change.applied(self._spec)
            assert isinstance(spec, ModelSpec)
            followed = self._followed(spec)
        except (ValidationError, RefusedError):
            return None
        found, model = judge(followed.trace, self._target, spec.name), followed.model
        if report_followed is not None:
            report_followed(followed.trace, self._target, found)
        slowdown, slowdown_from = self._slowdown(before.model, spec, model, change)
        host_bytes = bus_seconds = None
        if model is not None and model.host_bytes > 0:
            host_bytes, bus_seconds = model.host_bytes, model.bus_seconds
        return as_alternative(
            change.label,
            found,
            fields=change.fields,
            changes_training=change.changes_training,
            note=change.note,
            slowdown=slowdown,
            slowdown_from=slowdown_from,
            host_bytes=host_bytes,
            bus_seconds=bus_seconds,
        )

    def _slowdown(
        self, before: ModelFacts | None, spec: ModelSpec, after: ModelFacts | None, change: SpecChange
    ) -> tuple[float | None, str]:
        """Expected time of a step relative to the unchanged run, and the basis for it.

        Unpacking, updating and transferring weights are not products, and other kernels and dtypes have other rates,
        so FLOPs predict nothing for those.
        """
        if "accumulation" in change.fields:
            return 1.0, SAME_PRODUCTS
        # FLOPs are comparable only for the same numbers on the same kernels.
        multiplies, other = set(change.fields) & MULTIPLY, set(change.fields) - MULTIPLY - ALSO_TRIED
        if not multiplies or other or spec.packed != self._spec.packed or before is None or after is None:
            return None, ""
        if before.flops:
            return (after.flops / before.flops, FLOPS)
        return (None, "")


class RefusedError(Exception):
    """The code was not followed; holds the process's error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


@dataclass(frozen=True)
class FollowedCode:
    """The result of following code.

    Attributes:
        trace: its requests to the allocator.
        assumptions: of the prediction, as in `Estimate`.
        model: facts about the model, if it was built from its config.
    """

    trace: Trace
    assumptions: tuple[str, ...]
    model: ModelFacts | None = None


class CodeFollower:
    """Follows code in another Python, in this process's group, so that it ends with this process.

    Args:
        python: path of the program.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        command = [python, str(FOLLOWER)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, LOG_VARIABLE: str(log_file())},
        )

    @property
    def processor_s(self) -> float:
        """Processor time it has used, in seconds; 0 once it has ended."""
        import psutil

        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def greeting(self) -> dict[str, Any]:
        """The message it sends once its torch is imported."""
        answer = self._read()
        # Its exit code is available once the pipe has ended.
        if answer is None:
            how = self._process.wait()
            return {"ready": False, "problem": NO_ANSWER.format(python=self._python, how=f" (exit code {how})")}
        return answer

    def follow(self, what: Mapping[str, Any], architecture: Architecture) -> FollowedCode:
        """The code's requests to the allocator of a GPU, and the assumptions behind them.

        Args:
            what: ``callable`` and ``steps``, or ``model``; see `gpudash.simulator.dry_run.own_code_process`.
            architecture: of the GPU.

        Raises:
            RefusedError: the code cannot be followed, or ended the process.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**what, "architecture": asdict(architecture)}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if answer is None:
            how = self._process.wait()
            if how == -9:
                why = " (killed, perhaps because this computer's memory was full)"
            else:
                why = f" (exit code {how})"
            raise RefusedError(
                {"kind": "crashed", "message": NO_ANSWER.format(python=self._python, how=why), "remedy": AGAIN}
            )
        if "error" in answer:
            raise RefusedError(answer["error"])
        facts = answer.get("model")
        model = None
        if facts is not None:
            model = ModelFacts(**facts)
        return FollowedCode(Trace.from_json(answer["trace"]), tuple(answer["assumptions"]), model)

    def _read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue  # not the follower's: a start-up file of that Python prints, or it is not a Python
            if isinstance(answer, dict):
                return answer
        return None
