"""What the light parts must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "PySide6", "pynvml", "psutil")


def loaded(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
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


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["run", "training", "--help"]])
def test_help_and_version_load_neither_qt_nor_torch(arguments: list[str]) -> None:
    assert loaded(f"from gpudash.cli import run\nrun({arguments!r})") == set()


def test_the_list_of_heavy_packages_can_be_missed() -> None:
    assert loaded("import psutil") == {"psutil"}
