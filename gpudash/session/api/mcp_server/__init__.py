"""The commands as tools of the Model Context Protocol, for coding agents: ``gpudash mcp``.

Every tool is one gpudash command with ``--json``, run in a separate process; it answers what the command prints.
`tools` maps tools to commands, `root` limits the files they may name, `consent` asks the user for permission,
`command` runs the command, `answers` fits its document to what clients accept, and `stdio` carries the messages.
"""
