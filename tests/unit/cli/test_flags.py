"""What ``--help`` says of flags, under which headings, and what a cap on memory may be."""

from __future__ import annotations

import re

import pytest

from gpudash.cli import run
from gpudash.cli.terminal.flags import size_text
from gpudash.cli.terminal.workload_flags import ESSENTIALS, THE_REST
from gpudash.specs import workloads
from gpudash.specs.invalid import flag
from gpudash.units import GIB, parse_size


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.parametrize("command", ["run", "estimate"])
@pytest.mark.parametrize("name", ["training", "pressure"])
def test_flags_stand_under_the_groups_of_the_form_essentials_first_and_the_commands_own_last(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, name, "--help"]) == 0
    under: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("╭─"):
            title = line.strip("╭─╮ ")
            under[title] = []
        elif (found := re.match(r"│ --([a-z-]+)", line)) is not None:
            under[title].append(found[1])
    wanted = {
        group.capitalize() if group else ESSENTIALS: {flag(field)[2:] for field in fields}
        for group, fields in workloads()[name].tiers().items()
    }
    *groups, rest = under
    assert groups == list(wanted)
    assert {group: set(under[group]) for group in groups} == wanted
    assert rest == THE_REST and {"device", "preset", "simulate"} <= set(under[rest])


def helped(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, str]:
    """Flag → its line of the help."""
    assert run([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {found[1]: line for line in lines if (found := re.search(r"(--[a-z-]+(?:\.[a-z]+)?)", line))}


def test_flags_that_take_sizes_say_so_and_show_their_defaults_as_one_types_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = helped(capsys, "run", "pressure")
    for name in ("--step", "--cap", "--guard", "--simulate-others"):
        assert f"{name} SIZE " in lines[name]
    assert "--simulate SIZE|GPU " in lines["--simulate"]
    assert "[default: 64MiB]" in lines["--step"]
    assert all("default" not in lines[name] for name in ("--cap", "--guard", "--simulate"))
    assert "--seed INT " in lines["--seed"]


@pytest.mark.parametrize("command", ["run", "estimate"])
def test_a_memory_cap_is_one_flag_not_one_for_each_of_its_parts(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    lines = helped(capsys, command, "training")
    assert "--memory-cap SIZE|PERCENT " in lines["--memory-cap"]
    assert not [name for name in lines if name.startswith("--memory-cap.")]


def test_no_size_is_offered_as_a_bare_number_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for name, spec in workloads().items():
        lines = helped(capsys, "estimate", name)
        for field, found in spec.model_fields.items():
            extra = found.json_schema_extra
            if isinstance(extra, dict) and extra.get("unit") == "bytes":
                assert " SIZE " in lines[f"--{field.replace('_', '-')}"]


def test_a_default_size_is_shown_so_that_it_can_be_typed() -> None:
    assert [size_text(size) for size in (None, 0, 8 * GIB)] == [None, "0", "8.00GiB"]
    assert parse_size(size_text(8 * GIB) or "") == 8 * GIB
