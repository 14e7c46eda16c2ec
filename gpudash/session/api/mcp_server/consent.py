"""Asks for permission before the user's code runs.

If the client can ask its user (elicitation), the user is asked, and nothing that the agent puts into its arguments
counts. If it cannot, the argument ``confirmed`` is the agent's statement that the user has agreed: no server can check
that, and the guide says so.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit, ElicitationResult
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from gpudash.system.foreign_text import visible

logger = logging.getLogger(__name__)

LONGEST_COMMAND = 2_000
"""Characters of a command line that a person can be expected to review."""

REFUSED = (
    "Nothing was run: this runs code of the user's, and the client cannot ask for consent. Show the user the command, "
    "and call again with confirmed: true once they have agreed to it."
)

DECLINED = "Nothing was run: the user has not agreed to it. Do not ask again for the same without a word from them."


class Consent(BaseModel):
    """The user's answer to the question."""

    run: bool = Field(description="Run this on your computer now")


def required(ctx: Context[Any, Any], question: str, *, confirmed: bool) -> Consent | Elicit[Consent]:
    """The question for the user, or their consent as stated by the agent if the client cannot ask.

    Raises:
        ToolError: one sentence, when the client cannot ask and the agent has not stated that the user agreed.
    """
    if can_ask(ctx):
        return Elicit(question, Consent)
    if not confirmed:
        raise ToolError(REFUSED)
    return Consent(run=True)


def require(ctx: Context[Any, Any], answer: ElicitationResult[Consent], *, confirmed: bool) -> None:
    """Continue only if the user has agreed; the log says who stated it.

    Raises:
        ToolError: when they have not.
    """
    if not isinstance(answer, AcceptedElicitation) or not answer.data.run:
        raise ToolError(DECLINED)
    if can_ask(ctx):
        logger.info("code is run: the client says that its user agreed")
    elif confirmed:
        logger.info("code is run: the agent says that its user agreed")
    else:
        raise ToolError(REFUSED)


def can_ask(ctx: Context[Any, Any]) -> bool:
    """Whether the client can ask its user; one that declares just "elicitation" can (2025-06-18)."""
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    return capabilities.elicitation.form is not None or capabilities.elicitation.url is None


def command_text(command: Sequence[str]) -> str:
    """A command for a person to review: nothing hidden, and short enough to read.

    Raises:
        ToolError: one sentence, when it is empty or too long.
    """
    if not command or not command[0]:
        raise ToolError("There is no command: give the program and its arguments, such as ['python', 'train.py'].")
    if any("\0" in word for word in command):
        raise ToolError("A word of the command has a null character in it, which no program can be given.")
    text = visible(shlex.join(command), keep="")
    if len(text) > LONGEST_COMMAND:
        raise ToolError(
            f"The command has {len(text):,} characters, and more than {LONGEST_COMMAND:,} nobody reads before agreeing "
            "to it: put it into a script."
        )
    return text


def question_to_run(command: Sequence[str], folder: Path) -> str:
    """The question to the user before a program is run and watched."""
    return (
        f"gpudash is asked to run this program in {visible(str(folder), keep='')} and watch its memory:\n\n"
        f"{command_text(command)}\n\n"
        "It runs for real: it can read, change and delete what you can, and use the network. A recording is kept, and "
        "after an out-of-memory a report."
    )


def question_to_predict(what: str, folder: Path) -> str:
    """The question to the user before code is run without numbers.

    Args:
        what: what is run, in one line.
        folder: the working directory.
    """
    return (
        f"gpudash is asked to predict the memory of this in {visible(str(folder), keep='')}:\n\n"
        f"{what}\n\n"
        "The code is run, on a GPU that is not there and with nothing computed. What a program writes is held back as "
        "far as this system allows; it can read what you can."
    )
