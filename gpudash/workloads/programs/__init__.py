"""The code that runs: what a user reads in stacks and in View > Program. Everything else here runs it."""
