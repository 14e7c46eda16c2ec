"""Stops doing anything, and will not be interrupted."""

import signal
import time

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("hangs", flush=True)
while True:
    time.sleep(1)
