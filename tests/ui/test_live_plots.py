import pytest

from gpudash.devices import Gpu
from gpudash.telemetry.records import Sample
from gpudash.telemetry.store import Store
from gpudash.ui.live_plots import plots_for
from gpudash.ui.plots.curve import PlotSpec
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
        plots = plots_for(store, selected=GPU, words="RTX", allocator="cuda:0", warn_ratio=0.85, gpu=gpu)
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


@pytest.mark.parametrize(("generation", "lines"), [(4, ["link Gen4 x16"]), (None, [])])
def test_the_link_line_is_the_most_the_link_can_do_whatever_it_does_now(
    store: Store, generation: int | None, lines: list[str]
) -> None:
    _tick(store, 0.1, 6 * GIB, None, pcie_generation=1, pcie_width=16, pcie_rx_bytes_per_second=10)
    card = Gpu(0, GPU, "00000000:41:00.0", "RTX", pcie_generation=generation, pcie_width=16)
    assert [line.name for line in _plots(store, card)["transfer"].lines] == lines
    if generation is not None:
        assert _plots(store, card)["transfer"].lines[0].value == pytest.approx(31.5e9, rel=0.01)
