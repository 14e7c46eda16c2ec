"""What ssh starts as its SSH_ASKPASS: it hands ssh's question to the gpudash that started ssh, and prints the answer.

Run as a program, by a Python without any package: the first argument is the socket, the second the question. It ends
with 1, and ssh has no answer, where none is given. What is answered is kept nowhere.
"""

from __future__ import annotations

import json
import os
import socket
import sys

LONGEST = 2**14
"""Bytes of an answer that are handed on."""

LONGEST_QUESTION = 2000
"""Characters."""

GIVEN = b"+"
"""What stands before an answer, so that an empty one is none the less one."""


def ask(address: str, prompt: str) -> bytes | None:
    """The answer to a question; ``None`` where there is none.

    Raises:
        OSError: when nobody listens.
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
    """Ask; the exit code for ssh."""
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
