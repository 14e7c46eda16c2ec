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


@pytest.mark.parametrize(
    "arguments",
    [
        ("devices", "--simulate", "8"),
        ("monitor", "--seconds", "1", "--simulate", "8"),
        ("run", "matmul", "--simulate", "8"),
        ("estimate", "matmul", "--simulate", "8"),
        ("watch", "--simulate", "8", "--", "true"),
        ("snapshot", "nowhere.pickle", "--capacity", "8"),
    ],
)
def test_a_count_of_bytes_is_answered_with_a_question(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(arguments)) == 2
    assert "8 without a unit is a count of bytes; did you mean 8GiB?" in capsys.readouterr().err


def test_a_watched_program_is_given_no_card_without_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "--simulate", "300MiB", "--", "true"]) == 2
    assert "the CUDA context takes about 300 MiB of it, so simulate 302 MiB or more" in capsys.readouterr().err


def test_a_run_says_which_gpu_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "run", "matmul", "--size", "16", "--repeat", "3", "--device", "sim:0", "--simulate", "t4")
    assert (found["device"], found["simulated"], found["product"]) == ("sim:0", True, "Simulated T4")
    assert found["memory"]["capacity_bytes"] == 15_095 * MIB
