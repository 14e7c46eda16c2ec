"""The code that a user sees in stacks and in View > Program. Everything else in this package runs it."""
