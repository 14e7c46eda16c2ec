"""What the light parts must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "PySide6", "pynvml", "psutil")
"""Packages that no room without a device or a window loads."""

COSTLY = (*HEAVY, "numpy", "pydantic", "gpudash.session", "gpudash.specs", "gpudash.telemetry")
"""Modules whose import takes as long as printing a page of help."""


def loaded(code: str, among: tuple[str, ...] = HEAVY) -> set[str]:
    program = f"{code}\nimport sys\nprint(*[name for name in {among!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


@pytest.mark.parametrize("room", ["cli", "memory", "telemetry", "specs"])
def test_a_light_room_loads_nothing_heavy(room: str) -> None:
    whole = f"""
import importlib, pkgutil
room = importlib.import_module("gpudash.{room}")
for module in pkgutil.walk_packages(getattr(room, "__path__", ()), "gpudash.{room}."):
    importlib.import_module(module.name)
"""
    assert loaded(whole) == set()


@pytest.mark.parametrize("command", ["", "devices", "monitor", "compare", "open", "doctor", "watch", "demo"])
def test_help_of_the_whole_and_of_a_command_without_workloads_loads_nothing_costly(command: str) -> None:
    arguments = [*command.split(), "--help"]
    assert loaded(f"from gpudash.cli import run\nrun({arguments!r})", COSTLY) == set()


def test_the_version_loads_nothing_costly() -> None:
    assert loaded("from gpudash.cli import run\nrun(['--version'])", COSTLY) == set()


@pytest.mark.parametrize("arguments", [["run", "--help"], ["run", "training", "--help"], ["estimate", "--help"]])
def test_help_of_workloads_loads_their_specs_and_neither_numpy_nor_torch(arguments: list[str]) -> None:
    found = loaded(f"from gpudash.cli import run\nrun({arguments!r})", COSTLY)
    assert found <= {"pydantic", "gpudash.specs", "gpudash.telemetry"}
    assert "gpudash.specs" in found


def test_the_list_of_heavy_packages_can_be_missed() -> None:
    assert loaded("import psutil") == {"psutil"}
