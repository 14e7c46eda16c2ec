"""What help pages say: flags under their headings, examples, what was meant; and what a cap on memory may be."""

from __future__ import annotations

import re
import shlex

import pytest

from gpudash import __version__
from gpudash.cli import build_app, run
from gpudash.cli.terminal.flags import size_text
from gpudash.cli.terminal.front_page import ABOUT, COMMANDS, WHOLE
from gpudash.cli.terminal.workload_flags import ESSENTIALS, THE_REST
from gpudash.specs import workloads
from gpudash.specs.invalid import flag
from gpudash.units import GIB, parse_size

EXAMPLES = {"": WHOLE.examples} | {
    name: command.examples for name, command in COMMANDS.items() if command.panel != ABOUT
}


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
    groups = list(under)[: len(wanted)]
    assert groups == list(wanted)
    assert {group: set(under[group]) for group in groups} == wanted
    rest, *others = list(under)[len(wanted) :]
    assert rest == THE_REST and {"device", "preset"} <= set(under[rest])
    assert {"simulate", "simulate-others"} == set(under["Simulated GPUs"])
    assert (
        others
        == {
            "run": ["Figures for Prometheus", "Notifications", "Recording", "Simulated GPUs"],
            "estimate": ["A budget", "Other cards, and money", "Simulated GPUs"],
        }[command]
    )


def test_the_presets_of_a_workload_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "from: Transformer, MLP, Inference." in helped(capsys, "run", "training")["--preset"]


@pytest.mark.parametrize("command", EXAMPLES)
def test_a_help_page_ends_with_examples_that_the_command_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    assert run([*words, "--help"]) == 0
    listed = re.findall(r"• (.*?) *\n", capsys.readouterr().out)
    assert listed == list(EXAMPLES[command]) and len(listed) == 3
    for line in listed:
        assert shlex.split(line)[1 : 1 + len(words)] == words
        for part in line.split(" | "):
            program, *given = shlex.split(part.partition(" >")[0])
            assert program == "gpudash"
            given = given[: given.index("--") + 2] if "--" in given else given
            build_app(given).parse_args(given, exit_on_error=False, print_error=False)


def test_help_can_be_asked_for_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["monitor"], ["run", "training"]):
        assert run([*words, "--help"]) == run(["help", *words]) == 0
        page = capsys.readouterr().out
        assert page[: len(page) // 2] == page[len(page) // 2 :]
    assert run(["help", "monitr"]) == 2
    assert "'monitr' (did you mean monitor?)" in capsys.readouterr().err
    assert run(["help", "monitor", "cpu"]) == 2
    assert "gpudash monitor has no part 'cpu'. gpudash monitor --help" in capsys.readouterr().err


def test_the_version_can_be_asked_for_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == run(["--version"]) == 0
    assert capsys.readouterr().out.split() == [__version__] * 2


def test_completion_for_a_shell_knows_commands_workloads_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run(["completion", shell]) == 0
        text = capsys.readouterr().out
        assert all(name in text for name in ("monitor", "training", "global-batch", "simulate-others"))
    assert run(["completion"]) == 2
    assert "Which shell? There is: bash, zsh, fish." in capsys.readouterr().err


def test_names_of_gpus_are_completed_with_their_memory(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("watch", "run training", "devices"):
        assert run(["__complete", *command.split(), "--simulate", "h"]) == 0
        assert "h100\tNVIDIA H100 80GB HBM3, 79.2 GiB" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("moniter", "monitor"),
        ("run trianing", "training"),
        ("run training --bacth 3", "--batch"),
        ("run training --preset transfomer", "Transformer"),
        ("estimate pipline", "pipeline"),
        ("estimate --modle x", "--model"),
        ("monitor --secnds 3", "--seconds"),
        ("--simulat 8GiB", "--simulate"),
        ("watch --simulat 8GiB -- true", "--simulate"),
        ("watch --json --no-recrod=1 -- true", "--no-record"),
        ("help run trainig", "training"),
    ],
)
def test_a_name_nearly_right_is_answered_with_the_one_that_was_meant(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    assert f"id you mean {meant}?" in capsys.readouterr().err


def helped(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, str]:
    """Flag → its line of the help."""
    assert run([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    flags = (line for line in lines if line.startswith("│"))
    return {found[1]: line for line in flags if (found := re.search(r"(--[a-z-]+(?:\.[a-z]+)?)", line))}


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
