"""``gpudash devices``: what bars a device is said where it is listed."""

from __future__ import annotations

import json

import pytest

from gpudash.cli import run

WRONG = "PYTORCH_CUDA_ALLOC_CONF is 'colour:red', which torch refuses"


@pytest.fixture(autouse=True)
def wrong_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "colour:red")


def test_settings_that_the_allocator_refuses_are_told_with_the_device_they_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["devices", "--simulate", "1GiB"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("sim:0 cannot be used"))
    assert WRONG in line and line.endswith("Correct that variable, or unset it.")
    assert run(["devices", "--simulate", "1GiB", "--json"]) == 0
    listed = {device["name"]: device for device in json.loads(capsys.readouterr().out)["devices"]}
    assert WRONG in listed["sim:0"]["problem"]
    assert not listed["cpu"].get("problem")


@pytest.mark.parametrize("command", ["run", "estimate"])
def test_the_way_out_of_refused_settings_is_the_variable_not_another_device(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "matmul", "--device", "sim:0", "--simulate", "1GiB"]) == 2
    told = capsys.readouterr().err
    assert WRONG in told and told.rstrip().endswith("Correct that variable, or unset it.")


def test_a_device_that_is_not_there_is_so_whatever_the_settings_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "matmul", "--device", "sim:7", "--simulate", "1GiB"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("gpudash devices lists what is there.")
