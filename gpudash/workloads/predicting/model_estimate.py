"""Predicting a model by its config: what it takes, the largest batch and the longest sequence, and what would fit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.estimate import Alternative, Estimate, Target, judge, needed_room, passage
from gpudash.specs.changes import SpecChange, changes
from gpudash.specs.model import ModelSpec
from gpudash.workloads.predicting.code_follower import CodeFollower, FollowedCode, RefusedError
from gpudash.workloads.predicting.device_fit import as_alternative, unchanged
from gpudash.workloads.predicting.largest import Sized, largest

SEARCHED_S = 30.0
"""Seconds after which no other batch or sequence is tried: the answer for a large model is to come within a minute."""

TOKENS = 128
"""Longest sequences are told in multiples of it, unless a sequence is asked for that is none."""

LARGEST_BATCH = 65536
LONGEST = 2**24


def estimates(
    spec: ModelSpec,
    follower: CodeFollower,
    target: Target,
    elsewhere: Sequence[Target] = (),
    *,
    alternatives: bool = True,
) -> Iterator[Estimate]:
    """What a model takes; each estimate has more than the one before, the last one has all.

    Args:
        spec: the model and what is done with it.
        follower: builds and follows it.
        target: where it is to fit.
        elsewhere: the other devices there are.
        alternatives: whether to look for the largest batch, the longest sequence and what else would fit.

    Raises:
        RefusedError: when the model cannot be built or followed.
    """
    began = time.perf_counter()
    for found in _ModelEstimation(spec, follower, target, elsewhere, began).results(alternatives=alternatives):
        yield replace(found, seconds=time.perf_counter() - began)


class _OutOfTimeError(Exception):
    """Enough sizes have been tried."""


class _ModelEstimation:
    """One prediction on its way: what has been followed for it is kept."""

    def __init__(
        self, spec: ModelSpec, follower: CodeFollower, target: Target, elsewhere: Sequence[Target], began: float
    ) -> None:
        self._spec = spec
        self._follower = follower
        self._target = target
        self._elsewhere = elsewhere
        self._until = began + SEARCHED_S
        self._known: dict[tuple[str, Architecture], FollowedCode] = {}

    def results(self, *, alternatives: bool) -> Iterator[Estimate]:
        """See `estimates`."""
        spec, target = self._spec, self._target
        followed = self._followed(spec)
        found = replace(
            judge(followed.trace, target, spec.name), assumptions=followed.assumptions, model=followed.model
        )
        yield found
        if not alternatives or target.room_bytes is None:
            return
        batch = self._largest("batch", spec.batch, 1, LARGEST_BATCH)
        if batch is not None:
            found = replace(found, largest_batch_size=batch.size, largest_batch_releases=batch.releases)
            yield found
        if followed.model is not None and followed.model.sequence is not None:
            longest = self._longest(followed.model.sequence, followed.model.longest)
            found = replace(found, largest_sequence=longest)
            yield found
        if found.has_room:
            return
        known: list[Alternative] = []
        for alternative in self._alternatives(followed, found):
            known.append(alternative)
            yield replace(found, alternatives=tuple(known))

    def _followed(self, spec: ModelSpec, target: Target | None = None) -> FollowedCode:
        on_gpu = target is not None and target.device != "cpu"
        architecture = target.architecture if target is not None and on_gpu else self._target.architecture
        key = spec.model_dump_json(), architecture
        if key not in self._known:
            followed = self._follower.follow({"model": spec.request}, architecture)
            model = None if followed.model is None else followed.model.on_link(architecture.capability)
            self._known[key] = replace(followed, model=model)
        return self._known[key]

    def _longest(self, now: int, most: int | None) -> int | None:
        """Tokens of the longest sequence that fits."""
        unit = TOKENS if now % TOKENS == 0 else 1
        found = self._largest("sequence", now // unit, unit, LONGEST // unit if most is None else most // unit)
        return None if found is None else found.size * unit

    def _largest(self, name: str, size: int, unit: int, limit: int) -> Sized | None:
        def tried(count: int) -> Sized:
            spec = self._spec.model_copy(update={name: count * unit})
            if time.perf_counter() > self._until:
                raise _OutOfTimeError
            trace = self._followed(spec).trace
            found = passage(trace, self._target)
            need = needed_room(trace, self._target, found)
            return Sized(count, need, fits=found.fits is True, releases=bool(found.released))

        try:
            return largest(tried, size, limit, self._target.room_bytes or 0)
        except (_OutOfTimeError, RefusedError):
            return None

    def _alternatives(self, followed: FollowedCode, found: Estimate) -> Iterator[Alternative]:
        spec = self._spec
        if found.largest_batch_size and found.largest_batch_size < spec.batch:
            size = found.largest_batch_size
            yield from self._changed(SpecChange(f"batch {size}", {"batch": size}, changes_training=True))
        if found.largest_sequence and followed.model and found.largest_sequence < (followed.model.sequence or 0):
            words = f"sequences of {found.largest_sequence} tokens"
            yield from self._changed(SpecChange(words, {"sequence": found.largest_sequence}, changes_training=True))
        for change in changes(spec):
            yield from self._changed(change)
        yield from unchanged(self._trace_on, self._target, found, self._elsewhere)

    def _trace_on(self, where: Target) -> Trace:
        return self._followed(self._spec, where).trace

    def _changed(self, change: SpecChange) -> Iterator[Alternative]:
        """The alternative that ``change`` is; none when the changed model cannot be followed."""
        try:
            spec = change.applied(self._spec)
            assert isinstance(spec, ModelSpec)
            followed = self._followed(spec)
        except (ValidationError, RefusedError):
            return
        found, model = judge(followed.trace, self._target, spec.name), followed.model
        differs: dict[str, Any] = {"fields": change.fields, "changes_training": change.changes_training}
        if model is not None and model.host_bytes:
            differs |= {"host_bytes": model.host_bytes, "bus_seconds": model.bus_seconds}
        yield as_alternative(change.words, found, **differs)
