"""Predicting what a run will take, by dry runs of it and of what might be changed.

Everything here has to run in a process that computes nothing else: see `gpudash.simulator.dry_run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.estimate import Alternative, Estimate, Target, fits
from gpudash.memory.fit import minimum_room, peaks
from gpudash.memory.rank_estimates import deciding, of_ranks
from gpudash.simulator.dry_run import DataDependentError, DryRun, LeftTheDeviceError
from gpudash.simulator.tracking import Tracker
from gpudash.specs import PressureSpec, Spec, TrainingSpec
from gpudash.specs.changes import Change, batch_fields, batch_words, capped, changes, size_field
from gpudash.specs.training import DATA_PARALLEL
from gpudash.units import MIB
from gpudash.workloads.blame import place
from gpudash.workloads.context import MemoryLevel
from gpudash.workloads.dry_run import STEPS, flops_of, keeps_growing, trace_of
from gpudash.workloads.judging import held_on, judged, unchanged
from gpudash.workloads.parallel_memory import NoRanksError
from gpudash.workloads.spreading import spread_over

STEADY_STEPS = 2
"""Steps followed of a variant of a run that is known to keep nothing from step to step."""

MOST_TRIES = 20
"""Dry runs spent on finding the largest batch."""

CAPS = (0.8, 0.6, 0.4, 0.2)
"""Shares of the free memory at which a run that would fill it may end instead."""

SMALLEST_CAP = MIB

UNBOUNDED = 2**31
"""Where the search for the largest batch ends if the spec sets no bound."""

FLOPS = "FLOPs of the dry run"

SAME_PRODUCTS = "the same products in smaller batches"

WRONG_ANYWHERE = (ImportError, NameError, SyntaxError)
"""Errors that do not depend on a tensor or a device."""

MEND = "Mend that first; it happens without a GPU too."
MEND_OR_WATCH = "Mend that first; if a real run does not raise it, watch that instead."


class CannotPredictError(Exception):
    """There is no prediction, for a reason that can be put into words.

    Attributes:
        kind: one word for programs.
        remedy: one sentence saying what to do.
    """

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


@dataclass(frozen=True)
class Question:
    """What is to be predicted.

    Attributes:
        spec: the run.
        target: where.
        level: how full the device is; a workload may choose its own size by it.
        elsewhere: the other devices there are.
        ranks: where each rank of a run on several devices is to fit, in place of ``target``.
    """

    spec: Spec
    target: Target
    level: MemoryLevel | None = None
    elsewhere: Sequence[Target] = ()
    ranks: Sequence[Target] = ()


def estimate(question: Question, dry: DryRun, *, alternatives: bool = True) -> Iterator[Estimate]:
    """Predict a run, soonest first: each result has more than the one before, the last one has all.

    Args:
        dry: of this process.
        alternatives: whether to look for the largest batch and for what else would fit.

    Raises:
        CannotPredictError: when the workload cannot be followed without numbers, or not on this device.
    """
    began = time.perf_counter()
    for found in _Estimation(question, dry).results(alternatives=alternatives):
        yield replace(found, seconds=time.perf_counter() - began)


def estimate_callable(
    build: Callable[[Any], Callable[[], object]],
    target: Target,
    dry: DryRun,
    *,
    steps: int = STEPS,
    name: str = "",
    elsewhere: Sequence[Target] = (),
    alternatives: bool = True,
) -> Estimate:
    """Predict what any code takes that builds a model and steps it.

    Args:
        build: is given the device (a ``torch.device``), builds everything on it and returns a function that takes one
            step: ``def build(device): model = Net().to(device); ...; return step``.
        target: where it is to fit.
        dry: of this process.
        steps: how many to follow; two or more, since optimizers make their state in the first.
        name: what the code is called.
        elsewhere: the other devices there are.
        alternatives: whether to look for what would let the code fit as it is.

    Raises:
        CannotPredictError: when the code raises or exits, reads numbers out of tensors, or leaves the device.
        ValueError: when ``steps`` is below 2.
    """
    import torch

    if steps < 2:
        raise ValueError(f"steps: a prediction follows at least 2 steps, not {steps}")

    def run(tracker: Tracker) -> None:
        step = build(torch.device("sim", 0))
        for number in range(1, steps + 1):
            tracker.step = number
            step()
        tracker.finish()

    began = time.perf_counter()
    with _without_data_parallel():
        trace = replace(_recorded(lambda: dry.record(run)), followed=steps)
    found = judged(trace, target, name or getattr(build, "__qualname__", "callable"))
    if alternatives and target.room_bytes is not None:
        found = replace(found, alternatives=tuple(unchanged(trace, target, found, elsewhere)))
    return replace(found, seconds=time.perf_counter() - began)


class _Estimation:
    """One prediction on its way: what has been dry-run for it is kept."""

    def __init__(self, question: Question, dry: DryRun) -> None:
        self._spec = question.spec
        self._ranks = tuple(question.ranks)
        self._target = self._ranks[deciding(self._ranks)] if self._ranks else question.target
        self._elsewhere = () if self._ranks else question.elsewhere
        self._level = question.level
        self._dry = dry
        self._steps = STEPS
        self._traces: dict[str, Trace] = {}

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
        trace = self._trace(spec)
        if not keeps_growing(trace):
            self._steps = STEADY_STEPS
        found = self._judged(trace)
        yield found
        if not alternatives or target.room_bytes is None:
            return
        largest = self._largest(trace)
        together = largest * len(self._ranks) if largest is not None and self._ranks else None
        found = replace(found, largest_batch_size=largest, largest_global_batch=together)
        yield found
        known: list[Alternative] = []
        for alternative in self._alternatives(trace, found):
            known.append(alternative)
            yield replace(found, alternatives=tuple(known))

    def _judged(self, trace: Trace) -> Estimate:
        spec = self._spec
        if not self._ranks or not isinstance(spec, TrainingSpec):
            return judged(trace, self._target, spec.name)
        return of_ranks(self._ranks, spec.parallel, lambda target: judged(trace, target, spec.name))

    def _until_full(self, spec: PressureSpec, *, alternatives: bool) -> Iterator[Estimate]:
        """A run that fills the memory on purpose takes all of it."""
        room = self._target.room_bytes
        if room is None:
            raise CannotPredictError(
                "request", "How much memory is free is not known, and the run fills all of it.", "Name a --cap."
            )
        try:
            trace = trace_of(spec, self._dry, self._level, capacity=max(1, room))
        except LeftTheDeviceError:
            trace = Trace()  # not even the first request is served
        found = replace(judged(trace, self._target, spec.name), fits=False, spare_bytes=None)
        yield found
        yield replace(found, alternatives=self._ends(spec, room) if alternatives else ())

    def _ends(self, spec: PressureSpec, room: int) -> tuple[Alternative, ...]:
        """The highest of some caps at which a run that fills the memory would end in time."""
        for share in CAPS:
            cap = int(share * room) // MIB * MIB
            if cap < SMALLEST_CAP:
                break
            for found in self._changed(capped(cap)):
                if found.fits:
                    return (found,)
        return ()

    def _trace(self, spec: Spec) -> Trace:
        key = spec.model_dump_json()
        if key not in self._traces:
            self._traces[key] = _recorded(lambda: trace_of(spec, self._dry, self._level, self._steps))
        return self._traces[key]

    def _largest(self, trace: Trace) -> int | None:
        """The largest batch of the otherwise same run that fits; 0 when none does, ``None`` when it was not found.

        Memory grows nearly linearly with the batch: a line through two batches tells which to try next. What it tells
        is off by what segments are rounded to, so that the edge is looked for beside it.
        """
        name = size_field(self._spec)
        if name is None:
            return None
        batch = self._batch(name)
        bounds = type(self._spec).model_fields[name].metadata
        limit = int(next((bound.le for bound in bounds if hasattr(bound, "le")), UNBOUNDED))
        low, high = (batch, limit + 1) if fits(held_on(trace, self._target), self._target) is True else (0, batch)
        other = max(1, batch // 2) if batch > 1 else 2
        base, last, leap = (other, self._need(name, other)), (batch, self._need(name, batch)), 1
        for _ in range(MOST_TRIES):
            if high - low <= 1:
                break
            size = self._on_line(base, last)
            size, leap = (max(size, low + leap) if last[0] == low else min(size, high - leap)), 2 * leap
            if not low < size < high:
                size = limit if high > limit else (low + high) // 2
            last = size, self._need(name, size)
            if fits(held_on(self._sized(name, size), self._target), self._target) is True:
                low = size
            else:
                high = size
        return low if high - low <= 1 else None

    def _sized(self, name: str, size: int) -> Trace:
        whole = {"global_batch": 0} if self._ranks else {}
        return self._trace(self._spec.model_copy(update={name: size, **whole}))

    def _batch(self, name: str) -> int:
        """Of each forward pass, on each rank."""
        return self._spec.rank_batch if isinstance(self._spec, TrainingSpec) else int(getattr(self._spec, name))

    def _need(self, name: str, size: int) -> int:
        """The least that a batch of ``size`` has to have, in bytes."""
        trace, allocator = held_on(self._sized(name, size), self._target), self._target.settings
        found = peaks(trace, allocator)
        margin = int(found.reserved * self._target.margin_ratio)
        return minimum_room(trace, found.allocated, found.reserved, allocator) + margin

    def _on_line(self, base: tuple[int, int], last: tuple[int, int]) -> int:
        """The batch that needs all there is, if two batches and their needs lie on a line."""
        slope = (last[1] - base[1]) / ((last[0] - base[0]) or 1)
        room = self._target.room_bytes or 0
        return int(last[0] + (room - last[1]) / slope) if slope > 0 else 2 * last[0]

    def _alternatives(self, trace: Trace, found: Estimate) -> Iterator[Alternative]:
        batch, name = found.largest_batch_size, size_field(self._spec)
        if name is not None and batch and batch < self._batch(name):
            assert isinstance(self._spec, TrainingSpec)  # the only one with a size that is searched for
            words, fields = batch_words(self._spec, batch), batch_fields(self._spec, batch)
            yield from self._changed(Change(words, fields, changes_training=True))
        elsewhere = [other for other in self._elsewhere if not self._spec.problems(other.device)]
        found_changes = changes(self._spec)
        yield from self._tried(change for change in found_changes if not change.changes_training)
        if found.fits is not True and not self._ranks:
            with suppress(CannotPredictError):
                yield from spread_over(self._spec, self._target, elsewhere, self._trace)
        yield from self._tried(change for change in found_changes if change.changes_training)
        yield from unchanged(trace, self._target, found, elsewhere)

    def _tried(self, wanted: Iterable[Change]) -> Iterator[Alternative]:
        shared = False
        for change in wanted:
            if shared and "accumulation" in change.fields:
                continue  # a larger part that fits has been found
            for alternative in self._changed(change):
                shared = shared or ("accumulation" in change.fields and alternative.fits is True)
                yield alternative

    def _changed(self, change: Change) -> Iterator[Alternative]:
        """The alternative that ``change`` is; none when the changed spec is not valid or cannot be followed."""
        try:
            spec = change.applied(self._spec)
            if spec.problems(self._target.device):
                return
            found = judged(self._trace(spec), self._target, spec.name)
        except (ValidationError, CannotPredictError):
            return
        slowdown, slowdown_from = self._slowdown(spec, change)
        yield Alternative(
            change.words,
            fields=change.fields,
            peak_reserved_bytes=found.peak_reserved_bytes or found.peak_allocated_bytes,
            fits=found.fits,
            slowdown=slowdown,
            slowdown_from=slowdown_from,
            changes_training=change.changes_training,
        )

    def _slowdown(self, changed: Spec, change: Change) -> tuple[float | None, str]:
        """Expected time per item over the unchanged run's, and what that rests on.

        Accumulation does the same products on smaller batches. 16-bit types do theirs at a rate that depends on the
        card, and an optimizer's work is not made of products: of both nothing can be said from FLOPs.
        """
        if set(change.fields) == {"checkpointing"}:
            before, after = (flops_of(spec, self._dry, self._level) for spec in (self._spec, changed))
            return (after / before, FLOPS) if before else (None, "")
        return (1.0, SAME_PRODUCTS) if "accumulation" in change.fields else (None, "")


@contextmanager
def _without_data_parallel() -> Iterator[None]:
    """Code that asks for ``torch.nn.DataParallel`` is told why nothing is predicted with it."""
    from torch import nn

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise CannotPredictError(
            "data_parallel", f"The code uses torch.nn.DataParallel. {DATA_PARALLEL}.", "Predict the model without it."
        )

    kept, made = nn.DataParallel.__init__, nn.DataParallel
    made.__init__ = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        made.__init__ = kept  # type: ignore[method-assign]


def _recorded(record: Callable[[], Trace]) -> Trace:
    """What ``record`` returns; its errors in words."""
    try:
        return record()
    except DataDependentError as error:
        raise CannotPredictError(
            "data_dependent",
            f"{str(error).rstrip('.')}{_at(error)}; a dry run has none, so nothing can be predicted.",
            "Move the decision out of the step, or watch a real run.",
        ) from error
    except LeftTheDeviceError as error:
        raise CannotPredictError(
            "left_the_device", str(error), "Build the model and the tensors on the device that is given."
        ) from error
    except CannotPredictError:
        raise
    except NoRanksError as error:
        raise CannotPredictError("unavailable", str(error), "Predict it on one device, or update PyTorch.") from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # any code may raise anything
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        where, said = place(error), f": {first.rstrip('.')}" if first else ""
        raise CannotPredictError(
            "raised",
            f"{'The' if not where else f'At {where} the'} code raised {type(error).__name__}{said}.",
            MEND if isinstance(error, WRONG_ANYWHERE) else MEND_OR_WATCH,
        ) from error


def _at(error: BaseException) -> str:
    where = place(error)
    return f" at {where}" if where else ""
