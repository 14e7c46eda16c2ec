"""Messages over standard input and output. The SDK drops requests that it cannot read; here they are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

HALF_CHARACTER = (
    "The request cannot be read: it has {half} in a text, which is half of a character; leave it out, or send both "
    "halves."
)


@asynccontextmanager
async def answered_stdio() -> AsyncIterator[tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]]:
    """The streams of `stdio_server`, where a request with half a character in it is refused with one sentence."""
    forward, readable = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:

        async def answer_unreadable() -> None:
            async with forward:
                async for message in read:
                    answer = _refusal(message)
                    if answer is None:
                        await forward.send(message)
                    else:
                        await write.send(SessionMessage(answer))

        tasks.start_soon(answer_unreadable)
        yield readable, write
        tasks.cancel_scope.cancel()


def _refusal(message: SessionMessage | Exception) -> JSONRPCError | None:
    """The answer to a request that was not read for half a character in it; ``None`` for anything else."""
    if not isinstance(message, ValidationError):
        return None
    try:
        # unlike the SDK's parser, this one takes half of a surrogate pair, and so finds the id
        request = json.loads(message.errors()[0]["input"])
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(request, dict) or "method" not in request or "id" not in request:
        return None
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("unicode_escape").decode("ascii")
        problem = ErrorData(code=PARSE_ERROR, message=HALF_CHARACTER.format(half=half))
        return JSONRPCError(jsonrpc="2.0", id=_sendable(request["id"]), error=problem)
    return None


def _sendable(found: object) -> int | str | None:
    """The id of a request; ``None``, as JSON-RPC has it, for one that cannot be sent back."""
    if isinstance(found, bool) or not isinstance(found, int | str):
        return None
    if isinstance(found, str) and not found.isprintable():
        return None
    return found
