"""Joins the ranks of a watched program: rows of the table ``rank``, slow or full ranks, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpudash.agent.server import Peer
from gpudash.agent.wire import number_in
from gpudash.telemetry.ranks import Finding, RankFindings, RankMemory, Ranks, RankStep, findings
from gpudash.telemetry.records import Note, Record, Topic
from gpudash.units import format_bytes, format_like

if TYPE_CHECKING:
    from gpudash.agent.wire import Message

ROWS_PER_SECOND = 2000
"""Most rows of steps passed on per second; if there are more, whole steps are left out."""

MOST_RANKS = 4096
"""Largest credible world size."""

MOST_FRAMES, LONGEST_NAME = 64, 1000
"""Most frames of a stack, and longest file or function name in characters."""

STRATEGIES = {"ddp": "DistributedDataParallel", "fsdp": "FSDP"}


class WatchedRanks:
    """The ranks of a run that run on this computer. Belongs to the thread that receives messages.

    Args:
        run_id: of the run.
        emit: callback for records.
        clock: session time in seconds.
        time_of: session time of a message.
        host_bytes: memory of this computer, which ranks on the CPU share; ``None`` if unknown.

    Attributes:
        restarts: how often the launcher has restarted all ranks.
        places: stacks of ranks without a step for a while: frames, outermost first, by rank.
    """

    def __init__(
        self,
        run_id: int,
        emit: Callable[[Record], None],
        clock: Callable[[], float],
        time_of: Callable[[Message], float],
        host_bytes: int | None = None,
    ) -> None:
        self.restarts = 0
        self.places: dict[int, list[dict[str, Any]]] = {}
        self._run_id = run_id
        self._emit = emit
        self._clock = clock
        self._time_of = time_of
        self._host_bytes = host_bytes
        self._ranks: Ranks | None = None
        self._numbers: dict[int, int] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._wanted: dict[int, int] = {}
        self._about: dict[str, Any] = {}
        self._rows, self._rows_s = float(ROWS_PER_SECOND), clock()
        self._findings = RankFindings(clock())

    def take(self, peer: Peer, message: Message) -> bool:
        """Process a message, if it is a rank's; returns whether it was."""
        kind = message["type"]
        if kind == "rank":
            self._introduced(peer, message)
        elif kind not in ("rank_steps", "rank_memory", "rank_place"):
            return False
        elif self._ranks is not None and (number := self._numbers.get(peer.pid)) is not None:
            if kind == "rank_steps":
                self.places.pop(number, None)
                self._steps(self._ranks, number, message)
            elif kind == "rank_place":
                self.places[number] = _frames(message.get("frames"))
            else:
                self._memory(self._ranks, number, message)
        return True

    def result(self) -> dict[str, Any]:
        """The ranks' part of a run's result; empty for a run without ranks."""
        if self._ranks is None:
            return {}
        for finding in self._findings.at_end(self._ranks):
            self._report(finding)
        rows = [{**self._facts.get(row["rank"], {}), **row} for row in self._ranks.summary()]
        return {
            "ranks": rows,
            **findings(self._ranks),
            "parameters_equal": None,  # only the program knows
            "restarts": self.restarts,
            **self._about,
        }

    def known(self) -> dict[int, int]:
        """PIDs of the ranks, by rank."""
        return {number: int(facts["pid"]) for number, facts in self._facts.items()}

    def refused(self, peer: Peer, message: Message) -> None:
        """Record a process's failed allocation, if it is a rank: the memory it would have had."""
        number, requested = self._numbers.get(peer.pid), _size(message.get("requested_bytes"))
        allocated = _size(message.get("allocated_bytes"))
        if number is not None and requested is not None and allocated is not None:
            self._wanted[number] = allocated + requested

    def why_full(self, number: int | None) -> str:
        """Why memory ran out on this rank, not on another, in a sentence; "" if unknown."""
        if self._ranks is None or number not in self._facts:
            return ""
        found = self._ranks.imbalance()
        if found is not None and found.rank == number:
            return found.text
        # Without peaks of all ranks there is no comparison.
        if self._ranks.compared is None:
            return ""
        capacities = {rank: facts.get("capacity_bytes") for rank, facts in self._facts.items()}
        own, others = capacities.pop(number), list(filter(None, capacities.values()))
        is_smallest = bool(own and others and own < min(others))
        if found is not None:
            if is_smallest:
                return f"The device of rank {number} is the smallest."
            return found.text
        if is_smallest:
            return f"All ranks need about as much, and the device of rank {number} is the smallest."
        # Their peaks are similar: perhaps the failed request made the difference, which is in no peak.
        request = self._ranks.imbalance({number: self._wanted.get(number, 0)})
        if request is not None:
            return (
                f"All ranks held about as much, and rank {number} alone asked for more: it would have allocated "
                f"{format_bytes(request.bytes)}; the others allocated "
                f"{format_like(request.others_bytes, request.bytes)} at their peak."
            )
        return f"All ranks need about as much; rank {number} was the first to ask for more than was free."

    def held(self, number: int) -> str:
        """What a rank had on its device at its peak, in a sentence; "" if unknown."""
        if self._ranks is None or number not in self._facts:
            return ""
        device = self._facts[number]["device"]
        allocated, reserved = (self._ranks.peak(number, f"{name}_bytes") for name in ("allocated", "reserved"))
        if allocated is None or reserved is None:
            return ""
        return (
            f"At its peak it had {format_bytes(allocated)} allocated on {device}, and "
            f"{format_like(reserved, allocated)} reserved."
        )

    def _introduced(self, peer: Peer, message: Message) -> None:
        number, world_size = message.get("rank"), message.get("world_size")
        if not isinstance(number, int) or not isinstance(world_size, int) or not 0 <= number < world_size <= MOST_RANKS:
            raise ValueError(f"rank {number} of {world_size}")
        restart = restart if isinstance(restart := peer.hello.get("restart"), int) else 0
        # A late message of ranks that the launcher has since replaced.
        if restart < self.restarts:
            return
        heard = _heard_here(peer, number, world_size)
        # Another world size or other ranks than known: a different group, which does not join the earlier one.
        if self._ranks is None or (self._ranks.world_size, self._ranks.heard) != (world_size, heard):
            self._ranks = Ranks(world_size, heard)
            self._forget()
        elif restart > self.restarts:
            self._ranks.begin_again()
            self._forget()
        self.restarts = restart
        if peer.rank is None:  # started by the program itself, without a launcher's variables
            peer.hello["rank"] = number
        self._numbers[peer.pid] = number
        device = str(message.get("device") or "")
        self._facts[number] = {
            "rank": number,
            "local_rank": peer.hello.get("local_rank"),
            "device": device,
            "host": str(peer.hello.get("host") or ""),
            "pid": peer.pid,
            "capacity_bytes": self._host_bytes if device == "cpu" else None,
        }
        self._about = {
            "world_size": world_size,
            "strategy": str(message.get("strategy") or ""),
            "backend": str(message.get("backend") or ""),
            "run": str(peer.hello.get("run") or ""),
        }
        # Once all ranks on this computer are there: earlier notes would be about an incomplete group.
        if len(self._facts) == len(heard):
            self._report_ranks()

    def _forget(self) -> None:
        for known in (self._numbers, self._facts, self.places, self._wanted):
            known.clear()

    def _report_ranks(self) -> None:
        if len(self._facts) == self._about["world_size"]:
            here = ""
        else:
            here = f", {len(self._facts)} of them here,"
        text = ranks_text({**self._about, "restarts": self.restarts}, here)
        rows = [self._facts[number] for number in sorted(self._facts)]
        self._note(Topic.RANKS, text, **self._about, restarts=self.restarts, ranks=rows)

    def _steps(self, ranks: Ranks, number: int, message: Message) -> None:
        rows = message.get("steps")
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, list) or len(row) < 7 or not isinstance(row[0], int) or number_in(row[2]) is None:
                continue
            time_s = self._time_of({"time_us": row[1]})
            compute_s, blocked_s, loss, accuracy = map(number_in, row[3:7])
            input_s = None
            if len(row) > 7:
                input_s = number_in(row[7])
            joined = ranks.take_step(
                RankStep(number, row[0], time_s, float(row[2]), compute_s, blocked_s, loss, accuracy, input_s)
            )
            if joined is None:
                continue
            # Pass on or drop whole steps: an incomplete one could not be compared.
            if self._passes(len(joined.samples)):
                for sample in joined.samples:
                    self._emit(sample)
        for finding in self._findings.new(ranks, self._clock()):
            self._report(finding)

    def _memory(self, ranks: Ranks, number: int, message: Message) -> None:
        sizes = {name: _size(message.get(name)) for name in _SIZES}
        if (capacity := _size(message.get("capacity_bytes"))) is not None:
            self._facts[number]["capacity_bytes"] = capacity
        for sample in ranks.take_memory(RankMemory(number, self._time_of(message), **sizes)):
            self._emit(sample)

    def _passes(self, rows: int) -> bool:
        """Whether there is room for this many rows now."""
        now_s = self._clock()
        self._rows = min(ROWS_PER_SECOND, self._rows + (now_s - self._rows_s) * ROWS_PER_SECOND)
        self._rows_s = now_s
        # A step with more rows than the bucket's capacity passes when it is full; otherwise it never could.
        if self._rows < min(rows, ROWS_PER_SECOND):
            return False
        self._rows -= rows
        return True

    def _report(self, finding: Finding) -> None:
        self._note(finding.topic, finding.text, **finding.details)

    def _note(self, topic: str, text: str, **details: Any) -> None:
        self._emit(Note(time_s=self._clock(), run_id=self._run_id, topic=topic, text=text, details=details))


def ranks_text(about: Mapping[str, Any], where: str) -> str:
    """The number of ranks, their place and backend, in a sentence.

    Args:
        about: details of the note about them.
        where: text after "ranks".
    """
    strategy = STRATEGIES.get(str(about.get("strategy")), "torch.distributed")
    again = ""
    if about.get("restarts"):
        again = f", started again ({about['restarts']})"
    return f"{about.get('world_size')} ranks{where} train with {strategy} over {about.get('backend')}{again}."


_SIZES = ("used_bytes", "allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


def _heard_here(peer: Peer, number: int, world_size: int) -> tuple[int, ...]:
    """The ranks on this computer: torchrun numbers those of a node consecutively."""
    local_rank, count = peer.hello.get("local_rank"), peer.hello.get("local_world_size")
    if isinstance(local_rank, int) and isinstance(count, int) and 0 <= local_rank <= number and 0 < count < world_size:
        first = number - local_rank
        return tuple(range(first, min(first + count, world_size)))
    return tuple(range(world_size))


def _frames(stack: Any) -> list[dict[str, Any]]:
    """The valid frames of a stack reported by a program."""
    found = []
    for frame in stack[-MOST_FRAMES:] if isinstance(stack, list) else ():
        if isinstance(frame, list) and len(frame) == 3:
            file, line, name = frame
        else:
            file, line, name = ("", None, "")
        if isinstance(file, str) and isinstance(line, int) and isinstance(name, str):
            found.append({"file": file[:LONGEST_NAME], "line": line, "name": name[:LONGEST_NAME]})
    return found


def _size(value: Any) -> int | None:
    number = number_in(value)
    if number is None or not 0 <= number < 2**63:
        return None
    return int(number)
