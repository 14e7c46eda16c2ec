"""The server as a client sees it, without a process: its tools, whom it asks, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult

from gpudash.session.api.mcp_server.command import CallLimits
from gpudash.session.api.mcp_server.consent import DECLINED, REFUSED
from gpudash.session.api.mcp_server.server import make_server
from gpudash.session.api.mcp_server.tools import READING, RUNNING
from gpudash.system.files import resource

Mode = Literal["legacy", "auto"]


class Called:
    """The answer of a tool, and what the user was asked."""

    def __init__(self, result: CallToolResult, questions: list[str]) -> None:
        self.refused = result.is_error
        block = result.content[0]
        assert block.type == "text"
        self.text = block.text
        self.questions = questions


def call(root: Path, tool: str, *, answer: ElicitResult | None = None, mode: Mode = "auto", **arguments: Any) -> Called:
    """What a tool answers to a client whose user says ``answer``; one that cannot ask without."""
    questions: list[str] = []

    async def ask(
        _context: ClientRequestContext, question: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult:
        questions.append(question.message)
        assert answer is not None
        return answer

    async def called() -> CallToolResult:
        asking: Any = None
        if answer is not None:
            asking = ask
        async with Client(make_server(root, CallLimits(60.0, 2**40)), mode=mode, elicitation_callback=asking) as client:
            return await client.call_tool(tool, arguments)

    return Called(anyio.run(called), questions)


def refusal(root: Path, tool: str, **more: Any) -> str:
    """What is said of a call that is refused, in one line."""
    found = call(root, tool, **more)
    assert found.refused and found.text.isprintable()
    return found.text


def test_what_runs_code_is_marked_as_destructive_and_all_else_as_read_only(tmp_path: Path) -> None:
    async def marks(read_only: bool) -> dict[str, tuple[bool | None, bool | None]]:
        async with Client(make_server(tmp_path, CallLimits(60.0, 2**40), read_only=read_only)) as client:
            tools = (await client.list_tools()).tools
        hints = {tool.name: tool.annotations for tool in tools}
        return {name: (hint.read_only_hint, hint.destructive_hint) for name, hint in hints.items() if hint}

    reading = {tool.__name__: (True, False) for tool in READING}
    running = {tool.__name__: (False, True) for tool in RUNNING}
    assert anyio.run(marks, False) == {**reading, **running}
    assert anyio.run(marks, True) == reading


def test_every_tool_and_every_argument_is_described_and_the_guide_lists_the_tools(tmp_path: Path) -> None:
    async def listed() -> Any:
        async with Client(make_server(tmp_path, CallLimits(60.0, 2**40))) as client:
            assert str(tmp_path) in (client.instructions or "")
            return (await client.list_tools()).tools

    page = resource("guide", "coding-agents.md").read_text(encoding="utf-8")
    for tool in anyio.run(listed):
        assert tool.title and len(tool.description) > 60 and f"| `{tool.name}` |" in page
        for name, schema in tool.input_schema["properties"].items():
            assert "description" in json.dumps(schema) or name == "task", f"{tool.name}: {name}"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_user_is_asked_with_the_whole_command_and_nothing_is_run_where_they_say_no(
    tmp_path: Path, mode: Mode
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    command = ["python", "-c", "open('made', 'w')", "\x1b[2K\u202e"]
    for answer in (
        ElicitResult(action="decline"),
        ElicitResult(action="cancel"),
        ElicitResult(action="accept", content={"run": False}),
    ):
        found = call(root, "watch", answer=answer, mode=mode, command=command, confirmed=True)
        assert found.refused and found.text == DECLINED
        (question,) = found.questions
        assert r"""python -c 'open('"'"'made'"'"', '"'"'w'"'"')' '\x1b[2K\u202e'""" in question
        assert str(root) in question and "It runs for real" in question
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("tool", ["watch", "estimate_program", "fits"])
def test_a_client_that_cannot_ask_is_refused_until_the_agent_says_that_its_user_agreed(
    tmp_path: Path, tool: str
) -> None:
    cards = {"cards": ["8GiB"]} if tool == "fits" else {}
    assert refusal(tmp_path, tool, command=["python", "x.py"], **cards) == REFUSED


def test_the_user_is_not_asked_about_what_would_be_refused_anyway(tmp_path: Path) -> None:
    yes = ElicitResult(action="accept", content={"run": True})
    for arguments in ({"command": []}, {"command": ["python"], "folder": "/etc"}, {"command": ["x"], "folder": "away"}):
        found = call(tmp_path, "watch", answer=yes, **arguments)
        assert found.refused and found.questions == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "There is no command"),
        ([""], "no command"),
        (["a\0b"], "null character"),
        (["x", "y" * 3000], "characters"),
    ],
)
def test_a_command_that_nobody_can_agree_to_is_refused(tmp_path: Path, command: list[str], said: str) -> None:
    assert said in refusal(tmp_path, "watch", command=command, confirmed=True)


def test_every_tool_refuses_a_path_outside_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to("/etc")
    (tmp_path / "train.py").symlink_to("/etc/hostname")
    arguments: dict[str, list[dict[str, Any]]] = {
        "explain": [{"path": "/etc/passwd"}, {"path": "away/passwd"}, {"path": "../x"}],
        "compare_runs": [{"a": "/etc/passwd", "b": "x"}, {"a": "away/passwd#1", "b": "x"}],
        "list_runs": [{"folder": "/etc"}, {"folder": "away"}],
        "estimate_model": [{"model": "/etc"}, {"model": "away"}, {"model": "../x"}],
        "estimate_program": [
            {"function": "/etc/x.py:f"},
            {"function": "train.py:build"},
            {"command": ["x"], "folder": ".."},
        ],
        "watch": [{"command": ["x"], "folder": "/"}, {"command": ["x"], "folder": "away"}],
    }
    for tool, calls in arguments.items():
        for given in calls:
            assert "is outside of" in refusal(tmp_path, tool, **given), (tool, given)


def test_names_that_the_system_refuses_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "cannot be read or run: File name too long." in refusal(tmp_path, "explain", path="x" * 300)
    (tmp_path / "\x1b[2J.bin").write_text("neither")
    assert r"\x1b[2J.bin is neither a memory snapshot" in refusal(tmp_path, "explain", path="\x1b[2J.bin")
    assert "of which alone runs have numbers" in refusal(tmp_path, "explain", path=f"{_snapshot(tmp_path)}#2")


def _snapshot(folder: Path) -> str:
    (folder / "snapshot.pickle").write_bytes(b"\x80\x04N.")
    return "snapshot.pickle"


def test_the_python_that_follows_a_function_is_a_part_of_the_question(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    no = ElicitResult(action="decline")
    found = call(tmp_path, "estimate_program", answer=no, function="train.py:build", python="./other")
    assert found.refused and f"--callable={tmp_path / 'train.py'}:build --python=./other" in found.questions[0]


def test_arguments_that_there_are_not_and_values_that_cannot_be_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "explain has no argument 'pat' (did you mean path?)" in refusal(tmp_path, "explain", pat="x")
    assert refusal(tmp_path, "explain") == "path is missing."
    assert "users: 0: at least 1." in refusal(tmp_path, "serve_plan", model="gpt2", card="h100", users=0)
    assert "task:" in refusal(tmp_path, "estimate_model", model="gpt2", task="\x1b[2J")
    assert "There is no tool" in refusal(tmp_path, "\x1b[2J" * 500)


def test_a_card_that_there_is_not_is_refused_by_the_name_of_its_argument(tmp_path: Path) -> None:
    for tool, arguments in (
        ("estimate_program", {"command": ["x"], "card": "foo"}),
        ("fits", {"model": "gpt2", "cards": ["l4", "foo"]}),
        ("watch", {"command": ["x"], "simulate": "foo"}),
    ):
        said = refusal(tmp_path, tool, confirmed=True, **arguments)
        assert "foo" in said and "write for example" in said and "--" not in said
        assert said.startswith(("card: ", "cards.1: ", "simulate: ")), said


@pytest.mark.parametrize("name", ["trust_remote_code", "python", "prices", "json", "path", "--ask-cudnn"])
def test_settings_of_a_model_are_its_own_fields_and_no_other_flags(tmp_path: Path, name: str) -> None:
    assert "There is no setting" in refusal(tmp_path, "estimate_model", model="gpt2", settings={name: "/etc/passwd"})


def test_of_code_and_a_model_one_is_given(tmp_path: Path) -> None:
    assert "Give one of" in refusal(tmp_path, "fits", cards=["8GiB"])
    assert "Give one of" in refusal(tmp_path, "fits", cards=["8GiB"], model="gpt2", command=["python"])
    assert "give one of them" in refusal(tmp_path, "estimate_program", command=["x"], function="a:b", confirmed=True)
