"""Three exporters' pages become one model: bytes, ratios and SI units.

The pages of dcgm-exporter and nvidia_gpu_exporter are written after those projects' own documentation (its
default-counters.csv and examples; METRICS.md), with figures made up; they were not recorded on machines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.sources.prometheus.gpus import (
    COUNT_QUERY,
    QUERY,
    TIMES_QUERY,
    UNNAMED,
    machine_of,
    read_gpus,
    read_intervals,
    read_times,
    same_gpu,
)
from gpudash.sources.prometheus.names import NAMES, OVERVIEW, any_of, names, quoted
from gpudash.telemetry.fleet_gpu import FleetGpu
from gpudash.units import GIB, MIB
from tests.prometheus_server.fake import NOW, vector

PAGES = Path(__file__).parents[3] / "prometheus_server" / "pages"
A100 = "0f6a3a1e-1111-4222-8333-0123456789ab"


def told(page: str, instance: str = "node7:9400") -> dict[str, FleetGpu]:
    """The GPUs of an exporter's page."""
    found = read_gpus(vector((PAGES / page).read_text(), instance))
    assert not found.odd
    return {gpu.key: gpu for gpu in found.gpus}


def entry(name: str, value: object = "1", **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": name, **labels}, "value": [NOW, value]}


def test_dcgm_exporters_figures_become_bytes_ratios_and_watts() -> None:
    gpus = told("dcgm-exporter.txt")
    assert len(gpus) == 2
    gpu = gpus[A100]
    assert gpu.exporter == "dcgm"
    assert (gpu.host, gpu.index, gpu.product) == ("node7", 0, "NVIDIA A100-SXM4-40GB")
    assert gpu.values == {
        "used_bytes": 39312 * MIB,
        "free_bytes": 1024 * MIB,
        "driver_reserved_bytes": 624 * MIB,
        "total_bytes": 40 * GIB,
        "gpu_utilisation": pytest.approx(0.87),
        "temperature_c": 61.0,
        "power_w": 254.514,
        "sm_clock_hz": 1410e6,
    }


def test_what_dcgm_tells_of_a_gpus_health_is_in_our_units_and_its_link_errors_add_up() -> None:
    labels = {"UUID": "GPU-a", "instance": "n:1"}
    (gpu,) = read_gpus(
        [
            entry("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "7200000000", **labels),
            entry("DCGM_FI_DEV_MEM_CLOCK", "1593", **labels),
            entry("DCGM_FI_DEV_XID_ERRORS", "79", **labels),
            entry("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "4", **labels),
            entry("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "1", **labels),
            entry("DCGM_FI_PROF_NVLINK_RX_BYTES", "4e11", **labels),
            entry("DCGM_FI_PROF_NVLINK_TX_BYTES", "9223372036854775792", **labels),
            entry("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "2", **labels),
            entry("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "3", **labels),
        ]
    ).gpus
    assert gpu.values == {
        "energy_j": 7.2e6,
        "memory_clock_hz": 1593e6,
        "last_xid": 79.0,
        "clocks_event_reasons": 4.0,
        "ecc_uncorrected_errors": 1.0,
        "nvlink_rx_bytes_per_second": 4e11,
        "nvlink_errors": 5.0,
    }


def test_a_blank_of_dcgms_is_no_reading() -> None:
    gpu = told("dcgm-exporter.txt")["1" + A100[1:]]
    assert "temperature_c" not in gpu.values
    assert gpu.values["gpu_utilisation"] == 0.0


def test_nvidia_gpu_exporters_figures_and_facts_are_joined_by_uuid() -> None:
    gpu = told("nvidia_gpu_exporter.txt", "node8:9835")["2" + A100[1:]]
    assert gpu.exporter == "nvidia_gpu_exporter"
    assert gpu.uuid == f"GPU-2{A100[1:]}"
    assert (gpu.host, gpu.index, gpu.product) == ("node8", 3, "NVIDIA GeForce RTX 3090")
    assert gpu.values["used_bytes"] == 12 * 2**30 and gpu.values["total_bytes"] == 24 * 2**30
    assert gpu.values["gpu_utilisation"] == 0.35 and gpu.values["power_w"] == 128.07


def test_gpudashs_own_figures_bring_the_run_the_warnings_and_the_forecast() -> None:
    gpus = told("gpudash.txt", "node7:10950")
    gpu = gpus[A100]
    assert (gpu.host, gpu.index, gpu.torch_name, gpu.run) == ("node7", 0, "cuda:1", "training")
    assert not gpu.simulated and gpu.warnings == () and gpu.forecast_s is None
    simulated = gpus["node7/SIM-0"]
    assert simulated.simulated and simulated.run == ""
    assert simulated.warnings == ("warning",) and simulated.forecast_s == 42.0


def test_a_warning_of_host_memory_belongs_to_the_machine() -> None:
    found = read_gpus(vector((PAGES / "gpudash.txt").read_text(), "node7:10950"))
    assert found.machines == {"node7:10950": ("critical",)}


def test_gpudash_comes_before_the_other_exporters() -> None:
    pages = [("nvidia_gpu_exporter.txt", "a:1"), ("dcgm-exporter.txt", "b:1"), ("gpudash.txt", "c:1")]
    found = read_gpus([one for page, at in pages for one in vector((PAGES / page).read_text(), at)])
    assert [gpu.exporter for gpu in found.gpus] == ["gpudash", "gpudash", "dcgm", "dcgm", "nvidia_gpu_exporter"]


def test_parts_of_one_gpu_are_gpus_of_their_own() -> None:
    parts = [entry("DCGM_FI_DEV_FB_USED", "10", UUID="GPU-a", GPU_I_ID=part, instance="n:1") for part in ("1", "2")]
    gpus = read_gpus(parts).gpus
    assert sorted((gpu.key, gpu.instance, gpu.profile) for gpu in gpus) == [("a/1", 1, ""), ("a/2", 2, "")]


def test_figures_that_cannot_be_are_left_out_and_said() -> None:
    found = read_gpus(
        [
            entry("DCGM_FI_DEV_FB_USED", "-1", UUID="GPU-a", instance="n:1"),
            entry("DCGM_FI_DEV_FB_FREE", "-62000", UUID="GPU-b", instance="n:1"),
            entry("DCGM_FI_DEV_FB_USED", "70000", UUID="GPU-b", instance="n:1"),
            entry("DCGM_FI_DEV_GPU_UTIL", "250", UUID="GPU-b", instance="n:1"),
        ]
    )
    first, second = sorted(found.gpus, key=lambda gpu: gpu.key)
    assert first.values == {} and first.impossible == ["DCGM_FI_DEV_FB_USED: -1 is less than no memory"]
    assert list(second.values) == ["used_bytes"] and len(second.impossible) == 2
    assert "DCGM_FI_DEV_GPU_UTIL: 250 % is no share of the time" in second.impossible


def test_more_memory_than_there_is_is_a_gap_with_a_reason() -> None:
    labels = {"uuid": "GPU-a", "instance": "n:1"}
    sizes = {"used": 90 * GIB, "total": 80 * GIB}
    told = [entry(f"gpudash_gpu_memory_{which}_bytes", str(size), **labels) for which, size in sizes.items()]
    (found,) = read_gpus(told).gpus
    assert found.used_bytes is None and found.fullness is None
    assert found.impossible == ["used 90.0 of 80.0 GiB is more than there is"]


def test_gpus_without_a_uuid_are_told_apart_by_machine_and_index() -> None:
    found = read_gpus([entry("DCGM_FI_DEV_FB_USED", "10", gpu="0", instance=at) for at in ("n1:9400", "n2:9400")])
    assert [(gpu.key, gpu.host) for gpu in found.gpus] == [("n1/0", "n1"), ("n2/0", "n2")]


def test_a_gpu_that_is_only_named_is_left_out() -> None:
    assert not read_gpus([entry("gpudash_gpu_info", uuid="GPU-a")]).gpus


def test_a_memory_that_gpu_and_machine_share_is_warned_of_once() -> None:
    told = [
        entry("gpudash_gpu_memory_used_bytes", "10", uuid="GPU-a", instance="n:1"),
        entry("gpudash_warning", "1", device="host", level="warning", instance="n:1"),
    ]
    assert read_gpus(told).machines == {"n:1": ("warning",)}
    info = entry("gpudash_gpu_info", "1", uuid="GPU-a", shared_memory="true", instance="n:1")
    found = read_gpus([*told, info])
    assert found.machines == {} and found.gpus[0].shared_memory


def test_what_makes_no_sense_is_counted_and_left_out() -> None:
    odd: list[Any] = [
        {},
        {"metric": {"__name__": "DCGM_FI_DEV_FB_USED"}},
        {"metric": None, "value": [0, "1"]},
        entry("DCGM_FI_DEV_FB_USED", "many", UUID="GPU-a"),
        entry("DCGM_FI_DEV_FB_USED", None, UUID="GPU-a"),
        7,
    ]
    found = read_gpus([*odd, entry("DCGM_FI_DEV_FB_USED", "NaN", UUID="GPU-b"), entry("other", "1")])
    assert found.odd == len(odd) and not found.gpus


ODD = st.none() | st.text(max_size=3) | st.floats() | st.lists(st.none(), max_size=2)
LABELS = st.dictionaries(
    st.sampled_from(["__name__", "UUID", "gpu", "instance"]), ODD | st.sampled_from([*NAMES]), max_size=4
)


@given(st.lists(ODD | st.dictionaries(st.sampled_from(["metric", "value"]), ODD | LABELS, max_size=2), max_size=5))
def test_no_answer_breaks_the_reader(entries: list[Any]) -> None:
    assert len(read_gpus(entries).gpus) <= len(entries)
    assert len(read_times(entries)) <= len(entries)


def test_times_and_intervals_are_read_by_instance_and_identity() -> None:
    answer = [{"metric": {"uuid": "GPU-a", "instance": "n:1"}, "value": [NOW, "300"]}]
    assert read_times(answer) == {("n:1", "GPU-a"): 300.0}
    assert read_intervals(answer) == {("n:1", "GPU-a"): 1.0}


def test_one_query_asks_for_all_three_exporters() -> None:
    selected = QUERY.removeprefix('{__name__=~"').removesuffix('"}')
    assert {name for name in NAMES if re.fullmatch(selected, name)} >= set(names(None, "gpu", metrics=OVERVIEW))
    for name in ("gpudash_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED", "nvidia_smi_memory_used_bytes"):
        assert re.fullmatch(selected, name) and name in TIMES_QUERY and name in COUNT_QUERY
    assert len(QUERY) < 1500  # it still goes into an address


def test_the_names_are_those_that_gpudash_serves() -> None:
    from gpudash.session.serving.catalogue import CATALOGUE

    served = {served.name: served for served in CATALOGUE}
    for text, name in NAMES.items():
        if name.exporter == "gpudash":
            assert text in served
            reading = served[text].reading
            if reading is not None:
                assert reading == (name.kind, name.metric)


@pytest.mark.parametrize(
    ("instance", "machine"),
    [("node1:9400", "node1"), ("node1", "node1"), ("[::1]:9400", "::1"), ("10.0.0.1:80", "10.0.0.1"), ("", UNNAMED)],
)
def test_a_machine_is_its_instance_without_the_port(instance: str, machine: str) -> None:
    assert machine_of(instance) == machine


def test_a_uuid_has_one_spelling() -> None:
    assert same_gpu("GPU-AB") == same_gpu("ab") == "ab"


def test_text_is_quoted_for_a_query() -> None:
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
    assert any_of(["a", "b"], 'x="1"') == '{__name__=~"a|b",x="1"}'
