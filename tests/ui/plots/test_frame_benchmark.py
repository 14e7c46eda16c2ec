from pytestqt.qtbot import QtBot

from tests.benchmarks import frame


def test_the_frame_benchmark_draws_all_three_sides(qtbot: QtBot) -> None:
    figures = frame.frame_cost(frames=3, samples=400)
    assert figures.keys() == {"frame_ms", "bare_ms", "naive_ms", "ratio_to_bare", "times_cheaper_than_naive"}
    assert all(value > 0 for value in figures.values())


def test_the_frame_benchmark_draws_areas_too(qtbot: QtBot) -> None:
    figures = frame.areas_cost(frames=3, samples=400)
    assert all(value > 0 for value in figures.values())
