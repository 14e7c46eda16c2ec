"""Forks, and leaves a child behind that goes on after its parent."""

import os
import sys
import time

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
if os.fork() == 0:
    time.sleep(seconds)
    os._exit(0)
if os.fork() == 0:
    sys.exit(3)
print("status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
