"""Predicts what a run needs, with dry runs of it and of possible changes.

What could make it fit: another spec, other segments, another device, a larger card, or several GPUs, either those
available or as many of its size as necessary. All of this must run in a process that computes nothing else, see
`gpudash.simulator.dry_run.dry_run`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import (
    Alternative,
    Estimate,
    Target,
    judge,
    needed_room,
    passage,
)
from gpudash.memory.predicting.rank_estimates import deciding, of_halves, of_ranks
from gpudash.simulator.dry_run.dry_run import DryRun, LeftTheDeviceError
from gpudash.simulator.dry_run.ranks import NoRanksError
from gpudash.simulator.dry_run.refusals import explaining_errors
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs import PressureSpec, Spec, TrainingSpec
from gpudash.specs.changes import (
    UNBOUNDED,
    SpecChange,
    batch_fields,
    batch_text,
    capped,
    changes,
    largest_size,
    size_field,
)
from gpudash.speed.work import StepWork
from gpudash.units import MIB
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
from gpudash.workloads.predicting.dry_run import flops_of, trace_of, traces_of
from gpudash.workloads.predicting.spreading import spread_over
from gpudash.workloads.running.context import MemoryLevel

CAPS = (0.8, 0.6, 0.4, 0.2)
"""Fractions of the free memory at which a run that would fill it may end instead."""

SMALLEST_CAP = MIB


@dataclass(frozen=True)
class Question:
    """What is to be predicted.

    Attributes:
        spec: the run.
        target: where it should run.
        level: the device's memory usage; a workload may choose its size by it.
        elsewhere: the other devices.
        ranks: where each rank of a run on several devices, or each half of a model that is split, should fit, in place
            of ``target``.
        cards: further cards to judge; none for a run on several devices.
    """

    spec: Spec
    target: Target
    level: MemoryLevel | None = None
    elsewhere: Sequence[Target] = ()
    ranks: Sequence[Target] = ()
    cards: CardsQuestion = field(default_factory=CardsQuestion)


def estimate(
    question: Question, dry: DryRun, *, alternatives: bool = True, followed: Followed | None = None
) -> Iterator[Estimate]:
    """Predict a run, quick results first: each has more than the one before, and the last one is complete.

    Args:
        dry: of this process.
        alternatives: whether to search for the largest batch and for what else would fit.
        followed: called before the first result, for the decisive one of several devices, and before each result with
            another alternative that changes the spec. Not for a model that is split.

    Raises:
        CannotPredictError: the workload cannot be followed without numbers, or not on this device.
    """
    began = time.perf_counter()
    for found in _Estimation(question, dry, followed).results(alternatives=alternatives):
        yield replace(found, seconds=time.perf_counter() - began)


class _Estimation:
    """A prediction in progress, with the results of its dry runs."""

    def __init__(self, question: Question, dry: DryRun, followed: Followed | None = None) -> None:
        self._spec = question.spec
        self._followed = followed
        self._ranks = tuple(question.ranks)
        if self._ranks:
            self._target = self._ranks[deciding(self._ranks)]
        else:
            self._target = question.target
        self._elsewhere = () if self._ranks else question.elsewhere
        self._level = question.level
        self._dry = dry
        self._split = isinstance(self._spec, TrainingSpec) and self._spec.is_split
        # Keyed by the whole spec: several alternatives may lead to the same one.
        self._traces: dict[tuple[str, tuple[Architecture, ...]], list[Trace]] = {}
        self._sizes: dict[int, Sized] = {}
        cards = question.cards
        # a run that fills free memory needs a different amount on every card
        if self._ranks or isinstance(self._spec, PressureSpec):
            cards = CardsQuestion()
        self._cards = CardFits(cards, self._target, self._trace_on, (CannotPredictError,))

    def results(self, *, alternatives: bool) -> Iterator[Estimate]:
        """See `estimate`."""
        spec, target = self._spec, self._target
        problems = spec.problems(target.device)
        if problems:
            raise CannotPredictError(
                "request", f"{'; '.join(problems)}.", "Choose another device or change these fields."
            )
        if isinstance(spec, PressureSpec) and spec.until == "oom":
            yield from self._until_full(spec, alternatives=alternatives)
            return
        found = replace(self._judged(spec), work=self._work())
        # Before the first estimate is yielded, so that its timeline is sent with it.
        if self._followed is not None and not self._split:
            self._followed(self._trace(spec), target, found)
        yield found
        for _reported in self._cards.report_first():
            yield found
        undecided = self._cards.report_open()
        for grown in self._beyond(found, alternatives=alternatives and target.room_bytes is not None):
            found = grown
            yield found
            # A generator: cards are decided after the largest batch, and not again while remedies are tried.
            for _reported in undecided:
                yield found
        # the largest batches of other cards come last: nothing about the requested one waits for them
        name = size_field(self._spec)
        if name is not None and self._sizes and self._cards.requested:
            tried = functools.partial(self._sized, name)
            self._cards.report_largest(self._batch(name), self._sizes, tried, self._limit)
            yield found
        for _reported in undecided:
            yield found

    def _work(self) -> StepWork | None:
        """What one step does, from the run that was followed to judge it."""
        if self._split:
            return self._halves(self._spec)[0][0].work
        return self._trace(self._spec).work

    def _beyond(self, found: Estimate, *, alternatives: bool) -> Iterator[Estimate]:
        """``found`` with the largest batch, and with what would fit if it does not."""
        if not alternatives:
            return
        largest = self._largest()
        if largest is not None:
            together = None
            if self._ranks and not self._split:
                together = largest.size * len(self._ranks)
            found = replace(
                found,
                largest_batch_size=largest.size,
                largest_global_batch=together,
                largest_batch_capped=largest.size == self._limit,
                largest_batch_releases=largest.releases,
            )
        yield found
        if found.has_room:
            return
        known: list[Alternative] = []
        for alternative in self._alternatives(found):
            known.append(alternative)
            yield replace(found, alternatives=tuple(known))

    def _judged(self, spec: Spec) -> Estimate:
        if self._split:
            return of_halves([judge(trace, target, spec.name) for trace, target in self._halves(spec)])
        if not self._ranks or not isinstance(spec, TrainingSpec):
            return judge(self._trace(spec), self._target, spec.name)
        # Judged by rank: each has its own free memory, and all request the same.
        return of_ranks(self._ranks, spec.parallel, lambda target: judge(self._trace(spec, target), target, spec.name))

    def _halves(self, spec: Spec) -> list[tuple[Trace, Target]]:
        """The requests of a split model on each device, and where they should fit."""
        designs = tuple(target.architecture for target in self._ranks)
        traces = self._known(spec, designs, lambda: traces_of(spec, self._dry, self._level, architectures=designs))
        return list(zip(traces, self._ranks, strict=True))

    def _until_full(self, spec: PressureSpec, *, alternatives: bool) -> Iterator[Estimate]:
        """The estimate of a run that fills the memory on purpose, and so takes all of it."""
        room = self._target.room_bytes
        if room is None:
            raise CannotPredictError(
                "request", "How much memory is free is not known, and the run fills all of it.", "Name a --cap."
            )
        try:
            architecture = self._target.architecture
            trace = trace_of(spec, self._dry, self._level, capacity=max(1, room), architecture=architecture)
        except LeftTheDeviceError:
            # Not even the first request fits, and the trace that ended with it is empty.
            trace = Trace()  # not even the first request is served
        found = replace(judge(trace, self._target, spec.name), fits=False, spare_bytes=None)
        if self._followed is not None and trace.events:
            self._followed(trace, self._target, found)
        yield found
        yield replace(found, alternatives=self._ends(spec, room) if alternatives else ())

    def _ends(self, spec: PressureSpec, room: int) -> tuple[Alternative, ...]:
        """The highest of some limits with which a run that fills the memory would end in time."""
        for share in CAPS:
            cap = int(share * room) // MIB * MIB
            if cap < SMALLEST_CAP:
                break
            for found in self._changed(capped(cap), followed=None):
                if found.fits:
                    return (found,)
        return ()

    def _trace(self, spec: Spec, target: Target | None = None) -> Trace:
        """A run's requests on a device, by default the requested one."""
        if target is None or target.device == "cpu":
            target = self._target
        architecture = target.architecture
        return self._known(
            spec, (architecture,), lambda: [trace_of(spec, self._dry, self._level, architecture=architecture)]
        )[0]

    def _trace_on(self, target: Target) -> Trace:
        """The run's requests on another card.

        Raises:
            CannotPredictError: also if it cannot run there.
        """
        problems = self._spec.problems(target.device)
        if problems:
            raise CannotPredictError("request", f"{'; '.join(problems)}.", "Choose another device.")
        return self._trace(self._spec, target)

    def _known(
        self, spec: Spec, architectures: tuple[Architecture, ...], follow: Callable[[], list[Trace]]
    ) -> list[Trace]:
        """The result of ``follow`` for a run on these GPUs, computed once."""
        key = spec.model_dump_json(), architectures
        if key not in self._traces:
            self._traces[key] = _recorded(follow)
        return self._traces[key]

    def _largest(self) -> Sized | None:
        """The largest batch with which the otherwise unchanged run fits; ``None`` if there is none."""
        name = size_field(self._spec)
        if name is None:
            return None
        batch = self._batch(name)
        tried = functools.partial(self._sized_halves if self._split else self._sized, name)
        return largest(tried, batch, self._limit, self._target)

    @property
    def _limit(self) -> int:
        """The largest size that may be asked for."""
        name = size_field(self._spec)
        if name is None:
            return UNBOUNDED
        return largest_size(self._spec, name)

    def _sized(self, name: str, size: int) -> Sized:
        whole = {}
        # Each rank's batch is what varies: a global batch would override it.
        if self._ranks:
            whole = {"global_batch": 0}
        found = Sized.of(size, self._trace(self._spec.model_copy(update={name: size, **whole})), self._target)
        self._sizes[size] = found
        return found

    def _sized_halves(self, name: str, size: int) -> Sized:
        """Like `_sized`, for the half that lacks most room, as if the first device had that little."""
        halves = self._halves(self._spec.model_copy(update={name: size}))
        passages = [passage(trace, target) for trace, target in halves]
        lacks = [
            needed_room(trace, target, found) - (target.room_bytes or 0)
            for (trace, target), found in zip(halves, passages, strict=True)
        ]
        fits, releases = all(found.fits is True for found in passages), any(found.released for found in passages)
        return Sized(size, (self._target.room_bytes or 0) + max(lacks), fits=fits, releases=releases)

    def _batch(self, name: str) -> int:
        """The size of each forward pass on each rank."""
        if isinstance(self._spec, TrainingSpec):
            return self._spec.rank_batch
        return int(getattr(self._spec, name))

    def _alternatives(self, found: Estimate) -> Iterator[Alternative]:
        batch, name = found.largest_batch_size, size_field(self._spec)
        # The first of the alternatives: only the batch changes, and it is known to fit.
        if name is not None and batch and batch < self._batch(name):
            assert isinstance(self._spec, TrainingSpec)  # the only spec with a size to search for
            text, fields = batch_text(self._spec, batch), batch_fields(self._spec, batch)
            yield from self._changed(SpecChange(text, fields, changes_training=True), followed=self._followed)
        # Devices that do not support this run are no alternative.
        elsewhere = [other for other in self._elsewhere if not self._spec.problems(other.device)]
        found_changes = changes(self._spec)
        # In order of their effect on the result: changes that keep it, more GPUs, changes that do not.
        yield from self._tried(change for change in found_changes if not change.changes_training)
        if found.fits is not True and not self._ranks:
            with suppress(CannotPredictError):
                yield from spread_over(self._spec, self._target, elsewhere, self._trace)
        yield from self._tried(change for change in found_changes if change.changes_training)
        if not self._split:
            yield from unchanged(functools.partial(self._trace, self._spec), self._target, found, elsewhere)

    def _tried(self, wanted: Iterable[SpecChange]) -> Iterator[Alternative]:
        shared = False
        for change in wanted:
            # Parts are tried from the largest: once one fits, smaller ones are pointless.
            if shared and "accumulation" in change.fields:
                continue  # a larger part that fits has been found
            for alternative in self._changed(change, followed=self._followed):
                shared = shared or ("accumulation" in change.fields and alternative.fits is True)
                yield alternative

    def _changed(self, change: SpecChange, *, followed: Followed | None) -> Iterator[Alternative]:
        """The alternative for ``change``; none if the changed spec is invalid or cannot be followed."""
        try:
            spec = change.applied(self._spec)
            if spec.problems(self._target.device):
                return
            if self._split:
                found = self._judged(spec)
            else:
                found = judge(self._trace(spec), self._target, spec.name)
        except (ValidationError, CannotPredictError):
            return
        if followed is not None and not self._split:
            followed(self._trace(spec), self._target, found)
        slowdown, slowdown_from = self._slowdown(spec, change)
        yield as_alternative(
            change.label,
            found,
            fields=change.fields,
            slowdown=slowdown,
            slowdown_from=slowdown_from,
            changes_training=change.changes_training,
        )

    def _slowdown(self, changed: Spec, change: SpecChange) -> tuple[float | None, str]:
        """Expected time per item relative to the unchanged run, and the basis for it.

        Accumulation computes the same products in smaller batches. The rate of 16-bit types depends on the card, and
        an optimizer's work is not in products, so FLOPs predict nothing for either.
        """
        # Only for checkpointing do FLOPs give the price: it computes the forward pass once more.
        if set(change.fields) == {"checkpointing"}:
            before, after = (flops_of(spec, self._dry, self._level) for spec in (self._spec, changed))
            if before:
                return (after / before, FLOPS)
            return (None, "")
        if "accumulation" in change.fields:
            return (1.0, SAME_PRODUCTS)
        return (None, "")


def _recorded(record: Callable[[], list[Trace]]) -> list[Trace]:
    """The result of ``record``, with its errors as sentences."""
    with explaining_errors():
        try:
            return record()
        except NoRanksError as error:
            raise CannotPredictError(
                "unavailable", str(error), "Predict it on one device, or update PyTorch."
            ) from error
