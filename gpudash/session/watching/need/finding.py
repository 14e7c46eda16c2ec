"""Finds out what a program needs that ran out of memory, and which of its remedies do, by running it again.

First it runs without numbers, which is quick and takes no GPU. On a simulated GPU it runs with numbers where that finds
nothing, as where the program decides by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from gpudash.memory.explaining.pairs import pairs
from gpudash.memory.explaining.patches import MOST_SOURCE_BYTES
from gpudash.memory.explaining.whole_need import (
    changes_the_run,
    to_be_tried,
    with_need,
    with_settings_replayed,
    with_tried,
    without_need,
)
from gpudash.session.watching.need.failed_run import LEFT, FailedRun, NeedUnknownError, ProgramRerun, RemedyFailsError
from gpudash.session.watching.need.numberless_run import FullCard, NumberlessRun
from gpudash.session.watching.need.whole_run import WholeRun
from gpudash.session.watching.request import WatchRequest
from gpudash.system.foreign_files import read_regular
from gpudash.telemetry.explanation import Explanation, Need, Remedy
from gpudash.units import format_duration

TRIALS_S = 300.0
"""Remedies are tried for so long, seconds, where the user did not ask for it; the one that is being tried then is the
last. Each may take minutes, and a program may have a dozen of them and their pairs. As long again they may wait for
processors that others have.
"""


class NeedSearch:
    """One such search. `explained` belongs to one thread; any may call `leave` and read `seconds`.

    Args:
        request: of the run that failed.
        environment: its variables.
        watched: those that it had as a watched program.
        failed: what is known of it.
        card: whose memory ran out.
        note: is given, in a sentence, what the user should know while it goes on.
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
        self._requested = request.find_need is True
        self._running: ProgramRerun | None = None
        self._is_left = False
        self._tried_s = 0.0
        self._waited_s = 0.0

    @property
    def seconds(self) -> float:
        """For how long the present rerun has gone on."""
        running = self._running
        if running is None:
            return 0.0
        return running.seconds

    def leave(self) -> None:
        """End it; what was found by then stays."""
        self._is_left = True
        if self._running is not None:
            self._running.leave()

    def explained(self, found: Explanation) -> Explanation:
        """``found`` with what the whole run needs, or why that is not known, and with what came of its remedies."""
        # A rerun costs minutes: only where nothing is known to fit, or a remedy is there that only a run can try.
        is_open = self._requested or not any(remedy.fits for remedy in found.remedies)
        if self._is_left or not (is_open or any(to_be_tried(found))):
            return found
        run = self._numberless(found, None)
        try:
            need = self._ran(run, "Finding out what the whole run needs")
        except NeedUnknownError as error:
            # Numbers need a larger card: one that is simulated can be had, a real one cannot.
            if not found.simulated:
                if is_open:
                    return without_need(found, str(error))
                return found
            # The time without numbers counts: both together stay within what the failed run took, twice.
            if is_open:
                found = self._with_numbers(found, run.seconds)
            return self._with_tried(found, self._numbered)
        # The need of a run cut short is a lower bound; where a remedy fits already, it is noted and changes no
        # verdict.
        if is_open or need.is_whole:
            found = with_need(found, need)
        else:
            found = replace(found, need=need)
        found = with_settings_replayed(found, run.cards)
        return self._with_tried(found, lambda remedy: self._numberless(found, remedy))

    def _with_numbers(self, found: Explanation, spent_s: float) -> Explanation:
        """``found`` with what a run with numbers needs, or why that is not known."""
        run = WholeRun(self._request, self._watched, self._failed, requested=self._requested, spent_s=spent_s)
        try:
            return with_need(found, self._ran(run, "It is run again with numbers, on a larger simulated GPU"))
        except NeedUnknownError as error:
            return without_need(found, str(error))

    def _with_tried(self, found: Explanation, trial: Callable[[Remedy], ProgramRerun]) -> Explanation:
        """``found``, whose first change of the program or its environment was tried on a card as it was, and then the
        first pairs of such changes, until one does.

        Where that comes to no end, takes longer than `TRIALS_S`, or the user leaves it, it stays what it was.
        """
        failed: list[tuple[float, Remedy]] = []
        try:
            for remedy in to_be_tried(found):
                try:
                    return with_tried(found, remedy, self._tried(trial(remedy), f"Trying a remedy, {remedy.change}"))
                except RemedyFailsError as error:
                    # By what each still needs, so that pairs begin with those that came closest; `inf` sorts unknown
                    # ones last.
                    failed.append((math.inf if error.need is None else error.need.pytorch_bytes, remedy))
                    found = with_tried(found, remedy, None)
            return self._with_pair(found, [remedy for _bytes, remedy in sorted(failed, key=itemgetter(0))], trial)
        except NeedUnknownError:
            return found

    def _with_pair(
        self, found: Explanation, failed: Sequence[Remedy], trial: Callable[[Remedy], ProgramRerun]
    ) -> Explanation:
        """``found`` with the first two changes that do together, where none does alone.

        Args:
            found: why memory ran out.
            failed: changes that do not do, the one that needs the least first.
            trial: as of `_with_tried`.

        Raises:
            NeedUnknownError: where that comes to no end, or the user leaves it.
        """
        # A change that does by itself makes pairs pointless.
        if any(remedy.fits and changes_the_run(remedy) for remedy in found.remedies):
            return found
        # By what a remedy does and not by its words, which differ between a saving and a remedy.
        known = {(remedy.flags, remedy.patch, remedy.command) for remedy in failed}
        more = [one for one in found.savings if (one.flags, one.patch, one.command) not in known]
        for remedy in pairs([*failed, *more], self._source):
            try:
                need = self._tried(trial(remedy), f"Trying two changes together, {remedy.change}")
            except RemedyFailsError:
                continue
            return with_tried(found, remedy, need)
        return found

    def _source(self, name: str) -> bytes:
        """A file in the program's folder."""
        return read_regular(Path(self._request.folder or Path.cwd(), name), MOST_SOURCE_BYTES)

    def _tried(self, run: ProgramRerun, what: str) -> Need:
        """What the program needs with a remedy.

        Raises:
            RemedyFailsError: where it does not do.
            NeedUnknownError: why nothing was found, as when remedies have been tried for long enough.
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
            # `leave` may have come before `_running` was set, when it found nothing to end.
            if self._is_left:
                raise NeedUnknownError(LEFT)
            if run.is_requested:
                limit = ""
            else:
                limit = f", about {format_duration(run.limit_s)} at most, longer on busy processors"
            self._note(f"{what}{limit}; Ctrl+C leaves it.")
            return run.find()
        finally:
            self._running = None

    def _numberless(self, found: Explanation, remedy: Remedy | None) -> NumberlessRun:
        requested = self._requested and remedy is None
        return NumberlessRun(
            self._request, self._environment, self._failed, found, self._card, requested=requested, remedy=remedy
        )

    def _numbered(self, remedy: Remedy) -> WholeRun:
        return WholeRun(self._request, self._watched, self._failed, requested=False, remedy=remedy)
