"""What the overview says of a GPU."""

from __future__ import annotations

import dataclasses

import pytest

from gpudash.session.fleet.overview import fleet_warning
from gpudash.ui.fleet.document import COLUMNS, table_text
from gpudash.ui.fleet.labels import cell_of, details, format_age, gpu_name, levels, one_line, summary
from gpudash.ui.fleet.layout import found_by
from gpudash.units import GIB
from tests.ui.fleet.fake_fleet import NOW_S, gpu


def test_a_cell_says_fullness_in_words_and_how_busy_the_gpu_is() -> None:
    cell = cell_of(gpu("node-07", 3, full=0.75), "", NOW_S)
    assert (cell.name, cell.figure, cell.percent, cell.status) == (
        "node-07 · GPU 3",
        "60.0 of 80.0 GiB",
        "75 %",
        "90 % busy",
    )
    assert (cell.short, cell.marked) == ("", False)


def test_figure_share_and_sum_count_the_drivers_own_memory() -> None:
    found = gpu(full=0.95, total=100 * GIB)
    found.values["driver_reserved_bytes"] = 2 * GIB
    cell = cell_of(found, "", NOW_S)
    assert (cell.figure, cell.percent) == ("97.0 of 100.0 GiB", "97 %")
    assert "97.0 of 100.0 GiB (97 %), 2.00 GiB of it the driver's own" in details(found, (), NOW_S)
    assert summary([found]).endswith("97.0 of 100.0 GiB used (97 %)")
    assert "97.0 of 100.0 GiB" in one_line(found)


def test_an_instance_and_who_holds_it_are_in_its_cell_its_tooltip_and_the_search() -> None:
    labels = {"pod": "train-0", "namespace": "ml", "container": "main"}
    parts = [
        dataclasses.replace(gpu("node0", 6), key=str(part), instance=part, profile="1g.10gb", labels=labels)
        for part in (7, 8)
    ]
    assert [cell_of(part, "", NOW_S).name for part in parts] == [f"node0 · GPU 6:{part} 1g.10gb" for part in (7, 8)]
    assert "Held by pod train-0, namespace ml, container main" in details(parts[0], (), NOW_S)
    assert found_by("6:8", [*parts, gpu()]) == parts[1:]
    for query in ("1g.10gb", "train-0", "ml main"):
        assert found_by(query, [*parts, gpu()]) == parts


def test_why_a_figure_was_left_out_is_in_the_tooltip() -> None:
    found = dataclasses.replace(gpu(full=None), impossible=("FB_USED: -1 is less than no memory",))
    assert "Ignored, because it is impossible: FB_USED: -1 is less than no memory" in details(found, (), NOW_S)


@pytest.mark.parametrize(
    ("level", "stale", "beside", "short"),
    [
        ("warning", False, "▲ warning", "▲ warn"),
        ("critical", False, "◆ critical", "◆ crit"),
        ("", True, "◌ stale 95 s", "◌ stale"),
        ("warning", True, "◌ stale 95 s", "◌ stale"),
        ("critical", True, "◆ critical", "◆ crit"),
    ],
)
def test_a_state_is_told_by_a_shape_and_a_word(level: str, stale: bool, beside: str, short: str) -> None:
    cell = cell_of(gpu(stale=stale), level, NOW_S)  # type: ignore[arg-type]
    assert (cell.status, cell.short, cell.marked) == (beside, short, True)


def test_a_simulated_gpu_says_so_wherever_it_is_told_of() -> None:
    found = gpu(simulated=True)
    assert cell_of(found, "", NOW_S).simulated
    assert cell_of(found, "", NOW_S).short == "SIM"
    assert "SIMULATED" in details(found, (), NOW_S)
    assert "SIMULATED" in one_line(found)


def test_what_is_not_known_is_never_a_zero() -> None:
    found = gpu(full=None, utilisation=None, temperature_c=None)
    cell = cell_of(found, "", NOW_S)
    assert (cell.fullness, cell.percent, cell.figure, cell.status) == (None, "?", "not reported of 80.0 GiB", "")
    assert "Temperature: not reported" in details(found, (), NOW_S)
    without = dataclasses.replace(found, values={})
    assert cell_of(without, "", NOW_S).figure == "memory not reported"
    without.values["used_bytes"] = 2**30
    assert cell_of(without, "", NOW_S).figure == "1.00 GiB, total unknown"


def test_a_gpu_without_a_number_is_named_by_its_uuid() -> None:
    assert gpu_name(dataclasses.replace(gpu("box", None), uuid="GPU-12345678-9abc")) == "box · GPU-12345678"
    assert gpu_name(dataclasses.replace(gpu("box", None), uuid="")) == "box · GPU"


def test_details_have_the_warnings_of_this_gpu_alone() -> None:
    found = gpu("a", 0)
    told = [
        fleet_warning("a GPU 0 is full.", "critical", found.key),
        fleet_warning("b GPU 0 is hot.", "warning", "b/0"),
    ]
    assert "◆ a GPU 0 is full." in details(found, told, NOW_S)
    assert "hot" not in details(found, told, NOW_S)


def test_the_worst_level_of_a_gpu_counts() -> None:
    told = [fleet_warning("1", "warning", "x"), fleet_warning("2", "critical", "x"), fleet_warning("3", "warning", "y")]
    assert levels(told) == {"x": "critical", "y": "warning"}


def test_the_head_tells_machines_gpus_and_how_full_the_fleet_is() -> None:
    assert summary([gpu("a", 0, full=0.25), gpu("a", 1, full=0.75)]) == (
        "1 machine · 2 GPUs · 80.0 of 160.0 GiB used (50 %)"
    )
    assert summary([gpu("a", 0, full=None), gpu("b", 0, full=0.5)]).endswith(" · 1 does not report")
    assert summary([gpu("a", 0, full=None)]) == "1 machine · 1 GPU"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (59.9, "59 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200_000, "2 days")],
)
def test_an_age_is_one_whole_number(seconds: float, words: str) -> None:
    assert format_age(seconds) == words


def test_the_copied_table_has_a_field_for_every_column_and_nothing_for_what_is_not_known() -> None:
    lines = table_text([gpu("a\tb", 0), gpu("c", None, utilisation=None)]).split("\n")
    assert lines[0].split("\t") == list(COLUMNS)
    assert all(len(line.split("\t")) == len(COLUMNS) for line in lines)
    assert lines[2].split("\t")[COLUMNS.index("utilisation")] == ""


def test_the_line_of_a_gpu_names_its_exporter_as_people_do() -> None:
    assert one_line(gpu(exporter="dcgm")).endswith(" · dcgm-exporter")


def test_health_is_told_where_there_is_something_to_say() -> None:
    well = gpu("a")
    well.values.update({"last_xid": 0.0, "clocks_event_reasons": 1.0, "nvlink_errors": 0.0})
    for word in ("XID", "Slowed", "NVLink", "Energy"):
        assert word not in details(well, (), NOW_S) and word not in one_line(well)
    ill = {"last_xid": 48.0, "clocks_event_reasons": 4.0, "nvlink_errors": 7.0}
    links = {"nvlink_rx_bytes_per_second": 2e10, "nvlink_tx_bytes_per_second": 1e10}
    told = details(dataclasses.replace(well, values={**well.values, **ill, **links}, drawn_j=7.2e6), (), NOW_S)
    for line in (
        "Slowed by power cap",
        "Newest XID error: 48, its memory has an error that ECC could not correct",
        "NVLink: 20.0 GB/s in, 10.0 GB/s out",
        "NVLink errors: 7",
        "Energy: 2.0 kWh since this was opened",
    ):
        assert line in told.splitlines()
    assert "XID 48 · slowed by power cap" in one_line(
        dataclasses.replace(well, values={**well.values, **ill}, drawn_j=1800.0)
    )
    assert "0.5 Wh" in one_line(dataclasses.replace(well, drawn_j=1800.0))
