"""What the light parts must not load."""

from __future__ import annotations

import pytest

from tests.programs import python

pytestmark = pytest.mark.process

HEAVY = ("torch", "PySide6", "pynvml", "psutil", "mcp")
"""Packages that no room without a device or a window loads."""

COSTLY = (*HEAVY, "numpy", "pydantic", "http.client", "gpudash.session.live", "gpudash.specs", "gpudash.telemetry")
"""Modules whose import takes as long as printing a page of help."""


def loaded(code: str, among: tuple[str, ...] = HEAVY) -> set[str]:
    program = f"{code}\nimport sys\nprint(*[name for name in {among!r} if name in sys.modules])"
    done = python("-c", program, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


def test_a_light_room_loads_nothing_heavy() -> None:
    whole = """
import importlib, pkgutil
for name in ("cli", "memory", "telemetry", "specs"):
    room = importlib.import_module(f"gpudash.{name}")
    for module in pkgutil.walk_packages(getattr(room, "__path__", ()), f"gpudash.{name}."):
        importlib.import_module(module.name)
"""
    assert loaded(whole) == set()


def test_what_prepares_shows_or_judges_a_run_loads_no_torch() -> None:
    code = """
import gpudash.session
import gpudash.workloads.predicting.own_code_process
import gpudash.workloads.programs.parallel.rank_program
import gpudash.workloads.running.worker
from gpudash.specs import build, workloads
from gpudash.workloads.program_code import code
shown = [code(build(spec, {}), "cpu") for name, spec in workloads().items() if name != "comparison"]
assert shown
"""
    assert loaded(code, ("torch", "PySide6")) == set()


def test_help_of_the_whole_and_of_a_command_without_workloads_loads_nothing_costly() -> None:
    commands = ("devices", "monitor", "compare", "open", "doctor", "watch", "demo")
    pages = [["--version"], ["--help"], *([command, "--help"] for command in commands)]
    assert loaded(f"from gpudash.cli import run\nfor page in {pages!r}: assert run(page) == 0", COSTLY) == set()


def test_help_of_workloads_loads_their_specs_and_neither_numpy_nor_torch() -> None:
    pages = [["run", "--help"], ["run", "training", "--help"], ["estimate", "--help"]]
    found = loaded(f"from gpudash.cli import run\nfor page in {pages!r}: assert run(page) == 0", COSTLY)
    assert found <= {"pydantic", "gpudash.specs", "gpudash.telemetry"}
    assert "gpudash.specs" in found


def test_the_front_page_and_the_version_load_no_parser_of_command_lines_and_no_more_than_they_print_with() -> None:
    pages = [["--help"], ["-h"], ["help"], ["--version"], ["version"]]
    code = f"from gpudash.cli import run\nfor page in {pages!r}: assert run(page) == 0"
    parser = ("cyclopts", "attrs", "numpy", "pydantic")
    more = ("ctypes", "fractions", "json", "rich.table", "gpudash.system.log")
    assert loaded(code, (*parser, *more)) == set()


def test_commands_that_look_at_the_machine_load_no_torch_of_a_build_without_devices() -> None:
    commands = [["devices"], ["doctor"], ["monitor", "--seconds", "0.1", "--no-record"]]
    code = f"from gpudash.cli import run\nfor command in {commands!r}: run(command)"
    assert loaded(code, ("torch",)) == set()


def test_on_the_way_to_the_window_no_parser_of_command_lines_is_loaded() -> None:
    assert loaded("import gpudash.cli, gpudash.cli.qt", ("cyclopts", "rich")) == set()


def test_the_list_of_heavy_packages_can_be_missed() -> None:
    assert loaded("import psutil") == {"psutil"}
