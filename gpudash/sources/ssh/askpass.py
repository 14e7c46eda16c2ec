"""The SSH_ASKPASS program: passes ssh's question to the gpudash that started ssh, and prints the answer.

Runs as a program in a Python without packages: the first argument is the socket, the second the question. Without an
answer it exits with 1, and ssh has none. The answer is stored nowhere.
"""

from __future__ import annotations

import json
import os
import socket
import sys

LONGEST = 2**14
"""Longest answer that is passed on, in bytes."""

LONGEST_QUESTION = 2000
"""Longest question, in characters."""

GIVEN = b"+"
"""Prefix of an answer, so that an empty answer still counts as one."""


def ask(address: str, prompt: str) -> bytes | None:
    """The answer to a question; ``None`` if there is none.

    Raises:
        OSError: if nobody listens.
    """
    kind = os.environ.get("SSH_ASKPASS_PROMPT", "")
    question = {"words": os.fsencode(prompt).decode(errors="replace")[:LONGEST_QUESTION], "kind": kind}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect(address)
        channel.sendall(json.dumps(question).encode())
        answer = b""
        while len(answer) < LONGEST and (part := channel.recv(LONGEST)):
            answer += part
    if answer.startswith(GIVEN):
        return answer[len(GIVEN) :]
    return None


def main(address: str, prompt: str) -> int:
    """Ask the question; returns the exit code for ssh."""
    try:
        answer = ask(address, prompt)
    except OSError:
        return 1
    if answer is None:
        return 1
    os.write(1, answer + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
