"""The commands as tools of the Model Context Protocol, for coding agents: ``gpudash mcp``.

Every tool is one command of gpudash with ``--json``, run in a process of its own: what it answers is what the command
prints. `tools` says which command, `root` which files it may be given, `consent` who has to agree, `command` runs it,
and `answers` makes its document fit for a client.
"""
