"""A coding agent without a mind: it fixes programs that run out of memory by what ``gpudash mcp`` answers, and by
nothing else. ``python -m tests.end_to_end.coding_agent`` has it fix ten, and prints a table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult

from tests.end_to_end.out_of_memory.kinds import KINDS, Kind

FAULTS = (
    "losses_kept_in_a_list",
    "evaluation_with_graph",
    "features_kept_by_a_hook",
    "hidden_state_carried_on",
    "predictions_kept_by_a_method",
    "losses_summed_for_one_backward",
    "models_kept_by_fold",
    "distilled_from_a_teacher",
    "dataset_on_the_card",
    "batch_too_large",
)
"""Programs with one fault each, of different kinds."""

CHEAPEST = "dataset_on_the_card"
"""The one that takes least."""

MOST_ROUNDS = 3
"""Changes that it makes before it gives up."""


@dataclass
class Agent:
    """What it has of the server, and what its user was asked.

    Attributes:
        client: connected to the server.
        asked: the questions to the user, to each of which they said yes.
        calls: the tools that were called.
    """

    client: Client
    asked: list[str]
    calls: list[str]

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:
        """What a tool answers."""
        self.calls.append(tool)
        return await self.client.call_tool(tool, arguments)

    async def fix(self, program: Path, card: str) -> list[str]:
        """Change a program until it runs, and say by which changes; an empty list where it ran as it was.

        Raises:
            AssertionError: when an answer names no change, or none of them did.
        """
        changes: list[str] = []
        while True:
            watched = await self._watch(program, card, find_need=False)
            if watched["status"] == "finished":
                if changes:
                    await self._require_predicted_to_fit(program, card)
                return changes
            assert watched["status"] == "out_of_memory" and len(changes) < MOST_ROUNDS, (watched["error"], changes)
            remedy = await self._remedy(watched)
            if not remedy["patch"]:
                # what its steps until then do not tell may be found by running it again
                remedy = await self._remedy(await self._watch(program, card, find_need=True))
            assert remedy["patch"], remedy["change"]
            patch = ["patch", "-p0", "--batch", "--forward"]
            subprocess.run(patch, input=remedy["patch"], text=True, cwd=program.parent, check=True, capture_output=True)
            changes.append(remedy["change"])

    async def _require_predicted_to_fit(self, program: Path, card: str) -> None:
        """What runs is not predicted to be too large; a program that cannot be predicted says so in a sentence."""
        result = await self.call(
            "estimate_program", command=[sys.executable, program.name], folder=program.parent.name, card=card
        )
        document = result.structured_content
        assert document is not None and (result.is_error or document["fits"] is not False), result.content

    async def _watch(self, program: Path, card: str, *, find_need: bool) -> Mapping[str, Any]:
        command = [sys.executable, program.name]
        result = await self.call(
            "watch", command=command, folder=program.parent.name, simulate=card, find_need=find_need
        )
        assert not result.is_error and result.structured_content is not None, result.content
        return result.structured_content

    async def _remedy(self, watched: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first remedy, as the recording of a run has it: also once the call that made it is long over."""
        explained = await self.call("explain", path=watched["recording"])
        document = explained.structured_content
        assert document is not None and not explained.is_error, explained
        first: Mapping[str, Any] = document["error"]["explanation"]["remedies"][0]
        return first


@asynccontextmanager
async def agent(root: Path, environment: Mapping[str, str], *flags: str) -> AsyncIterator[Agent]:
    """An agent whose user agrees to everything, and whose server is bounded to a folder."""
    asked: list[str] = []

    async def agree(
        _context: ClientRequestContext, question: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult:
        asked.append(question.message)
        return ElicitResult(action="accept", content={"run": True})

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "gpudash", "mcp", "--root", str(root), *flags], env=dict(environment)
    )
    async with Client(server, elicitation_callback=agree) as client:
        yield Agent(client, asked, [])


async def fixed(names: Sequence[str], root: Path, environment: Mapping[str, str]) -> dict[str, list[str]]:
    """The changes with which programs of `KINDS` run, each in a folder of its own."""
    kinds = {kind.name: kind for kind in KINDS}
    changes = {}
    async with agent(root, environment) as fixing:
        for name in names:
            began_s = time.monotonic()
            program = _copied(kinds[name], root)
            try:
                changes[name] = await fixing.fix(program, f"{kinds[name].card_mib}MiB")
                said = f"runs after: {'; '.join(changes[name])}"
            except AssertionError as error:
                said = f"was not fixed: {error}"
            _show(f"{name} ({time.monotonic() - began_s:.0f} s) {said}")
        _show(
            f"{len(changes)} of {len(names)} run; {len(fixing.calls)} calls, {len(fixing.asked)} questions to the user"
        )
    return changes


def _copied(kind: Kind, root: Path) -> Path:
    folder = root / kind.name
    folder.mkdir()
    return Path(shutil.copy(kind.program, folder))


def _show(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Fix ten programs; 1 where one is left."""
    with tempfile.TemporaryDirectory(prefix="coding-agent-") as folder:
        root = Path(folder, "root")
        root.mkdir()
        environment = {**os.environ, "GPUDASH_HOME": str(Path(folder, "home"))}
        changes = anyio.run(fixed, sys.argv[1:] or FAULTS, root, environment)
    return int(len(changes) < len(sys.argv[1:] or FAULTS))


if __name__ == "__main__":
    sys.exit(main())
