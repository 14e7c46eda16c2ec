"""Machines over ssh: their addresses, the link through the system's ssh, and the reader that is sent over it."""
