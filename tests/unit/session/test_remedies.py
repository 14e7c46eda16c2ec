"""Looking for what would have fitted, after an out-of-memory."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpudash.devices.names import Simulation
from gpudash.memory.allocator.trace import ACTIVATIONS
from gpudash.memory.explaining.explain import explain
from gpudash.memory.explaining.memory_state import AllocationGroup, MemoryState, RefusedRequest, other_process
from gpudash.memory.explaining.remedies import ALONE, IN_BYTES, dry_run_remedies, flags
from gpudash.memory.predicting.estimate import Alternative
from gpudash.session.predicting import remedies as remedies_module
from gpudash.session.predicting.estimator import Estimator
from gpudash.session.predicting.remedies import Remedies, found_text
from gpudash.specs import BUILT_IN
from gpudash.telemetry.explanation import Explanation, Remedy
from gpudash.telemetry.records import Event, RemediesFound, RunStarted
from gpudash.units import GIB, MIB
from tests.unit.session.conftest import Live, Make
from tests.unit.telemetry.run_ends import RAN_OUT

pytestmark = pytest.mark.process

Look = Callable[..., "Looking"]

PREDICTS = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    found = {"workload": "training", "device": "sim:0", "minimum_capacity_bytes": MINIMUM, "peak_reserved_bytes": 7,
             "alternatives": [{"change": "batch 8", "fields": {"batch": 8}, "fits": True, "peak_reserved_bytes": 5},
                              {"change": "batch 32", "fields": {"batch": 32}, "fits": False},
                              {"change": "told " + json.dumps([asked["target"], asked["used_bytes"]]), "fits": True}]}
    print(json.dumps({"id": asked["id"], "estimate": found, "final": True}), flush=True)
"""
REFUSES = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    error = {"kind": "raised", "message": "The code raised.", "remedy": ""}
    print(json.dumps({"id": json.loads(line)["id"], "error": error, "final": True}), flush=True)
"""
WORKS_ON = PREDICTS.replace(', "final": True', ', "final": False') + "    while True: pass"
"""Tells what it has found, and is never done."""
HANGS = "import json, threading; print(json.dumps({'ready': True}), flush=True); threading.Event().wait()"


def out_of_memory(**changed: Any) -> Explanation:
    state = {
        "device": "sim:0",
        "capacity": 8 * GIB,
        "device_free": 0,
        "reserved": 7 * GIB,
        "context_bytes": GIB,
        "groups": (AllocationGroup(7 * GIB, 9, ACTIVATIONS),),
        "request": RefusedRequest(GIB, GIB),
    }
    return explain(MemoryState(**{**state, **changed}))


class Looking:
    """Remedies whose predictions come from a script, and what they tell."""

    def __init__(self, live: Live, script: str, minimum: int = 3 * GIB) -> None:
        self.reported: list[Event] = []
        self.taking = True
        command = (sys.executable, "-c", script.replace("MINIMUM", str(minimum)))
        session = live.session
        self.remedies = Remedies(session.machine, session.store, self._emit, lambda: 9.0, lambda: Estimator(command))
        self._live = live

    def _emit(self, event: Event) -> None:
        self.reported.append(event)
        if self.taking:
            self.remedies.take(event)

    def fail(self, found: Explanation | None, workload: str = "training") -> None:
        started = RunStarted(time_s=0.5, run_id=1, workload=workload, device="sim:0", spec={"batch": 64})
        ended = replace(RAN_OUT, seconds=0.5, steps=1, explanation=found)
        for event in (started, ended):
            self._live.session.store.apply(event)
            self.remedies.take(event)

    def note(self) -> RemediesFound:
        assert self.remedies.wait(30.0)
        (note,) = self.reported
        assert isinstance(note, RemediesFound) and note.run_id == 1
        json.loads(note.to_json())
        return note


@pytest.fixture
def look(make: Make) -> Iterator[Look]:
    """Remedies of a session with a simulated card of 8 GiB, closed when the test ends."""
    live, begun = make(simulation=Simulation((8 * GIB,))), []

    def one(script: str, **options: int) -> Looking:
        begun.append(Looking(live, script, **options))
        return begun[-1]

    yield one
    for looking in begun:
        assert looking.remedies.close()


def test_what_fits_is_told_with_its_flags(look: Look) -> None:
    looking = look(PREDICTS)
    looking.fail(out_of_memory())
    first, second = looking.note().found.remedies
    assert (first.change, first.flags, first.fits) == ("batch 8", "--batch 8", True)
    assert first.predicted_peak_bytes == 5 and first.verified_by == "dry run"
    assert second.change.startswith("told")
    assert looking.note().text.startswith("This would have fit: batch 8 (5 B)")


def test_the_run_is_predicted_for_the_card_without_the_run_that_failed(look: Look) -> None:
    looking = look(PREDICTS)
    looking.fail(out_of_memory(allowed=5 * GIB))
    target, used = json.loads(looking.note().found.remedies[1].change.removeprefix("told "))
    assert (target["capacity_bytes"], target["free_bytes"], target["overhead_bytes"]) == (8 * GIB, 5 * GIB, 0)
    assert used == GIB


def test_a_context_that_was_refused_is_still_needed(look: Look) -> None:
    looking = look(PREDICTS)
    refused = RefusedRequest(9 * GIB, 9 * GIB, is_context=True)
    looking.fail(out_of_memory(context_bytes=0, reserved=0, groups=(), device_free=8 * GIB, request=refused))
    target, _ = json.loads(looking.note().found.remedies[1].change.removeprefix("told "))
    assert target["overhead_bytes"] == 300 * MIB and "already" not in target["overhead_words"]


def test_a_cap_that_was_too_low_is_raised_and_no_larger_card_is_asked_for(look: Look) -> None:
    script = PREDICTS.replace('"peak_reserved_bytes": 7,', f'"peak_reserved_bytes": {6 * GIB - 1},')
    card = script.replace('"batch 8"', '"a card with 8 GiB"').replace(
        '"peak_reserved_bytes": 5}', f'"peak_reserved_bytes": {6 * GIB}, "card_bytes": {8 * GIB}}}'
    )
    looking = look(card)
    groups = (AllocationGroup(5 * GIB, 9, ACTIVATIONS),)
    looking.fail(out_of_memory(allowed=5 * GIB, reserved=5 * GIB, groups=groups, device_free=2 * GIB))
    first, second = looking.note().found.remedies
    assert (first.change, first.flags, first.fits) == ("a memory cap of 6.00 GiB", "--memory-cap 6GiB", True)
    assert second.change.startswith("told")


def test_on_the_cpu_a_cap_is_left_out_which_no_flag_says(look: Look) -> None:
    elsewhere = PREDICTS.replace('"peak_reserved_bytes": 5}', '"peak_reserved_bytes": 5, "device": "cpu"}')
    looking = look(elsewhere)
    looking.fail(out_of_memory(allowed=5 * GIB, reserved=5 * GIB, groups=(AllocationGroup(5 * GIB, 9, ACTIVATIONS),)))
    on_cpu = next(way for way in looking.note().found.remedies if way.device == "cpu")
    assert on_cpu.change.endswith(", without the memory cap") and on_cpu.flags.startswith("--device cpu")


@pytest.mark.parametrize("mib", [6144, 5121])
def test_a_higher_cap_is_a_flag_of_the_command(mib: int) -> None:
    assert flags(Alternative("a memory cap", memory_cap_bytes=mib * MIB)) == (
        f"--memory-cap {mib // 1024}GiB" if mib % 1024 == 0 else f"--memory-cap {mib}MiB"
    )


def test_the_sessions_thread_is_not_held_while_a_search_ends(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = look(HANGS)
    looking.fail(out_of_memory())
    search = looking.remedies._search
    assert search is not None
    joined = []
    monkeypatch.setattr(search._thread, "join", lambda timeout=None: joined.append(timeout))
    monkeypatch.setattr(search._estimates, "close", lambda: joined.append("closed") or True)
    looking.remedies.take(RunStarted(time_s=2.0, run_id=2, workload="training", device="sim:0", spec={}))
    assert search.reported.is_set() and not [wait for wait in joined if wait != "closed"]
    monkeypatch.undo()


def test_when_the_run_would_fit_alone_the_other_process_is_to_blame(look: Look) -> None:
    looking = look(PREDICTS, minimum=4 * GIB)
    shared = out_of_memory(
        reserved=5 * GIB,
        groups=(AllocationGroup(5 * GIB, 9, ACTIVATIONS),),
        processes=(other_process(1900 * MIB, 7, "x"),),
    )
    assert shared.verdict == "real capacity"
    looking.fail(shared)
    found = looking.note().found
    assert found.verdict == "other process" and found.headline.startswith("x (pid 7) holds")
    assert found.remedies[0].change == ALONE


def test_why_nothing_could_be_predicted_is_told(look: Look) -> None:
    looking = look(REFUSES)
    looking.fail(out_of_memory())
    assert looking.note().found.remedies_note == "The code raised."


def test_a_search_that_has_worked_long_enough_is_stopped_and_what_it_found_is_told(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedies_module, "WORK_LIMIT_S", 0.2)
    looking = look(WORKS_ON)
    looking.fail(out_of_memory())
    found = looking.note().found
    assert found.remedies[0].change == "batch 8"
    assert found.remedies_note.startswith("Looking for remedies was stopped after ")


def test_what_is_found_is_known_while_more_is_looked_for_and_how_far_that_is(look: Look) -> None:
    looking = look(WORKS_ON)
    assert looking.remedies.so_far is None
    looking.fail(out_of_memory())
    while (so_far := looking.remedies.so_far) is not None and not so_far.found:
        looking.remedies.wait(0.02)
    assert so_far is not None and so_far.found[0].change == "batch 8"
    assert so_far.progress_text.startswith(
        f"Looking further for what would have fitted: {so_far.tried} changes tried, "
    )
    assert looking.reported == []
    looking.remedies.close()
    assert looking.remedies.so_far is None


def test_a_search_that_a_busy_machine_leaves_waiting_is_not_given_up_for_it(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedies_module, "WORK_LIMIT_S", 0.2)
    looking = look(PREDICTS.replace("    asked =", "    import threading; threading.Event().wait(0.8)\n    asked ="))
    looking.fail(out_of_memory())
    found = looking.note().found
    assert found.remedies[0].change == "batch 8" and found.remedies_note == ""


def test_remedies_of_a_replay_are_kept(look: Look) -> None:
    known = dry_run_remedies([Alternative("expandable segments", allocator="expandable_segments:True", fits=True)])
    looking = look(REFUSES)
    looking.fail(out_of_memory().with_remedies(known))
    found = looking.note().found.remedies
    assert [remedy.change for remedy in found] == ["expandable segments"]


def test_what_only_got_past_the_request_gives_way_to_a_prediction_of_the_whole_run(look: Look) -> None:
    past = Remedy("expandable segments", allocator="expandable_segments:True", verified_by="replay")
    looking = look(PREDICTS)
    looking.fail(out_of_memory().with_remedies((past,)))
    assert "expandable segments" not in [remedy.change for remedy in looking.note().found.remedies]
    assert looking.remedies.close()
    assert found_text((past,), "") == "This request would have succeeded with: expandable segments."


def test_nothing_is_looked_for_without_an_explanation(look: Look) -> None:
    looking = look(HANGS)
    looking.fail(None)
    assert looking.remedies.wait(0) and not looking.reported


def test_that_a_workload_is_not_known_is_told(look: Look) -> None:
    looking = look(HANGS)
    looking.fail(out_of_memory(), workload="unheard of")
    assert "unheard of is not known here" in looking.note().found.remedies_note


def test_nobody_is_done_waiting_before_the_store_has_the_note(look: Look) -> None:
    looking = look(REFUSES)
    looking.taking = False
    looking.fail(out_of_memory())
    assert looking.remedies._search is not None
    looking.remedies._search._thread.join(30.0)
    assert len(looking.reported) == 1 and not looking.remedies.wait(0)
    looking.remedies.take(looking.reported[0])
    assert looking.remedies.wait(0)


def test_the_next_run_and_closing_end_the_search(look: Look) -> None:
    looking = look(HANGS)
    looking.fail(out_of_memory())
    assert not looking.remedies.wait(0)
    looking.remedies.take(RunStarted(time_s=2.0, run_id=2, workload="training", device="sim:0", spec={}))
    assert looking.remedies.wait(0)
    looking.fail(out_of_memory())
    assert looking.remedies.close() and not looking.reported
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"gpudash-remedies", "gpudash-estimator"}


def test_nothing_is_begun_once_it_is_closed(look: Look) -> None:
    looking = look(HANGS)
    assert looking.remedies.close()
    looking.fail(out_of_memory())
    assert looking.remedies.wait(0) and not looking.reported


@pytest.mark.parametrize(
    ("alternative", "expected"),
    [
        (Alternative("x", {"batch": 8, "learning_rate": 0.1}), "--batch 8 --learning-rate 0.1"),
        (
            Alternative("x", {"checkpointing": True, "keep_intermediates": False}),
            "--checkpointing --no-keep-intermediates",
        ),
        (Alternative("x", {"cap": 512 * MIB, "size": None}), "--cap 512MiB"),
        (Alternative("x", {"cap": 2 * GIB}), "--cap 2GiB"),
        (Alternative("x", {"sequence": 2**20}), "--sequence 1048576"),
        (Alternative("x", device="cpu"), "--device cpu"),
        (Alternative("x", allocator="expandable_segments:True"), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (Alternative("a card with 8 GiB"), ""),
    ],
)
def test_a_change_is_written_as_the_command_takes_it(alternative: Alternative, expected: str) -> None:
    assert flags(alternative) == expected


def test_flags_that_take_bytes_are_those_of_the_specs() -> None:
    known = {
        name.replace("_", "-")
        for spec in BUILT_IN
        for name, info in spec.model_fields.items()
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("unit") == "bytes"
    }
    assert known | {"memory-cap"} == IN_BYTES


@pytest.mark.parametrize(
    ("variable", "before", "expected"),
    [
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64", "'max_split_size_mb:64,expandable_segments:True'"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", "expandable_segments:True"),
    ],
)
def test_a_setting_of_the_allocator_is_added_to_those_in_use(
    monkeypatch: pytest.MonkeyPatch, variable: str, before: str, expected: str
) -> None:
    monkeypatch.setenv(variable, before)
    found = flags(Alternative("x", allocator="expandable_segments:True"))
    assert shlex.split(found) == [f"{variable}={shlex.split(expected)[0]}"]


def test_a_remedy_on_a_simulated_device_is_marked() -> None:
    (found,) = dry_run_remedies([Alternative("on sim:1", device="sim:1", fits=True)])
    assert found.change == "on sim:1 (SIMULATED)" and found.flags == "--device sim:1"


def test_only_what_fits_is_a_remedy() -> None:
    found = dry_run_remedies([Alternative("a", fits=True), Alternative("b", fits=False), Alternative("c", fits=None)])
    assert [remedy.change for remedy in found] == ["a"]
