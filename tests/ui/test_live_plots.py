import pytest

from gpudash.devices.names import Gpu
from gpudash.drawing.axes import format_value, value_ticks
from gpudash.telemetry.plots import PlotSpec, plots_for
from gpudash.telemetry.records import RunEnd, RunStarted, Sample, StepFinished
from gpudash.telemetry.store import Store
from gpudash.ui.plots.reading import PlotLevels
from gpudash.units import GIB

GPU = "GPU-1"


@pytest.fixture
def store() -> Store:
    store = Store()
    store.link("cuda:0", GPU)
    store.apply(Sample(0.0, "allocator", "cuda:0", {"allocated_bytes": GIB, "reserved_bytes": 2 * GIB}))
    return store


def _tick(store: Store, time_s: float, used: int | None, process: int | None, **more: int | None) -> None:
    values = {"used_bytes": used, "process_bytes": process, "total_bytes": 24 * GIB, **more}
    store.apply(Sample(time_s, "gpu", GPU, values))


def _plots(store: Store, gpu: Gpu | None = None) -> dict[str, PlotSpec]:
    with store.lock:
        plots = plots_for(store, selected=GPU, device_name="RTX", allocator="cuda:0", warn_ratio=0.85, gpu=gpu)
    return {plot.id: plot for plot in plots}


def _bands(store: Store) -> list[str]:
    return [curve.name for curve in _plots(store)["memory"].curves]


def test_context_and_other_processes_are_two_bands_where_the_driver_tells_them_apart(store: Store) -> None:
    _tick(store, 0.1, 6 * GIB, 3 * GIB)
    assert _bands(store) == ["other processes", "CUDA context", "allocated", "idle inside PyTorch"]


def test_context_and_other_processes_are_one_band_where_the_driver_does_not_tell_them_apart(store: Store) -> None:
    _tick(store, 0.1, 6 * GIB, None)
    assert store.series("gpu", "context_bytes", GPU) is not None
    assert _bands(store) == ["CUDA context and other processes", "allocated", "idle inside PyTorch"]


def test_a_lost_gpu_changes_no_name_of_a_band(store: Store) -> None:
    _tick(store, 0.1, 6 * GIB, 3 * GIB)
    before = _bands(store)
    _tick(store, 0.2, None, None)
    assert _bands(store) == before


def test_the_context_keeps_its_band_when_the_program_has_ended_that_it_was_told_of(store: Store) -> None:
    _tick(store, 0.1, 6 * GIB, 3 * GIB)
    before = _bands(store)
    store.apply(Sample(10.0, "allocator", "cuda:0", {"allocated_bytes": 0, "reserved_bytes": 0}))
    _tick(store, 10.0, 3 * GIB, None)
    assert _bands(store) == before


def test_the_capacity_is_that_of_the_card_that_the_run_in_view_had_and_else_today_s(store: Store) -> None:
    _tick(store, 0.1, GIB, None)
    store.apply(RunStarted(time_s=1.0, run_id=1, workload="watch", device="cuda:0", spec={}))
    _tick(store, 1.1, GIB, None, total_bytes=2 * GIB)

    def shown(span: tuple[float, float]) -> dict[str, float | None]:
        with store.lock:
            plots = plots_for(store, selected=GPU, device_name="RTX", allocator="cuda:0", warn_ratio=0.5, span=span)
            memory = next(plot for plot in plots if plot.id == "memory")
            return {line.name: PlotLevels(store).of(line) for line in memory.lines}

    small = {"capacity": 2.0 * GIB, "warning at 50 %": 1.0 * GIB}
    assert shown((0.0, 1.5)) == small
    _tick(store, 1.9, None, None, total_bytes=None)  # its program has gone silent
    store.apply(RunEnd(time_s=2.0, run_id=1, status="finished", seconds=1.0, steps=1, result={}))
    _tick(store, 2.1, GIB, None)
    assert shown((0.0, 3.0)) == small, "the curve is of the small card"
    assert shown((2.5, 3.0)) == {"capacity": 24.0 * GIB, "warning at 50 %": 12.0 * GIB}


@pytest.mark.parametrize(("generation", "lines"), [(4, ["link Gen4 x16"]), (None, [])])
def test_the_link_line_is_the_most_the_link_can_do_whatever_it_does_now(
    store: Store, generation: int | None, lines: list[str]
) -> None:
    _tick(store, 0.1, 6 * GIB, None, pcie_generation=1, pcie_width=16, pcie_rx_bytes_per_second=10)
    card = Gpu(0, GPU, "00000000:41:00.0", "RTX", pcie_generation=generation, pcie_width=16)
    assert [line.name for line in _plots(store, card)["transfer"].lines] == lines
    if generation is not None:
        assert _plots(store, card)["transfer"].lines[0].value == pytest.approx(31.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("workload", "accuracy", "title", "unit"),
    [
        ("training", 0.5, "LOSS (solid) · ACCURACY (dashed)", "nats"),
        ("pressure", None, "LOSS", "nats"),
        ("watch", 0.5, "LOSS (solid) · ACCURACY (dashed)", "loss"),
        ("watch", None, "LOSS", "loss"),
    ],
)
def test_the_loss_of_the_users_own_program_has_no_unit_and_an_accuracy_only_where_it_tells_one(
    store: Store, workload: str, accuracy: float | None, title: str, unit: str
) -> None:
    step = StepFinished(time_s=0.1, run_id=1, step=1, steps=0, seconds=0.1, loss=-2.5, accuracy=accuracy)
    store.apply(RunStarted(time_s=0.0, run_id=1, workload=workload, device="cpu", spec={}))
    store.apply(step)
    plot = _plots(store)["loss"]
    assert (plot.title, plot.unit) == (title, unit)
    assert len(plot.curves) == (2 if "ACCURACY" in title else 1)


def test_an_axis_of_a_loss_without_a_unit_has_plain_numbers_and_no_name() -> None:
    ticks = value_ticks("loss", -2.0, 2.0, 4)
    assert ticks.name == "" and [text for _value, text in ticks.marks] == ["-2", "-1", "0", "1", "2"]
    assert format_value("loss", -2.5) == "-2.500"


def test_several_losses_are_a_curve_each(store: Store) -> None:
    store.apply(RunStarted(time_s=0.5, run_id=1, workload="watch", device="cuda:0", spec={}))
    for step in range(1, 9):
        losses = {f"loss {number}": step / number for number in range(1, 9)}
        store.apply(
            StepFinished(time_s=step / 4 + 0.5, run_id=1, step=step, steps=0, seconds=0.25, losses=losses, val_loss=2.0)
        )
    plot = _plots(store)["loss"]
    assert [curve.name for curve in plot.curves] == ["validation loss", *(f"loss {number}" for number in range(1, 7))]
    assert len({(curve.colour, curve.style) for curve in plot.curves}) == 7
    series = store.series("run", "loss/loss 2")
    assert series is not None and series.statistics(0, 9).max == 4.0
    assert store.series("run", "loss/loss 8") is None  # more than a plot can show


def test_the_loss_of_a_validation_is_a_curve_beside_that_of_the_training(store: Store) -> None:
    store.apply(RunStarted(time_s=0.5, run_id=1, workload="watch", device="cuda:0", spec={}))
    for step in range(1, 9):
        store.apply(StepFinished(time_s=step / 4 + 0.5, run_id=1, step=step, steps=0, seconds=0.25, loss=4 / step))
    assert [(curve.name, curve.key[1]) for curve in _plots(store)["loss"].curves] == [("loss", "loss")]
    for time_s, val_loss in ((1.5, 3.0), (2.5, 1.0)):
        store.apply(StepFinished(time_s=time_s, run_id=1, step=8, steps=0, seconds=None, val_loss=val_loss))
    plot = _plots(store)["loss"]
    assert plot.title == "LOSS"
    assert [(curve.name, curve.key[1]) for curve in plot.curves] == [
        ("training loss", "loss"),
        ("validation loss", "val_loss"),
    ]
    assert len({(curve.colour, curve.style) for curve in plot.curves}) == 2
    series = store.series("run", "val_loss")
    assert series is not None and series.newest(9)[1].tolist() == [3.0, 1.0]
    store.apply(RunStarted(time_s=3.0, run_id=2, workload="watch", device="cuda:0", spec={}))
    store.apply(StepFinished(time_s=3.5, run_id=2, step=1, steps=0, seconds=0.25, loss=1.0))
    assert [curve.name for curve in _plots(store)["loss"].curves] == ["loss"], "the newest run has no validation"
