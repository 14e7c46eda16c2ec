"""Finds the memory that a program needs that ran out of it, and the remedies that work, by running it again.

The first rerun has no numbers, which is fast and needs no GPU. If it finds nothing, for example because the program
branches on numbers, and the GPU is simulated, a second rerun computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.explaining.pairs import pairs
from gpudash.memory.explaining.patches import MOST_SOURCE_BYTES
from gpudash.memory.explaining.remedies import ordered
from gpudash.memory.explaining.whole_need import (
    CardRequests,
    changes_the_run,
    room_of,
    to_be_tried,
    with_need,
    with_settings_replayed,
    with_tried,
    without_need,
)
from gpudash.memory.predicting.fit import peaks
from gpudash.memory.snapshot.causes.batch_size import BatchSize
from gpudash.session.predicting.largest_batch import (
    EVEN_ONE,
    BatchSearch,
    SizedRun,
    batches_changed_by,
    changes_training,
    edited,
    files_of,
    growing_bytes,
    note_of,
)
from gpudash.session.watching.need.failed_run import LEFT, FailedRun, NeedUnknownError, ProgramRerun, RemedyFailsError
from gpudash.session.watching.need.numberless_run import FullCard, NumberlessRun
from gpudash.session.watching.need.whole_run import WholeRun
from gpudash.session.watching.request import WatchRequest
from gpudash.system.foreign_files import read_regular
from gpudash.telemetry.explanation import Explanation, Need, Remedy
from gpudash.units import format_duration, format_left

TRIALS_S = 300.0
"""Remedies are tried for so long, seconds, where the user did not ask for it; the one that is being tried then is the
last. Each may take minutes, and a program may have a dozen of them and their pairs. As long again they may wait for
processors that others have.
"""


class NeedSearch:
    """A search for a program's need. `explained` belongs to one thread; any may call `leave` and read `seconds`.

    Args:
        request: request of the failed run.
        environment: its environment variables.
        watched: the variables that it had as a watched program.
        failed: facts about it.
        card: card whose memory ran out.
        note: callback for progress messages, each a sentence.
    """

    def __init__(
        self,
        request: WatchRequest,
        environment: Mapping[str, str],
        watched: Mapping[str, str],
        failed: FailedRun,
        card: FullCard,
        note: Callable[[str], None],
    ) -> None:
        self._request = request
        self._environment = environment
        self._watched = watched
        self._failed = failed
        self._card = card
        self._note = note
        self._what = ""
        self._requested = request.find_need is True
        self._running: ProgramRerun | None = None
        self._is_left = False
        self._tried_s = 0.0
        self._waited_s = 0.0

    @property
    def seconds(self) -> float:
        """Duration of the current rerun so far."""
        running = self._running
        if running is None:
            return 0.0
        return running.seconds

    @property
    def doing(self) -> str:
        """What is being done, without a full stop, and what is left of the time limit of this rerun, which others may
        follow; "" between two reruns.
        """
        running = self._running
        if running is None or running.is_requested:
            return self._what
        left_s = running.limit_s - (running.seconds - running.waited_s)
        if left_s <= 0:
            return f"{self._what}, this try longer than it should take: the processors are busy"
        return f"{self._what}, this try for up to {format_left(left_s)} more, longer while processors are busy"

    def leave(self) -> None:
        """End the search; its results so far stay."""
        self._is_left = True
        if self._running is not None:
            self._running.leave()

    def explained(self, found: Explanation) -> Explanation:
        """``found`` with the need of the whole run, or why that is unknown, and with the results for its remedies."""
        # A rerun costs minutes: only if nothing is known to fit, or only a run can verify a remedy.
        is_open = self._requested or not any(remedy.fits for remedy in found.remedies)
        if self._is_left or not (is_open or any(to_be_tried(found))):
            return found
        run = self._numberless(found, None)
        try:
            need = self._ran(run, "Finding out what would have fit")
        except NeedUnknownError as error:
            # Numbers need a larger card: a simulated one is available, a real one is not.
            if not found.simulated:
                if is_open:
                    return without_need(found, str(error))
                return found
            # The time without numbers counts: together they stay within twice the failed run's time.
            if is_open:
                found = self._with_numbers(found, run.seconds)
            return self._with_tried(found, self._numbered)
        # The need of an incomplete run is a lower bound; if a remedy fits already, it is noted and changes no verdict.
        if is_open or need.is_whole:
            found = with_need(found, need)
        else:
            found = replace(found, need=need)
        found = with_settings_replayed(found, run.cards)
        trials: dict[str, NumberlessRun] = {}

        def trial(remedy: Remedy) -> NumberlessRun:
            trials[remedy.change] = self._numberless(found, remedy)
            return trials[remedy.change]

        tried = self._with_tried(found, trial)
        files = files_of(self._request.command, self._request.folder)
        batch = next(batches_changed_by(found.remedies, files), None)
        if batch is None:
            return tried
        halved = [remedy.change for remedy in found.remedies if remedy.change in trials]
        earlier = {size: trials[change].cards for change in halved if (size := batch.size_in(change)) is not None}
        return self._with_largest_batch(tried, batch, run, earlier)

    def _with_numbers(self, found: Explanation, spent_s: float) -> Explanation:
        """``found`` with the need of a run with numbers, or why that is unknown."""
        run = WholeRun(self._request, self._watched, self._failed, requested=self._requested, spent_s=spent_s)
        try:
            return with_need(found, self._ran(run, "It is run again with numbers, on a larger simulated GPU"))
        except NeedUnknownError as error:
            return without_need(found, str(error))

    def _with_tried(self, found: Explanation, trial: Callable[[Remedy], ProgramRerun]) -> Explanation:
        """``found`` after trying its changes of the program or its environment on the original card, and then pairs of
        them, until one works.

        If the search fails, exceeds `TRIALS_S`, or is ended by the user, the explanation stays as it was.
        """
        failed: list[tuple[float, Remedy]] = []
        try:
            for remedy in to_be_tried(found):
                try:
                    return with_tried(found, remedy, self._tried(trial(remedy), f"Trying a remedy, {remedy.change}"))
                except RemedyFailsError as error:
                    # Sorted by the remaining need, so that pairs begin with those that came closest; `inf` puts
                    # unknown ones last.
                    failed.append((math.inf if error.need is None else error.need.pytorch_bytes, remedy))
                    found = with_tried(found, remedy, None)
            return self._with_pair(found, [remedy for _bytes, remedy in sorted(failed, key=itemgetter(0))], trial)
        except NeedUnknownError:
            return found

    def _with_pair(
        self, found: Explanation, failed: Sequence[Remedy], trial: Callable[[Remedy], ProgramRerun]
    ) -> Explanation:
        """``found`` with the first pair of changes that works, if none does alone.

        Args:
            found: why memory ran out.
            failed: changes that do not work, the one with the smallest need first.
            trial: as in `_with_tried`.

        Raises:
            NeedUnknownError: if the search fails, or the user ends it.
        """
        # If a single change works, pairs are unnecessary.
        if any(remedy.fits and changes_the_run(remedy) for remedy in found.remedies):
            return found
        # By effect, not by text, which differs between a saving and a remedy.
        known = {(remedy.flags, remedy.patch, remedy.command) for remedy in failed}
        more = [one for one in found.savings if (one.flags, one.patch, one.command) not in known]
        for remedy in pairs([*failed, *more], self._source):
            try:
                need = self._tried(trial(remedy), f"Trying two changes together, {remedy.change}")
            except RemedyFailsError:
                continue
            return with_tried(found, remedy, need)
        return found

    def _with_largest_batch(
        self, found: Explanation, batch: BatchSize, run: NumberlessRun, earlier: Mapping[int, Sequence[CardRequests]]
    ) -> Explanation:
        """``found`` with the largest batch that fits.

        Args:
            found: why memory ran out.
            batch: the batch of the program.
            run: the program as it is, with its requests.
            earlier: the requests with other batches that have been tried.
        """
        works: dict[int, Remedy] = {}

        def tried(size: int) -> SizedRun | None:
            change = edited(batch, size, str((self._request.folder or Path.cwd()).absolute()))
            if change is None:
                return None
            remedy = Remedy(change.change, patch=change.patch, command=change.command)
            trial = self._numberless(found, remedy)
            try:
                need = self._tried(trial, f"Trying a remedy, {remedy.change}")
            except NeedUnknownError:  # it fails, or there is no more time
                return _sized(size, trial.cards, found)
            peak = min(need.peak_reserved_bytes, room_of(found))
            works[size] = replace(remedy, fits=True, verified_by=need.found_by, predicted_peak_bytes=peak)
            return _sized(size, trial.cards, found)

        def passes(traces: Sequence[Trace]) -> bool:
            return all(replace(card, trace=trace).fits(found) for card, trace in zip(run.cards, traces, strict=False))

        whole = _sized(batch.value, run.cards, found)
        known = [one for size, cards in earlier.items() if (one := _sized(size, cards, found)) is not None]
        if whole is None or whole.fits:
            return found
        search = BatchSearch(whole, tried, passes, batch.is_named, known)
        if not search.run():
            return found
        if search.best is None:
            note = f"{found.remedies_note} {EVEN_ONE.format(place=batch.place)}".strip()
            return found.with_remedies(found.remedies, note)
        # The halved one may be the largest, too.
        remedy = works.get(search.best.size)
        if remedy is None:
            return found
        note = note_of(search, batch, files_of(self._request.command, self._request.folder))
        remedy = replace(remedy, note=note, changes_training=changes_training(search.best, batch))
        return replace(found, remedies=ordered((*found.remedies, remedy)))

    def _source(self, name: str) -> bytes:
        """A file in the program's folder."""
        return read_regular(Path(self._request.folder or Path.cwd(), name), MOST_SOURCE_BYTES)

    def _tried(self, run: ProgramRerun, what: str) -> Need:
        """The program's need with a remedy.

        Raises:
            RemedyFailsError: if it does not work.
            NeedUnknownError: why nothing was found, such as the time limit for trying remedies.
        """
        if self._tried_s - min(self._waited_s, TRIALS_S) >= TRIALS_S and not self._requested:
            self._note(f"Remedies were tried for {format_duration(self._tried_s)}; --find-need tries the others, too.")
            raise NeedUnknownError(LEFT)
        try:
            return self._ran(run, what)
        finally:
            self._tried_s += run.seconds
            self._waited_s += run.waited_s

    def _ran(self, run: ProgramRerun, what: str) -> Need:
        """Raises: NeedUnknownError: why nothing was found."""
        self._running = run
        try:
            # `leave` may have been called before `_running` was set, with nothing to end.
            if self._is_left:
                raise NeedUnknownError(LEFT)
            if run.is_requested:
                limit = ""
            else:
                limit = f", about {format_duration(run.limit_s)} at most, longer on busy processors"
            self._note(f"{what}{limit}; Ctrl+C leaves it.")
            self._what = what
            return run.find()
        finally:
            self._running = None
            self._what = ""

    def _numberless(self, found: Explanation, remedy: Remedy | None) -> NumberlessRun:
        requested = self._requested and remedy is None
        return NumberlessRun(
            self._request, self._environment, self._failed, found, self._card, requested=requested, remedy=remedy
        )

    def _numbered(self, remedy: Remedy) -> WholeRun:
        return WholeRun(self._request, self._watched, self._failed, requested=False, remedy=remedy)


def _sized(size: int, cards: Sequence[CardRequests], found: Explanation) -> SizedRun | None:
    """A rerun with one batch, on the cards in the state that ``found`` explains; ``None`` without its requests."""
    if not cards:
        return None
    short_bytes = max(card.room() for card in cards) - room_of(found)
    traces = [card.trace for card in cards if card.trace is not None]
    growing = max((growing_bytes(peaks(trace).by_category) for trace in traces), default=0)
    peak_bytes = sum(card.peak_allocated_bytes for card in cards)
    return SizedRun(size, short_bytes, all(card.fits(found) for card in cards), peak_bytes, traces, growing)
