"""Machines over ssh: their addresses, the connection through the system's ssh, and the reader that is sent over it."""
