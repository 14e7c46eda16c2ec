"""What the terminal takes and shows: flags in common, reports, and how a command is broken off."""
