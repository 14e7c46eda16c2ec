"""What ``--help`` says of the flags that take sizes, and what a cap on memory may be."""

from __future__ import annotations

import re

import pytest

from gpudash.cli import run
from gpudash.cli.terminal.flags import size_text
from gpudash.specs import workloads
from gpudash.units import GIB, parse_size


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


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
