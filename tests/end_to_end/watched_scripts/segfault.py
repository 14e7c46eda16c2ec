"""Is killed by its own fault."""

import ctypes

print("before", flush=True)
ctypes.string_at(0)
