"""Which plots a run with ranks has, with which curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpudash.drawing.axes import format_value
from gpudash.telemetry.plots import ORDER, PlotSpec, plots_for, with_ranks
from gpudash.telemetry.ranks.rows import failed_rank, places_of
from gpudash.telemetry.records import Note, RunStarted
from gpudash.ui.colours import DARK, LIGHT, Palette
from gpudash.units import GIB
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.rank_feed import RankFeed
from tests.unit.telemetry.copies import copied

Fed = Callable[..., tuple[RankFeed, dict[str, PlotSpec]]]


@pytest.fixture
def fed() -> Fed:
    def feed(
        world: int, *, gpus: bool = False, steps: int = 30, rank: int | None = None, workload: str = "training"
    ) -> tuple[RankFeed, dict[str, PlotSpec]]:
        session = FakeSession([gpu(number) for number in range(world)] if gpus else []).feed(1)
        fed = RankFeed(session, world, gpus=gpus, workload=workload)
        fed.train(steps)
        return fed, plots(session, rank)

    return feed


def plots(session: FakeSession, rank: int | None = None) -> dict[str, PlotSpec]:
    store = session.store
    with store.lock:
        found = plots_for(store, selected="host", device_name="", allocator=None, warn_ratio=0.85, rank=rank)
    return {spec.id: spec for spec in found}


def names(spec: PlotSpec) -> list[str]:
    return [curve.name for curve in spec.curves]


@pytest.mark.parametrize("workload", ["training", "watch"])
def test_memory_step_time_loss_and_shares_are_shown_and_the_others_can_be(fed: Fed, workload: str) -> None:
    _, shown = fed(2, workload=workload)
    assert [name for name, spec in shown.items() if not spec.extra] == [
        "rank_memory",
        "rank_step",
        "loss",
        "rank_share",
    ]
    assert {"memory", "utilisation", "throughput"} <= {name for name, spec in shown.items() if spec.extra}


def test_ranks_on_gpus_leave_the_selected_device_s_memory_shown(fed: Fed) -> None:
    _, shown = fed(2, gpus=True)
    assert not shown["memory"].extra


@pytest.mark.parametrize(("gpus", "large"), [(False, "rank_memory"), (True, "memory")])
def test_under_a_warning_a_memory_has_two_fifths_of_the_height_beside_ranks_too(
    fed: Fed, gpus: bool, large: str
) -> None:
    feed, shown = fed(2, gpus=gpus)
    assert {spec.least_share for spec in shown.values()} == {0.0}
    store = feed.session.store
    with store.lock:
        warned = plots_for(store, selected="host", device_name="", allocator=None, warn_ratio=0.85, warned=True)
    assert {spec.id: spec.least_share for spec in warned if spec.least_share} == {large: 0.4}


def test_a_plot_that_the_order_does_not_know_stands_below_the_others(fed: Fed) -> None:
    store = fed(2)[0].session.store
    some = [PlotSpec(id=name, title=name, curves=(), unit="") for name in ("of tomorrow", "memory", "loss")]
    with store.lock:
        drawn = [plot.id for plot in with_ranks(some, store, [], None)]
    assert "of tomorrow" not in ORDER
    assert drawn[0] == "memory" and drawn[-1] == "of tomorrow" and "loss" in drawn


def test_a_run_without_ranks_has_the_plots_it_had() -> None:
    session = FakeSession().feed(1)
    session.start()
    session.train(1)
    shown = plots(session)
    assert list(shown) == ["memory", "utilisation", "loss", "throughput"]
    assert not any(spec.extra for spec in shown.values())


def test_a_split_model_has_the_memory_of_both_its_devices_and_what_is_copied_between_them() -> None:
    session = FakeSession([gpu(0), gpu(1)])
    session.feed(1)
    spec = {"devices": "cuda:0,cuda:1", "parallel": "split"}
    session.apply(RunStarted(time_s=session.now_s, run_id=1, workload="training", device="cuda:0", spec=spec))
    for source, target in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        session.apply(copied(session.now_s, GIB, 0.1, from_device=source, to_device=target, memory="pageable"))
    shown = plots(session)

    assert names(shown["device_memory"]) == [
        "cuda:0 allocated",
        "cuda:0 reserved",
        "cuda:1 allocated",
        "cuda:1 reserved",
    ]
    assert {curve.key[2] for curve in shown["device_memory"].curves} == {"cuda:0", "cuda:1"}
    assert "D2D" in names(shown["transfer"])


def test_each_of_four_ranks_has_a_colour_and_a_line_style_of_its_own_in_every_plot(fed: Fed) -> None:
    _, shown = fed(4)
    for name, metric in (("rank_memory", "used_bytes"), ("rank_step", "step_s"), ("loss", "loss")):
        curves = [curve for curve in shown[name].curves if curve.key[0] == "rank"]
        assert [curve.key for curve in curves] == [("rank", metric, str(rank)) for rank in range(4)]
        assert [curve.name for curve in curves] == ["rank 0", "rank 1", "rank 2", "rank 3"]
        assert [curve.style for curve in curves] == ["solid", "dash", "dot", "dashdot"]
        assert len({curve.colour for curve in curves}) == 4


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=lambda palette: palette.name)
def test_the_ranks_colours_are_four_in_both_themes_and_neither_loss_nor_accuracy(fed: Fed, palette: Palette) -> None:
    _, shown = fed(4)
    colours = [palette.curves[curve.colour] for curve in shown["loss"].curves]
    assert len(colours) == 6 and len(set(colours)) == 6


@pytest.mark.parametrize("world", [5, 8])
def test_from_five_ranks_on_an_area_stands_for_them_and_the_legend_says_so(fed: Fed, world: int) -> None:
    _, shown = fed(world)
    for name in ("rank_memory", "rank_step", "loss"):
        spec = shown[name]
        assert spec.title.endswith(f"· {world} ranks")
        area = next(curve for curve in spec.curves if curve.down_to)
        assert (area.name, area.down_to) == ("highest", "lowest") and "median" in names(spec)
        assert not [curve for curve in spec.curves if (curve.key[2] or "").isdecimal()]


def test_four_ranks_have_no_area(fed: Fed) -> None:
    _, shown = fed(4)
    assert not any(curve.down_to for spec in shown.values() for curve in spec.curves)


def test_the_run_s_own_loss_stays_beside_that_of_the_ranks(fed: Fed) -> None:
    for world in (2, 8):
        _, shown = fed(world)
        assert ("run", "loss", None) in [curve.key for curve in shown["loss"].curves]


def test_ranks_on_gpus_show_what_is_allocated_and_faintly_what_is_reserved(fed: Fed) -> None:
    _, shown = fed(2, gpus=True)
    spec = shown["rank_memory"]
    assert [(curve.key[1], curve.faint) for curve in spec.curves] == [
        ("allocated_bytes", False),
        ("allocated_bytes", False),
        ("reserved_bytes", True),
        ("reserved_bytes", True),
    ]
    assert [(line.name, line.value) for line in spec.lines] == [("capacity", 24 * GIB)]


def test_of_unequal_gpus_the_smallest_capacity_is_drawn(fed: Fed) -> None:
    feed, _ = fed(2, gpus=True)
    feed.places[1]["capacity_bytes"] = 16 * GIB
    feed.report("ranks", "again", world_size=2, ranks=feed.places)
    (line,) = plots(feed.session)["rank_memory"].lines
    assert (line.name, line.value) == ("smallest capacity", 16 * GIB)


def test_the_share_is_that_of_all_ranks_until_one_is_chosen(fed: Fed) -> None:
    _, mean = fed(2)
    assert mean["rank_share"].title == "SHARE OF THE STEP · mean of 2 ranks"
    assert {curve.key[2] for curve in mean["rank_share"].curves} == {"mean"}
    _, one = fed(2, rank=1)
    assert one["rank_share"].title == "SHARE OF THE STEP · rank 1"
    assert {curve.key[2] for curve in one["rank_share"].curves} == {"1"}
    assert names(one["rank_share"]) == ["computing", "communicating", "waiting for others"]


def test_what_no_rank_has_told_has_no_plot() -> None:
    session = FakeSession().feed(1)
    RankFeed(session, 2).memory()
    assert [name for name in plots(session) if name.startswith("rank")] == ["rank_memory"]


def test_notes_of_several_nodes_are_joined_and_the_newest_word_on_a_rank_counts(fed: Fed) -> None:
    feed, _ = fed(2)
    feed.report("ranks", "node 1", world_size=3, ranks=[{"rank": 2, "device": "cpu", "host": "b", "pid": 9}])
    feed.report("ranks", "restarted", world_size=3, ranks=[{"rank": 0, "device": "cpu", "host": "a", "pid": 77}])
    found = places_of(feed.session.store.run)
    assert [(place.rank, place.host, place.pid) for place in found] == [(0, "a", 77), (1, "node-0", 4001), (2, "b", 9)]


def test_fewer_ranks_after_a_restart_leave_none_behind(fed: Fed) -> None:
    feed, _ = fed(4)
    feed.report("ranks", "two are left", world_size=2, ranks=feed.places[:2])
    assert [place.rank for place in places_of(feed.session.store.run)] == [0, 1]


@pytest.mark.parametrize("ranks", [None, "two", [None, 3, {"rank": "x"}]])
def test_a_note_that_makes_no_sense_is_no_rank(ranks: object) -> None:
    session = FakeSession()
    session.start()
    session.apply(Note(time_s=1.0, run_id=1, topic="ranks", text="odd", details={"world_size": 2, "ranks": ranks}))
    assert places_of(session.store.run) == ()


@pytest.mark.parametrize(("begins", "rank"), [("", None), ("Rank 3 (cpu, pid 71), not rank 0: ", 3)])
def test_the_rank_that_ended_a_run_is_the_first_in_its_sentence(begins: str, rank: int | None) -> None:
    session = FakeSession()
    session.start()
    failure = session.failure()
    session.end(replace(failure, message=f"{begins}{failure.message}"))
    assert session.store.run is not None
    assert failed_rank(session.store.run) == rank


def test_a_time_is_written_with_its_unit() -> None:
    assert format_value("number", 0.068, "s") == "68.0 ms"
