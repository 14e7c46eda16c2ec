"""Prints as many MiB as it is told."""

import sys

line = "x" * 1023
for _ in range(int(sys.argv[1])):
    sys.stdout.write(f"{line}\n" * 1024)
print("flooded")
