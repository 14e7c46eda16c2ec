"""Converts messages of a watched program's processes to records: who they are, their torch, steps, exceptions."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudash.agent.server import Peer
from gpudash.agent.wire import number_in
from gpudash.session.watching.ending import Raised
from gpudash.session.watching.messages.step_parts import HeardParts
from gpudash.session.watching.messages.tracked_scalars import TrackedScalars, tracker_label
from gpudash.session.watching.output.printed_metrics import Printed
from gpudash.telemetry.records import Event, Note, StepFinished, Topic

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

logger = logging.getLogger(__name__)

MOST_JOINED = 30
"""Most processes that get their own note."""

MOST_RAISED = 100

STEPS_PER_SECOND = 1000
"""Most steps passed on per second; if a program reports more, some are left out."""

STEPS_AT_ONCE = 4 * STEPS_PER_SECOND

COUNTED = "optimizer"
"""Source of steps for a program that does not report them: its optimizer's are counted."""

LOGGED = "logging"
"""Source of steps with the script's own numbers, which often start at 0."""

PRINTED = "output"
"""Source of steps parsed from a program's output, if there is no other."""

HOLD_S = 0.5
"""How long printed metrics wait for earlier messages, which come a few times a second."""

RATE_S = 0.5
"""Shortest time over which a step rate is measured."""

MOST_EPOCHS = 2**53
"""A larger number is not an epoch."""

SINCE_NOW = " from now on: what was allocated before has no line"

MOST_NOTES = 500
"""Most facts noted about a run: beyond that, they say nothing new."""

MOST_ARGUMENTS = 8
"""How many arguments of a process's command line are noted."""

LONGEST_COMMAND = 120
"""Longest command in a sentence, in characters."""


class ProgramNews:
    """Converts messages to records. Belongs to one thread.

    Args:
        run_id: of the run.
        pid: PID of the command's own process.
        emit: callback for the records.
        clock: session time in seconds.
        began_wall_s: seconds since 1970 at session time 0.

    Attributes:
        heard: processes that have introduced themselves.
        torch: version of the first torch imported; ``None`` before that.
        simulation_problem: why no GPU could be simulated, in a sentence.
        raised: uncaught exceptions.
        steps: number of steps, by the reported numbers.
        stepped_s: session time of the newest step.
        step_source: source of the steps; "" before the first.
        reads_metrics: whether loss or accuracy are parsed from the program's output.
        agent_cpu_s: processor time of the agents, as reported so far.
        said_goodbye: whether the program's own agent has said goodbye, as it does when the program ends, or on
            request.
    """

    def __init__(
        self, run_id: int, pid: int, emit: Callable[[Event], None], clock: Callable[[], float], began_wall_s: float
    ) -> None:
        self.heard = 0
        self.torch: Message | None = None
        self.simulation_problem = ""
        self.raised: list[Raised] = []
        self.stepped_s = 0.0
        self.step_source = ""
        self.reads_metrics = False
        self._reports_metrics = False
        self._printed: deque[Printed] = deque()
        self._tracked = TrackedScalars()
        self._tracked_fields: list[str] = []
        self._tracking: int | None = None
        self._tracker = ""
        self._newest_step = 0
        self._newest_number = 0
        self._counts_steps = False
        self._epoch: float | None = None
        self._rated: tuple[float, int] | None = None
        self._step_began_s: float | None = None
        self._count = _StepCount()
        self._lost: dict[int, int] = {}
        self.agent_cpu_s = 0.0
        self.said_goodbye = False
        self._run_id = run_id
        self._pid = pid
        self._emit = emit
        self._clock = clock
        self._origin_s = began_wall_s
        self._began_s = clock()
        self._stepping: Peer | None = None
        self._parts = HeardParts()
        self._problems: set[str] = set()
        self._notes = 0
        self._allowed, self._allowed_s = float(STEPS_AT_ONCE), self._began_s

    @property
    def knows_losses(self) -> bool:
        """Whether a loss is known that nobody but the output, or a tracker, tells of."""
        return self.reads_metrics or bool(self._tracked_fields)

    def take(self, peer: Peer, message: Message) -> None:
        """Process a message, if it is of a kind handled here."""
        match message["type"]:
            case "hello":
                self._hello(peer, message)
            case "torch":
                self._torch(peer, message)
            case "said":
                self._said(peer, message)
            case "steps":
                self._steps(peer, message)
            case "scalars":
                self._scalars(peer, message)
            case "raised":
                self._raised(peer, message)
            case "lost":
                count = message.get("count")
                self._lost[peer.pid] = count if isinstance(count, int) else 0
            case "bye":
                cpu_s = number_in(message.get("cpu_s"))
                if cpu_s is not None and math.isfinite(cpu_s):
                    self.agent_cpu_s += cpu_s
                self.said_goodbye = self.said_goodbye or peer.pid == self._pid
            case _:
                pass

    @property
    def lost(self) -> int:
        """Number of messages that could not be sent; each process reports its total."""
        return sum(self._lost.values())

    @property
    def steps(self) -> int:
        """Number of steps completed."""
        return self._count.made

    def time_of(self, message: Message) -> float:
        """Session time of a message."""
        return self.session_time(message.get("time_us"))

    def who(self, peer: Peer) -> str:
        """The process in words, unless it is the command's own."""
        if peer.pid == self._pid and peer.rank is None:
            return ""
        return peer.label

    def note(self, topic: str, text: str, **details: Any) -> None:
        """Note a fact about the run, unless there are too many already."""
        self._notes += 1
        if self._notes > MOST_NOTES:
            return
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))

    def _hello(self, peer: Peer, message: Message) -> None:
        self.heard += 1
        whole = list(map(str, message.get("argv") or ()))
        argv = whole[:MOST_ARGUMENTS]
        if self.heard == MOST_JOINED:
            self.note(Topic.PROCESSES, "More processes have joined; they are not listed one by one.")
        if self.heard >= MOST_JOINED or message.get("forked"):
            return
        python = str(message.get("python") or "").split()
        opening = f"{peer.label[:1].upper()}{peer.label[1:]} is watched: Python {python[0] if python else '?'}"
        if argv:
            text = f"{opening}, {command_text(argv, len(whole) - len(argv))}."
        else:
            text = f"{opening}."
        logger.info("pid %d is watched from inside: Python %s", peer.pid, python[0] if python else "?")
        self.note(Topic.PROCESSES, text, pid=peer.pid, rank=peer.rank, argv=argv, executable=message.get("executable"))

    def _torch(self, peer: Peer, message: Message) -> None:
        problem = str(message.get("problem") or "")
        if self.torch is None:
            self.torch = message
            cuda = message.get("cuda")
            text = f"PyTorch {message.get('version')}, {f'CUDA {cuda}' if cuda else 'without CUDA'}"
            if message.get("simulated"):
                text += ", simulated GPUs"
            if message.get("history"):
                text += ", memory history is recorded"
                if peer.hello.get("attached"):
                    text += SINCE_NOW
            facts = {key: message.get(key) for key in ("version", "cuda", "simulated", "history")}
            self.note(Topic.PROGRAM, f"{text}.", pid=peer.pid, **facts)
            if problem and not message.get("simulated"):
                self.simulation_problem = problem
        if problem and problem not in self._problems and len(self._problems) < MOST_JOINED:
            self._problems.add(problem)
            self.note(Topic.PROGRAM, problem, pid=peer.pid)

    def _said(self, peer: Peer, message: Message) -> None:
        """A limitation of the simulated GPU, reported once for all processes."""
        text = str(message.get("text") or "")
        if text and text not in self._problems and len(self._problems) < MOST_JOINED:
            self._problems.add(text)
            self.note(Topic.PROGRAM, text, pid=peer.pid)

    def _steps(self, peer: Peer, message: Message) -> None:
        """Steps of a process: of several ranks the first one's, as all make the same; prefers reported to counted
        steps."""
        source = str(message.get("source") or LOGGED)
        if source == COUNTED and peer.rank is not None and self.step_source not in ("", COUNTED, PRINTED):
            return  # one rank reports the steps; if it ends first, the others' are the same steps
        if not self._is_stepping(peer, source):
            return
        if source != self.step_source:
            self.step_source, self._count = source, _StepCount(from_0=source == LOGGED)
            self._rated = None
        began_us = message.get("began_us")
        if self._step_began_s is None and began_us is not None:
            self._step_began_s = self.session_time(began_us)
        rows = self._passed_on(message.get("steps"))
        if source not in (COUNTED, LOGGED) or any(_reports_a_metric(row) for row, _ in rows):
            self._metrics_are_reported()
        for row, made in rows:
            step, time_us, loss, accuracy, *more = row
            # Messages of several processes and lines of output arrive out of order; a curve's points must be in order.
            time_s = max(self.stepped_s, self.session_time(time_us))
            # What was printed before this step belongs to the previous one.
            self._report_printed(time_s)
            self._newest_step = step
            self._emit(
                StepFinished(
                    time_s=time_s,
                    run_id=self._run_id,
                    step=step,
                    steps=0,
                    seconds=None if self._step_began_s is None else max(0.0, time_s - self._step_began_s),
                    loss=number_in(loss),
                    accuracy=number_in(accuracy),
                    throughput=self._rate(time_s, made),
                    val_loss=number_in(more[1]) if len(more) > 1 else None,
                )
            )
            self.stepped_s = self._step_began_s = time_s
        self._step_parts(peer, message)

    def _step_parts(self, peer: Peer, message: Message) -> None:
        """Parts of its steps' time, as stages of the run; the loader's settings once for each change."""
        before = self._parts.loader
        for stage in self._parts.take(peer.pid, message.get("parts"), self.time_of(message), self._run_id):
            self._emit(stage)
        loader = self._parts.loader
        if loader is not None and loader != before:
            self.note(Topic.INPUT, f"The program's DataLoader has {loader.text()}.", **asdict(loader))

    def printed(self, found: Sequence[Printed], *, last: bool = False) -> None:
        """Process metrics parsed from the program's output; metrics that it reports itself take precedence.

        Args:
            found: metrics in order.
            last: whether there will be no more.
        """
        if not self._reports_metrics:
            if self._tracking is None:
                self._printed.extend(found)
            self._report_printed(math.inf if last else self._clock() - HOLD_S)

    def _scalars(self, peer: Peer, message: Message) -> None:
        """What one process writes for a tracker: of several ranks the first that does. Its output is not read then,
        which as a rule has the same losses.
        """
        if self._reports_metrics or self._tracking not in (None, peer.pid):
            return
        found = self._tracked.take(message.get("scalars"), self.session_time)
        if found and self._tracking is None:
            self._tracking = peer.pid
            self._tracker = tracker_label(message.get("tracker"))
            self._printed.clear()
        self._printed.extend(found)

    def _report_tracked(self, found: Printed) -> None:
        """Say what is plotted of the scalars, again where there are more of them."""
        new = [field for field in found.fields if field not in self._tracked_fields]
        if not new:
            return
        self._tracked_fields += new
        named = ", ".join(self._tracked_fields)
        text = f"What is plotted is what the program writes for {self._tracker}: {named}."
        self.reads_metrics = False
        self.note(Topic.FROM_OUTPUT, text, reads=False)

    def _report_printed(self, until_s: float) -> None:
        """Report metrics printed by then, at the newest step of that time."""
        while self._printed and self._printed[0].time_s <= until_s:
            found = self._printed.popleft()
            if self._tracking is None:
                self._report_fields(found)
            else:
                self._report_tracked(found)
            if not found.fields:
                continue
            rate = None
            time_s = max(self.stepped_s, found.time_s)
            if self.step_source in ("", PRINTED):
                self._count_printed(found)
                rate = None
                if found.step is not None:
                    rate = self._rate(time_s, self._count.made)
            self._emit(
                StepFinished(
                    time_s=time_s,
                    run_id=self._run_id,
                    step=self._newest_step,
                    steps=0,
                    seconds=None,
                    loss=found.loss,
                    accuracy=found.accuracy,
                    throughput=rate,
                    val_loss=found.val_loss,
                    losses=found.losses or None,
                )
            )
            self.stepped_s = time_s

    def _report_fields(self, found: Printed) -> None:
        """Report once which printed fields are plotted, and each loss that is not."""
        sentences = []
        if found.fields and not self.reads_metrics:
            self.reads_metrics = True
            *others, last = dict.fromkeys(found.fields)
            named = last
            if others:
                named = f"{', '.join(others)} and {last}"
            sentences.append(f"What is plotted is read from the output: {named}.")
        if found.skipped:
            sentences.append(f"Seen in the output and not plotted: {', '.join(found.skipped)}.")
        if sentences:
            self.note(Topic.FROM_OUTPUT, " ".join(sentences), reads=self.reads_metrics)

    def _count_printed(self, found: Printed) -> None:
        """Count steps by printed numbers, or by epochs if no step has a number."""
        if not self.step_source:
            self.step_source, self._count = PRINTED, _StepCount(from_0=True)
        number = found.step
        if number is None:
            if found.epoch is not None and not self._counts_steps:
                self._newest_step = max(self._newest_step, int(min(found.epoch, MOST_EPOCHS)))
            return
        # Epochs counted as steps so far; from the first numbered step on they do not.
        if not self._counts_steps:
            self._counts_steps, self._newest_step = True, 0
        # A progress bar (with a total) or another epoch may start again at a low number; otherwise, a lower number is
        # no restart.
        again = found.total is not None or found.epoch != self._epoch
        self._count.take(number, begins=again and number < self._newest_number)
        self._newest_number, self._epoch = number, found.epoch
        self._newest_step = self._count.made

    def _metrics_are_reported(self) -> None:
        """The program now reports its loss itself, so it is no longer parsed from the output."""
        if self.reads_metrics:
            self.reads_metrics = False
            self.note(
                Topic.FROM_OUTPUT, "The program tells its loss by itself; its output is not read for it.", reads=False
            )
        self._reports_metrics = True
        self._printed.clear()

    def _rate(self, time_s: float, made: int) -> float | None:
        """Steps per second since the last report; ``None`` if that was too recent to be meaningful."""
        if self._rated is None or made < self._rated[1]:
            self._rated = time_s, made
            return None
        seconds, steps = time_s - self._rated[0], made - self._rated[1]
        if seconds < RATE_S or not steps:
            return None
        self._rated = time_s, made
        return steps / seconds

    def _is_stepping(self, peer: Peer, source: str) -> bool:
        """Whether this process's steps count as the program's."""
        now = self._stepping
        if now is None or _is_better(peer, source, now, self.step_source):
            self._stepping = now = peer
            if peer.rank is not None:
                self._count.turn()
        return peer.pid == now.pid

    def _passed_on(self, found: Any) -> list[tuple[list[Any], int]]:
        """The steps in a message with the number completed at each, thinned to the available room; always includes the
        newest.
        """
        rows = []
        for row in found if isinstance(found, list) else ():
            if not isinstance(row, list) or len(row) < 4:
                self._leave_out("A step was left out: it has no number, time, loss and accuracy.")
            elif not isinstance(row[0], int) or isinstance(row[0], bool):
                self._leave_out(f"A step was left out: its number is no whole number of 64 bits, but {row[0]!r:.40}.")
            else:
                # Count before thinning, so that the number of steps stays correct.
                self._count.take(row[0])
                rows.append((row, self._count.made))
        now_s = self._clock()
        # A token bucket: refilled at `STEPS_PER_SECOND`, with a capacity of `STEPS_AT_ONCE`.
        gained = (now_s - self._allowed_s) * STEPS_PER_SECOND
        self._allowed, self._allowed_s = min(STEPS_AT_ONCE, self._allowed + gained), now_s
        room = int(self._allowed)
        if len(rows) > room:
            if room:
                # Thin from the end, so that the newest step is kept.
                rows = rows[:: -math.ceil(len(rows) / room)][::-1]
            else:
                rows = []
        self._allowed -= len(rows)
        return rows

    def _leave_out(self, sentence: str) -> None:
        """Report that part of a message was dropped, once for each kind of error."""
        kind = sentence.rpartition(", but ")[0] or sentence
        if kind not in self._problems and len(self._problems) < MOST_JOINED:
            self._problems.add(kind)
            self.note(Topic.PROGRAM, sentence)

    def left(self, peer: Peer) -> None:
        """A process has disconnected."""
        if self._stepping is peer:
            self._stepping = None

    def _raised(self, peer: Peer, message: Message) -> None:
        line, file = message.get("line"), message.get("file")
        if message.get("thread"):
            text = f"{message.get('error')}: {str(message.get('message') or '').strip()}".rstrip(": .")
            self.note(Topic.PROGRAM, f"An exception ended the thread {message['thread']} ({text}).", pid=peer.pid)
            return
        if len(self.raised) < MOST_RAISED:
            raised = Raised(
                error=str(message.get("error") or "an exception"),
                message=str(message.get("message") or ""),
                file=str(file) if file else None,
                line=line if isinstance(line, int) else None,
                name=str(message.get("name") or ""),
                details=_traceback(message.get("traceback")),
                who=self.who(peer),
                time_s=self.time_of(message),
                rank=peer.rank,
            )
            self.raised.append(raised.at_own_line())

    def session_time(self, time_us: Any) -> float:
        """Session time for a time since 1970, limited to between the run's start and now."""
        now_s = self._clock()
        if not isinstance(time_us, int | float) or not math.isfinite(time_us) or isinstance(time_us, bool):
            return now_s
        return min(now_s, max(self._began_s, time_us / 1e6 - self._origin_s))


def _is_better(peer: Peer, source: str, now: Peer, its_source: str) -> bool:
    """Whether to use the steps of ``peer`` instead of those of ``now``."""
    if (peer.rank == 0) != (now.rank == 0):
        return peer.rank == 0
    # Reported steps replace counted ones, never the reverse.
    return its_source == COUNTED != source


class _StepCount:
    """The number of completed steps, by their reported numbers.

    Args:
        from_0: whether the first step may have the number 0; a trainer that reports 0 has completed none.
    """

    def __init__(self, *, from_0: bool = False) -> None:
        self._from_0 = from_0
        self._before = 0
        self._newest: int | None = None
        self._extra = 0
        self._turned = False

    @property
    def made(self) -> int:
        if self._newest is None:
            return self._before
        return self._before + max(0, self._newest + self._extra)

    def turn(self) -> None:
        """From now on another rank reports, about the same steps."""
        self._turned = True

    def take(self, number: int, *, begins: bool = False) -> None:
        """Record a step; a low number after a higher one starts another epoch, or another training.

        Args:
            begins: whether this step starts one in any case.
        """
        newest = self._newest
        # 0 or 1 after a higher number is a restart; any other lower number is a late line.
        begins = begins or newest is None or number <= 1 < newest or number < 1 <= newest
        if begins and not self._turned:
            self._before = self.made
        if begins:
            self._extra = int(number == 0 and self._from_0)
        self._newest, self._turned = number, False


def command_text(argv: Sequence[str], more: int = 0) -> str:
    """A command in a sentence, without the folder of its program; marks where it is cut off.

    Args:
        argv: first arguments.
        more: number of further arguments.
    """
    first = Path(argv[0]).name or argv[0]
    text = " ".join([first, *argv[1:]])
    if len(text) > LONGEST_COMMAND:
        return f"{text[:LONGEST_COMMAND]}…"
    if more:
        return f"{text} … ({more} more argument{'' if more == 1 else 's'})"
    return text


def _reports_a_metric(row: list[Any]) -> bool:
    """Whether a step contains a training or validation loss, or an accuracy."""
    return any(value is not None for value in (*row[2:4], *row[5:6]))


def _traceback(found: Any) -> str:
    if isinstance(found, list):
        return "".join(map(str, found))
    return str(found or "")
