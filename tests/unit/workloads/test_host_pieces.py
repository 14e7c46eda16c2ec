"""The pieces of a run's own process: how deaths are told, what is sent, and how a request travels."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from gpudash.agent.wire import MOST_BYTES, Decoder
from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.device.simulated_gpu import A100, CONTEXT_BYTES, SimulatedGpu
from gpudash.specs import MatmulSpec, TrainingSpec
from gpudash.specs.memory_cap import MemoryCap
from gpudash.telemetry.records import Note, RunEnd, RunStarted, StepFinished, event_from_json
from gpudash.units import GIB, MIB
from gpudash.workloads.running.hosted.host_process import Outbox
from gpudash.workloads.running.hosted.request import message_of, request_from
from gpudash.workloads.running.run import RunRequest
from gpudash.workloads.running.run_errors import UNHEARD, MemoryKills, Progress, WorkloadError, died, signal_text

PROGRESS = Progress(9.0, 3, 2.5, 7, {"memory": {}})


def end(code: int | None, *, full: bool = False) -> Any:
    return died(code, PROGRESS, "training", memory_was_full=full, details="at line 4")


def test_a_kill_while_the_kernel_counted_one_for_full_memory_is_an_out_of_memory_of_the_host() -> None:
    ending = end(-signal.SIGKILL, full=True)
    assert isinstance(ending, RunEnd) and ending.status == "out_of_memory"
    assert (ending.error, ending.steps, ending.seconds, ending.details) == ("host", 7, 2.5, "at line 4")
    assert ending.message == ("This computer's memory ran out: the system killed the process of the run after 7 steps.")


def test_a_kill_without_that_evidence_is_told_as_a_kill() -> None:
    ending = end(-signal.SIGKILL)
    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == "killed"


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (-signal.SIGSEGV, "crashed", "its process crashed (Segmentation fault, SIGSEGV)."),
        (-signal.SIGABRT, "crashed", "its process crashed (Aborted, SIGABRT)."),
        (-signal.SIGHUP, "killed", "its process was ended from outside (SIGHUP)."),
        (-signal.SIGTERM, "killed", "its process was ended from outside (SIGTERM)."),
        (2, "exited", "its process ended itself with exit code 2."),
        (0, "exited", "its process ended itself with exit code 0."),
        (None, "silent", "its process closed its connection and was ended."),
        (UNHEARD, "silent", "its process closed its connection and was ended."),
    ],
)
def test_other_deaths_are_told_for_what_they_are_also_when_memory_was_full(
    code: int | None, error: str, words: str
) -> None:
    ending = end(code, full=True)
    assert isinstance(ending, RunEnd) and ending.status == "failed" and ending.error == error
    assert ending.message == f"The training workload ended after 7 steps: {words}"


def test_a_signal_without_a_name_keeps_its_number() -> None:
    assert signal_text(signal.SIGBUS) == "Bus error, SIGBUS"
    assert signal_text(99) == "signal 99"


VERSIONS = [
    ("0::/user.slice/run", "sys/fs/cgroup/user.slice/run/memory.events", "low 0\nhigh 0\noom 3\noom_kill {}\n"),
    ("0::/../outside", "sys/fs/cgroup/memory.events", "oom_kill {}\n"),
    ("4:memory:/job", "sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ("4:memory:/hidden", "sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill {}\n"),
    ("0::/", "proc/vmstat", "pgfault 12\noom_kill {}\n"),
]


@pytest.mark.parametrize(("group", "file", "text"), VERSIONS)
def test_the_kernels_kills_are_counted_wherever_this_system_counts_them(
    tmp_path: Path, group: str, file: str, text: str
) -> None:
    counter, groups = tmp_path / file, tmp_path / "proc/self/cgroup"
    for path, words in ((counter, text.format(4)), (groups, f"1:cpu:/\n{group}\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words)
    kills = MemoryKills(tmp_path)
    assert not kills.rose()
    counter.write_text(text.format(5))
    assert kills.rose()


def test_where_nothing_counts_nothing_rises(tmp_path: Path) -> None:
    kills = MemoryKills(tmp_path)
    assert not kills.rose()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("oom_kill many\n")
    assert not MemoryKills(tmp_path).rose()


class Sent:
    """What an outbox has sent, put together again."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self.messages: list[dict[str, Any]] = []
        self.sending, self.may_send = threading.Event(), threading.Event()
        self.may_send.set()

    def __call__(self, data: bytes) -> None:
        self.sending.set()
        assert self.may_send.wait(30)
        self.messages += self._decoder.feed(data)

    def events(self) -> list[Any]:
        told = [text for message in self.messages for text in message.get("events", [message.get("event")]) if text]
        return [event_from_json(text) for text in told]


def step(number: int) -> StepFinished:
    return StepFinished(time_s=float(number), run_id=1, step=number, steps=9, seconds=0.1)


ENDING = RunEnd(time_s=9.0, run_id=1, status="finished", seconds=1.0, steps=9, result={})


def test_events_and_messages_are_sent_in_the_order_they_were_put_and_the_ending_last() -> None:
    sent = Sent()
    sent.may_send.clear()
    outbox = Outbox(sent, lambda: None)
    outbox.put(step(0), urgent=True)
    assert sent.sending.wait(30)  # what is put from now on waits
    for number in range(1, 600):
        outbox.put(step(number))
    outbox.put({"type": "ask", "number": 1}, urgent=True)
    outbox.put(step(600))
    assert outbox.crowded
    sent.may_send.set()
    outbox.end(ENDING)
    assert [event.step for event in sent.events()[:-1]] == list(range(601)) and sent.events()[-1] == ENDING
    kinds = [message["type"] for message in sent.messages]
    assert kinds[-3:] == ["ask", "events", "ending"] and len(kinds) < 10
    assert not outbox.crowded


def test_what_is_longer_than_a_message_is_left_out_and_said_so() -> None:
    sent, huge = Sent(), "x" * (MOST_BYTES + 1)
    outbox = Outbox(sent, lambda: None)
    outbox.put(RunStarted(time_s=0.0, run_id=1, workload="w", device="cpu", spec={"field": huge}))
    outbox.put(step(1))
    outbox.put(Note(time_s=2.0, run_id=1, topic="t", text=huge))
    outbox.end(RunEnd(time_s=3.0, run_id=1, status="finished", seconds=1.0, steps=1, result={"v": huge}))
    started, first, note, ending = sent.events()
    assert (started.workload, started.spec, first.step) == ("w", {}, 1)
    assert note.text.startswith("The Note of this run is longer than what can be passed on")
    assert isinstance(ending, RunEnd) and ending.status == "failed" and (ending.error, ending.steps) == ("result", 1)


def test_when_nothing_can_be_sent_any_more_it_says_so_once() -> None:
    gone = threading.Event()

    def broken(_data: bytes) -> None:
        raise BrokenPipeError

    outbox = Outbox(broken, gone.set)
    outbox.put(step(1))
    assert gone.wait(30)
    outbox._thread.join(10)
    assert not outbox._thread.is_alive()


def passed_on(request: RunRequest) -> RunRequest:
    asked: list[str] = []

    def ask(what: str, **facts: Any) -> None:
        asked.append(what)

    found = request_from(message_of(request, lambda: 5.0), ask)
    assert found.memory is not None and found.memory() is None
    assert asked == ["memory"]
    return found


@pytest.mark.process
def test_a_request_arrives_whole() -> None:
    settings = AllocatorSettings.parse("roundup_power2_divisions:[256:1,>:4],expandable_segments:True")
    cards = (
        SimulatedGpu(0, GIB, others={4711: MIB}, settings=settings),
        SimulatedGpu(1, 2 * GIB, architecture=Architecture((9, 0), 132)),
    )
    request = RunRequest(
        MatmulSpec(size=64, dtype="bfloat16"),
        "sim:1",
        7,
        refuse=lambda size, device: None,
        warn_ratio=0.7,
        expected_uuid="SIM-1",
        link_bytes_per_second=1e9,
        cards=cards,
        memory_cap=MemoryCap(share=0.5),
        isolate=True,
    )
    found = passed_on(request)
    assert found.spec == request.spec and found.refuse is not None
    for name in ("device", "run_id", "warn_ratio", "expected_uuid", "link_bytes_per_second", "memory_cap"):
        assert getattr(found, name) == getattr(request, name)
    assert [(card.index, card.capacity, card.others) for card in found.cards] == [
        (0, GIB, {4711: MIB}),
        (1, 2 * GIB, {}),
    ]
    assert [card.settings for card in found.cards] == [settings, AllocatorSettings()]
    assert [card.architecture for card in found.cards] == [A100, Architecture((9, 0), 132)]


def test_a_field_that_was_not_given_is_not_given_there_either() -> None:
    spec = TrainingSpec(steps=2)  # three epochs would be refused, had they been asked for
    found = passed_on(RunRequest(spec, "cpu", 1))
    assert found.spec == spec and found.spec.model_fields_set == {"steps"} and found.refuse is None


def test_what_this_process_holds_of_a_card_is_anothers_in_the_runs_own() -> None:
    card = SimulatedGpu(0, GIB)
    card.allocate(2 * MIB)
    (there,) = passed_on(RunRequest(MatmulSpec(), "sim:0", 1, cards=(card,))).cards
    assert there.others == {os.getpid(): CONTEXT_BYTES + card.reserved_bytes()}
    assert there.free_and_total() == card.free_and_total()


def test_a_spec_of_a_module_that_is_not_there_is_refused_in_words() -> None:
    message = {
        **message_of(RunRequest(MatmulSpec(), "cpu", 1), lambda: 0.0),
        "workload": "no",
        "spec_type": ["no.x", "N"],
    }
    with pytest.raises(
        WorkloadError, match=r"The workload no cannot be had in a process of its own \(ModuleNotFoundEr"
    ):
        request_from(message, lambda what, **facts: None)
