"""GPUs by their names in the commands that simulate them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpudash.cli import run
from gpudash.devices.known_gpus import KNOWN_GPUS
from gpudash.units import GIB, MIB


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_names_and_sizes_make_the_devices_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "devices", "--simulate", "NVIDIA-L4,8GiB", "--simulate", "rtx 4090")
    told = [(one["name"], one["product"], one["total_bytes"]) for one in found["devices"] if one["simulated"]]
    assert told == [
        ("sim:0", "Simulated L4", 22_563 * MIB),
        ("sim:1", "Simulated GPU", 8 * GIB),
        ("sim:2", "Simulated RTX 4090", 24_072 * MIB),
    ]


def test_every_name_is_listed_with_where_its_memory_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "devices", "--known")["known"]
    assert [one["key"] for one in found] == [gpu.key for gpu in KNOWN_GPUS]
    assert all(one["source"] and one["total_bytes"] for one in found)
    assert run(["devices", "--known"]) == 0
    assert "h100-pcie" in capsys.readouterr().out


def test_a_run_says_which_gpu_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "run", "matmul", "--size", "16", "--repeat", "3", "--device", "sim:0", "--simulate", "t4")
    assert (found["device"], found["simulated"], found["product"]) == ("sim:0", True, "Simulated T4")
    assert found["memory"]["capacity_bytes"] == 15_095 * MIB
