"""The figures of a snapshot, and the page that shows them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from gpudash.memory.allocator import AllocatorSettings, BlockView, Segment
from gpudash.memory.snapshot.history.model import DeviceSnapshot, Snapshot, TraceEntry
from gpudash.memory.snapshot.report_html import report
from gpudash.memory.snapshot.summary import figures, studied
from gpudash.units import GIB, MIB
from tests.unit.html_page import Page
from tests.unit.memory.snapshot.made import STACKS, WEIGHTS, Made, events
from tests.unit.memory.snapshot.test_history import BASE, ENTRIES

DEVICE_KEYS = {
    "device",
    "events",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "final_allocated_bytes",
    "final_reserved_bytes",
    "segments",
    "duration_s",
    "oom",
    "top",
}
REPLAY_KEYS = {
    "device",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "allocations",
    "allocations_at_real_address",
    "retries",
    "fits",
    "failed_at_event",
}


def summary(snapshot: Snapshot, **asked: Any) -> dict[str, Any]:
    return figures(snapshot, studied(snapshot, **asked))


def trained(capacity: int = 64 * GIB) -> Made:
    made = Made(capacity=capacity)
    made.malloc(30 * MIB, WEIGHTS)
    for _ in range(4):
        made.step(16 * MIB)
    return made


def contradicting() -> Snapshot:
    entry = TraceEntry("alloc", 0x7F0000000000, 4 * MIB, 0, stack=0)
    device = DeviceSnapshot(0, (), events([entry]), AllocatorSettings(), STACKS)
    return Snapshot((device,), {}, (), STACKS)


def test_the_figures_are_those_of_the_allocator() -> None:
    made = trained()
    told = summary(made.snapshot())
    figures, (device,), (replay,) = made.model.statistics(), told["devices"], told["replay"]
    assert device.keys() >= DEVICE_KEYS
    assert replay.keys() >= REPLAY_KEYS
    for name in ("allocated", "reserved"):
        assert device[f"peak_{name}_bytes"] == replay[f"peak_{name}_bytes"] == figures[f"{name}_bytes.all.peak"]
        assert device[f"final_{name}_bytes"] == figures[f"{name}_bytes.all.current"]
    assert device["segments"] == len(made.model.segments())
    assert device["duration_s"] == pytest.approx((len(made.entries) - 1) / 1000)
    assert device["oom"] is None
    assert replay["allocations"] == replay["allocations_at_real_address"] == figures["allocation.all.allocated"]
    assert (replay["fits"], replay["failed_at_event"]) == (None, None)
    assert device["top"][0]["stack"][1] == {"file": "/home/mia/train.py", "line": 41, "name": "step"}
    assert json.loads(json.dumps(told))["devices"][0]["explanation"]["verdict"] == "no failure"


def test_a_capacity_and_settings_are_answered_by_replay() -> None:
    told = summary(trained().snapshot(), capacity=60 * MIB)
    assert told["replay"][0]["fits"] is False
    assert told["replay"][0]["failed_at_event"] > 0
    settled = summary(trained().snapshot(), settings="expandable_segments:True")
    assert settled["replay"][0]["fits"] is True
    with pytest.raises(ValueError, match="knows no setting 'colour'"):
        summary(trained().snapshot(), settings="colour:blue")


def test_an_out_of_memory_is_told() -> None:
    made = Made(capacity=60 * MIB)
    made.until_full(30 * MIB, 0)
    oom = summary(made.snapshot())["devices"][0]["oom"]
    assert oom["requested_bytes"] == 30 * MIB
    assert oom["device_free_bytes"] == 28 * MIB
    assert oom["stack"][0]["name"] == "_call_impl"


def test_retries_and_the_bounds_of_the_card_are_told() -> None:
    made = Made(capacity=130 * MIB)
    for size in (60, 64, 70):
        made.free(made.malloc(size * MIB))
    (device,) = summary(made.snapshot())["devices"]
    bounds = device["capacity_at_least_bytes"], device["capacity_below_bytes"]
    assert (device["retries"], *bounds) == (1, 124 * MIB, 194 * MIB)


def test_without_a_trace_nothing_is_said_of_peaks_or_replays() -> None:
    made = trained()
    told = summary(replace(made.snapshot(), devices=(replace(made.device(), trace=events([])),)))
    (device,) = told["devices"]
    assert device["peak_allocated_bytes"] is device["peak_reserved_bytes"] is device["duration_s"] is None
    assert device["retries"] is device["capacity_at_least_bytes"] is None
    assert told["replay"] == []


def test_a_contradiction_is_a_warning_and_the_peak_unknown() -> None:
    told = summary(contradicting())
    assert told["devices"][0]["peak_allocated_bytes"] is None
    assert told["replay"][0]["peak_allocated_bytes"] is None
    assert "disagree" in told["warnings"][0]


@given(entries=ENTRIES)
def test_whatever_a_trace_says_it_is_summed_up_and_shown(entries: list[TraceEntry]) -> None:
    block = BlockView(BASE, 20 * MIB, 0, "inactive")
    segment = Segment(BASE, 20 * MIB, 0, False, (0, 0), False, (block,))
    device = DeviceSnapshot(0, (segment,), events(entries), AllocatorSettings(), STACKS)
    snapshot = Snapshot((device,), {}, (), STACKS)
    told = summary(snapshot, capacity=GIB)
    assert len(told["devices"]) == 1
    Page(report(snapshot, "odd.pickle"))


def test_one_device_can_be_asked_for() -> None:
    snapshot = trained().snapshot()
    two = replace(snapshot, devices=(*snapshot.devices, replace(snapshot.devices[0], index=3)))
    assert [device["device"] for device in summary(two)["devices"]] == [0, 3]
    assert [device["device"] for device in summary(two, device=3)["devices"]] == [3]
    with pytest.raises(ValueError, match=r"no device 1: it has 0, 3\."):
        summary(two, device=1)


def test_another_capacity_is_a_question_and_leaves_the_recorded_state_alone() -> None:
    made = trained()
    plain, asked = summary(made.snapshot()), summary(made.snapshot(), capacity=GIB)
    assert asked["devices"] == plain["devices"]
    assert asked["replay"][0]["words"] == "1.00 GiB for PyTorch: fits, 100 MiB reserved at most."
    assert not any(part["kind"] == "unattributed" for part in asked["devices"][0]["explanation"]["parts"])
    text = Page(report(made.snapshot(), "run.pickle", capacity=GIB)).text
    assert "What if 1.00 GiB for PyTorch: fits, 100 MiB reserved at most." in text and "what if: 1.00 GiB" in text


def test_what_would_do_where_the_capacity_asked_about_does_not_is_told_beside_it() -> None:
    (replayed,) = summary(trained().snapshot(), capacity=80 * MIB)["replay"]
    assert replayed["fits"] is False
    assert [remedy["fits"] for remedy in replayed["remedies"]] == [True] * len(replayed["remedies"])
    assert replayed["remedies"][-1]["change"].endswith(" MiB for PyTorch, a card with 4 GiB")


def test_devices_are_compared_and_the_one_that_ran_out_comes_first() -> None:
    calm, full = trained(), Made(capacity=60 * MIB)
    full.until_full(30 * MIB, 0)
    first = calm.snapshot()
    snapshot = replace(first, devices=(*first.devices, replace(full.device(), index=1)))
    told = summary(snapshot)
    assert [device["device"] for device in told["devices"]] == [1, 0]
    words = "Device 1 ran out of memory. PyTorch reserved at most 32 MiB on device 1, 100 MiB on device 0."
    assert told["compared"] == words
    assert words in Page(report(snapshot, "run.pickle")).text
    assert summary(first)["compared"] == ""


def test_the_page_needs_nothing_but_itself() -> None:
    page = Page(report(trained().snapshot(), "run.pickle", capacity=GIB))
    tags = {tag for tag, _ in page.elements}
    assert "svg" in tags
    assert not tags & {"script", "link", "img", "iframe", "object"}
    names = {name for _, attributes in page.elements for name in attributes}
    assert not names & {"src", "href", "onload", "onclick", "xlink:href"}
    text = report(trained().snapshot(), "run.pickle")
    assert "prefers-color-scheme: dark" in text
    assert "http:" not in text and "https:" not in text
    policy = next(facts["content"] for _, facts in page.elements if "http-equiv" in facts)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "url(" not in text


def test_the_page_tells_the_cause_the_parts_and_the_lines() -> None:
    made = Made(capacity=200 * MIB)
    made.until_full(16 * MIB, 4 * MIB)
    page = Page(report(made.snapshot(), "run.pickle", source=lambda _file, _line: "losses.append(loss)"))
    for words in (
        "keeps 4 MiB alive per step",
        "This would have fit",
        "What filled it",
        "train.py:44",
        "OOM",
        "Evidence:",
    ):
        assert words in page.text
    bands = {attributes.get("class") for tag, attributes in page.elements if tag == "rect"}
    assert bands == {"forward", "backward", "optimizer"}


def test_texts_of_the_file_are_escaped() -> None:
    stacks = ((("<script>alert(1)</script>.py", 1, "<img src=x>"),),)
    made = Made()
    made.malloc(4 * MIB)
    trace = events(entry._replace(stack=0) for entry in made.entries)
    device = replace(made.device(), trace=trace, stacks=stacks)
    snapshot = replace(made.snapshot(), devices=(device,), stacks=stacks, kind="<b>", warnings=("<i>",))
    tags = {tag for tag, _ in Page(report(snapshot, "<title>")).elements}
    assert not tags & {"script", "img", "b", "i"}


def test_the_peak_is_drawn_whatever_the_number_of_events() -> None:
    made = Made()
    for _ in range(2000):
        made.free(made.malloc(2 * MIB))
    made.free(made.malloc(500 * MIB))
    for _ in range(2000):
        made.free(made.malloc(2 * MIB))
    page = Page(report(made.snapshot(), "run.pickle"))
    drawn = next(attributes["d"] for tag, attributes in page.elements if attributes.get("class") == "allocated")
    assert drawn is not None
    heights = sorted(float(point.split(",")[1]) for point in drawn.rstrip("Z").split())
    assert heights[0] < 80 < heights[1]
