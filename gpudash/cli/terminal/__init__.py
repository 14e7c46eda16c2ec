"""Input and output in the terminal: common flags, reports, and interrupting a command."""
