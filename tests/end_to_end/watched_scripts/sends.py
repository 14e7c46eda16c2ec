"""Speaks to gpudash itself, in the place of the agent, and sends what a file holds: JSON, one message a line; "sleep 5"
only waits. Run it with -I, so that no agent speaks beside it.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["GPUDASH_SOCKET"])


def send(body: bytes) -> None:
    connection.sendall(len(body).to_bytes(4, "big") + body)


send(json.dumps({"type": "hello", "protocol": 1, "pid": os.getpid(), "argv": ["x"], "python": "3.11.7"}).encode())
with Path(sys.argv[1]).open("rb") as file:
    for line in file:
        if line.startswith(b"sleep "):
            time.sleep(float(line.split()[1]))
        else:
            send(line.strip())
print("sent", flush=True)
connection.shutdown(socket.SHUT_WR)
connection.recv(65536)
