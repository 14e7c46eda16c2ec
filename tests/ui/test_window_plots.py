"""Which plots a session calls for, from idling to a run on a GPU."""

from __future__ import annotations

import math

import pytest

from gpudash.telemetry.plots import PlotSpec, plots_for, reaches_to_capacity
from gpudash.telemetry.readings import DERIVED
from gpudash.telemetry.records import Note, RunStarted, Sample
from gpudash.telemetry.store import Store
from gpudash.ui.colours import DARK
from gpudash.units import GIB
from tests.ui.fake_session import FakeSession, gpu

UUID = gpu(0).uuid


def plots(session: FakeSession, selected: str = "host", allocator: str | None = None) -> dict[str, PlotSpec]:
    found = plots_for(session.store, selected=selected, device_name="GPU 0", allocator=allocator, warn_ratio=0.85)
    return {plot.id: plot for plot in found}


def names(plot: PlotSpec) -> list[str]:
    return [curve.name for curve in plot.curves]


def test_an_idle_cpu_calls_for_memory_and_utilisation() -> None:
    session = FakeSession().feed(0.5)
    assert list(plots(session)) == ["memory", "utilisation"]


def test_a_series_made_of_readings_has_its_plot_by_its_entry_in_one_table() -> None:
    session = FakeSession([gpu(0)])
    session.apply(Sample(0.0, "allocator", "cuda:0", {"allocated_bytes": 2 * GIB, "reserved_bytes": 3 * GIB}))
    session.feed(1)
    entries = [derived for derived in DERIVED if derived.plot is not None and derived.table == "gpu"]
    assert entries
    found = plots(session, UUID, "cuda:0")
    for derived in entries:
        assert derived.plot is not None
        plot = found[derived.plot.id]
        assert plot.extra, "hidden until it is chosen"
        assert [curve.key for curve in plot.curves] == [("gpu", metric, UUID) for metric in derived.metrics]
        assert all(session.store.statistics(curve.key) is not None for curve in plot.curves)
        assert all(curve.colour in DARK.curves for curve in plot.curves)
    assert not {derived.plot.id for derived in entries if derived.plot is not None} & plots(session).keys()


@pytest.mark.parametrize(("allocated", "reserved", "share"), [(3, 4, 0.25), (4, 4, 0.0), (0, 0, None), (5, 4, 0.0)])
def test_the_idle_share_is_what_no_tensor_has_of_what_is_reserved(
    allocated: int, reserved: int, share: float | None
) -> None:
    store = Store()
    store.link("cuda:0", UUID)
    store.apply(Sample(1.0, "allocator", "cuda:0", {"allocated_bytes": allocated, "reserved_bytes": reserved}))
    store.apply(Sample(1.1, "gpu", UUID, {"used_bytes": 10}))
    series = store.series("gpu", "idle_share", UUID)
    assert series is not None
    assert series.last() == pytest.approx((1.1, math.nan if share is None else share), nan_ok=True)


def test_a_gpu_without_an_allocator_has_no_idle_share() -> None:
    store = Store()
    store.apply(Sample(1.1, "gpu", UUID, {"used_bytes": 10}))
    assert store.series("gpu", "idle_share", UUID) is None


def test_a_run_adds_loss_and_throughput() -> None:
    session = FakeSession()
    session.start()
    session.train(1)
    found = plots(session)
    assert list(found) == ["memory", "utilisation", "loss", "throughput"]
    accuracy = found["loss"].curves[1]
    assert accuracy.axis == "right" and accuracy.style == "dash"
    assert all(curve.smoothed for curve in found["loss"].curves)
    assert [line.value for line in found["loss"].lines] == [3.1]


def test_a_run_without_a_corpus_has_no_reference_line() -> None:
    session = FakeSession()
    session.apply(RunStarted(time_s=0.0, run_id=1, workload="training", device="cpu", spec={}))
    session.apply(Note(time_s=0.1, run_id=1, topic="audit", text="all on cpu"))
    session.train(1)
    assert plots(session)["loss"].lines == ()


def test_a_gpu_without_torch_memory_shows_what_is_used_against_its_capacity() -> None:
    memory = plots(FakeSession([gpu(0)]).feed(0.5), UUID, "cuda:0")["memory"]
    assert names(memory) == ["used"]
    assert [line.name for line in memory.lines] == ["capacity", "warning at 85 %"]


def test_a_gpu_that_torch_uses_shows_its_memory_in_the_agreed_words() -> None:
    session = FakeSession([gpu(0)])
    session.apply(Sample(0.0, "allocator", "cuda:0", {"allocated_bytes": 2 * GIB, "reserved_bytes": 3 * GIB}))
    session.feed(0.5)
    assert names(plots(session, UUID, "cuda:0")["memory"]) == [
        "other processes",
        "CUDA context",
        "allocated",
        "idle inside PyTorch",
    ]


def test_no_two_curves_of_a_plot_look_alike() -> None:
    session = FakeSession([gpu(0)])
    session.start("cuda:0")
    session.train(2, device="cuda:0")
    for plot in plots(session, UUID, "cuda:0").values():
        looks = [(curve.colour, curve.style, curve.stack) for curve in plot.curves]
        assert len(set(looks)) == len(looks), plot.title


@pytest.mark.parametrize(
    ("used", "before", "expected"),
    [(0.1, True, False), (0.3, True, True), (0.3, False, False), (0.5, False, True)],
)
def test_the_axis_reaches_to_the_capacity_with_hysteresis(used: float, before: bool, expected: bool) -> None:
    store = Store()
    store.apply(Sample(0.0, "gpu", UUID, {"used_bytes": round(used * 100), "total_bytes": 100}))
    assert reaches_to_capacity(store, UUID, before) is expected


def test_an_unknown_use_reaches_to_the_capacity() -> None:
    assert reaches_to_capacity(Store(), "host", False)


def in_view(session: FakeSession, span: tuple[float, float], *, warned: bool = False) -> tuple[PlotSpec, ...]:
    return plots_for(
        session.store, selected="host", device_name="", allocator=None, warn_ratio=0.85, span=span, warned=warned
    )


def shown(specs: tuple[PlotSpec, ...]) -> list[str]:
    return [spec.id for spec in specs if not spec.extra]


def test_with_nothing_of_a_run_in_view_there_are_memory_and_utilisation_before_and_after_it() -> None:
    session = FakeSession().feed(5)
    assert shown(in_view(session, (0.0, 5.0))) == ["memory", "utilisation"]
    session.start()
    session.train(5)
    session.end()
    session.feed(60)
    assert shown(in_view(session, (20.0, 70.0))) == ["memory", "utilisation"]
    assert shown(in_view(session, (7.0, 70.0))) == ["loss", "memory", "utilisation", "throughput"]


def test_plots_that_only_an_earlier_run_filled_are_one_click_away() -> None:
    session = FakeSession()
    session.start()
    session.train(3)
    session.end()
    session.feed(1)
    session.apply(RunStarted(time_s=session.now_s, run_id=2, workload="pressure", device="cpu", spec={}))
    session.feed(3)
    found = in_view(session, (0.0, 7.0))
    assert shown(found) == ["memory", "utilisation"]
    assert {"loss", "throughput"} <= {spec.id for spec in found if spec.extra}


def test_a_plot_stays_while_its_run_is_in_view_although_no_reading_of_it_is() -> None:
    session = FakeSession()
    session.start()
    session.train(3)
    session.feed(60)
    assert "loss" in shown(in_view(session, (50.0, 60.0)))


@pytest.mark.parametrize(
    ("workload", "first"), [("training", "loss"), ("matmul", "throughput"), ("pressure", "memory"), ("watch", "memory")]
)
def test_what_a_workload_is_about_comes_first_and_is_the_highest(workload: str, first: str) -> None:
    session = FakeSession()
    session.apply(RunStarted(time_s=0.0, run_id=1, workload=workload, device="cpu", spec={}))
    session.train(2)
    found = in_view(session, (0.0, 2.0))
    assert found[0].id == first and found[0].stretch == max(spec.stretch for spec in found)


@pytest.mark.parametrize("workload", ["pressure", "watch", "training"])
@pytest.mark.parametrize("warned", [True, False])
def test_memory_has_a_large_part_where_it_matters_and_among_many_plots(workload: str, warned: bool) -> None:
    session = FakeSession()
    session.apply(RunStarted(time_s=0.0, run_id=1, workload=workload, device="cpu", spec={}))
    session.feed(2)
    plots = [spec for spec in in_view(session, (0.0, 2.0), warned=warned) if not spec.extra]
    (memory,) = [spec for spec in plots if spec.id == "memory"]
    assert len(plots) < 4 and (memory.least_share >= 0.4) == (warned or workload != "training")
    session.train(2)
    plots = [spec for spec in in_view(session, (0.0, 4.0), warned=warned) if not spec.extra]
    (memory,) = [spec for spec in plots if spec.id == "memory"]
    assert len(plots) == 4 and memory.least_share >= 0.4
