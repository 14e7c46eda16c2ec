"""Watches the user's own program: starts it, hears its agents on a socket, tells the session, and says how it
ended.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

import gpudash
from gpudash.devices.names import kind_of, written
from gpudash.memory.predicting.estimate import Target
from gpudash.session.predicting.estimates import architecture_of
from gpudash.session.watching.edited_copy import EditedCopy
from gpudash.session.watching.ending import EndedRun, ending_of
from gpudash.session.watching.messages.hearing import LAST_MESSAGES_S, TICK_S, Hearing
from gpudash.session.watching.messages.program_news import COUNTED
from gpudash.session.watching.need.failed_run import FailedRun
from gpudash.session.watching.need.finding import NeedSearch
from gpudash.session.watching.need.numberless_run import FullCard
from gpudash.session.watching.output.log import OutputReader
from gpudash.session.watching.output.printed_metrics import PrintedMetrics
from gpudash.session.watching.program import (
    SHUTDOWN_S,
    TERMINATE_S,
    Program,
    SentSignal,
    Stopping,
    StopProgress,
    is_running,
    oom_kills,
    process_name,
    runs,
    stop_text,
)
from gpudash.session.watching.request import WatchRequest, check_request, program_name, python_with_torch, script_of
from gpudash.session.watching.wiring import Wiring
from gpudash.simulator.device.process_table import VARIABLE, ProcessTable
from gpudash.system.threads import joined, started
from gpudash.telemetry.explanation import Explanation
from gpudash.telemetry.records import Level, Note, RunEnd, RunStarted, Topic, Warning
from gpudash.units import listed

logger = logging.getLogger(__name__)

OUTPUT_PERIOD_S = 0.25
"""Interval of the records of its output."""

POLL_PERIOD_S = 0.5
"""Interval of the scans for its descendants."""

GRACE_S = 1.0
"""Time for its descendants to end after the program, unless it was asked to end."""

KILLED_S = 1.0
"""Longest wait for a killed process: a driver call may delay it."""

QUIET_S = 10.0
"""Silence after the program's end from which an unknown process is assumed to hold its output open."""

LAST_OUTPUT_S = 60.0
"""Longest time for which its output is read after its end."""

SILENCE_S = 10.0
"""Silence of a program from which the user is notified."""

UNHEARD = (
    "Nothing was heard of the program: its Python ignores PYTHONPATH (-I, -E or -S) or is older than 3.9, or it is "
    "not Python; only what it prints and what the system reports of it is shown."
)


READING = "Reading what it left"
"""What is done for a program that has just ended."""

FINDING = "Finding out what would have fit"


COUNTED_STEPS = (
    "Its steps are those of its optimizer, as it reports none; this line reports them with their loss: "
    'logging.getLogger("gpudash").info("step", extra={"step": i, "loss": loss})'
)


class Watching:
    """Watches one program from start to end, on a thread of its own.

    Args:
        request: the program to run.
        run_id: number of the run.
        wiring: connections to the session.

    Raises:
        ValueError: one sentence, if it cannot be started.
    """

    def __init__(self, request: WatchRequest, run_id: int, wiring: Wiring) -> None:
        check_request(request)
        self._request = request
        self._run_id = run_id
        self._wiring = wiring
        self._name = program_name(request.command)
        self._simulated = bool(request.simulate)
        self._cards = wiring.machine.simulated.provide(request.simulate)
        if self._cards:
            self._device = self._cards[0]
        else:
            self._device = wiring.machine.program_device()
        # The socket before the program, which gets its address in the environment.
        self._hearing = Hearing(run_id, self._name, wiring, request.spec, lambda: self._environment)
        self._server, self._reports = self._hearing.server, self._hearing.reports
        self._table = _new_table()
        self._copy: EditedCopy | None = None
        try:
            if request.edit:
                self._copy = EditedCopy(request)
            self._environment = self._watched_environment()
            self._program = Program(self._started_request(), self._environment)
        except ValueError:
            self._clean_up()
            raise
        self._program.scan()
        wiring.follow(self._program.resident)
        self._began_s = wiring.clock()
        wiring.output.begin()
        # The store must know the run before the first message of its processes.
        wiring.emit(self._started())
        self._metrics = PrintedMetrics(request.metric_pattern)
        self._reader = OutputReader(self._program.copies, wiring.output, wiring.clock, run_id, self._metrics.feed)
        self._hearing.begin(self._program.pid, self._cards, request.simulate_others, as_cuda=request.as_cuda)
        self._news, self._ranks, self._memory = self._hearing.news, self._hearing.ranks, self._hearing.memory
        self._memory.table = self._table
        self._stopping = Stopping(self._name, self._program.signal)
        self._left = threading.Event()
        self._hurried = False
        self._need_search: NeedSearch | None = None
        self._sent: Sequence[SentSignal] = ()
        self._due: dict[str, float] = {}
        self._reported_silence = False
        self._uses_gpu = False
        # The kernel's count is for the whole machine: only its increase matters.
        self._oom_kills = oom_kills()
        self._thread = started("gpudash-watch", self._watch)

    @property
    def stopping(self) -> StopProgress | None:
        """The state of a requested stop; ``None`` if there is none, or the program has ended."""
        if self._left.is_set():
            return None
        return self._stopping.progress

    @property
    def finding_need_s(self) -> float | None:
        """Duration of the rerun that determines its need; ``None`` if there is none."""
        search = self._need_search
        if search is None:
            return None
        return search.seconds

    @property
    def after_end(self) -> str:
        """What is still being done for a program that has ended, without a full stop; "" while it runs."""
        if not self._left.is_set():
            return ""
        search = self._need_search
        if search is None:
            return READING
        return f"{search.doing or FINDING} (Stop ends the search)"

    def stop(self, when: str) -> None:
        """Send SIGINT, and wait without a time limit; on further requests SIGTERM, and then SIGKILL.

        Once it has ended, this ends the search for its need.
        """
        search = self._need_search
        if search is None:
            self._stopping.request(when)
        else:
            search.leave()

    def shut_down(self, when: str) -> None:
        """Send SIGINT, because gpudash is ending; SIGTERM and SIGKILL follow after their deadlines."""
        search = self._need_search
        if search is None:
            self._stopping.shut_down(when)
        else:
            search.leave()

    def wait_left(self) -> None:
        """Wait until the program and its descendants have ended, after `shut_down`."""
        self._left.wait(SHUTDOWN_S + TERMINATE_S + KILLED_S)

    @property
    def busy_s(self) -> float:
        """How long the current message has been processed, as in `Hearing`."""
        return self._hearing.busy_s

    def save_snapshot(self) -> None:
        """Request a memory snapshot.

        Raises:
            RuntimeError: one sentence, if it has no GPU memory yet.
        """
        self._hearing.want_snapshot()

    def close(self, timeout_s: float) -> bool:
        """Report how it ended, within ``timeout_s``; false if that took longer."""
        self._hurried = True
        if self._need_search is not None:
            self._need_search.leave()
        self._reports.give_up()
        return joined(self._thread, timeout_s)

    def _watch(self) -> None:
        try:
            code = self._attend()
            # Only signals to the program itself: later ones end its descendants, and do not explain its end.
            self._sent = tuple(self._stopping.sent)
            requests = self._stopping.requests
            self._attend_the_rest()
            late = code == 0 and not requests  # a request now means not to wait for its output
            ending = self._with_need(self._ending(code, stopped=self._stopping.requests > 0 and not late))
        except Exception as error:  # the run must end in any case: others wait for it
            logger.exception("watching the program failed")
            ending = self._broken(error)
        finally:
            self._left.set()
            self._clean_up()
        self._wiring.emit(ending)
        # After the end was emitted: the last memory figures still belong to the run.
        self._memory.close()
        self._wiring.follow(None)

    def _attend(self) -> int:
        """Process its messages until it has ended; returns its exit code."""
        logger.info("process %d began: the program that is watched", self._program.pid)
        while (code := self._program.poll()) is None:
            self._hear()
            if self._is_due("look", POLL_PERIOD_S):
                self._program.scan()
                # Once true it stays so: a process leaves the driver's list as soon as it has ended.
                self._uses_gpu = self._uses_gpu or self._wiring.machine.lists_any(self._program.resident())
            if self._is_due("output", OUTPUT_PERIOD_S):
                self._report_output()
            self._report_silence()
        logger.info("process %d, the program that is watched, ended with code %d", self._program.pid, code)
        return code

    def _attend_the_rest(self) -> None:
        """Process the remaining messages after the program's end, and end its descendants."""
        deadline = time.monotonic() + LAST_MESSAGES_S
        self._hear(0.0)  # a short program may have connected without being accepted
        while self._server.peers and time.monotonic() < deadline and not self._hurried:
            self._hear()
        runs_on = self._end_left_behind()
        # There is nothing left for a further Stop to end; from here on `stopping` is None.
        self._left.set()
        self._hear()
        if not runs_on:
            # Explaining an out-of-memory, and the search for what would have fit, take minutes: meanwhile the figures
            # of a program that is gone would be shown as stale ones, and forecast.
            self._memory.end_readings()
        self._end_output(GRACE_S if runs_on else QUIET_S, GRACE_S if runs_on else LAST_OUTPUT_S)
        self._report_output(last=True)
        self._reports.finish()

    def _hear(self, tick_s: float = TICK_S) -> None:
        self._hearing.hear(lambda: self._program.poll() is not None, tick_s)
        self._stopping.tick()
        if self._simulated and self._news.simulation_problem:
            self._stopping.refuse("after the GPU could not be simulated")

    def _end_output(self, quiet_s: float, at_most_s: float) -> None:
        """Read the output to its end; other processes may hold it open."""
        # A press of Stop from here on means not to wait for the rest of the output.
        requests = self._stopping.requests
        self._reader.end(quiet_s, at_most_s, lambda: self._hurried or self._stopping.requests > requests)
        self._program.end_relay()
        self._metrics.end()

    def _end_left_behind(self) -> bool:
        """End processes that the program left running; returns whether one with its own session still runs."""
        behind, free = self._program.left_running(self._ranks.known().values())
        _, left = psutil.wait_procs(behind, 0 if self._hurried else GRACE_S)
        if left:
            names = _named(left)
            if self._stopping.requests:
                what = self._wait_for(left, names)
            else:
                what = self._end(left, names)
            self._news.note(Topic.PROCESSES, f"The program ended before what it had started, which {what}: {names}.")
        if free := [process for process in free if is_running(process.pid)]:
            what = "What the program started in a session of its own runs on"
            self._news.note(Topic.PROCESSES, f"{what}: {_named(free)}.")
        return bool(free)

    def _end(self, alive: Sequence[psutil.Process], names: str) -> str:
        """End processes left by a program that ended by itself; returns what was done, in words."""
        sent = []
        for number, patience_s in ((signal.SIGTERM, 0.2 if self._hurried else 1.0), (signal.SIGKILL, 0.5)):
            if alive:
                sent.append(number.name)
            for process in alive:
                with suppress(psutil.Error):
                    process.send_signal(number)
            _, alive = psutil.wait_procs(alive, patience_s)
        return f"was ended by {' and '.join(sent)}"

    def _wait_for(self, alive: Sequence[psutil.Process], names: str) -> str:
        """Wait for processes that outlive a program that was asked to end: they may be saving. Returns what was done,
        in words.

        They got the signals to the program's process group; a further request sends them the next one.
        """
        self._stopping.leave_to(f"what {self._name} has started, {names},")
        self._program.signal_other_groups(signal.Signals[self._stopping.sent[-1].name])
        before = len(self._stopping.sent)
        while alive:
            self._hear()
            if self._is_due("output", OUTPUT_PERIOD_S):
                self._report_output()
            alive = list(filter(runs, alive))
            stop = self._stopping.progress
            if stop is not None and not stop.next and stop.waited_s > KILLED_S:
                break
        sent = [one.name for one in self._stopping.sent[before:]]
        if sent:
            return f"was sent {' and '.join(sent)} by gpudash"
        return "was waited for"

    def _ending(self, code: int, *, stopped: bool) -> RunEnd:
        news = self._news
        self._report_silence(ended=True)
        if news.lost:
            self._news.note(
                Topic.PROCESSES, f"{news.lost} messages of the program were lost: it sent more than could be read."
            )
        device, peaks = self._where()
        errors = [line.text for line in self._wiring.output.newest(400) if line.stream == "stderr"]
        ran = self._hearing.ended(code, self._began_s, device, stopped=stopped)
        ran = replace(
            ran,
            errors=errors,
            oom_kills=oom_kills() - self._oom_kills,
            refusal=news.simulation_problem if self._stopping.refused else "",
            result={"exit_code": code, **ran.result, "memory": peaks, **self._stop_result(code)},
            without_cuda=self._without_cuda(),
            as_cuda=self._request.as_cuda,
            python_with_torch=lambda: python_with_torch(self._script_folder(), self._request.command[0]),
        )
        return self._reports.explained(ending_of(ran))

    def _with_need(self, ending: RunEnd) -> RunEnd:
        """The end of a program that ran out of memory, with the need of its whole run instead of a lower bound."""
        found = ending.explanation
        newest = self._reports.newest
        if found is None or newest is None or self._hurried:
            return ending
        if self._request.find_need is False or self._request.edit or found.verdict == "leak":
            return ending  # a leak needs more with every step, and a fitting change is known
        torch = self._news.torch or {}
        search = NeedSearch(
            self._request,
            {**os.environ, **self._request.environment},
            self._environment,
            FailedRun(ending.seconds, found.step, str(torch.get("version") or "2.13")),
            self._full_card(found, str(newest.get("device"))),
            lambda text: self._news.note(Topic.NEED, text),
        )
        self._need_search = search
        try:
            # `close` sets `_hurried` and then looks for a search; this does the reverse, so that one sees the other.
            if not self._hurried:
                found = search.explained(found)
        finally:
            self._need_search = None
        self._reports.rewrite(found)
        return replace(ending, explanation=found)

    def _full_card(self, found: Explanation, device: str) -> FullCard:
        """The card whose memory ran out, as far as known.

        Args:
            found: why it ran out.
            device: the program's name for it.
        """
        machine = self._wiring.machine
        uuid = machine.memory_of(self._memory.name_of(device))
        gpu = machine.gpu(uuid)
        cards = len(self._request.simulate) or len(machine.cuda_order().gpus)
        target = Target(found.device, found.capacity_bytes, architecture=architecture_of(gpu), product=found.product)
        index = device.partition(":")[2]
        number = 0
        if index.isdecimal():
            number = int(index)
        return FullCard(target, number, max(cards, number + 1))

    def _stop_result(self, code: int) -> dict[str, Any]:
        """The signals that gpudash sent to end it; empty if there were none."""
        if not self._sent:
            return {}
        signals = [{"signal": one.name, "when": one.when} for one in self._sent]
        return {"stop": {"text": stop_text(code, self._sent), "signals": signals}}

    def _where(self) -> tuple[str, dict[str, int | None]]:
        """The device that the program used, and its peaks there; the CPU if it used no GPU."""
        device = self._memory.device or self._device
        unused = self._simulated_unused()
        # For a GPU whose allocator never reported, the driver's process list shows whether it was used.
        if not unused and (self._memory.device or kind_of(device) != "cuda" or self._uses_gpu):
            return device, self._hearing.peaks(device)
        now_s = self._wiring.clock()
        text, details = unused or "The program used no GPU.", {"device": "cpu", "simulated": False}
        self._wiring.emit(Note(time_s=now_s, run_id=self._run_id, topic=Topic.DEVICE, text=text, details=details))
        with self._wiring.store.lock:
            found = self._wiring.store.statistics(("host", "process_bytes", None), self._began_s, now_s)
        peak = None
        if found is not None:
            peak = int(found.max)
        return "cpu", {"peak_used_bytes": peak, "capacity_bytes": self._wiring.machine.host.total_bytes}

    def _simulated_unused(self) -> str:
        """The sentence that the program did not use the simulated GPU; "" if it did, or there was none."""
        if not self._simulated or self._news.torch is None or self._stopping.refused:
            return ""
        if self._memory.device or self._reports.newest is not None:
            return ""
        if self._request.as_cuda:
            return "The script never used the simulated GPU, though it answered as cuda:0."
        return "The script never used sim:0. If it looks for CUDA, add --as-cuda (in the window: Pretend to be CUDA)."

    def _without_cuda(self) -> str:
        """What to do if CUDA is missing, in a sentence."""
        if self._request.as_cuda:
            return ""
        if self._simulated:
            return "Add --as-cuda (in the window: Pretend to be CUDA): the script then calls the simulated GPU cuda."
        add = "add --simulate 24GiB --as-cuda (in the window: a card above the plots, Pretend to be CUDA)"
        return f"Without a GPU a simulated one can answer as cuda: {add}."

    def _script_folder(self) -> Path:
        folder = (self._request.folder or Path.cwd()).absolute()
        return (folder / (script_of(self._request.command) or "script")).parent

    def _broken(self, error: Exception) -> RunEnd:
        """The end of a program that can no longer be watched; it is left running."""
        runs_on = ""
        if self._program.poll() is None:
            runs_on = "; it runs on, and only its end is reported"
        self._warn(f"Watching the program failed ({type(error).__name__}: {error}){runs_on}.", "critical")
        while (code := self._program.wait(TICK_S)) is None:
            self._stopping.tick()
        self._sent = tuple(self._stopping.sent)
        self._end_output(GRACE_S, GRACE_S)
        now_s, stopped = self._wiring.clock(), self._stopping.requests > 0
        result = {"exit_code": code, **self._stop_result(code)}
        seconds = now_s - self._began_s
        ran = EndedRun(self._name, code, now_s, self._run_id, seconds, 0, self._device, stopped=stopped, result=result)
        return ending_of(ran)

    def _report_output(self, *, last: bool = False) -> None:
        for record in self._reader.take(last=last):
            self._wiring.emit(record)
        printed, problem = self._metrics.take(self._wiring.clock())
        self._news.printed(printed, last=last)
        if problem:
            self._news.note(Topic.PROGRAM, problem)

    def _report_silence(self, *, ended: bool = False) -> None:
        """Report once that there are no messages, or at the end what never arrived."""
        if not self._news.heard and not self._reported_silence:
            if ended or self._wiring.clock() - self._began_s > SILENCE_S:
                self._reported_silence = True
                self._news.note(Topic.PROGRAM, UNHEARD)
        elif ended and self._news.heard and self._news.torch is None:
            self._news.note(Topic.PROGRAM, "The program never imported PyTorch.")
        elif ended and self._news.step_source == COUNTED and not self._news.knows_losses:
            self._news.note(Topic.PROGRAM, COUNTED_STEPS)

    def _started_request(self) -> WatchRequest:
        """The request to start: for a program with an edit, that of its copy."""
        if self._copy is None:
            return self._request
        return replace(self._request, command=self._copy.command)

    def _started(self) -> RunStarted:
        return RunStarted(
            time_s=self._began_s,
            run_id=self._run_id,
            workload="watch",
            device=self._device,
            spec=self._request.spec(),
            simulated=kind_of(self._device) == "sim",
        )

    def _watched_environment(self) -> dict[str, str]:
        environment = {**os.environ, **self._request.environment}
        agent = {
            **self._hearing.config(history=self._request.memory_history),
            "simulate": list(map(written, self._request.simulate)),
            "simulate_others": self._request.simulate_others,
            "as_cuda": self._request.as_cuda,
            "period_s": 0.1,
        }
        # Python imports `sitecustomize` from PYTHONPATH on startup (site.py): the one in `agent/inject` loads the
        # agent.
        path = [str(Path(gpudash.__file__).parent / "agent" / "inject"), environment.get("PYTHONPATH", "")]
        # All of the program's processes share the simulated cards, even through processes other than Python.
        environment.pop(VARIABLE, None)
        return {
            **environment,
            **({} if self._table is None else {VARIABLE: self._table.path}),
            **({} if self._copy is None else self._copy.environment),
            "GPUDASH_SOCKET": str(self._hearing.path),
            "GPUDASH_AGENT": json.dumps(agent),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }

    def _is_due(self, what: str, period_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + period_s
        return True

    def _warn(self, text: str, level: Level) -> None:
        time_s = self._wiring.clock()
        self._wiring.emit(Warning(time_s=time_s, run_id=self._run_id, level=level, device="session", text=text))

    def _clean_up(self) -> None:
        self._hearing.close()
        if self._copy is not None:
            self._copy.remove()


def _new_table() -> ProcessTable | None:
    """The table of the processes' memory on simulated cards; ``None`` if the system has no room for it."""
    try:
        return ProcessTable.create()
    except OSError:
        return None


def _named(processes: Sequence[psutil.Process]) -> str:
    """Processes by name and PID, the first five."""
    return listed([f"{process_name(process)} (pid {process.pid})" for process in processes], 5)
